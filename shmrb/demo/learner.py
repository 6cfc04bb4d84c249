"""The learner process: draws batches, checks each record of them, learns, publishes its policy.

`python -m shmrb.demo.learner JOB`; an onlooker only draws, and loads no torch.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

import numpy as np

import shmrb
from shmrb.batches import GENERATION, INDEX
from shmrb.demo import recipe
from shmrb.demo.job import ONLOOKER, Job
from shmrb.demo.policy import random_tree
from shmrb.demo.reports import StopRequest, report
from shmrb.demo.seals import Checker

STARTUP_S = 60.0
REPORT_EVERY_S = 0.25


class Learner(Protocol):
    """What the process needs of an algorithm."""

    def update(self, batch: Any) -> Any:
        """Learn from one batch, as the buffer gives it; how wrong it was about each record."""

    def tree(self) -> dict[str, Any]:
        """What the collectors need in order to act."""


class Onlooker:
    """Learns nothing: its policy is random for ever.

    Args:
        observation_size: numbers in one observation.
        actions: how many there are.
    """

    def __init__(self, observation_size: int, actions: int) -> None:
        chance = np.random.default_rng(0)
        self._tree = random_tree((observation_size, 64, 64, actions), 1.0, chance)

    def update(self, batch: Any) -> Any:
        """Nothing: being drawn and checked was all."""

    def tree(self) -> dict[str, Any]:
        """The same layers each time."""
        return self._tree


class Feedback(Protocol):
    """What is told the buffer about the records of a batch that was learned from."""

    def give(self, batch: Any, errors: Any) -> int:
        """Tell it; how many of the records were overwritten meanwhile."""


class Priorities:
    """The errors become priorities, those of records that are still there.

    Args:
        buffer: a prioritized one.
    """

    def __init__(self, buffer: shmrb.ReplayBuffer) -> None:
        self._buffer = buffer
        self._beta = shmrb.LinearScheduler(
            buffer, "beta", recipe.BETA_END, num_steps=recipe.BETA_UPDATES
        )

    def give(self, batch: Any, errors: Any) -> int:
        """Set them; how many were refused since their records are gone."""
        self._beta.step()
        return self._buffer.update_priority(batch, errors).stale_count


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


def make_learner(job: Job) -> Learner:
    """The algorithm of the job, for its environment."""
    env = recipe.make_env(job.env)
    size = int(np.prod(env.observation_space.shape))
    actions, first = int(env.action_space.n), int(env.action_space.start)
    env.close()
    if job.learner == ONLOOKER:
        return Onlooker(size, actions)
    from shmrb.demo.dqn import DQN as Algorithm

    return Algorithm(size, actions, first)


def learn(job: Job, stop: StopRequest) -> None:
    """Learn until somebody asks for the end."""
    learner = make_learner(job)
    form = "numpy" if job.learner == ONLOOKER else "torch"
    options: dict[str, Any] = {"format": form, "client_name": "learner"}
    parameters = shmrb.Parameters(recipe.POLICY, like=learner.tree(), **options)
    version = parameters.publish(learner.tree())
    buffer = shmrb.attach(recipe.BUFFER, timeout=STARTUP_S, **options)
    batch = buffer.sample(timeout=STARTUP_S)
    assert buffer.schema is not None
    checker = Checker(buffer.schema, batch)
    feedback: Feedback = Priorities(buffer) if job.is_prioritized else Lookout(buffer)
    updates = stale = 0
    report_at = 0.0
    with stop.deferred():
        while not stop.is_made:
            checker.check()
            errors = learner.update(batch)
            updates += 1
            stale += feedback.give(batch, errors)
            if updates % recipe.PUBLISH_EVERY == 0:
                version = parameters.publish(learner.tree())
            if time.monotonic() >= report_at:
                report_at = time.monotonic() + REPORT_EVERY_S
                _report(updates, version, checker, stale)
            buffer.sample(out=batch)
        _report(updates, version, checker, stale)
    buffer.close()
    parameters.close()


def _report(updates: int, version: int, checker: Checker, stale: int) -> None:
    report(
        "learned",
        updates=updates,
        version=version,
        checked=checker.checked,
        torn=checker.broken,
        stale=stale,
    )


if __name__ == "__main__":
    learn(Job.from_argument(sys.argv[1]), StopRequest())
