"""Fixtures of unit tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """Creates private buffers for the transitions of an environment, closed at the end."""
    # Here, not above: tests of the lower floors do without.
    import shmrb
    from helpers.environments import Line

    made: list[Any] = []

    def make_one(env: Any = None, capacity: int = 4096, **options: Any) -> Any:
        options.setdefault("schema", shmrb.schema_from_env(env or Line()))
        storage = shmrb.SharedStorage(capacity)
        buffer = shmrb.ReplayBuffer(storage=storage, format="numpy", **options)
        made.append(buffer)
        return buffer

    yield make_one
    for buffer in made:
        buffer.close()


@pytest.fixture
def new() -> Iterator[Callable[..., Any]]:
    """Creates buffers of any schema, in numpy format unless told, closed at the end."""
    import shmrb

    made: list[Any] = []

    def make_one(name: str | None = None, *, capacity: int = 8, **options: Any) -> Any:
        options.setdefault("format", "numpy")
        storage = options.pop("storage", None) or shmrb.SharedStorage(capacity)
        made.append(shmrb.ReplayBuffer(name, storage=storage, **options))
        return made[-1]

    yield make_one
    for buffer in made:
        buffer.close()
