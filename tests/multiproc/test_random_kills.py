"""Clients are killed at random moments of their work, again and again on the same ring."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from helpers.procs import Child, Children
from helpers.rawsegment import CONTROL, LANE, STAMPED, RawSegment, finish, ok, torn
from helpers.victims import BULK, bulky, endless
from shmrb.core import Feature, Status

# The only thread beside pytest's is the watchdog of faulthandler, which touches no lock of ours.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

CAPACITY = 16
AT_ONCE = 3
FEATURES = [0, int(Feature.ONE_LOCK), int(Feature.ONE_LOCK | Feature.PRIORITIES)]


class Battlefield:
    """One ring, on which one victim works at a time or several at once."""

    def __init__(self, children: Children, folder: Path, features: int, seed: int) -> None:
        self.children = children
        self.folder = folder
        self.chance = random.Random(seed)
        RawSegment.create(folder, CAPACITY, features=features, columns=(*STAMPED, BULK))
        self.survivor = RawSegment.attached(folder, "survivor")
        self.progress = np.memmap(folder / "progress", np.int64, "w+", shape=2)
        self.stamps = self.survivor.generations()
        self.deaths = 0
        self.stall = 0.0

    def start(self, deed: str) -> Child:
        """A victim with uids of its own; `progress` begins at 0."""
        self.deaths += 1
        self.progress[:] = (0, 1_000_000 * self.deaths)
        folder = str(self.folder)
        child = self.children.start(endless, method="fork", folder=folder, deed=deed)
        child.expect("attached")
        return child

    def moments(self) -> Iterator[None]:
        """Busy until the victim has done some rounds and a random part of one."""
        rounds = self.progress[0] + self.chance.randint(1, 20)
        while self.progress[0] < rounds:
            yield
        end = time.perf_counter() + self.chance.uniform(0, 0.0005)
        while time.perf_counter() < end:
            yield

    def kill(self, child: Child) -> None:
        for _ in self.moments():
            pass
        child.kill()

    def found(self) -> dict[int, int]:
        """Slot: uid of all whole records; none is torn."""
        outcome = (Status.AGAIN,)
        while outcome[0] == Status.AGAIN:
            outcome, batch = self.survivor.read()
        whole = np.flatnonzero(batch.generation >= 0)
        for slot in whole:
            assert (batch["bulk"][slot] == batch["uid"][slot] % 251).all()
        assert not torn({name: column[whole] for name, column in batch.columns.items()})
        return dict(zip(whole.tolist(), batch["uid"][whole].tolist(), strict=True))

    def check(self) -> dict[int, int]:
        """What holds after any death, and the records that are there."""
        begun = time.monotonic()
        found = self.found()
        assert self.survivor.size() == len(found)
        ok(finish(self.survivor.segment.reap))
        assert self.survivor.size() == len(found)
        assert self.found() == found
        assert not self.survivor.owners.any()
        assert [row["name"] for row in self.survivor.segment.clients()] == [b"survivor"]
        stamps = self.survivor.generations()
        assert (stamps >= self.stamps).all()
        self.stamps = stamps
        self.stall = max(self.stall, time.monotonic() - begun)
        return found

    def end(self) -> None:
        """Every slot takes records again."""
        for uid in range(2 * CAPACITY):
            records = bulky(np.array([uid]))
            ok(finish(partial(self.survivor.extend, records)))
        assert sorted(self.check().values()) == list(range(CAPACITY, 2 * CAPACITY))
        for block, name in ((CONTROL, "control_lock"), (CONTROL, "empty_lock"), (LANE, "lock")):
            assert self.survivor.word_of(block, name).view(np.uint32)[0] == 0
        counters = self.survivor.segment.counters()
        print(
            f"{self.deaths} deaths: longest stall {1000 * self.stall:.1f} ms, "
            f"{counters['voided_records']} records voided, "
            f"{counters['lock_take_overs']} locks taken over"
        )


def one_after_the_other(
    children: Children, folder: Path, features: int, seed: int, deaths: int
) -> None:
    field = Battlefield(children, folder, features, seed)
    tickets: dict[int, int] = {}
    """Ticket: uid of the records that must be there; those of lost ones are missing."""
    for _ in range(deaths):
        deed = field.chance.choice(["write_on"] * 3 + ["update_on", "sample_on", "attach_on"])
        head = field.survivor.peek(LANE, "head")
        child = field.start(deed)
        before = {ticket % CAPACITY: uid for ticket, uid in tickets.items()}
        field.kill(child)
        children.close()
        found = field.check()
        if deed == "write_on":
            returned, base = int(field.progress[0]), 1_000_000 * field.deaths
            at_least = head + AT_ONCE * returned
            tickets |= {head + i: base + i for i in range(at_least - head)}
            # Of the call that was under way all, some or none is there.
            under_way = {at_least + i: base + at_least + i - head for i in range(AT_ONCE)}
            must = {t: u for t, u in tickets.items() if t >= at_least + AT_ONCE - CAPACITY}
            may = tickets | under_way
            assert {t % CAPACITY: u for t, u in must.items()}.items() <= found.items()
            assert found.items() <= slots_of(may)
            assert field.survivor.peek(LANE, "head") in (at_least, at_least + AT_ONCE)
            tickets = {t: u for t, u in may.items() if found.get(t % CAPACITY) == u}
        else:
            lost = before.items() - found.items()
            assert found.items() <= before.items()
            assert len(lost) <= (deed == "update_on")
            tickets = {t: u for t, u in tickets.items() if found.get(t % CAPACITY) == u}
    field.end()


def slots_of(tickets: dict[int, int]) -> set[tuple[int, int]]:
    return {(ticket % CAPACITY, uid) for ticket, uid in tickets.items()}


def in_a_crowd(children: Children, folder: Path, features: int, seed: int, deaths: int) -> None:
    """The survivor samples while victims of all kinds work and die."""
    field = Battlefield(children, folder, features, seed)
    deeds = ["write_on", "write_on", "update_on", "empty_on", "attach_on"]
    crowd = {deed: field.start(deed) for deed in dict.fromkeys(deeds)}
    batches = 0
    while field.deaths < deaths:
        deed = field.chance.choice(deeds)
        for _ in field.moments():
            outcome, batch = field.survivor.sample(8, slice_ns=10**6)
            assert outcome[0] in (Status.OK, Status.EMPTY, Status.AGAIN)
            if outcome[0] == Status.OK:
                assert not torn(batch.columns)
                batches += 1
        crowd[deed].kill()
        crowd[deed] = field.start(deed)
    for child in crowd.values():
        child.kill()
    field.check()
    assert batches > 0
    field.end()


@pytest.mark.parametrize("features", FEATURES)
def test_clients_die_one_after_the_other(children: Children, root: Path, features: int) -> None:
    one_after_the_other(children, root / "ring", features, 1, 9)


@pytest.mark.parametrize("features", FEATURES)
def test_clients_die_in_a_crowd(children: Children, root: Path, features: int) -> None:
    in_a_crowd(children, root / "ring", features, 2, 12)


@pytest.mark.long
@pytest.mark.watchdog(900)
@pytest.mark.parametrize("features", FEATURES)
def test_hundreds_die_one_after_the_other(children: Children, root: Path, features: int) -> None:
    one_after_the_other(children, root / "ring", features, 3, 100)


@pytest.mark.long
@pytest.mark.watchdog(900)
@pytest.mark.parametrize("features", FEATURES)
def test_hundreds_die_in_a_crowd(children: Children, root: Path, features: int) -> None:
    in_a_crowd(children, root / "ring", features, 4, 100)
