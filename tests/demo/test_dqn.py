"""What DQN makes of rewards, ends and weights, against torch's own layers and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from shmrb.demo.dqn import DISCOUNT, DQN, Network


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
