"""What soft actor-critic makes of rewards, ends and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from shmrb.demo.sac import SAC

LOW, HIGH = np.array([-2.0], np.float32), np.array([4.0], np.float32)


def batch_of(seed: int, count: int = 64) -> TensorDict:
    """Records of single steps whose reward is greatest for action 2.5."""
    chance = torch.Generator().manual_seed(seed)
    action = 6 * torch.rand(count, 1, generator=chance) - 2
    records = {
        "observation": torch.randn(count, 3, generator=chance),
        "action": action,
        "next": {
            "observation": torch.randn(count, 3, generator=chance),
            "reward": -5 * (action - 2.5).square(),
            "terminated": torch.ones(count, 1, dtype=torch.bool),
        },
    }
    return TensorDict(records, [count])


def leaves_of(learner: SAC) -> list[Any]:
    return [leaf.detach().clone() for leaf in learner.critics.leaves]


def test_an_action_is_learned_by_its_reward() -> None:
    learner = SAC(3, LOW, HIGH)
    first = learner.update(batch_of(0)).mean()
    for seed in range(1, 160):
        last = learner.update(batch_of(seed)).mean()
    assert last < first / 4
    with torch.no_grad():
        mean, _ = learner.actor.spread(torch.randn(64, 3))
        best = mean.tanh() * learner.actor.reach + learner.actor.center
    assert (best - 2.5).abs().mean() < 0.7


def test_densities_are_those_of_the_drawn_actions() -> None:
    learner = SAC(3, LOW, HIGH)
    observations = torch.randn(32, 3)
    with torch.no_grad():
        actions, density = learner.actor.draw(observations)
        mean, log_std = learner.actor.spread(observations)
    normal = torch.distributions.Normal(mean, log_std.exp())
    pressed = torch.distributions.TransformedDistribution(
        normal, [torch.distributions.TanhTransform()]
    )
    scaled = (actions - learner.actor.center) / learner.actor.reach
    torch.testing.assert_close(density, pressed.log_prob(scaled).sum(1), rtol=1e-3, atol=1e-3)


def test_only_termination_ends_the_bootstrap() -> None:
    learner = SAC(3, LOW, HIGH)
    ended, going = batch_of(1), batch_of(1)
    going["next", "terminated"].zero_()
    moved = going.clone()
    moved["next", "observation"] += 1.0
    goals = []
    for batch in (ended, going, moved):
        torch.manual_seed(1)
        goals.append(learner._goal(batch["next"]))
    torch.testing.assert_close(goals[0], ended["next", "reward"].squeeze(1))
    assert (goals[1] != goals[0]).all()
    assert (goals[2] != goals[1]).all()


def test_records_of_no_weight_teach_the_critics_nothing() -> None:
    learner = SAC(3, LOW, HIGH)
    batch = batch_of(1)
    batch["priority_weight"] = torch.zeros(64)
    before = leaves_of(learner)
    errors = learner.update(batch)
    assert all((leaf == old).all() for leaf, old in zip(leaves_of(learner), before, strict=True))
    assert (errors > 0).all()
    del batch["priority_weight"]
    learner.update(batch)
    assert all((leaf != old).any() for leaf, old in zip(leaves_of(learner), before, strict=True))


@pytest.mark.parametrize(("log_std", "rises"), [(-4.0, True), (0.0, False)])
def test_the_temperature_holds_the_entropy(log_std: float, rises: bool) -> None:
    learner = SAC(3, LOW, HIGH)
    with torch.no_grad():
        learner.actor.net[-1].weight.zero_()
        learner.actor.net[-1].bias.copy_(torch.tensor([0.0, log_std]))
    before = learner._log_temperature.detach().clone()
    learner.update(batch_of(1))
    assert bool(learner._log_temperature > before) == rises
