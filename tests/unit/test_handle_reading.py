"""Reading through the handle: batches, indexing, waiting for the first record."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import shmrb
from helpers import stamped
from helpers.procs import until
from shmrb.core import SLICE_NS

New = Callable[..., shmrb.ReplayBuffer]
SCHEMA = {"x": "int64", "n": {"w": ("float32", 2), "m": {"b": bool}}}


def rows(numbers: Any) -> dict[str, Any]:
    x = np.asarray(numbers, np.int64)
    w = np.stack([x, x + 0.5], -1).astype(np.float32)
    return {"x": x, "n": {"w": w, "m": {"b": x % 2 == 1}}}


@pytest.fixture(params=["torch", "numpy"])
def rb(new: New, request: pytest.FixtureRequest) -> shmrb.ReplayBuffer:
    """Ten records, 0 to 9, in a ring of 16."""
    buffer = new(capacity=16, schema=SCHEMA, format=request.param, seed=1)
    buffer.extend(rows(range(10)))
    return buffer


def is_torch(rb: shmrb.ReplayBuffer) -> bool:
    return rb._options.format == "torch"


def as_list(value: Any) -> Any:
    return np.asarray(value).tolist()


class TestSample:
    def test_fields_and_stamps_belong_together(self, rb: shmrb.ReplayBuffer) -> None:
        batch = rb.sample(256)
        assert isinstance(batch, TensorDict if is_torch(rb) else dict)
        assert as_list(batch["x"]) == as_list(batch["index"])
        assert as_list(batch["n"]["w"][:, 0]) == as_list(batch["x"])
        assert as_list(batch["n"]["m"]["b"]) == [x % 2 == 1 for x in as_list(batch["x"])]
        assert set(as_list(batch["index_generation"])) == {0}

    def test_info_holds_the_same_stamps(self, rb: shmrb.ReplayBuffer) -> None:
        batch, info = rb.sample(4, return_info=True)
        assert set(info) == {"index", "index_generation"}
        assert all(info[key] is batch[key] for key in info)

    def test_batch_is_private_memory(self, rb: shmrb.ReplayBuffer) -> None:
        """No live view is offered, so nothing set in a batch can be taken for shared."""
        batch = rb.sample(8)
        batch["x"][:] = -1
        batch["new"] = batch["x"]
        assert as_list(rb["x"]) == list(range(10))
        with pytest.raises(KeyError):
            rb["new"]
        with pytest.raises(KeyError, match="no field 'new'"):
            rb["new"] = np.zeros(10)

    def test_uniform_over_all_records(self, rb: shmrb.ReplayBuffer) -> None:
        counts = np.bincount(np.asarray(rb.sample(20_000)["x"]), minlength=10)
        assert abs(counts - 2000).max() < 5 * np.sqrt(20_000 * 0.1 * 0.9)

    def test_out_is_filled_again(self, rb: shmrb.ReplayBuffer) -> None:
        out = rb.sample(64)
        leaf = out["n"]["w"]
        seen = set()
        for _ in range(3):
            again, info = rb.sample(64, out=out, return_info=True)
            assert again is out
            assert out["n"]["w"] is leaf
            assert info["index"] is out["index"]
            assert as_list(leaf[:, 0]) == as_list(out["index"])
            seen.add(tuple(as_list(out["index"])))
        assert len(seen) == 3

    def test_out_that_does_not_fit(self, rb: shmrb.ReplayBuffer) -> None:
        out = rb.sample(8)
        with pytest.raises(shmrb.RecordError, match=r"out=, field 'x': expected int64 \[9\]"):
            rb.sample(9, out=out)
        with pytest.raises(shmrb.RecordError, match="'n'"):
            rb.sample(8, out={"x": out["x"]})

    @pytest.mark.parametrize("size", [0, -1, 2.0, True, "4", None])
    def test_impossible_batch_size(self, rb: shmrb.ReplayBuffer, size: Any) -> None:
        with pytest.raises(shmrb.SpecError, match="batch_size"):
            rb.sample(size)

    def test_numpy_integer_is_a_batch_size(self, rb: shmrb.ReplayBuffer) -> None:
        assert len(rb.sample(np.int64(3))["x"]) == 3

    def test_other_batch_size_warns_once_a_handle(self, new: New) -> None:
        first = new("sizes", schema=SCHEMA, batch_size=4)
        first.extend(rows(range(4)))
        second = shmrb.attach("sizes", format="numpy")
        for handle in (first, second):
            assert handle.batch_size == 4
            with pytest.warns(UserWarning, match="batch_size 4 was given .* and 3 to sample"):
                assert len(handle.sample(3)["x"]) == 3
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert len(handle.sample(2)["x"]) == 2
                assert len(handle.sample()["x"]) == 4
        second.close()

    def test_seed_makes_draws_repeatable(self, new: New) -> None:
        draws = []
        for seed in (7, 7, 8, None, None):
            buffer = new(capacity=1000, schema={"x": "int64"}, seed=seed)
            buffer.extend({"x": np.arange(1000)})
            draws.append(tuple(buffer.sample(32)["x"].tolist()))
        assert draws[0] == draws[1]
        assert len(set(draws)) == 4

    def test_bare_arrays_and_tuples_come_back_as_they_went_in(self, new: New) -> None:
        bare = new()
        bare.extend(np.arange(6, dtype=np.float32).reshape(3, 2))
        batch, info = bare.sample(5, return_info=True)
        assert np.array_equal(batch[:, 0], 2.0 * info["index"])
        assert as_list(bare[1]) == [2.0, 3.0]
        pair = new(format="torch")
        pair.extend((torch.arange(3), {"y": torch.arange(3) * 2}))
        (first, second), info = pair.sample(5, return_info=True)
        assert torch.equal(first, info["index"])
        assert torch.equal(second["y"], 2 * first)


class TestWaiting:
    def test_empty_buffer_is_refused_at_once(self, new: New) -> None:
        rb = new(schema=SCHEMA)
        for timeout in (None, 0):
            with pytest.raises(shmrb.EmptyBufferError, match="Cannot sample from an empty storage"):
                rb.sample(4, timeout=timeout)

    def test_timeout_waits_for_the_first_record_and_says_so(self, new: New) -> None:
        rb = new(schema=SCHEMA)
        with pytest.raises(shmrb.DeadlineError, match=r"waited 0\.\d s for a first record; 0 live"):
            rb.sample(4, timeout=0.1)

    @pytest.mark.parametrize("declared", [False, True])
    @pytest.mark.parametrize("without_replacement", [False, True])
    def test_first_record_ends_the_wait(
        self, new: New, declared: bool, without_replacement: bool
    ) -> None:
        sampler = shmrb.SamplerWithoutReplacement() if without_replacement else None
        rb = new("first", schema=None if declared else SCHEMA, sampler=sampler)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(rb.sample(1, timeout=30)))
        thread.start()
        with shmrb.attach("first", format="numpy") as other:
            if not declared:
                until(lambda: any(c.waiting_for == "records" for c in other.statistics().clients))
            other.extend(rows([5]))
        thread.join()
        assert as_list(found[0]["x"]) == [5]

    def test_declared_buffer_has_no_record_yet(self, new: New) -> None:
        rb = new()
        assert (len(rb), rb.write_count, rb.initialized, rb.schema) == (0, 0, False, None)
        assert rb.stats()["initialized"] is False
        calls: list[Callable[[], Any]] = [
            lambda: rb.sample(4),
            lambda: rb[0],
            lambda: rb["x"],
            lambda: rb[:],
            lambda: rb.set_("x", [1]),
        ]
        for call in calls:
            with pytest.raises(shmrb.EmptyBufferError, match="no record yet"):
                call()
        with pytest.raises(shmrb.DeadlineError, match="is declared and nobody has written"):
            rb.sample(4, timeout=0.05)
        rb.empty()
        assert as_list(rb.generations_of([0, 1])) == [-1, -1]


class TestIndexing:
    def test_forms(self, rb: shmrb.ReplayBuffer) -> None:
        forms: list[tuple[Any, list[int]]] = [
            (slice(None), list(range(10))),
            (..., list(range(10))),
            (slice(2, 8, 3), [2, 5]),
            (slice(None, None, -4), [9, 5, 1]),
            (slice(8, 99), [8, 9]),
            (slice(-2, None), [8, 9]),
            (slice(5, 2), []),
            ([3, 3, 1], [3, 3, 1]),
            ([], []),
            (range(2, 4), [2, 3]),
            (np.array([9, 0], np.int32), [9, 0]),
            (np.arange(10)[::5], [0, 5]),
            (torch.tensor([4, 2]), [4, 2]),
            (torch.tensor([7], dtype=torch.int16), [7]),
            ((torch.tensor([6, 1]),), [6, 1]),
            (np.arange(10) > 7, [8, 9]),
            (torch.arange(10) < 2, [0, 1]),
        ]
        for index, expected in forms:
            assert as_list(rb[index]["x"]) == expected, index

    @pytest.mark.parametrize("index", [4, np.int32(4), np.array(4), torch.tensor(4)])
    def test_one_record_has_no_first_dimension(self, rb: shmrb.ReplayBuffer, index: Any) -> None:
        record = rb[index]
        assert as_list(record["x"]) == 4
        assert as_list(record["n"]["w"]) == [4.0, 4.5]
        if is_torch(rb):
            assert record.batch_size == ()

    def test_keys(self, rb: shmrb.ReplayBuffer) -> None:
        assert as_list(rb["x"]) == list(range(10))
        assert as_list(rb["n", "w"][:, 1]) == [x + 0.5 for x in range(10)]
        assert as_list(rb[("x",)]) == list(range(10))
        assert set(rb["n"].keys()) == {"w", "m"}
        assert as_list(rb["n", "m"]["b"]) == [x % 2 == 1 for x in range(10)]
        for key in ("y", ("n", "y"), ("x", "y"), ("n", "w", "z"), "index"):
            with pytest.raises(KeyError, match=r"no field .*; the record has 'x', \('n', 'w'\)"):
                rb[key]

    @pytest.mark.parametrize(
        "index",
        [10, 15, 16, -1, 1 << 40, [0, 10], np.array([-1]), torch.tensor([3, 16]), [[0, 1]]],
    )
    def test_slots_without_a_record(self, rb: shmrb.ReplayBuffer, index: Any) -> None:
        """Handles of any shape are converted or refused; -1 never means "last"."""
        with pytest.raises(IndexError, match=r"slot|dimension"):
            rb[index]

    @pytest.mark.parametrize("index", [np.ones(9, bool), np.ones((2, 5), bool), True])
    def test_mask_of_another_shape(self, rb: shmrb.ReplayBuffer, index: Any) -> None:
        with pytest.raises(IndexError, match="one entry for each of 10 live slots"):
            rb[index]

    @pytest.mark.parametrize("index", [1.5, [0.5], None, ["x", 1], object(), {"x": 1}])
    def test_what_is_no_index(self, rb: shmrb.ReplayBuffer, index: Any) -> None:
        with pytest.raises((shmrb.RecordError, IndexError)):
            rb[index]

    def test_reads_are_copies(self, rb: shmrb.ReplayBuffer) -> None:
        for copy in (rb[:]["x"], rb["x"], rb[[0, 1]]["x"], rb.read_all_in_order()["x"]):
            copy[:] = -1
        assert as_list(rb["x"]) == list(range(10))

    def test_more_records_than_one_piece(self, new: New) -> None:
        size = 150_000
        rb = new(capacity=size, schema={"x": "int64"})
        rb.extend({"x": np.arange(size)})
        assert np.array_equal(rb["x"], np.arange(size))
        assert np.array_equal(rb[:]["x"], np.arange(size))
        rb.set_("x", np.arange(size)[::-1])
        assert np.array_equal(rb["x"], np.arange(size)[::-1])

    def test_slots_whose_record_died_are_left_out_or_named(self, new: New) -> None:
        """A killed in-place change voids its record: ranges pass over it, names are refused."""
        rb = new(schema=stamped.schema(16))
        rb.extend(stamped.records(1, 0, 5, 16))
        words = rb._attachment.member.mapping("slots").view("u8", 0, 8 * 8)
        words[2] |= 2  # void
        assert (
            rb["uid"].tolist()
            == rb[:]["uid"].tolist()
            == (np.delete(np.arange(5), 2) + 10**9).tolist()
        )
        assert 2 not in rb.sample(500)["index"]
        for index in (2, [0, 2], torch.tensor([2])):
            with pytest.raises(IndexError, match="slot 2 holds no live record"):
                rb[index]
            with pytest.raises(IndexError, match="slot 2 holds no live record"):
                rb.set_at_("step", np.zeros(len(np.atleast_1d(index)), np.int64), index)
        rb.set_("step", [10, 11, 13, 14])
        assert rb[[0, 1, 3, 4]]["step"].tolist() == [10, 11, 13, 14]
        order = shmrb.SamplerWithoutReplacement(shuffle=False)
        rb.set_sampler(order)
        assert rb.sample(3)["index"].tolist() == [0, 1, 3]
        assert rb.sample(3)["index"].tolist() == [4]


class TestGenerationsOf:
    def test_shape_dtype_and_kind_follow_the_index(self, rb: shmrb.ReplayBuffer) -> None:
        rb.extend(rows(range(8)))
        for index in (3, [3], [[0, 1], [2, 3]], np.array([0], np.int16), torch.arange(4), []):
            stamps = rb.generations_of(index)
            assert tuple(stamps.shape) == np.asarray(index).shape
            assert isinstance(stamps, torch.Tensor if is_torch(rb) else np.ndarray)
            assert str(stamps.dtype).endswith("int64")
        assert as_list(rb.generations_of([0, 1, 2, 15, 16, -1])) == [1, 1, 0, 0, -1, -1]
        assert as_list(rb.generations_of((torch.tensor([0, 9]),))) == [1, 0]
        assert as_list(rb.writer.generations_of([0])) == [1]
        assert rb.writer.tracks_generations

    def test_non_contiguous_index(self, rb: shmrb.ReplayBuffer) -> None:
        rb.extend(rows(range(8)))
        assert as_list(rb.generations_of(np.arange(16)[::-8])) == [0, 0]
        assert as_list(rb.generations_of(torch.arange(16).reshape(4, 4).T[0])) == [1, 0, 0, 0]

    @pytest.mark.parametrize("index", [0.5, [True, False], "x", [None]])
    def test_what_names_no_slot(self, rb: shmrb.ReplayBuffer, index: Any) -> None:
        with pytest.raises(shmrb.RecordError):
            rb.generations_of(index)


class TestPasses:
    def test_every_record_once(self, new: New) -> None:
        rb = new(
            capacity=64, schema={"x": "int64"}, sampler=shmrb.SamplerWithoutReplacement(), seed=3
        )
        rb.extend({"x": np.arange(50)})
        for _ in range(3):
            seen = np.concatenate([rb.sample(8)["x"] for _ in range(7)])
            assert sorted(seen.tolist()) == list(range(50))
            assert seen.tolist() != sorted(seen.tolist())

    def test_a_pass_is_one_handles_own(self, new: New) -> None:
        order = shmrb.SamplerWithoutReplacement()
        one = new("passes", capacity=16, schema={"x": "int64"}, sampler=order, batch_size=4)
        one.extend({"x": np.arange(8)})
        with shmrb.attach("passes", format="numpy") as other:
            first = one.sample()["x"].tolist()
            assert sorted(x for batch in other for x in batch["x"].tolist()) == list(range(8))
            assert sorted(first + one.sample()["x"].tolist()) == list(range(8))

    def test_lanes_are_passed_through(self, new: New) -> None:
        storage = shmrb.SharedStorage(32, lanes=2)
        rb = new(
            "two", storage=storage, schema={"x": "int64"}, sampler=shmrb.SamplerWithoutReplacement()
        )
        rb.extend({"x": np.arange(5)})
        with shmrb.attach("two", format="numpy") as other:
            other.extend({"x": np.arange(5, 12)})
            batch = rb.sample(12)
        assert sorted(batch["x"].tolist()) == list(range(12))
        assert rb.sampler.ran_out

    def test_call_that_waits_in_vain_takes_nothing_from_the_pass(self, new: New) -> None:
        limiter = shmrb.RateLimiter(min_size=4, samples_per_insert=1.0, error_buffer=8.0)
        order = shmrb.SamplerWithoutReplacement(shuffle=False)
        rb = new(capacity=64, schema={"x": "int64"}, sampler=order, limiter=limiter)
        rb.extend({"x": np.arange(3)})
        with pytest.raises(shmrb.LimiterTimeoutError, match="3 of 4 records"):
            rb.sample(2, timeout=0.05)
        rb.extend({"x": [3]})
        drawn = [rb.sample(2)["x"].tolist() for _ in range(4)]
        assert drawn == [[0, 1], [2, 3]] * 2
        for _ in range(2):
            with pytest.raises(shmrb.LimiterTimeoutError, match="samples 8 - 2"):
                rb.sample(2, timeout=0.05)
        rb.limiter.lift()
        assert rb.sample(2)["x"].tolist() == [0, 1]

    def test_drop_last_needs_a_batch_size(self, new: New) -> None:
        with pytest.raises(shmrb.SpecError, match="drop_last=True must work with a predictable"):
            new(sampler=shmrb.SamplerWithoutReplacement(drop_last=True))

    def test_out_of_a_short_last_batch_is_other_memory(self, new: New) -> None:
        order = shmrb.SamplerWithoutReplacement(shuffle=False)
        rb = new(schema={"x": "int64"}, sampler=order)
        rb.extend({"x": np.arange(5)})
        out = rb.sample(4)
        last = rb.sample(4, out=out)
        assert last["x"].tolist() == [4]
        assert out["x"].tolist() == [0, 1, 2, 3]
        assert rb.sample(4, out=out) is out


def test_slice_of_waiting_is_short_enough_for_ctrl_c() -> None:
    assert SLICE_NS <= 50_000_000
