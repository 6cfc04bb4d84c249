"""Checksums that tell a whole record from one that was put together from two.

Every byte of a record counts: its fields are laid side by side as unsigned words, each word is
multiplied by an odd number of its own place, and the sum modulo 2^64 is the seal. A record that
mixes the words of two keeps a right seal with a probability of about 2^-64.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shmrb.demo.recipe import SEAL
from shmrb.dtypes import DTYPES
from shmrb.fields import Field
from shmrb.schema import Schema

_WORD_BYTES = 8


class _Layout:
    """Where the bytes of each field but the seal lie in a row of words."""

    def __init__(self, schema: Schema) -> None:
        self.fields: list[Field] = [field for field in schema.fields if field.path != (SEAL,)]
        self.places: list[slice] = []
        start = 0
        for field in self.fields:
            self.places.append(slice(start, start + field.row_bytes))
            start += -(-field.row_bytes // _WORD_BYTES) * _WORD_BYTES
        self.words = start // _WORD_BYTES
        # Any fixed odd numbers will do; those who write and those who check draw the same.
        factors = np.random.default_rng(20_000).integers(0, 1 << 63, self.words, np.uint64)
        self.factors = factors * np.uint64(2) + np.uint64(1)


class Stamper:
    """Seals one record at a time, before it is written.

    Args:
        schema: of the buffer.
    """

    def __init__(self, schema: Schema) -> None:
        layout = _Layout(schema)
        self._words = np.zeros(layout.words, np.uint64)
        self._factors = layout.factors
        row = self._words.view(np.uint8)
        self._leaves = [
            row[place].view(DTYPES[field.dtype].numpy).reshape(field.shape)
            for field, place in zip(layout.fields, layout.places, strict=True)
        ]

    def seal(self, values: Iterable[Any]) -> int:
        """The seal of a record.

        Args:
            values: of all fields but the seal, in the schema's order.
        """
        for leaf, value in zip(self._leaves, values, strict=True):
            leaf[...] = value
        return int((self._words @ self._factors).view(np.int64))


class Checker:
    """Counts broken records in a batch whose memory is used again and again.

    Args:
        schema: of the buffer.
        batch: records in either format, their leaves contiguous; such as what `sample` gave and
            will be given as `out=` from now on.
    """

    def __init__(self, schema: Schema, batch: Any) -> None:
        layout = _Layout(schema)
        self._factors = layout.factors
        self._found = leaf_of(batch, (SEAL,))
        count = len(self._found)
        self._words = np.zeros((count, layout.words), np.uint64)
        rows = self._words.view(np.uint8)
        self._copies = [
            (rows[:, place], leaf_of(batch, field.path).reshape(count, -1).view(np.uint8))
            for field, place in zip(layout.fields, layout.places, strict=True)
        ]
        self.checked = 0
        self.broken = 0

    def seals(self) -> NDArray[np.int64]:
        """The seals that what the memory holds now should have."""
        for room, leaf in self._copies:
            room[:] = leaf
        seals: NDArray[np.int64] = (self._words @ self._factors).view(np.int64)
        return seals

    def check(self) -> int:
        """Look at what the memory holds now: how many records do not match their seals."""
        wrong = self.seals() != self._found
        broken = int(np.count_nonzero(wrong))
        self.checked += len(wrong)
        self.broken += broken
        return broken


def leaf_of(records: Any, path: tuple[str, ...]) -> NDArray[Any]:
    """A leaf of a batch in either format, as an array that shares its memory."""
    for part in path:
        records = records[part]
    array: NDArray[Any] = records.numpy() if hasattr(records, "numpy") else records
    return array
