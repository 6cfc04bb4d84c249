"""The ring against the slow model: writing, wrapping, emptying, generations, counts and runs."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from helpers.rawsegment import RawSegment, ok, stamped, torn
from helpers.reference import Reference
from shmrb.core import SLICE_NS, Feature, Status, WriteFlag

RUN_FIRST, RUN_LAST, RUN_NUMBER = 1 << 31, 1 << 30, (1 << 30) - 1
WRITERS = ("a", "b")


def chunks(count: int, lane_capacity: int) -> list[range]:
    """How a long `extend` is cut: half a lane at a time."""
    longest = max(1, lane_capacity // 2)
    return [range(i, min(i + longest, count)) for i in range(0, count, longest)]


class Ring(RuleBasedStateMachine):
    """Random calls by two clients, each compared with the model."""

    @initialize(
        lane_capacity=st.sampled_from([1, 2, 3, 5, 7]),
        lanes=st.sampled_from([1, 1, 3]),
        one_lock=st.booleans(),
        base=st.sampled_from([0, 0, 1, 9]),
    )
    def create(self, lane_capacity: int, lanes: int, one_lock: bool, base: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shmrb-ring-", dir="/dev/shm"))
        capacity = lane_capacity * lanes
        features = int(Feature.ONE_LOCK) if one_lock else 0
        self.watcher = RawSegment.create(
            self.folder, capacity, lanes=lanes, features=features, generation_base=base
        )
        self.clients = {name: RawSegment.attached(self.folder, name) for name in WRITERS}
        self.model = Reference(capacity, lanes=lanes, generation_base=base)
        self.next_uid = 1

    @rule(data=st.data(), writer=st.sampled_from(WRITERS), count=st.integers(1, 17))
    def extend(self, data: st.DataObject, writer: str, count: int) -> None:
        lane = data.draw(st.integers(0, len(self.model.lanes) - 1))
        ends = data.draw(st.lists(st.integers(0, count - 1), max_size=3))
        told = data.draw(st.booleans())
        versions = data.draw(
            st.none() | st.lists(st.integers(-5, 5), min_size=count, max_size=count)
        )
        uids = list(range(self.next_uid, self.next_uid + count))
        self.next_uid += count
        records = stamped(uids, done=ends)
        for piece in chunks(count, self.model.lane_capacity):
            rows = list(piece)
            flags = WriteFlag.END_TRAJECTORY if told and rows[-1] == count - 1 else 0
            dates = None if versions is None else np.array(versions)[rows].astype(np.int64)
            head = self.watcher.segment.lanes()[lane]["head"]
            outcome = self.clients[writer].extend(
                {name: column[rows] for name, column in records.items()},
                lane=lane,
                versions=dates,
                flags=int(flags),
            )
            assert ok(outcome)[1] == head
        self.model.extend(
            writer, uids, lane=lane, versions=versions, ends=ends, end_trajectory=told
        )

    @rule(writer=st.sampled_from(WRITERS), reset=st.booleans())
    def empty(self, writer: str, reset: bool) -> None:
        ok(self.clients[writer].empty(reset=reset))
        self.model.empty(reset=reset)

    @rule(data=st.data(), writer=st.sampled_from(WRITERS))
    def end_trajectory(self, data: st.DataObject, writer: str) -> None:
        lane = data.draw(st.integers(0, len(self.model.lanes) - 1))
        ok(self.clients[writer].segment.end_trajectory(lane, 10**7))
        self.model.end_trajectory(writer, lane)

    @precondition(lambda self: self.model.size())
    @rule(writer=st.sampled_from(WRITERS), count=st.integers(1, 9))
    def sample(self, writer: str, count: int) -> None:
        outcome, batch = self.clients[writer].sample(count)
        ok(outcome)
        assert not torn(batch.columns)
        for i, slot in enumerate(batch.index):
            record = self.model.record(int(slot))
            assert record is not None
            assert record.uid == batch["uid"][i]
            assert record.generation == batch.generation[i]
            assert record.version == batch.version[i]

    @precondition(lambda self: not self.model.size())
    @rule(writer=st.sampled_from(WRITERS))
    def sample_nothing(self, writer: str) -> None:
        outcome, _ = self.clients[writer].sample(3)
        assert outcome[0] == Status.EMPTY

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        seen = self.watcher
        assert seen.generations().tolist() == self.model.generations()
        assert seen.size() == self.model.size()
        assert seen.write_count() == self.model.write_count()
        outcome, batch = seen.read()
        ok(outcome)
        for slot, record in enumerate(self.model.records()):
            if record is None:
                assert batch.generation[slot] == -1
                continue
            got = (batch["uid"][slot], batch.generation[slot], batch.version[slot])
            assert got == (record.uid, record.generation, record.version)
            run = int(seen.runs[slot])
            assert (run & RUN_NUMBER, bool(run & RUN_FIRST), bool(run & RUN_LAST)) == record.run

    def teardown(self) -> None:
        for client in self.clients.values():
            client.close()
        assert not self.watcher.owners.any()
        shutil.rmtree(self.folder)


TestRing = Ring.TestCase
TestRing.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.fixture
def small(root: Path) -> RawSegment:
    """A ring of 4 with a client attached."""
    RawSegment.create(root / "ring", 4)
    return RawSegment.attached(root / "ring")


def write(ring: RawSegment, uids: range | list[int]) -> None:
    for piece in chunks(len(uids), ring.capacity):
        ok(ring.extend(stamped([uids[i] for i in piece])))


def test_an_extend_longer_than_the_ring_keeps_its_tail(small: RawSegment) -> None:
    write(small, range(10))
    _, batch = small.read()
    assert batch["uid"].tolist() == [8, 9, 6, 7]
    assert small.size() == 4
    assert small.write_count() == 10
    assert small.peek("LaneBlock", "head") % 4 == 2
    # A slot's stamp counts its writes, not its calls.
    assert small.generations().tolist() == [2, 2, 1, 1]


def test_an_extend_longer_than_half_a_lane_is_refused(small: RawSegment) -> None:
    before = small.words.copy(), small.columns["uid"].copy()
    assert small.extend(stamped([1, 2, 3]))[0] == Status.CORRUPT
    assert small.extend(stamped([]))[0] == Status.CORRUPT
    assert small.extend(stamped([1]), lane=1)[0] == Status.CORRUPT
    assert (small.words == before[0]).all()
    assert (small.columns["uid"] == before[1]).all()


def test_generations_go_on_through_an_empty(small: RawSegment) -> None:
    write(small, range(6))
    assert small.generations().tolist() == [1, 1, 0, 0]
    ok(small.empty(reset=False))
    assert small.generations().tolist() == [2, 2, 1, 1]
    assert (small.size(), small.write_count()) == (0, 6)
    write(small, range(10, 12))
    assert small.generations().tolist() == [3, 3, 1, 1]
    ok(small.empty(reset=True))
    # The records of slots 2 and 3 were emptied away before.
    assert small.generations().tolist() == [4, 4, 1, 1]
    assert (small.size(), small.write_count()) == (0, 0)


def test_an_empty_of_a_fresh_ring_stamps_nothing(small: RawSegment) -> None:
    ok(small.empty())
    assert small.generations().tolist() == [-1, -1, -1, -1]
    write(small, range(2))
    assert small.generations().tolist() == [0, 0, -1, -1]


def test_indices_out_of_range_have_no_generation(small: RawSegment) -> None:
    write(small, range(6))
    far = [-1, -4, 4, 2**62, -(2**63)]
    assert small.generations(far).tolist() == [-1] * 5
    assert small.read([0, 4])[0][:2] == (Status.CORRUPT, 1)
    assert small.read([-1])[0][:2] == (Status.CORRUPT, 0)


def test_a_refill_takes_no_ticket(small: RawSegment) -> None:
    write(small, range(6))
    head = small.peek("LaneBlock", "head")
    assert ok(small.write(3, stamped([77]), version=5))[1] == 1
    assert small.peek("LaneBlock", "head") == head
    _, batch = small.read()
    assert batch["uid"].tolist() == [4, 5, 2, 77]
    assert batch.version.tolist() == [-1, -1, -1, 5]
    assert small.generations().tolist() == [1, 1, 0, 1]
    assert small.write(4, stamped([1]))[0] == Status.CORRUPT
    assert small.write(-1, stamped([1]))[0] == Status.CORRUPT


def test_a_dead_buffer_takes_no_writes(small: RawSegment) -> None:
    write(small, range(3))
    small.poke("ControlBlock", "state", 2)
    before = small.words.copy(), small.columns["uid"].copy(), small.peek("LaneBlock", "head")
    assert small.extend(stamped([9]))[0] == Status.DEAD
    assert small.write(0, stamped([9]))[0] == Status.DEAD
    assert small.update([0], [0], {"mark": np.array([1])})[0][0] == Status.DEAD
    assert small.sample(1)[0][0] == Status.DEAD
    assert small.read([0])[0][0] == Status.DEAD
    assert small.empty()[0] == Status.DEAD
    assert small.segment.end_trajectory(0, SLICE_NS)[0] == Status.DEAD
    assert small.segment.lease(-1)[0] == Status.DEAD
    # What is left can still be looked at.
    assert small.segment.size()[:2] == (Status.DEAD, 3)
    assert small.segment.write_count()[:2] == (Status.DEAD, 3)
    assert (small.words == before[0]).all()
    assert (small.columns["uid"] == before[1]).all()
    assert small.peek("LaneBlock", "head") == before[2]
    assert not small.owners.any()


def test_records_without_a_byte_are_counted_all_the_same(root: Path) -> None:
    columns = (("nothing", "<f4", (0,)), ("half", "<f2", ()))
    RawSegment.create(root / "odd", 3, columns=columns, done=())
    ring = RawSegment.attached(root / "odd")
    for value in range(4):
        record = {"nothing": np.zeros((1, 0), np.float32), "half": np.array([value], np.float16)}
        ok(ring.extend(record))
    _, batch = ring.read()
    assert batch["half"].tolist() == [3.0, 1.0, 2.0]
    assert ring.generations().tolist() == [1, 0, 0]
