"""What became of every record: written, seen whole, lost, seen twice, torn.

A record counts as written when the call that wrote it has returned and its collector has reported
so. Audits read the whole ring, often enough that each written record is met at least once: it must
be there, once, and match its seal. A record that is not there is lost, unless so much was written
since the last audit that it may have been overwritten; then nothing is known of it, and it is
counted as missed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shmrb.demo import recipe
from shmrb.demo.seals import Checker
from shmrb.schema import Schema

# Written by each process beyond what it has reported, at most: one chunk that is in and not
# reported yet, and one on its way.
_UNREPORTED = 2 * recipe.CHUNK


class Ledger:
    """Counts records by their collector and number.

    Args:
        schema: of the buffer.
        capacity: of the buffer.
    """

    def __init__(self, schema: Schema, capacity: int) -> None:
        self._schema = schema
        self._capacity = capacity
        # By collector: how many records it has reported, and below which number all are accounted.
        self._written: dict[int, int] = {}
        self._settled: dict[int, int] = {}
        self._written_at_audit = 0
        self.audited = 0
        self.lost = 0
        self.doubled = 0
        self.torn = 0
        self.missed = 0

    @property
    def written(self) -> int:
        """Records that all collectors together have reported as written."""
        return sum(self._written.values())

    def note(self, collector: int, records: int) -> None:
        """A collector has reported how many records it has written so far."""
        self._written[collector] = records
        self._settled.setdefault(collector, 0)

    def is_due(self, write_count: int) -> bool:
        """Whether so much was written since the last audit that the next one should not wait."""
        return write_count - self._written_at_audit >= self._capacity // 2

    def audit(self, write_count: int, records: Any, write_count_after: int) -> None:
        """Account for all records that were reported before the ring was read.

        Args:
            write_count: of the buffer, read before the last reports were taken in.
            records: all records of the buffer, read after that.
            write_count_after: of the buffer, read after the records.
        """
        self.torn += Checker(self._schema, records).check()
        slack = _UNREPORTED * len(self._written)
        is_complete = write_count_after - self._written_at_audit + slack <= self._capacity
        for collector, goal in self._written.items():
            numbers = records[recipe.NUMBER][records[recipe.COLLECTOR] == collector]
            self._settle(collector, goal, numbers, is_complete)
        self._written_at_audit = write_count

    def _settle(self, collector: int, goal: int, numbers: NDArray[Any], is_complete: bool) -> None:
        distinct = np.unique(numbers)
        self.doubled += len(numbers) - len(distinct)
        settled = self._settled[collector]
        found = int(np.count_nonzero((distinct >= settled) & (distinct < goal)))
        absent = goal - settled - found
        self.audited += found
        if is_complete:
            self.lost += absent
        else:
            self.missed += absent
        self._settled[collector] = goal

    def check_count(self, write_count: int, killed: int) -> str:
        """What is wrong with the buffer's own count when every collector has ended; "" if nothing.

        Args:
            write_count: of the buffer.
            killed: collectors that were killed, each with one chunk at most under way.
        """
        most = self.written + killed * recipe.CHUNK
        if self.written <= write_count <= most:
            return ""
        return (
            f"the buffer counts {write_count:,} records, expected {self.written:,} to {most:,}: "
            "what its collectors reported, and a chunk for each that was killed"
        )
