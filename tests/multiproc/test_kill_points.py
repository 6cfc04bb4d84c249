"""A client is killed, or stopped, at every point of the native core that it passes.

Afterwards the survivor's calls return, nothing is torn, every record that was published and was not
being overwritten is there, no slot stays unusable, and the counts are those of the words.
"""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from helpers.procs import Children
from helpers.rawsegment import RawSegment, ok
from helpers.scene import CAPACITY, FEATURES, FIRST_CALLS, Scene, kill_at, survive
from helpers.victims import (
    COST,
    MARK,
    NEW_LIMITS,
    UPDATED_SLOTS,
    VICTIMS_UIDS,
    WRITTEN_AT_ONCE,
    become_another_program,
    fork_a_child,
    victim,
    wait_for_record,
)
from shmrb import core
from shmrb.core import Bell

# The only thread beside pytest's is the watchdog of faulthandler, which touches no lock of ours.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

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
# In test_consumption_kills.py.
CONSUMPTION_POINTS = ["mid_take", "taken", "mid_finish", "mid_return"]
# Passed by the floors above the native core, in their own tests.
POINTS_ABOVE = ["sized", "filled", "declared", "dropping"]


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
    named += CONSUMPTION_POINTS
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


@pytest.mark.parametrize("point", ["mid_leaves", "mid_tree"])
def test_an_updater_of_priorities_dies(children: Children, root: Path, point: str) -> None:
    for first in FIRST_CALLS:
        scene = Scene(root / first.__name__, "priorities")
        kill_at(children, scene, "update_priority", point)
        # Rebuilt from the leaves as far as they were set.
        done = UPDATED_SLOTS[: 1 if point == "mid_leaves" else 3]
        scene.priorities |= dict.fromkeys(done, 2.0)
        scene.greatest = 2.0
        survive(scene, point, first)


# `empty` and limits: wholly or not at all


def journal_passes(features: str, stores: list[int]) -> list[tuple[str, str, int]]:
    """Every point of journals with that many stores each, in the order in which they are made."""
    journalled = [(features, "empty_journalled", i + 1) for i in range(len(stores))]
    return journalled + [(features, "empty_mid_apply", i + 1) for i in range(sum(stores))]


EMPTY_PASSES = [
    ("plain", "holding_lock", 1),
    ("limiter", "holding_lock", 1),
    ("limiter", "holding_lock", 2),
    *journal_passes("plain", [4]),
    *journal_passes("limiter", [6, 3]),
    *journal_passes("priorities", [4]),
]


@pytest.mark.parametrize(("features", "point", "passes"), EMPTY_PASSES)
def test_who_empties_dies(
    children: Children, root: Path, features: str, point: str, passes: int
) -> None:
    for first in (Scene.write, Scene.empty, Scene.reap):
        scene = Scene(root / first.__name__, features)
        if features == "limiter":
            ok(scene.survivor.sample(4, cost=4)[0])
            scene.samples = 4
        kill_at(children, scene, "empty", point, passes=passes)
        if point != "holding_lock":
            scene.lose(list(scene.expected))
            scene.reserved = 0
            # The limiter's count goes with the second journal.
            if (point == "empty_journalled" and passes == 2) or passes > 6:
                scene.inserts = scene.samples = 0
        survive(scene, f"{point} {passes}", first)


@pytest.mark.parametrize("passes", [1, 3, 5])
def test_who_changes_limits_dies(children: Children, root: Path, passes: int) -> None:
    scene = Scene(root / "ring", "limiter")
    kill_at(children, scene, "change_limits", "empty_mid_apply", passes=passes)
    scene.write()
    limiter = scene.survivor.segment.limiter()
    names = ("min_size", "samples_per_insert", "min_diff", "max_diff")
    assert [limiter[name] for name in names] == list(NEW_LIMITS)


# Sampling


@pytest.mark.parametrize("features", FEATURES)
def test_who_draws_dies(children: Children, root: Path, features: str) -> None:
    for first in FIRST_CALLS:
        scene = Scene(root / first.__name__, features)
        kill_at(children, scene, "sample", "drawn")
        survive(scene, "drawn", first)


@pytest.mark.parametrize("point", ["holding_lock", "charged"])
def test_who_draws_at_a_cost_dies(children: Children, root: Path, point: str) -> None:
    for first in FIRST_CALLS:
        scene = Scene(root / first.__name__, "limiter")
        kill_at(children, scene, "sample_at_a_cost", point)
        # Charged when dispatched: who dies gives nothing back.
        scene.samples = COST if point == "charged" else 0
        survive(scene, point, first)


# Attaching and recovering


@pytest.mark.parametrize("point", ["byte_taken", "epoch_moved"])
def test_who_attaches_dies(children: Children, root: Path, point: str) -> None:
    for first in FIRST_CALLS:
        scene = Scene(root / first.__name__)
        kill_at(children, scene, "nothing", point)
        survive(scene, point, first)
        again = RawSegment.attached(scene.folder, hint=1)
        assert again.token & 0xFFFF == 2


@pytest.mark.parametrize("held", ["reserved", "before_commit"])
@pytest.mark.parametrize("point", RECOVERY_POINTS)
@pytest.mark.parametrize("deed", ["nothing", "reap", "recover"])
def test_who_recovers_the_dead_dies(
    children: Children, root: Path, deed: str, point: str, held: str
) -> None:
    for first in (Scene.write, Scene.sample, Scene.size):
        scene = Scene(root / first.__name__, "limiter")
        kill_at(children, scene, "write", held)
        write_until(scene, held, 18)
        # By the next tenant of its client slot, or by another client.
        kill_at(children, scene, deed, point, hint=1 if deed == "nothing" else 2)
        survive(scene, point, first)


@pytest.mark.parametrize(
    ("held", "points"),
    [
        ("head_moved", ["holding_lock", "claimed", "reserved", "mid_payload"]),
        ("mid_mark", ["holding_lock", "recovering", "recovering", "claimed", "mid_commit"]),
    ],
)
def test_writers_that_take_over_from_the_dead_die_too(
    children: Children, root: Path, held: str, points: list[str]
) -> None:
    scene = Scene(root / "ring", "limiter", fill=18)
    kill_at(children, scene, "write", held)
    write_until(scene, held, 18)
    head = scene.survivor.segment.lanes()[0]["head"]
    for i, point in enumerate(points):
        kill_at(children, scene, "write", point, hint=2 + i)
        if point in WRITE_POINTS:
            write_until(scene, point, head)
        head = scene.survivor.segment.lanes()[0]["head"]
    survive(scene, " ".join([held, *points]), Scene.write)


@pytest.mark.parametrize("passes", [1, 2, 3, 4])
def test_who_repairs_an_empty_dies(children: Children, root: Path, passes: int) -> None:
    scene = Scene(root / "ring")
    kill_at(children, scene, "empty", "empty_mid_apply", passes=2)
    kill_at(children, scene, "write", "empty_mid_apply", passes=passes, hint=2)
    scene.lose(list(scene.expected))
    scene.reserved = 0
    survive(scene, "empty_mid_apply twice", Scene.write)


@pytest.mark.watchdog(600)
@pytest.mark.parametrize(
    ("point", "deaths"),
    [
        ("reserved", 15),
        ("holding_lock", 15),
        pytest.param("reserved", 1000, marks=pytest.mark.long),
        pytest.param("holding_lock", 200, marks=pytest.mark.long),
    ],
)
def test_writers_die_one_after_the_other(
    children: Children, root: Path, point: str, deaths: int
) -> None:
    """Each finds what the one before it left, and dies over it."""
    scene = Scene(root / "ring", "limiter", fill=CAPACITY)
    for _ in range(deaths):
        kill_at(children, scene, "write", point)
        children.close()
        write_until(scene, point, CAPACITY)
        scene.size()
    assert scene.survivor.segment.counters()["lock_take_overs"] >= deaths - 1
    survive(scene, f"{deaths} deaths at {point}", Scene.write)
    assert scene.survivor.segment.counters()["lock_take_overs"] == deaths


# Waiting


def test_who_waits_dies_and_owes_nobody_a_wake_up(children: Children, root: Path) -> None:
    scene = Scene(root / "ring")
    waiter = start_waiter(children, scene)
    kill_at(children, scene, "wait", "waiting")
    scene.write()
    waiter.expect("woken")
    waiter.kill()
    survive(scene, "waiting", Scene.write)


def test_who_rings_dies_and_the_waiter_wakes_by_itself(children: Children, root: Path) -> None:
    scene = Scene(root / "ring")
    # Somebody waits on the semaphore too: then a ring has posts to make.
    ok(scene.survivor.segment.bell_enter(Bell.RECORDS, False))
    waiter = start_waiter(children, scene)
    kill_at(children, scene, "write", "notifying")
    write_until(scene, "committed", 18)
    waiter.expect("woken")
    waiter.kill()
    survive(scene, "notifying", Scene.write)


def test_who_waits_recovers_the_dead(children: Children, root: Path) -> None:
    scene = Scene(root / "ring")
    kill_at(children, scene, "write", "mid_payload")
    waiter = start_waiter(children, scene, more=6)
    scene.survivor.segment.label_wait(core.WaitLabel.RECORDS)
    while any(not row["alive"] for row in scene.survivor.segment.clients()):
        waiter.expect("waiting")
    write_until(scene, "mid_payload", 18)
    scene.write()
    waiter.expect("woken")
    waiter.kill()
    survive(scene, "mid_payload", Scene.write)


def start_waiter(children: Children, scene: Scene, more: int = 1) -> Any:
    folder, written = str(scene.folder), scene.reserved + more
    waiter = children.start(wait_for_record, method="fork", folder=folder, written=written)
    waiter.expect("waiting")
    return waiter


def test_who_leases_a_lane_dies(children: Children, root: Path) -> None:
    scene = Scene(root / "ring")
    kill_at(children, scene, "lease", "leased")
    assert scene.survivor.segment.lanes()[0]["lease"] != 0
    assert ok(scene.survivor.segment.lease(0))[1] == 0
    survive(scene, "leased", Scene.write)
    ok(scene.survivor.segment.release_lease(0))


# Whose life it is


def test_a_forked_child_keeps_nothing_of_its_parent(children: Children, root: Path) -> None:
    scene = Scene(root / "ring")
    parent = children.start(fork_a_child, folder=str(scene.folder))
    attached = parent.expect("attached")
    assert scene.survivor.segment.alive(attached["token"])
    parent.kill()
    os.kill(attached["child"], 0)
    assert not scene.survivor.segment.alive(attached["token"])
    survive(scene, "a parent", Scene.reap)
    os.kill(attached["child"], signal.SIGKILL)


def test_another_program_in_its_place_holds_nothing(children: Children, root: Path) -> None:
    scene = Scene(root / "ring")
    runner = children.start(become_another_program, folder=str(scene.folder))
    token = runner.expect("attached")["token"]
    assert scene.survivor.segment.alive(token)
    runner.send()
    runner.expect_line("executed")
    assert not scene.survivor.segment.alive(token)
    survive(scene, "exec", Scene.reap)


def test_a_point_can_be_armed_from_outside(children: Children, root: Path) -> None:
    scene = Scene(root / "ring")
    environment = {"SHMRB_STOP_AT": "mid_commit:kill"}
    options = {"folder": str(scene.folder), "deed": "write", "point": ""}
    child = children.start(victim, environment=environment, **options)
    assert child.wait() < 0
    write_until(scene, "mid_commit", 18)
    survive(scene, "mid_commit", Scene.write)
