"""What the learners have in common; loads torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shmrb.batches import WEIGHT

# How far a target network follows in an update.
TARGET_STEP = 0.01


def begin() -> None:
    """One thread, and the same start each time."""
    # A second thread costs more than it brings here, and the collectors need the cores.
    torch.set_num_threads(1)
    torch.manual_seed(0)


def weights_of(batch: Any) -> Tensor:
    """The importance weights of a batch's records, float32 [N]; ones if they were drawn uniformly.

    Those that are drawn more often for their errors count for less.
    """
    weights: Tensor | None = batch.get(WEIGHT)
    return torch.ones(len(batch)) if weights is None else weights


def step(optimizer: torch.optim.Optimizer, loss: Tensor, greatest: float | None = None) -> None:
    """One step down the gradient of a loss.

    Args:
        optimizer: of the leaves.
        loss: a number.
        greatest: the norm to which a longer gradient is cut.
    """
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    if greatest is not None:
        (group,) = optimizer.param_groups
        torch.nn.utils.clip_grad_norm_(group["params"], greatest)
    optimizer.step()


@torch.no_grad()
def follow(targets: list[Tensor], leaves: list[Tensor]) -> None:
    """Bring the weights of a target network a little nearer."""
    torch._foreach_lerp_(targets, leaves, TARGET_STEP)
