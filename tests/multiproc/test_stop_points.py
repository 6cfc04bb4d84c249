"""A client is stopped at every point of the native core that it passes, and later goes on.

Nobody takes anything from who lives. The survivor's calls that need what the stopped one holds end
within their slice and name it; the others go on, uniform sampling above all. When it goes on, all
is well.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.procs import Child, Children
from helpers.rawsegment import changed, ok, stamped
from helpers.scene import CAPACITY, Scene, start
from helpers.victims import COST, MARK, UPDATED_SLOTS, VICTIMS_UIDS, WRITTEN_AT_ONCE
from shmrb.core import Outcome, Status, Waited

# The only thread beside pytest's is the watchdog of faulthandler, which touches no lock of ours.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

SLICE_NS = 3_000_000
HEAD = 18
# Point: whether the lane's lock is held, slots claimed, slots whose old record is gone.
ALL = WRITTEN_AT_ONCE
WRITES = {
    "holding_lock": (True, 0, 0),
    "claimed": (True, ALL, 0),
    "mid_mark": (True, ALL, 1),
    "reserved": (True, ALL, ALL),
    "head_moved": (True, ALL, ALL),
    "mid_payload": (False, ALL, ALL),
    "before_commit": (False, ALL, ALL),
    "committed": (False, 0, ALL),
}
NEW_SLOTS = [(HEAD + i) % CAPACITY for i in range(ALL)]


class Stopped:
    """A victim that stands still at a point."""

    def __init__(self, children: Children, scene: Scene, deed: str, point: str, **options: Any):
        self.scene = scene
        self.child: Child = start(children, scene, deed, point, action="stop", **options)
        self.token = self.child.expect("attached")["token"]
        self.child.wait_stopped()

    def blocks(self, outcome: Outcome, what: Waited) -> None:
        assert outcome[:4] == (Status.AGAIN, outcome[1], what, self.token)

    def go_on(self) -> None:
        self.child.resume()
        self.child.expect("done")

    def leave(self) -> None:
        self.child.send()
        self.child.succeed()


def write_short(scene: Scene, uid: int = 600) -> Outcome:
    return scene.survivor.extend(stamped([uid]), slice_ns=SLICE_NS)


def update_short(scene: Scene, slot: int) -> Outcome:
    stamps = scene.survivor.generations([slot])
    uid = scene.expected.get(slot, 0)
    patch = changed([uid], [7])
    outcome, verdicts = scene.survivor.update([slot], stamps, patch, slice_ns=SLICE_NS)
    if outcome[0] == Status.OK and verdicts[0] == 1:
        scene.marks[slot] = 7
    return outcome


def look_short(scene: Scene) -> None:
    """Uniform sampling and reading go on, and show nothing of what is not finished."""
    outcome, batch = scene.survivor.sample(64, slice_ns=SLICE_NS)
    ok(outcome)
    for slot, uid in zip(batch.index.tolist(), batch["uid"].tolist(), strict=True):
        assert scene.expected[slot] == uid
    slots = list(scene.expected)
    outcome, batch = scene.survivor.read(slots, slice_ns=SLICE_NS)
    ok(outcome)
    assert batch["uid"].tolist() == list(scene.expected.values())


@pytest.mark.parametrize("features", ["plain", "limiter", "priorities"])
@pytest.mark.parametrize("point", WRITES)
def test_a_stopped_writer_is_waited_for(
    children: Children, root: Path, point: str, features: str
) -> None:
    scene = Scene(root / "ring", features, HEAD)
    lock = Waited.LANE_LOCK if features == "plain" else Waited.CONTROL_LOCK
    holds_lock, claimed, gone = WRITES[point]
    stopped = Stopped(children, scene, "write", point)
    if point == "committed":
        scene.expected |= {slot: VICTIMS_UIDS + i for i, slot in enumerate(NEW_SLOTS)}
    else:
        scene.lose(NEW_SLOTS[:gone])
    look_short(scene)
    whole = len(scene.expected)
    # Never more than there are; of those being marked right now some may be missing.
    assert whole - (ALL if point == "mid_mark" else 0) <= scene.survivor.size() <= whole
    if point != "mid_mark":
        assert scene.survivor.size() == whole
    assert scene.survivor.write_count() == HEAD + (ALL if point == "committed" else 0)

    for slot in NEW_SLOTS[:claimed]:
        stopped.blocks(update_short(scene, slot), Waited.SLOT_OWNER)
        written = scene.survivor.write(slot, stamped([1]), slice_ns=SLICE_NS)
        stopped.blocks(written, Waited.SLOT_OWNER)
    for slot in NEW_SLOTS[: gone if claimed else 0]:
        stopped.blocks(scene.survivor.read([slot], slice_ns=SLICE_NS)[0], Waited.SLOT_OWNER)
    ok(update_short(scene, 0))
    if holds_lock:
        stopped.blocks(write_short(scene), lock)
        stopped.blocks(scene.survivor.empty(slice_ns=SLICE_NS), lock)
        stopped.blocks(scene.survivor.segment.end_trajectory(0, SLICE_NS), lock)
    if features == "limiter" and holds_lock:
        stopped.blocks(scene.survivor.sample(1, cost=1, slice_ns=SLICE_NS)[0], lock)
        stopped.blocks(scene.survivor.segment.admit(1, SLICE_NS), lock)
        stopped.blocks(scene.survivor.segment.lift(True, SLICE_NS), lock)
    free = 0 if holds_lock else CAPACITY - ALL
    for i in range(free):
        scene.write(600 + i)
    if claimed and not holds_lock:
        stopped.blocks(write_short(scene), Waited.SLOT_OWNER)
        # It waits for its turn without a lock: others may have it.
        assert scene.survivor.segment.lanes()[0]["lock"] == 0
    # Nobody recovers the living.
    assert ok(scene.survivor.segment.reap())[1] == 0
    assert ok(scene.survivor.segment.recover())[1] == 0

    stopped.go_on()
    for i, slot in enumerate(NEW_SLOTS):
        scene.lose([slot])
        scene.expected[slot] = VICTIMS_UIDS + i
    scene.reserved += ALL
    scene.inserts += ALL
    look_short(scene)
    stopped.leave()
    scene.verify()


def test_an_empty_does_not_wait_for_a_writer_that_copies(children: Children, root: Path) -> None:
    scene = Scene(root / "ring", fill=HEAD)
    stopped = Stopped(children, scene, "write", "mid_payload")
    scene.empty()
    assert scene.survivor.sample(1, slice_ns=SLICE_NS)[0][0] == Status.EMPTY
    stopped.go_on()
    # What it wrote counts as written before the empty.
    scene.reserved += ALL
    scene.look()
    stopped.leave()
    scene.verify()


@pytest.mark.parametrize(
    ("point", "passes"),
    [("update_claimed", 1), ("update_marked", 1), ("update_mid_payload", 2)],
)
def test_a_stopped_updater_is_waited_for(
    children: Children, root: Path, point: str, passes: int
) -> None:
    scene = Scene(root / "ring", fill=HEAD)
    stopped = Stopped(children, scene, "update", point, passes=passes)
    done, held = UPDATED_SLOTS[: passes - 1], UPDATED_SLOTS[passes - 1 :]
    scene.marks = dict.fromkeys(done, MARK)
    hidden = {} if point == "update_claimed" else {held[0]: scene.expected.pop(held[0])}
    look_short(scene)
    for slot in held:
        stopped.blocks(update_short(scene, slot), Waited.SLOT_OWNER)
    # It is there, it cannot be read just now.
    assert scene.survivor.size() == CAPACITY
    for slot in hidden:
        stopped.blocks(scene.survivor.read([slot], slice_ns=SLICE_NS)[0], Waited.SLOT_OWNER)
    # Position 6 and 7 are free, 8 is in its hands.
    scene.write(601)
    scene.write(602)
    stopped.blocks(write_short(scene), Waited.SLOT_OWNER)
    stopped.go_on()
    scene.expected |= hidden
    scene.marks |= dict.fromkeys(UPDATED_SLOTS, MARK)
    stopped.leave()
    scene.verify()


@pytest.mark.parametrize("point", ["holding_lock", "empty_journalled", "empty_mid_apply"])
def test_who_empties_and_is_stopped_holds_the_writers_up(
    children: Children, root: Path, point: str
) -> None:
    scene = Scene(root / "ring", fill=HEAD)
    stopped = Stopped(children, scene, "empty", point)
    stopped.blocks(scene.survivor.empty(slice_ns=SLICE_NS), Waited.EMPTY_LOCK)
    if point == "holding_lock":
        scene.look()
        scene.write()
    else:
        stopped.blocks(write_short(scene), Waited.LANE_LOCK)
    # Before its first store everything is there, after it nothing.
    assert scene.survivor.size() == (0 if point == "empty_mid_apply" else CAPACITY)
    assert scene.survivor.write_count() == scene.reserved
    stopped.go_on()
    scene.lose(list(scene.expected))
    scene.reserved = 0
    stopped.leave()
    scene.verify()


@pytest.mark.parametrize(
    ("deed", "point", "features"),
    [
        ("sample", "drawn", "plain"),
        ("sample_at_a_cost", "charged", "limiter"),
        ("sample_at_a_cost", "drawn", "limiter"),
        ("wait", "waiting", "plain"),
        ("nothing", "byte_taken", "plain"),
        ("nothing", "epoch_moved", "plain"),
        ("lease", "leased", "plain"),
    ],
)
def test_who_only_looks_waits_or_joins_holds_nobody_up(
    children: Children, root: Path, deed: str, point: str, features: str
) -> None:
    scene = Scene(root / "ring", features, HEAD)
    child = start(children, scene, deed, point, action="stop")
    child.wait_stopped()
    if point == "charged":
        # It charges under the lock.
        outcome = scene.survivor.sample(1, cost=1, slice_ns=SLICE_NS)[0]
        assert outcome[:3] == (Status.AGAIN, 0, Waited.CONTROL_LOCK)
    else:
        for uid in range(700, 700 + 2 * CAPACITY):
            scene.write(uid)
    scene.look()
    assert ok(scene.survivor.segment.reap())[1] == 0
    child.resume()
    child.expect("done")
    scene.samples += COST if deed == "sample_at_a_cost" else 0
    child.send()
    child.succeed()
    scene.verify()


def test_what_a_stopped_drawer_copied_is_drawn_anew(children: Children, root: Path) -> None:
    scene = Scene(root / "ring", fill=HEAD)
    stopped = Stopped(children, scene, "sample", "drawn")
    before = scene.survivor.segment.counters()["redraws"]
    for uid in range(700, 700 + CAPACITY):
        scene.write(uid)
    stopped.go_on()
    assert scene.survivor.segment.counters()["redraws"] == before + COST
    stopped.leave()
    scene.verify()


def test_a_draw_whose_time_is_over_keeps_what_it_has(children: Children, root: Path) -> None:
    """With large records a batch outlasts its slice: starting anew each time would never end."""
    scene = Scene(root / "ring", fill=HEAD)
    stopped = Stopped(children, scene, "sample_once", "drawn")
    for uid in range(700, 700 + CAPACITY // 2):
        scene.write(uid)
    before = scene.survivor.segment.counters()["redraws"]
    stopped.go_on()
    assert 0 < scene.survivor.segment.counters()["redraws"] - before < COST
    stopped.leave()
    scene.verify()


def test_all_orders_of_two_stopped_writers(children: Children, root: Path) -> None:
    """The second waits for the first's lock, or writes behind it."""
    for i, points in enumerate(itertools.product(["mid_payload", "before_commit"], repeat=2)):
        scene = Scene(root / str(i), fill=0)
        first = Stopped(children, scene, "write", points[0])
        second = Stopped(children, scene, "write", points[1], hint=2)
        assert scene.survivor.size() == 0
        assert scene.survivor.write_count() == 0
        stopped = [first, second] if i % 2 else [second, first]
        for number, one in enumerate(stopped, 1):
            one.go_on()
            assert scene.survivor.size() == number * ALL
            one.leave()
        scene.expected = {slot: VICTIMS_UIDS + slot % ALL for slot in range(2 * ALL)}
        scene.reserved = 2 * ALL
        scene.stamps = np.full(CAPACITY, -1)
        scene.verify()
