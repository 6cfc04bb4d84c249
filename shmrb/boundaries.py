"""Which fields say where trajectories end; floor F1."""

from __future__ import annotations

from typing import Any

from shmrb.description import Path
from shmrb.errors import SpecError, SpecTypeError
from shmrb.fields import Field, key_path, show_path
from shmrb.schema import Schema

DONE_KEYS = ("done", "truncated", "terminated")
# Where a trajectory's id is looked for, as TorchRL's collectors and data sets name it.
TRAJ_KEYS: tuple[Path, ...] = (("collector", "traj_ids"), ("traj_ids",), ("episode",))


def checked_done_keys(keys: Any, schema: Schema | None) -> tuple[Path, ...]:
    """The fields that end a trajectory: those given, or those of the schema that bear such a name.

    Args:
        keys: what the user gave, empty for the latter.
        schema: None: it is not known yet, and nothing is looked for.

    Raises:
        SpecError: a field is unknown, or no bool of one element.
    """
    if not isinstance(keys, (tuple, list)):
        raise SpecTypeError(f"done_keys must be a list of keys, got {keys!r}; write [{keys!r}].")
    given = tuple(key_path(key) for key in keys)
    if schema is None:
        return given
    if given:
        for path in given:
            field = schema.fields[schema.find(path)]
            if not is_end_flag(field):
                raise SpecError(
                    f"done_keys: expected bool fields of one element, {show_path(path)} is {field}."
                )
        return given
    candidates = [(*above, key) for above in ((), ("next",)) for key in DONE_KEYS]
    return tuple(
        field.path for field in schema.fields if field.path in candidates and is_end_flag(field)
    )


def checked_traj_key(key: Any, schema: Schema | None) -> Path | None:
    """The field that holds the trajectory's id, None if there is none.

    Args:
        key: what the user gave, None for the first of `TRAJ_KEYS` that the schema has.
        schema: None: it is not known yet, and nothing is looked for.

    Raises:
        SpecError: the field is unknown, or has no bytes.
    """
    given = None if key is None else key_path(key)
    if schema is None:
        return given
    if given is None:
        with_bytes = {field.path for field in schema.fields if field.row_bytes}
        return next((path for path in TRAJ_KEYS if path in with_bytes), None)
    field = schema.fields[schema.find(given)]
    if field.row_bytes == 0:
        raise SpecError(
            f"traj_key: expected a field whose values tell trajectories apart, {show_path(given)} "
            f"is {field}."
        )
    return given


def is_end_flag(field: Field) -> bool:
    """Whether a field can end a trajectory: one bool a record."""
    return field.dtype == "bool" and field.row_bytes == 1
