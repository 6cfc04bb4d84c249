"""Fields of every dtype and shape, and of odd names, through a whole buffer and back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import shmrb
from shmrb.dtypes import DTYPES

New = Callable[..., shmrb.ReplayBuffer]
SHAPES = {"scalar": (), "none": (0,), "flat": (0, 3), "thin": (2, 0), "one": (1,), "row": (3, 2)}
ROWS = 11


def array(dtype: str, shape: tuple[int, ...]) -> Any:
    """Rows that use the whole range of bit patterns, without NaN, which equals nothing."""
    draws = np.random.default_rng(len(dtype) + sum(shape))
    size = (ROWS, *shape)
    kind = np.dtype(DTYPES[dtype].numpy).kind
    if dtype == "bool":
        return draws.random(size) < 0.5
    if kind in "iu":
        limits = np.iinfo(DTYPES[dtype].numpy)
        highest = 0x7F00 if dtype == "bfloat16" else limits.max
        return draws.integers(limits.min, highest, size, DTYPES[dtype].numpy, endpoint=True)
    numbers = draws.standard_normal(size)
    return (numbers + 1j * numbers[::-1] if kind == "c" else numbers).astype(DTYPES[dtype].numpy)


def tensor(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    found = torch.from_numpy(array(dtype, shape))
    return found.view(torch.bfloat16) if dtype == "bfloat16" else found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", ["torch", "numpy"])
def test_every_dtype_and_shape_comes_back(new: New, dtype: str, format: str) -> None:
    """Zero-element and unusual fields keep key, shape, dtype and values."""
    make: Any = tensor if format == "torch" else array
    given = {name: make(dtype, shape) for name, shape in SHAPES.items()}
    for schema in (None, {name: (dtype, shape) for name, shape in SHAPES.items()}):
        if schema is None and format == "numpy" and dtype == "bfloat16":
            continue  # its bits alone are uint16
        rb = new(capacity=16, schema=schema, format=format)
        rb.extend(given)
        rb.add({name: value[0] for name, value in given.items()})
        assert rb.schema is not None
        assert {f.path[0]: (f.dtype, f.shape) for f in rb.schema.fields} == {
            name: (dtype, shape) for name, shape in SHAPES.items()
        }
        batch = rb.sample(32)
        stored = rb[:]
        for name, value in given.items():
            rows = np.asarray(batch["index"]) % ROWS
            for found, expected in (
                (batch[name], value[rows]),
                (stored[name][:ROWS], value),
                (rb[name][ROWS], value[0]),
            ):
                assert found.dtype == value.dtype
                assert found.shape == expected.shape
                assert bool((found == expected).all())


def test_record_whose_every_field_is_empty(new: New) -> None:
    rb = new(capacity=4, schema={"nothing": ("float32", 0)})
    assert rb.extend({"nothing": np.zeros((3, 0), np.float32)}).tolist() == [0, 1, 2]
    assert rb.sample(5)["nothing"].shape == (5, 0)
    assert rb.sample(5)["index"].max() < 3


ODD_KEYS: list[Any] = [
    "a/b",
    "a.b",
    ("a", "b"),
    "../x",
    "a..",
    "..a",
    " ",
    "a b",
    "'\"\\",
    "Größe-λ-観測",
    "n" * 255,
    ("a/b2", "..c"),
    "~",
    "$HOME",
    "%s{0}",
    "0",
    "-",
]


class TestNames:
    @pytest.mark.parametrize("format", ["torch", "numpy"])
    def test_odd_names_stay_distinct(self, new: New, root: Path, format: str) -> None:
        """Nothing is a path, nothing collides, nothing lands outside the buffer."""
        before = sorted(os.listdir(root.parent))
        rb = new("odd", schema=dict.fromkeys(ODD_KEYS, "int64"), format=format)
        rb.extend({key: np.arange(5) + 100 * place for place, key in enumerate(ODD_KEYS)})
        batch = rb.sample(16)
        for place, key in enumerate(ODD_KEYS):
            path = (key,) if isinstance(key, str) else key
            leaf = batch
            for part in path:
                leaf = leaf[part]
            assert np.array_equal(leaf, np.asarray(batch["index"]) + 100 * place), key
            assert np.array_equal(rb[key], np.arange(5) + 100 * place), key
        assert sorted(os.listdir(root.parent)) == before
        assert {name for name in os.listdir(root) if not name.startswith(".")} == {"odd"}
        with shmrb.attach("odd", format=format) as other:
            assert other.schema == rb.schema

    @pytest.mark.parametrize(
        "key", ["", ".", "..", "a\x00b", "a\nb", "n" * 256, "é" * 200, ("a", ""), ("a", "..")]
    )
    def test_names_that_are_refused_by_name(self, new: New, root: Path, key: Any) -> None:
        for make in (
            lambda: new("bad", schema={key: "int64"}),
            lambda: new().extend({key: np.arange(3)}),
        ):
            with pytest.raises(shmrb.SpecError, match="key"):
                make()
        assert not (root / "bad").exists()

    @pytest.mark.parametrize("key", ["index", "index_generation", "priority_weight", "generation"])
    def test_our_own_keys_are_reserved(self, new: New, key: str) -> None:
        with pytest.raises(shmrb.SpecError, match=f"'{key}' is reserved"):
            new(schema={key: "int64"})
        nested = new(schema={"n": {key: "int64"}})
        nested.extend({"n": {key: np.arange(3)}})
        assert nested["n", key].tolist() == [0, 1, 2]

    @pytest.mark.parametrize("format", ["torch", "numpy"])
    def test_names_like_ours_stay_the_users(self, new: New, format: str) -> None:
        """Updates with the batch reach the records that were drawn, whatever the fields hold."""
        names = ("priority", "weight", "_meta", "validity")
        rb = new(
            schema={**dict.fromkeys(names, "float32"), "n": {"index": "int64"}},
            sampler=shmrb.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0),
            format=format,
            seed=1,
        )
        lies = np.arange(4.0, dtype=np.float32)[::-1].copy()
        rb.extend({**dict.fromkeys(names, lies), "n": {"index": np.full(4, 99)}})
        assert rb.sampler.priorities_of(range(4)).tolist() == [1] * 4, "no priority was given"
        batch = rb.sample(1)
        slot = int(batch["index"][0])
        for name in names:
            assert float(batch[name][0]) == 3 - slot
        assert int(batch["n"]["index"][0]) == 99
        assert rb.update_priority(batch, 5.0).updated.all()
        patch = {"priority": np.array([77], np.float32), ("n", "index"): np.array([5])}
        assert rb.update_if_present(batch, patch=patch).updated.all()
        assert rb.sampler.priorities_of(range(4)).tolist() == [
            5 if i == slot else 1 for i in range(4)
        ]
        assert rb["priority"].tolist() == [77 if i == slot else 3 - i for i in range(4)]
        assert rb["n", "index"].tolist() == [5 if i == slot else 99 for i in range(4)]

    def test_names_of_methods_are_ordinary_names(self, new: New) -> None:
        """TensorDicts hold them too."""
        rb = new(schema={"keys": "int64", "items": {"get": "int64"}}, format="torch")
        rb.extend(TensorDict({"keys": torch.arange(3), "items": {"get": torch.arange(3)}}, [3]))
        assert rb["items", "get"].tolist() == [0, 1, 2]
