"""The policies in numpy against the networks in torch, and how they explore."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from helpers.demos import as_numpy
from shmrb.demo import recipe
from shmrb.demo.dqn import DQN
from shmrb.demo.policy import LOG_STD_MAX, LOG_STD_MIN, Gaussian, Greedy, random_net
from shmrb.demo.rdqn import RDQN
from shmrb.demo.recurrent import Recurrent
from shmrb.demo.sac import SAC


@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_values_are_those_of_torch(shape: tuple[int, ...]) -> None:
    learner = DQN(int(np.prod(shape)), actions=3)
    policy = Greedy(as_numpy(learner.tree()), first=5)
    nothing = policy.begin(200)
    observations = np.random.default_rng(1).normal(size=(200, *shape)).astype(np.float32)
    expected = learner.online.values(torch.from_numpy(observations).flatten(1)).numpy()
    np.testing.assert_allclose(policy.values(observations), expected, rtol=1e-5, atol=1e-6)
    assert (policy.best(observations, nothing)[0] == 5 + expected.argmax(1)).all()
    chance = random.Random(0)
    policy.epsilon = 0.0
    for observation, values in zip(observations, expected, strict=True):
        assert policy.act(observation, nothing[0], chance)[0] == 5 + values.argmax()


def test_epsilon_is_the_chance_of_a_random_action() -> None:
    net = random_net((4, 8, 5), np.random.default_rng(2))
    net["2.bias"][3] = 1e6
    policy, chance = Greedy({"net": net, "epsilon": 0.5}), random.Random(3)
    observation, nothing = np.ones(4, np.float32), policy.begin(1)[0]
    actions = [policy.act(observation, nothing, chance)[0] for _ in range(5_000)]
    counts = np.bincount(actions, minlength=5)
    expected = np.array([0.1, 0.1, 0.1, 0.6, 0.1]) * 5_000
    assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_epsilon_falls_to_its_end() -> None:
    assert recipe.epsilon_after(0, 3_000) == 1.0
    assert recipe.epsilon_after(1_500, 3_000) == pytest.approx(0.51)
    ends = [recipe.epsilon_after(updates, 3_000) for updates in (3_000, 10**6)]
    assert ends == pytest.approx([0.02, 0.02])


LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)


@pytest.fixture
def gaussians() -> tuple[SAC, Gaussian]:
    """The same policy in torch and in numpy, with spreads beyond both of their bounds."""
    learner = SAC(3, LOW, HIGH)
    with torch.no_grad():
        learner.actor.net[-1].weight.mul_(50.0)
    return learner, Gaussian(as_numpy(learner.tree()), LOW, HIGH)


def test_a_gaussian_is_that_of_torch(gaussians: tuple[SAC, Gaussian]) -> None:
    learner, policy = gaussians
    observations = np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32)
    with torch.no_grad():
        mean, log_std = learner.actor.spread(torch.from_numpy(observations))
    for ours, theirs in zip(policy.spread(observations), (mean, log_std), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-4)
    assert {LOG_STD_MIN, LOG_STD_MAX} <= set(log_std.flatten().tolist())
    best, _ = policy.best(observations, policy.begin(200))
    expected = mean.tanh() * learner.actor.reach + learner.actor.center
    np.testing.assert_allclose(best, expected.numpy(), rtol=1e-4, atol=1e-4)


def test_a_gaussian_draws_as_torch_does(gaussians: tuple[SAC, Gaussian]) -> None:
    learner, policy = gaussians
    observation = np.array([0.05, -0.02, 0.01], np.float32)
    chance = random.Random(3)
    nothing = policy.begin(1)[0]
    ours = np.stack([policy.act(observation, nothing, chance)[0] for _ in range(4_000)])
    assert ours.dtype == np.float32
    with torch.no_grad():
        theirs, _ = learner.actor.draw(torch.from_numpy(observation).expand(4_000, -1))
    assert (ours >= LOW).all()
    assert (ours <= HIGH).all()
    error = 5 * ours.std(0) * np.sqrt(2 / 4_000)
    assert (abs(ours.mean(0) - theirs.numpy().mean(0)) < error).all()
    np.testing.assert_allclose(ours.std(0), theirs.numpy().std(0), rtol=0.15)


@pytest.mark.parametrize("is_memoryless", [False, True])
def test_a_memory_is_that_of_torch(is_memoryless: bool) -> None:
    learner = RDQN(3, actions=2, memoryless=is_memoryless)
    policy = Recurrent(as_numpy(learner.tree()), first=5, memoryless=is_memoryless)
    policy.epsilon = 0.0
    steps, count = 12, 7
    observations = np.random.default_rng(1).normal(size=(steps, count, 3)).astype(np.float32)
    state = torch.zeros(count, recipe.STATE_SIZE)
    with torch.no_grad():
        states = learner.online.unroll(torch.from_numpy(observations), state)
        best = learner.online.net(states).argmax(2).numpy()
    memory, alone = policy.begin(count), policy.begin(1)[0]
    chance = random.Random(0)
    for observation, expected, actions in zip(observations, states.numpy(), best, strict=True):
        np.testing.assert_allclose(policy.cell(observation, memory), expected, rtol=1e-4, atol=1e-6)
        chosen, memory = policy.best(observation, memory)
        assert (chosen == 5 + actions).all()
        action, alone = policy.act(observation[0], alone, chance)
        assert action == 5 + actions[0]
        np.testing.assert_allclose(alone, memory[0], rtol=1e-4, atol=1e-6)
    assert bool(memory.any()) != is_memoryless
