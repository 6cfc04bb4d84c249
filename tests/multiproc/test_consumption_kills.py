"""A client of a consuming ring is killed at every point that it passes.

A record is lost only once it is finished, and then it does not come again; no slot stays unusable,
and the limiter's credit is that of the records.
"""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest

from helpers.consumption import LIMITED, REFILLED, RING, Ledger, check_lists
from helpers.procs import Children
from helpers.rawsegment import finish, ok
from helpers.victims import TAKEN_AT_ONCE, VICTIMS_UIDS, WRITTEN_AT_ONCE, victim

# The only thread beside pytest's is the watchdog of faulthandler, which touches no lock of ours.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

CAPACITY = 12
TAKES = ["holding_lock", "mid_take", "empty_journalled", "empty_mid_apply", "taken"]
# Where a write stands when its rows are counted, and how many it has published.
WRITES = {
    "holding_lock": 0,
    "claimed": 0,
    "mid_mark": 0,
    "reserved": 0,
    "empty_journalled": 0,
    "empty_mid_apply": 0,
    "head_moved": 0,
    "mid_payload": 0,
    "before_commit": 0,
    "mid_commit": 1,
    "committed": WRITTEN_AT_ONCE,
}

# Where slots are refilled rows are counted by journal: the stores it has.
JOURNALS = {"empty_journalled": 1, "empty_mid_apply": 3}


def kill_at(
    children: Children, ledger: Ledger, deed: str, point: str, passes: int = 1, hint: int = 1
) -> None:
    arguments = {"folder": str(ledger.folder), "deed": deed, "point": point, "passes": passes}
    child = children.start(victim, method="fork", hint=hint, **arguments)
    assert child.wait() == -signal.SIGKILL, f"it did not pass {point}\n{child.report()}"


@pytest.mark.parametrize("first", ["drain", "reap", "write"])
@pytest.mark.parametrize("point", TAKES)
def test_who_takes_dies(children: Children, root: Path, point: str, first: str) -> None:
    ledger = Ledger(root / "ring")
    ledger.write(range(CAPACITY - 2))
    kill_at(children, ledger, "take", point)
    if first == "reap":
        ok(finish(ledger.survivor.segment.reap))
    elif first == "write":
        ledger.write([100])
    ledger.verify()


@pytest.mark.parametrize(
    ("deed", "point", "passes", "done"),
    [
        ("consume", "drawn", 1, 0),
        ("consume", "mid_finish", 1, 1),
        # The first journal is that of the take.
        ("give_back", "empty_journalled", 2, 0),
        ("give_back", "empty_mid_apply", 3, 0),
        ("give_back", "mid_return", 1, 0),
    ],
)
def test_who_ends_a_take_dies(
    children: Children, root: Path, deed: str, point: str, passes: int, done: int
) -> None:
    ledger = Ledger(root / "ring")
    ledger.write(range(CAPACITY))
    kill_at(children, ledger, deed, point, passes)
    ledger.verify(range(done))


@pytest.mark.parametrize(
    ("features", "consumed", "point"),
    [
        (features, consumed, point)
        for features, consumed, point in itertools.product([LIMITED, RING], [5, 3], WRITES)
        if features == LIMITED or point not in JOURNALS
    ],
)
def test_a_writer_dies(
    children: Children, root: Path, features: int, consumed: int, point: str
) -> None:
    """All rows fill consumed slots; or some do, and the others take tickets."""
    if features == LIMITED and consumed == 3:
        features = REFILLED  # the limiter would hold the victim up
    for passes in range(1, 1 + JOURNALS.get(point, 1)):
        ledger = Ledger(root / f"ring{passes}", features)
        ledger.write(range(CAPACITY))
        assert ledger.consume(consumed) == list(range(consumed))
        ledger.there = ledger.there[consumed:]
        kill_at(children, ledger, "write", point, passes)
        published = WRITES[point]
        rows = range(VICTIMS_UIDS, VICTIMS_UIDS + WRITTEN_AT_ONCE)
        if features == REFILLED:
            # Its tickets come to slots 0 and 1, which its first rows had just filled.
            ledger.verify((), rows[2:][:published])
        elif features == RING and point not in ("holding_lock", "claimed", "mid_mark"):
            # The ring takes what comes next, consumed or not.
            ledger.verify(range(consumed, WRITTEN_AT_ONCE), rows[:published])
        else:
            ledger.verify((), rows[:published])


@pytest.mark.parametrize(("second", "hint"), [("reap", 2), ("nothing", 1), ("take", 2)])
def test_who_settles_for_the_dead_dies(
    children: Children, root: Path, second: str, hint: int
) -> None:
    ledger = Ledger(root / "ring")
    ledger.write(range(2 * TAKEN_AT_ONCE if second == "take" else CAPACITY))
    kill_at(children, ledger, "take", "taken")
    if second == "take":
        # Only an empty buffer is reason enough to look for the dead.
        kill_at(children, ledger, "take", "taken", hint=3)
    kill_at(children, ledger, second, "mid_return", hint=hint)
    ledger.verify()


@pytest.mark.parametrize(
    ("point", "passes"),
    [("holding_lock", 2), ("empty_journalled", 1), *itertools.product(["empty_mid_apply"], [1, 4])],
)
def test_who_empties_dies(children: Children, root: Path, point: str, passes: int) -> None:
    ledger = Ledger(root / "ring", REFILLED)
    ledger.write(range(CAPACITY))
    ledger.consume(4)
    held = ledger.survivor.take(2)
    kill_at(children, ledger, "empty", point, passes)
    if point != "holding_lock":
        ledger.there = []
        assert ledger.survivor.size() == 0
        assert not ledger.survivor.end_takes(*held[1:]).any()
    else:
        assert ledger.survivor.end_takes(*held[1:]).all()
        ledger.there = ledger.there[6:]
        ledger.drain()
        ledger.there = []
    check_lists(ledger.survivor)
    ledger.verify()


def test_a_stopped_consumer_keeps_what_it_took(children: Children, root: Path) -> None:
    ledger = Ledger(root / "ring")
    ledger.write(range(CAPACITY))
    arguments = {"folder": str(ledger.folder), "deed": "take", "point": "taken", "action": "stop"}
    child = children.start(victim, method="fork", hint=1, **arguments)
    child.wait_stopped()
    assert sorted(ledger.drain()) == list(range(TAKEN_AT_ONCE, CAPACITY))
    ok(finish(ledger.survivor.segment.reap))
    assert ledger.drain() == []
    child.kill()
    assert ledger.drain() == list(range(TAKEN_AT_ONCE))


@pytest.mark.watchdog(600)
@pytest.mark.parametrize("deaths", [15, pytest.param(1000, marks=pytest.mark.long)])
def test_reserved_slots_do_not_leak(children: Children, root: Path, deaths: int) -> None:
    """Writers die as their slots are marked."""
    ledger = Ledger(root / "ring", LIMITED, capacity=64)
    for death in range(deaths):
        kill_at(children, ledger, "write", ("reserved", "head_moved")[death % 2])
        children.close()
        assert ledger.survivor.size() == 0
    ledger.verify()
