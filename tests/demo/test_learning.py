"""What the learner process tells the buffer about the records that it learned from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import shmrb
from helpers.demos import SCHEMA, demo_records
from shmrb.demo import recipe
from shmrb.demo.feedback import Lookout, Priorities

CAPACITY, BATCH = 64, 32


@pytest.fixture
def buffer() -> Iterator[shmrb.ReplayBuffer]:
    """A full prioritized ring."""
    with shmrb.ReplayBuffer(
        storage=shmrb.SharedStorage(CAPACITY),
        schema=SCHEMA,
        sampler=shmrb.PrioritizedSampler(alpha=1.0, beta=recipe.BETA_START, eps=0.0),
        batch_size=BATCH,
    ) as rb:
        overwrite(rb)
        yield rb


def overwrite(buffer: shmrb.ReplayBuffer, count: int = CAPACITY) -> None:
    buffer.extend(demo_records([(0, number) for number in range(count)]))


@pytest.mark.parametrize("kind", [Priorities, Lookout])
def test_only_overwritten_records_are_stale(
    buffer: shmrb.ReplayBuffer, kind: type[Priorities] | type[Lookout]
) -> None:
    feedback = kind(buffer)
    batch = buffer.sample()
    assert feedback.give(batch, torch.ones(BATCH)) == 0
    overwrite(buffer, CAPACITY // 2)
    assert feedback.give(batch, torch.ones(BATCH)) == int((batch["index"] < CAPACITY // 2).sum())
    overwrite(buffer)
    assert feedback.give(batch, torch.ones(BATCH)) == BATCH


def test_errors_become_priorities(buffer: shmrb.ReplayBuffer) -> None:
    batch = buffer.sample()
    Priorities(buffer).give(batch, batch["index"].float())
    assert (buffer.sampler.priorities_of(batch["index"]) == batch["index"]).all()


def test_beta_rises_with_the_updates(buffer: shmrb.ReplayBuffer) -> None:
    feedback = Priorities(buffer)
    batch = buffer.sample()
    betas = []
    for _ in range(3):
        feedback.give(batch, torch.ones(BATCH))
        betas.append(buffer.sampler.beta)
    assert recipe.BETA_START < betas[0] < betas[1] < betas[2] < recipe.BETA_END
