"""A client is killed, or stopped, at every point of the native core that it passes.

Afterwards the survivor's calls return, nothing is torn, every record that was published and was not
being overwritten is there, no slot stays unusable, and the counts are those of the words.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.procs import Child, Children
from helpers.rawsegment import CONTROL, LANE, RawSegment, changed, finish, ok, stamped, torn
from helpers.victims import MARK, UPDATED_SLOTS, VICTIMS_UIDS, WRITTEN_AT_ONCE, victim
from shmrb import core
from shmrb.core import Feature, Status

# The only thread beside pytest's is the watchdog of faulthandler, which touches no lock of ours.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

KILLED = -9
CAPACITY = 12
SHORT_NS = 3_000_000
FEATURES = {
    "plain": 0,
    "limiter": int(Feature.ONE_LOCK | Feature.LIMITER),
    "priorities": int(Feature.ONE_LOCK | Feature.PRIORITIES),
}
# In the order in which a call passes them.
WRITE_POINTS = [
    "holding_lock",
    "claimed",
    "mid_mark",
    "mid_leaves",
    "reserved",
    "head_moved",
    "mid_payload",
    "before_commit",
    "mid_commit",
    "committed",
]
UPDATE_POINTS = ["update_claimed", "update_marked", "update_mid_payload", "update_before_commit"]
REFILL_POINTS = ["claimed", "reserved", "mid_payload", "before_commit", "committed"]
ATTACH_POINTS = ["byte_taken", "epoch_moved"]
RECOVERY_POINTS = ["byte_taken", "epoch_moved", "recovering", "recovered"]
JOURNAL_POINTS = ["empty_journalled", "empty_mid_apply"]
OTHER_POINTS = ["mid_tree", "charged", "drawn", "waiting", "notifying", "leased"]
# Passed by the floors above the native core, in their own tests.
POINTS_ABOVE = ["sized", "filled", "declared", "dropping"]


class Scene:
    """A ring that the survivor filled, and what must be found in it.

    Attributes:
        expected: slot: uid, for every record that must be there.
        marks: slot: mark, where it is not 0.
        reserved: rows that count as written.
        inserts: rows that count for the limiter.
        samples: records that the limiter has given out.
    """

    def __init__(self, folder: Path, features: str = "plain", fill: int = 18) -> None:
        self.folder = folder
        self.features = FEATURES[features]
        RawSegment.create(folder, CAPACITY, features=self.features)
        self.survivor = RawSegment.attached(folder, "survivor", hint=0)
        self.expected: dict[int, int] = {}
        self.marks: dict[int, int] = {}
        self.reserved = self.inserts = self.samples = 0
        if self.features & Feature.LIMITER:
            ok(self.survivor.segment.set_limits(True, 1, 1.0, -1e9, 1e9, core.SLICE_NS))
        for uid in range(fill):
            self.write(uid)

    def lose(self, slots: Iterable[int]) -> None:
        for slot in list(slots):
            self.expected.pop(slot, None)
            self.marks.pop(slot, None)

    # Calls of the survivor, each with what it must find

    def write(self, uid: int = 500) -> None:
        ticket = ok(finish(lambda: self.survivor.extend(stamped([uid]))))[1]
        self.lose([ticket % CAPACITY])
        self.expected[ticket % CAPACITY] = uid
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
        for _ in range(2):
            self.read()
            self.sample()
            self.size()
            self.reap()
        self.check_counts()
        for uid in range(1000, 1000 + 2 * CAPACITY):
            self.write(uid)
            self.size()
        assert len(self.expected) == CAPACITY
        self.read()
        self.sample()
        self.check_counts()
        survivor = self.survivor
        assert not survivor.owners.any()
        for block, name in ((CONTROL, "control_lock"), (CONTROL, "empty_lock"), (LANE, "lock")):
            assert survivor.word_of(block, name).view(np.uint32)[0] == 0
        assert survivor.segment.lanes()[0]["holes"] == 0
        assert [row["name"] for row in survivor.segment.clients()] == [b"survivor"]

    def check_counts(self) -> None:
        segment = self.survivor.segment
        assert self.survivor.write_count() == self.reserved
        if self.features & Feature.LIMITER:
            limiter = segment.limiter()
            assert limiter["size"] == len(self.expected)
            assert (limiter["inserts"], limiter["samples"]) == (self.inserts, self.samples)
        if self.features & Feature.PRIORITIES:
            assert ok(segment.wrong_nodes())[1] == 0


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
    assert child.wait() == KILLED, f"it did not pass {point}\n{child.report()}"


def survive(scene: Scene, what: str, first: Callable[[Scene], None]) -> None:
    """Makes the first call, prints how long it took, and looks at everything."""
    begun = time.monotonic()
    first(scene)
    took = 1000 * (time.monotonic() - begun)
    print(f"stall after {what}, {first.__name__} first: {took:.1f} ms")
    scene.verify()


def write_until(scene: Scene, point: str, head: int) -> None:
    """Notes what a victim's write from ticket `head` on has done when it ends at that point."""
    step = WRITE_POINTS.index
    slots = [(head + i) % CAPACITY for i in range(WRITTEN_AT_ONCE)]
    if step(point) >= step("mid_mark"):
        scene.lose(slots[:1] if point == "mid_mark" else slots)
    published = {"mid_commit": 1, "committed": WRITTEN_AT_ONCE}.get(point, 0)
    for i in range(published):
        scene.expected[slots[i]] = VICTIMS_UIDS + i
    scene.inserts += published
    scene.reserved += WRITTEN_AT_ONCE if step(point) >= step("head_moved") else 0


def test_every_point_of_the_core_has_its_place_here() -> None:
    named = [*WRITE_POINTS, *UPDATE_POINTS, *RECOVERY_POINTS, *JOURNAL_POINTS, *OTHER_POINTS]
    assert set(core.stopping_points()) == set(named) | set(POINTS_ABOVE)


@pytest.mark.parametrize(
    ("point", "features"),
    [
        (point, features)
        for point, features in itertools.product(WRITE_POINTS, FEATURES)
        if point != "mid_leaves" or features == "priorities"
    ],
)
def test_a_writer_dies(children: Children, root: Path, point: str, features: str) -> None:
    # Fills: nothing under the new records; a full ring; a full ring and a write that wraps.
    fills = itertools.cycle((18, 4, 22))
    for first, fill in zip(FIRST_CALLS, fills, strict=False):
        scene = Scene(root / f"{first.__name__}", features, fill)
        kill_at(children, scene, "write", point)
        write_until(scene, point, fill)
        survive(scene, point, first)


def test_a_writer_dies_between_the_parts_of_a_write_that_wraps(
    children: Children, root: Path
) -> None:
    scene = Scene(root / "ring", fill=22)
    kill_at(children, scene, "write", "mid_payload", passes=2)
    write_until(scene, "mid_payload", 22)
    survive(scene, "mid_payload", Scene.write)


@pytest.mark.parametrize("features", ["plain", "priorities"])
@pytest.mark.parametrize(
    ("point", "passes"),
    [("update_claimed", 1), *itertools.product(UPDATE_POINTS[1:], [1, 2, 3])],
)
def test_an_updater_dies(
    children: Children, root: Path, point: str, passes: int, features: str
) -> None:
    for first in FIRST_CALLS:
        scene = Scene(root / first.__name__, features)
        kill_at(children, scene, "update", point, passes=passes)
        if point != "update_claimed":
            scene.marks = dict.fromkeys(UPDATED_SLOTS[: passes - 1], MARK)
            scene.lose([UPDATED_SLOTS[passes - 1]])
        survive(scene, point, first)


@pytest.mark.parametrize("features", ["plain", "priorities"])
@pytest.mark.parametrize("point", REFILL_POINTS)
def test_a_refiller_dies(children: Children, root: Path, point: str, features: str) -> None:
    for first in FIRST_CALLS:
        scene = Scene(root / first.__name__, features)
        kill_at(children, scene, "refill", point)
        if point != "claimed":
            scene.lose(UPDATED_SLOTS[:1])
        if point == "committed":
            scene.expected[UPDATED_SLOTS[0]] = VICTIMS_UIDS
        survive(scene, point, first)
