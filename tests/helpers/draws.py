"""Counting draws: what chance allows, and buffers whose records have the masses they are given."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import shmrb

# Five standard deviations: one failure in two million.
SIGMAS = 5.0


def allows(count: int, draws: int, probability: float) -> bool:
    """Whether so many hits in so many draws are chance."""
    spread = math.sqrt(draws * probability * (1 - probability))
    return abs(count - draws * probability) <= SIGMAS * spread


def counts(buffer: Any, draws: int, batch: int = 1000) -> np.ndarray:
    """How often each slot came up in at least `draws` draws."""
    found = np.zeros(buffer.storage.max_size, np.int64)
    for _ in range(-(-draws // batch)):
        index = np.asarray(buffer.sample(batch)["index"])
        found += np.bincount(index, minlength=len(found))
    return found


def assert_drawn_by_mass(buffer: Any, masses: Sequence[float], draws: int) -> None:
    """Each slot comes up in proportion to its mass, and never without one."""
    found = counts(buffer, draws)
    whole, total = int(found.sum()), sum(masses)
    for slot, mass in enumerate(masses):
        count = int(found[slot])
        assert (count == 0) == (mass == 0), f"slot {slot} of mass {mass}: {count} draws"
        assert allows(count, whole, mass / total), f"slot {slot}: {count} of {whole}"
    assert found[len(masses) :].sum() == 0


def prioritized(new: Callable[..., Any], capacity: int, **options: Any) -> Any:
    """A buffer of one field x whose masses are its priorities, unless told otherwise."""
    exponents = {"alpha": 1.0, "beta": 1.0, "eps": 0.0}
    exponents |= {key: options.pop(key) for key in exponents.keys() & options.keys()}
    within = options.pop("within_buffer", False)
    sampler = shmrb.PrioritizedSampler(**exponents, max_priority_within_buffer=within)
    options.setdefault("seed", 7)
    return new(capacity=capacity, schema={"x": "int64"}, sampler=sampler, **options)


def numbered(first: int, stop: int) -> dict[str, np.ndarray]:
    """Records that are their number."""
    return {"x": np.arange(first, stop)}
