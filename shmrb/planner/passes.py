"""Sampling without replacement: each live slot once a pass (floor F4).

The pass belongs to one handle. As in TorchRL it starts anew when the number of records changes, and
its last batch is short unless `drop_last`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shmrb.errors import SpecError
from shmrb.planner.populations import Slots, slots_of
from shmrb.spec import SamplerWithoutReplacement, SliceSamplerWithoutReplacement

# As `core.Segment.runs` gives them: first ticket, records, number, whether it ended.
Run = tuple[int, int, int, bool]


class Pass:
    """The order in which one handle goes through the slots.

    Attributes:
        ran_out: the pass is over; the next `take` starts another one.
    """

    def __init__(self, sampler: SamplerWithoutReplacement) -> None:
        # numpy loads it when it is used: another thread could hold the import lock over a fork.
        from numpy.random import default_rng

        self.sampler = sampler
        self._generator = default_rng
        self.restart()

    def restart(self) -> None:
        """The next `take` starts a pass."""
        self.ran_out = False
        self._order: Slots = np.empty(0, dtype=np.int64)
        self._known = -1
        self._next = self._taken_from = 0

    def take(self, windows: list[int], lane_capacity: int, count: int, seed: int) -> Slots:
        """The next `count` slots of the pass, fewer at its end.

        Args:
            windows: live positions of each lane now, as `populations.windows` gives them.
            lane_capacity: slots of a lane.
            count: how many are wanted.
            seed: shuffles a pass that starts here.

        Raises:
            SpecError: with `drop_last`, no batch of that size fits.
        """
        size = sum(windows)
        drop_last = self.sampler.drop_last
        if drop_last and size < count:
            raise SpecError(
                f"The batch size ({count}) is greater than the storage capacity ({size}). "
                "This makes it impossible to return a sample without repeating indices. Consider "
                "changing the sampler class or turn the 'drop_last' argument to False."
            )
        if size != self._known or self._next >= len(self._order):
            self._start(slots_of(windows, lane_capacity), seed)
        taken = self._order[self._next : self._next + count]
        self._taken_from = self._next
        self._next += len(taken)
        left = len(self._order) - self._next
        self.ran_out = left < count if drop_last else left == 0
        if self.ran_out:
            self._next = len(self._order)
        return taken

    def give_back(self) -> None:
        """Undoes the last `take`, whose records were not delivered."""
        self._next = self._taken_from
        self.ran_out = False

    def _start(self, slots: Slots, seed: int) -> None:
        self._known = len(slots)
        self._next = 0
        shuffle = self.sampler.shuffle
        self._order = self._generator(seed).permutation(slots) if shuffle else slots


class TrajectoryPass:
    """The order in which one handle goes through the trajectories.

    A pass goes through those that are there when it starts.

    Attributes:
        ran_out: the pass is over; the next `take` starts another one.

    Args:
        sampler: the handle's.
        lane_capacity: slots of a lane.
    """

    def __init__(self, sampler: SliceSamplerWithoutReplacement, lane_capacity: int) -> None:
        self.sampler = sampler
        self.lane_capacity = lane_capacity
        self.restart()

    def restart(self) -> None:
        """The next `take` starts a pass."""
        self.ran_out = False
        # Lane, first ticket and records of each.
        self._order: Slots = np.empty((0, 3), dtype=np.int64)
        self._next = self._taken_from = 0
        self._starts: Slots = np.empty((0, 2), dtype=np.int64)

    def take(
        self, runs: Callable[[], list[list[Run]]], count: int, length: int, seed: int
    ) -> Slots:
        """A start in each of the next `count` trajectories, fewer at the end of the pass.

        Args:
            runs: the runs of every lane, asked for where a pass starts.
            count: how many are wanted.
            length: records of a slice.
            seed: of the starts, and of the order of a pass that starts here.

        Raises:
            SpecError: with `drop_last`, there are not that many trajectories.
        """
        draws = np.random.default_rng(seed)
        if self._next >= len(self._order):
            self._start(runs(), length, draws)
        drop_last = self.sampler.drop_last
        if drop_last and 0 < len(self._order) < count:
            raise SpecError(
                f"The batch size of {count} slices is greater than the number of trajectories "
                f"({len(self._order)}), so that with drop_last=True there would be none. Take a "
                "smaller batch, or drop_last=False."
            )
        taken = self._order[self._next : self._next + count]
        self._taken_from = self._next
        self._next += len(taken)
        left = len(self._order) - self._next
        self.ran_out = left < count if drop_last else left == 0
        if self.ran_out:
            self._next = len(self._order)
        lanes, firsts, records = taken.T
        spare = np.maximum(records - length, 0)
        tickets = firsts + draws.integers(spare, endpoint=True)
        self._starts = np.stack([lanes, tickets], axis=1)
        return np.asarray(lanes * self.lane_capacity + tickets % self.lane_capacity, np.int64)

    def held(self, heads: list[int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which of the starts last taken are still those of their trajectory, under these heads."""
        lanes, tickets = self._starts.T
        return np.asarray(tickets >= np.asarray(heads)[lanes] - self.lane_capacity)

    def give_back(self) -> None:
        """Undoes the last `take`, whose records were not delivered."""
        self._next = self._taken_from
        self.ran_out = False

    def _start(self, lanes: list[list[Run]], length: int, draws: np.random.Generator) -> None:
        self._next = 0
        least = length if self.sampler.strict_length else 1
        order = np.array(
            [
                (lane, first, records)
                for lane, runs in enumerate(lanes)
                for first, records, _, _ in runs
                if records >= least
            ],
            dtype=np.int64,
        ).reshape(-1, 3)
        self._order = draws.permutation(order) if self.sampler.shuffle else order
