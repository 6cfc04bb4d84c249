"""Which fields a record has; floor F1.

`Schema` is what a buffer fixes for its life. It is written out (`Schema.from_mapping`), read off a
record (`schema_like`) or off an environment (`schema_from_env`). Arrays are recognised by what they
carry, dtype and shape, so that a process without torch and the daemon without numpy can describe a
buffer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from shmrb.description import Description, Path
from shmrb.errors import SpecError, UnknownKeyError
from shmrb.fields import PADDING_ADVICE, RESERVED_KEYS, TENSOR_PATH, Field, key_path, show_path
from shmrb.likeness import fields_of_record
from shmrb.spaces import fields_of_space, spaces_of_env

ROOTS = ("dict", "tensor", "tuple")


@dataclasses.dataclass(frozen=True, slots=True)
class Schema(Description):
    """The fields of a record, in order.

    Attributes:
        fields: at least one; no path twice, and none that lies inside another.
        root: what a record is: nested dictionaries ("dict"), one bare array ("tensor"), or a tuple
            ("tuple"), whose positions are the first parts "0", "1", and so on.
    """

    kind: ClassVar[str] = "Schema"

    fields: tuple[Field, ...]
    root: str = "dict"
    _positions: dict[Path, int] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fields = tuple(self.fields)
        object.__setattr__(self, "fields", fields)
        if self.root not in ROOTS:
            raise SpecError(f"schema root: expected one of {', '.join(ROOTS)}, got {self.root!r}.")
        if not fields:
            raise SpecError("schema: expected at least one field, got none.")
        object.__setattr__(self, "_positions", _checked_positions(fields))
        _check_root(fields, self.root)

    @classmethod
    def from_mapping(cls, mapping: Mapping[Any, Any] | Schema) -> Schema:
        """The schema that nested dictionaries describe.

        A leaf is a dtype (a scalar field), a pair (dtype, shape), or anything with `dtype` and
        `shape`. A dtype is a name, a Python scalar type, or a numpy or torch dtype. A key is a
        string, or a tuple of strings that stands for nested dictionaries.

        Example:
            >>> schema = Schema.from_mapping({"obs": ("float32", 4), "next": {"done": bool}})
            >>> [(field.key, field.dtype, field.shape) for field in schema.fields]
            [('obs', 'float32', (4,)), (('next', 'done'), 'bool', ())]
        """
        if isinstance(mapping, Schema):
            return mapping
        if not isinstance(mapping, Mapping):
            raise SpecError(f"schema: expected a dictionary of fields, got {mapping!r}.")
        return cls(tuple(_written_fields(mapping, ())))

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path of each field, in order."""
        return tuple(field.path for field in self.fields)

    @property
    def row_bytes(self) -> int:
        """Bytes of one record."""
        return sum(field.row_bytes for field in self.fields)

    def find(self, key: str | Sequence[str]) -> int:
        """The position of the field with this key.

        Raises:
            UnknownKeyError: no field bears it; the message lists those that exist.
        """
        path = (key,) if isinstance(key, str) else tuple(key)
        position = self._positions.get(path)
        if position is None:
            known = ", ".join(map(show_path, self.paths))
            raise UnknownKeyError(f"no field {show_path(path)}; the record has {known}.")
        return position

    def differences(self, other: Schema) -> list[str]:
        """What `other` has otherwise, one sentence each; the order of fields does not count.

        Args:
            other: the schema asked for, while this one exists.
        """
        return _differences(self, other, "existing", "asked for")

    def to_json(self) -> dict[str, Any]:
        """The schema as plain JSON values: a list [path, dtype, shape] a field."""
        rows = [[list(field.path), field.dtype, list(field.shape)] for field in self.fields]
        return {"kind": self.kind, "root": self.root, "fields": rows}

    @classmethod
    def _values(cls, known: dict[str, Any]) -> dict[str, Any]:
        rows = known["fields"]
        if not isinstance(rows, list) or not all(isinstance(r, list) and len(r) == 3 for r in rows):
            raise SpecError(
                f"Schema description: expected a list of [path, dtype, shape], got {rows!r}."
            )
        return known | {"fields": tuple(Field(path, dtype, shape) for path, dtype, shape in rows)}


def schema_like(record: Any, batched: bool = False) -> Schema:
    """The schema of records like this one.

    Args:
        record: nested dictionaries, a TensorDict, a tuple, or one array. Leaves are arrays,
            tensors, Python scalars (float is float32, int int64, bool bool) and regular lists of
            them.
        batched: the first dimension of every leaf counts records. Then `record` may also be a list
            of records, which must agree.

    Raises:
        SpecError: a leaf that no column can hold, ragged data, or a key that no field may bear.
    """
    if isinstance(record, list):
        return _schema_of_list(record, batched)
    root, fields = fields_of_record(record, batched)
    return Schema(fields, root)


def schema_from_env(env: Any, *, stored_once: bool = False) -> Schema:
    """The schema of the transitions that one step of this environment makes.

    Args:
        env: a Gymnasium environment (1.0 or newer), a vector environment, whose single spaces
            count, or the id of a registered environment, which is made and closed again.
        stored_once: leave "next" out: what came next is then read from the following record, which
            takes half the memory for images.

    Returns:
        "observation" and "action" as the spaces have them (Box, Discrete as an int64 scalar,
        MultiDiscrete, MultiBinary, Dict as nested keys); under "next" the observation, "reward"
        float32 [1], and "terminated", "truncated", "done" bool [1]. Stored once: the observation,
        and reward and flags of the step that led to it, at the root.

    Raises:
        SpecError: a space that records of one shape cannot hold; the message names it.
    """
    observation, action = spaces_of_env(env)
    above: Path = () if stored_once else ("next",)
    fields = [
        *fields_of_space(observation, ("observation",)),
        *fields_of_space(action, ("action",)),
    ]
    if not stored_once:
        fields += fields_of_space(observation, ("next", "observation"))
    fields.append(Field((*above, "reward"), "float32", (1,)))
    ends = [Field((*above, key), "bool", (1,)) for key in ("terminated", "truncated", "done")]
    return Schema((*fields, *ends))


def _schema_of_list(records: list[Any], batched: bool) -> Schema:
    if not batched:
        raise SpecError(
            "a list is a batch of records, not one record; pass batched=True, or make it an array."
        )
    if not records:
        raise SpecError("expected at least one record, got an empty list.")
    first, *others = (schema_like(record) for record in records)
    for place, other in enumerate(others, start=1):
        if found := _differences(first, other, "the first has", "it has"):
            raise SpecError(f"record {place} of the list: {'; '.join(found)}. {PADDING_ADVICE}")
    return first


def _differences(one: Schema, other: Schema, mine: str, theirs: str) -> list[str]:
    found = []
    if one.root != other.root:
        found.append(f"record: {mine} a {one.root}, {theirs} a {other.root}")
    rest = {field.path: field for field in other.fields}
    for field in one.fields:
        match = rest.pop(field.path, None)
        if match != field:
            found.append(
                f"field {show_path(field.path)}: {mine} {field}, {theirs} {match or 'none'}"
            )
    found += [
        f"field {show_path(path)}: {mine} none, {theirs} {field}" for path, field in rest.items()
    ]
    return found


def _checked_positions(fields: tuple[Field, ...]) -> dict[Path, int]:
    positions: dict[Path, int] = {}
    for position, field in enumerate(fields):
        if field.path in positions:
            raise SpecError(f"schema: the field {show_path(field.path)} is given twice.")
        positions[field.path] = position
    for path in positions:
        for length in range(1, len(path)):
            if path[:length] in positions:
                raise SpecError(
                    f"schema: {show_path(path[:length])} is a field and also the parent of "
                    f"{show_path(path)}; rename one of them."
                )
    return positions


def _check_root(fields: tuple[Field, ...], root: str) -> None:
    names = list(dict.fromkeys(field.path[0] for field in fields))
    if root == "tensor" and [field.path for field in fields] != [TENSOR_PATH]:
        raise SpecError(f"schema: a bare array has the one field {TENSOR_PATH!r}, got {names}.")
    if root == "tuple" and names != [str(place) for place in range(len(names))]:
        raise SpecError(f"schema: the positions of a tuple are '0', '1', and so on, got {names}.")
    taken = [field.path[0] for field in fields if field.path[0] in RESERVED_KEYS]
    if taken:
        raise SpecError(
            f"schema: {taken[0]!r} is reserved, since `sample` adds its own field of that name; "
            "rename it, or leave it out where records come from a sampled batch. Reserved are "
            f"{', '.join(sorted(RESERVED_KEYS))}."
        )


def _written_fields(mapping: Mapping[Any, Any], above: Path) -> Iterator[Field]:
    if not mapping:
        raise SpecError(
            f"schema: {show_path(above) if above else 'the dictionary'} holds no field."
        )
    for key, leaf in mapping.items():
        path = key_path((*above, *key_path(key)))
        if isinstance(leaf, Mapping):
            yield from _written_fields(leaf, path)
        elif isinstance(leaf, (tuple, list)):
            if len(leaf) != 2:
                raise SpecError(f"field {show_path(path)}: expected (dtype, shape), got {leaf!r}.")
            yield Field(path, leaf[0], leaf[1])
        elif not isinstance(leaf, type) and hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
            yield Field(path, leaf.dtype, leaf.shape)
        else:
            yield Field(path, leaf, ())
