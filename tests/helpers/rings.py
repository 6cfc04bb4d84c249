"""The slow model of what belongs together in a ring, and windows by it; oracle of the tests.

Written from the rules alone: every record remembers its writer and trajectory, a window is found by
walking over lists. `windows` asks the native core the same question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shmrb import core
from shmrb.core import Outcome

from .rawsegment import Array, Batch, RawSegment

PAD, STOP, INCLUDE_RESET, STOP_AT_CUT = range(4)
ANYTHING, FULL, RETURN, FULL_OR_WHOLE = range(4)
UNIFORM, BY_MASS, BY_TRAJECTORY, BY_TRAJECTORY_STRICT = range(4)


@dataclass(frozen=True)
class Unit:
    """The shape of a window, as `core.Segment.windows` takes it."""

    length: int
    burn_in: int = 0
    bootstrap: int = 0
    dilation: int = 1
    boundary: int = PAD
    demand: int = ANYTHING
    least: int = 0

    @property
    def steps(self) -> int:
        return self.burn_in + self.length + self.bootstrap

    @property
    def shape(self) -> list[int]:
        head = [self.length, self.burn_in, self.bootstrap, self.dilation]
        return [*head, self.boundary, self.demand, self.least, 0]


@dataclass
class Step:
    """A record under a live ticket."""

    slot: int
    uid: int
    writer: str
    trajectory: int
    is_last: bool
    is_cut_off: bool
    """It does not go on with the record before it, though that one did not end."""
    is_new: bool
    """It starts a trajectory, or what is left of one."""
    is_whole: bool = True


class Lane:
    """One ring; `steps` are its live records, oldest first."""

    def __init__(self, first_slot: int, capacity: int) -> None:
        self.first_slot = first_slot
        self.capacity = capacity
        self.steps: list[Step] = []
        self.position = 0

    def write(self, writer: str, uid: int, trajectory: int, is_last: bool) -> None:
        before = self.steps[-1] if self.steps else None
        same_writer = before is not None and before.writer == writer
        goes_on = before is not None and same_writer and not before.is_last
        goes_on = goes_on and before is not None and before.trajectory == trajectory
        ended = before is not None and same_writer and before.is_last
        slot = self.first_slot + self.position
        self.steps.append(
            Step(slot, uid, writer, trajectory, is_last, not goes_on and not ended, not goes_on)
        )
        self.position = (self.position + 1) % self.capacity
        if len(self.steps) > self.capacity:
            del self.steps[0]

    def end_trajectory(self, writer: str) -> None:
        if self.steps and self.steps[-1].writer == writer:
            self.steps[-1].is_last = True

    def empty(self) -> None:
        self.steps = []
        self.position = 0

    def pieces(self, crosses_ends: bool = False) -> list[list[Step]]:
        """The live records that belong together, in order; one that died parts its neighbours."""
        pieces: list[list[Step]] = []
        before: Step | None = None
        for step in self.steps:
            if not step.is_whole:
                before = None
                continue
            parted = step.is_cut_off if crosses_ends else step.is_new
            if before is None or parted:
                pieces.append([])
            pieces[-1].append(step)
            before = step
        return pieces


class Ring:
    """A buffer of lanes."""

    def __init__(self, capacity: int, lanes: int = 1) -> None:
        self.lane_capacity = capacity // lanes
        self.lanes = [Lane(i * self.lane_capacity, self.lane_capacity) for i in range(lanes)]

    def window(self, anchor: int, unit: Unit) -> tuple[list[int], list[int]] | None:
        """Slots and validity of the window around an anchor; None where the anchor is illegal."""
        lane = self.lanes[anchor // self.lane_capacity]
        crosses = unit.boundary in (INCLUDE_RESET, STOP_AT_CUT)
        for piece in lane.pieces(crosses):
            slots = [step.slot for step in piece]
            if anchor in slots:
                return _window(lane, piece, slots, slots.index(anchor), unit)
        return None

    def legal(self, unit: Unit) -> dict[int, tuple[list[int], list[int]]]:
        """The window of every legal anchor."""
        found = {}
        for lane in self.lanes:
            for step in lane.steps:
                window = self.window(step.slot, unit)
                if window is not None:
                    found[step.slot] = window
        return found


def _window(
    lane: Lane, piece: list[Step], slots: list[int], place: int, unit: Unit
) -> tuple[list[int], list[int]] | None:
    left = len(slots) - 1 - place
    span = unit.dilation * (unit.length + unit.bootstrap - 1)
    moves = unit.boundary in (STOP, STOP_AT_CUT)
    shift = min(max(span - left, 0), place) if moves else 0
    wanted = [place + (step - unit.burn_in) * unit.dilation - shift for step in range(unit.steps)]
    inside = [min(max(want, 0), len(slots) - 1) for want in wanted]
    is_full = left >= span and place >= unit.dilation * unit.burn_in
    has_future = left >= span or piece[-1].is_last or piece[-1] is not lane.steps[-1]
    is_legal = {
        ANYTHING: True,
        FULL: is_full,
        RETURN: has_future,
        FULL_OR_WHOLE: is_full or place == 0,
    }[unit.demand]
    if not is_legal or left < unit.least:
        return None
    return [slots[i] for i in inside], [int(w == i) for w, i in zip(wanted, inside, strict=True)]


@dataclass
class Windows:
    """What `windows` fills: `steps` records an anchor."""

    steps: int
    batch: Batch
    anchors: Array
    anchor_generations: Array
    valid: Array
    weights: Array

    def of(self, array: Array) -> Array:
        """An array of the batch with a row a window."""
        return array.reshape(-1, self.steps)


def windows(
    ring: RawSegment,
    unit: Unit,
    count: int = 0,
    *,
    kind: int = UNIFORM,
    anchors: Sequence[int] | Array | None = None,
) -> tuple[Outcome, Windows]:
    """Windows around `count` drawn anchors, or around those given."""
    if anchors is not None:
        kind, count = -1, len(anchors)
    rows = count * unit.steps
    columns = {n: np.zeros((rows, *shape), dtype) for n, dtype, shape in ring.fields}
    stamps = np.full((2, rows), -7, np.int64)
    given = np.zeros((2, count), np.int64)
    if anchors is not None:
        given[0] = anchors
    drawn = Windows(
        unit.steps,
        Batch(columns, stamps[0], stamps[1], stamps[1]),
        given[0],
        given[1],
        np.full(rows, 9, np.uint8),
        np.zeros(count, np.float32),
    )
    outcome = ring.segment.windows(
        ring.rng,
        kind,
        count,
        unit.shape,
        [columns[name].ctypes.data for name, _, _ in ring.fields],
        given.ctypes.data,
        stamps[0].ctypes.data,
        stamps[1].ctypes.data,
        drawn.valid.ctypes.data,
        drawn.weights.ctypes.data,
        0,
        core.SLICE_NS,
    )
    return outcome, drawn
