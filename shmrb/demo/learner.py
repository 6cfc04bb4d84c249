"""The learner process: draws batches, checks each record of them, learns, publishes its policy.

`python -m shmrb.demo.learner JOB`; an onlooker only draws, and loads no torch.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

import numpy as np

import shmrb
from shmrb.demo import recipe
from shmrb.demo.feedback import feedback_of
from shmrb.demo.job import ONLOOKER, RDQN, SAC, Job
from shmrb.demo.policy import random_net
from shmrb.demo.reports import REPORT_EVERY_S, STARTUP_S, StopRequest, report
from shmrb.demo.seals import Checker


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
        net = random_net((observation_size, 64, 64, actions), np.random.default_rng(0))
        self._tree = {"net": net, "epsilon": np.float32(1.0)}

    def update(self, batch: Any) -> Any:
        """Nothing: being drawn and checked was all."""

    def tree(self) -> dict[str, Any]:
        """The same layers each time."""
        return self._tree


def make_learner(job: Job) -> Learner:
    """The algorithm of the job, for its environment."""
    env = recipe.make_env(job)
    size, space = int(np.prod(env.observation_space.shape)), env.action_space
    env.close()
    if job.learner == SAC:
        from shmrb.demo.sac import SAC as Soft

        return Soft(size, space.low, space.high)
    actions, first = int(space.n), int(space.start)
    if job.learner == ONLOOKER:
        return Onlooker(size, actions)
    if job.learner == RDQN:
        from shmrb.demo.rdqn import RDQN as Recurrent

        return Recurrent(size, actions, first, job.memoryless)
    from shmrb.demo.dqn import DQN as Plain

    return Plain(size, actions, first)


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
    feedback = feedback_of(job, buffer)
    publish_every = recipe.recipe_of(job.learner).publish_every
    updates = stale = 0
    report_at = 0.0
    with stop.deferred():
        while not stop.is_made:
            checker.check()
            errors = learner.update(batch)
            updates += 1
            stale += feedback.give(batch, errors)
            if updates % publish_every == 0:
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
