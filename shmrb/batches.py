"""Records on their way out: a batch's memory, and the shape in which the user gets it (floor F5).

A batch is private memory, allocated once and filled by one native call. Handles in torch format
give TensorDicts, built without re-validation since every leaf was just made here; handles in numpy
format give nested dictionaries of arrays and never import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from shmrb import core
from shmrb.dtypes import DTYPES
from shmrb.errors import RecordError
from shmrb.fields import Field, show_path
from shmrb.likeness import is_mapping
from shmrb.records import is_tensor
from shmrb.schema import Schema
from shmrb.tensors import native_tensors

INDEX = "index"
GENERATION = "index_generation"
WEIGHT = "priority_weight"
# Of records that were drawn in windows.
ANCHOR = "anchor_index"
ANCHOR_GENERATION = "anchor_generation"
SEQUENCE = "sequence_id"
STEP = "step_in_sequence"
LEARNING = "learning_mask"
VALIDITY = "validity_mask"
_STAMPS = (Field((INDEX,), "int64", ()), Field((GENERATION,), "int64", ()))

# From here on numpy asks the kernel for huge pages, which make large memory cheaper to fill.
HUGE_BYTES = 1 << 22

# Makes the user's mapping of a dictionary and the size of its first dimension.
Wrap = Callable[[dict[str, Any], tuple[int, ...]], Any]


class Batch(NamedTuple):
    """The memory of one batch.

    Attributes:
        leaves: one a field of the schema, in its order; None where a field is left out.
        index, generation: what names and dates each record.
        addresses, index_address, generation_address: where all of them lie, 0 where left out.
    """

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
        self.strides = [field.row_bytes for field in schema.fields]
        self._record_bytes = sum(self.strides)
        dtypes = [DTYPES[field.dtype] for field in schema.fields]
        self._kinds = [
            (field.shape, np.dtype(dtype.numpy))
            for field, dtype in zip(schema.fields, dtypes, strict=True)
        ]
        self._shape = _Shape(schema)
        self._wrap: Wrap = _dictionary
        self._from_numpy: Callable[[Any], Any] | None = None
        # numpy has no bfloat16: such a column is made as uint16 and seen as what it is.
        self._halves: list[int] = []
        self._tensors: core.Tensors | None = None
        if name == "torch":
            import torch

            self._wrap = _tensordict_maker()
            self._from_numpy = torch.from_numpy
            self._tensors = native_tensors((*schema.fields, *_STAMPS))
            self._halves = [i for i, dtype in enumerate(dtypes) if dtype.name == "bfloat16"]
        # The batch that was last given as out=, and its memory: loops reuse one.
        self._last_reused: tuple[Any, Batch] = (None, Batch([], None, None, [], 0, 0))

    def allocate(self, count: int, columns: Collection[int] | None = None) -> Batch:
        """Memory for `count` records; its contents are arbitrary.

        Args:
            count: records.
            columns: positions of the fields to make room for; None: all.
        """
        if columns is not None:
            return self._allocate_some(count, columns)
        if self._tensors is None or count * self._record_bytes >= HUGE_BYTES:
            return self._allocate_by_numpy(count)
        made, places = self._tensors.make(count)
        generation, index = made.pop(), made.pop()
        at_generation, at_index = places.pop(), places.pop()
        return Batch(made, index, generation, places, at_index, at_generation)

    def _allocate_by_numpy(self, count: int) -> Batch:
        """For both formats: it allocates three times as fast as torch, and in huge pages."""
        empty, address = np.empty, core.address
        arrays = [empty((count, *shape), dtype) for shape, dtype in self._kinds]
        index, generation = empty(count, np.int64), empty(count, np.int64)
        places = [address(array) for array in arrays]
        at_index, at_generation = address(index), address(generation)
        if self._from_numpy is None:
            return Batch(arrays, index, generation, places, at_index, at_generation)
        leaves = [self._from_numpy(array) for array in arrays]
        for i in self._halves:
            leaves[i] = self._as_bfloat16(leaves[i])
        stamps = self._from_numpy(index), self._from_numpy(generation)
        return Batch(leaves, stamps[0], stamps[1], places, at_index, at_generation)

    def _allocate_some(self, count: int, columns: Collection[int]) -> Batch:
        stamps = np.empty((2, count), np.int64)
        leaves: list[Any] = [None] * len(self._kinds)
        places = [0] * len(self._kinds)
        for i in columns:
            shape, dtype = self._kinds[i]
            array = np.empty((count, *shape), dtype)
            places[i] = core.address(array)
            leaves[i] = self.from_numpy(array)
            if i in self._halves:
                leaves[i] = self._as_bfloat16(leaves[i])
        index, generation = self.from_numpy(stamps[0]), self.from_numpy(stamps[1])
        index_address, generation_address = core.address(stamps[0]), core.address(stamps[1])
        return Batch(leaves, index, generation, places, index_address, generation_address)

    def from_numpy(self, array: Any) -> Any:
        """An array as this format has it."""
        return array if self._from_numpy is None else self._from_numpy(array)

    def concatenated(self, leaves: list[Any]) -> Any:
        """Leaves of this format, one after the other."""
        if len(leaves) == 1:
            return leaves[0]
        if self._from_numpy is None:
            return np.concatenate(leaves)
        import torch

        return torch.cat(leaves)

    def _as_bfloat16(self, leaf: Any) -> Any:
        import torch

        return leaf.view(torch.bfloat16)

    def assemble(self, leaves: list[Any], count: int | None, info: Mapping[str, Any]) -> Any:
        """The user's batch: nested fields, then `info` beside them.

        Args:
            leaves: one a field; where None, the field is left out.
            count: records along the first dimension; None: one record without that dimension.
            info: keys to add at the root; a root that is no mapping has no room for them.
        """
        if self.schema.root == "tensor":
            return leaves[0]
        lead = () if count is None else (count,)
        branches = self._shape.fill(leaves, lead, self._wrap)
        if self.schema.root == "tuple":
            return tuple(branches[str(place)] for place in range(len(branches)))
        branches.update(info)
        return self._wrap(branches, lead)

    def add_info(self, data: Any, info: Mapping[str, Any]) -> Any:
        """Sets `info` in a batch that transforms have made.

        Raises:
            RecordError: they changed the number of records, so nothing says which is which.
        """
        if not is_mapping(data):
            return data
        size = getattr(data, "batch_size", None)
        for key, value in info.items():
            if size is not None and tuple(size[:1]) != tuple(value.shape[:1]):
                raise RecordError(
                    f"sample: a transform made a batch of size {list(size)} out of {len(value)} "
                    f"records, so {key!r} would not say which is which. Let it keep their number."
                )
            data[key] = value
        return data

    def reuse(self, out: Any, count: int) -> Batch:
        """The memory of an earlier batch, checked leaf by leaf unless it is the last one again.

        Raises:
            RecordError: a leaf is missing, of another shape or dtype, or not contiguous.
        """
        last, batch = self._last_reused
        if out is last and len(batch.index) == count and self._still_holds(out, batch):
            return batch
        if self.schema.root != "dict":
            raise RecordError("out=: only batches with named fields can be reused.")
        fields = (*self.schema.fields, *_STAMPS)
        leaves = [self._reused(_leaf_at(out, field.path), field, count) for field in fields]
        address = core.address if self._from_numpy is None else _tensor_address
        places = [address(leaf) for leaf in leaves]
        batch = Batch(leaves[:-2], leaves[-2], leaves[-1], places[:-2], places[-2], places[-1])
        self._last_reused = out, batch
        return batch

    def beside(self, key: str, dtype: str, count: int, out: Any) -> tuple[Any, int]:
        """Memory for one number a record beside the fields, and where it lies.

        Args:
            key: what it is called in a batch.
            dtype: of the numbers.
            count: records.
            out: an earlier batch whose memory is used again; None: new memory.

        Raises:
            RecordError: `out` has no such leaf, or another one.
        """
        if out is not None:
            leaf = self._reused(_leaf_at(out, (key,)), Field((key,), dtype, ()), count)
            return leaf, core.address(leaf) if self._from_numpy is None else leaf.data_ptr()
        array = np.empty(count, DTYPES[dtype].numpy)
        return self.from_numpy(array), core.address(array)

    def _still_holds(self, out: Any, batch: Batch) -> bool:
        """Whether the leaves of `out` are those of `batch`, where they were."""
        leaves = (*batch.leaves, batch.index, batch.generation)
        places = (*batch.addresses, batch.index_address, batch.generation_address)
        address = core.address if self._from_numpy is None else _tensor_address
        found = self._shape.leaves_of(out)
        for mine, leaf, place in zip(found, leaves, places, strict=True):
            if mine is not leaf or address(leaf) != place:
                return False
        return True

    def _reused(self, leaf: Any, field: Field, count: int) -> Any:
        dtype = DTYPES[field.dtype]
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
        raise RecordError(
            f"out=, field {show_path(field.path)}: expected {dtype.name} {[count, *field.shape]}, "
            f"contiguous, on the CPU, got {getattr(leaf, 'dtype', type(leaf).__name__)} {shape}."
        )


class _Shape:
    """Which dictionary each leaf of a nested record lies in.

    Dictionaries are numbered, parents before children; 0 is the root.
    """

    def __init__(self, schema: Schema) -> None:
        numbers: dict[tuple[str, ...], int] = {(): 0}
        for field in schema.fields:
            for length in range(1, len(field.path)):
                numbers.setdefault(field.path[:length], len(numbers))
        self._places = [(numbers[field.path[:-1]], field.path[-1]) for field in schema.fields]
        branches = list(numbers)[1:]
        self._branches = [(numbers[path[:-1]], path[-1]) for path in branches]

    def fill(self, leaves: list[Any], lead: tuple[int, ...], wrap: Wrap) -> dict[str, Any]:
        """The root dictionary, with those below it wrapped."""
        root: dict[str, Any] = {}
        nodes = [root, *({} for _ in self._branches)]
        for (number, key), leaf in zip(self._places, leaves, strict=True):
            if leaf is not None:
                nodes[number][key] = leaf
        for number in range(len(self._branches), 0, -1):
            parent, key = self._branches[number - 1]
            if nodes[number]:
                nodes[parent][key] = wrap(nodes[number], lead)
        return root

    def leaves_of(self, data: Any) -> list[Any]:
        """The leaves in order, then index and generation; None for what is not there."""
        root = _dictionary_of(data)
        nodes = [root]
        for parent, key in self._branches:
            nodes.append(_dictionary_of(nodes[parent].get(key)))
        leaves = [nodes[number].get(key) for number, key in self._places]
        return [*leaves, root.get(INDEX), root.get(GENERATION)]


def _dictionary_of(data: Any) -> Mapping[str, Any]:
    """A dictionary, that in a TensorDict, or an empty one."""
    fields = data if type(data) is dict else getattr(data, "_tensordict", None)
    return fields if isinstance(fields, dict) else {}


def _leaf_at(data: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if not is_mapping(data) or part not in data.keys():  # noqa: SIM118  (TensorDict)
            raise RecordError(f"out=: field {show_path(path)} is missing.")
        data = data[part]
    return data


def _tensor_address(tensor: Any) -> int:
    address: int = tensor.data_ptr()
    return address


def _tensordict_maker() -> Wrap:
    from tensordict import TensorDict
    from torch import Size

    # Every leaf was just made with this batch size: TensorDict's own checks would cost more than
    # the gather.
    unchecked = TensorDict._new_unsafe

    def tensordict(tree: dict[str, Any], lead: tuple[int, ...]) -> Any:
        return unchecked(source=tree, batch_size=Size(lead))

    return tensordict


def _dictionary(tree: dict[str, Any], lead: tuple[int, ...]) -> dict[str, Any]:
    return tree
