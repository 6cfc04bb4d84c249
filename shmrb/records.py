"""Records on their way in: nested data becomes one checked address a column (floor F5).

Everything is checked before the first byte is written: keys, shapes, dtypes, representability. Data
that already lies right (CPU, contiguous, the column's dtype) is not copied here; the native core
copies it once, into the ring.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shmrb import core
from shmrb.dtypes import DTYPES
from shmrb.errors import RecordError
from shmrb.fields import PADDING_ADVICE, Field, show_path
from shmrb.likeness import is_mapping
from shmrb.schema import Schema

Array = npt.NDArray[Any]


class Rows(NamedTuple):
    """Checked rows: `addresses` are those of `owners`, which must live as long as they are used."""

    count: int
    addresses: list[int]
    owners: list[Any]

    def tail(self, start: int, strides: Sequence[int]) -> list[int]:
        """The addresses of row `start` on."""
        return [
            address + start * stride
            for address, stride in zip(self.addresses, strides, strict=True)
        ]


class RecordReader:
    """Reads records of one schema.

    Args:
        schema: what a record must have.
        cast: "no": arrays match their column exactly. "same_kind": numpy's rule of that name.
    """

    def __init__(self, schema: Schema, cast: str = "no") -> None:
        if cast not in ("no", "same_kind"):
            raise RecordError(f"cast: expected 'no' or 'same_kind', got {cast!r}.")
        self.schema = schema
        self.cast = cast
        self.strides = [field.row_bytes for field in schema.fields]
        self._columns = [Column(field, cast) for field in schema.fields]
        self._tree = _tree_of(schema)

    def record(self, data: Any) -> Rows:
        """One record: leaves have the shapes of the schema."""
        return self._rows(data, batched=False)

    def batch(self, data: Any) -> Rows:
        """Records along the first dimension of every leaf; a root list holds records to stack."""
        if isinstance(data, list) and self.schema.root != "tensor":
            return self._stack(data)
        if isinstance(data, list):
            return self._stack(data) if data and not _is_number(data[0]) else self._rows(data, True)
        return self._rows(data, batched=True)

    def values(self, key: Any, value: Any, count: int) -> tuple[int, Any]:
        """New values of one field for `count` records: its position and an array that holds them."""
        position = self.schema.find(key)
        array = self._columns[position].array(value, (count,))
        return position, array

    def _rows(self, data: Any, batched: bool) -> Rows:
        leaves = self._leaves(data)
        count = _common_count(leaves, self.schema.fields) if batched else 1
        lead = (count,) if batched else ()
        addresses: list[int] = []
        owners: list[Any] = []
        for column, leaf in zip(self._columns, leaves, strict=True):
            address, owner = column.take(leaf, lead)
            addresses.append(address)
            owners.append(owner)
        return Rows(count, addresses, owners)

    def _stack(self, records: list[Any]) -> Rows:
        if not records:
            raise RecordError("extend: expected at least one record, got an empty list.")
        rows = [self.record(record) for record in records]
        stacked = [
            np.stack([column.view(row.owners[i], ()) for row in rows])
            for i, column in enumerate(self._columns)
        ]
        return Rows(len(records), [core.address(array) for array in stacked], list(stacked))

    def _leaves(self, data: Any) -> list[Any]:
        if self.schema.root == "tensor":
            if is_mapping(data):
                raise RecordError(
                    "record: expected one bare array, as the first record was, got fields "
                    f"{sorted(map(str, data.keys()))}."
                )
            return [data]
        if self.schema.root == "tuple":
            if not isinstance(data, tuple):
                raise RecordError(f"record: expected a tuple, got {type(data).__name__}.")
            data = {str(place): part for place, part in enumerate(data)}
        if not is_mapping(data):
            raise RecordError(
                f"record: expected fields {', '.join(map(show_path, self.schema.paths))}, got "
                f"{type(data).__name__}."
            )
        leaves: list[Any] = [None] * len(self._columns)
        try:
            complete = _collect(self._tree, data, leaves)
        except RuntimeError as error:  # tensordict refuses to stack what is ragged
            raise RecordError(f"record: {error}. {PADDING_ADVICE}") from error
        if not complete:
            self._refuse_keys(data)
        return leaves

    def _refuse_keys(self, data: Any) -> None:
        expected = set(self.schema.paths)
        got = set(_paths(data, (), _tree_of(self.schema)))
        missing = ", ".join(map(show_path, sorted(expected - got)))
        unknown = ", ".join(map(show_path, sorted(got - expected)))
        parts = [f"missing {missing}"] * bool(missing) + [f"unknown {unknown}"] * bool(unknown)
        raise RecordError(
            f"record: {' and '.join(parts)}. Expected exactly "
            f"{', '.join(map(show_path, self.schema.paths))}: the schema is fixed when the buffer "
            "is created."
        )


class Column:
    """What one field accepts."""

    def __init__(self, field: Field, cast: str) -> None:
        self.field = field
        self.shape = field.shape
        self.cast = cast
        self.dtype = DTYPES[field.dtype]
        self.numpy_dtype = np.dtype(self.dtype.numpy)
        self._torch_dtype: Any = None

    def take(self, value: Any, lead: tuple[int, ...]) -> tuple[int, Any]:
        """The address of checked values, and what keeps it valid."""
        if type(value) is np.ndarray:
            if (
                value.dtype == self.numpy_dtype
                and value.shape == lead + self.shape
                and value.flags.c_contiguous
            ):
                return core.address(value), value
        elif is_tensor(value):
            tensor = self._tensor(value, lead)
            return tensor.data_ptr(), tensor
        array = self.array(value, lead)
        return core.address(array), array

    def array(self, value: Any, lead: tuple[int, ...]) -> Array:
        """The values as one contiguous array of the column's numpy dtype."""
        if is_tensor(value):
            return self.view(self._tensor(value, lead), lead)
        if isinstance(value, np.ndarray) or (isinstance(value, np.generic) and lead == ()):
            array = self._cast_array(np.asarray(value))
        else:
            array = self._plain(value)
        self._check_shape(array.shape, lead)
        return np.ascontiguousarray(array).reshape(lead + self.shape)

    def view(self, owner: Any, lead: tuple[int, ...]) -> Array:
        """What `take` kept, as numpy sees it."""
        if not is_tensor(owner):
            return np.asarray(owner)
        if self.dtype.name == "bfloat16":
            owner = owner.view(sys.modules["torch"].uint16)
        return np.asarray(owner.detach().numpy()).reshape(lead + self.shape)

    def _tensor(self, value: Any, lead: tuple[int, ...]) -> Any:
        if value.dtype is not self._torch_dtype:
            self._torch_dtype = getattr(sys.modules["torch"], self.dtype.torch)
            if value.dtype is not self._torch_dtype:
                value = self._cast_tensor(value)
        if value.shape != lead + self.shape:
            self._check_shape(tuple(value.shape), lead)
        if not value.is_cpu:
            value = value.cpu()  # returns when the copy is done: nothing is committed before
        return value if value.is_contiguous() else value.contiguous()

    def _cast_tensor(self, value: Any) -> Any:
        torch = sys.modules["torch"]
        if self.cast == "same_kind" and torch.can_cast(value.dtype, self._torch_dtype):
            return value.to(self._torch_dtype)
        raise self._wrong_dtype(str(value.dtype).removeprefix("torch."))

    def _cast_array(self, array: Array) -> Array:
        if array.dtype == self.numpy_dtype:
            return array
        if self.cast == "same_kind" and np.can_cast(array.dtype, self.numpy_dtype, "same_kind"):
            return array.astype(self.numpy_dtype)
        raise self._wrong_dtype(str(array.dtype))

    def _plain(self, value: Any) -> Array:
        """Python scalars, and lists of them, take the column's dtype if it can represent them."""
        try:
            natural = np.asarray(value)
        except ValueError as error:
            raise RecordError(
                f"field {self.field}: ragged values ({error}). {PADDING_ADVICE}"
            ) from error
        if natural.dtype.kind not in "biufc":
            raise RecordError(
                f"field {self.field}: expected {self.dtype.name} values, got "
                f"{type(value).__name__} of {natural.dtype}."
            )
        if self.dtype.name == "bfloat16":
            torch = sys.modules.get("torch")
            if torch is None:
                raise RecordError(
                    f"field {self.field}: a Python number needs torch to become bfloat16; give "
                    "the uint16 bits as an array."
                )
            return np.asarray(torch.tensor(value, dtype=torch.bfloat16).view(torch.uint16).numpy())
        with np.errstate(over="ignore", invalid="ignore"):
            array = natural.astype(self.numpy_dtype)
        if not _represents(array, natural):
            raise RecordError(
                f"field {self.field}: {value!r} cannot be represented as {self.dtype.name}."
            )
        return array

    def _check_shape(self, got: tuple[int, ...], lead: tuple[int, ...]) -> None:
        if got == lead + self.shape:
            return
        raise RecordError(
            f"field {self.field}: expected shape {list(lead + self.shape)}, got {list(got)}."
            + (" Records lie along the first dimension." if lead else "")
        )

    def _wrong_dtype(self, got: str) -> RecordError:
        return RecordError(
            f"field {self.field}: expected dtype {self.dtype.name}, got {got}. Convert it, or give "
            "the handle cast='same_kind'."
        )


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor, asked without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex, np.generic))


def _represents(array: Array, natural: Array) -> bool:
    """Whether a cast kept the values; a float may be rounded, but not to infinity."""
    if array.dtype.kind in "fc":
        return bool(np.array_equal(np.isfinite(array), np.isfinite(natural)))
    if natural.dtype.kind in "fc" and array.dtype.kind not in "fc" and not natural.size:
        return True
    return bool(np.array_equal(array, natural))


def _tree_of(schema: Schema) -> dict[str, Any]:
    """Nested dictionaries with the position of each field at its place."""
    tree: dict[str, Any] = {}
    for position, path in enumerate(schema.paths):
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = position
    return tree


def _collect(node: dict[str, Any], data: Any, leaves: list[Any]) -> bool:
    """Puts each leaf at its field's position; False when keys are missing or unknown."""
    found = 0
    for key, value in data.items():
        place = node.get(key)
        if type(place) is int:
            leaves[place] = value
        elif place is None or not is_mapping(value) or not _collect(place, value, leaves):
            return False
        found += 1
    return found == len(node)


def _paths(data: Any, above: tuple[str, ...], node: Any) -> list[tuple[str, ...]]:
    paths: list[tuple[str, ...]] = []
    for key, value in data.items():
        path = (*above, *(key if isinstance(key, tuple) else (str(key),)))
        below = node.get(key) if isinstance(node, dict) else None
        if is_mapping(value) and type(below) is not int:
            paths.extend(_paths(value, path, below))
        else:
            paths.append(path)
    return paths


def _common_count(leaves: list[Any], fields: tuple[Field, ...]) -> int:
    counts = {len(leaf) if isinstance(leaf, list) else _first_size(leaf) for leaf in leaves}
    if len(counts) == 1 and -1 not in counts:
        return int(counts.pop())
    sizes = ", ".join(
        f"{field} {list(getattr(leaf, 'shape', ())) or type(leaf).__name__}"
        for field, leaf in zip(fields, leaves, strict=True)
    )
    raise RecordError(
        f"batch: expected the same number of records in every field, got {sizes}. One record is "
        "written with add()."
    )


def _first_size(leaf: Any) -> int:
    shape = getattr(leaf, "shape", ())
    return int(shape[0]) if len(shape) else -1
