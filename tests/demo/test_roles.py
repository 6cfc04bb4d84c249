"""Collector, learner and refresher for a moment each, one after the other in this process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

import shmrb
from helpers.child import emit
from helpers.procs import Children
from shmrb.demo import collector, evaluation, learner, recipe, refresher
from shmrb.demo.job import DQN, ONLOOKER, RDQN, SAC, Job
from shmrb.demo.policy import policy_of
from shmrb.demo.reports import StopRequest
from shmrb.demo.seals import Checker

CAPACITY, RECORDS, UPDATES = 1_024, 640, 3
JOBS = [
    Job("CartPole-v1", ONLOOKER),
    Job("CartPole-v1", DQN, "prioritized"),
    Job("CartPole-v1", DQN, "uniform"),
    Job("Pendulum-v1", SAC, "uniform"),
    Job("Pendulum-v1", SAC, "prioritized"),
    Job("CartPole-v1", RDQN, "uniform", hide_velocity=True),
    Job("CartPole-v1", RDQN, "prioritized", hide_velocity=True),
    Job("CartPole-v1", RDQN, "uniform", hide_velocity=True, memoryless=True),
]


class StopAfter(StopRequest):
    """Asks for the end when it was looked at so often."""

    def __init__(self, looks: int) -> None:
        self._left = looks

    @property  # type: ignore[override]
    def is_made(self) -> bool:
        self._left -= 1
        return self._left < 0

    def deferred(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """The last report of each kind."""
    found: dict[str, dict[str, Any]] = {}

    def note(kind: str, **values: Any) -> None:
        found[kind] = values

    for module in (collector, learner, refresher):
        monkeypatch.setattr(module, "report", note)
    return found


@contextlib.contextmanager
def filled(job: Job) -> Iterator[shmrb.ReplayBuffer]:
    """The buffer of a run, with what one collector wrote by the policy at the start."""
    env = recipe.make_env(job)
    settings = recipe.buffer_settings(job, env, 1)
    env.close()
    settings |= {"storage": shmrb.SharedStorage(CAPACITY), "limiter": None, "format": "numpy"}
    with shmrb.ReplayBuffer(recipe.BUFFER, **settings) as buffer:
        tree = learner.make_learner(job).tree()
        with shmrb.Parameters(recipe.POLICY, like=tree) as parameters:
            parameters.publish(tree)
        collector.collect(job, 5, StopAfter(RECORDS))
        yield buffer


@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job.learner}-{job.sampler}")
def test_collected_records_are_learned_from(job: Job, reports: dict[str, dict[str, Any]]) -> None:
    with filled(job) as buffer:
        assert reports["written"]["records"] == RECORDS
        assert len(buffer) == RECORDS
        records = buffer[:]
        assert Checker(buffer.schema, records).check() == 0
        assert (records[recipe.COLLECTOR] == 5).all()
        learner.learn(job, StopAfter(UPDATES))
        learned = reports["learned"]
        drawn = recipe.recipe_of(job.learner).batch * recipe.recipe_of(job.learner).unit.window
        assert learned["updates"] == UPDATES
        assert learned["checked"] == UPDATES * drawn
        assert learned["torn"] == learned["stale"] == 0
        priorities = buffer.stats()["priorities"]
        assert (priorities is not None) == job.is_prioritized
        if priorities is not None:
            assert priorities.beta > recipe.BETA_START
            assert priorities.total_mass != RECORDS


def test_a_policy_is_published_as_often_as_the_recipe_says(
    reports: dict[str, dict[str, Any]],
) -> None:
    job = Job("CartPole-v1", DQN)
    with filled(job):
        learner.learn(job, StopAfter(2 * recipe.recipe_of(DQN).publish_every + 1))
        # The one of `filled`, that of the start, and two more.
        assert reports["learned"]["version"] == 3


def test_records_hold_what_the_agent_remembered(reports: dict[str, dict[str, Any]]) -> None:
    job = JOBS[5]
    with filled(job) as buffer:
        records = buffer[:]
        after_end = [0, *(records["next"]["done"][:-1, 0].nonzero()[0] + 1)]
        remembers = records[recipe.STATE].any(axis=1)
        assert not remembers[after_end].any()
        assert remembers.sum() == RECORDS - len(after_end)
        assert (records[recipe.STATE_VERSION] == records[recipe.POLICY_VERSION]).all()
        # The same policy again is no news; a newer one is.
        refresher.refresh(job, StopAfter(2))
        first = reports["refreshed"]
        assert first["updated"] == first["stale"] == first["torn"] == 0
        assert first["rejected"] > 0
        learner.learn(job, StopAfter(UPDATES))
        refresher.refresh(job, StopAfter(2))
        second = reports["refreshed"]
        assert second["updated"] > 0
        assert second["torn"] == second["stale"] == 0
        assert Checker(buffer.schema, buffer[:]).check() == 0


def test_what_is_forgotten_at_once_is_not_recorded(reports: dict[str, dict[str, Any]]) -> None:
    with filled(JOBS[7]) as buffer:
        assert not buffer[:][recipe.STATE].any()


def act(jobs: list[str]) -> None:
    """All that the processes of a run do which do not learn."""
    for job in map(Job.from_argument, jobs):
        name = f"{recipe.POLICY}/{job.learner}"
        with shmrb.Parameters(name, format="numpy") as parameters:
            _, tree = parameters.latest()
        envs = [recipe.make_env(job)]
        policy = policy_of(job, envs[0].action_space, tree)
        emit("evaluated", mean=float(evaluation.evaluate(policy, envs).mean()))
    emit("modules", torch="torch" in sys.modules, refresher=refresher.__name__ in sys.modules)


@pytest.mark.long
def test_only_learners_load_torch(children: Children) -> None:
    jobs = [Job("CartPole-v1", DQN), Job("Pendulum-v1", SAC), Job("CartPole-v1", RDQN)]
    for job in jobs:
        tree = learner.make_learner(job).tree()
        with shmrb.Parameters(f"{recipe.POLICY}/{job.learner}", like=tree) as parameters:
            parameters.publish(tree)
    child = children.start(act, jobs=[job.to_argument() for job in jobs])
    returns = [child.expect("evaluated")["mean"] for _ in jobs]
    assert returns[0] > 0 > returns[1]
    assert returns[2] > 0
    assert child.expect("modules") == {"torch": False, "refresher": True}
