"""A policy that remembers, in numpy: a GRU before the layers; imports no torch.

The "cell" of a published tree is the `state_dict` of a `torch.nn.GRU` of one layer, whose three
gates lie one below the other: reset, update, new.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shmrb.demo.policy import Floats, Layers


class Cell:
    """One step of a GRU.

    Args:
        weights: its `state_dict`.

    Source: Cho et al. 2014 (arXiv:1406.1078), as torch has it.
    """

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._input = np.ascontiguousarray(weights["weight_ih_l0"].T)
        self._hidden = np.ascontiguousarray(weights["weight_hh_l0"].T)
        self._input_bias = weights["bias_ih_l0"]
        self._hidden_bias = weights["bias_hh_l0"]
        self.size = len(self._hidden)

    def __call__(self, observations: NDArray[Any], memory: Floats) -> Floats:
        """What is remembered after N observations, one of each episode: [N, size]."""
        size = self.size
        rows = np.asarray(observations, np.float32).reshape(len(observations), -1)
        given = rows @ self._input
        given += self._input_bias
        kept = memory @ self._hidden
        kept += self._hidden_bias
        gates = given[:, : 2 * size]
        gates += kept[:, : 2 * size]
        # The logistic function, as tanh has it: no overflow, and one call for both gates.
        gates *= 0.5
        np.tanh(gates, out=gates)
        gates += 1.0
        gates *= 0.5
        reset, update = gates[:, :size], gates[:, size:]
        new = given[:, 2 * size :]
        new += reset * kept[:, 2 * size :]
        np.tanh(new, out=new)
        result: Floats = new + update * (memory - new)
        return result


class Recurrent:
    """Takes the action that is worth most after all that was seen in an episode.

    Args:
        tree: as for `policy.policy_of`.
        first: what the environment calls the first of its actions.
        memoryless: everything seen before is forgotten at every step.
    """

    def __init__(self, tree: Mapping[str, Any], first: int = 0, memoryless: bool = False) -> None:
        self.cell = Cell(tree["cell"])
        self.values = Layers(tree["net"])
        self.epsilon = float(tree["epsilon"])
        self._first = first
        self._memoryless = memoryless

    def begin(self, episodes: int) -> Floats:
        """Zeros."""
        return np.zeros((episodes, self.cell.size), np.float32)

    def act(
        self, observation: NDArray[Any], memory: Floats, chance: random.Random
    ) -> tuple[int, Floats]:
        """The best action, or a random one with probability epsilon."""
        after = self.cell(observation[None], memory[None])
        left = memory if self._memoryless else after[0]
        if chance.random() < self.epsilon:
            return self._first + chance.randrange(self.values.outputs), left
        return self._first + int(self.values(after)[0].argmax()), left

    def best(self, observations: NDArray[Any], memory: Floats) -> tuple[NDArray[np.int64], Floats]:
        """The action of the greatest value for each observation."""
        after = self.cell(observations, memory)
        best = self._first + self.values(after).argmax(axis=1)
        return best, memory if self._memoryless else after
