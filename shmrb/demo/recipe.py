"""The figures of the demo, and the records that its processes share; imports no torch.

The figures were tried on CartPole-v1 until one process alone reached the environment's threshold on
every seed, at 56,000 to 72,000 records.
"""

from __future__ import annotations

from typing import Any

import shmrb
from shmrb.errors import SpecError
from shmrb.fields import Field

BUFFER = "demo/replay"
POLICY = "demo/policy"

CAPACITY = 30_000  # less than a run writes, so that the ring wraps
BATCH = 128
SAMPLES_PER_INSERT = 32.0
MIN_SIZE = 1_000

EPSILON_START, EPSILON_END, EPSILON_UPDATES = 1.0, 0.02, 3_000

# Prioritized draws: alpha as in Schaul et al. 2016 (arXiv:1511.05952); beta rises to its end, since
# the correction matters most when the values are nearly right.
ALPHA = 0.6
BETA_START, BETA_END, BETA_UPDATES = 0.4, 1.0, 12_000

# Records that a collector writes at a time; it also looks for a newer policy so often.
CHUNK = 64
# Updates between two publications: 40 records at 32 samples an insert.
PUBLISH_EVERY = 10

# What each record carries beyond the transition: who wrote it, the how-manieth of this collector it
# is, the version of the policy that chose the action, and a checksum over all of the others.
COLLECTOR, NUMBER, POLICY_VERSION, SEAL = "collector", "number", "policy_version", "seal"
STAMPS = (COLLECTOR, NUMBER, POLICY_VERSION, SEAL)


def record_schema(env: Any) -> shmrb.Schema:
    """A transition of this environment, and the demo's stamps."""
    stamps = tuple(Field((name,), "int64", ()) for name in STAMPS)
    return shmrb.Schema((*shmrb.schema_from_env(env).fields, *stamps))


def make_env(env_id: str) -> Any:
    """The environment, if the demo's learner can learn it.

    Raises:
        SpecError: it is unknown, its observations are no Box, or its actions cannot be counted.
    """
    import gymnasium

    try:
        env = gymnasium.make(env_id)
    except gymnasium.error.Error as error:
        raise SpecError(f"--env {env_id}: {error}") from None
    box, discrete = gymnasium.spaces.Box, gymnasium.spaces.Discrete
    for what, space, kind in (
        ("observation", env.observation_space, box),
        ("action", env.action_space, discrete),
    ):
        if not isinstance(space, kind):
            env.close()
            raise SpecError(
                f"--env {env_id}: DQN needs a {kind.__name__} as its {what} space, this one has "
                f"{space}. Take CartPole-v1 or Acrobot-v1."
            )
    return env


def epsilon_after(updates: int) -> float:
    """How often a collector acts at random, so many updates after the start."""
    done = min(1.0, updates / EPSILON_UPDATES)
    return EPSILON_START + (EPSILON_END - EPSILON_START) * done
