"""One field of a record and the names it may bear; floor F1.

A field is found by its path, a tuple of parts, never by a joined string: "a/b", "a.b" and ("a",
"b") are three fields. What a part may hold is limited to what can be printed, since names stand in
messages, tables and checkpoint manifests; how they become file names is the segment floor's affair.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shmrb.description import Path, whole
from shmrb.dtypes import DTYPES, dtype_name
from shmrb.errors import SpecError

# 255 bytes is what a directory entry can hold, so a checkpoint can name its files after the parts.
MAX_PART_BYTES = 255
MAX_PARTS = 32
# numpy before 2.0 has 32 dimensions at most, and a column has one more than its field.
MAX_DIMENSIONS = 31
# A record beyond 1 TiB is a mistake; below it, sums of row sizes cannot overflow 64 bits.
MAX_ROW_BYTES = 1 << 40

# Keys that `sample` adds beside the record, and those that its readers take for a handle.
RESERVED_KEYS = frozenset(
    {
        "index",
        "index_generation",
        "generation",
        "priority_weight",
        "anchor_index",
        "anchor_generation",
        "bootstrap_factor",
        "steps_to_next_obs",
        "sequence_id",
        "step_in_sequence",
        "learning_mask",
        "validity_mask",
        "staleness",
    }
)

# The path of the only field of a record that is a bare array.
TENSOR_PATH: Path = ("tensor",)

PADDING_ADVICE = (
    "Every record has the same shape: pad to a maximum and keep the true size in a field `length`."
)


@dataclass(frozen=True, slots=True)
class Field:
    """One named array of a record.

    Attributes:
        path: where it lies in a nested record.
        dtype: a name of `DTYPES`.
        shape: of one record; () is a scalar, and a dimension may be 0.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        path = key_path(self.path)
        where = f"field {show_path(path)}"
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "dtype", dtype_name(self.dtype, where))
        object.__setattr__(self, "shape", checked_shape(self.shape, where))
        if self.row_bytes > MAX_ROW_BYTES:
            raise SpecError(
                f"{where}: shape {list(self.shape)} of {self.dtype} takes {self.row_bytes} bytes a "
                f"record, more than the {MAX_ROW_BYTES} that one field can have."
            )

    @property
    def row_bytes(self) -> int:
        """Bytes of this field in one record; 0 if a dimension is 0."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def key(self) -> str | Path:
        """The path as TensorDict writes it: a string where there is one part."""
        return self.path[0] if len(self.path) == 1 else self.path

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def key_path(key: str | Sequence[str]) -> Path:
    """The path of a key, after checking every part.

    Raises:
        SpecError: not a string or a tuple of strings, or a part that no field may bear.
    """
    parts: Any = (key,) if isinstance(key, str) else key
    if not isinstance(parts, (tuple, list)):
        raise SpecError(
            f"key {key!r}: expected a string or a tuple of strings, got {type(key).__name__}."
        )
    if not 0 < len(parts) <= MAX_PARTS:
        raise SpecError(f"key {key!r}: expected 1 to {MAX_PARTS} parts, got {len(parts)}.")
    for part in parts:
        _check_part(part, key)
    return tuple(parts)


def show_path(path: Path) -> str:
    """The path as a user would write the key."""
    return repr(path[0] if len(path) == 1 else path)


def checked_shape(shape: Any, where: str) -> tuple[int, ...]:
    """`shape` as a tuple of sizes; a single number means one dimension."""
    if not isinstance(shape, Iterable) or isinstance(shape, (str, bytes)):
        shape = (shape,)
    sizes = tuple(whole(f"{where}: each size of its shape", size, least=0) for size in shape)
    if len(sizes) > MAX_DIMENSIONS:
        raise SpecError(f"{where}: expected at most {MAX_DIMENSIONS} dimensions, got {len(sizes)}.")
    if any(size > MAX_ROW_BYTES for size in sizes):
        raise SpecError(f"{where}: expected sizes up to {MAX_ROW_BYTES}, got shape {list(sizes)}.")
    return sizes


def _check_part(part: Any, key: Any) -> None:
    if not isinstance(part, str):
        raise SpecError(
            f"key {key!r}: every part is a string, got {part!r} ({type(part).__name__})."
        )
    if not part:
        raise SpecError(f"key {key!r}: a part is empty; give it a name.")
    if part in (".", ".."):
        raise SpecError(f"key {key!r}: the part {part!r} would name a directory; rename it.")
    if not part.isprintable():  # NUL, control characters, lone surrogates
        raise SpecError(f"key {key!r}: the part {part!r} holds characters that cannot be printed.")
    size = len(part.encode())
    if size > MAX_PART_BYTES:
        raise SpecError(
            f"key {key!r}: a part has {size} bytes in UTF-8, at most {MAX_PART_BYTES} are allowed."
        )
