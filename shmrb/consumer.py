"""Drawing batches: a sampler's choice, one native gather (floor F5)."""

from __future__ import annotations

import warnings
from typing import Any, cast

import numpy as np

from shmrb.attachment import Attachment
from shmrb.batches import WEIGHT, Batch, BatchFormat
from shmrb.core import SLICE_NS, Bell, Outcome, Segment, Status
from shmrb.drawn import Drawn
from shmrb.errors import EmptyBufferError, SpecError
from shmrb.planner.passes import Pass
from shmrb.planner.populations import windows
from shmrb.schema import Schema
from shmrb.segment import snapshot
from shmrb.spec import (
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
        self._pass: Pass | None = None
        if isinstance(sampler, SamplerWithoutReplacement) and not isinstance(sampler, SliceSampler):
            self._pass = Pass(sampler)
        self._by_mass = isinstance(sampler, PrioritizedSampler)

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

    def draw(self, asked: int | None, timeout: float | None, out: Any) -> Drawn:
        """Draws a batch, which is shorter than asked for at the end of a pass.

        A limiter is charged for it; an empty buffer is waited for if it has one, or if the caller
        gave a timeout.

        Args:
            asked: records; None: the handle's batch size.
            timeout: seconds to wait.
            out: a batch whose memory is used again; None: new memory.
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
        windows = self._windows if self._knows_windows else self._find_windows(form)
        if windows is not None:
            drawn = windows.draw(count, timeout, out)
            self.ran_out = windows.order is not None and windows.order.ran_out
            return drawn
        memory = None if out is None else form.reuse(out, count)
        if self._pass is not None:
            return self._draw_from_pass(self._pass, form, count, call, timeout, memory)
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
            if self.ran_out:
                break
        total = sum(part.count for part in found)
        if total == 0:
            name = self.attachment.address.name
            raise EmptyBufferError(f"Cannot sample from an empty storage. ({name} has no record.)")
        if len(found) > 1:
            return _join(form, found, total)
        return Drawn(found[0].batch, total, found[0].batch is given)


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

    def __call__(self, segment: Segment) -> Outcome:
        consumer, order = self.consumer, self.order
        attachment = consumer.attachment
        spec = attachment.spec
        with attachment.guard:
            live = windows(segment, spec.lane_capacity)
            if not live:
                return int(Status.CLOSED), 0, 0, 0, 0
            limited = spec.limiter is not None
            if sum(live) < (self.count if limited and order.sampler.drop_last else 1):
                return int(Status.LIMITED if _holds_up(segment) else Status.EMPTY), 0, 0, 0, 0
            slots = order.take(live, spec.lane_capacity, self.count, attachment.rng.next())
            delivered = False
            try:
                cost = len(slots) * consumer.sample_unit.cost if limited else 0
                outcome = self._read(segment, slots, cost)
                delivered = outcome[0] == Status.OK
                if delivered:
                    consumer.ran_out = order.ran_out
            finally:
                if not delivered:
                    order.give_back()
        return outcome

    def _read(self, segment: Segment, slots: Any, cost: int) -> Outcome:
        if len(slots) != len(self.batch.index):
            self.batch = self.form.allocate(len(slots))
        np.asarray(self.batch.index)[:] = slots
        return read_batch(segment, self.batch, len(slots), cost)


def _holds_up(segment: Segment) -> bool:
    limiter = snapshot.limiter(segment)
    return limiter.enabled and not limiter.lifted


def read_batch(segment: Segment, batch: Batch, count: int, cost: int = 0) -> Outcome:
    """Reads the slots in `batch.index`; rows that hold no live record get generation -1."""
    return segment.read(
        batch.index_address,
        count,
        batch.addresses,
        batch.generation_address,
        0,
        cost,
        SLICE_NS,
    )


def kept(form: BatchFormat, batch: Batch) -> Drawn:
    """The batch without the rows that held no record."""
    whole = np.asarray(batch.generation) >= 0
    if whole.all():
        return Drawn(batch, len(whole))
    rows = form.from_numpy(np.flatnonzero(whole))
    leaves = [None if leaf is None else leaf[rows] for leaf in batch.leaves]
    index, generation = batch.index[rows], batch.generation[rows]
    return Drawn(Batch(leaves, index, generation, [], 0, 0), len(rows))


def _join(form: BatchFormat, parts: list[Drawn], total: int) -> Drawn:
    joined = form.allocate(total)
    start = 0
    for part in parts:
        for target, source in zip(joined.leaves, part.batch.leaves, strict=True):
            target[start : start + part.count] = source
        joined.index[start : start + part.count] = part.batch.index
        joined.generation[start : start + part.count] = part.batch.generation
        start += part.count
    return Drawn(joined, total)
