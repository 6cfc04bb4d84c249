"""The refresher writes what the newest policy remembers over older memories, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import shmrb
from helpers.demos import as_numpy, demo_records
from shmrb.demo import recipe, refresher
from shmrb.demo.job import RDQN, Job
from shmrb.demo.policy import Floats
from shmrb.demo.recurrent import Cell
from shmrb.demo.refresher import Refreshed, Refresher
from shmrb.demo.seals import Checker

JOB = Job("CartPole-v1", RDQN)
SCHEMA = recipe.record_schema(JOB.env, JOB)
CAPACITY = 256
# Episodes of unequal length, one of them longer than a sequence.
ENDS = (3, 10, 11, 90, 130, 200, 255)


def cell(seed: int) -> Cell:
    """One of random weights."""
    torch.manual_seed(seed)
    return Cell(as_numpy(torch.nn.GRU(4, recipe.STATE_SIZE).state_dict()))


def true_memories(using: Cell, observations: Any) -> Floats:
    """What is remembered before each of the records, from the start of its episode on."""
    memories = np.zeros((CAPACITY, recipe.STATE_SIZE), np.float32)
    for row in range(1, CAPACITY):
        if row - 1 not in ENDS:
            memories[row] = using(observations[row - 1 : row], memories[row - 1 : row])[0]
    return memories


@pytest.fixture
def buffer() -> Iterator[shmrb.ReplayBuffer]:
    """A full ring of sealed records whose memories are right for `cell(1)`, of version 7."""
    with shmrb.ReplayBuffer(
        storage=shmrb.SharedStorage(CAPACITY),
        schema=SCHEMA,
        sample_unit=refresher.UNIT,
        batch_size=refresher.SEQUENCES,
        format="numpy",
    ) as rb:
        write(rb)
        yield rb


def write(buffer: shmrb.ReplayBuffer) -> None:
    records = demo_records([(0, number) for number in range(CAPACITY)], schema=SCHEMA)
    for key in ("terminated", "truncated", "done"):
        records["next"][key][:] = np.isin(np.arange(CAPACITY), ENDS)[:, None]
    records[recipe.STATE][:] = true_memories(cell(1), records["observation"])
    records[recipe.STATE_VERSION][:] = 7
    records[recipe.SEAL][:] = Checker(SCHEMA, records).seals()
    buffer.extend(records)


def test_memories_become_those_of_the_newest_policy(buffer: shmrb.ReplayBuffer) -> None:
    before = buffer[:]
    refreshing = Refresher(buffer, 0.0)
    for version in range(8, 48):
        refreshing.refresh(cell(2), version)
    after = buffer[:]
    assert Checker(SCHEMA, after).check() == 0
    assert refreshing.checker.broken == 0
    firsts = np.isin(np.arange(CAPACITY) - 1, (-1, *ENDS))
    assert (after[recipe.STATE_VERSION] > 7).sum() > CAPACITY / 2
    assert (after[recipe.STATE_VERSION][firsts] == 7).all()
    assert not after[recipe.STATE][firsts].any()
    expected = true_memories(cell(2), before["observation"])
    in_short = np.arange(CAPACITY) <= 11
    np.testing.assert_allclose(
        after[recipe.STATE][in_short], expected[in_short], rtol=1e-3, atol=1e-5
    )
    for key in ("observation", "action", recipe.NUMBER, recipe.POLICY_VERSION):
        assert (after[key] == before[key]).all()


def test_memories_of_no_older_policy_are_left_alone(buffer: shmrb.ReplayBuffer) -> None:
    before = buffer[:]
    refreshing = Refresher(buffer, 0.0)
    refreshing.refresh(cell(2), 7)
    refreshing.refresh(cell(2), 6)
    assert refreshing.refreshed.rejected > 0
    assert refreshing.refreshed == Refreshed(rejected=refreshing.refreshed.rejected)
    assert (buffer[:][recipe.STATE] == before[recipe.STATE]).all()


def test_everything_is_met_when_each_count_is_above_zero() -> None:
    assert Refreshed(updated=1, stale=2, rejected=3).has_met_all
    for missing in ("updated", "stale", "rejected"):
        assert not Refreshed(**{"updated": 1, "stale": 1, "rejected": 1} | {missing: 0}).has_met_all


def test_overwritten_records_are_left_alone(buffer: shmrb.ReplayBuffer) -> None:
    refreshing = Refresher(buffer, 0.0)

    class Overwriting:
        """A cell that is so slow that the whole ring is overwritten meanwhile."""

        def __init__(self, then: Callable[[], None]) -> None:
            self._cell, self._then = cell(2), then

        def __call__(self, observations: Any, memory: Floats) -> Floats:
            self._then()
            return self._cell(observations, memory)

    slow: Any = Overwriting(lambda: write(buffer))
    refreshing.refresh(slow, 8)
    assert refreshing.refreshed.stale > 0
    assert refreshing.refreshed == Refreshed(stale=refreshing.refreshed.stale)
    assert (buffer[:][recipe.STATE_VERSION] == 7).all()
