"""A ring whose records are consumed: what its lists must say, and who knows its records."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np

from helpers.rawsegment import CONTROL, RawSegment, finish, ok, stamped, torn
from shmrb import core
from shmrb.core import Feature, Status

UNIFORM, OLDEST, NEWEST = range(3)
RING = int(Feature.ONE_LOCK | Feature.CONSUMPTION)
REFILLED = RING | int(Feature.REFILLS)
LIMITED = REFILLED | int(Feature.LIMITER)


def chain(ring: RawSegment) -> list[int]:
    """The slots that are linked, oldest first; both directions agree."""
    block = ring.word_of(CONTROL, "consumption").view(np.int64)
    first, last = int(block[2]), int(block[3])
    slots, before, link = [], 0, first
    while link and len(slots) <= ring.capacity:
        assert ring.consumed["previous"][link - 1] == before
        slots.append(link - 1)
        before, link = link, int(ring.consumed["next"][link - 1])
    assert before == last
    return slots


def queue(ring: RawSegment) -> list[int]:
    """The slots that writes will fill, the next one first."""
    block = ring.word_of(CONTROL, "consumption").view(np.int64)
    numbers = range(int(block[4]), int(block[5]))
    slots = [(n, int(ring.consumed["freed"][n % ring.capacity])) for n in numbers]
    return [slot for n, slot in slots if ring.consumed["places"][slot] == -1 - n]


def check_lists(ring: RawSegment) -> None:
    """Members, links, holders and queue say the same, and what they say is possible."""
    told = ring.segment.consumption()
    members = ring.consumed["members"][: told["members"]].tolist()
    assert len(set(members)) == len(members)
    assert [int(ring.consumed["places"][slot]) for slot in members] == [
        place + 1 for place in range(len(members))
    ]
    assert int((ring.consumed["places"] > 0).sum()) == len(members)
    held = np.flatnonzero(ring.consumed["holders"]).tolist()
    assert len(held) == told["held"]
    linked = chain(ring)
    assert sorted(linked) == sorted([*members, *held])
    arrivals = ring.consumed["arrivals"][linked]
    assert (np.diff(arrivals) > 0).all()
    waiting = queue(ring)
    assert len(set(waiting)) == len(waiting)
    assert not set(waiting) & set(linked)
    if ring.segment.consumption()["freed"]:
        assert len(waiting) == told["freed"]


class Ledger:
    """A survivor that consumes, and what it must find.

    Attributes:
        there: uids that must still come, each as often as `left` says.
    """

    def __init__(self, folder: Path, features: int = LIMITED, capacity: int = 12) -> None:
        self.folder = folder
        self.features = features
        self.capacity = capacity
        RawSegment.create(folder, capacity, features=features)
        self.survivor = RawSegment.attached(folder, "survivor", hint=0)
        if features & Feature.LIMITER:
            limits = (True, 1, 1.0, 0.0, float(capacity))
            ok(self.survivor.segment.set_limits(*limits, core.SLICE_NS))
        self.there: list[int] = []

    def write(self, uids: Iterable[int]) -> None:
        for uid in uids:
            record = stamped([uid])
            ok(finish(partial(self.survivor.extend, record)))
            self.there.append(uid)

    def consume(self, count: int, kind: int = OLDEST) -> list[int]:
        """Takes, reads and finishes; the uids in the order in which they came."""
        cost = int(bool(self.features & Feature.LIMITER))
        outcome, slots, generations = self.survivor.take(count, kind, cost=cost)
        while outcome[0] == Status.AGAIN:
            outcome, slots, generations = self.survivor.take(count, kind, cost=cost)
        if outcome[0] in (Status.EMPTY, Status.LIMITED):
            return []
        ok(outcome)
        _, batch = self.survivor.read(slots)
        assert (batch.generation == generations).all()
        assert not torn(batch.columns)
        assert self.survivor.end_takes(slots, generations).all()
        return batch["uid"].tolist()

    def drain(self) -> list[int]:
        """All that is left."""
        found: list[int] = []
        while uids := self.consume(5):
            found += uids
        return found

    def verify(self, lost: Iterable[int] = (), more: Iterable[int] = ()) -> None:
        """Drains, and finds what must be there but `lost`, and `more`; then all room is usable."""
        lost = set(lost)
        expected = sorted([*(uid for uid in self.there if uid not in lost), *more])
        assert sorted(self.drain()) == expected
        ok(finish(self.survivor.segment.reap))
        ok(self.survivor.segment.size())
        check_lists(self.survivor)
        assert self.survivor.segment.consumption()["held"] == 0
        for lap in range(2):
            self.there = []
            self.write(range(2000 + 100 * lap, 2000 + 100 * lap + self.capacity))
            assert self.survivor.size() == self.capacity
            check_lists(self.survivor)
            assert self.drain() == self.there
        assert not self.survivor.owners.any()
        if self.features & Feature.LIMITER:
            limiter = self.survivor.segment.limiter()
            assert limiter["size"] == 0
