"""The figures of the demo, and the records that its processes share; imports no torch.

Those of the networks stand beside them, one file a learner.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import shmrb
from shmrb.demo.job import DQN, ONLOOKER, PRIORITIZED, RDQN, SAC, UNIFORM, Job
from shmrb.errors import SpecError
from shmrb.fields import Field

BUFFER = "demo/replay"
POLICY = "demo/policy"

# Records that a collector writes at a time; it also looks for a newer policy so often.
CHUNK = 64

# Prioritized draws: alpha as in Schaul et al. 2016 (arXiv:1511.05952); beta rises to its end, since
# the correction matters most when the values are nearly right.
ALPHA = 0.6
BETA_START, BETA_END, BETA_UPDATES = 0.4, 1.0, 12_000

EPSILON_START, EPSILON_END = 1.0, 0.02

# What each record carries beyond the transition: who wrote it, the how-manieth of this collector it
# is, the version of the policy that chose the action, and a checksum over all of the others.
COLLECTOR, NUMBER, POLICY_VERSION, SEAL = "collector", "number", "policy_version", "seal"
# And with a recurrent learner: what the agent remembered before the step, and the version of the
# policy that it remembered it by, which a refresher brings up to date.
STATE, STATE_VERSION = "state", "state_version"
STATE_SIZE = 64


_RECORD = shmrb.Transition()
# What a recurrent learner draws.
SEQUENCE = shmrb.Sequence(length=24, burn_in=8)


@dataclass(frozen=True)
class Recipe:
    """The figures of one learner.

    Attributes:
        capacity: records of the ring.
        batch: anchors of one update.
        samples_per_insert: loss-bearing records drawn for each that is written.
        min_size: records before the first update.
        publish_every: updates between two publications.
        sampler: how it draws unless it is told.
        unit: what an anchor becomes.
        has_lanes: whether each collector writes a lane of its own.
        actions: the kind of action space that it can learn.
        advice: environments that have it.
    """

    capacity: int
    batch: int
    samples_per_insert: float
    min_size: int
    publish_every: int
    sampler: str
    unit: shmrb.Transition | shmrb.Sequence = _RECORD
    has_lanes: bool = False
    actions: str = "Discrete"
    advice: str = "CartPole-v1 or Acrobot-v1"


# Tried on CartPole-v1 until one process alone reached the environment's threshold on every seed, at
# 56,000 to 72,000 records drawn uniformly and 50,000 to 150,000 drawn by priority; the ring is
# smaller than that, so that it wraps. Two publications are 40 records apart.
_DQN = Recipe(
    capacity=30_000,
    batch=128,
    samples_per_insert=32.0,
    min_size=1_000,
    publish_every=10,
    sampler=PRIORITIZED,
)
_ONLOOKER = dataclasses.replace(_DQN, sampler=UNIFORM)
# Pendulum-v1 is learned after 10,000 records; the ring is that of DQN, and wraps before the end.
_SAC = Recipe(
    capacity=30_000,
    batch=256,
    samples_per_insert=64.0,
    min_size=1_000,
    publish_every=10,
    sampler=UNIFORM,
    actions="Box",
    advice="Pendulum-v1",
)
# CartPole-v1 with hidden velocities is learned after 120,000 to 210,000 records, when this ring has
# wrapped. An update takes 192 of them.
_RDQN = Recipe(
    capacity=90_000,
    batch=32,
    samples_per_insert=4.0,
    min_size=5_000,
    publish_every=1,
    sampler=UNIFORM,
    unit=SEQUENCE,
    has_lanes=True,
)
_RECIPES = {ONLOOKER: _ONLOOKER, DQN: _DQN, SAC: _SAC, RDQN: _RDQN}


def recipe_of(learner: str) -> Recipe:
    """The figures of that learner."""
    return _RECIPES[learner]


def buffer_settings(job: Job, env: Any, collectors: int) -> dict[str, Any]:
    """What the buffer of a run is created with."""
    recipe = recipe_of(job.learner)
    lanes = collectors if recipe.has_lanes else 1
    sampler = (
        shmrb.PrioritizedSampler(alpha=ALPHA, beta=BETA_START)
        if job.is_prioritized
        else shmrb.RandomSampler()
    )
    return {
        "storage": shmrb.SharedStorage(recipe.capacity // lanes * lanes, lanes=lanes),
        "schema": record_schema(env, job),
        "limiter": shmrb.RateLimiter(
            min_size=recipe.min_size, samples_per_insert=recipe.samples_per_insert
        ),
        "sampler": sampler,
        "sample_unit": recipe.unit,
        "batch_size": recipe.batch,
    }


def record_schema(env: Any, job: Job) -> shmrb.Schema:
    """A transition of this environment, and the demo's stamps; the seal is the last of them."""
    stamps = [Field((name,), "int64", ()) for name in (COLLECTOR, NUMBER, POLICY_VERSION)]
    if job.is_recurrent:
        stamps += [Field((STATE,), "float32", (STATE_SIZE,)), Field((STATE_VERSION,), "int64", ())]
    stamps.append(Field((SEAL,), "int64", ()))
    return shmrb.Schema((*shmrb.schema_from_env(env).fields, *stamps))


def make_env(job: Job) -> Any:
    """The environment, as the agent sees it.

    Raises:
        SpecError: it is unknown, its observations are no Box, its actions are none that the learner
            can learn, or it has no velocities to hide.
    """
    import gymnasium

    try:
        env: Any = gymnasium.make(job.env)
    except gymnasium.error.Error as error:
        raise SpecError(f"--env {job.env}: {error}") from None
    recipe = recipe_of(job.learner)
    for what, space, kind in (
        ("observation", env.observation_space, "Box"),
        ("action", env.action_space, recipe.actions),
    ):
        if not isinstance(space, getattr(gymnasium.spaces, kind)):
            env.close()
            name = DQN if job.learner == ONLOOKER else job.learner
            raise SpecError(
                f"--env {job.env}: {name.upper()} needs a {kind} as its {what} space, this one has "
                f"{space}. Take {recipe.advice}, or another --learner."
            )
    if recipe.actions == "Box" and not env.action_space.is_bounded():
        env.close()
        raise SpecError(
            f"--env {job.env}: {job.learner.upper()} needs actions with bounds, this one has "
            f"{env.action_space}. Take {recipe.advice}."
        )
    if not job.hide_velocity:
        return env
    if not job.env.startswith("CartPole-"):
        env.close()
        raise SpecError(f"--hide-velocity knows what to hide of CartPole-v1, got --env {job.env}.")
    from shmrb.demo.hidden import HiddenVelocity

    return HiddenVelocity(env)


def epsilon_after(updates: int, over: int) -> float:
    """How often a collector acts at random, so many updates after the start.

    Args:
        updates: since then.
        over: until it is at its end.
    """
    done = min(1.0, updates / over)
    return EPSILON_START + (EPSILON_END - EPSILON_START) * done
