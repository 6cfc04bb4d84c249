"""DQN on a small network.

Double Q-learning (van Hasselt et al. 2016, arXiv:1509.06461), the Huber loss of Mnih et al. 2015,
and a target network that follows softly. A time limit (`truncated`) does not end the bootstrap.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from shmrb.demo import recipe, training

HIDDEN = (64, 64)
LEARNING_RATE = 1e-3
DISCOUNT = 0.99
EPSILON_UPDATES = 3_000


class Network:
    """Linear layers with ReLU between them.

    At this size an update costs its calls, not its arithmetic. So all weights lie side by side in
    one vector, on which the optimiser and the target network need one call each, and the gradient
    is written out, which takes a third of autograd's time; a test holds it against autograd.

    Args:
        sizes: observation first, actions last.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        made = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)]
        parameters = [leaf.detach() for layer in made for leaf in (layer.weight, layer.bias)]
        self.vector = torch.cat([leaf.flatten() for leaf in parameters])
        self.vector.grad = torch.zeros_like(self.vector)
        ends = torch.tensor([leaf.numel() for leaf in parameters]).cumsum(0).tolist()
        places = list(zip([0, *ends], ends, [leaf.shape for leaf in parameters], strict=False))
        leaves, slopes = (
            [vector[start:end].view(shape) for start, end, shape in places]
            for vector in (self.vector, self.vector.grad)
        )
        self.layers = list(zip(leaves[::2], leaves[1::2], strict=True))
        self._slopes = list(zip(slopes[::2], slopes[1::2], strict=True))

    def flow(self, observations: Tensor) -> list[Tensor]:
        """What goes into each layer, float32 [N, size] each, and last what each action is worth."""
        flow = [observations]
        for place, (weight, bias) in enumerate(self.layers):
            if place:
                flow[-1].relu_()
            flow.append(torch.addmm(bias, flow[-1], weight.t()))
        return flow

    def values(self, observations: Tensor) -> Tensor:
        """What each action is worth: float32 [N, actions] for N observations."""
        return self.flow(observations)[-1]

    def set_gradient(self, flow: list[Tensor], slope: Tensor) -> None:
        """Set `vector.grad` to the loss's gradient.

        Args:
            flow: what `flow` gave.
            slope: the gradient with respect to the values of the actions.
        """
        for place in reversed(range(len(self.layers))):
            of_weight, of_bias = self._slopes[place]
            torch.mm(slope.t(), flow[place], out=of_weight)
            torch.sum(slope, 0, out=of_bias)
            if place:
                # The slope of ReLU, 0 or 1, is the sign of what came out of it.
                slope = (slope @ self.layers[place][0]).mul_(flow[place].sign())

    def tree(self) -> dict[str, Tensor]:
        """The weights, named as in a `Sequential`'s `state_dict` that counts the ReLUs too."""
        tree = {}
        for place, (weight, bias) in enumerate(self.layers):
            tree[f"{2 * place}.weight"], tree[f"{2 * place}.bias"] = weight, bias
        return tree


class DQN:
    """Learns the values of a finite number of actions.

    Args:
        observation_size: numbers in one observation.
        actions: how many there are.
        first_action: what the environment calls the first of them.
    """

    def __init__(self, observation_size: int, actions: int, first_action: int = 0) -> None:
        training.begin()
        self._first_action = first_action
        sizes = (observation_size, *HIDDEN, actions)
        self.online, self._target = Network(sizes), Network(sizes)
        self._target.vector.copy_(self.online.vector)
        self._optimizer = torch.optim.Adam([self.online.vector], lr=LEARNING_RATE, fused=True)
        self.updates = 0

    @torch.no_grad()
    def update(self, batch: Any) -> Tensor:
        """One gradient step on a batch as `ReplayBuffer.sample` gives it.

        Returns:
            float32 [N], the absolute error of each value: how much there is to learn from it.
        """
        observation = batch["observation"].flatten(1).float()
        action = batch["action"].unsqueeze(1) - self._first_action
        after = batch["next"]
        next_observation = after["observation"].flatten(1).float()
        best = self.online.values(next_observation).argmax(1, keepdim=True)
        ahead = self._target.values(next_observation).gather(1, best)
        goal = after["reward"] + DISCOUNT * ahead.masked_fill_(after["terminated"], 0.0)
        flow = self.online.flow(observation)
        error = flow[-1].gather(1, action) - goal
        # The Huber loss is a parabola out to 1 and a line from there.
        slope = error.clamp(-1.0, 1.0).div_(len(error))
        slope *= training.weights_of(batch).unsqueeze(1)
        self.online.set_gradient(flow, torch.zeros_like(flow[-1]).scatter_(1, action, slope))
        self._optimizer.step()
        training.follow([self._target.vector], [self.online.vector])
        self.updates += 1
        errors: Tensor = error.abs_().squeeze(1)
        return errors

    def tree(self) -> dict[str, Any]:
        """What the collectors need: the weights, and how often to act at random."""
        epsilon = torch.tensor(recipe.epsilon_after(self.updates, EPSILON_UPDATES))
        return {"net": self.online.tree(), "epsilon": epsilon}
