"""The oldest and the newest records: which slots they are in (floor F4)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shmrb.core import Segment
from shmrb.planner.populations import Slots


class End(NamedTuple):
    """Records at one end: their slots, and the tickets under which they lie there."""

    slots: Slots
    tickets: Slots

    def still_there(self, segment: Segment, lane_capacity: int) -> npt.NDArray[np.bool_]:
        """Which of them the ring has not overwritten, and `empty` not taken away."""
        oldest = np.array([lane["head"] - _live(lane, lane_capacity) for lane in segment.lanes()])
        if len(oldest) == 0:
            return np.zeros(len(self.slots), np.bool_)
        kept: npt.NDArray[np.bool_] = self.tickets >= oldest[self.slots // lane_capacity]
        return kept


def end_of(segment: Segment, lane_capacity: int, count: int, newest: bool) -> End:
    """At most `count` records under live tickets: the oldest first, or the newest first.

    Lanes have no common order: the first of each come first, then the second of each.
    """
    empty = np.empty(0, np.int64)
    ranks, slots, tickets = [empty], [empty], [empty]
    for number, lane in enumerate(segment.lanes()):
        head, live = lane["head"], _live(lane, lane_capacity)
        rank = np.arange(min(live, count), dtype=np.int64)
        ranks.append(rank)
        tickets.append(head - 1 - rank if newest else head - live + rank)
        slots.append(number * lane_capacity + tickets[-1] % lane_capacity)
    order = np.argsort(np.concatenate(ranks), kind="stable")[:count]
    return End(np.concatenate(slots)[order], np.concatenate(tickets)[order])


def _live(lane: dict[str, Any], lane_capacity: int) -> int:
    live: int = max(0, min(lane_capacity, lane["head"] - lane["floor"]))
    return live
