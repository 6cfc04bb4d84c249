"""A ring, a survivor that knows what must be in it, and victims that are killed or stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from helpers.procs import Child, Children
from helpers.rawsegment import CONTROL, LANE, RawSegment, changed, finish, ok, stamped, torn
from helpers.victims import victim
from shmrb import core
from shmrb.core import Feature, Status

CAPACITY = 12
FEATURES = {
    "plain": 0,
    "limiter": int(Feature.ONE_LOCK | Feature.LIMITER),
    "priorities": int(Feature.ONE_LOCK | Feature.PRIORITIES),
}


class Scene:
    """A ring that the survivor filled, and what must be found in it.

    Attributes:
        expected: slot: uid, for every record that must be there.
        marks: slot: mark, where it is not 0.
        reserved: rows that count as written.
        inserts: rows that count for the limiter.
        samples: records that the limiter has given out.
        priorities: slot: priority, where it is not 1.
        greatest: the highest priority so far, with which records enter.
        stamps: generations as they were; they never go back.
    """

    def __init__(self, folder: Path, features: str = "plain", fill: int = 18) -> None:
        self.folder = folder
        self.features = FEATURES[features]
        RawSegment.create(folder, CAPACITY, features=self.features)
        self.survivor = RawSegment.attached(folder, "survivor", hint=0)
        self.expected: dict[int, int] = {}
        self.marks: dict[int, int] = {}
        self.priorities: dict[int, float] = {}
        self.greatest = 1.0
        self.reserved = self.inserts = self.samples = 0
        if self.features & Feature.LIMITER:
            ok(self.survivor.segment.set_limits(True, 1, 1.0, -1e9, 1e9, core.SLICE_NS))
        for uid in range(fill):
            self.write(uid)
        self.stamps = self.survivor.generations()

    def lose(self, slots: Iterable[int]) -> None:
        for slot in list(slots):
            self.expected.pop(slot, None)
            self.marks.pop(slot, None)
            self.priorities.pop(slot, None)

    # Calls of the survivor, each with what it must find

    def write(self, uid: int = 500) -> None:
        ticket = ok(finish(lambda: self.survivor.extend(stamped([uid]))))[1]
        self.lose([ticket % CAPACITY])
        self.expected[ticket % CAPACITY] = uid
        self.priorities[ticket % CAPACITY] = self.greatest
        self.reserved += 1
        self.inserts += 1

    def sample(self) -> None:
        outcome = (Status.AGAIN,)
        while outcome[0] == Status.AGAIN:
            outcome, batch = self.survivor.sample(64)
        assert outcome[0] == (Status.OK if self.expected else Status.EMPTY)
        if self.expected:
            assert not torn(batch.columns)
            for slot, uid in zip(batch.index.tolist(), batch["uid"].tolist(), strict=True):
                assert self.expected.get(slot) == uid

    def update(self) -> None:
        """Marks every record that is there; of the others the handles are stale."""
        uids = [self.expected.get(slot, 0) for slot in range(CAPACITY)]
        patch = changed(uids, [7] * CAPACITY)
        stamps = self.survivor.generations()
        slots = np.arange(CAPACITY)
        outcome = finish(lambda: self.survivor.update(slots, stamps, patch)[0])
        assert ok(outcome)[1] == len(self.expected)
        self.marks = dict.fromkeys(self.expected, 7)

    def empty(self) -> None:
        ok(finish(lambda: self.survivor.empty(reset=False)))
        self.lose(self.expected)
        self.greatest = 1.0

    def size(self) -> None:
        assert self.survivor.size() == len(self.expected)

    def read(self) -> None:
        outcome = (Status.AGAIN,)
        while outcome[0] == Status.AGAIN:
            outcome, batch = self.survivor.read()
        found = np.flatnonzero(batch.generation >= 0).tolist()
        assert {slot: int(batch["uid"][slot]) for slot in found} == self.expected
        assert [int(batch["mark"][slot]) for slot in found] == [
            self.marks.get(slot, 0) for slot in found
        ]
        assert not torn({name: column[found] for name, column in batch.columns.items()})

    def reap(self) -> None:
        ok(finish(self.survivor.segment.reap))

    # What must hold whatever happened

    def verify(self) -> None:
        """Looks at everything, then fills the ring twice."""
        self.look()
        self.reap()
        self.look()
        self.check_counts()
        for uid in range(1000, 1000 + 2 * CAPACITY):
            self.write(uid)
            self.size()
        assert len(self.expected) == CAPACITY
        self.look()
        self.check_counts()
        survivor = self.survivor
        assert not survivor.owners.any()
        for block, name in ((CONTROL, "control_lock"), (CONTROL, "empty_lock"), (LANE, "lock")):
            assert survivor.word_of(block, name).view(np.uint32)[0] == 0
        assert survivor.segment.lanes()[0]["holes"] == 0
        assert [row["name"] for row in survivor.segment.clients()] == [b"survivor"]

    def look(self) -> None:
        self.read()
        self.sample()
        self.size()

    def check_counts(self) -> None:
        segment = self.survivor.segment
        assert self.survivor.write_count() == self.reserved
        if self.features & Feature.LIMITER:
            limiter = segment.limiter()
            assert limiter["size"] == len(self.expected)
            assert (limiter["inserts"], limiter["samples"]) == (self.inserts, self.samples)
        if self.features & Feature.PRIORITIES:
            assert ok(segment.wrong_nodes())[1] == 0
            mass = sum(self.priorities.get(slot, 1.0) for slot in self.expected)
            assert segment.priorities()["total"] == mass
        stamps = self.survivor.generations()
        assert (stamps >= self.stamps).all()
        self.stamps = stamps


FIRST_CALLS: list[Callable[[Scene], None]] = [
    Scene.write,
    Scene.sample,
    Scene.update,
    Scene.empty,
    Scene.size,
    Scene.read,
    Scene.reap,
]


def start(children: Children, scene: Scene, deed: str, point: str = "", **options: Any) -> Child:
    folder = str(scene.folder)
    return children.start(victim, method="fork", folder=folder, deed=deed, point=point, **options)


def kill_at(children: Children, scene: Scene, deed: str, point: str, **options: Any) -> None:
    child = start(children, scene, deed, point, **options)
    assert child.wait() == -signal.SIGKILL, f"it did not pass {point}\n{child.report()}"


def survive(scene: Scene, what: str, first: Callable[[Scene], None]) -> None:
    """Makes the first call, prints how long it took, and looks at everything."""
    begun = time.monotonic()
    first(scene)
    took = 1000 * (time.monotonic() - begun)
    print(f"stall after {what}, {first.__name__} first: {took:.1f} ms")
    scene.verify()
