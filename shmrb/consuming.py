"""Drawing records that are gone after so many draws: take, read, finish (floor F5).

What is taken nobody else draws. It is finished once it is copied, or with `hold` when the batch is
acknowledged; whatever goes wrong in between gives it back.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shmrb import core, handles
from shmrb.attachment import Attachment
from shmrb.batches import ANCHOR, ANCHOR_GENERATION, Batch, BatchFormat
from shmrb.copies import joined_batches, kept, read_batch
from shmrb.core import SLICE_NS, AnchorKind, Bell, Segment, TakeKind
from shmrb.drawn import Drawn
from shmrb.errors import ClosedError, DeadlineError, EmptyBufferError, ShmrbError
from shmrb.likeness import is_mapping
from shmrb.planner.populations import Slots
from shmrb.spec import FifoSampler, LifoSampler, Sampler
from shmrb.waiting import Call, deadline_of
from shmrb.windowing import Frame, joined
from shmrb.windows import WindowSource

KINDS: dict[type[Sampler], TakeKind] = {
    FifoSampler: TakeKind.OLDEST_FIRST,
    LifoSampler: TakeKind.NEWEST_FIRST,
}
# A draw that failed does not wait long for the lock that giving back needs: it tries again later.
GIVE_BACK_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Taken:
    """Records that this handle has taken: slots and generations, int64."""

    slots: Slots
    generations: Slots

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Where they lie and how many they are, as `end_takes` wants them."""
        slots, generations = core.address(self.slots), core.address(self.generations)
        return slots, len(self.slots), generations


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a draw wants: what the limiter is charged for a record, whether to hold it, and until
    when it may wait."""

    cost: int
    hold: bool
    timeout: float | None
    deadline: float

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.deadline - time.monotonic())


class Consuming:
    """Takes records away for one handle.

    Args:
        attachment: where they are.
        form: of the records.
        sampler: in which order they go.
        windows: what becomes of them, if not the bare records.
    """

    def __init__(
        self,
        attachment: Attachment,
        form: BatchFormat,
        sampler: Sampler,
        windows: WindowSource | None,
    ) -> None:
        self.attachment = attachment
        self.form = form
        self.windows = windows
        self._kind = KINDS.get(type(sampler), TakeKind.UNIFORM)
        # Taken by draws that failed while the lock could not be had.
        self._owed: list[Taken] = []

    @property
    def ran_out(self) -> bool:
        """Whether nothing is left to be taken now."""
        segment = self.attachment.segment or self.attachment.join()
        return not segment.consumption().get("members", 0)

    def draw(self, count: int, cost: int, timeout: float | None, out: Any, hold: bool) -> Drawn:
        """A batch of records that nobody else gets, short if there are fewer.

        Args:
            count: records, or for slices and sequences what the sample unit counts.
            cost: what the limiter is charged for each.
            timeout: seconds to wait.
            out: an earlier batch whose memory is used again.
            hold: leave them taken until they are acknowledged.
        """
        owed, self._owed = self._owed, []
        for taken in owed:
            self._give_back(taken)
        wish = _Wish(cost, hold, timeout, deadline_of(timeout, self.attachment.default_timeout))
        if self.windows is None:
            return self._draw_records(count, wish, out)
        return self._draw_windows(self.windows, count, wish)

    def acknowledge(self, batch: Any, timeout: float | None) -> Any:
        """Finishes what a batch holds; bool, one a row: which of them it finished."""
        name = "ack"
        keys = batch.keys() if is_mapping(batch) else ()
        if ANCHOR in keys and ANCHOR_GENERATION in keys:
            given = handles.of_arrays(batch[ANCHOR], batch[ANCHOR_GENERATION], name)
        else:
            given = handles.of_batch(batch, name)
        assert given.generation is not None
        pairs = np.stack([given.index, given.generation], axis=1)
        rows, places = np.unique(pairs, axis=0, return_inverse=True)
        taken = Taken(np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1]))
        return self._end(taken, False, name, timeout)[places.reshape(-1)]

    # ---- single records --------------------------------------------------------------------------

    def _draw_records(self, count: int, wish: _Wish, out: Any) -> Drawn:
        form = self.form
        memory = None if out is None else form.reuse(out, count)
        parts: list[Drawn] = []
        missing = count
        while missing > 0:
            taken = self._take(missing, wish, is_more=bool(parts))
            if taken is None:
                break
            size = len(taken.slots)
            batch = memory if memory is not None and size == count else form.allocate(size)
            with self._undone_unless_over(taken, wish):
                self._read(batch, taken, wish)
            part = kept(form, batch)
            part.reuses_out = batch is memory
            parts.append(part)
            if size < missing:
                break
            missing -= part.count
        drawn = joined_batches(form, parts)
        if drawn.count == 0:
            raise self._nothing()
        return drawn

    def _read(self, batch: Batch, taken: Taken, wish: _Wish) -> None:
        np.asarray(batch.index)[:] = taken.slots
        count = len(taken.slots)
        self.attachment.run(
            lambda segment: read_batch(segment, batch, count), Call("sample"), wish.left
        )
        generation = np.asarray(batch.generation)
        # Overwritten by the ring, emptied, or lost with a client that was changing it.
        generation[generation != taken.generations] = -1

    # ---- windows ---------------------------------------------------------------------------------

    def _draw_windows(self, windows: WindowSource, batch_size: int, wish: _Wish) -> Drawn:
        unit = windows.unit
        count, shape = unit.shape(batch_size)
        wish = replace(wish, cost=unit.cost(1, shape))
        frames: list[Frame] = []
        missing = count
        while missing > 0:
            taken = self._take(missing, wish, is_more=bool(frames))
            if taken is None:
                break
            frame = unit.frame(len(taken.slots), shape, None)
            frame.anchors[0] = taken.slots
            with self._undone_unless_over(taken, wish):
                self._read_windows(frame, wish)
            whole = frame.anchors[1] == taken.generations
            if whole.any():
                frames.append(frame.kept(whole, unit.form))
            if len(taken.slots) < missing:
                break
            missing -= int(whole.sum())
        if not frames:
            raise self._nothing()
        return unit.drawn(joined(frames, unit.form))

    def _read_windows(self, frame: Frame, wish: _Wish) -> None:
        self.attachment.run(
            lambda segment: frame.draw(segment, self.attachment.rng, AnchorKind.GIVEN, 0),
            Call("sample"),
            wish.left,
        )

    # ---- taking and ending -----------------------------------------------------------------------

    def _take(self, count: int, wish: _Wish, is_more: bool) -> Taken | None:
        """Takes up to `count` records. `is_more`: the batch has some already, so none are waited
        for, and there may be none."""
        attachment = self.attachment
        limited = attachment.spec.limiter is not None
        waits = not is_more and (limited or (wish.timeout is not None and wish.timeout > 0))
        stamps = np.empty((2, count), np.int64)
        places = core.address(stamps[0]), core.address(stamps[1])

        def take(segment: Segment) -> core.Outcome:
            return segment.take(
                attachment.rng, int(self._kind), count, wish.cost, *places, SLICE_NS
            )

        call = Call("sample", wish.cost * count, Bell.RECORDS, waits)
        try:
            size = attachment.run(take, call, 0.0 if is_more else wish.timeout)
        except (EmptyBufferError, DeadlineError):
            if is_more:
                return None
            raise
        return Taken(stamps[0, :size], stamps[1, :size])

    @contextlib.contextmanager
    def _undone_unless_over(self, taken: Taken, wish: _Wish) -> Iterator[None]:
        """Finishes what was taken when the block ends well, unless it is held; else gives it back,
        also when it cannot be finished."""
        is_over = False
        try:
            yield
            if not wish.hold:
                self._end(taken, False, "sample", max(wish.left, GIVE_BACK_WITHIN_S))
            is_over = True
        finally:
            if not is_over:
                self._give_back(taken)

    def _give_back(self, taken: Taken) -> None:
        try:
            self._end(taken, True, "sample", GIVE_BACK_WITHIN_S)
        except ClosedError:
            pass  # closing gives back whatever the handle had taken
        except DeadlineError:
            self._owed.append(taken)
        except ShmrbError:
            pass  # the buffer is gone

    def _end(self, taken: Taken, back: bool, name: str, timeout: float | None) -> Any:
        """Finishes or gives back; which rows this handle had taken."""
        ended = np.zeros(len(taken.slots), np.bool_)
        self.attachment.run(
            lambda segment: segment.end_takes(
                back, *taken.addresses, core.address(ended), SLICE_NS
            ),
            Call(name),
            timeout,
        )
        return ended

    def _nothing(self) -> EmptyBufferError:
        name = self.attachment.address.name
        return EmptyBufferError(f"Cannot sample from an empty storage. ({name} has no record.)")
