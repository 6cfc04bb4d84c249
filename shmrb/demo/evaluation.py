"""The evaluation process: how good the newest policy is, without chance, every few seconds.

`python -m shmrb.demo.evaluation JOB SECONDS`; imports no torch.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shmrb
from shmrb.demo import recipe
from shmrb.demo.job import Job
from shmrb.demo.policy import Policy, policy_of
from shmrb.demo.reports import STARTUP_S, StopRequest, report

EPISODES = 20
# The first of the fixed seeds; far from those of the collectors.
FIRST_SEED = 1_000_000


def make_envs(job: Job) -> list[Any]:
    """One environment an episode."""
    return [recipe.make_env(job) for _ in range(EPISODES)]


def evaluate(policy: Policy, envs: list[Any]) -> NDArray[np.float64]:
    """The return of one greedy episode in each environment, always from the same starts."""
    observations = np.stack(
        [env.reset(seed=FIRST_SEED + place)[0] for place, env in enumerate(envs)]
    )
    returns = np.zeros(len(envs))
    memory = policy.begin(len(envs))
    running = list(range(len(envs)))
    while running:
        actions, memory[running] = policy.best(observations[running], memory[running])
        still = []
        for place, action in zip(running, actions, strict=True):
            following, reward, terminated, truncated, _ = envs[place].step(action)
            observations[place] = following
            returns[place] += reward
            if not (terminated or truncated):
                still.append(place)
        running = still
    return returns


def evaluate_regularly(job: Job, period_s: float) -> None:
    """Evaluate and report, again and again, until the process is ended."""
    envs = make_envs(job)
    space = envs[0].action_space
    parameters = shmrb.Parameters(
        recipe.POLICY, timeout=STARTUP_S, format="numpy", client_name="evaluation"
    )
    version, tree = parameters.latest(timeout=STARTUP_S)
    due = time.monotonic() + period_s
    while True:
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due + period_s, time.monotonic())
        started = time.monotonic()
        newer, fresh = parameters.latest(newer_than=version)
        if fresh is not None:
            version, tree = newer, fresh
        returns = evaluate(policy_of(job, space, tree), envs)
        report("evaluated", started=started, version=version, mean=float(returns.mean()))


if __name__ == "__main__":
    StopRequest()
    evaluate_regularly(Job.from_argument(sys.argv[1]), float(sys.argv[2]))
