"""What small frozen objects need to travel as JSON; floor F1.

A description is a frozen dataclass with a kind. `to_json` gives plain dicts, lists, strings and
numbers (which is all that the wire, `meta` and checkpoints hold: nothing is pickled); `from_json`
reads them
strictly: an unknown key or kind means a newer program wrote it, and half-understood is worse than
    refused.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

from shmrb.errors import SpecError, SpecTypeError

D = TypeVar("D", bound="Description")

# A key path into a nested record.
Path = tuple[str, ...]


class Description:
    """Base of the frozen dataclasses that travel as JSON."""

    __slots__ = ()

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """The description as plain JSON values, with its kind."""
        fields = _arguments(type(self))
        return {"kind": self.kind} | {f.name: to_plain(getattr(self, f.name)) for f in fields}

    @classmethod
    def from_json(cls: type[D], document: Any) -> D:
        """Read what `to_json` wrote.

        Raises:
            SpecError: another kind, a missing or unknown key, or a value that makes no sense.
        """
        fields = _arguments(cls)
        known = read_object(document, cls.kind, [f.name for f in fields])
        absent = [f.name for f in fields if f.name not in known and _is_required(f)]
        if absent:
            raise SpecError(f"{cls.kind} description: missing {', '.join(map(repr, absent))}.")
        return cls(**cls._values(known))

    @classmethod
    def _values(cls, known: dict[str, Any]) -> dict[str, Any]:
        """Turn JSON values into constructor arguments, where they differ."""
        return known


def _arguments(cls: type[Description]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def to_plain(value: Any) -> Any:
    """`value` with descriptions and tuples turned into JSON's objects and arrays."""
    if isinstance(value, Description):
        return value.to_json()
    if isinstance(value, (tuple, list)):
        return [to_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: to_plain(part) for key, part in value.items()}
    return value


def read_object(document: Any, kind: str, keys: Iterable[str]) -> dict[str, Any]:
    """The members of a JSON object of this kind, without the tag, after checking its keys."""
    if not isinstance(document, dict):
        raise SpecError(f"{kind} description: expected an object, got {document!r}.")
    if document.get("kind") != kind:
        raise SpecError(
            f"{kind} description: expected kind {kind!r}, got {document.get('kind')!r}."
        )
    keys = list(keys)
    unknown = [key for key in document if key != "kind" and key not in keys]
    if unknown:
        raise SpecError(
            f"{kind} description: unknown key {', '.join(map(repr, unknown))}; this version of "
            f"shmrb knows {', '.join(keys)}. A newer version wrote it: update shmrb here."
        )
    return {key: value for key, value in document.items() if key != "kind"}


def read_one_of(document: Any, what: str, kinds: Iterable[type[Description]]) -> Any:
    """The description in `document`, which must be of one of these kinds."""
    by_kind = {cls.kind: cls for cls in kinds}
    kind = document.get("kind") if isinstance(document, dict) else document
    if not isinstance(kind, str) or kind not in by_kind:
        raise SpecError(
            f"{what}: expected a description of kind {', '.join(by_kind)}, got {kind!r}. "
            "If a newer version of shmrb wrote it, update shmrb here."
        )
    return by_kind[kind].from_json(document)


def whole(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """`value` as an int in [least, most], for an argument called `name`."""
    if isinstance(value, bool):
        raise SpecTypeError(f"{name} must be an integer, got {value!r}.")
    try:
        number = operator.index(value)
    except TypeError:
        raise SpecTypeError(f"{name} must be an integer, got {value!r}.") from None
    if number < least or (most is not None and number > most):
        span = f"at least {least}" if most is None else f"between {least} and {most}"
        raise SpecError(f"{name} must be {span}, got {number}.")
    return number


def real(name: str, value: Any) -> float:
    """`value` as a finite float, for an argument called `name`."""
    if isinstance(value, (bool, str, bytes)):
        raise SpecTypeError(f"{name} must be a number, got {value!r}.")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise SpecTypeError(f"{name} must be a number, got {value!r}.") from None
    if not math.isfinite(number):
        raise SpecError(f"{name} must be finite, got {number}.")
    return number


def flag(name: str, value: Any) -> bool:
    """`value` if it is a bool, for an argument called `name`."""
    if not isinstance(value, bool):
        raise SpecTypeError(f"{name} must be True or False, got {value!r}.")
    return value
