"""Sampling without replacement: each live slot once a pass (floor F4).

The pass belongs to one handle. As in TorchRL it starts anew when the number of records changes, and
its last batch is short unless `drop_last`.
"""

from __future__ import annotations

import numpy as np

from shmrb.errors import SpecError
from shmrb.planner.populations import Slots, slots_of
from shmrb.spec import SamplerWithoutReplacement


class Pass:
    """The order in which one handle goes through the slots.

    Attributes:
        ran_out: the pass is over; the next `take` starts another one.
    """

    def __init__(self, sampler: SamplerWithoutReplacement) -> None:
        self.sampler = sampler
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
        self._order = np.random.default_rng(seed).permutation(slots) if shuffle else slots
