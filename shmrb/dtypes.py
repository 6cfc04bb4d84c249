"""The element types that a column can have; floor F1.

Every torch dtype of whole bytes that numpy can hold, and bfloat16, which numpy
lacks and sees as its uint16 bits. Neither numpy nor torch is imported: the daemon reads schemas
too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shmrb.errors import SpecError


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    Attributes:
        name: the name in schemas, the same as numpy's and torch's where they have one.
        itemsize: bytes an element.
        numpy: name of the numpy dtype that columns have in numpy format.
        torch: name of the attribute of `torch`.
    """

    name: str
    itemsize: int
    numpy: str
    torch: str


def _same(name: str, itemsize: int) -> DType:
    return DType(name, itemsize, name, name)


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        _same("bool", 1),
        _same("uint8", 1),
        _same("int8", 1),
        _same("int16", 2),
        _same("int32", 4),
        _same("int64", 8),
        _same("uint16", 2),
        _same("uint32", 4),
        _same("uint64", 8),
        _same("float16", 2),
        DType("bfloat16", 2, "uint16", "bfloat16"),
        _same("float32", 4),
        _same("float64", 8),
        _same("complex64", 8),
        _same("complex128", 16),
    )
}

# Learning code computes in float32, so a Python float means that; a count or a class number needs
# int64.
PYTHON_TYPES: dict[type, str] = {
    bool: "bool",
    int: "int64",
    float: "float32",
    complex: "complex64",
}


def dtype_name(dtype: Any, where: str = "dtype") -> str:
    """The schema's name of `dtype`.

    Args:
        dtype: a name, a Python scalar type, or a numpy or torch dtype.
        where: what the error message calls it.

    Raises:
        SpecError: columns cannot have this dtype.
    """
    if isinstance(dtype, DType):
        return dtype.name
    if isinstance(dtype, type) and dtype in PYTHON_TYPES:
        return PYTHON_TYPES[dtype]
    if getattr(dtype, "isnative", True) is False:
        raise SpecError(
            f"{where}: {dtype!r} has foreign byte order; columns hold native order, convert with "
            "`array.astype(array.dtype.newbyteorder('='))`."
        )
    name = _written_name(dtype)
    if name not in DTYPES:
        raise SpecError(f"{where}: expected one of {', '.join(DTYPES)}; got {dtype!r}.")
    return name


def _written_name(dtype: Any) -> str:
    if isinstance(dtype, str):
        return dtype.removeprefix("torch.")
    if isinstance(dtype, type):  # numpy.float32 and its like; numpy before 2.0 writes bool_
        return dtype.__name__.rstrip("_")
    name = getattr(dtype, "name", None)  # numpy.dtype
    if isinstance(name, str):
        return name
    return str(dtype).removeprefix("torch.")
