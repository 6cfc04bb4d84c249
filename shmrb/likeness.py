"""Reads the fields off a record that exists; floor F1.

A leaf counts by what it carries: a Python scalar, or anything with `dtype` and `shape`. What cannot
be a column is refused by the name of its field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from shmrb.description import Path
from shmrb.dtypes import PYTHON_TYPES, dtype_name
from shmrb.errors import SpecError
from shmrb.fields import PADDING_ADVICE, TENSOR_PATH, Field, checked_shape, key_path, show_path


def fields_of_record(record: Any, batched: bool) -> tuple[str, tuple[Field, ...]]:
    """The root kind (as in `Schema`) and the fields of one record or of a batch of them."""
    if is_mapping(record):
        root, leaves = "dict", list(_leaves(record, ()))
    elif isinstance(record, tuple):
        root, leaves = "tuple", list(_tuple_leaves(record))
    else:
        root, leaves = "tensor", [(TENSOR_PATH, record)]
    described = [(path, *_describe(leaf, f"field {show_path(path)}")) for path, leaf in leaves]
    if batched:
        described = _without_first_dimension(described)
    return root, tuple(Field(*triple) for triple in described)


def is_mapping(value: Any) -> bool:
    """Whether it holds fields: dictionaries, TensorDicts (mappings too) and tensorclasses."""
    kind: Any = type(value)
    return _holds_fields(kind)


@cache
def _holds_fields(kind: Any) -> bool:
    if _is_non_tensor(kind):
        return False
    return issubclass(kind, Mapping) or hasattr(kind, "_is_tensorclass")


def _is_non_tensor(kind: type) -> bool:
    """tensordict's wrappers of strings and objects, which as tensorclasses look like records."""
    return kind.__name__.startswith("NonTensor")


def _leaves(record: Any, above: Path) -> Iterator[tuple[Path, Any]]:
    where = f"field {show_path(above)}" if above else "the record"
    pairs = _pairs(record, where)
    if not pairs:
        raise SpecError(f"{where} holds no field; leave it out or fill it.")
    for key, leaf in pairs:
        path = key_path((*above, *key_path(key)))
        if is_mapping(leaf):
            yield from _leaves(leaf, path)
        else:
            yield path, leaf


def _pairs(record: Any, where: str) -> list[tuple[Any, Any]]:
    members = getattr(record, "tensordicts", None)
    if members:  # a lazy stack shows only the keys that all its members share
        odd = set().union(*(member.keys() for member in members)) - set(record.keys())
        if odd:
            raise SpecError(
                f"{where}: {min(odd, key=str)!r} is missing in some of the stacked records."
            )
    try:
        return list(record.items())
    except RuntimeError as error:  # a lazy stack of tensors of unequal shapes
        raise SpecError(f"{where} is ragged ({error}). {PADDING_ADVICE}") from error


def _tuple_leaves(record: tuple[Any, ...]) -> Iterator[tuple[Path, Any]]:
    for place, part in enumerate(record):
        path = (str(place),)
        if is_mapping(part):
            yield from _leaves(part, path)
        else:
            yield path, part


def _without_first_dimension(
    described: list[tuple[Path, str, tuple[int, ...]]],
) -> list[tuple[Path, str, tuple[int, ...]]]:
    counts = {shape[:1] for _, _, shape in described}
    if len(counts) > 1 or () in counts:
        sizes = ", ".join(f"{show_path(path)} {list(shape)}" for path, _, shape in described)
        raise SpecError(
            f"a batch has the number of records as the first dimension of every field; got {sizes}."
        )
    return [(path, name, shape[1:]) for path, name, shape in described]


def _describe(leaf: Any, where: str) -> tuple[str, tuple[int, ...]]:
    """dtype and shape of one leaf."""
    if type(leaf) in PYTHON_TYPES:
        return PYTHON_TYPES[type(leaf)], ()
    if isinstance(leaf, list):
        return _describe_list(leaf, where)
    if isinstance(leaf, tuple):
        raise SpecError(f"{where} is a tuple; give its parts names in a dictionary, or stack them.")
    if getattr(leaf, "is_nested", False):
        raise SpecError(f"{where} is ragged (a nested tensor). {PADDING_ADVICE}")
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape") or _is_non_tensor(type(leaf)):
        got = type(leaf).__name__
        raise SpecError(f"{where}: expected an array, a tensor or a number, got {got}.")
    if str(leaf.dtype) == "object":
        raise SpecError(f"{where} holds Python objects or is ragged. {PADDING_ADVICE}")
    return dtype_name(leaf.dtype, where), checked_shape(leaf.shape, where)


def _describe_list(leaf: list[Any], where: str) -> tuple[str, tuple[int, ...]]:
    if not leaf:
        raise SpecError(f"{where}: an empty list has no dtype; give an array of that shape.")
    parts = [_describe(part, where) for part in leaf]
    if len({shape for _, shape in parts}) > 1:
        raise SpecError(f"{where} is ragged. {PADDING_ADVICE}")
    names = {name for name, _ in parts}
    if names == {
        PYTHON_TYPES[int],
        PYTHON_TYPES[float],
    }:  # [0, 0.5] is meant as numbers with a point
        names = {PYTHON_TYPES[float]}
    if len(names) > 1:
        raise SpecError(f"{where}: the list mixes {' and '.join(sorted(names))}; give an array.")
    return names.pop(), (len(leaf), *parts[0][1])
