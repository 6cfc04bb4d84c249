"""Anchors without replacement: every record once a pass, or every trajectory (floor F5)."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from shmrb.attachment import Attachment
from shmrb.core import Segment
from shmrb.planner.passes import Pass, TrajectoryPass
from shmrb.planner.populations import Slots, windows
from shmrb.spec import SliceSamplerWithoutReplacement
from shmrb.windowing import Flags


class Order(Protocol):
    """What chooses anchors without replacement."""

    @property
    def ran_out(self) -> bool:
        """Whether the pass is over."""

    def choose(self, segment: Segment, count: int, length: int) -> Slots | None:
        """The next anchors, at most `count`; None when there is no record."""

    def give_back(self) -> None:
        """Undoes the last choice, whose records were not delivered."""

    def restart(self) -> None:
        """Begins anew."""

    def hold(self, segment: Segment, anchors: Slots) -> Flags:
        """Which of the chosen anchors are still what was chosen."""


class SlotOrder:
    """Every record once a pass.

    Args:
        attachment: the handle's.
        order: the pass.
    """

    def __init__(self, attachment: Attachment, order: Pass) -> None:
        self._attachment = attachment
        self._order = order

    def restart(self) -> None:
        """Begins anew."""
        self._order.restart()

    def give_back(self) -> None:
        """Undoes the last choice."""
        self._order.give_back()

    @property
    def ran_out(self) -> bool:
        """Whether the pass is over."""
        return self._order.ran_out

    def choose(self, segment: Segment, count: int, length: int) -> Slots | None:
        """The next slots of the pass."""
        lane_capacity = self._attachment.spec.lane_capacity
        live = windows(segment, lane_capacity)
        if sum(live) == 0:
            return None
        return self._order.take(live, lane_capacity, count, self._attachment.rng.next())

    def hold(self, segment: Segment, anchors: Slots) -> Flags:
        """A slot that was overwritten meanwhile has a record all the same."""
        return np.ones(len(anchors), np.bool_)


class TrajectoryOrder:
    """Every trajectory once a pass, each from a random start.

    Args:
        attachment: the handle's.
        sampler: the handle's.
    """

    def __init__(self, attachment: Attachment, sampler: SliceSamplerWithoutReplacement) -> None:
        self._attachment = attachment
        self._pass = TrajectoryPass(sampler, attachment.spec.lane_capacity)

    def restart(self) -> None:
        """Begins anew."""
        self._pass.restart()

    def give_back(self) -> None:
        """Undoes the last choice."""
        self._pass.give_back()

    @property
    def ran_out(self) -> bool:
        """Whether the pass is over."""
        return self._pass.ran_out

    def choose(self, segment: Segment, count: int, length: int) -> Slots | None:
        """A start in each of the next trajectories of the pass."""
        lanes = range(self._attachment.spec.lanes)
        if sum(windows(segment, self._attachment.spec.lane_capacity)) == 0:
            return None
        seed = self._attachment.rng.next()
        return self._pass.take(lambda: [segment.runs(lane) for lane in lanes], count, length, seed)

    def hold(self, segment: Segment, anchors: Slots) -> Flags:
        """Whether no other trajectory's records have taken the place of a chosen start."""
        return self._pass.held([lane["head"] for lane in segment.lanes()])
