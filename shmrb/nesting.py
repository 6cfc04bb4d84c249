"""Nested data: dictionaries, TensorDicts and tuples, whose leaves are arrays (floor F5)."""

from __future__ import annotations

from typing import Any

from shmrb.errors import RecordError
from shmrb.likeness import is_mapping
from shmrb.schema import Schema

# Nested dictionaries with the position of each field at its place.
Node = dict[str, Any]


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


def fields_of(data: Any) -> Any:
    """A batch's own mapping: the dictionary in a TensorDict, whose look-ups cost less."""
    return data if type(data) is dict else getattr(data, "_tensordict", data)


def found(data: Any, path: tuple[str, ...]) -> Any:
    """The value at a path of nested fields, None if there is none."""
    for length in range(len(path), 0, -1):
        if length > 1 and not isinstance(data, dict):
            continue  # a dictionary alone may hold a tuple as its key
        key = path[0] if length == 1 else path[:length]
        if is_mapping(data) and key in data.keys():  # noqa: SIM118
            value = data[key]
            return value if length == len(path) else found(value, path[length:])
    return None


def without(data: Any, path: tuple[str, ...]) -> Any:
    """A mapping without what lies at a path; the caller's own stays as it is."""
    if hasattr(data, "exclude"):
        return data.exclude(path if len(path) > 1 else path[0])
    if path in data or path[0] not in data:
        return {key: value for key, value in data.items() if key != path}
    if len(path) == 1:
        return {key: value for key, value in data.items() if key != path[0]}
    return {**data, path[0]: without(data[path[0]], path[1:])}


def with_first_dimension(data: Any) -> Any:
    """A record as a batch of one."""
    if is_mapping(data):
        if hasattr(data, "unsqueeze"):
            return data.unsqueeze(0)
        return {key: with_first_dimension(value) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(with_first_dimension(part) for part in data)
    return data[None] if hasattr(data, "shape") and hasattr(data, "dtype") else [data]


def tree_of(schema: Schema) -> Node:
    """Nested dictionaries with the position of each field at its place."""
    tree: Node = {}
    for position, path in enumerate(schema.paths):
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = position
    return tree


def collect(node: Node, data: Any, leaves: list[Any]) -> int:
    """Puts each leaf at its field's position; how many, or -1 when a key is unknown."""
    placed = 0
    for key, value in fields_of(data).items():
        place = node.get(key)
        if place is None and type(key) is tuple:
            place = _descend(node, key)
        if type(place) is int:
            leaves[place] = value
            placed += 1
        elif place is None or not is_mapping(value):
            return -1
        else:
            below = collect(place, value, leaves)
            if below < 0:
                return -1
            placed += below
    return placed


def _descend(node: Any, path: tuple[Any, ...]) -> Any:
    """What lies at a path, None for nothing."""
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    return node


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
