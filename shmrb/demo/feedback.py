"""What a learner tells the buffer about the records that it learned from."""

from __future__ import annotations

from typing import Any, Protocol

import shmrb
from shmrb.batches import GENERATION, INDEX
from shmrb.demo import recipe
from shmrb.demo.job import Job


class Feedback(Protocol):
    """One of the two below."""

    def give(self, batch: Any, errors: Any) -> int:
        """Tell it; how many of the records were overwritten meanwhile."""


class Priorities:
    """The errors become priorities, those of records that are still there.

    Args:
        buffer: a prioritized one.
        window: records of one anchor, whose priority theirs become.
    """

    def __init__(self, buffer: shmrb.ReplayBuffer, window: int = 1) -> None:
        self._buffer = buffer
        self._window = window
        self._beta = shmrb.LinearScheduler(
            buffer, "beta", recipe.BETA_END, num_steps=recipe.BETA_UPDATES
        )

    def give(self, batch: Any, errors: Any) -> int:
        """Set them; how many were refused since their records are gone."""
        self._beta.step()
        # Each record of a window has the verdict of its anchor.
        return self._buffer.update_priority(batch, errors).stale_count // self._window


class Lookout:
    """Tells the buffer nothing, and only counts the records that are gone.

    Args:
        buffer: any.
    """

    def __init__(self, buffer: shmrb.ReplayBuffer) -> None:
        self._buffer = buffer

    def give(self, batch: Any, errors: Any) -> int:
        """How many were overwritten meanwhile."""
        now = self._buffer.generations_of(batch[INDEX])
        return int((now != batch[GENERATION]).sum())


def feedback_of(job: Job, buffer: shmrb.ReplayBuffer) -> Feedback:
    """That of a run."""
    if job.is_prioritized:
        return Priorities(buffer, recipe.recipe_of(job.learner).unit.window)
    return Lookout(buffer)
