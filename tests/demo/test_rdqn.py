"""What recurrent DQN makes of sequences, against a network that is stepped record by record."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from shmrb.demo import recipe
from shmrb.demo.rdqn import DISCOUNT, RDQN

STEPS, BURN_IN = recipe.SEQUENCE.window, recipe.SEQUENCE.burn_in
# By sequence: its first real record and the one behind its last.
REAL = ((0, STEPS), (5, STEPS), (BURN_IN, BURN_IN + 3), (0, STEPS - 6), (BURN_IN, BURN_IN + 1))


def sequences(seed: int) -> TensorDict:
    """A batch as `sample` gives it: what is no record repeats the nearest one of its sequence."""
    chance = torch.Generator().manual_seed(seed)
    steps = torch.arange(STEPS)
    places = torch.cat(
        [STEPS * row + steps.clamp(first, end - 1) for row, (first, end) in enumerate(REAL)]
    )
    is_real = torch.cat([(steps >= first) & (steps < end) for first, end in REAL])
    count = len(places)
    records = {
        "observation": torch.randn(count, 3, generator=chance)[places],
        "action": torch.randint(0, 2, (count,), generator=chance)[places],
        recipe.STATE: torch.randn(count, recipe.STATE_SIZE, generator=chance)[places],
        "next": {
            "observation": torch.randn(count, 3, generator=chance)[places],
            "reward": 3 * torch.randn(count, 1, generator=chance)[places],
            "terminated": (torch.rand(count, 1, generator=chance) < 0.2)[places],
        },
        "validity_mask": is_real,
    }
    return TensorDict(records, [count])


def expected_errors(learner: RDQN, batch: Any, is_memoryless: bool) -> Tensor:
    """One record after the other, each sequence by itself."""
    errors = torch.zeros(len(batch))
    for row, (first, end) in enumerate(REAL):
        states = [batch[recipe.STATE][row * STEPS]] * 2
        for step in range(first, end):
            place = row * STEPS + step
            record = batch[place]
            after = record["next"]
            worth = []
            for which, net in enumerate((learner.online, learner._target)):
                if is_memoryless:
                    states[which] = torch.zeros(recipe.STATE_SIZE)
                _, state = net.cell(record["observation"][None], states[which][None])
                states[which] = state[0]
                remembered = torch.zeros_like(state) if is_memoryless else state
                _, following = net.cell(after["observation"][None], remembered)
                worth.append((net.net(state)[0], net.net(following)[0]))
            if step < BURN_IN:
                continue
            ahead = worth[1][1][worth[0][1].argmax()] * ~after["terminated"]
            goal = after["reward"] + DISCOUNT * ahead
            errors[place] = (worth[0][0][record["action"]] - goal).abs()
    return errors


@pytest.mark.parametrize("is_memoryless", [False, True])
@torch.no_grad()
def test_errors_are_those_of_single_steps(is_memoryless: bool) -> None:
    learner = RDQN(3, actions=2, memoryless=is_memoryless)
    with torch.enable_grad():
        learner.update(sequences(1))
    batch = sequences(2)
    expected = expected_errors(learner, batch, is_memoryless)
    with torch.enable_grad():
        found = learner.update(batch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert ((found > 0) == (expected > 0)).all()


def test_only_what_carries_loss_is_learned_from() -> None:
    plain, altered = RDQN(3, actions=2), RDQN(3, actions=2)
    batch, other = sequences(3), sequences(3)
    step = torch.arange(STEPS).repeat(len(REAL))
    idle = ~batch["validity_mask"] | (step < BURN_IN)
    other["next", "reward"][idle] += 100.0
    other["action"][idle] = 1 - other["action"][idle]
    other["next", "observation"][idle] += 1.0
    plain.update(batch)
    altered.update(other)
    for leaf, same in zip(plain.online.leaves, altered.online.leaves, strict=True):
        torch.testing.assert_close(leaf, same)


def test_weights_count_by_sequence() -> None:
    plain, weighted = RDQN(3, actions=2), RDQN(3, actions=2)
    batch, other = sequences(4), sequences(4)
    first = torch.arange(len(batch)) < STEPS
    other["priority_weight"] = first.float()
    other["next", "reward"][~first] += 100.0
    weighted.update(other)
    # Only the first sequence counts: alone it makes a gradient of the same direction.
    batch["validity_mask"] &= first
    plain.update(batch)
    gradients = [
        torch.cat([leaf.grad.flatten() for leaf in learner.online.leaves])
        for learner in (plain, weighted)
    ]
    directions = [gradient / gradient.norm() for gradient in gradients]
    torch.testing.assert_close(*directions, rtol=1e-3, atol=1e-5)


def test_it_remembers() -> None:
    """The last action is worth what was seen three steps before."""
    learner = RDQN(1, actions=2)
    chance = torch.Generator().manual_seed(5)
    count = 16
    for _ in range(60):
        sign = 2.0 * torch.randint(0, 2, (count, 1), generator=chance) - 1
        observation = torch.zeros(count, STEPS, 1)
        observation[:, BURN_IN] = sign
        is_real = torch.zeros(count, STEPS, dtype=torch.bool)
        is_real[:, BURN_IN : BURN_IN + 4] = True
        reward = torch.zeros(count, STEPS, 1)
        reward[:, BURN_IN + 3] = sign
        ends = torch.zeros(count, STEPS, 1, dtype=torch.bool)
        ends[:, BURN_IN + 3] = True
        records = {
            "observation": observation,
            "action": torch.zeros(count, STEPS, dtype=torch.int64),
            recipe.STATE: torch.zeros(count, STEPS, recipe.STATE_SIZE),
            "next": {
                "observation": torch.zeros(count, STEPS, 1),
                "reward": reward,
                "terminated": ends,
            },
            "validity_mask": is_real,
        }
        batch = TensorDict(records, [count, STEPS]).reshape(-1)
        errors = learner.update(batch).view(count, STEPS)[:, BURN_IN + 3]
    assert errors.max() < 0.5
