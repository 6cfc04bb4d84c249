"""DQN on a network of two hidden layers; the demo's only module that loads torch.

Double Q-learning (van Hasselt et al. 2016, arXiv:1509.06461), the Huber loss of Mnih et al. 2015,
and a target network that follows softly. A time limit (`truncated`) does not end the bootstrap.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shmrb.demo import recipe

HIDDEN = 64
LEARNING_RATE = 1e-3
DISCOUNT = 0.99
TARGET_STEP = 0.01


class DQN:
    """Learns the values of a finite number of actions.

    Args:
        observation_size: numbers in one observation.
        actions: how many there are.
        first_action: what the environment calls the first of them.
    """

    def __init__(self, observation_size: int, actions: int, first_action: int = 0) -> None:
        # The networks are small: a second thread costs more than it brings, and the collectors
        # need the cores.
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._first_action = first_action
        self._online = _network(observation_size, actions)
        self._target = _network(observation_size, actions).requires_grad_(False)
        self._target.load_state_dict(self._online.state_dict())
        self._parameters: list[Tensor] = list(self._online.parameters())
        self._followers: list[Tensor] = list(self._target.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, lr=LEARNING_RATE, fused=True)
        self.updates = 0

    def update(self, batch: Any) -> None:
        """One gradient step on a batch as `ReplayBuffer.sample` gives it."""
        observation = batch["observation"].flatten(1).float()
        action = batch["action"].unsqueeze(1) - self._first_action
        after = batch["next"]
        next_observation = after["observation"].flatten(1).float()
        with torch.no_grad():
            best = self._online(next_observation).argmax(1, keepdim=True)
            ahead = self._target(next_observation).gather(1, best)
            goal = after["reward"] + DISCOUNT * ahead * ~after["terminated"]
        value = self._online(observation).gather(1, action)
        loss = nn.functional.smooth_l1_loss(value, goal)
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._parameters, TARGET_STEP)
        self.updates += 1

    def tree(self) -> dict[str, Any]:
        """What the collectors need: the layers, and how often to act at random."""
        epsilon = torch.tensor(recipe.epsilon_after(self.updates))
        return {"net": self._online.state_dict(), "epsilon": epsilon}

    def values(self, observations: Tensor) -> Tensor:
        """What each action is worth: float32 [N, actions]."""
        with torch.no_grad():
            result: Tensor = self._online(observations.flatten(1).float())
        return result


def _network(observation_size: int, actions: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(observation_size, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, actions),
    )
