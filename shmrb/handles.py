"""Handles that come back: which records a late write is meant for (floor F5).

A batch carries its own; bare arrays are slots, with their generations or, unchecked, without.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from shmrb import core
from shmrb.batches import GENERATION, INDEX, VALIDITY
from shmrb.errors import RecordError
from shmrb.fields import Field
from shmrb.likeness import is_mapping
from shmrb.nesting import fields_of
from shmrb.planner.populations import Slots
from shmrb.records import is_tensor
from shmrb.tensors import native_tensors

INT64 = np.dtype(np.int64)
# A generation that no record has.
NO_RECORD = -1


class Handles:
    """Slots and the generations their records had, int64 and contiguous.

    Args:
        index: slots, some of which may be outside the buffer.
        generation: one for each slot, None if the caller gave none.

    Attributes:
        size: how many there are.
        addresses: where slots and generations lie; 0 for no generations.
    """

    __slots__ = ("_generation", "_index", "addresses", "size")

    def __init__(self, index: Slots, generation: Slots | None) -> None:
        self._index: Any = index
        self._generation: Any = generation
        self.size = len(index)
        self.addresses = core.address(index), 0 if generation is None else core.address(generation)

    @classmethod
    def of_tensors(cls, index: Any, generation: Any) -> Handles | None:
        """Those that a batch brings back untouched; None: they need the longer way."""
        tensors = _stamps()
        size = index.numel()
        places = None if tensors is None else tensors.places([index, generation], size)
        if places is None:
            return None
        handles = cls.__new__(cls)
        handles._index, handles._generation = index, generation
        handles.size = size
        handles.addresses = places[0], places[1]
        return handles

    @property
    def index(self) -> Slots:
        """The slots."""
        return np.asarray(self._index)

    @property
    def generation(self) -> Slots | None:
        """The generations."""
        return None if self._generation is None else np.asarray(self._generation)

    @property
    def has_generations(self) -> bool:
        """Whether the caller said which records were meant."""
        return self._generation is not None


@cache
def _stamps() -> core.Tensors | None:
    """REQUIRES: torch is imported."""
    return native_tensors([Field((key,), "int64", ()) for key in (INDEX, GENERATION)])


def of(index: Any, generation: Any, name: str) -> Handles:
    """The handles that a late write names: those of a batch, or slots and their generations.

    Raises:
        RecordError: they do not name records.
    """
    if not is_mapping(index):
        return of_arrays(index, generation, name)
    if generation is not None:
        raise RecordError(f"{name}: a batch has its own generations; leave generation= out.")
    return of_batch(index, name)


def of_batch(batch: Any, name: str) -> Handles:
    """The handles in a batch that was drawn; padding names no record.

    Raises:
        RecordError: it has lost one of its stamps.
    """
    fields = fields_of(batch)
    index, generation = fields.get(INDEX), fields.get(GENERATION)
    if index is None or generation is None:
        missing = [key for key in (INDEX, GENERATION) if fields.get(key) is None]
        raise RecordError(
            f"{name}: the batch has no {' and no '.join(map(repr, missing))}, so nothing says "
            "which records it holds. Keep both keys of what sample() gave, or give index= and "
            "generation=."
        )
    given = Handles.of_tensors(index, generation) if is_tensor(index) else None
    if given is None:
        given = of_arrays(index, generation, name)
    validity = fields.get(VALIDITY)
    if validity is None:
        return given
    real = np.asarray(validity.cpu() if is_tensor(validity) else validity)
    if real.size != given.size:
        raise RecordError(
            f"{name}: expected one entry of {VALIDITY!r} a record, got {real.size} for "
            f"{given.size} records."
        )
    stamps = given.generation
    assert stamps is not None
    return Handles(given.index, np.where(real.reshape(-1), stamps, NO_RECORD))


def of_arrays(index: Any, generation: Any, name: str) -> Handles:
    """Handles from slots and, unless None, generations.

    Raises:
        RecordError: they are no whole numbers, of more than one dimension, or of unequal counts.
    """
    slots = whole_numbers(index, f"{name}: index")
    if generation is None:
        return Handles(slots, None)
    stamps = whole_numbers(generation, f"{name}: generation")
    if len(slots) != len(stamps):
        raise RecordError(
            "index and generation must address the same number of records, got "
            f"{len(slots)} indices and {len(stamps)} generations."
        )
    return Handles(slots, stamps)


def whole_numbers(value: Any, what: str) -> Slots:
    """Whole numbers of any dtype as contiguous int64: one, [N], or [N, 1].

    Raises:
        RecordError: another dtype or shape, or a number that int64 cannot hold.
    """
    try:
        if is_tensor(value):
            value = value.numpy() if value.is_cpu else value.cpu().detach().numpy()
        array = np.asarray(value)
    except (OverflowError, ValueError, TypeError, RuntimeError) as error:
        raise RecordError(f"{what}: expected whole numbers, got {value!r} ({error}).") from None
    if array.dtype == INT64 and array.ndim == 1:
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise RecordError(f"{what}: expected whole numbers, got {array.dtype}.")
    if array.ndim > 1 and array.shape[1:] != (1,) * (array.ndim - 1):
        raise RecordError(
            f"{what}: expected one dimension, one entry a record, got shape {list(array.shape)}."
        )
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        row = int(array.argmax())
        raise RecordError(f"{what}: row {row} is {array.reshape(-1)[row]}, beyond every slot.")
    return np.ascontiguousarray(array.reshape(-1), dtype=np.int64)
