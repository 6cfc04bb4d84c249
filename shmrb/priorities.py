"""The priorities of a buffer as one handle gives and changes them (floor F5).

Everything is checked before anything changes; what the native core alone can know (whether a mass
is finite under the exponents of the moment) it checks before it takes its first step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from shmrb import core
from shmrb.attachment import Attachment
from shmrb.core import SLICE_NS, Counter, Outcome, Segment, Status
from shmrb.description import Path, real
from shmrb.errors import RecordError, SpecError
from shmrb.fields import key_path, show_path
from shmrb.handles import Handles, whole_numbers
from shmrb.nesting import found, without
from shmrb.records import is_tensor
from shmrb.segment import snapshot
from shmrb.spec import PrioritizedSampler
from shmrb.waiting import Call

Floats = npt.NDArray[np.float32]
Verdicts = npt.NDArray[np.uint8]

NO_PRIORITIES = (
    "{}: {} keeps no priorities. Create the buffer with "
    "sampler=PrioritizedSampler(alpha=..., beta=...)."
)
# Torch's median: of an even number of values the lower of the two in the middle.
REDUCTIONS: dict[str, Callable[[Floats], Floats]] = {
    "max": lambda rows: rows.max(axis=1),
    "min": lambda rows: rows.min(axis=1),
    "mean": lambda rows: rows.mean(axis=1),
    "sum": lambda rows: rows.sum(axis=1),
    "median": lambda rows: np.sort(rows, axis=1)[:, (rows.shape[1] - 1) // 2],
}


class PriorityDesk:
    """Where one handle's priorities go in.

    Args:
        attachment: the handle's.
        key: where records and batches may carry their priority.
        reduction: how several values of one record become one, as in `PrioritizedSampler`.
    """

    def __init__(self, attachment: Attachment, key: Any, reduction: str) -> None:
        self.attachment = attachment
        self.path: Path = key_path(key)
        self.reduction = reduction

    @property
    def is_kept(self) -> bool:
        """Whether the buffer keeps priorities."""
        return self.attachment.spec.priorities is not None

    def require(self, name: str) -> None:
        """Refuses a call on a buffer without priorities."""
        if not self.is_kept:
            raise SpecError(NO_PRIORITIES.format(name, self.attachment.address.name))

    # ---- on the way in ---------------------------------------------------------------------------

    def split(self, data: Any, batched: bool) -> tuple[Any, Floats | None]:
        """What is to be written, and the priorities that came with it under the key.

        The key stays with the data if it is a field, or if the first write is still to decide the
        fields; else it is taken out. None: the records carry none.
        """
        if not self.is_kept:
            return data, None
        schema = self.attachment.spec.schema
        is_field = schema is None or self.path in schema.paths
        if batched and isinstance(data, list):
            parts = [self.split(record, False) for record in data]
            given = [raw for _, raw in parts]
            if not data or any(raw is None for raw in given):
                return data, None
            return [record for record, _ in parts], np.concatenate(given)  # type: ignore[arg-type]
        value = found(data, self.path)
        if value is None:
            return data, None
        raw = self.reduced(value, "extend" if batched else "add", batched)
        return (data if is_field else without(data, self.path)), raw

    def given(self, priority: Any, count: int, name: str) -> Floats:
        """`count` priorities: one number for all, or one each.

        Raises:
            RecordError: another number of them, or not numbers.
        """
        raw = self.floats(priority, name)
        if raw.ndim == 0:
            return np.full(count, raw, np.float32)
        if raw.size != count:
            raise self.miscounted(raw, count, name)
        return np.ascontiguousarray(raw.reshape(-1))

    def reduced(self, values: Any, name: str, batched: bool = True) -> Floats:
        """One priority a record, reduced over all further dimensions.

        Raises:
            RecordError: they are not numbers, or a record has none.
        """
        raw = self.floats(values, name)
        if batched and raw.ndim == 0:
            raise RecordError(
                f"{name}: expected one entry or more a record in {show_path(self.path)}, got a "
                "single number."
            )
        rows = raw.reshape(len(raw), -1) if batched else raw.reshape(1, -1)
        if rows.shape[1] == 1:
            return np.ascontiguousarray(rows[:, 0])
        if rows.size == 0 and len(rows):
            raise RecordError(f"{name}: {show_path(self.path)} of shape {raw.shape} holds nothing.")
        return np.ascontiguousarray(REDUCTIONS[self.reduction](rows), dtype=np.float32)

    def check(self, raw: Floats, name: str) -> None:
        """Refuses priorities that cannot be, before a call that goes in pieces.

        Raises:
            RecordError: the first such row, with its value.
        """
        bad = np.flatnonzero(~(np.isfinite(raw) & (raw >= 0)))
        if len(bad):
            self.count_refusal()
            raise self.impossible(raw, int(bad[0]), name)

    def miscounted(self, raw: Floats, count: int, name: str = "extend") -> RecordError:
        """There are more or fewer priorities than records."""
        return RecordError(
            f"{name}: priority should be a number or an iterable of the same length as index. Got "
            f"priority of shape {raw.shape} and index {(count,)}."
        )

    def impossible(self, raw: Floats, row: int, name: str) -> RecordError:
        """What is wrong with a row that was refused."""
        return RecordError(
            f"{name}: row {row} has priority {raw[row]:g}: expected a finite number >= 0 whose "
            "mass (priority + eps) ** alpha is a finite float32. Nothing was changed. Of a TD "
            "error give the absolute value."
        )

    # ---- later -----------------------------------------------------------------------------------

    def update(self, handles: Handles, priority: Any, timeout: float | None, name: str) -> Verdicts:
        """Gives records new priorities; 1 for each row whose record is there, 0 for the stale.

        Raises:
            RecordError: a priority or a bare index that cannot be; nothing is changed.
        """
        try:
            raw = self.given(priority, handles.size, name)
            if not handles.has_generations:
                self._check_bare(handles, name)
        except RecordError:
            self.count_refusal()
            raise
        verdicts = np.zeros(handles.size, np.uint8)
        if handles.size == 0:
            return verdicts
        index, generation = handles.addresses
        places = core.address(raw), core.address(verdicts)

        def update(segment: Segment) -> Outcome:
            outcome: Outcome = segment.update_priority(
                index, handles.size, generation, *places, SLICE_NS
            )
            if outcome[0] == Status.REFUSED:
                raise self.impossible(raw, outcome[1], name)
            return outcome

        self.attachment.run(update, Call(name), timeout)
        return verdicts

    def set_exponents(self, alpha: float | None, beta: float | None, timeout: float | None) -> None:
        """Other exponents for everybody; None leaves one as it is.

        Raises:
            SpecError: a negative one, or an alpha under which a mass would not be finite.
        """
        self.require("sampler")
        for name, value in (("alpha", alpha), ("beta", beta)):
            if value is not None and real(name, value) < 0:
                raise SpecError(f"{name} must be greater or equal to 0, got {name}={value}")
        new_alpha = math.nan if alpha is None else float(alpha)
        new_beta = math.nan if beta is None else float(beta)

        def change(segment: Segment) -> Outcome:
            outcome: Outcome = segment.set_exponents(new_alpha, new_beta, SLICE_NS)
            if outcome[0] == Status.REFUSED:
                raise SpecError(
                    f"alpha={alpha}: the greatest priority would have a mass beyond float32. "
                    "Nothing was changed."
                )
            return outcome

        self.attachment.run(change, Call("sampler"), timeout)

    @property
    def exponents(self) -> tuple[float, float]:
        """alpha and beta as they are now.

        Raises:
            AttributeError: the buffer keeps no priorities.
        """
        described = self.attachment.spec.priorities
        if described is None:
            raise AttributeError(NO_PRIORITIES.format("sampler", self.attachment.address.name))
        segment = self.attachment.try_join()
        if segment is None:
            return described.alpha, described.beta
        info = snapshot.priorities(segment)
        return info.alpha, info.beta

    @property
    def default_priority(self) -> float:
        """What records without a priority of their own enter with."""
        self.require("sampler")
        segment = self.attachment.try_join()
        greatest = 0.0 if segment is None else snapshot.priorities(segment).max_priority
        return greatest if greatest > 0 else 1.0

    def of_slots(self, index: Any) -> Floats:
        """The priorities of slots, NaN where no record is."""
        self.require("sampler")
        slots = whole_numbers(index, "priorities_of")
        raw = np.empty(len(slots), np.float32)
        places = core.address(slots), len(slots), core.address(raw)
        self.attachment.run(
            lambda segment: segment.raw_priorities(*places), Call("priorities_of"), None
        )
        return raw

    def count_refusal(self) -> None:
        """Counts a refused call in the buffer's statistics."""
        segment = self.attachment.segment
        if segment is not None:
            segment.count(Counter.REFUSED_PRIORITIES, 1)

    def _check_bare(self, handles: Handles, name: str) -> None:
        """Slots without generations must be slots; −1 says, as in TorchRL, that the row is none."""
        capacity = self.attachment.spec.capacity
        bad = np.flatnonzero((handles.index < -1) | (handles.index >= capacity))
        if len(bad):
            row = int(bad[0])
            raise RecordError(
                f"{name}: row {row} has index {int(handles.index[row])}: expected slots of 0 to "
                f"{capacity - 1}, or -1 for no record. Nothing was changed."
            )

    def floats(self, value: Any, name: str) -> Floats:
        """Numbers as float32, in their shape."""
        if is_tensor(value):
            if value.is_floating_point():
                value = value.float()  # numpy has no bfloat16
            value = value.numpy(force=True)
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise RecordError(f"{name}: priority: ragged values ({error}).") from None
        if array.dtype == np.float32:
            return array
        if array.dtype.kind not in "iuf":
            raise RecordError(f"{name}: priority: expected numbers, got {array.dtype}.")
        with np.errstate(over="ignore"):
            return array.astype(np.float32)


def reduction_of(sampler: Any) -> str:
    """How a handle with this sampler reduces priorities."""
    return sampler.reduction if isinstance(sampler, PrioritizedSampler) else "max"
