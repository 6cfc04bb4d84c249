"""What TorchRL does where records are gone after so many draws; part of `record`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

# What is done: records to write, a number to draw, or a pass over all.
SCRIPTS: list[tuple[str, int, int, list[Any]]] = [
    ("once", 4, 1, [[0, 1, 2, 3], 3, 3, 3, [4, 5], 3]),
    ("twice", 4, 2, [[0, 1, 2, 3], 4, 4, 4, [4, 5], 3]),
    ("slots are filled again", 6, 1, [[0, 1, 2, 3, 4, 5], 2, [6], 3, [7, 8], [9, 10], 9, 9]),
    ("the ring before it is full", 6, 1, [[0, 1], 2, [2, 3, 4], 9, [5], [6], 9]),
    ("iteration ends", 6, 1, [[0, 1, 2, 3, 4], "iterate", [5, 6], "iterate"]),
    ("three times each", 3, 3, [[0, 1, 2], "iterate"]),
    ("emptied", 4, 1, [[0, 1, 2, 3], 3, "empty", 3, [4, 5], 3]),
]


def consumption() -> list[Any]:
    """The recorded scripts, and what is refused."""
    cases = [
        {"name": name, "capacity": capacity, "limit": limit, "steps": _run(capacity, limit, steps)}
        for name, capacity, limit, steps in SCRIPTS
    ]
    return [*cases, {"name": "refused", "arguments": [_refused(*case) for case in REFUSED]}]


def _buffer(**options: Any) -> TensorDictReplayBuffer:
    writer = TensorDictRoundRobinWriter(track_generations=True)
    options = {"storage": LazyTensorStorage(8), "writer": writer, "batch_size": 3} | options
    return TensorDictReplayBuffer(**options)


def _run(capacity: int, limit: int, steps: list[Any]) -> list[dict[str, Any]]:
    rb = _buffer(storage=LazyTensorStorage(capacity), consume_after_n_samples=limit)
    draws: Counter[int] = Counter()
    waiting: list[int] = []

    def watch(index: list[int]) -> None:
        for slot in index:
            draws[slot] += 1
            if draws[slot] == limit:
                waiting.append(slot)

    rows = []
    for step in steps:
        row: dict[str, Any] = {"do": step}
        try:
            if isinstance(step, list):
                x = torch.tensor(step, dtype=torch.int64)
                index = rb.extend(TensorDict({"x": x}, [len(step)])).tolist()
                filled = 0
                while waiting and filled < len(index) and index[filled] == waiting[0]:
                    waiting.pop(0)
                    filled += 1
                for slot in index:
                    draws[slot] = 0
                row |= {"filled": filled, "rest": index[filled:]}
            elif step == "empty":
                rb.empty()
                draws.clear()
                waiting.clear()
            elif step == "iterate":
                batches = list(rb)
                for batch in batches:
                    watch(batch["index"].tolist())
                row["batches"] = [len(batch) for batch in batches]
            else:
                batch = rb.sample(step)
                index = batch["index"].tolist()
                watch(index)
                row |= {"drawn": len(index), "distinct": len(set(index))}
        except RuntimeError as error:
            row["error"] = str(error)
        row |= {
            "len": len(rb),
            "size": rb.stats()["size"],
            "write_count": rb.write_count,
            "ran_out": rb.sampler.ran_out,
            "shown": sorted(rb[:]["x"].tolist()) if len(rb._storage) else [],
            "generations": rb.writer.generations_of(torch.arange(capacity)).tolist(),
        }
        rows.append(row)
    return rows


def _prioritized() -> PrioritizedSampler:
    return PrioritizedSampler(8, 1.0, 1.0)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("consume_after_n_samples=0", {"consume_after_n_samples": 0}),
    ("consume_after_n_samples=True", {"consume_after_n_samples": True}),
    ("consume_after_n_samples=1.5", {"consume_after_n_samples": 1.5}),
    ("consume_after_n_samples=1, prefetch=2", {"consume_after_n_samples": 1, "prefetch": 2}),
    ("batch_size=None, prefetch=2", {"batch_size": None, "prefetch": 2}),
    (
        "consume_after_n_samples=1, sampler=prioritized",
        {"consume_after_n_samples": 1, "sampler": _prioritized},
    ),
    (
        "consume_after_n_samples=1, sampler=without replacement",
        {"consume_after_n_samples": 1, "sampler": SamplerWithoutReplacement},
    ),
]


def _refused(name: str, options: dict[str, Any]) -> dict[str, str]:
    if callable(options.get("sampler")):
        options = options | {"sampler": options["sampler"]()}
    try:
        _buffer(**options)
    except (TypeError, ValueError) as error:
        return {"name": name, "type": type(error).__name__, "text": str(error)}
    raise AssertionError(f"{name}: accepted")
