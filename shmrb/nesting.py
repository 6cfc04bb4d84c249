"""Nested data: dictionaries, TensorDicts and tuples, whose leaves are arrays (floor F5)."""

from __future__ import annotations

from typing import Any

from shmrb.errors import RecordError
from shmrb.likeness import is_mapping
from shmrb.schema import Schema


def rows_of(data: Any) -> int:
    """How many records a batch holds, seen from its first leaf.

    Raises:
        RecordError: it has no first dimension.
    """
    while True:
        if is_mapping(data):
            data = next(iter(data.values()), None)
        elif isinstance(data, tuple):
            data = data[0] if data else None
        else:
            break
    size = first_size(data)
    if size < 0:
        raise RecordError(f"expected records along a first dimension, got {type(data).__name__}.")
    return size


def flat_fields(data: Any, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """The leaves of nested fields by their path.

    Raises:
        RecordError: it is no mapping.
    """
    if not is_mapping(data):
        raise RecordError(f"expected fields by name, got {type(data).__name__}.")
    values: dict[tuple[str, ...], Any] = {}
    for key, value in data.items():
        path = (*above, *((key,) if isinstance(key, str) else tuple(key)))
        if is_mapping(value):
            values |= flat_fields(value, path)
        else:
            values[path] = value
    return values


def with_first_dimension(data: Any) -> Any:
    """A record as a batch of one."""
    if is_mapping(data):
        if hasattr(data, "unsqueeze"):
            return data.unsqueeze(0)
        return {key: with_first_dimension(value) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(with_first_dimension(part) for part in data)
    return data[None] if hasattr(data, "shape") and hasattr(data, "dtype") else [data]


def tree_of(schema: Schema) -> dict[str, Any]:
    """Nested dictionaries with the position of each field at its place."""
    tree: dict[str, Any] = {}
    for position, path in enumerate(schema.paths):
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = position
    return tree


def collect(node: dict[str, Any], data: Any, leaves: list[Any]) -> bool:
    """Puts each leaf at its field's position; False when keys are missing or unknown."""
    # The dictionary in a TensorDict: its own items() costs as much as all the checks here.
    fields = data if type(data) is dict else getattr(data, "_tensordict", data)
    found = 0
    for key, value in fields.items():
        place = node.get(key)
        if type(place) is int:
            leaves[place] = value
        elif place is None or not is_mapping(value) or not collect(place, value, leaves):
            return False
        found += 1
    return found == len(node)


def paths_of(data: Any, above: tuple[str, ...], node: Any) -> list[tuple[str, ...]]:
    paths: list[tuple[str, ...]] = []
    for key, value in data.items():
        path = (*above, *(key if isinstance(key, tuple) else (str(key),)))
        below = node.get(key) if isinstance(node, dict) else None
        if is_mapping(value) and type(below) is not int:
            paths.extend(paths_of(value, path, below))
        else:
            paths.append(path)
    return paths


def first_size(leaf: Any) -> int:
    """How many records a leaf holds; -1 if it has no first dimension."""
    if isinstance(leaf, list):
        return len(leaf)
    shape = getattr(leaf, "shape", ())
    return int(shape[0]) if shape else -1
