"""CartPole without its velocities: what an agent without memory cannot balance."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

# The place of the cart and the angle of the pole; between them lie their velocities.
SEEN = [0, 2]


class HiddenVelocity(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows place and angle, as parts of those that end an episode, and the last action.

    The action is -1 or 1, and 0 before the first of an episode. As parts, since an angle that ends
    an episode is a fifth of a radian, and what it changes by from step to step too little to learn
    from.

    Args:
        env: CartPole.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        cart = env.unwrapped
        self._limits = np.array([cart.x_threshold, cart.theta_threshold_radians], np.float32)
        low, high = env.observation_space.low, env.observation_space.high
        self.observation_space = gymnasium.spaces.Box(
            self._shown(low, -1.0), self._shown(high, 1.0)
        )

    def reset(self, **options: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """As Gymnasium's."""
        observation, info = self.env.reset(**options)
        return self._shown(observation, 0.0), info

    def step(self, action: Any) -> tuple[NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        """As Gymnasium's."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._shown(observation, 2.0 * action - 1.0), reward, terminated, truncated, info

    def _shown(self, observation: NDArray[Any], action: float) -> NDArray[np.float32]:
        return np.array((*(observation[SEEN] / self._limits), action), np.float32)
