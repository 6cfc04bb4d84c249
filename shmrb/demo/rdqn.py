"""DQN with a memory: a GRU before the values, learned from sequences.

The recorded memory starts a sequence, its burn-in brings it up to date without a gradient, the rest
carries the loss (R2D2, Kapturowski et al. 2019). Double Q-learning, the Huber loss and a target
network that follows softly, as `dqn`. A time limit (`truncated`) does not end the bootstrap.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shmrb.batches import VALIDITY
from shmrb.demo import recipe, training

LEARNING_RATE = 1e-3
DISCOUNT = 0.98
EPSILON_UPDATES = 500
# A gradient through many steps may grow with each.
GREATEST_GRADIENT = 10.0


class Network:
    """A GRU, and what each action is worth by its state.

    Args:
        observation_size: numbers in one observation.
        actions: how many there are.
        memoryless: the state is zero before every step.
    """

    def __init__(self, observation_size: int, actions: int, memoryless: bool) -> None:
        self.cell = nn.GRU(observation_size, recipe.STATE_SIZE)
        self.net = nn.Sequential(nn.Linear(recipe.STATE_SIZE, actions))
        self.leaves: list[Tensor] = [*self.cell.parameters(), *self.net.parameters()]
        self._memoryless = memoryless

    def step(self, observations: Tensor, states: Tensor) -> Tensor:
        """The states after one step of each: [N, size]."""
        if self._memoryless:
            states = torch.zeros_like(states)
        return torch.gru_cell(observations, states, *self.cell.all_weights[0])

    def unroll(self, observations: Tensor, state: Tensor) -> Tensor:
        """The states after each step of N sequences: [steps, N, size].

        Args:
            observations: [steps, N, numbers].
            state: before the first, [N, size].
        """
        if self._memoryless:
            steps, count, _ = observations.shape
            flat = self.step(observations.flatten(0, 1), state.repeat(steps, 1))
            return flat.view(steps, count, -1)
        states: Tensor = self.cell(observations, state.unsqueeze(0))[0]
        return states

    @torch.no_grad()
    def warm(self, observations: Tensor, state: Tensor, is_real: Tensor) -> Tensor:
        """The state [N, size] after steps some of which are padding, which changes nothing."""
        for observation, real in zip(observations, is_real, strict=True):
            state = torch.where(real.unsqueeze(1), self.step(observation, state), state)
        return state


class RDQN:
    """Learns the values of a finite number of actions by what was seen of an episode so far.

    Args:
        observation_size: numbers in one observation.
        actions: how many there are.
        first_action: what the environment calls the first of them.
        memoryless: wipe the memory out at every step.
    """

    def __init__(
        self, observation_size: int, actions: int, first_action: int = 0, memoryless: bool = False
    ) -> None:
        training.begin()
        self._first_action = first_action
        self.online, self._target = (
            Network(observation_size, actions, memoryless) for _ in range(2)
        )
        with torch.no_grad():
            torch._foreach_copy_(self._target.leaves, self.online.leaves)
        self._optimizer = torch.optim.Adam(self.online.leaves, lr=LEARNING_RATE, fused=True)
        self.updates = 0

    def update(self, batch: Any) -> Tensor:
        """One gradient step on sequences as `ReplayBuffer.sample` gives them.

        Returns:
            float32, one a record: the absolute error of its value, 0 where it carries no loss.
        """
        start = recipe.SEQUENCE.burn_in
        after = batch["next"]
        is_real = _by_step(batch[VALIDITY])
        observation = _by_step(batch["observation"]).flatten(2)
        following = _by_step(after["observation"]).flatten(2)[start:]
        action = _by_step(batch["action"])[start:].unsqueeze(2) - self._first_action
        state = _by_step(batch[recipe.STATE])[0]
        states, old_states = (
            net.unroll(
                observation[start:],
                net.warm(observation[:start], state, is_real[:start]),
            )
            for net in (self.online, self._target)
        )
        with torch.no_grad():
            best = _worth(self.online, following, states).argmax(2, keepdim=True)
            ahead = _worth(self._target, following, old_states).gather(2, best)
            ahead.masked_fill_(_by_step(after["terminated"])[start:], 0.0)
            goal = _by_step(after["reward"])[start:] + DISCOUNT * ahead
        errors = (self.online.net(states).gather(2, action) - goal).squeeze(2)
        errors = errors * is_real[start:]
        losses = nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")
        losses = losses * _by_step(training.weights_of(batch))[start:]
        training.step(self._optimizer, losses.sum() / is_real[start:].sum(), GREATEST_GRADIENT)
        training.follow(self._target.leaves, self.online.leaves)
        self.updates += 1
        found = torch.zeros_like(is_real, dtype=torch.float32)
        found[start:] = errors.detach().abs()
        return found.t().flatten()

    def tree(self) -> dict[str, Any]:
        """What the collectors need: the weights, and how often to act at random."""
        return {
            "cell": self.online.cell.state_dict(),
            "net": self.online.net.state_dict(),
            "epsilon": torch.tensor(recipe.epsilon_after(self.updates, EPSILON_UPDATES)),
        }


def _by_step(records: Tensor) -> Tensor:
    """Records of sequence after sequence as [steps, sequences, ...]."""
    return records.view(-1, recipe.SEQUENCE.window, *records.shape[1:]).transpose(0, 1)


def _worth(net: Network, following: Tensor, states: Tensor) -> Tensor:
    """What each action is worth after the observations that followed these states."""
    after = net.step(following.flatten(0, 1), states.flatten(0, 1))
    worth: Tensor = net.net(after)
    return worth.view(*following.shape[:2], -1)
