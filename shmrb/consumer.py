"""Drawing batches: a sampler's choice, one native gather (floor F5)."""

from __future__ import annotations

import warnings
from typing import Any, cast

import numpy as np

from shmrb.attachment import Attachment
from shmrb.batches import WEIGHT, Batch, BatchFormat
from shmrb.consuming import Consuming
from shmrb.copies import joined_batches, kept, read_batch
from shmrb.core import SLICE_NS, Bell, Outcome, Segment, Status
from shmrb.drawn import Ahead, Drawn
from shmrb.ends import EndOrder, nothing_there
from shmrb.errors import EmptyBufferError, SpecError
from shmrb.planner.passes import Pass
from shmrb.planner.populations import Slots
from shmrb.planner.populations import windows as live_windows
from shmrb.schema import Schema
from shmrb.spec import (
    FifoSampler,
    LifoSampler,
    PrioritizedSampler,
    Sampler,
    SamplerWithoutReplacement,
    SampleUnit,
    SliceSampler,
)
from shmrb.waiting import Call, check_timeout
from shmrb.windows import WindowSource, window_source


class Consumer:
    """The reading half of a handle.

    Args:
        attachment: where the records are.
        format: "torch" or "numpy".
        sampler, sample_unit, batch_size: the handle's own.
    """

    def __init__(
        self,
        attachment: Attachment,
        format: str,
        sampler: Sampler,
        sample_unit: SampleUnit,
        batch_size: int | None,
    ) -> None:
        self.attachment = attachment
        self.batch_size = batch_size
        self._sample_unit = sample_unit
        self.sampler = sampler
        self.ran_out = False
        self._format = format
        self._form: BatchFormat | None = None
        self._warned = False

    @property
    def sampler(self) -> Sampler:
        """How slots are chosen."""
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._windows: WindowSource | None = None
        self._knows_windows = False  # which takes the schema
        self._consuming: Consuming | None = None
        self._pass: Pass | None = None
        if isinstance(sampler, SamplerWithoutReplacement) and not isinstance(sampler, SliceSampler):
            self._pass = Pass(sampler)
        self._by_mass = isinstance(sampler, PrioritizedSampler)
        self._has_passes = isinstance(sampler, SamplerWithoutReplacement)
        self._ends: EndOrder | None = None
        if isinstance(sampler, FifoSampler | LifoSampler):
            self._ends = EndOrder(self.attachment, isinstance(sampler, LifoSampler))

    @property
    def sample_unit(self) -> SampleUnit:
        """What an anchor becomes."""
        return self._sample_unit

    @property
    def form(self) -> BatchFormat:
        """How batches look; exists once the schema is known.

        Raises:
            EmptyBufferError: the buffer is declared and nobody has written to it.
        """
        if self._form is None:
            if not self.attachment.is_joined:
                self.attachment.join()
            self._form = BatchFormat(cast(Schema, self.attachment.spec.schema), self._format)
        return self._form

    @property
    def format(self) -> str:
        """ "torch" or "numpy"."""
        return self._format

    def int64(self, array: Any) -> Any:
        """Slots or stamps as the handle's format has them."""
        if self._format == "numpy":
            return array
        import torch

        return torch.from_numpy(array)

    def restart(self) -> None:
        """Forgets the pass, as after `empty`."""
        with self.attachment.guard:
            if self._pass is not None:
                self._pass.restart()
            if self._windows is not None and self._windows.order is not None:
                self._windows.order.restart()
            self.ran_out = False

    def resolve_batch_size(self, asked: int | None) -> int:
        """The batch size of a call; TorchRL's rules, and its warning once a handle."""
        if asked is None:
            if self.batch_size is None:
                raise SpecError(
                    "batch_size not specified. You can specify the batch_size when constructing "
                    "the replay buffer, or pass it to the sample method."
                )
            return self.batch_size
        if isinstance(asked, bool) or not isinstance(asked, (int, np.integer)) or asked < 1:
            raise SpecError(f"batch_size: expected a whole number >= 1, got {asked!r}.")
        if self.batch_size is not None and asked != self.batch_size and not self._warned:
            self._warned = True
            warnings.warn(
                f"batch_size {self.batch_size} was given when the handle was made and {asked} to "
                "sample(): the call's counts, here and from now on.",
                stacklevel=4,
            )
        return int(asked)

    def draw(self, asked: int | None, timeout: float | None, out: Any, hold: bool = False) -> Drawn:
        """Draws a batch and notes whether the pass is over. Args and errors as `drawn`."""
        drawn = self.drawn(asked, timeout, out, hold)
        self.ran_out = drawn.ends_pass
        return drawn

    def drawn(
        self, asked: int | None, timeout: float | None, out: Any, hold: bool = False
    ) -> Drawn:
        """A batch, which is shorter than asked for at the end of a pass.

        A limiter is charged for it; an empty buffer is waited for if it has one, or if the caller
        gave a timeout.

        Args:
            asked: records; None: the handle's batch size.
            timeout: seconds to wait.
            out: a batch whose memory is used again; None: new memory.
            hold: leave what is taken away taken until it is acknowledged.
        """
        count = self.resolve_batch_size(asked)
        attachment = self.attachment
        if timeout is not None:
            check_timeout(timeout)
        waits = timeout is not None and timeout > 0
        limited = attachment.spec.limiter is not None
        cost = count * self.sample_unit.cost if limited else 0
        call = Call("sample", cost, Bell.RECORDS, waits)
        if attachment.segment is None and (waits or limited):
            attachment.await_join(call, timeout)
        form = self._form or self.form
        windows = self.windows
        if attachment.spec.consume_after_n_samples is not None:
            cost = self.sample_unit.cost if limited else 0
            drawn = self.consuming.draw(count, cost, timeout, out, hold)
            drawn.ends_pass = self.consuming.ran_out
            return drawn
        if hold:
            raise SpecError(
                "hold=True: nothing is taken away here. Create the buffer with "
                "consume_after_n_samples=1."
            )
        if windows is not None:
            drawn = windows.draw(count, timeout, out)
            drawn.ends_pass = (
                self._has_passes and windows.order is not None and windows.order.ran_out
            )
            return drawn
        memory = None if out is None else form.reuse(out, count)
        if self._ends is not None:
            return self._ends.draw(form, count, cost // count, call, timeout)
        if self._pass is not None:
            return self._draw_from_pass(self._pass, form, count, call, timeout, memory)
        return self._sample(form, count, cost, call, timeout, memory, out)

    def _sample(
        self,
        form: BatchFormat,
        count: int,
        cost: int,
        call: Call,
        timeout: float | None,
        memory: Batch | None = None,
        out: Any = None,
    ) -> Drawn:
        """Independent draws, uniform or by mass, in one native call."""
        attachment = self.attachment
        batch = memory or form.allocate(count)
        rng = attachment.rng
        if self._by_mass:
            weights, weights_address = form.beside(WEIGHT, "float32", count, out)
            attachment.run(
                lambda segment: segment.sample_by_mass(
                    rng,
                    count,
                    batch.addresses,
                    batch.index_address,
                    batch.generation_address,
                    weights_address,
                    0,
                    cost,
                    SLICE_NS,
                ),
                call,
                timeout,
            )
            return Drawn(batch, count, memory is not None, {WEIGHT: weights})
        attachment.run(
            lambda segment: segment.sample(
                rng,
                count,
                batch.addresses,
                batch.index_address,
                batch.generation_address,
                0,
                cost,
                SLICE_NS,
            ),
            call,
            timeout,
        )
        return Drawn(batch, count, memory is not None)

    def ahead(self) -> Ahead:
        """A batch that nobody waits for, as it can be had at once.

        Raises as `drawn`; nothing is waited for.
        """
        windows = self.windows
        if windows is None:
            drawn = self.drawn(None, 0.0, None)
            return Ahead(drawn.ends_pass, drawn)
        frame = windows.draw_frame(self.resolve_batch_size(None), 0.0, None)
        ends_pass = windows.order is not None and windows.order.ran_out
        return Ahead(ends_pass, frame=frame)

    def again(self, slots: Slots, timeout: float) -> Drawn:
        """Records for those of a batch that are gone; a limiter is not charged a second time.

        A pass reads what is in these slots now, generation -1 where there is nothing; else others
        are drawn.
        """
        form = self.form
        call = Call("sample", len(slots))
        if self._pass is None:
            return self._sample(form, len(slots), 0, call, timeout)
        batch = form.allocate(len(slots))
        np.asarray(batch.index)[:] = slots
        self.attachment.run(lambda s: read_batch(s, batch, len(slots)), call, timeout)
        return Drawn(batch, len(slots))

    @property
    def windows(self) -> WindowSource | None:
        """What draws windows; None where an anchor is its own record, and nothing else."""
        return self._windows if self._knows_windows else self._find_windows(self.form)

    @property
    def consuming(self) -> Consuming:
        """How this handle takes records away.

        Raises:
            SpecError: the buffer's records are not consumed.
        """
        spec = self.attachment.spec
        if spec.consume_after_n_samples is None:
            raise SpecError(
                f"{self.attachment.address.name} takes no records away. Create the buffer with "
                "consume_after_n_samples=1."
            )
        form = self.form
        windows = self.windows
        with self.attachment.guard:
            if self._consuming is None:
                self._consuming = Consuming(self.attachment, form, self._sampler, windows)
            return self._consuming

    def _find_windows(self, form: BatchFormat) -> WindowSource | None:
        with self.attachment.guard:
            if not self._knows_windows:
                self._windows = window_source(
                    self.attachment, form, self._sampler, self._sample_unit, self._pass
                )
                self._knows_windows = True
            return self._windows

    def _draw_from_pass(
        self,
        order: Pass,
        form: BatchFormat,
        count: int,
        call: Call,
        timeout: float | None,
        memory: Batch | None,
    ) -> Drawn:
        """The next records of the pass; slots whose record died are passed over."""
        found: list[Drawn] = []
        given = memory
        missing = count
        while missing > 0:
            take = _Take(self, order, form, missing, memory)
            self.attachment.run(take, call, timeout)
            found.append(kept(form, take.batch))
            missing -= found[-1].count
            memory = None
            if take.ends_pass:
                break
        drawn = joined_batches(form, found)
        if drawn.count == 0:
            name = self.attachment.address.name
            raise EmptyBufferError(f"Cannot sample from an empty storage. ({name} has no record.)")
        drawn.reuses_out = drawn.batch is given
        drawn.ends_pass = take.ends_pass
        return drawn


class _Take:
    """One native read of the next slots of a pass, chosen anew each time it is tried."""

    def __init__(
        self,
        consumer: Consumer,
        order: Pass,
        form: BatchFormat,
        count: int,
        memory: Batch | None,
    ) -> None:
        self.consumer = consumer
        self.order = order
        self.form = form
        self.count = count
        self.batch = memory or form.allocate(count)
        self.ends_pass = False

    def __call__(self, segment: Segment) -> Outcome:
        consumer, order = self.consumer, self.order
        attachment = consumer.attachment
        spec = attachment.spec
        with attachment.guard:
            live = live_windows(segment, spec.lane_capacity)
            limited = spec.limiter is not None
            if sum(live) < (self.count if limited and order.sampler.drop_last else 1):
                return nothing_there(segment)
            slots = order.take(live, spec.lane_capacity, self.count, attachment.rng.next())
            delivered = False
            try:
                cost = len(slots) * consumer.sample_unit.cost if limited else 0
                outcome = self._read(segment, slots, cost)
                delivered = outcome[0] == Status.OK
                if delivered:
                    self.ends_pass = order.ran_out
            finally:
                if not delivered:
                    order.give_back()
        return outcome

    def _read(self, segment: Segment, slots: Any, cost: int) -> Outcome:
        if len(slots) != len(self.batch.index):
            self.batch = self.form.allocate(len(slots))
        np.asarray(self.batch.index)[:] = slots
        return read_batch(segment, self.batch, len(slots), cost)
