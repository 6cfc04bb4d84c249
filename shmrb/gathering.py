"""Rows that wait to be written: preallocated columns, filled one value at a time (floor F5).

A value is checked when it is put: a row that is refused changes nothing that counts. What fits its
column as it is takes the short way, a few comparisons and one copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from shmrb.description import Path
from shmrb.dtypes import DTYPES
from shmrb.errors import RecordError
from shmrb.fields import Field, show_path
from shmrb.likeness import is_mapping
from shmrb.records import Column
from shmrb.schema import Schema

Array = npt.NDArray[Any]

# Python's numbers that such a column holds exactly, whatever their value, or numpy says so itself.
_PLAIN = {"bool": bool, "int64": int, "float64": float}


class Place(Protocol):
    """Where a value of a row goes: a field, or the fields below a name."""

    def put(self, row: int, value: Any) -> None:
        """Stores a value.

        Raises:
            RecordError: it does not fit; what the row holds is arbitrary then.
        """

    def holds(self, row: int, value: Any) -> bool:
        """Whether that is what the row holds, bit by bit."""


class Chunk:
    """Room for rows of one schema.

    Args:
        schema: what a row must have.
        size: how many rows.
        cast: what happens to arrays of another dtype, as in `RecordReader`.
    """

    def __init__(self, schema: Schema, size: int, cast: str) -> None:
        self.size = size
        self._cast = cast
        self._arrays = {
            field.path: np.zeros((size, *field.shape), DTYPES[field.dtype].numpy)
            for field in schema.fields
        }

    def place(self, fields: Sequence[Field], above: Path = ()) -> Place:
        """One place for fields that share the path `above`: the field itself, or a branch."""
        depth = len(above)
        if len(fields) == 1 and len(fields[0].path) == depth:
            field = fields[0]
            array = self._arrays[field.path]
            return (_Number if field.shape in ((), (1,)) else _Leaf)(field, array, self._cast)
        groups: dict[str, list[Field]] = {}
        for field in fields:
            groups.setdefault(field.path[depth], []).append(field)
        return _Branch(
            above, {part: self.place(group, (*above, part)) for part, group in groups.items()}
        )

    def reals(self, fields: Sequence[Field], path: Path) -> Place:
        """A place that takes any real number, if the field is one of floating-point element."""
        values = self._arrays[path] if fields[0].path == path else None
        if values is None or values.size != self.size or values.dtype.kind != "f":
            return self.place(fields, path)
        return _Real(path[-1], values.reshape(self.size))

    def numbers(self, path: Path) -> Array:
        """The values of a field of one element, [size]: for who checks them himself."""
        return self._arrays[path].reshape(self.size)

    def __len__(self) -> int:
        return self.size

    def clear(self, row: int, paths: Sequence[Path]) -> None:
        """Sets some fields of a row to zero."""
        for path in paths:
            self._arrays[path][row] = 0

    def move(self, row: int, to: int) -> None:
        """Copies a row over another one."""
        for array in self._arrays.values():
            array[to] = array[row]

    def rows(self, count: int) -> dict[str, Any]:
        """The first `count` rows as `extend` takes them; views."""
        tree: dict[str, Any] = {}
        for path, array in self._arrays.items():
            node = tree
            for part in path[:-1]:
                node = node.setdefault(part, {})
            node[path[-1]] = array[:count]
        return tree


class _Leaf:
    """A field of any shape."""

    def __init__(self, field: Field, array: Array, cast: str) -> None:
        self._dtype = array.dtype
        self._shape = field.shape
        self._rows = list(array)
        self._column = Column(field, cast)

    def put(self, row: int, value: Any) -> None:
        if type(value) is ndarray and value.dtype is self._dtype and value.shape == self._shape:
            self._rows[row][...] = value
        else:
            self._rows[row][...] = self._column.array(value, ())

    def holds(self, row: int, value: Any) -> bool:
        return self._column.array(value, ()).tobytes() == bytes(self._rows[row].tobytes())


class _Number:
    """A field of one element, which takes a bare number and an array of its own shape."""

    def __init__(self, field: Field, array: Array, cast: str) -> None:
        self._values = array.reshape(len(array))
        self._types = {array.dtype.type, _PLAIN.get(field.dtype)}
        self._column = Column(field, cast)
        self._bare = Column(Field(field.path, field.dtype, ()), cast)

    def put(self, row: int, value: Any) -> None:
        if type(value) in self._types:
            try:
                self._values[row] = value
                return
            except OverflowError:  # the long way says which field
                pass
        self._values[row] = self._checked(value)

    def holds(self, row: int, value: Any) -> bool:
        return self._checked(value).tobytes() == bytes(self._values[row].tobytes())

    def _checked(self, value: Any) -> Array:
        column = self._bare if np.ndim(value) == 0 else self._column
        return column.array(value, ()).reshape(())


class _Real:
    """A field of one floating-point element: any real number that it can represent."""

    def __init__(self, name: str, values: Array) -> None:
        self._name = name
        self._values = values
        self._most = float(np.finfo(values.dtype).max)

    def put(self, row: int, value: Any) -> None:
        if type(value) is not float:
            value = self._number(value)
        if not -self._most <= value <= self._most and math.isfinite(value):
            raise RecordError(
                f"{self._name}: {value!r} cannot be represented as {self._values.dtype}."
            )
        self._values[row] = value

    def holds(self, row: int, value: Any) -> bool:
        return bool(self._values[row] == self._number(value))

    def _number(self, value: Any) -> float:
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf":
            return float(array.reshape(()))
        raise RecordError(f"{self._name}: expected one real number, got {value!r}.")


class _Branch:
    """Fields below one name."""

    def __init__(self, path: Path, places: Mapping[str, Place]) -> None:
        self._where = f"field {show_path(path)}" if path else "step"
        self._places = places

    def put(self, row: int, value: Any) -> None:
        self._check(value)
        for key, place in self._places.items():
            place.put(row, value[key])

    def holds(self, row: int, value: Any) -> bool:
        self._check(value)
        return all(place.holds(row, value[key]) for key, place in self._places.items())

    def _check(self, value: Any) -> None:
        expected = self._places.keys()
        keys: set[Any] | None = set(value.keys()) if is_mapping(value) else None
        if keys is not None and not keys ^ expected:
            return
        names = ", ".join(map(repr, expected)) or "nothing more"
        if keys is None:
            got = type(value).__name__
            raise RecordError(f"{self._where}: expected {names} by name, got {got}.")
        missing = ", ".join(repr(key) for key in expected if key not in keys)
        unknown = ", ".join(repr(key) for key in sorted(keys, key=str) if key not in expected)
        parts = [f"missing {missing}"] * bool(missing) + [f"unknown {unknown}"] * bool(unknown)
        raise RecordError(f"{self._where}: {' and '.join(parts)}. Expected {names}.")
