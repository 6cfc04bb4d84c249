"""Records on their way out: a batch's memory, and the shape in which the user gets it (floor F5).

A batch is private memory, allocated once and filled by one native call. Handles in torch format give
TensorDicts, built without re-validation since every leaf was just made here; handles in numpy format
give nested dictionaries of arrays and never import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from shmrb import core
from shmrb.dtypes import DTYPES
from shmrb.errors import RecordError
from shmrb.fields import Field, show_path
from shmrb.likeness import is_mapping
from shmrb.records import is_tensor
from shmrb.schema import Schema

INDEX = "index"
GENERATION = "index_generation"


class Batch(NamedTuple):
    """Leaves of the schema's fields in order, what names and dates each record, and where all lie."""

    leaves: list[Any]
    index: Any
    generation: Any
    addresses: list[int]
    index_address: int
    generation_address: int


class BatchFormat:
    """How batches of one schema look to one handle.

    Args:
        schema: the fields.
        name: "torch" or "numpy".
    """

    def __init__(self, schema: Schema, name: str) -> None:
        self.schema = schema
        self.name = name
        self._fields = schema.fields
        dtypes = [DTYPES[field.dtype] for field in self._fields]
        self._kinds = [
            (field.shape, np.dtype(dtype.numpy))
            for field, dtype in zip(self._fields, dtypes, strict=True)
        ]
        self._nested = any(len(field.path) > 1 for field in self._fields)
        self._branch = _numpy_branch
        self._wrap: Callable[[Any], Any] | None = None
        self._halves: list[int] = []
        if name == "torch":
            import torch

            self._branch = _torch_branches()
            self._wrap = torch.from_numpy
            # numpy has no bfloat16: such a column is made as uint16 and seen as what it is.
            self._halves = [i for i, dtype in enumerate(dtypes) if dtype.name == "bfloat16"]

    def allocate(self, count: int) -> Batch:
        """Memory for `count` records; its contents are arbitrary.

        numpy makes it for both formats: it allocates three times as fast as torch.
        """
        arrays = [np.empty((count, *shape), dtype) for shape, dtype in self._kinds]
        index, generation = np.empty(count, np.int64), np.empty(count, np.int64)
        address = core.address
        places = [address(array) for array in arrays]
        wrap = self._wrap
        if wrap is None:
            leaves: list[Any] = arrays
            return Batch(leaves, index, generation, places, address(index), address(generation))
        leaves = [wrap(array) for array in arrays]
        for i in self._halves:
            leaves[i] = leaves[i].view(_bfloat16())
        return Batch(
            leaves, wrap(index), wrap(generation), places, address(index), address(generation)
        )

    def assemble(self, leaves: list[Any], count: int | None, info: Mapping[str, Any]) -> Any:
        """The user's batch: nested fields, then `info` beside them.

        Args:
            leaves: one a field.
            count: records along the first dimension; None: one record without that dimension.
            info: keys to add at the root; a root that is no mapping has no room for them.
        """
        if self.schema.root == "tensor":
            return leaves[0]
        if self.schema.root == "tuple":
            return self._assemble_tuple(leaves, count)
        lead = () if count is None else (count,)
        tree: dict[str, Any] = {}
        if self._nested:
            for field, leaf in zip(self._fields, leaves, strict=True):
                node = tree
                for part in field.path[:-1]:
                    node = node.setdefault(part, {})
                node[field.path[-1]] = leaf
        else:
            for field, leaf in zip(self._fields, leaves, strict=True):
                tree[field.path[0]] = leaf
        tree.update(info)
        return self._branch(tree, lead)

    def add_info(self, data: Any, info: Mapping[str, Any]) -> Any:
        """Sets `info` in a batch that transforms have made."""
        if is_mapping(data):
            for key, value in info.items():
                data[key] = value
        return data

    def from_numpy(self, array: Any) -> Any:
        """An int64 or bool array as this format has it."""
        return array if self._wrap is None else self._wrap(array)

    def _assemble_tuple(self, leaves: list[Any], count: int | None) -> tuple[Any, ...]:
        lead = () if count is None else (count,)
        parts: dict[str, Any] = {}
        for field, leaf in zip(self._fields, leaves, strict=True):
            node = parts
            for part in field.path[:-1]:
                node = node.setdefault(part, {})
            node[field.path[-1]] = leaf
        return tuple(
            self._branch(part, lead) if isinstance(part, dict) else part
            for _, part in sorted(parts.items(), key=lambda item: int(item[0]))
        )

    def reuse(self, out: Any, count: int) -> Batch:
        """The memory of an earlier batch, checked leaf by leaf.

        Raises:
            RecordError: a leaf is missing, of another shape or dtype, or not contiguous.
        """
        if self.schema.root != "dict":
            raise RecordError("out=: only batches with named fields can be reused.")
        leaves = [self._reused(_leaf_at(out, field.path), field, count) for field in self._fields]
        stamps = Field((INDEX,), "int64", ()), Field((GENERATION,), "int64", ())
        index, generation = (self._reused(_leaf_at(out, f.path), f, count) for f in stamps)
        address = core.address if self._wrap is None else _tensor_address
        places = [address(leaf) for leaf in leaves]
        return Batch(leaves, index, generation, places, address(index), address(generation))

    def _reused(self, leaf: Any, field: Field, count: int) -> Any:
        dtype = DTYPES[field.dtype]
        expected = f"{dtype.name} {[count, *field.shape]}, contiguous, on the CPU"
        if self.name == "torch":
            right = (
                is_tensor(leaf)
                and str(leaf.dtype) == f"torch.{dtype.torch}"
                and tuple(leaf.shape) == (count, *field.shape)
                and leaf.is_contiguous()
                and leaf.device.type == "cpu"
            )
        else:
            right = (
                isinstance(leaf, np.ndarray)
                and leaf.dtype == np.dtype(dtype.numpy)
                and leaf.shape == (count, *field.shape)
                and leaf.flags.c_contiguous
                and leaf.flags.writeable
            )
        if right:
            return leaf
        shape = list(getattr(leaf, "shape", ()))
        got = f"{getattr(leaf, 'dtype', type(leaf).__name__)} {shape}"
        raise RecordError(f"out=, field {field}: expected {expected}, got {got}.")


def _leaf_at(data: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if not is_mapping(data) or part not in data.keys():  # noqa: SIM118  (TensorDict)
            raise RecordError(f"out=: field {show_path(path)} is missing.")
        data = data[part]
    return data


def _bfloat16() -> Any:
    import torch

    return torch.bfloat16


def _tensor_address(tensor: Any) -> int:
    address: int = tensor.data_ptr()
    return address


def _torch_branches() -> Callable[[dict[str, Any], tuple[int, ...]], Any]:
    from tensordict import TensorDict
    from torch import Size

    # Every leaf was just made with this batch size: TensorDict's own checks would cost more than the gather.
    unchecked = TensorDict._new_unsafe

    def branches(tree: dict[str, Any], lead: tuple[int, ...]) -> Any:
        size = Size(lead)
        for key, value in tree.items():
            if type(value) is dict:
                tree[key] = branches(value, lead)
        return unchecked(source=tree, batch_size=size)

    return branches


def _numpy_branch(tree: dict[str, Any], lead: tuple[int, ...]) -> Any:
    return tree
