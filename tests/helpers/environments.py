"""Environments of producer tests, and the loops that step them as their autoreset mode asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset

from shmrb.producer import Producer


class Line(gym.Env[Any, Any]):
    """Episode e starts at 100 * e and goes on by one a step; it terminates at `goal` steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(10)

    def __init__(self, goal: int = 1000) -> None:
        self.goal = goal
        self.episode = -1
        self.steps = 0

    def _where(self) -> Any:
        return np.array([100 * self.episode + self.steps], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode += 1
        self.steps = 0
        return self._where(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._where(), 0.5 * float(action), self.steps == self.goal, False, {}


class Truth(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps every transition that really happened, below whatever resets the environment."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.happened: list[tuple[Any, ...]] = []
        self.at: Any = None

    def reset(self, **options: Any) -> Any:
        self.at, info = self.env.reset(**options)
        return self.at, info

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.happened.append((self.at, action, *result[:4]))
        self.at = result[0]
        return result


Loop = Callable[[gym.Env[Any, Any], int, Callable[[], Any], Producer], None]


def loop_by_hand(env: Any, steps: int, policy: Callable[[], Any], out: Producer) -> None:
    obs, _ = env.reset(seed=1)
    for _ in range(steps):
        action = policy()
        next_obs, reward, terminated, truncated, info = env.step(action)
        out.step(obs, action, reward, next_obs, terminated, truncated, info)
        obs = next_obs
        if terminated or truncated:
            obs, _ = env.reset()


def loop_of_autoreset(env: Any, steps: int, policy: Callable[[], Any], out: Producer) -> None:
    env = Autoreset(env)
    obs, _ = env.reset(seed=1)
    for _ in range(steps):
        action = policy()
        next_obs, reward, terminated, truncated, info = env.step(action)
        out.step(obs, action, reward, next_obs, terminated, truncated, info)
        obs = next_obs


def loop_of_vector(mode: AutoresetMode) -> Loop:
    def loop(env: Any, steps: int, policy: Callable[[], Any], out: Producer) -> None:
        vector = SyncVectorEnv([lambda: env], autoreset_mode=mode)
        obs, _ = vector.reset(seed=1)
        for _ in range(steps):
            action = policy()
            next_obs, reward, terminated, truncated, info = vector.step(np.asarray(action)[None])
            if "final_obs" in info:
                info = {"final_obs": info["final_obs"][0]}
            out.step(obs[0], action, reward[0], next_obs[0], terminated[0], truncated[0], info)
            obs = next_obs

    return loop


MODES = {
    "disabled": ("disabled", loop_by_hand),
    "next_step, wrapper": ("next_step", loop_of_autoreset),
    "next_step, vector": (AutoresetMode.NEXT_STEP, loop_of_vector(AutoresetMode.NEXT_STEP)),
    "same_step, vector": (AutoresetMode.SAME_STEP, loop_of_vector(AutoresetMode.SAME_STEP)),
}


def line_step(out: Producer, at: float, *, end: bool = False, **extra: Any) -> None:
    """One step of a line from `at` on."""
    here, there = np.array([at], np.float32), np.array([at + 1], np.float32)
    out.step(here, 1, 0.5, there, end, False, **extra)
