"""Windows of the native core: the rules by hand, random rings against a slow model, and readers
between a look and a copy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from helpers.rawsegment import RawSegment, ok
from helpers.rings import (
    ANYTHING,
    BY_TRAJECTORY,
    BY_TRAJECTORY_STRICT,
    FULL,
    FULL_OR_WHOLE,
    INCLUDE_RESET,
    PAD,
    RETURN,
    STOP,
    STOP_AT_CUT,
    UNIFORM,
    Ring,
    Step,
    Unit,
    windows,
)
from shmrb.core import Status, Waited

COLUMNS = (("uid", "<i8", ()), ("done", "|u1", (1,)), ("id", "<i2", ()))
VOID, BUSY = 2, 1


def made(folder: Path, capacity: int, lanes: int = 1) -> RawSegment:
    RawSegment.create(folder, capacity, lanes=lanes, columns=COLUMNS, trajectory_id="id")
    return RawSegment.attached(folder, "one")


def write(
    ring: RawSegment, uids: list[int], done: Sequence[int] = (), lane: int = 0, trajectory: int = 0
) -> None:
    ends = np.zeros((len(uids), 1), np.uint8)
    ends[list(done)] = 1
    records = {"uid": np.array(uids), "done": ends, "id": np.full(len(uids), trajectory, np.int16)}
    for start in range(0, len(uids), max(1, ring.capacity // ring.lane_count // 2)):
        end = start + max(1, ring.capacity // ring.lane_count // 2)
        ok(ring.extend({name: a[start:end] for name, a in records.items()}, lane=lane))


# The tables of the semantics page: a ring of 10 with ends in 4 and 9.
TABLE = [
    (Unit(4), 3, "3444", "1100"),
    (Unit(4, boundary=STOP), 3, "1234", "1111"),
    (Unit(7, boundary=STOP), 3, "0123444", "1111100"),
    (Unit(4, boundary=INCLUDE_RESET), 3, "3456", "1111"),
    (Unit(2, 2, 2), 5, "555678", "001111"),
    (Unit(2, 2, 2), 6, "556789", "011111"),
    (Unit(2, 2, 2, boundary=STOP), 8, "556789", "011111"),
    (Unit(3, dilation=2), 2, "244", "110"),
    (Unit(3, dilation=2, boundary=STOP), 2, "024", "111"),
]


@pytest.mark.parametrize(("unit", "anchor", "slots", "valid"), TABLE)
def test_the_table(root: Path, unit: Unit, anchor: int, slots: str, valid: str) -> None:
    ring = made(root / "ring", 10)
    write(ring, list(range(10)), [4, 9])
    outcome, drawn = windows(ring, unit, anchors=[anchor])
    ok(outcome)
    assert "".join(map(str, drawn.batch.index)) == slots
    assert "".join(map(str, drawn.valid)) == valid
    assert drawn.batch["uid"].tolist() == drawn.batch.index.tolist()
    assert drawn.anchors.tolist() == [anchor]
    assert drawn.anchor_generations.tolist() == [0]


# Rings without an end whose newest record lies in slot 2.
SEAMS = [
    (Unit(6), 8, [8, 9, 0, 1, 2, 2], "111110"),
    (Unit(1, 3, boundary=INCLUDE_RESET), 4, [3, 3, 3, 4], "0011"),
    (Unit(4, boundary=STOP_AT_CUT), 1, [9, 0, 1, 2], "1111"),
]


@pytest.mark.parametrize(("unit", "anchor", "slots", "valid"), SEAMS)
def test_the_seam_is_never_crossed(
    root: Path, unit: Unit, anchor: int, slots: list[int], valid: str
) -> None:
    ring = made(root / "ring", 10)
    write(ring, list(range(13)))
    outcome, drawn = windows(ring, unit, anchors=[anchor])
    ok(outcome)
    assert drawn.batch.index.tolist() == slots
    assert "".join(map(str, drawn.valid)) == valid


def test_another_writer_is_an_interruption_though_both_ended(root: Path) -> None:
    ring = made(root / "ring", 10)
    other = RawSegment.attached(root / "ring", "two")
    write(ring, [0, 1], [1])
    write(ring, [2, 3], [1])
    write(other, [4, 5], [1])
    unit = Unit(6, boundary=INCLUDE_RESET)
    _, drawn = windows(ring, unit, anchors=[0, 4])
    assert drawn.of(drawn.batch.index).tolist() == [[0, 1, 2, 3, 3, 3], [4, 5, 5, 5, 5, 5]]


# ---- records in somebody's hands -----------------------------------------------------------------


def take(ring: RawSegment, slot: int, owner: int, *, in_place: bool) -> None:
    """Leaves a slot as a write, or a change in place, has it while it copies."""
    ring.owners[slot] = owner
    ring.words[slot] |= np.uint64(BUSY | (in_place << 2))


def test_no_window_is_cut_short_by_a_change_in_place(root: Path) -> None:
    ring = made(root / "ring", 10)
    other = RawSegment.attached(root / "ring", "two")
    write(ring, list(range(10)), [4, 9])
    take(ring, 2, other.token, in_place=True)
    outcome, drawn = windows(ring, Unit(3), 200)
    ok(outcome)
    assert set(drawn.anchors.tolist()) == {3, 4, 5, 6, 7, 8, 9}
    outcome, _ = windows(ring, Unit(3), anchors=[8, 1])
    assert outcome[0] == Status.AGAIN
    assert (outcome[2], outcome[3]) == (Waited.SLOT_OWNER, other.token)


def test_a_record_that_is_first_being_written_is_not_there_yet(root: Path) -> None:
    ring = made(root / "ring", 10)
    other = RawSegment.attached(root / "ring", "two")
    write(ring, [0, 1, 2])
    take(ring, 2, other.token, in_place=False)
    outcome, drawn = windows(ring, Unit(2), anchors=[0, 1])
    ok(outcome)
    assert drawn.batch.index.tolist() == [0, 1, 1, 1]
    # Its trajectory may go on: there is no return over two steps yet.
    outcome, drawn = windows(ring, Unit(2, demand=RETURN), anchors=[0, 1])
    ok(outcome)
    assert drawn.of(drawn.batch.generation)[:, 0].tolist() == [0, -1]
    # While nothing fits but something may, the call waits.
    outcome, _ = windows(ring, Unit(3, demand=FULL), 4)
    assert outcome[0] == Status.AGAIN


def test_what_a_dead_client_was_changing_parts_its_neighbours(root: Path) -> None:
    ring = made(root / "ring", 10)
    other = RawSegment.attached(root / "ring", "two")
    write(ring, list(range(5)))
    take(ring, 2, other.token, in_place=True)
    other.close()
    ring.poke("ClientBlock", "epoch", 77, number=1)
    outcome, drawn = windows(ring, Unit(3), anchors=[1, 3])
    ok(outcome)
    assert drawn.batch.index.tolist() == [1, 1, 1, 3, 4, 4]


def test_an_empty_ring_and_one_without_a_legal_anchor(root: Path) -> None:
    ring = made(root / "ring", 8)
    assert windows(ring, Unit(1), 4)[0][0] == Status.EMPTY
    assert windows(ring, Unit(1, demand=FULL), 4, kind=BY_TRAJECTORY_STRICT)[0][0] == Status.EMPTY
    write(ring, list(range(8)), list(range(8)))
    assert windows(ring, Unit(3, demand=FULL), 4)[0][0] == Status.NO_WINDOW
    assert windows(ring, Unit(3, demand=FULL), 4, kind=3)[0][0] == Status.NO_WINDOW


def test_a_legal_anchor_that_chance_does_not_find_is_found(root: Path) -> None:
    ring = made(root / "ring", 20_000)
    write(ring, list(range(20_000)), [i for i in range(20_000) if i not in (7, 8)])
    for kind in (UNIFORM, BY_TRAJECTORY_STRICT):
        outcome, drawn = windows(ring, Unit(3, demand=FULL), 64, kind=kind)
        ok(outcome)
        assert set(drawn.anchors.tolist()) == {7}
    outcome, drawn = windows(ring, Unit(2, demand=FULL), 4000, kind=BY_TRAJECTORY_STRICT)
    assert 1700 < (drawn.anchors == 7).sum() < 2300


def test_outlandish_shapes_are_refused(root: Path) -> None:
    ring = made(root / "ring", 8)
    write(ring, [0])
    for unit in (Unit(0), Unit(1, -1), Unit(1, dilation=0), Unit(2**24, dilation=2**24)):
        out = np.zeros(16, np.int64)
        addresses = [out.ctypes.data] * 3
        outcome = ring.segment.windows(
            ring.rng, 0, 1, unit.shape, addresses, *[out.ctypes.data] * 5, 0, 10**7
        )
        assert outcome[0] == Status.CORRUPT


# ---- random rings --------------------------------------------------------------------------------


def random_unit(rng: random.Random) -> Unit:
    demand = rng.choice([ANYTHING, ANYTHING, FULL, RETURN, FULL_OR_WHOLE])
    if demand == FULL_OR_WHOLE:
        return Unit(rng.randrange(1, 6), demand=demand)
    boundary = PAD if demand != ANYTHING else rng.choice([PAD, STOP, INCLUDE_RESET, STOP_AT_CUT])
    length, burn_in = rng.randrange(1, 6), rng.choice([0, 0, 1, 3])
    bootstrap = rng.choice([0, 0, 1, 2])
    least = rng.choice([0, 0, 1]) if length + bootstrap > 1 else 0
    return Unit(length, burn_in, bootstrap, rng.choice([1, 1, 2, 3]), boundary, demand, least)


class RandomRing:
    """The same calls made on a segment and on the model."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.rng = rng
        self.lanes = rng.choice([1, 1, 2, 3])
        self.capacity = self.lanes * rng.choice([1, 2, 3, 5, 8, 13, 40])
        made(folder, self.capacity, self.lanes).close()
        self.folder = folder
        self.writers = {name: RawSegment.attached(folder, name) for name in "ab"}
        self.model = Ring(self.capacity, self.lanes)
        self.uid = 0
        self.id = 0

    def change(self) -> None:
        rng = self.rng
        lane = rng.randrange(self.lanes)
        name = rng.choice("aaab")
        what = rng.random()
        if what < 0.05:
            self.writers[name].segment.end_trajectory(lane, 10**7)
            self.model.lanes[lane].end_trajectory(name)
        elif what < 0.08:
            ok(self.writers[name].empty(reset=rng.random() < 0.5))
            for model in self.model.lanes:
                model.empty()
        elif what < 0.11:
            # Whoever comes again is somebody else.
            self.writers.pop(name).close()
            self.writers[name] = RawSegment.attached(self.folder, name)
            for model in self.model.lanes:
                for step in model.steps:
                    step.writer = step.writer.replace(name, name + "'")
        elif what < 0.14 and self.model.lanes[lane].steps:
            step = rng.choice(self.model.lanes[lane].steps)
            word = self.writers["a"].words
            word[step.slot] = ((int(word[step.slot]) >> 20) + 1) << 20 | VOID
            step.is_whole = False
        elif what < 0.17 and self.model.lanes[lane].steps:
            self.die(self.model.lanes[lane].steps)
        else:
            self.write(name, lane)

    def die(self, steps: list[Step]) -> None:
        """A client was killed while it wrote the newest record, or while it changed some record."""
        in_place = self.rng.random() < 0.5
        step = self.rng.choice(steps) if in_place else steps[-1]
        if step.is_whole:
            victim = RawSegment.attached(self.folder, "victim")
            take(self.writers["a"], step.slot, victim.token, in_place=in_place)
            victim.close()
            step.is_whole = False
            if not in_place:
                # It could still be coming, for all that a reader knows, until somebody recovers it.
                ok(self.writers["a"].segment.recover())

    def write(self, name: str, lane: int) -> None:
        rng = self.rng
        lane_capacity = self.capacity // self.lanes
        count = rng.randrange(1, max(1, lane_capacity // 2) + 1)
        ends = [i for i in range(count) if rng.random() < 0.25]
        if rng.random() < 0.15:
            self.id += 1
        uids = list(range(self.uid, self.uid + count))
        self.uid += count
        write(self.writers[name], uids, ends, lane, self.id)
        for i, uid in enumerate(uids):
            self.model.lanes[lane].write(name, uid, self.id, i in ends)

    def compare(self) -> None:
        ring, rng = self.writers["b"], self.rng
        unit = random_unit(rng)
        legal = self.model.legal(unit)
        uids = {step.slot: step.uid for lane in self.model.lanes for step in lane.steps}
        slots = list(range(self.capacity))
        outcome, drawn = windows(ring, unit, anchors=slots)
        ok(outcome)
        index, valid = drawn.of(drawn.batch.index), drawn.of(drawn.valid)
        generation, uid = drawn.of(drawn.batch.generation), drawn.of(drawn.batch["uid"])
        for slot in slots:
            if slot not in legal:
                assert (generation[slot] == -1).all(), (unit, slot)
                assert drawn.anchor_generations[slot] == -1
                continue
            assert drawn.anchor_generations[slot] == int(ring.words[slot] >> 20) - 1
            assert (index[slot].tolist(), valid[slot].tolist()) == legal[slot], (unit, slot)
            assert uid[slot].tolist() == [uids[i] for i in legal[slot][0]]
        self.compare_draws(unit, legal)

    def compare_draws(self, unit: Unit, legal: dict[int, tuple[list[int], list[int]]]) -> None:
        kinds = [UNIFORM]
        if unit.demand == FULL:
            kinds.append(BY_TRAJECTORY_STRICT)
        if unit.demand == FULL_OR_WHOLE:
            kinds.append(BY_TRAJECTORY)
        kind = self.rng.choice(kinds)
        outcome, drawn = windows(self.writers["b"], unit, 8, kind=kind)
        if not legal:
            whole = any(step.is_whole for lane in self.model.lanes for step in lane.steps)
            assert outcome[0] == (Status.NO_WINDOW if whole else Status.EMPTY)
            return
        ok(outcome)
        index, valid = drawn.of(drawn.batch.index), drawn.of(drawn.valid)
        for number, anchor in enumerate(drawn.anchors.tolist()):
            assert (index[number].tolist(), valid[number].tolist()) == legal[anchor], (unit, kind)

    def compare_runs(self) -> None:
        for number, lane in enumerate(self.model.lanes):
            found = self.writers["a"].segment.runs(number)
            assert [run[1] for run in found] == [len(piece) for piece in lane.pieces()]
            assert [run[3] for run in found] == [piece[-1].is_last for piece in lane.pieces()]

        lengths = [len(piece) for lane in self.model.lanes for piece in lane.pieces()]
        cut = sum(
            not piece[-1].is_last for lane in self.model.lanes for piece in lane.pieces()[:-1]
        )
        summary = (len(lengths), min(lengths, default=0), max(lengths, default=0), cut)
        assert self.writers["a"].segment.run_summary() == summary

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


def compare_rings(root: Path, buffers: int, rings: int, seed: int) -> None:
    for number in range(buffers):
        ring = RandomRing(root / f"ring-{number}", random.Random(f"{seed}/{number}"))
        for _ in range(rings):
            for _ in range(ring.rng.randrange(1, 12)):
                ring.change()
            ring.compare()
            ring.compare_runs()
        ring.close()


@pytest.mark.parametrize("seed", range(4))
def test_random_rings(root: Path, seed: int) -> None:
    compare_rings(root, 10, 50, seed)


@pytest.mark.long
@pytest.mark.watchdog(7200)
def test_a_hundred_thousand_random_rings(root: Path) -> None:
    compare_rings(root, 1000, 100, 1000)
