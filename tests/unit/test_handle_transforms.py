"""Transforms of a handle: after the gather, before the write, in this process only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import shmrb

New = Callable[..., shmrb.ReplayBuffer]
SCHEMA = {"x": "float32"}


class Scale:
    """Like a TorchRL transform: doubles what is read and halves what is written."""

    def __call__(self, data: Any) -> Any:
        return {**data, "x": data["x"] * 2}

    def inv(self, data: Any) -> Any:
        return {**data, "x": np.asarray(data["x"], np.float32) / 2}


class Shift(torch.nn.Module):
    def forward(self, data: TensorDict) -> TensorDict:
        return data.set("x", data["x"] + 100)


def test_reading_in_order_and_writing_in_reverse(new: New) -> None:
    seen: list[str] = []

    def step(name: str) -> Any:
        class Step:
            def __call__(self, data: Any) -> Any:
                seen.append(name)
                return data

            def inv(self, data: Any) -> Any:
                seen.append(name + ".inv")
                return data

        return Step()

    rb = new(schema=SCHEMA, transform=step("a"))
    assert rb.append_transform(step("c")) is rb
    rb.insert_transform(1, step("b"))
    rb.append_transform(step("d"), invert=True)
    rb.extend({"x": np.zeros(3, np.float32)})
    assert seen == ["d", "c.inv", "b.inv", "a.inv"]
    seen.clear()
    rb.sample(2)
    assert seen == ["a", "b", "c", "d.inv"]
    assert len(rb.transform) == 4


def test_every_way_of_reading_and_none_of_the_setters(new: New) -> None:
    rb = new(schema=SCHEMA)
    rb.extend({"x": np.arange(4, dtype=np.float32)})
    rb.append_transform(lambda data: {**data, "x": data["x"] + 10, "y": data["x"]})
    batch = rb.sample(16)
    assert (batch["x"] == batch["index"] + 10).all()
    assert (batch["y"] == batch["index"]).all()
    assert rb[:]["x"].tolist() == rb["x"].tolist() == [10, 11, 12, 13]
    assert rb["y"].tolist() == [0, 1, 2, 3]
    assert rb[2]["x"] == 12
    rb.set_("x", np.zeros(4, np.float32))
    assert rb["x"].tolist() == [10] * 4, "set_ wrote the bare values"


def test_inverse_before_the_write(new: New) -> None:
    rb = new("scaled", schema=SCHEMA, transform=Scale())
    with shmrb.attach("scaled", format="numpy") as bare:
        rb.extend({"x": np.array([2, 4], np.float32)})
        rb.add({"x": 6.0})
        assert bare["x"].tolist() == [1, 2, 3]
        assert rb["x"].tolist() == [2, 4, 6]
        rb[[0, 1]] = {"x": np.array([8, 10], np.float32)}
        assert bare["x"].tolist() == [4, 5, 3]
        bare.extend({"x": np.array([7], np.float32)})
        assert rb[3]["x"] == 14, "another handle's writes are its own affair"


def test_modules_on_tensordicts(new: New) -> None:
    rb = new(schema=SCHEMA, format="torch", transform=Shift())
    rb.extend(TensorDict({"x": torch.zeros(3)}, [3]))
    batch, info = rb.sample(4, return_info=True)
    assert batch["x"].tolist() == [100] * 4
    assert torch.equal(batch["index"], info["index"])
    assert rb[:]["x"].tolist() == [100] * 3


def test_added_record_is_seen_as_a_batch_of_one(new: New) -> None:
    """As in TorchRL: a transform need not know which of the two calls it serves."""
    shapes: list[Any] = []

    def look(data: Any) -> Any:
        shapes.append(tuple(np.shape(data["x"])))
        return data

    rb = new(schema=SCHEMA).append_transform(look, invert=True)
    assert rb.add({"x": 1.0}) == 0
    assert rb.add({"x": np.float32(2)}) == 1
    rb.extend({"x": np.zeros(3, np.float32)})
    assert shapes == [(1,), (1,), (3,)]
    torches = new(schema=SCHEMA, format="torch").append_transform(look, invert=True)
    assert torches.add(TensorDict({"x": torch.tensor(1.0)}, [])) == 0
    assert shapes[-1] == (1,)


def test_transform_may_keep_records_back_and_write_more_later(new: New) -> None:
    kept: list[Any] = []

    def gather(data: Any) -> Any:
        kept.append(np.asarray(data["x"], np.float32))
        return {"x": np.concatenate(kept)} if len(kept) == 3 else None

    rb = new(schema=SCHEMA).append_transform(gather, invert=True)
    for _ in range(2):
        index = rb.extend({"x": np.zeros(1, np.float32)})
        assert (index.shape, index.dtype) == ((0,), np.int64)
    assert len(rb) == 0
    assert rb.add({"x": 1.0}).tolist() == [0, 1, 2]


def test_what_a_transform_writes_is_checked_like_anything_else(new: New) -> None:
    rb = new(schema=SCHEMA).append_transform(lambda data: {"y": data["x"]}, invert=True)
    with pytest.raises(shmrb.RecordError, match="missing 'x' and unknown 'y'"):
        rb.extend({"x": np.zeros(2, np.float32)})
    assert rb.write_count == 0


def test_batch_of_another_size_has_no_stamps(new: New) -> None:
    rb = new(schema=SCHEMA, format="torch").append_transform(lambda data: data[:1])
    rb.extend({"x": torch.zeros(3)})
    with pytest.raises(shmrb.RecordError, match="would not say which is which"):
        rb.sample(4)
    assert rb[:].batch_size == (1,), "nothing to say without stamps"


def test_out_is_not_touched_by_transforms(new: New) -> None:
    rb = new(schema=SCHEMA, seed=3)
    rb.extend({"x": np.arange(4, dtype=np.float32)})
    out = rb.sample(8)
    rb.append_transform(lambda data: {**data, "x": data["x"] * 0})
    batch = rb.sample(8, out=out)
    assert batch is not out
    assert not batch["x"].any()
    assert out["x"].tolist() == out["index"].tolist()


def test_what_is_not_callable(new: New) -> None:
    with pytest.raises(shmrb.SpecError, match="must be a callable or a module, got int"):
        new(schema=SCHEMA).append_transform(5)  # type: ignore[arg-type]
