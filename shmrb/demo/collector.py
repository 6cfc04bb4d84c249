"""A collector process: steps one environment with the newest policy and writes what happens.

`python -m shmrb.demo.collector JOB NUMBER`; imports no torch.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import shmrb
from shmrb.demo import recipe
from shmrb.demo.job import Job
from shmrb.demo.policy import policy_of
from shmrb.demo.reports import STARTUP_S, StopRequest, report
from shmrb.demo.seals import Stamper


def collect(job: Job, number: int, stop: StopRequest) -> None:
    """Write records until somebody asks for the end.

    Args:
        job: of the run.
        number: which collector this is; no two of a run share one.
        stop: when to end.
    """
    env = recipe.make_env(job)
    label = f"collector {number}"
    options: dict[str, Any] = {"timeout": STARTUP_S, "format": "numpy", "client_name": label}
    buffer = shmrb.attach(recipe.BUFFER, **options)
    parameters = shmrb.Parameters(recipe.POLICY, **options)
    version, tree = parameters.latest(timeout=STARTUP_S)
    policy = policy_of(job, env.action_space, tree)
    assert buffer.schema is not None
    stamper = Stamper(buffer.schema)
    chance = random.Random(number)
    records = 0
    total, returns = 0.0, []
    observation, _ = env.reset(seed=number)
    remembered: dict[str, Any] = {}
    (memory,) = blank = policy.begin(1)
    with stop.deferred():
        with buffer.producer(chunk=recipe.CHUNK, autoreset="disabled") as producer:
            while not stop.is_made:
                if job.is_recurrent:
                    remembered = {recipe.STATE: memory, recipe.STATE_VERSION: version}
                action, memory = policy.act(observation, memory, chance)
                following, reward, terminated, truncated, info = env.step(action)
                done = terminated or truncated
                ends = (terminated, truncated, done)
                stamps = (number, records, version, *remembered.values())
                values = (observation, action, following, reward, *ends, *stamps)
                producer.step(
                    observation,
                    action,
                    reward,
                    following,
                    terminated,
                    truncated,
                    info,
                    collector=number,
                    number=records,
                    policy_version=version,
                    seal=stamper.seal(values),
                    **remembered,
                )
                records += 1
                total += float(reward)
                observation = following
                if done:
                    returns.append(total)
                    total = 0.0
                    observation, _ = env.reset()
                    memory = blank[0]
                if records % recipe.CHUNK == 0:
                    producer.flush()
                    # Only now: a record counts as written when the call that wrote it has returned.
                    report("written", records=records, returns=returns)
                    returns = []
                    newer, fresh = parameters.latest(newer_than=version)
                    if fresh is not None:
                        version, policy = newer, policy_of(job, env.action_space, fresh)
        report("written", records=records, returns=returns)
    parameters.close()
    buffer.close()
    env.close()


if __name__ == "__main__":
    collect(Job.from_argument(sys.argv[1]), int(sys.argv[2]), StopRequest())
