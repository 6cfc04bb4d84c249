"""What TorchRL's schedulers set, step by step. Plain data goes in and out."""

from __future__ import annotations

from typing import Any

STEPS = 12
# Class, attribute, arguments. The exponents start at alpha 0.6 and beta 0.4.
SCHEDULES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("LinearScheduler", "beta", {"final_value": 1.0, "num_steps": 4}),
    ("LinearScheduler", "alpha", {"final_value": 0.0, "num_steps": 7}),
    ("StepScheduler", "beta", {"gamma": 0.1, "n_steps": 3, "mode": "additive", "max_value": 0.65}),
    ("StepScheduler", "alpha", {"gamma": 0.5, "min_value": 0.1}),
    ("StepScheduler", "alpha", {}),
    ("LambdaScheduler", "beta", {"max_value": 0.9}),
    ("LambdaScheduler", "alpha", {"min_value": 0.7}),
)


def factor(step: int) -> float:
    """What the lambda schedules multiply by."""
    return 1 + step / 8


def schedules() -> list[Any]:
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers import scheduler as torchrl
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    found = []
    for kind, name, arguments in SCHEDULES:
        sampler = PrioritizedSampler(8, alpha=0.6, beta=0.4)
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(8), sampler=sampler)
        extra = {"lambda_fn": factor} if kind == "LambdaScheduler" else {}
        scheduler = getattr(torchrl, kind)(rb, name, **extra, **arguments)
        values = []
        for _ in range(STEPS):
            scheduler.step()
            values.append(float(getattr(rb.sampler, name)))
        found.append({"kind": kind, "name": name, "arguments": arguments, "values": values})
    return found
