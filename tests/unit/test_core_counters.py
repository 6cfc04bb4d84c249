"""Counters across the limits of 32-bit numbers, and what hostile numbers may do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.rawsegment import CONTROL, LANE, RawSegment, changed, ok, stamped, torn
from shmrb.core import Feature, Status, new_rng

CAPACITY = 5
LIMITS = [2**31 - 2, 2**32 - 2]
GENERATION_SHIFT = 20


def full_ring(folder: Path, **geometry: int) -> RawSegment:
    RawSegment.create(folder, CAPACITY, **geometry)
    ring = RawSegment.attached(folder)
    for uid in range(CAPACITY):
        ok(ring.extend(stamped([uid])))
    return ring


def move_head_near(ring: RawSegment, value: int) -> int:
    """Makes the ring look as if about that many records had been written; its new head."""
    head = value - value % CAPACITY
    ring.poke(LANE, "head", head)
    ring.poke(LANE, "floor", head - 3 * CAPACITY)
    ring.poke(LANE, "written_offset", value - head)
    return head


@pytest.mark.parametrize("value", LIMITS)
def test_counts_go_on_across_32_bits(root: Path, value: int) -> None:
    ring = full_ring(root / "ring")
    head = move_head_near(ring, value)
    ring.words[:] = np.uint64(value + 1) << np.uint64(GENERATION_SHIFT)
    assert ring.write_count() == value
    assert ring.generations().tolist() == [value] * CAPACITY
    for i in range(CAPACITY):
        assert ok(ring.extend(stamped([100 + i])))[1] == head + i
        assert ring.write_count() == value + i + 1
        assert ring.size() == CAPACITY
    assert ring.generations().tolist() == [value + 1] * CAPACITY
    outcome, batch = ring.sample(50)
    ok(outcome)
    assert not torn(batch.columns)
    assert (batch.generation == value + 1).all()
    assert set(batch["uid"]) == {100, 101, 102, 103, 104}
    _, verdicts = ring.update(batch.index, batch.generation, changed(batch["uid"], batch.index))
    assert (verdicts == 1).all()
    _, verdicts = ring.update([0], [value], changed([100], [9]))
    assert verdicts.tolist() == [0]
    lane = ring.segment.lanes()[0]
    assert (lane["head"], lane["written"]) == (head + 5, value + 5)


@pytest.mark.parametrize("value", LIMITS)
@pytest.mark.parametrize("reset", [False, True])
def test_an_empty_works_beyond_32_bits(root: Path, value: int, reset: bool) -> None:
    ring = full_ring(root / "ring")
    head = move_head_near(ring, value)
    ok(ring.extend(stamped([100])))
    ok(ring.empty(reset=reset))
    assert (ring.size(), ring.write_count()) == (0, 0 if reset else value + 1)
    assert ring.peek(LANE, "head") == ring.peek(LANE, "floor") == head + CAPACITY
    for uid in range(7):
        ok(ring.extend(stamped([uid])))
    assert (ring.size(), ring.write_count()) == (5, 7 if reset else value + 8)
    assert ring.read()[1]["uid"].tolist() == [5, 6, 2, 3, 4]


@pytest.mark.parametrize("value", LIMITS)
def test_the_limiter_counts_beyond_32_bits(root: Path, value: int) -> None:
    ring = full_ring(root / "ring", features=int(Feature.ONE_LOCK | Feature.LIMITER))
    move_head_near(ring, value)
    limiter = ring.word_of(CONTROL, "limiter").view(np.int64)
    limiter[2] = value
    ok(ring.segment.set_limits(True, 1, 1.0, -2.0, 2.0, 10**7))
    for _ in range(5):
        ok(ring.extend(stamped([1])))
        ok(ring.sample(1, cost=1)[0])
    state = ring.segment.limiter()
    assert (state["inserts"], state["samples"]) == (value + 5, value + 5)
    ok(ring.extend(stamped([1, 2])))
    assert ring.extend(stamped([1]))[0] == Status.LIMITED
    ok(ring.sample(4, cost=4)[0])
    assert ring.sample(1, cost=1)[0][0] == Status.LIMITED


def test_counters_of_clients_are_64_bits_wide_and_outlive_them(root: Path) -> None:
    ring = full_ring(root / "ring")
    other = RawSegment.attached(root / "ring")
    ring.segment.count(8, 2**40)
    other.segment.count(8, 3)
    assert ring.segment.counters()["unchecked_updates"] == 2**40 + 3
    before = ring.segment.counters()
    assert before["records_written"] == CAPACITY
    other.close()
    assert ring.segment.counters() == before
    last = RawSegment.attached(root / "ring")
    ring.close()
    assert last.segment.counters() == before


def test_a_bells_event_wraps(root: Path) -> None:
    ring = full_ring(root / "ring")
    bell = ring.word_of(CONTROL, "records_bell").view(np.uint64)
    bell[0] = 2**32 - 1
    event = ok(ring.segment.bell_enter(0, False))[1]
    assert event == 2**32 - 1
    assert ok(ring.extend(stamped([1])))[4] == 1
    assert int(bell[0]) == 0


@pytest.mark.parametrize("head", [-1, -(2**63), 2**63 - 1, 2**62 + 1])
def test_a_head_that_no_writer_left_is_refused(root: Path, head: int) -> None:
    ring = full_ring(root / "ring")
    before = ring.words.copy(), ring.owners.copy(), ring.runs.copy()
    ring.poke(LANE, "head", head)
    if head == 2**63 - 1:
        ring.poke(LANE, "floor", -(2**63))
    assert ring.extend(stamped([1]))[0] == Status.CORRUPT
    assert ring.empty()[0] == Status.CORRUPT
    assert ring.segment.end_trajectory(0, 10**7)[0] == Status.CORRUPT
    for now, then in zip((ring.words, ring.owners, ring.runs), before, strict=True):
        assert (now == then).all()
    assert ring.peek(LANE, "lock") & 0xFFFF_FFFF == 0
    # Looking at it harms nobody.
    ring.segment.size()
    ring.segment.write_count()
    ring.sample(3, slice_ns=0)
    ring.read(slice_ns=0)
    ring.generations()


def test_a_seeded_stream_repeats_itself() -> None:
    first = [new_rng(5).next() for _ in range(3)]
    assert first[0] == first[1] == first[2]
    assert new_rng(6).next() != first[0]
    assert new_rng(5 + 2**64).next() == first[0]
    assert new_rng().next() != new_rng().next()
