"""The records that every contender stores, as plain numpy rows.

A field is named by its path with dots, so that one description serves nested TensorDicts, nested
dicts and the flat dicts of peers without nesting. Runs inside every peer's environment: numpy only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Fields = dict[str, tuple[str, tuple[int, ...]]]
Rows = dict[str, np.ndarray]

SMALL: Fields = {
    "observation": ("float32", (17,)),
    "action": ("float32", (6,)),
    "next.observation": ("float32", (17,)),
    "next.reward": ("float32", (1,)),
    "next.done": ("bool", (1,)),
    "next.terminated": ("bool", (1,)),
}

# Four stacked Atari frames: 28,224 bytes.
IMAGE: Fields = {"pixels": ("uint8", (84, 84, 4))}


def record_bytes(fields: Fields) -> int:
    """Payload of one record in bytes."""
    return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for dtype, shape in fields.values())


def rows(fields: Fields, count: int, seed: int = 0) -> Rows:
    """`count` random records, one contiguous array a field."""
    rng = np.random.default_rng(seed)
    return {path: _values(rng, dtype, (count, *shape)) for path, (dtype, shape) in fields.items()}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted paths turned into dicts inside dicts."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, leaf = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


def tensordict(flat: Rows) -> Any:
    """The rows as a nested TensorDict that shares their memory. The caller's process has torch."""
    import torch
    from tensordict import TensorDict

    tensors = {path: torch.from_numpy(array) for path, array in flat.items()}
    return TensorDict(tensors, batch_size=[len(next(iter(flat.values())))]).unflatten_keys(".")


def priorities(count: int, calls: int = 64) -> list[np.ndarray]:
    """What `calls` updates of `count` rows bring: exponential, as errors are."""
    rng = np.random.default_rng(2)
    return [rng.exponential(size=count).astype(np.float32) for _ in range(calls)]


def first(flat: Rows) -> Rows:
    """The first row alone, without the batch dimension."""
    return {path: array[0] for path, array in flat.items()}


def _values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "bool":
        return rng.random(shape) < 0.01
    if dtype == "uint8":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return rng.random(shape, dtype=np.float32).astype(dtype)
