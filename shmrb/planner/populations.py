"""Which slots are there: the live positions of every lane (floor F4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shmrb.core import Segment

Slots = npt.NDArray[np.int64]


def windows(segment: Segment, lane_capacity: int) -> list[int]:
    """Live tickets of each lane, holes and writes in flight included.

    They lie in its first positions: `empty` moves a lane's floor to a multiple of its capacity.
    """
    return [max(0, min(lane_capacity, lane["head"] - lane["floor"])) for lane in _lanes(segment)]


def slots_of(windows: list[int], lane_capacity: int) -> Slots:
    """The first `windows[lane]` slots of each lane, ascending."""
    parts = [
        np.arange(lane * lane_capacity, lane * lane_capacity + live, dtype=np.int64)
        for lane, live in enumerate(windows)
    ]
    return np.concatenate(parts)


def live_slots(segment: Segment, lane_capacity: int) -> Slots:
    """The slots under live tickets, ascending."""
    return slots_of(windows(segment, lane_capacity), lane_capacity)


def chronological_slots(segment: Segment, lane_capacity: int) -> Slots:
    """The slots under live tickets, lane by lane, each lane's oldest record first."""
    parts = []
    for number, lane in enumerate(_lanes(segment)):
        head = lane["head"]
        live = max(0, min(lane_capacity, head - lane["floor"]))
        tickets = np.arange(head - live, head, dtype=np.int64)
        parts.append(number * lane_capacity + tickets % lane_capacity)
    return np.concatenate(parts)


def _lanes(segment: Segment) -> list[dict[str, Any]]:
    lanes: list[dict[str, Any]] = segment.lanes()
    return lanes
