"""The uniform draw: every live record as likely as any other, and nothing else ever."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from helpers.rawsegment import LANE, RawSegment, finish, ok, stamped, torn
from shmrb.core import Feature, Status, Waited

BUSY, VOID = np.uint64(1), np.uint64(2)
DRAWS = 40_000
TICK = (("x", "|u1", ()),)


def fill(ring: RawSegment, count: int, *, lane: int = 0) -> None:
    for uid in range(count):
        ok(ring.extend(stamped([uid]), lane=lane))


def drawn(ring: RawSegment, draws: int = DRAWS) -> np.ndarray:
    """How often each slot came."""
    outcome, batch = ring.sample(draws)
    ok(outcome)
    assert not torn(batch.columns)
    return np.bincount(batch.index, minlength=ring.capacity)


def assert_uniform(counts: np.ndarray, live: list[int]) -> None:
    """Only those slots, each within five standard deviations of its share."""
    assert set(np.flatnonzero(counts)) == set(live)
    draws, chance = counts.sum(), 1 / len(live)
    deviation = math.sqrt(draws * chance * (1 - chance))
    assert np.abs(counts[live] - draws * chance).max() <= 5 * deviation


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 7])
def test_a_ring_is_drawn_uniformly_however_full_it_is(root: Path, capacity: int) -> None:
    RawSegment.create(root / "ring", capacity)
    ring = RawSegment.attached(root / "ring")
    assert ring.sample(1)[0][0] == Status.EMPTY
    for written in range(1, 2 * capacity + 1):
        fill(ring, 1)
        assert_uniform(drawn(ring), list(range(min(written, capacity))))
    ok(ring.empty())
    assert ring.sample(1)[0][0] == Status.EMPTY
    fill(ring, 1)
    assert_uniform(drawn(ring), [0])


@pytest.mark.parametrize("one_lock", [False, True])
def test_records_of_all_lanes_are_equally_likely(root: Path, one_lock: bool) -> None:
    features = int(Feature.ONE_LOCK) if one_lock else 0
    RawSegment.create(root / "ring", 21, lanes=3, features=features)
    ring = RawSegment.attached(root / "ring")
    fill(ring, 2, lane=0)
    fill(ring, 16, lane=2)
    assert_uniform(drawn(ring), [0, 1, *range(14, 21)])
    fill(ring, 5, lane=0)
    fill(ring, 7, lane=1)
    assert_uniform(drawn(ring), list(range(21)))


def test_holes_are_never_drawn_and_are_not_counted(root: Path) -> None:
    RawSegment.create(root / "ring", 7)
    ring = RawSegment.attached(root / "ring")
    fill(ring, 6)
    make_hole(ring, 1)
    make_hole(ring, 4)
    assert ring.size() == 4
    assert_uniform(drawn(ring), [0, 2, 3, 5])
    assert ring.read()[1].generation.tolist() == [0, -1, 0, 0, -1, 0, -1]
    fill(ring, 3)
    assert ring.size() == 6
    assert_uniform(drawn(ring), [0, 1, 2, 3, 5, 6])
    assert ring.segment.lanes()[0]["holes"] == 1
    ok(ring.write(4, stamped([9])))
    assert ring.size() == 7
    make_hole(ring, 0)
    ok(ring.empty())
    assert ring.size() == 0
    fill(ring, 7)
    assert ring.size() == 7


def make_hole(ring: RawSegment, slot: int) -> None:
    """As recovery leaves a record that died in its writer's hands."""
    ring.words[slot] += np.uint64(1 << 20)
    ring.words[slot] |= VOID
    ring.poke(LANE, "holes_stale", 1)


def test_two_whole_records_among_a_thousand_holes_are_found(root: Path) -> None:
    RawSegment.create(root / "ring", 1024, columns=(("uid", "<i8", ()),), done=())
    ring = RawSegment.attached(root / "ring")
    for _ in range(2):
        ok(ring.extend({"uid": np.arange(512)}))
    whole = [3, 1000]
    for slot in range(1024):
        if slot not in whole:
            make_hole(ring, slot)
    assert ring.size() == 2
    outcome, batch = ring.sample(400)
    ok(outcome)
    assert_uniform(np.bincount(batch.index, minlength=1024), whole)
    make_hole(ring, 3)
    make_hole(ring, 1000)
    assert ring.size() == 0
    assert ring.sample(4)[0][0] == Status.EMPTY


def test_records_in_a_writers_hands_are_passed_over(root: Path) -> None:
    RawSegment.create(root / "ring", 7)
    ring = RawSegment.attached(root / "ring")
    writer = RawSegment.attached(root / "ring")
    fill(ring, 7)
    for slot in (2, 3):
        ring.owners[slot] = writer.token
        ring.words[slot] |= BUSY
    assert_uniform(drawn(ring), [0, 1, 4, 5, 6])
    # Alive: nobody takes them.
    assert ring.owners[2] == writer.token
    for slot in (0, 1, 4, 5, 6):
        make_hole(ring, slot)
    outcome, _ = ring.sample(3, slice_ns=0)
    assert outcome[:4] == (Status.AGAIN, 0, Waited.SLOT_OWNER, writer.token)
    outcome, _ = ring.read([2], slice_ns=0)
    assert outcome[:4] == (Status.AGAIN, 0, Waited.SLOT_OWNER, writer.token)
    writer.close()
    # Dead: what it was writing is gone.
    assert finish(lambda: ring.sample(3)[0])[0] == Status.EMPTY
    assert ok(ring.read([2])[0])
    assert ring.read([2])[1].generation.tolist() == [-1]


def test_columns_that_nobody_wants_are_skipped(root: Path) -> None:
    RawSegment.create(root / "ring", 3)
    ring = RawSegment.attached(root / "ring")
    fill(ring, 3)
    index, stamps = np.zeros(8, np.int64), np.zeros(8, np.int64)
    uids = np.zeros(8, np.int64)
    wanted = [uids.ctypes.data, 0, 0, 0, 0]
    ok(ring.segment.sample(ring.rng, 8, wanted, index.ctypes.data, stamps.ctypes.data, 0, 0, 10**7))
    assert (uids == index).all()
    assert (stamps == 0).all()


def test_a_seed_repeats_its_draws(root: Path) -> None:
    RawSegment.create(root / "ring", 7)
    first, second = RawSegment.attached(root / "ring"), RawSegment.attached(root / "ring")
    fill(first, 7)
    draws = [ring.sample(30)[1].index.tolist() for ring in (first, second, first, second)]
    assert draws[0] == draws[1] != draws[2] == draws[3]


@pytest.mark.parametrize("row_bytes", [1, 2, 3, 4, 8, 12, 16, 24, 32, 33, 64, 100, 4096, 5000])
def test_records_of_any_size_come_out_as_they_went_in(root: Path, row_bytes: int) -> None:
    columns = (("uid", "<i8", ()), ("body", "|u1", (row_bytes,)))
    RawSegment.create(root / "ring", 9, columns=columns, done=())
    ring = RawSegment.attached(root / "ring")
    bodies = np.random.default_rng(3).integers(0, 256, (9, row_bytes), np.uint8)
    for uid in range(9):
        ok(ring.extend({"uid": np.array([uid]), "body": bodies[[uid]]}))
    outcome, batch = ring.sample(50)
    ok(outcome)
    assert (batch["body"] == bodies[batch["uid"]]).all()
    assert (batch["uid"] == batch.index).all()
    _, batch = ring.read([8, 0, 8])
    assert (batch["body"] == bodies[[8, 0, 8]]).all()


@pytest.mark.long
def test_slots_beyond_the_24_bits_of_a_float_are_drawn_evenly(root: Path) -> None:
    capacity = 2**25
    RawSegment.create(root / "ring", capacity, columns=TICK, done=())
    ring = RawSegment.attached(root / "ring")
    for half in range(2):
        ok(ring.extend({"x": np.full(capacity // 2, half, np.uint8)}))
    outcome, batch = ring.sample(100_000)
    ok(outcome)
    assert batch.index.max() < capacity
    assert 0.492 < (batch.index % 2).mean() < 0.508
    assert 0.492 < batch["x"].mean() < 0.508
    assert (batch["x"] == (batch.index >= capacity // 2)).all()
