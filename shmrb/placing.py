"""Where a batch's tensors go on their way to the user: page-locked memory, a device (floor F5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shmrb.errors import SpecError


@dataclass(frozen=True, slots=True)
class Placing:
    """A device, and whether tensors get there through page-locked memory."""

    device: Any
    pin_memory: bool

    @classmethod
    def of(cls, device: Any, pin_memory: bool, format: str) -> Placing:
        """Checks what `sample` was given.

        Raises:
            SpecError: arrays have no device, or there is none to pin memory for.
        """
        if format != "torch":
            raise SpecError(
                "device= and pin_memory= are for TensorDicts; this handle gives numpy arrays. "
                "Attach with format='torch'."
            )
        import torch

        if pin_memory and not torch.cuda.is_available():
            raise SpecError(
                "pin_memory=True: torch sees no CUDA device for which memory could be locked. "
                "Leave it out."
            )
        try:
            return cls(None if device is None else torch.device(device), bool(pin_memory))
        except (RuntimeError, TypeError) as error:
            raise SpecError(f"device={device!r}: {error}") from None

    def moved(self, data: Any) -> Any:
        """The same with its tensors where they are wanted.

        From page-locked memory a copy to a device goes on by itself, in the order of the device's
        current stream.
        """
        if type(data) is dict:
            return {key: self.moved(value) for key, value in data.items()}
        if isinstance(data, tuple):
            return tuple(self.moved(value) for value in data)
        if self.pin_memory:
            data = data.pin_memory()
        if self.device is None:
            return data
        return data.to(self.device, non_blocking=self.pin_memory)
