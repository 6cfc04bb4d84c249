"""The networks that act, in numpy: what the learners publish, without torch.

A published tree holds "net", the `state_dict` of a `torch.nn.Sequential` of linear layers with
ReLU between them ("0.weight", "0.bias", "2.weight", ...), and, where actions are counted, how often
to act at random: "epsilon". A recurrent one has a "cell" before the net (`recurrent`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shmrb.demo.job import SAC, Job

Floats = NDArray[np.float32]
# Wider or narrower than this the exploration of a Gaussian makes no difference, and its logarithm
# trouble.
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class Policy(Protocol):
    """What chooses the actions of one environment or of several side by side.

    What it remembers of an episode is a row of numbers, none for those without memory, that goes
    through the hands of whoever steps the environment.
    """

    def begin(self, episodes: int) -> Floats:
        """What is remembered at the start of so many episodes: [N, size]."""

    def act(
        self, observation: NDArray[Any], memory: Floats, chance: random.Random
    ) -> tuple[Any, Floats]:
        """An action to learn from, for one observation, and what is remembered after it."""

    def best(self, observations: NDArray[Any], memory: Floats) -> tuple[NDArray[Any], Floats]:
        """The best action for each of N observations, and what is remembered after them."""


def policy_of(job: Job, space: Any, tree: Mapping[str, Any]) -> Policy:
    """The policy in a published tree.

    Args:
        job: of the run.
        space: of the actions.
        tree: what `Parameters.latest` gave in numpy format.
    """
    if job.learner == SAC:
        return Gaussian(tree, space.low, space.high)
    if job.is_recurrent:
        from shmrb.demo.recurrent import Recurrent

        return Recurrent(tree, int(space.start), job.memoryless)
    return Greedy(tree, int(space.start))


class Layers:
    """A forward pass through linear layers with ReLU between them.

    Args:
        net: their `state_dict`.
    """

    def __init__(self, net: Mapping[str, Any]) -> None:
        places = sorted({int(name.partition(".")[0]) for name in net})
        # torch keeps [out, in]; transposed once here, each step multiplies contiguous rows.
        self._layers = [
            (np.ascontiguousarray(net[f"{place}.weight"].T), net[f"{place}.bias"])
            for place in places
        ]
        self.outputs = len(self._layers[-1][1])

    def __call__(self, rows: NDArray[Any]) -> Floats:
        """What comes out: float32 [N, outputs] for N rows of any shape."""
        hidden = np.asarray(rows, np.float32).reshape(len(rows), -1)
        for weight, bias in self._layers[:-1]:
            hidden = hidden @ weight
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
        weight, bias = self._layers[-1]
        result: Floats = hidden @ weight + bias
        return result


class WithoutMemory:
    """The memory of policies that have none."""

    def begin(self, episodes: int) -> Floats:
        """Rows of nothing."""
        return np.zeros((episodes, 0), np.float32)


class Greedy(WithoutMemory):
    """Takes the action that is worth most.

    Args:
        tree: as for `policy_of`.
        first: what the environment calls the first of its actions.
    """

    def __init__(self, tree: Mapping[str, Any], first: int = 0) -> None:
        self.values = Layers(tree["net"])
        self.epsilon = float(tree["epsilon"])
        self._first = first

    def act(
        self, observation: NDArray[Any], memory: Floats, chance: random.Random
    ) -> tuple[int, Floats]:
        """The best action, or a random one with probability epsilon."""
        if chance.random() < self.epsilon:
            return self._first + chance.randrange(self.values.outputs), memory
        return self._first + int(self.values(observation[None])[0].argmax()), memory

    def best(self, observations: NDArray[Any], memory: Floats) -> tuple[NDArray[np.int64], Floats]:
        """The action of the greatest value for each observation."""
        return self._first + self.values(observations).argmax(axis=1), memory


class Gaussian(WithoutMemory):
    """Draws actions around a mean, pressed by tanh into the bounds of the action space.

    Args:
        tree: as for `policy_of`; the net gives the means, then the logarithms of the spreads.
        low, high: the bounds.
    """

    def __init__(self, tree: Mapping[str, Any], low: Floats, high: Floats) -> None:
        self._net = Layers(tree["net"])
        self._shape, self._dtype = low.shape, low.dtype
        self._center = ((high + low) / 2).reshape(-1)
        self._reach = ((high - low) / 2).reshape(-1)

    def spread(self, observations: NDArray[Any]) -> tuple[Floats, NDArray[Any]]:
        """Means and logarithms of the spreads, before tanh: [N, actions] each."""
        mean, log_std = np.split(self._net(observations), 2, axis=1)
        return mean, np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)

    def act(
        self, observation: NDArray[Any], memory: Floats, chance: random.Random
    ) -> tuple[Floats, Floats]:
        """An action drawn for one observation."""
        mean, log_std = self.spread(observation[None])
        noise = np.array([chance.gauss(0.0, 1.0) for _ in range(mean.size)], np.float32)
        return self._bounded(mean + np.exp(log_std) * noise)[0], memory

    def best(self, observations: NDArray[Any], memory: Floats) -> tuple[Floats, Floats]:
        """The action in the middle for each observation."""
        return self._bounded(self.spread(observations)[0]), memory

    def _bounded(self, raw: NDArray[Any]) -> Floats:
        actions = np.tanh(raw) * self._reach + self._center
        bounded: Floats = actions.reshape(-1, *self._shape).astype(self._dtype, copy=False)
        return bounded


def random_net(sizes: tuple[int, ...], chance: np.random.Generator) -> dict[str, Any]:
    """Random layers of these sizes, observation first and actions last."""
    net: dict[str, Any] = {}
    for place, (inputs, outputs) in enumerate(pairwise(sizes)):
        bound = 1.0 / math.sqrt(inputs)
        net[f"{2 * place}.weight"] = chance.uniform(-bound, bound, (outputs, inputs)).astype(
            np.float32
        )
        net[f"{2 * place}.bias"] = np.zeros(outputs, np.float32)
    return net
