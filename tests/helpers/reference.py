"""The slow model: what a buffer must hold after each call, in the words of its promises.

Plain Python, one process, no slot words: generations are counted as users see them. Operation logs
are replayed against it and the native core.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

STALE, UPDATED, VERSION_REJECTED = 0, 1, 2


@dataclass
class Record:
    """A live record. Its run is (number, starts it, ends it)."""

    uid: int
    generation: int
    version: int = -1
    mark: int = 0
    run: tuple[int, bool, bool] = (0, False, False)


@dataclass
class Lane:
    """One ring of `capacity` slots."""

    capacity: int
    base: int = 0
    records: list[Record | None] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    cursor: int = 0
    written: int = 0
    last: tuple[str, int] | None = None
    """Who wrote the newest record and the number of its run; None when the next starts a run."""
    next_run: int = 0
    writer: str | None = None
    """Who wrote the newest record, ended or not: a number is left out where another one comes."""

    def __post_init__(self) -> None:
        self.records = [None] * self.capacity
        self.generations = [-1] * self.capacity

    def append(self, writer: str, uid: int, version: int, ends: bool) -> None:
        place = self.cursor
        self.cursor = (self.cursor + 1) % self.capacity
        self.written += 1
        # A slot that was never written starts at the base, so that older handles stay stale.
        first = max(0, self.base - 1)
        before = self.generations[place]
        self.generations[place] = first if before < 0 else before + 1
        starts = self.last is None or self.last[0] != writer
        self.next_run += starts and self.writer not in (None, writer)
        self.writer = writer
        number = self.next_run if self.last is None or starts else self.last[1]
        self.next_run += starts
        self.last = None if ends else (writer, number)
        run = (number, starts, ends)
        self.records[place] = Record(uid, self.generations[place], version, 0, run)

    def end_trajectory(self, writer: str) -> None:
        if self.last is None or self.last[0] != writer:
            return
        newest = self.records[(self.cursor - 1) % self.capacity]
        assert newest is not None
        newest.run = (newest.run[0], newest.run[1], True)
        self.last = None

    def empty(self, reset_write_count: bool) -> None:
        # Once for each record that is emptied away: a second `empty` finds nothing there.
        for place, record in enumerate(self.records):
            self.generations[place] += record is not None
        self.records = [None] * self.capacity
        self.cursor = 0
        self.last = None
        if reset_write_count:
            self.written = 0


class Reference:
    """A buffer of `lanes` rings; slots count through the lanes."""

    def __init__(self, capacity: int, *, lanes: int = 1, generation_base: int = 0) -> None:
        self.lane_capacity = capacity // lanes
        self.lanes = [Lane(self.lane_capacity, generation_base) for _ in range(lanes)]

    # Calls

    def extend(
        self,
        writer: str,
        uids: Sequence[int],
        *,
        lane: int = 0,
        versions: Sequence[int] | None = None,
        ends: Sequence[int] = (),
        end_trajectory: bool = False,
    ) -> None:
        for i, uid in enumerate(uids):
            version = -1 if versions is None else versions[i]
            last = end_trajectory and i == len(uids) - 1
            self.lanes[lane].append(writer, uid, version, i in ends or last)

    def end_trajectory(self, writer: str, lane: int = 0) -> None:
        self.lanes[lane].end_trajectory(writer)

    def empty(self, *, reset: bool = True) -> None:
        for lane in self.lanes:
            lane.empty(reset)

    def update(
        self,
        index: Sequence[int],
        generation: Sequence[int] | None,
        marks: Sequence[int],
        *,
        versions: Sequence[int] | None = None,
        require_newer: bool = False,
    ) -> list[int]:
        """A verdict a handle. Each slot takes one change: the highest version, the last of equals;
        without versions the last."""
        verdicts = []
        chosen: dict[int, int] = {}
        for i, slot in enumerate(index):
            record = self.record(slot)
            if record is None or (generation is not None and record.generation != generation[i]):
                verdicts.append(STALE)
                continue
            verdicts.append(UPDATED if versions is None else VERSION_REJECTED)
            best = chosen.get(slot)
            if best is None or versions is None or versions[i] >= versions[best]:
                chosen[slot] = i
        for slot, i in chosen.items():
            record = self.record(slot)
            assert record is not None
            if versions is not None:
                newer = versions[i] > record.version
                if not newer and (require_newer or versions[i] != record.version):
                    continue
                record.version = versions[i]
                verdicts[i] = UPDATED
            record.mark = marks[i]
        return verdicts

    # Looks

    def record(self, slot: int) -> Record | None:
        """The live record of a slot, None for none and for slots that do not exist."""
        if not 0 <= slot < self.lane_capacity * len(self.lanes):
            return None
        return self.lanes[slot // self.lane_capacity].records[slot % self.lane_capacity]

    def records(self) -> list[Record | None]:
        return [record for lane in self.lanes for record in lane.records]

    def generations(self) -> list[int]:
        return [generation for lane in self.lanes for generation in lane.generations]

    def size(self) -> int:
        return sum(record is not None for record in self.records())

    def write_count(self) -> int:
        return sum(lane.written for lane in self.lanes)


@dataclass
class ReverbLimiter:
    """The conditions of Reverb 0.14's rate_limiter.cc (CanInsert, CanSample), copied by hand."""

    min_size: int = 1
    samples_per_insert: float = 1.0
    min_diff: float = -math.inf
    max_diff: float = math.inf
    inserts: int = 0
    samples: int = 0
    deletes: int = 0

    def can_insert(self, count: int) -> bool:
        if self.inserts + count - self.deletes <= self.min_size:
            return True
        return (self.inserts + count) * self.samples_per_insert - self.samples <= self.max_diff

    def can_sample(self, count: int) -> bool:
        if self.inserts - self.deletes < self.min_size:
            return False
        difference = self.inserts * self.samples_per_insert - self.samples - count
        return difference >= self.min_diff
