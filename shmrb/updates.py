"""Conditional updates: patches for records that are still there (floor F5).

All of a call is checked before its first row is written. The rows are then compared and written one
by one by the native core, each in one step against readers and against updaters in other processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shmrb import core
from shmrb.attachment import Attachment
from shmrb.core import SLICE_NS, VersionKind
from shmrb.description import Path
from shmrb.dtypes import DTYPES
from shmrb.errors import EmptyBufferError, RecordError, UnknownKeyError
from shmrb.fields import TENSOR_PATH, Field
from shmrb.handles import Handles, whole_numbers
from shmrb.likeness import is_mapping
from shmrb.nesting import fields_of
from shmrb.records import RecordReader, is_tensor
from shmrb.waiting import Call

Verdicts = npt.NDArray[np.uint8]

CALL = Call("update_if_present")
# The own version array of a buffer has no column.
OWN_VERSIONS = -1


class Versions(NamedTuple):
    """Checked incoming versions, one a row, and with what they are compared."""

    rows: Any
    column: int
    kind: VersionKind


class ConditionalUpdates:
    """The conditional updates of one handle.

    Args:
        attachment: the handle's.
        reader: gives what checks values; the schema may be known only later.
    """

    def __init__(self, attachment: Attachment, reader: Callable[[], RecordReader]) -> None:
        self.attachment = attachment
        self._reader = reader

    def update(
        self,
        handles: Handles,
        patch: Any,
        version_key: Any,
        version: Any,
        require_newer: bool,
        timeout: float | None,
    ) -> Verdicts:
        """Writes the patch over each record that is still there: 0 stale, 1 updated, 2 too old.

        Raises:
            RecordError, UnknownKeyError: something does not fit; nothing is written.
            EmptyBufferError: the buffer has no fields yet.
        """
        if not handles.has_generations:
            raise RecordError(f"{CALL.name}: give generation= beside index=, or a batch.")
        if version is None and version_key is not None:
            raise RecordError("version_key and version must be provided together.")
        if require_newer and version is None:
            raise RecordError(f"{CALL.name}: require_newer=True compares versions: give version=.")
        values = _leaves(patch)
        key_path = None if version_key is None else _version_path(version_key, values)
        verdicts = np.zeros(handles.size, np.uint8)
        if not values and version is None and not self._is_initialized():
            return verdicts
        reader = self._initialized_reader()
        # TorchRL's order: whether the versions fit, then the values, then the versions' dtype.
        finish = self._versions(reader, key_path, version, handles.size)
        count = handles.size
        columns, addresses, kept = [], [], []
        for path, value in values.items():
            position, address, owner = _taken(reader, path, value, count)
            columns.append(position)
            addresses.append(address)
            kept.append(owner)
        versions = None if finish is None else finish()
        if count == 0:
            return verdicts
        index, generation = handles.addresses
        places = (
            0 if versions is None else core.address(versions.rows),
            require_newer,
            core.address(verdicts),
            SLICE_NS,
            OWN_VERSIONS if versions is None else versions.column,
            0 if versions is None else int(versions.kind),
        )
        self.attachment.run(
            lambda segment: segment.update(index, count, generation, columns, addresses, *places),
            CALL,
            timeout,
        )
        return verdicts

    def _is_initialized(self) -> bool:
        try:
            self._reader()
        except EmptyBufferError:
            return False
        return True

    def _initialized_reader(self) -> RecordReader:
        try:
            return self._reader()
        except EmptyBufferError:
            raise EmptyBufferError(
                "Conditional updates require an initialized storage. Write some data to the "
                "buffer before calling update_if_present. "
                f"({self.attachment.address.name} is declared and has no fields yet.)"
            ) from None

    def _versions(
        self, reader: RecordReader, path: Path | None, version: Any, count: int
    ) -> Callable[[], Versions] | None:
        """Checks that the versions fit; what it returns checks their dtype and gives them."""
        if version is None:
            return None
        if path is None:
            return lambda: Versions(_own(version, count), OWN_VERSIONS, VersionKind.SIGNED)
        field = reader.schema.fields[_position(reader, path)]
        key = _shown(path)
        kind = _kind(field)
        if any(size != 1 for size in field.shape) or kind is None:
            raise RecordError(
                f"version_key {key!r} must reference a per-record scalar field; the storage holds "
                f"feature shape {field.shape}{' of ' + field.dtype if kind is None else ''}."
            )
        given = np.shape(version)
        if (math.prod(given) != count and given != ()) or any(n != 1 for n in given[1:]):
            raise RecordError(
                "version must be a scalar or hold one entry per record, got shape "
                f"{tuple(given)} for {count} records."
            )

        def finish() -> Versions:
            lead = 1 if given == () else count
            position, rows = _fitted(reader, path, version, lead)
            if _holds_nan(rows, kind):
                raise RecordError(f"version: NaN is neither newer nor older than {key!r}.")
            rows = np.ascontiguousarray(np.broadcast_to(rows, (count, *rows.shape[1:])))
            return Versions(rows, position, kind)

        return finish


def _leaves(patch: Any, above: Path = ()) -> dict[Path, Any]:
    """Values of a patch by path: nested dictionaries, tuple keys, or a TensorDict."""
    if not is_mapping(patch):
        if above or patch is None:
            raise RecordError(f"patch: expected fields by name, got {type(patch).__name__}.")
        return {TENSOR_PATH: patch}  # of a buffer whose records are bare arrays
    leaves: dict[Path, Any] = {}
    for key, value in fields_of(patch).items():
        path = (*above, key) if type(key) is str else (*above, *_unravelled(key))
        if is_tensor(value) or type(value) is np.ndarray or not is_mapping(value):
            leaves[path] = value
        else:
            leaves |= _leaves(value, path)
    return leaves


def _unravelled(key: Any) -> Path:
    if isinstance(key, str):
        return (key,)
    if not isinstance(key, tuple):
        raise UnknownKeyError(f"patch: expected a field's name or a tuple of names, got {key!r}.")
    return tuple(part for piece in key for part in _unravelled(piece))


def _version_path(version_key: Any, values: dict[Path, Any]) -> Path:
    if isinstance(version_key, str) and "." in version_key:
        raise RecordError(
            f"Dotted-string version keys are not supported: got {version_key!r}. Pass the nested "
            f"key in tuple form, e.g. {tuple(version_key.split('.'))!r}."
        )
    path = _unravelled(version_key)
    if path in values:
        raise RecordError(f"version_key {_shown(path)!r} may not appear in patch.")
    return path


def _shown(path: Path) -> str | Path:
    return path[0] if len(path) == 1 else path


def _position(reader: RecordReader, path: Path) -> int:
    try:
        return reader.schema.find(path)
    except UnknownKeyError as error:
        raise UnknownKeyError(
            f"Key {_shown(path)} does not exist in the storage. Conditional patches can only "
            f"target existing tensor fields of a tensordict storage. Got {error}"
        ) from None


def _taken(reader: RecordReader, path: Path, value: Any, count: int) -> tuple[int, int, Any]:
    """The position of a field, where its new values lie, and what keeps them there."""
    position = _position(reader, path)
    place = reader.place(position, value, count)
    if place is not None:
        return position, place, value
    if getattr(value, "shape", None) == (count, *reader.schema.fields[position].shape):
        try:
            address, owner = reader.take(position, value, count)
        except RecordError:
            pass  # the longer way says what is wrong in TorchRL's words
        else:
            return position, address, owner
    _, array = _fitted(reader, path, value, count)
    return position, core.address(array), array


def _fitted(reader: RecordReader, path: Path, value: Any, count: int) -> tuple[int, Any]:
    """The position of a field and its checked new values, reshaped as TorchRL does."""
    position = _position(reader, path)
    field = reader.schema.fields[position]
    shape = (count, *field.shape)
    if isinstance(value, np.generic):
        value = value.item()
    is_array = is_tensor(value) or isinstance(value, np.ndarray)
    if is_array and reader.cast == "no":
        _check_dtype(field, path, value)
    try:
        given = tuple(np.shape(value))
    except ValueError as error:
        raise RecordError(f"patch key {_shown(path)}: ragged values ({error}).") from None
    if math.prod(given) != math.prod(shape):
        raise RecordError(
            f"shape mismatch for patch key {_shown(path)}: got {given}, expected {count} records "
            f"with feature shape {field.shape}."
        )
    if given != shape:
        value = value.reshape(shape) if is_array else np.reshape(value, shape).tolist()
    return reader.values(path, value, count)


def _check_dtype(field: Field, path: Path, value: Any) -> None:
    dtype = DTYPES[field.dtype]
    if is_tensor(value):
        got, expected = str(value.dtype), f"torch.{dtype.torch}"
    else:
        got, expected = str(value.dtype), str(np.dtype(dtype.numpy))
    if got != expected:
        raise RecordError(
            f"dtype mismatch for patch key {_shown(path)}: got {got}, the storage holds "
            f"{expected}. Convert it, or give the handle cast='same_kind'."
        )


def _kind(field: Field) -> VersionKind | None:
    """How versions of this dtype are ordered, None if they are not."""
    if field.dtype == "bfloat16":
        return VersionKind.BFLOAT
    kinds = {"i": VersionKind.SIGNED, "f": VersionKind.FLOAT}
    kinds |= dict.fromkeys("ub", VersionKind.UNSIGNED)
    return kinds.get(np.dtype(DTYPES[field.dtype].numpy).kind)


def _holds_nan(rows: Any, kind: VersionKind) -> bool:
    if kind is VersionKind.BFLOAT:
        return bool(((rows & 0x7FFF) > 0x7F80).any())
    return kind is VersionKind.FLOAT and bool(np.isnan(rows).any())


def _own(version: Any, count: int) -> Any:
    """Versions for the buffer's own array: int64."""
    rows = whole_numbers(version, "version")
    if np.shape(version) == ():
        return np.full(count, rows[0], np.int64)
    if len(rows) != count:
        raise RecordError(
            "version must be a scalar or hold one entry per record, got shape "
            f"{tuple(np.shape(version))} for {count} records."
        )
    return rows
