"""Drawing batches: a sampler's choice, one native gather, the user's form (floor F5)."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from shmrb.attachment import Attachment
from shmrb.batches import GENERATION, INDEX, Batch, BatchFormat
from shmrb.core import SLICE_NS, Bell
from shmrb.errors import EmptyBufferError, SpecError
from shmrb.planner.passes import Pass
from shmrb.planner.populations import live_slots
from shmrb.spec import Sampler, SamplerWithoutReplacement, SampleUnit
from shmrb.waiting import Call


@dataclass(slots=True)
class Drawn:
    """One batch before it gets its form: memory, and how many of its records count."""

    batch: Batch
    count: int

    def info(self) -> dict[str, Any]:
        """What goes beside the fields."""
        return {INDEX: self.batch.index, GENERATION: self.batch.generation}


class Consumer:
    """The reading half of a handle.

    Args:
        attachment: where the records are.
        sampler, sample_unit, batch_size: the handle's own.
    """

    def __init__(
        self,
        attachment: Attachment,
        sampler: Sampler,
        sample_unit: SampleUnit,
        batch_size: int | None,
    ) -> None:
        self.attachment = attachment
        self.batch_size = batch_size
        self.sample_unit = sample_unit
        self.ran_out = False
        self._warned = False
        self._plan = threading.Lock()
        self.sampler = sampler

    @property
    def sampler(self) -> Sampler:
        """How slots are chosen."""
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._pass = Pass(sampler) if isinstance(sampler, SamplerWithoutReplacement) else None

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

    def draw(
        self, form: BatchFormat, count: int, timeout: float | None, memory: Batch | None
    ) -> Drawn:
        """Draws `count` records, or fewer at the end of a pass without replacement.

        A limiter is charged for them; an empty buffer is waited for if it has one, or if the caller
        gave a timeout.
        """
        attachment = self.attachment
        limited = attachment.spec.limiter is not None
        call = Call("sample", count, Bell.RECORDS, timeout is not None and timeout > 0)
        if self._pass is not None:
            return self._draw_from_pass(form, count, timeout, memory, call)
        batch = memory or form.allocate(count)
        cost = count * self.sample_unit.cost if limited else 0
        rng = attachment.rng
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
        return Drawn(batch, count)

    def _draw_from_pass(
        self,
        form: BatchFormat,
        count: int,
        timeout: float | None,
        memory: Batch | None,
        call: Call,
    ) -> Drawn:
        """The next slots of the pass; slots whose record died are passed over."""
        attachment = self.attachment
        found: list[Drawn] = []
        total = 0
        while total < count:
            chosen = self._choose(count - total)
            if len(chosen) == 0:
                break
            drawn = self._gather(form, chosen, timeout, call, memory if total == 0 else None)
            memory = None if drawn.count < count else memory
            found.append(drawn)
            total += drawn.count
            if self.ran_out:
                break
        if total == 0:
            name = attachment.address.name
            raise EmptyBufferError(f"Cannot sample from an empty storage. ({name} has no record.)")
        return found[0] if len(found) == 1 else _join(form, found, total)

    def _choose(self, count: int) -> Any:
        assert self._pass is not None
        attachment = self.attachment
        with self._plan:
            slots = live_slots(attachment.segment or attachment.join(), attachment.spec.lane_capacity)
            if len(slots) == 0:
                return slots
            chosen = self._pass.take(slots, count, attachment.rng.next())
            self.ran_out = self._pass.ran_out
        return chosen

    def _gather(
        self,
        form: BatchFormat,
        slots: Any,
        timeout: float | None,
        call: Call,
        memory: Batch | None,
    ) -> Drawn:
        count = len(slots)
        fits = memory is not None and len(memory.index) == count
        batch = memory if memory is not None and fits else form.allocate(count)
        np.asarray(batch.index)[:] = slots
        limited = self.attachment.spec.limiter is not None
        cost = count * self.sample_unit.cost if limited else 0
        read_batch(self.attachment, batch, count, call, timeout, cost)
        return kept(form, batch)


def read_batch(
    attachment: Attachment,
    batch: Batch,
    count: int,
    call: Call,
    timeout: float | None,
    cost: int = 0,
) -> None:
    """Reads the slots in `batch.index`; rows that hold no live record get generation -1."""
    attachment.run(
        lambda segment: segment.read(
            batch.index_address,
            count,
            batch.addresses,
            batch.generation_address,
            0,
            cost,
            SLICE_NS,
        ),
        call,
        timeout,
    )


def kept(form: BatchFormat, batch: Batch) -> Drawn:
    """The batch without the rows that held no record."""
    whole = np.asarray(batch.generation) >= 0
    if whole.all():
        return Drawn(batch, len(whole))
    rows = form.from_numpy(np.flatnonzero(whole))
    leaves = [leaf[rows] for leaf in batch.leaves]
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
