"""Schedules for the exponents of prioritized sampling (floor F5).

As in TorchRL a scheduler belongs to one process and sets an attribute of its buffer's sampler at
each `step()`; alpha and beta are the buffer's, so every process sees them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from shmrb.buffer import ReplayBuffer
from shmrb.description import real, whole
from shmrb.errors import SpecError, SpecTypeError
from shmrb.views import SamplerView

__all__ = ["LambdaScheduler", "LinearScheduler", "SchedulerList", "StepScheduler"]

MODES: dict[str, Callable[[float, float], float]] = {
    "multiplicative": lambda value, gamma: value * gamma,
    "additive": lambda value, gamma: value + gamma,
}


class ParameterScheduler(ABC):
    """Changes one number of a sampler step by step.

    Args:
        obj: a `ReplayBuffer` or its `sampler`.
        param_name: the attribute, "alpha" or "beta".
        min_value, max_value: the value never leaves these bounds.

    Raises:
        SpecError: the sampler has no such attribute.
    """

    # What `state_dict` holds beside the step count.
    _numbers: tuple[str, ...] = ()

    def __init__(
        self,
        obj: ReplayBuffer | SamplerView,
        param_name: str,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        if not isinstance(obj, (ReplayBuffer, SamplerView)):
            raise SpecTypeError(
                "ParameterScheduler only supports Sampler class. Pass either `ReplayBuffer` or "
                f"`Sampler` object. Got {type(obj)} instead."
            )
        self.sampler = obj.sampler if isinstance(obj, ReplayBuffer) else obj
        self.param_name = param_name
        if not hasattr(self.sampler, param_name):
            raise SpecError(
                f"Provided class {type(obj).__name__} does not have an attribute {param_name}: "
                "only the sampler of a buffer with priorities has alpha and beta."
            )
        self._min_val = -math.inf if min_value is None else real("min_value", min_value)
        self._max_val = math.inf if max_value is None else real("max_value", max_value)
        self.initial_val = float(getattr(self.sampler, param_name))
        self._step_cnt = 0

    def step(self) -> None:
        """Counts one step and sets the value that belongs to it."""
        self._step_cnt += 1
        value = min(max(self._value(), self._min_val), self._max_val)
        setattr(self.sampler, self.param_name, value)

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's numbers; code stays in its process."""
        names = ("param_name", "_min_val", "_max_val", "initial_val", "_step_cnt", *self._numbers)
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave.

        Raises:
            SpecError: another kind of scheduler gave it.
        """
        known = self.state_dict().keys()
        missing = ", ".join(sorted(known - state_dict.keys()))
        if missing:
            raise SpecError(
                f"load_state_dict: {missing} missing: this is not the state of a "
                f"{type(self).__name__}."
            )
        for name in known:
            setattr(self, name, state_dict[name])

    @abstractmethod
    def _value(self) -> float:
        """The value that belongs to the step count."""


class LinearScheduler(ParameterScheduler):
    """From the value at construction to `final_value` in `num_steps` equal steps.

    Args:
        obj, param_name: as in `ParameterScheduler`.
        final_value: what it stays at.
        num_steps: after so many steps, >= 1.
    """

    _numbers = ("final_val", "num_steps", "_delta")

    def __init__(
        self,
        obj: ReplayBuffer | SamplerView,
        param_name: str,
        final_value: float,
        num_steps: int,
    ) -> None:
        super().__init__(obj, param_name)
        self.final_val = real("final_value", final_value)
        self.num_steps = whole("num_steps", num_steps, least=1)
        self._delta = (self.final_val - self.initial_val) / self.num_steps

    def _value(self) -> float:
        if self._step_cnt < self.num_steps:
            return self.initial_val + self._delta * self._step_cnt
        return self.final_val


class StepScheduler(ParameterScheduler):
    """Multiplies the present value by `gamma`, or adds it, every `n_steps` steps.

    Args:
        obj, param_name, min_value, max_value: as in `ParameterScheduler`.
        gamma: the factor or the summand.
        n_steps: how many steps apart, >= 1.
        mode: "multiplicative" or "additive".
    """

    _numbers = ("gamma", "n_steps", "mode")

    def __init__(
        self,
        obj: ReplayBuffer | SamplerView,
        param_name: str,
        gamma: float = 0.9,
        n_steps: int = 1,
        mode: str = "multiplicative",
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        self.gamma = real("gamma", gamma)
        self.n_steps = whole("n_steps", n_steps, least=1)
        if mode not in MODES:
            raise SpecError(f"Invalid mode: {mode}. Choose 'multiplicative' or 'additive'.")
        self.mode = mode

    def _value(self) -> float:
        value = float(getattr(self.sampler, self.param_name))
        return value if self._step_cnt % self.n_steps else MODES[self.mode](value, self.gamma)


class LambdaScheduler(ParameterScheduler):
    """The value at construction times a function of the step count.

    Args:
        obj, param_name, min_value, max_value: as in `ParameterScheduler`.
        lambda_fn: the factor for a step count.
    """

    def __init__(
        self,
        obj: ReplayBuffer | SamplerView,
        param_name: str,
        lambda_fn: Callable[[int], float],
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        self.lambda_fn = lambda_fn

    def _value(self) -> float:
        return self.initial_val * self.lambda_fn(self._step_cnt)


class SchedulerList:
    """Several schedulers that step together.

    Args:
        schedulers: one or more.
    """

    def __init__(self, schedulers: ParameterScheduler | list[ParameterScheduler]) -> None:
        if isinstance(schedulers, ParameterScheduler):
            schedulers = [schedulers]
        self.schedulers = list(schedulers)

    def append(self, scheduler: ParameterScheduler) -> None:
        """Adds one."""
        self.schedulers.append(scheduler)

    def step(self) -> None:
        """One step of each."""
        for scheduler in self.schedulers:
            scheduler.step()
