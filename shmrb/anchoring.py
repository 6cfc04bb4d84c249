"""Priorities of sequences: those of their records become those of their anchors (floor F5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shmrb.batches import ANCHOR, ANCHOR_GENERATION, SEQUENCE, VALIDITY
from shmrb.errors import RecordError
from shmrb.handles import Handles, whole_numbers
from shmrb.nesting import fields_of
from shmrb.records import is_tensor

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Anchors:
    """The anchors of a batch of sequences, each once.

    Attributes:
        handles: of the anchors.
        of_record: which anchor each record of the batch belongs to.
    """

    handles: Handles
    of_record: npt.NDArray[np.int64]
    _is_real: npt.NDArray[np.bool_]
    _of_sequence: npt.NDArray[np.int64]

    @classmethod
    def of(cls, batch: Any, name: str) -> Anchors | None:
        """None: the batch holds no sequences."""
        fields = fields_of(batch)
        if fields.get(ANCHOR) is None:
            return None
        missing = [k for k in (ANCHOR_GENERATION, SEQUENCE, VALIDITY) if fields.get(k) is None]
        if missing:
            raise RecordError(
                f"{name}: the batch has {ANCHOR!r} and no {' and no '.join(map(repr, missing))}. "
                "Keep all of what sample() gave."
            )
        pairs = np.stack(
            [whole_numbers(fields[key], f"{name}: {key}") for key in (ANCHOR, ANCHOR_GENERATION)]
        )
        sequence = whole_numbers(fields[SEQUENCE], f"{name}: {SEQUENCE}")
        valid = fields[VALIDITY]
        real = np.asarray(valid.cpu() if is_tensor(valid) else valid).reshape(-1)
        if not pairs.shape[1] == len(sequence) == len(real):
            raise RecordError(f"{name}: the keys of the batch are of different lengths.")
        unique, of_record = np.unique(pairs, axis=1, return_inverse=True)
        of_record = of_record.reshape(-1)
        firsts = np.unique(sequence, return_index=True)[1]
        handles = Handles(np.ascontiguousarray(unique[0]), np.ascontiguousarray(unique[1]))
        return cls(handles, of_record, real, of_record[firsts])

    def reduced(self, raw: Floats, name: str) -> Floats:
        """The greatest priority of each anchor's real records.

        Args:
            raw: one for all, one a record, or one a sequence.

        Raises:
            RecordError: another number of them.
        """
        if raw.ndim == 0:
            return np.full(self.handles.size, raw, np.float32)
        values = raw.reshape(-1)
        if len(values) == len(self.of_record):
            values, of = values[self._is_real], self.of_record[self._is_real]
        elif len(values) == len(self._of_sequence):
            of = self._of_sequence
        else:
            raise RecordError(
                f"{name}: priority should be a number, or hold one entry per record or per "
                f"sequence. Got {len(values)} for {len(self.of_record)} records in "
                f"{len(self._of_sequence)} sequences."
            )
        greatest = np.full(self.handles.size, -np.inf, np.float32)
        with np.errstate(invalid="ignore"):  # NaN wins, so that it is refused and not lost
            np.maximum.at(greatest, of, values)
        return greatest
