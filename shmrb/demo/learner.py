"""The learner process: draws batches, checks each record of them, learns, publishes its policy.

`python -m shmrb.demo.learner ENV KIND`, where KIND is "dqn", or "onlooker", which only draws and
loads no torch.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

import numpy as np

import shmrb
from shmrb.demo import recipe
from shmrb.demo.policy import random_tree
from shmrb.demo.reports import StopRequest, report
from shmrb.demo.seals import Checker, leaf_of

DQN, ONLOOKER = "dqn", "onlooker"

STARTUP_S = 60.0
REPORT_EVERY_S = 0.25


class Learner(Protocol):
    """What the process needs of an algorithm."""

    def update(self, batch: Any) -> None:
        """Learn from one batch, as the buffer gives it."""

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

    def update(self, batch: Any) -> None:
        """Nothing: being drawn and checked was all."""

    def tree(self) -> dict[str, Any]:
        """The same layers each time."""
        return self._tree


def make_learner(kind: str, env_id: str) -> Learner:
    """The algorithm of that name for this environment."""
    env = recipe.make_env(env_id)
    size = int(np.prod(env.observation_space.shape))
    actions, first = int(env.action_space.n), int(env.action_space.start)
    env.close()
    if kind == ONLOOKER:
        return Onlooker(size, actions)
    from shmrb.demo.dqn import DQN as Algorithm

    return Algorithm(size, actions, first)


def learn(env_id: str, kind: str, stop: StopRequest) -> None:
    """Learn until somebody asks for the end."""
    learner = make_learner(kind, env_id)
    form = "numpy" if kind == ONLOOKER else "torch"
    options: dict[str, Any] = {"format": form, "client_name": "learner"}
    parameters = shmrb.Parameters(recipe.POLICY, like=learner.tree(), **options)
    version = parameters.publish(learner.tree())
    buffer = shmrb.attach(recipe.BUFFER, timeout=STARTUP_S, **options)
    batch = buffer.sample(timeout=STARTUP_S)
    assert buffer.schema is not None
    checker = Checker(buffer.schema, batch)
    drawn = leaf_of(batch, ("index_generation",))
    updates = stale = 0
    report_at = 0.0
    with stop.deferred():
        while not stop.is_made:
            checker.check()
            learner.update(batch)
            updates += 1
            # Records that were overwritten while the learner was at work on them.
            now = leaf_of({"now": buffer.generations_of(batch["index"])}, ("now",))
            stale += int(np.count_nonzero(now != drawn))
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
    learn(sys.argv[1], sys.argv[2], StopRequest())
