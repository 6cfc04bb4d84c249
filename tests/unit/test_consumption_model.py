"""Consumption against a slow model of its rules: order, refills, counts, who holds what."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.consumption import (
    LIMITED,
    NEWEST,
    OLDEST,
    REFILLED,
    RING,
    UNIFORM,
    chain,
    check_lists,
    queue,
)
from helpers.rawsegment import RawSegment, finish, ok, stamped
from shmrb import core
from shmrb.core import Feature, Status

CLIENTS = ("first", "second")


@dataclass
class Record:
    slot: int
    uid: int
    draws: int = 0
    holder: str = ""


@dataclass
class Store:
    """The rules, over lists.

    Attributes:
        records: those that are not consumed, by arrival.
        free: slots that writes fill, the next one first.
    """

    capacity: int
    limit: int
    refills: bool
    records: list[Record] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    head: int = 0

    def write(self, uids: list[int]) -> list[int]:
        """Where the records go. Of two rows for one slot the later one stays."""
        filled = self.free[: len(uids)]
        del self.free[: len(filled)]
        slots = list(filled)
        while len(slots) < len(uids):
            slots.append(self.head % self.capacity)
            self.head += 1
        last = dict(zip(slots, uids, strict=True))
        self.records = [record for record in self.records if record.slot not in last]
        for slot, uid in zip(slots, uids, strict=True):
            if last[slot] == uid:
                self.records.append(Record(slot, uid))
        return slots

    def drawable(self) -> list[Record]:
        return [record for record in self.records if not record.holder]

    def take(self, slots: list[int], holder: str) -> None:
        for record in self.records:
            if record.slot in slots:
                record.holder = holder

    def of(self, slot: int) -> Record | None:
        return next((record for record in self.records if record.slot == slot), None)

    def finish(self, record: Record) -> None:
        record.holder = ""
        record.draws += 1
        if record.draws == self.limit:
            self.records.remove(record)
            if self.refills:
                self.free.append(record.slot)

    def empty(self) -> None:
        self.records, self.free = [], []
        self.head += -self.head % self.capacity


class Consumption(RuleBasedStateMachine):
    """Two clients and the model do the same."""

    folders: Iterator[Path]

    @initialize(
        capacity=st.integers(1, 9),
        limit=st.integers(1, 3),
        features=st.sampled_from([RING, REFILLED, LIMITED]),
    )
    def create(self, capacity: int, limit: int, features: int) -> None:
        folder = next(self.folders)
        RawSegment.create(folder, capacity, features=features, consume_after=limit)
        self.folder = folder
        self.clients = {
            name: RawSegment.attached(folder, name, hint=i) for i, name in enumerate(CLIENTS)
        }
        self.ring = self.clients["first"]
        self.model = Store(capacity, limit, bool(features & Feature.REFILLS))
        self.takes: list[tuple[str, np.ndarray, np.ndarray]] = []
        self.uids = itertools.count()
        self.written = 0
        if features & Feature.LIMITER:
            ok(self.ring.segment.set_limits(True, 1, float(limit), -1e9, 1e9, core.SLICE_NS))
        self.cost = int(bool(features & Feature.LIMITER))
        self.samples = 0

    @rule(client=st.sampled_from(CLIENTS), count=st.integers(1, 9))
    def write(self, client: str, count: int) -> None:
        count = min(count, max(1, self.model.capacity // 2))
        uids = [next(self.uids) for _ in range(count)]
        slots = np.full(count, -1, np.int64)
        member = self.clients[client]
        records = stamped(uids)
        columns = [np.ascontiguousarray(records[name]) for name, _, _ in member.fields]
        places = [column.ctypes.data for column in columns]
        segment, where = member.segment, slots.ctypes.data
        ok(finish(lambda: segment.extend(0, count, places, 0, 0, core.SLICE_NS, 0, where)))
        assert slots.tolist() == self.model.write(uids)
        self.written += count

    @rule(
        client=st.sampled_from(CLIENTS),
        kind=st.sampled_from([UNIFORM, OLDEST, NEWEST]),
        count=st.integers(1, 6),
    )
    def take(self, client: str, kind: int, count: int) -> None:
        outcome, slots, generations = self.clients[client].take(count, kind, cost=self.cost)
        there = [record.slot for record in self.model.drawable()]
        if not there:
            assert outcome[0] in (Status.EMPTY, Status.LIMITED)
            return
        ok(outcome)
        assert len(set(slots.tolist())) == len(slots) == min(count, len(there))
        if kind == UNIFORM:
            assert set(slots.tolist()) <= set(there)
        else:
            wanted = there if kind == OLDEST else there[::-1]
            assert slots.tolist() == wanted[: len(slots)]
        self.model.take(slots.tolist(), client)
        self.takes.append((client, slots, generations))
        self.samples += self.cost * len(slots)

    @rule(nth=st.integers(0, 50), back=st.booleans(), client=st.sampled_from(CLIENTS))
    def end(self, nth: int, back: bool, client: str) -> None:
        """Ends a take, perhaps one that was ended before, or another client's."""
        if not self.takes:
            return
        _, slots, generations = self.takes[nth % len(self.takes)]
        mine = []
        for slot, generation in zip(slots.tolist(), generations.tolist(), strict=True):
            record = self.model.of(slot)
            current = int(self.ring.generations([slot])[0]) == generation
            mine.append(record is not None and current and record.holder == client)
        ended = self.clients[client].end_takes(slots, generations, back=back)
        assert ended.tolist() == mine
        for slot, is_mine in zip(slots.tolist(), mine, strict=True):
            record = self.model.of(slot)
            if is_mine and record is not None:
                if back:
                    record.holder = ""
                    self.samples -= self.cost
                else:
                    self.model.finish(record)

    @rule()
    def empty(self) -> None:
        ok(finish(lambda: self.ring.empty(reset=False)))
        self.model.empty()

    @rule()
    def leave(self) -> None:
        """A client that leaves gives back what it had taken; another takes its place."""
        self.clients["second"].close()
        for record in self.model.records:
            if record.holder == "second":
                record.holder = ""
                self.samples -= self.cost
        self.clients["second"] = RawSegment.attached(self.folder, "second", hint=1)
        self.takes = [take for take in self.takes if take[0] != "second"]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        check_lists(self.ring)
        model = self.model
        assert chain(self.ring) == [record.slot for record in model.records]
        assert queue(self.ring) == model.free
        assert self.ring.size() == len(model.drawable())
        assert self.ring.write_count() == self.written
        for record in model.records:
            assert self.ring.columns["uid"][record.slot] == record.uid
            assert self.ring.consumed["counts"][record.slot] == record.draws
        if self.cost:
            limiter = self.ring.segment.limiter()
            assert (limiter["samples"], limiter["size"]) == (self.samples, len(model.records))

    def teardown(self) -> None:
        if hasattr(self, "clients"):
            for client in self.clients.values():
                client.close()
            shutil.rmtree(self.folder)


@pytest.mark.parametrize("examples", [40, pytest.param(3000, marks=pytest.mark.long)])
@pytest.mark.watchdog(900)
def test_consumption_is_what_the_rules_say(root: Path, examples: int) -> None:
    machine = Consumption.TestCase
    Consumption.folders = (root / f"ring{i}" for i in itertools.count())
    machine.settings = settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    machine().runTest()
