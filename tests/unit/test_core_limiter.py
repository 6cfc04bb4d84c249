"""The rate limiter: Reverb's conditions exactly, and what changes them at run time."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from helpers.rawsegment import CONTROL, RawSegment, ok
from helpers.reference import ReverbLimiter
from shmrb.core import Feature, Status, WriteFlag

FEATURES = int(Feature.ONE_LOCK | Feature.LIMITER)
SLICE = 10**7
TRACES = 10_000
BYTE = (("x", "|u1", ()),)


def rows(count: int) -> dict[str, np.ndarray]:
    return {"x": np.zeros(count, np.uint8)}


def limited(folder: Path, capacity: int, *, lanes: int = 1) -> RawSegment:
    RawSegment.create(folder, capacity, features=FEATURES, lanes=lanes, columns=BYTE, done=())
    return RawSegment.attached(folder)


def set_limits(
    ring: RawSegment,
    min_size: int = 1,
    spi: float = 1.0,
    min_diff: float = -math.inf,
    max_diff: float = math.inf,
) -> None:
    ok(ring.segment.set_limits(True, min_size, spi, min_diff, max_diff, SLICE))


class Trace:
    """One ring and the copy of Reverb's limiter beside it.

    One thing is ours: after a draw that was refused for want of records one insert may pass, if the
    limits could let so many rows in at another time.
    """

    def __init__(self, ring: RawSegment) -> None:
        self.ring = ring
        self.model = ReverbLimiter()
        self.is_open = False

    def begin(self, chance: random.Random) -> None:
        ok(self.ring.empty(reset=True))
        self.model = ReverbLimiter()
        self.is_open = False
        self.set_limits(chance)

    def set_limits(self, chance: random.Random) -> None:
        model = self.model
        model.min_size = chance.choice([1, 1, 2, 3, 5, self.ring.capacity])
        model.samples_per_insert = chance.choice([0.1, 0.5, 1.0, 1 / 3, 1.5, 2.0, 32.0])
        middle = model.min_size * model.samples_per_insert
        model.min_diff = chance.choice([-math.inf, 0.0, middle - chance.uniform(0, 40)])
        model.max_diff = chance.choice([math.inf, middle, middle + chance.uniform(0, 40)])
        set_limits(
            self.ring, model.min_size, model.samples_per_insert, model.min_diff, model.max_diff
        )

    @property
    def live(self) -> int:
        return self.model.inserts - self.model.deletes

    def may_insert(self, count: int) -> bool:
        model = self.model
        could = count * model.samples_per_insert <= model.max_diff - model.min_diff
        return model.can_insert(count) or (self.is_open and could)

    def inserted(self, count: int) -> None:
        self.is_open = False
        self.model.inserts += count
        self.model.deletes += max(0, self.live - self.ring.capacity)

    def insert(self, count: int) -> None:
        allowed = self.may_insert(count)
        outcome = self.ring.extend(rows(count))
        assert (outcome[0] == Status.OK) == allowed, self.model
        if allowed:
            self.inserted(count)
        else:
            assert outcome[0] == Status.LIMITED

    def insert_in_chunks(self, count: int) -> None:
        allowed = self.may_insert(count)
        assert (self.ring.segment.admit(count, SLICE)[0] == Status.OK) == allowed, self.model
        if not allowed:
            return
        for _ in range(count):
            ok(self.ring.extend(rows(1), flags=int(WriteFlag.ADMITTED)))
        self.inserted(count)

    def sample(self, count: int) -> None:
        allowed = self.model.can_sample(count)
        outcome, _ = self.ring.sample(count, cost=count)
        assert (outcome[0] == Status.OK) == allowed, self.model
        if allowed:
            self.model.samples += count
            self.is_open = False
        else:
            assert outcome[0] == Status.LIMITED
            self.is_open = self.is_open or self.live < self.model.min_size

    def empty(self) -> None:
        ok(self.ring.empty(reset=False))
        self.model.deletes = self.model.inserts

    def check(self) -> None:
        got = self.ring.segment.limiter()
        assert (got["inserts"], got["samples"]) == (self.model.inserts, self.model.samples)
        assert got["size"] == self.live == self.ring.size()


def test_ten_thousand_random_traces_are_answered_as_reverb_would(root: Path) -> None:
    chance = random.Random(20)
    traces = [Trace(limited(root / str(capacity), capacity)) for capacity in (1, 2, 3, 5, 7)]
    for _ in range(TRACES):
        trace = chance.choice(traces)
        trace.begin(chance)
        longest = max(1, trace.ring.capacity // 2)
        for _ in range(chance.randint(1, 16)):
            kind = chance.random()
            if kind < 0.45:
                trace.insert(chance.randint(1, longest))
            elif kind < 0.52:
                trace.insert_in_chunks(chance.randint(1, 3 * trace.ring.capacity))
            elif kind < 0.95:
                trace.sample(chance.randint(1, 12))
            elif kind < 0.98:
                trace.set_limits(chance)
            else:
                trace.empty()
        trace.check()


def test_a_refusal_leaves_everything_as_it_was(root: Path) -> None:
    ring = limited(root / "ring", 5)
    set_limits(ring, min_size=2, max_diff=2.0, min_diff=0.0)
    for _ in range(2):
        ok(ring.extend(rows(1)))

    def state() -> list[object]:
        lane = ring.peek("LaneBlock", "head"), ring.peek("LaneBlock", "written_offset")
        words = ring.words.tolist(), ring.runs.tolist(), ring.owners.tolist()
        limiter = ring.word_of(CONTROL, "limiter").tolist()
        return [lane, words, limiter, ring.generations().tolist(), ring.size()]

    before = state()
    assert ring.extend(rows(1))[0] == Status.LIMITED
    assert ring.segment.admit(1, SLICE)[0] == Status.LIMITED
    assert ring.sample(3, cost=3)[0][0] == Status.LIMITED
    assert ring.segment.charge(3, SLICE)[0] == Status.LIMITED
    assert state() == before
    # Costs nothing: nothing is asked.
    ok(ring.sample(3)[0])
    assert ring.segment.limiter()["samples"] == 0


def test_the_warm_up_is_free(root: Path) -> None:
    ring = limited(root / "ring", 7)
    set_limits(ring, min_size=5, spi=100.0, max_diff=-1.0)
    for _ in range(5):
        ok(ring.extend(rows(1)))
    assert ring.extend(rows(1))[0] == Status.LIMITED
    # Emptied below the minimum: free again.
    ok(ring.empty(reset=False))
    ok(ring.extend(rows(1)))


def test_an_empty_that_resets_zeroes_the_counters(root: Path) -> None:
    ring = limited(root / "ring", 6, lanes=3)
    set_limits(ring)
    for lane in range(3):
        ok(ring.extend(rows(1), lane=lane))
    ok(ring.sample(9, cost=9)[0])
    ok(ring.empty(reset=False))
    assert (ring.segment.limiter()["inserts"], ring.segment.limiter()["samples"]) == (3, 9)
    ok(ring.empty(reset=True))
    assert (ring.segment.limiter()["inserts"], ring.segment.limiter()["samples"]) == (0, 0)
    ok(ring.extend(rows(1), lane=2))
    assert ring.segment.limiter()["inserts"] == 1


def test_while_lifted_nothing_is_refused_and_nothing_counts(root: Path) -> None:
    ring = limited(root / "ring", 6)
    set_limits(ring, min_size=1, max_diff=2.0, min_diff=0.0)
    ok(ring.extend(rows(1)))
    ok(ring.segment.lift(True, SLICE))
    ok(ring.segment.lift(True, SLICE))
    for _ in range(20):
        ok(ring.extend(rows(1)))
    ok(ring.sample(100, cost=100)[0])
    ok(ring.segment.lift(False, SLICE))
    ok(ring.segment.lift(False, SLICE))
    limiter = ring.segment.limiter()
    assert (limiter["inserts"], limiter["samples"], limiter["size"]) == (1, 0, 6)
    assert ring.write_count() == 21
    # What was written meanwhile is owed no samples: one insert is still free, as before.
    ok(ring.extend(rows(1)))
    assert ring.extend(rows(1))[0] == Status.LIMITED
    ok(ring.sample(2, cost=2)[0])
    assert ring.sample(1, cost=1)[0][0] == Status.LIMITED


def test_an_empty_while_lifted_starts_the_count_anew(root: Path) -> None:
    ring = limited(root / "ring", 6)
    set_limits(ring)
    ok(ring.extend(rows(2)))
    ok(ring.segment.lift(True, SLICE))
    ok(ring.extend(rows(3)))
    ok(ring.empty(reset=True))
    ok(ring.extend(rows(2)))
    ok(ring.segment.lift(False, SLICE))
    assert ring.segment.limiter()["inserts"] == 0
    ok(ring.extend(rows(1)))
    assert ring.segment.limiter()["inserts"] == 1


def test_limits_change_at_run_time(root: Path) -> None:
    ring = limited(root / "ring", 6)
    set_limits(ring, max_diff=1.0)
    ok(ring.extend(rows(1)))
    assert ring.extend(rows(1))[0] == Status.LIMITED
    set_limits(ring, max_diff=2.0)
    ok(ring.extend(rows(1)))
    ok(ring.segment.set_limits(False, 1, 1.0, 0.0, 0.0, SLICE))
    ok(ring.extend(rows(3)))
    limiter = ring.segment.limiter()
    assert not limiter["enabled"]
    assert limiter["inserts"] == 5


def test_a_draw_that_finds_nothing_legal_lets_one_insert_pass(root: Path) -> None:
    ring = limited(root / "ring", 6)
    set_limits(ring, min_size=0, max_diff=-1.0)
    assert ring.extend(rows(1))[0] == Status.LIMITED
    for _ in range(2):
        assert ring.sample(1, cost=1)[0][0] == Status.EMPTY
    limiter = ring.segment.limiter()
    # What bought nothing was given back.
    assert (limiter["samples"], limiter["opened_times"]) == (0, 0)
    assert limiter["opened_by"] == ring.token
    ok(ring.extend(rows(1)))
    limiter = ring.segment.limiter()
    assert (limiter["opened_by"], limiter["opened_times"]) == (0, 1)
    assert ring.extend(rows(1))[0] == Status.LIMITED
    assert ring.segment.admit(1, SLICE)[0] == Status.LIMITED


def test_an_insert_within_the_limits_and_a_draw_shut_what_was_opened(root: Path) -> None:
    ring = limited(root / "ring", 6)
    set_limits(ring, min_size=0, max_diff=2.0)
    assert ring.sample(1, cost=1)[0][0] == Status.EMPTY
    ok(ring.extend(rows(1)))
    assert ring.segment.limiter()["opened_by"] == 0
    ok(ring.empty(reset=False))
    assert ring.sample(1, cost=1)[0][0] == Status.EMPTY
    ok(ring.segment.admit(1, SLICE))
    assert ring.segment.limiter()["opened_by"] == 0
    assert ring.sample(1, cost=1)[0][0] == Status.EMPTY
    ok(ring.extend(rows(1), flags=int(WriteFlag.ADMITTED)))
    assert ring.segment.limiter()["opened_by"] == 0
    ok(ring.sample(1, cost=1)[0])
    assert ring.extend(rows(2))[0] == Status.LIMITED
    assert ring.segment.limiter()["opened_times"] == 0


def test_a_draw_before_min_size_lets_the_insert_pass_that_reaches_it(root: Path) -> None:
    # The widest call of the warm-up would end above max_diff, though the limits are wide enough for
    # every later call: 2 * 3 + 2 = 8 apart.
    ring = limited(root / "ring", 12)
    set_limits(ring, min_size=5, spi=2.0, min_diff=-1.0, max_diff=7.0)
    ok(ring.extend(rows(3)))
    assert ring.extend(rows(3))[0] == Status.LIMITED
    assert ring.sample(2, cost=2)[0][0] == Status.LIMITED
    ok(ring.extend(rows(3)))
    assert ring.segment.limiter()["opened_times"] == 1
    assert ring.extend(rows(1))[0] == Status.LIMITED
    for _ in range(6):
        ok(ring.sample(2, cost=2)[0])
    assert ring.sample(2, cost=2)[0][0] == Status.LIMITED
    # Enough records, too few inserts: nothing is opened.
    assert ring.segment.limiter()["opened_by"] == 0


def test_no_opening_lets_pass_what_the_limits_never_could(root: Path) -> None:
    ring = limited(root / "ring", 12)
    set_limits(ring, min_size=1, min_diff=0.0, max_diff=3.0)
    assert ring.sample(1, cost=1)[0][0] == Status.LIMITED
    assert ring.extend(rows(4))[0] == Status.LIMITED
    ok(ring.extend(rows(3)))


def test_the_insert_side_shuts_when_its_opener_leaves(root: Path) -> None:
    ring = limited(root / "ring", 6)
    set_limits(ring, min_size=0, max_diff=-1.0)
    consumer = RawSegment.attached(ring.folder)
    assert consumer.sample(1, cost=1)[0][0] == Status.EMPTY
    consumer.close()
    assert ring.extend(rows(1))[0] == Status.LIMITED
    # Whoever has its client slot now is not the opener.
    again = RawSegment.attached(ring.folder)
    assert again.token & 0xFFFF == ring.segment.limiter()["opened_by"] & 0xFFFF
    assert ring.extend(rows(1))[0] == Status.LIMITED


def test_a_draw_that_waits_in_vain_gives_its_charge_back(root: Path) -> None:
    ring = limited(root / "ring", 6)
    set_limits(ring)
    ok(ring.extend(rows(1)))
    # The only record is in the hands of a living client.
    ring.words[0] |= 1
    ring.owners[0] = ring.token
    assert ring.sample(1, cost=1, slice_ns=0)[0][:4] == (Status.AGAIN, 0, 4, ring.token)
    assert ring.segment.limiter()["samples"] == 0
    ring.words[0] &= ~np.uint64(1)
    ring.owners[0] = 0
    ok(ring.sample(1, cost=1)[0])
    assert ring.segment.limiter()["samples"] == 1


@pytest.mark.parametrize("value", [float("nan"), -0.0, 1e308])
def test_odd_limits_refuse_or_admit_but_never_hang(root: Path, value: float) -> None:
    ring = limited(root / "ring", 6)
    set_limits(ring, 1, value, value, value)
    assert ring.extend(rows(3))[0] in (Status.OK, Status.LIMITED)
    assert ring.sample(1, cost=1)[0][0] in (Status.OK, Status.LIMITED, Status.EMPTY)
    stored = struct.unpack("<d", ring.word_of(CONTROL, "limiter").tobytes()[32:40])[0]
    assert math.isnan(stored) if math.isnan(value) else stored == value
