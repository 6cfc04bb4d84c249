"""Torch's tensors as the native core reads and makes them (floor F5).

Torch publishes DLPack's table of C functions since 2.10. Through it one native call takes in or
makes all tensors of a record; with an older torch they are asked and made one by one from Python.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from shmrb.core import Tensors
from shmrb.dtypes import DTYPES
from shmrb.fields import Field

# DLPack's numbers for what is left of a dtype's name without its bits.
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}


def native_tensors(fields: Sequence[Field]) -> Tensors | None:
    """What reads and makes tensors of these fields; None without a torch that offers it."""
    torch = sys.modules.get("torch")
    table = getattr(getattr(torch, "Tensor", None), "__dlpack_c_exchange_api__", None)
    if torch is None or table is None:
        return None
    try:
        return Tensors(table, torch.Tensor, [_layout(field) for field in fields])
    except ValueError:  # a later major version
        return None


def _layout(field: Field) -> tuple[int, int, tuple[int, ...]]:
    """DLPack's type code, bits and shape."""
    code = _CODES[field.dtype.rstrip("0123456789")]
    return code, 8 * DTYPES[field.dtype].itemsize, field.shape
