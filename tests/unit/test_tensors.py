"""Tensors through DLPack's table: the short way takes what lies right, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import shmrb
from shmrb import batches, handles, records, tensors
from shmrb.core import Tensors
from shmrb.dtypes import DTYPES
from shmrb.fields import Field

pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch has no such table"
)

FIELDS = [
    Field((name, str(len(shape))), name, shape) for name in DTYPES for shape in ((), (3,), (2, 1))
]


@pytest.fixture(scope="module")
def every() -> Tensors:
    made = tensors.native_tensors(FIELDS)
    assert made is not None
    return made


def of(dtype: str, *shape: int) -> Tensors:
    made = tensors.native_tensors([Field(("x",), dtype, shape)])
    assert made is not None
    return made


def test_tensors_are_made_as_their_fields_say(every: Tensors) -> None:
    made, places = every.make(4)
    for field, tensor, place in zip(FIELDS, made, places, strict=True):
        assert type(tensor) is torch.Tensor
        assert tensor.dtype == getattr(torch, DTYPES[field.dtype].torch)
        assert tuple(tensor.shape) == (4, *field.shape)
        assert tensor.is_contiguous()
        assert tensor.data_ptr() == place
        assert not tensor.requires_grad
    assert every.places(made, 4) == places


def test_what_was_made_is_memory_of_its_own() -> None:
    one = of("int64", 3)
    (first,), _ = one.make(2)
    (second,), _ = one.make(2)
    first.fill_(1)
    second.fill_(2)
    part = first[1]
    del first
    (third,), _ = one.make(2)
    third.fill_(3)
    assert part.tolist() == [1, 1, 1]
    assert second.tolist() == [[2, 2, 2]] * 2


def test_memory_comes_back() -> None:
    one = of("uint8", 1 << 20)
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    for _ in range(100):
        (tensor,), _ = one.make(2)
        tensor.zero_()
    with open("/proc/self/statm") as statm:
        grown = int(statm.read().split()[1]) - pages
    assert grown * 4096 < 50 << 20


def test_one_record_has_no_dimension_that_counts() -> None:
    one = of("float32", 3)
    value = torch.zeros(3)
    assert one.place(0, value, -1) == value.data_ptr()
    assert one.place(0, value, 3) is None
    assert one.place(0, torch.zeros(1, 3), -1) is None


def test_a_dimension_of_one_may_have_any_stride() -> None:
    one = of("float32", 1)
    value = torch.zeros(4, 2)[:, :1].t().contiguous().t()
    assert one.place(0, value, 4) == value.data_ptr()
    assert one.place(0, torch.zeros(4, 2)[:, :1], 4) is None


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(4, 3, dtype=torch.float64),
        torch.zeros(4, 3, dtype=torch.int32),
        torch.zeros(5, 3),
        torch.zeros(4, 2),
        torch.zeros(12),
        torch.zeros(4, 6)[:, ::2],
        torch.zeros(3, 4).t(),
        torch.zeros(4, 3, dtype=torch.complex64).conj().imag,
        torch.zeros(4, 3).to_sparse(),
        torch.zeros(4, 3, device="meta"),
        torch.nn.Parameter(torch.zeros(4, 3)),
        torch.zeros(4, 3).numpy(),
    ],
    ids=[
        "wider", "another kind", "more rows", "another shape", "flat", "with gaps", "transposed",
        "with its sign put off", "sparse", "without memory", "another class", "an array",
    ],
)  # fmt: skip
def test_what_does_not_lie_right_takes_the_long_way(value: Any) -> None:
    one = of("float32", 3)
    assert one.place(0, value, 4) is None
    assert one.places([value], 4) is None
    assert one.places([torch.zeros(4, 3), torch.zeros(4, 3)], 4) is None


def test_a_conjugate_that_is_put_off_takes_the_long_way() -> None:
    value = torch.ones(4, dtype=torch.complex64)
    one = of("complex64")
    assert one.place(0, value, 4) == value.data_ptr()
    assert one.place(0, value.conj(), 4) is None


def test_torch_without_the_table_is_asked_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors.sys, "modules", {"torch": None})
    assert tensors.native_tensors(FIELDS) is None


@pytest.fixture(params=["by the table", "from Python"])
def buffer(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "from Python":
        for module in (batches, records):
            monkeypatch.setattr(module, "native_tensors", lambda fields: None)
        monkeypatch.setattr(handles, "_stamps", lambda: None)
    rb = shmrb.ReplayBuffer(
        storage=shmrb.SharedStorage(64),
        schema={"x": "int64", "n": {"h": ("bfloat16", 2), "c": "complex64"}},
        batch_size=32,
        seed=1,
    )
    yield rb
    rb.close()


def test_both_ways_write_read_and_update_alike(buffer: Any) -> None:
    x = torch.arange(40)
    h = torch.stack([x, x + 0.5], 1).to(torch.bfloat16)
    c = torch.complex(x.float(), x.float()).conj()
    buffer.extend(TensorDict({"x": x, "n": {"h": h, "c": c}}, [40]))
    buffer.add(TensorDict({"x": x[7], "n": {"h": h[7], "c": c[7]}}))
    batch = buffer.sample()
    assert torch.equal(batch["n", "h"], h[batch["x"]])
    assert torch.equal(batch["n", "c"], c[batch["x"]])
    assert buffer.update_if_present(batch, patch={"x": -batch["x"] - 1}).updated.all()
    half = batch[::2]
    assert buffer.update_if_present(half, patch={"x": half["x"]}).updated_count == 16
    assert torch.equal(buffer[half["index"]]["x"], half["x"])
