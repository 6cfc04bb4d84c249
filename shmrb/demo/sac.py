"""Soft actor-critic on small networks.

Two critics, of whose values the smaller counts, a target for each that follows softly, and a
temperature that holds the entropy where it is wanted (Haarnoja et al. 2018, arXiv:1812.05905). A
time limit (`truncated`) does not end the bootstrap.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shmrb.demo import training
from shmrb.demo.policy import LOG_STD_MAX, LOG_STD_MIN

HIDDEN = (128, 128)
LEARNING_RATE = 1e-3
DISCOUNT = 0.99

_LOG_ROOT_TAU = math.log(math.sqrt(2 * math.pi))


class Actor:
    """Draws actions around a mean, pressed by tanh into the bounds.

    Args:
        sizes: of the layers; last mean and logarithm of the spread of each number of an action.
        low, high: the bounds, flat.
    """

    def __init__(self, sizes: tuple[int, ...], low: Tensor, high: Tensor) -> None:
        parts: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            parts += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.net = nn.Sequential(*parts[:-1])
        self.center = (high + low) / 2
        self.reach = (high - low) / 2

    def spread(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Means and logarithms of the spreads, before tanh: [N, actions] each."""
        mean, log_std = self.net(observations).chunk(2, 1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def draw(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [N, actions] and the logarithms of their densities [N], before `reach` scales."""
        mean, log_std = self.spread(observations)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        pressed = raw.tanh()
        # log(1 - tanh(x)^2) without its cancellation.
        squeezed = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))
        density = (-0.5 * noise.square() - log_std - _LOG_ROOT_TAU - squeezed).sum(1)
        return pressed * self.reach + self.center, density


class Critics:
    """Two networks that value actions, side by side in each call.

    Args:
        sizes: of the layers, observation and action first.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.leaves: list[Tensor] = []
        for inputs, outputs in pairwise((*sizes, 1)):
            bound = 1 / math.sqrt(inputs)
            for shape in ((2, inputs, outputs), (2, 1, outputs)):
                self.leaves.append(torch.empty(shape).uniform_(-bound, bound))

    def values(self, observations: Tensor, actions: Tensor) -> Tensor:
        """What both say of N actions: [2, N]."""
        flow = torch.cat((observations, actions), 1).expand(2, -1, -1)
        layers = list(zip(self.leaves[::2], self.leaves[1::2], strict=True))
        for weight, bias in layers[:-1]:
            flow = torch.baddbmm(bias, flow, weight).relu()
        weight, bias = layers[-1]
        worth: Tensor = torch.baddbmm(bias, flow, weight).squeeze(2)
        return worth


class SAC:
    """Learns to act in a box of real numbers.

    Args:
        observation_size: numbers in one observation.
        low, high: the bounds of an action, finite.
    """

    def __init__(self, observation_size: int, low: NDArray[Any], high: NDArray[Any]) -> None:
        training.begin()
        bounds = [torch.from_numpy(bound.reshape(-1).astype(np.float32)) for bound in (low, high)]
        size = len(bounds[0])
        self.actor = Actor((observation_size, *HIDDEN, 2 * size), *bounds)
        sizes = (observation_size + size, *HIDDEN)
        self.critics, self._targets = Critics(sizes), Critics(sizes)
        for target, leaf in zip(self._targets.leaves, self.critics.leaves, strict=True):
            target.copy_(leaf)
            leaf.requires_grad_()
        self._log_temperature = torch.zeros((), requires_grad=True)
        self._entropy = -float(size)
        acting = [*self.actor.net.parameters(), self._log_temperature]
        self._critics_step, self._actor_step = (
            torch.optim.Adam(leaves, lr=LEARNING_RATE, fused=True)
            for leaves in (self.critics.leaves, acting)
        )

    def update(self, batch: Any) -> Tensor:
        """One gradient step of everything on a batch as `ReplayBuffer.sample` gives it.

        Returns:
            float32 [N], the mean absolute error of both values: how much there is to learn from it.
        """
        observation = batch["observation"].flatten(1).float()
        action = batch["action"].flatten(1).float()
        goal = self._goal(batch["next"])
        errors = self.critics.values(observation, action) - goal
        losses = errors.square().mean(0) * training.weights_of(batch)
        training.step(self._critics_step, losses.mean())
        self._improve(observation)
        training.follow(self._targets.leaves, self.critics.leaves)
        return errors.detach().abs().mean(0)

    @torch.no_grad()
    def _goal(self, after: Any) -> Tensor:
        """What an action is worth by its reward and what the targets say of the next one."""
        observation = after["observation"].flatten(1).float()
        action, density = self.actor.draw(observation)
        ahead = self._targets.values(observation, action).amin(0)
        ahead -= self._log_temperature.exp() * density
        ahead.masked_fill_(after["terminated"].squeeze(1), 0.0)
        goal: Tensor = after["reward"].squeeze(1) + DISCOUNT * ahead
        return goal

    def _improve(self, observation: Tensor) -> None:
        """One step of the actor towards what the critics value, and one of the temperature."""
        action, density = self.actor.draw(observation)
        for leaf in self.critics.leaves:
            leaf.requires_grad_(False)
        worth = self.critics.values(observation, action).amin(0)
        temperature = self._log_temperature.exp().detach()
        excess = density.detach() + self._entropy
        costs = temperature * density - worth - self._log_temperature * excess
        training.step(self._actor_step, costs.mean())
        for leaf in self.critics.leaves:
            leaf.requires_grad_()

    def tree(self) -> dict[str, Any]:
        """What the collectors need: the weights of the actor."""
        return {"net": self.actor.net.state_dict()}
