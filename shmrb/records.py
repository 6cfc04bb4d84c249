"""Records on their way in: nested data becomes one checked address a column (floor F5).

Everything is checked before the first byte is written: keys, shapes, dtypes, representability. Data
that already lies right (CPU, contiguous, the column's dtype) is not copied here; the native core
copies it once, into the ring.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shmrb import core
from shmrb.dtypes import DTYPES
from shmrb.errors import RecordError
from shmrb.fields import PADDING_ADVICE, Field, show_path
from shmrb.likeness import is_mapping
from shmrb.nesting import collect, first_size, paths_of, tree_of
from shmrb.schema import Schema
from shmrb.tensors import native_tensors

Array = npt.NDArray[Any]


@dataclass(slots=True)
class Rows:
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
        self._tree = tree_of(schema)
        # Calls of one handle mostly bring as many records as the last one.
        shapes = [field.shape for field in schema.fields]
        self._last_shapes: tuple[int | None, list[tuple[int, ...]]] = (None, shapes)

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

    def place(self, position: int, value: Any, count: int) -> int | None:
        """Where a tensor of new values of one field lies; None if it needs the longer way."""
        if not is_tensor(value) or self._tensors is None:
            return None
        return self._tensors.place(position, value, count)

    def take(self, position: int, value: Any, count: int) -> tuple[int, Any]:
        """Where new values of one field for `count` records lie, and what keeps them there."""
        column = self._columns[position]
        return column.take(value, (count, *column.shape))

    def values(self, key: Any, value: Any, count: int) -> tuple[int, Any]:
        """New values of one field for `count` records: its position and an array of them."""
        position = self.schema.find(key)
        array = self._columns[position].array(value, (count,))
        return position, array

    def _rows(self, data: Any, batched: bool) -> Rows:
        leaves = self._leaves(data)
        count = first_size(leaves[0]) if batched else 1
        if is_tensor(leaves[0]) and self._tensors is not None:
            places = self._tensors.places(leaves, count if batched else -1)
            if places is not None:
                return Rows(count, places, leaves)
        shapes = self._shapes(count if batched else None)
        addresses: list[int] = []
        try:
            for place, column in enumerate(self._columns):
                address, leaves[place] = column.take(leaves[place], shapes[place])
                addresses.append(address)
        except RecordError:
            if batched:
                self._refuse_counts(self._leaves(data))
            raise
        return Rows(count, addresses, leaves)

    @cached_property
    def _tensors(self) -> core.Tensors | None:
        """Known once a tensor came: numpy handles do without torch."""
        return native_tensors(self.schema.fields)

    def _shapes(self, count: int | None) -> list[tuple[int, ...]]:
        """The shape of each leaf of so many records; None: of one, without that dimension."""
        last = self._last_shapes
        if last[0] != count:
            lead = () if count is None else (count,)
            last = count, [lead + field.shape for field in self.schema.fields]
            self._last_shapes = last
        return last[1]

    def _stack(self, records: list[Any]) -> Rows:
        if not records:
            raise RecordError("extend: expected at least one record, got an empty list.")
        rows = [self.record(record) for record in records]
        stacked = [
            np.stack([column.view(row.owners[i], column.shape) for row in rows])
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
            placed = collect(self._tree, data, leaves)
        except RuntimeError as error:  # tensordict refuses to stack what is ragged
            raise RecordError(f"record: {error}. {PADDING_ADVICE}") from error
        if placed != len(leaves):
            self._refuse_keys(data)
        return leaves

    def _refuse_counts(self, leaves: list[Any]) -> None:
        """Says so if the leaves do not hold equally many records."""
        counts = {first_size(leaf) for leaf in leaves}
        if len(counts) == 1 and -1 not in counts:
            return
        sizes = ", ".join(
            f"{show_path(field.path)} {list(getattr(leaf, 'shape', ())) or type(leaf).__name__}"
            for field, leaf in zip(self.schema.fields, leaves, strict=True)
        )
        raise RecordError(
            f"batch: expected the same number of records in every field, got {sizes}. One record "
            "is written with add()."
        )

    def _refuse_keys(self, data: Any) -> None:
        expected = set(self.schema.paths)
        got = set(paths_of(data, (), tree_of(self.schema)))
        missing = ", ".join(map(show_path, sorted(expected - got)))
        unknown = ", ".join(map(show_path, sorted(got - expected)))
        parts = [f"missing {missing}"] * bool(missing) + [f"unknown {unknown}"] * bool(unknown)
        raise RecordError(
            f"record: {' and '.join(parts) or 'a field is given twice'}. Expected exactly "
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
        self._is_complex = self.numpy_dtype.kind == "c"
        # Known once a tensor came: numpy handles do without torch.
        self._torch_dtype: Any = None

    @property
    def where(self) -> str:
        """The field, for messages."""
        return f"field {show_path(self.field.path)}"

    def take(self, value: Any, shape: tuple[int, ...]) -> tuple[int, Any]:
        """The address of values that have this shape, and what keeps it valid."""
        if type(value) is np.ndarray and (
            value.dtype == self.numpy_dtype and value.shape == shape and value.flags.c_contiguous
        ):
            return core.address(value), value
        if is_tensor(value):
            tensor = self._tensor(value, shape)
            return tensor.data_ptr(), tensor
        array = self._array(value, shape)
        return core.address(array), array

    def array(self, value: Any, lead: tuple[int, ...]) -> Array:
        """Values of `lead` records as one contiguous array of the column's numpy dtype."""
        return self._array(value, lead + self.shape)

    def _array(self, value: Any, shape: tuple[int, ...]) -> Array:
        if is_tensor(value):
            return self.view(self._tensor(value, shape), shape)
        # numpy has no bfloat16: a uint16 scalar is one's bits as well as an array of them.
        arrays = (np.ndarray, np.generic) if self.dtype.name == "bfloat16" else np.ndarray
        array = self._cast_array(value) if isinstance(value, arrays) else self._plain(value)
        self._check_shape(array.shape, shape)
        return np.ascontiguousarray(array).reshape(shape)

    def view(self, owner: Any, shape: tuple[int, ...]) -> Array:
        """What `take` kept, as numpy sees it."""
        if not is_tensor(owner):
            return np.asarray(owner)
        if self.dtype.name == "bfloat16":
            owner = owner.view(sys.modules["torch"].uint16)
        return np.asarray(owner.detach().numpy()).reshape(shape)

    def _tensor(self, value: Any, shape: tuple[int, ...]) -> Any:
        if value.dtype is not self._torch_dtype:
            torch = sys.modules["torch"]
            self._torch_dtype = getattr(torch, self.dtype.torch)
            if value.dtype is not self._torch_dtype:
                value = self._cast_tensor(value)
        if value.shape != shape:
            self._check_shape(tuple(value.shape), shape)
        if not value.is_cpu:
            value = value.cpu()  # returns when the copy is done: nothing is committed before
        if self._is_put_off(value):
            value = value.resolve_conj().resolve_neg()
        return value if value.is_contiguous() else value.contiguous()

    def _is_put_off(self, value: Any) -> bool:
        """Whether a sign is not in memory yet: torch puts conjugates and negations off."""
        return bool(value.is_neg() or (self._is_complex and value.is_conj()))

    def _cast_tensor(self, value: Any) -> Any:
        torch = sys.modules["torch"]
        if self.cast == "same_kind" and torch.can_cast(value.dtype, self._torch_dtype):
            return value.to(self._torch_dtype)
        raise self._wrong_dtype(str(value.dtype).removeprefix("torch."))

    def _cast_array(self, value: Any) -> Array:
        array: Array = np.asarray(value)
        if array.dtype == self.numpy_dtype:
            return array
        if self.cast == "same_kind" and np.can_cast(array.dtype, self.numpy_dtype, "same_kind"):
            return array.astype(self.numpy_dtype)
        raise self._wrong_dtype(str(array.dtype))

    def _plain(self, value: Any) -> Array:
        """Numbers, and lists of them, take the column's dtype if it can represent them."""
        try:
            natural = np.asarray(value)
        except ValueError as error:
            raise RecordError(f"{self.where}: ragged values ({error}). {PADDING_ADVICE}") from error
        except TypeError as error:  # what only pretends to be an array
            raise RecordError(f"{self.where}: no values that numpy can read ({error}).") from error
        if natural.dtype.kind not in "biufc":
            raise RecordError(
                f"{self.where}: expected {self.dtype.name} values, got "
                f"{type(value).__name__} of {natural.dtype}."
            )
        if self.dtype.name == "bfloat16":
            return self._bfloat16(value)
        if natural.dtype.kind == "c" and self.numpy_dtype.kind != "c":
            raise self._not_representable(value)
        with np.errstate(over="ignore", invalid="ignore"):
            array = natural.astype(self.numpy_dtype)
        if not _represents(array, natural):
            raise self._not_representable(value)
        return array

    def _bfloat16(self, value: Any) -> Array:
        torch = sys.modules.get("torch")
        if torch is None:
            raise RecordError(
                f"{self.where}: a number needs torch to become bfloat16; give the uint16 "
                "bits as an array."
            )
        numbers = torch.tensor(value, dtype=torch.bfloat16)
        return np.asarray(numbers.view(torch.uint16).numpy())

    def _check_shape(self, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if got == expected:
            return
        is_batch = len(expected) > len(self.shape)
        raise RecordError(
            f"{self.where}: expected shape {list(expected)}, got {list(got)}."
            + (" Records lie along the first dimension." if is_batch else "")
        )

    def _wrong_dtype(self, got: str) -> RecordError:
        return RecordError(
            f"{self.where}: expected dtype {self.dtype.name}, got {got}. Convert it, or give "
            "the handle cast='same_kind'."
        )

    def _not_representable(self, value: Any) -> RecordError:
        return RecordError(f"{self.where}: {value!r} cannot be represented as {self.dtype.name}.")


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
