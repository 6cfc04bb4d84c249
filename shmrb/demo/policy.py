"""The network that acts, in numpy: what the learner publishes, without torch.

A published tree holds "net", the `state_dict` of a `torch.nn.Sequential` of linear layers with
ReLU between them ("0.weight", "0.bias", "2.weight", ...), and "epsilon".
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Policy:
    """A forward pass through the layers of one published tree.

    Args:
        tree: what `Parameters.latest` gave in numpy format.
    """

    def __init__(self, tree: Mapping[str, Any]) -> None:
        net = tree["net"]
        places = sorted({int(name.partition(".")[0]) for name in net})
        # torch keeps [out, in]; transposed once here, each step multiplies contiguous rows.
        self._layers = [
            (np.ascontiguousarray(net[f"{place}.weight"].T), net[f"{place}.bias"])
            for place in places
        ]
        self.epsilon = float(tree["epsilon"])

    def values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """What each action is worth: float32 [N, actions] for N observations of any shape."""
        rows = len(observations)
        hidden = np.asarray(observations, np.float32).reshape(rows, -1)
        for weight, bias in self._layers[:-1]:
            hidden = hidden @ weight
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
        weight, bias = self._layers[-1]
        result: NDArray[np.float32] = hidden @ weight + bias
        return result

    def best(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """The number of the best action of each of N observations."""
        result: NDArray[np.int64] = self.values(observations).argmax(axis=1)
        return result

    def act(self, observation: NDArray[Any], chance: random.Random) -> int:
        """The number of an action for one observation, a random one with probability epsilon."""
        if chance.random() < self.epsilon:
            return chance.randrange(len(self._layers[-1][1]))
        return int(self.values(observation[None])[0].argmax())


def random_tree(
    sizes: tuple[int, ...], epsilon: float, chance: np.random.Generator
) -> dict[str, Any]:
    """A tree of random layers of these sizes, observation first and actions last."""
    net: dict[str, Any] = {}
    for place, (inputs, outputs) in enumerate(pairwise(sizes)):
        bound = 1.0 / np.sqrt(inputs)
        net[f"{2 * place}.weight"] = chance.uniform(-bound, bound, (outputs, inputs)).astype(
            np.float32
        )
        net[f"{2 * place}.bias"] = np.zeros(outputs, np.float32)
    return {"net": net, "epsilon": np.float32(epsilon)}
