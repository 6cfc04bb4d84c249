"""The numpy policy against the torch network, and what DQN makes of rewards and ends."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from shmrb.demo import recipe
from shmrb.demo.dqn import DISCOUNT, DQN, Network
from shmrb.demo.policy import Policy, random_tree


def as_numpy(tree: dict[str, Any]) -> dict[str, Any]:
    """What a reader in numpy format gets of a published tree."""
    net = {name: leaf.numpy() for name, leaf in tree["net"].items()}
    return {"net": net, "epsilon": tree["epsilon"].numpy()}


@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_numpy_and_torch_agree(shape: tuple[int, ...]) -> None:
    learner = DQN(int(np.prod(shape)), actions=3)
    policy = Policy(as_numpy(learner.tree()))
    observations = np.random.default_rng(1).normal(size=(200, *shape)).astype(np.float32)
    expected = learner.online.values(torch.from_numpy(observations).flatten(1)).numpy()
    np.testing.assert_allclose(policy.values(observations), expected, rtol=1e-5, atol=1e-6)
    assert (policy.best(observations) == expected.argmax(1)).all()
    chance = random.Random(0)
    policy.epsilon = 0.0
    for observation, values in zip(observations, expected, strict=True):
        assert policy.act(observation, chance) == values.argmax()


def test_epsilon_is_the_chance_of_a_random_action() -> None:
    tree = random_tree((4, 8, 5), 0.5, np.random.default_rng(2))
    tree["net"]["2.bias"][3] = 1e6
    policy, chance = Policy(tree), random.Random(3)
    observation = np.ones(4, np.float32)
    counts = np.bincount([policy.act(observation, chance) for _ in range(5_000)], minlength=5)
    expected = np.array([0.1, 0.1, 0.1, 0.6, 0.1]) * 5_000
    assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_epsilon_falls_to_its_end() -> None:
    assert recipe.epsilon_after(0) == 1.0
    assert recipe.epsilon_after(1_500) == pytest.approx(0.51)
    assert recipe.epsilon_after(3_000) == recipe.epsilon_after(10**6) == pytest.approx(0.02)


def sequential(network: Network) -> torch.nn.Sequential:
    """The same layers as torch makes them."""
    layers: list[torch.nn.Module] = []
    for weight, _ in network.layers:
        layers += [torch.nn.Linear(weight.shape[1], weight.shape[0]), torch.nn.ReLU()]
    module = torch.nn.Sequential(*layers[:-1])
    module.load_state_dict(network.tree())
    return module


@pytest.mark.parametrize("sizes", [(3, 2), (4, 8, 2), (4, 16, 8, 3)])
def test_gradient_is_that_of_autograd(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(6)
    network = Network(sizes)
    module = sequential(network)
    observations = torch.randn(32, sizes[0])
    slope = torch.randn(32, sizes[-1])
    values = module(observations)
    values.backward(slope)
    flow = network.flow(observations)
    network.set_gradient(flow, slope)
    torch.testing.assert_close(flow[-1], values)
    expected = torch.nn.utils.parameters_to_vector([leaf.grad for leaf in module.parameters()])
    torch.testing.assert_close(network.vector.grad, expected)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_an_update_is_that_of_torch(is_weighted: bool) -> None:
    learner = DQN(4, actions=3)
    module, target = sequential(learner.online), sequential(learner.online)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    chance = torch.Generator().manual_seed(7)
    for _ in range(5):
        batch = TensorDict(
            {
                "observation": torch.randn(64, 4, generator=chance),
                "action": torch.randint(0, 3, (64,), generator=chance),
                "next": {
                    "observation": torch.randn(64, 4, generator=chance),
                    "reward": 3 * torch.randn(64, 1, generator=chance),
                    "terminated": torch.rand(64, 1, generator=chance) < 0.3,
                },
            },
            [64],
        )
        weights = torch.rand(64, 1, generator=chance) if is_weighted else torch.ones(64, 1)
        if is_weighted:
            batch["priority_weight"] = weights.squeeze(1)
        after = batch["next"]
        with torch.no_grad():
            best = module(after["observation"]).argmax(1, keepdim=True)
            ahead = target(after["observation"]).gather(1, best)
            goal = after["reward"] + 0.99 * ahead * ~after["terminated"]
        value = module(batch["observation"]).gather(1, batch["action"][:, None])
        optimizer.zero_grad()
        losses = torch.nn.functional.smooth_l1_loss(value, goal, reduction="none")
        (weights * losses).mean().backward()
        optimizer.step()
        for follower, leader in zip(target.parameters(), module.parameters(), strict=True):
            follower.data.lerp_(leader.data, 0.01)
        errors = learner.update(batch)
        torch.testing.assert_close(errors, (value - goal).abs().squeeze(1).detach())
    expected = torch.nn.utils.parameters_to_vector(module.parameters())
    torch.testing.assert_close(learner.online.vector, expected.detach(), rtol=1e-4, atol=1e-5)


def test_only_termination_ends_the_bootstrap() -> None:
    learner = DQN(4, actions=2, first_action=7)
    count = 64
    chance = np.random.default_rng(4)
    observation = torch.from_numpy(chance.normal(size=(count, 4)).astype(np.float32))
    is_end = torch.arange(count)[:, None] % 2 == 0
    batch = TensorDict(
        {
            "observation": observation,
            "action": torch.from_numpy(chance.integers(7, 9, count)),
            "next": {
                "observation": observation,
                "reward": torch.ones(count, 1),
                "terminated": is_end,
                "truncated": ~is_end,
            },
        },
        [count],
    )
    for _ in range(1_500):
        learner.update(batch)
    taken = learner.online.values(observation).gather(1, batch["action"][:, None] - 7)
    assert taken[is_end].mean() == pytest.approx(1.0, abs=0.2)
    # Each goes on into itself: its value is on its way to 1 / (1 - DISCOUNT).
    assert taken[~is_end].mean() > 2.0
    assert taken.max() < 1 / (1 - DISCOUNT)
