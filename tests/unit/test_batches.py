"""Batches on their way out: memory, nesting, and reusing an earlier one."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from shmrb.batches import Batch, BatchFormat
from shmrb.dtypes import DTYPES
from shmrb.errors import RecordError
from shmrb.schema import Schema, schema_like

FIELDS = {"x": "int64", "n": {"w": ("float32", 2), "deep": {"b": (bool, (1,))}}}
FORMATS = ("torch", "numpy")


def form(name: str, fields: Any = None) -> BatchFormat:
    return BatchFormat(Schema.from_mapping(fields or FIELDS), name)


def info(batch: Batch) -> dict[str, Any]:
    return {"index": batch.index, "index_generation": batch.generation}


def whole(one: BatchFormat, count: int) -> tuple[Any, Batch]:
    """A user's batch, and the memory it was made of."""
    batch = one.allocate(count)
    return one.assemble(batch.leaves, count, info(batch)), batch


@pytest.mark.parametrize("name", FORMATS)
class TestBothFormats:
    def test_every_dtype_and_shape(self, name: str) -> None:
        """Zero-element and unusual fields: every key, shape and dtype is there."""
        shapes = {"scalar": (), "none": (0,), "flat": (0, 3), "thin": (2, 0), "row": (3,)}
        fields = {d: {s: (d, shape) for s, shape in shapes.items()} for d in DTYPES}
        data, batch = whole(form(name, fields), 5)
        for dtype in DTYPES.values():
            for key, shape in shapes.items():
                leaf = data[dtype.name][key]
                assert tuple(leaf.shape) == (5, *shape)
                expected = getattr(torch, dtype.torch) if name == "torch" else dtype.numpy
                assert leaf.dtype == expected
        assert len(batch.addresses) == len(DTYPES) * len(shapes)

    def test_addresses_are_those_of_the_leaves(self, name: str) -> None:
        batch = form(name).allocate(4)
        where = (lambda t: t.data_ptr()) if name == "torch" else (lambda a: a.ctypes.data)
        leaves = [*batch.leaves, batch.index, batch.generation]
        places = [*batch.addresses, batch.index_address, batch.generation_address]
        assert [where(leaf) for leaf in leaves] == places

    def test_one_record_has_no_first_dimension(self, name: str) -> None:
        one = form(name)
        batch = one.allocate(1)
        record = one.assemble([leaf[0] for leaf in batch.leaves], None, {})
        assert tuple(record["x"].shape) == ()
        assert tuple(record["n"]["deep"]["b"].shape) == (1,)

    def test_some_columns(self, name: str) -> None:
        one = form(name)
        batch = one.allocate(3, [1])
        assert batch.addresses[0] == batch.addresses[2] == 0
        data = one.assemble(batch.leaves, 3, {})
        assert list(data.keys()) == ["n"]
        assert list(data["n"].keys()) == ["w"]

    def test_bare_arrays_and_tuples(self, name: str) -> None:
        bare = BatchFormat(schema_like(np.zeros(3, np.float32)), name)
        batch = bare.allocate(2)
        assert bare.assemble(batch.leaves, 2, info(batch)) is batch.leaves[0]
        pair = BatchFormat(schema_like((np.zeros(3, np.float32), {"a": 1})), name)
        first, second = pair.assemble(pair.allocate(2).leaves, 2, {})
        assert tuple(first.shape) == (2, 3)
        assert tuple(second["a"].shape) == (2,)


@pytest.mark.parametrize("name", FORMATS)
class TestReuse:
    def test_same_memory_again_and_again(self, name: str) -> None:
        one = form(name)
        out, batch = whole(one, 4)
        for _ in range(3):
            again = one.reuse(out, 4)
            assert again.addresses == batch.addresses
            assert (again.index_address, again.generation_address) == (
                batch.index_address,
                batch.generation_address,
            )

    def test_leaf_that_was_replaced_is_seen(self, name: str) -> None:
        one = form(name)
        out, batch = whole(one, 4)
        one.reuse(out, 4)
        out["n"]["w"] = torch.zeros(4, 2) if name == "torch" else np.zeros((4, 2), np.float32)
        again = one.reuse(out, 4)
        assert again.addresses[1] != batch.addresses[1]
        assert again.leaves[1] is out["n"]["w"]
        del out["x"]
        with pytest.raises(RecordError, match="out=: field 'x' is missing"):
            one.reuse(out, 4)

    def test_batches_in_turn(self, name: str) -> None:
        one = form(name)
        pairs = [whole(one, 4), whole(one, 4)]
        for out, batch in pairs * 2:
            assert one.reuse(out, 4).addresses == batch.addresses

    @pytest.mark.parametrize("key", ["x", "index", "index_generation"])
    def test_unfit_leaf_is_refused_by_name(self, name: str, key: str) -> None:
        one = form(name)
        for wrong in (np.zeros(4, np.int32), np.zeros(5, np.int64), np.zeros(8, np.int64)[::2]):
            out, _ = whole(one, 4)
            mapping = dict(out.items())
            mapping[key] = torch.from_numpy(wrong) if name == "torch" else wrong
            with pytest.raises(RecordError, match=rf"field '{key}': expected int64 \[4\]"):
                one.reuse(mapping, 4)

    def test_other_size(self, name: str) -> None:
        one = form(name)
        out, _ = whole(one, 4)
        one.reuse(out, 4)
        with pytest.raises(RecordError, match=r"expected .* \[5\]"):
            one.reuse(out, 5)

    def test_what_is_no_batch(self, name: str) -> None:
        with pytest.raises(RecordError, match="'x' is missing"):
            form(name).reuse([1, 2], 2)
        bare = BatchFormat(schema_like(np.zeros(3, np.float32)), name)
        with pytest.raises(RecordError, match="named fields"):
            bare.reuse(np.zeros((2, 3), np.float32), 2)


def test_reused_array_must_be_writable() -> None:
    one = form("numpy")
    out, _ = whole(one, 2)
    out["x"].flags.writeable = False
    with pytest.raises(RecordError, match="'x'"):
        one.reuse(out, 2)


def test_numpy_format_needs_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it raises
    monkeypatch.setitem(sys.modules, "tensordict", None)
    one = form("numpy")
    out, _ = whole(one, 2)
    assert one.reuse(out, 2).leaves[0] is out["x"]
    with pytest.raises(ImportError):
        form("torch")


def test_tensordict_has_its_batch_size_on_every_level() -> None:
    data, _ = whole(form("torch"), 3)
    for part in (data, data["n"], data["n", "deep"]):
        assert isinstance(part, TensorDict)
        assert part.batch_size == (3,)
    assert data["index"].dtype == torch.int64
    data["new"] = torch.zeros(3)  # an ordinary, unlocked TensorDict
    assert data[0]["new"] == 0


class TestInfoBesideTransformedData:
    def test_keys_are_added(self) -> None:
        one = form("torch")
        data = one.add_info(TensorDict({"y": torch.zeros(2)}, [2]), info(one.allocate(2)))
        assert set(data.keys()) == {"y", "index", "index_generation"}

    def test_other_number_of_records_is_refused(self) -> None:
        one = form("torch")
        with pytest.raises(RecordError, match=r"made a batch of size \[1\] out of 2 records"):
            one.add_info(TensorDict({"y": torch.zeros(1)}, [1]), info(one.allocate(2)))

    def test_data_without_fields_stays_as_it_is(self) -> None:
        one = form("numpy")
        assert one.add_info(5, info(one.allocate(2))) == 5
