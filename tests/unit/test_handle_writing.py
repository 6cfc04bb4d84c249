"""Writing through the handle: what goes in, where, and what a refused call leaves as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import shmrb
from helpers import stamped

New = Callable[..., shmrb.ReplayBuffer]
BODY = 64


@pytest.fixture
def rb(new: New) -> shmrb.ReplayBuffer:
    """Three records in a ring of eight."""
    buffer = new(capacity=8, schema=stamped.schema(BODY))
    buffer.extend(stamped.records(1, 0, 3, BODY))
    return buffer


def without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


def wrong_batches() -> dict[str, Any]:
    good = stamped.records(1, 3, 2, BODY)
    return {
        "dtype": good | {"body": good["body"].astype(np.int16)},
        "last dtype": good | {"step": good["step"].astype(np.float64)},
        "shape": good | {"body": good["body"][:, :-1]},
        "more dimensions": good | {"uid": good["uid"][:, None]},
        "missing": without(good, "step"),
        "unknown": good | {"colour": good["uid"]},
        "nested": without(good, "uid") | {"uid": {"uid": good["uid"]}},
        "lengths": good | {"step": good["step"][:1]},
        "tensor dtype": good | {"body": torch.zeros(2, BODY)},
        "not representable": good | {"writer": [1, 1 << 40]},
        "nothing": {key: value[:0] for key, value in good.items()},
        "no fields": np.zeros((2, 3)),
        "empty list": [],
        "list with a wrong record": [stamped.record(1, 3, BODY), {"uid": 1}],
        "words": good | {"step": ["a", "b"]},
    }


class TestRefusedWrites:
    """Nothing changes: every byte, head, stamp and count is as it was."""

    @pytest.mark.parametrize("kind", wrong_batches())
    def test_extend(self, rb: shmrb.ReplayBuffer, root: Path, kind: str) -> None:
        before = stamped.contents(rb, root)
        with pytest.raises(shmrb.RecordError):
            rb.extend(wrong_batches()[kind])
        assert stamped.contents(rb, root) == before

    @pytest.mark.parametrize("kind", wrong_batches())
    def test_setters(self, rb: shmrb.ReplayBuffer, root: Path, kind: str) -> None:
        before = stamped.contents(rb, root)
        for index in ([0, 1], slice(2), torch.tensor([0, 2])):
            with pytest.raises(shmrb.RecordError):
                rb[index] = wrong_batches()[kind]
        assert stamped.contents(rb, root) == before

    def test_add(self, rb: shmrb.ReplayBuffer, root: Path) -> None:
        good = stamped.record(1, 3, BODY)
        before = stamped.contents(rb, root)
        for wrong in (
            good | {"body": good["body"].astype(np.float32)},
            good | {"uid": np.zeros(1, np.int64)},
            without(good, "body"),
            good | {"colour": 1},
            stamped.records(1, 3, 2, BODY),
        ):
            with pytest.raises(shmrb.RecordError):
                rb.add(wrong)
        assert stamped.contents(rb, root) == before

    def test_fields_in_place(self, rb: shmrb.ReplayBuffer, root: Path) -> None:
        """All fields of a call are checked before the first is written."""
        before = stamped.contents(rb, root)
        calls: list[tuple[type[Exception], Callable[[], Any]]] = [
            (KeyError, lambda: rb.set_("colour", np.zeros(3))),
            (KeyError, lambda: rb.update_({"uid": np.zeros(3, np.int64), "colour": np.zeros(3)})),
            (shmrb.RecordError, lambda: rb.set_("uid", np.zeros(3))),
            (shmrb.RecordError, lambda: rb.set_("uid", np.zeros(4, np.int64))),
            (shmrb.RecordError, lambda: rb.set_("uid", 5)),
            (
                shmrb.RecordError,
                lambda: rb.update_({"uid": np.zeros(3, np.int64), "step": np.zeros(3)}),
            ),
            (shmrb.RecordError, lambda: rb.update_([1, 2, 3])),
            (IndexError, lambda: rb.set_at_("uid", np.zeros(1, np.int64), [5])),
            (IndexError, lambda: rb.set_at_("uid", 1, 8)),
            (IndexError, lambda: rb.set_at_("uid", 1, -1)),
            (IndexError, lambda: rb.__setitem__([0, 7], stamped.records(1, 0, 2, BODY))),
            (shmrb.RecordError, lambda: rb.__setitem__([0, 1], stamped.records(1, 0, 3, BODY))),
            (shmrb.RecordError, lambda: rb.write_all(stamped.records(1, 0, 4, BODY))),
            (shmrb.RecordError, lambda: rb.write_all(stamped.records(1, 0, 1, BODY), end=2)),
        ]
        for error, call in calls:
            with pytest.raises(error):
                call()
        assert stamped.contents(rb, root) == before

    @pytest.mark.parametrize("role", ["learner", "observer"])
    def test_roles_that_may_not_write(self, new: New, root: Path, role: str) -> None:
        owner = new("roles", capacity=8, schema=stamped.schema(BODY))
        owner.extend(stamped.records(1, 0, 3, BODY))
        before = stamped.contents(owner, root)
        with shmrb.attach("roles", role=role, format="numpy") as reader:
            calls: list[Callable[[], Any]] = [
                lambda: reader.extend(stamped.records(1, 3, 2, BODY)),
                lambda: reader.add(stamped.record(1, 3, BODY)),
                lambda: reader.set_("uid", np.zeros(3, np.int64)),
                lambda: reader.__setitem__(0, stamped.record(1, 3, BODY)),
            ]
            for call in calls:
                with pytest.raises(shmrb.ReadOnlyError, match=f"attached as {role}"):
                    call()
            assert stamped.torn(reader.sample(16)) == []
        assert stamped.contents(owner, root) == before
        owner.close()

    def test_closed_handle(self, new: New, root: Path) -> None:
        owner = new("closed", capacity=8, schema=stamped.schema(BODY))
        owner.extend(stamped.records(1, 0, 3, BODY))
        before = stamped.contents(owner, root)
        other = shmrb.attach("closed", format="numpy")
        other.close()
        calls: list[Callable[[], Any]] = [
            lambda: other.extend(stamped.records(1, 3, 2, BODY)),
            lambda: other.add(stamped.record(1, 3, BODY)),
            lambda: other.set_("uid", np.zeros(3, np.int64)),
            lambda: other.empty(),
            lambda: other.end_trajectory(),
        ]
        for call in calls:
            with pytest.raises(shmrb.ClosedError):
                call()
        assert stamped.contents(owner, root) == before

    def test_limiter_that_lets_nothing_in(self, new: New, root: Path) -> None:
        limiter = shmrb.RateLimiter(min_size=2, samples_per_insert=1.0, error_buffer=4.0)
        rb = new(capacity=64, schema=stamped.schema(BODY), limiter=limiter)
        rb.extend(stamped.records(1, 0, 6, BODY))
        before = stamped.contents(rb, root)
        for count in (1, 8):
            with pytest.raises(shmrb.LimiterTimeoutError) as refused:
                rb.extend(stamped.records(1, 6, count, BODY), timeout=0.05)
            assert refused.value.written == 0
        with pytest.raises(shmrb.SpecError, match="40 records at a time can never pass"):
            rb.extend(stamped.records(1, 6, 40, BODY))
        with pytest.raises(shmrb.SpecError, match="9 records at a time can never pass"):
            rb.sample(9)
        assert stamped.contents(rb, root) == before

    @pytest.mark.parametrize("timeout", [-1, float("nan"), "soon"])
    def test_impossible_timeout(self, rb: shmrb.ReplayBuffer, root: Path, timeout: Any) -> None:
        before = stamped.contents(rb, root)
        for call in (
            lambda: rb.extend(stamped.records(1, 3, 2, BODY), timeout=timeout),
            lambda: rb.extend(stamped.records(1, 3, 7, BODY), timeout=timeout),
            lambda: rb.sample(2, timeout=timeout),
            lambda: rb.empty(timeout=timeout),
        ):
            with pytest.raises(shmrb.SpecError, match="timeout: expected seconds"):
                call()
        assert stamped.contents(rb, root) == before

    def test_immutable_writer(self, new: New) -> None:
        with pytest.raises(shmrb.ReadOnlyError, match="doesn't allow writing"):
            new(writer=shmrb.ImmutableWriter(), schema={"x": "int64"}).extend({"x": [1]})


class TestRing:
    def test_extend_larger_than_the_ring(self, new: New) -> None:
        """The last ones stay; handles of those that were overwritten are stale."""
        rb = new(capacity=4, schema={"uid": "int64"})
        with pytest.warns(UserWarning, match="the first 6 of them are overwritten"):
            index = rb.extend({"uid": np.arange(10)})
        assert index.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
        assert rb["uid"].tolist() == [8, 9, 6, 7]
        assert (len(rb), rb.write_count) == (4, 10)
        given = {(slot, uid // 4) for uid, slot in enumerate(index.tolist())}
        assert len(given) == 10, "no two records ever had the same slot and generation"
        assert rb.generations_of(range(4)).tolist() == [2, 2, 1, 1]

    def test_larger_than_the_ring_warns_once_and_counts(self, new: New) -> None:
        """A capacity in rows that was meant in batches is loud, and a metric shows it."""
        rb = new("rows", capacity=1, schema={"uid": "int64"})
        with pytest.warns(UserWarning, match="more records in one call than a lane of 1 holds"):
            rb.extend({"uid": np.arange(16)})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rb.extend({"uid": np.arange(16)})
        assert rb.stats()["overwritten_in_call"] == 30
        assert rb.sample(16)["uid"].tolist() == [15] * 16
        once = shmrb.attach(
            "rows", batch_size=16, sampler=shmrb.SamplerWithoutReplacement(drop_last=True)
        )
        with pytest.raises(shmrb.SpecError, match="greater than the storage capacity"):
            once.sample()
        once.close()

    def test_add_is_extend_of_one(self, new: New) -> None:
        """Fields, shapes, slots, generations and draws are the same."""
        one, many = (new(capacity=8, schema=stamped.schema(BODY), seed=5) for _ in range(2))
        slots = [one.add(stamped.record(1, seq, BODY)) for seq in range(11)]
        index = [many.extend(stamped.records(1, 0, 7, BODY)).tolist()]
        index.append(many.extend(stamped.records(1, 7, 4, BODY)).tolist())
        assert slots == index[0] + index[1]
        assert all(type(slot) is int for slot in slots)
        mine, yours = one.sample(5), many.sample(5)
        assert mine.keys() == yours.keys()
        for key, value in mine.items():
            assert value.dtype == yours[key].dtype
            assert np.array_equal(value, yours[key])
        assert one.generations_of(range(8)).tolist() == many.generations_of(range(8)).tolist()

    def test_only_written_records_are_drawn(self, new: New) -> None:
        """Not one step too early, and the last slot as soon as it is written."""
        rb = new(capacity=8, schema={"uid": "int64"}, seed=0)
        rb.extend({"uid": np.arange(7)})
        assert set(rb.sample(10_000)["uid"].tolist()) == set(range(7))
        rb.add({"uid": 7})
        counts = np.bincount(rb.sample(10_000)["uid"])
        assert len(counts) == 8
        assert abs(counts - 1250).max() < 5 * np.sqrt(10_000 * 7 / 64)

    def test_fill_sample_empty_again_and_again(self, new: New) -> None:
        """Shapes stay; right after `empty` there is nothing, not garbage."""
        rb = new(capacity=16, schema=stamped.schema(BODY), batch_size=12)
        stamps = np.full(12, -1)
        for _ in range(100):
            rb.extend(stamped.records(1, 0, 12, BODY))
            batch = rb.sample()
            assert batch["body"].shape == (12, BODY)
            assert stamped.torn(batch) == []
            assert (batch["index_generation"] > stamps[batch["index"]]).all()
            stamps = rb.generations_of(range(12))
            rb.empty()
            assert (len(rb), rb.write_count) == (0, 0)
            with pytest.raises(shmrb.EmptyBufferError, match="Cannot sample from an empty storage"):
                rb.sample()
            with pytest.raises(IndexError, match="no live record"):
                rb[0]

    def test_old_handles_are_stale_after_empty(self, new: New) -> None:
        """Generations keep growing, so no record is taken for an earlier one."""
        rb = new(capacity=4, schema={"uid": "int64"})
        seen = set()
        for _ in range(5):
            index = rb.extend({"uid": np.arange(4)})
            handles = set(zip(index.tolist(), rb.generations_of(index).tolist(), strict=True))
            assert not handles & seen
            seen |= handles
            rb.empty()

    def test_more_than_half_a_ring_goes_in_pieces(self, new: New) -> None:
        rb = new(capacity=8, schema={"uid": "int64"})
        rb.extend({"uid": np.arange(3)})
        assert rb.extend({"uid": np.arange(3, 11)}).tolist() == [3, 4, 5, 6, 7, 0, 1, 2]
        assert rb["uid"].tolist() == [8, 9, 10, 3, 4, 5, 6, 7]

    def test_longer_episodes_take_no_more_memory(self, new: New, root: Path) -> None:
        """Capacity counts records, however many of them an episode has."""
        schema = {"x": "int64", "next": {"done": bool}}
        rb = new("episodes", capacity=1000, schema=schema)

        def bytes_held() -> int:
            return sum(file.stat().st_blocks for file in (root / "episodes").iterdir())

        before = bytes_held()
        for length in (1, 100):
            for _ in range(100):
                done = np.zeros(length, bool)
                done[-1] = True
                rb.extend({"x": np.arange(length), "next": {"done": done}})
                assert len(rb) <= 1000
        assert len(rb) == 1000
        assert bytes_held() == before


class TestLanes:
    def test_handle_leases_a_lane_and_keeps_it(self, new: New) -> None:
        owner = new("lanes", storage=shmrb.SharedStorage(8, lanes=2), schema={"uid": "int64"})
        other = shmrb.attach("lanes", format="numpy")
        mine = owner.extend({"uid": np.arange(3)}).tolist()
        yours = other.extend({"uid": np.arange(10, 14)}).tolist()
        assert {slot // 4 for slot in mine} != {slot // 4 for slot in yours}
        assert len({slot // 4 for slot in mine}) == len({slot // 4 for slot in yours}) == 1
        assert owner.add({"uid": 3}) // 4 == mine[0] // 4
        third = shmrb.attach("lanes", format="numpy", client_name="the third")
        with pytest.raises(shmrb.LaneBusyError, match=r"all 2 lanes of lanes are leased, by .*pid"):
            third.extend({"uid": [0]}, timeout=0.05)
        other.close()
        assert third.extend({"uid": [0]}).tolist()[0] // 4 == yours[0] // 4
        for handle in (owner, third):
            handle.close()


class TestForms:
    def test_tensordict_lists_and_dictionaries(self, new: New) -> None:
        rb = new(capacity=16, schema={"x": "int64", "n": {"w": ("float32", 2)}}, format="torch")
        data = TensorDict({"x": torch.arange(2), "n": {"w": torch.zeros(2, 2)}}, [2])
        assert rb.extend(data).tolist() == [0, 1]
        assert rb.extend([data[0], data[1]]).tolist() == [2, 3]
        assert rb.extend({"x": np.arange(2), ("n", "w"): np.zeros((2, 2), "f4")}).tolist() == [4, 5]
        assert rb.add({"x": 7, "n": {"w": [0, 1]}}) == 6
        assert isinstance(rb.extend(data), torch.Tensor)
        assert rb["x"].tolist() == [0, 1, 0, 1, 0, 1, 7, 0, 1]

    def test_input_is_neither_kept_nor_changed(self, new: New) -> None:
        rb = new(capacity=8, schema={"x": ("float32", 2)}, format="torch")
        data = TensorDict({"x": torch.ones(3, 2)}, [3])
        rb.extend(data)
        assert list(data.keys()) == ["x"]
        data["x"].zero_()
        assert rb["x"].tolist() == [[1.0, 1.0]] * 3

    def test_sampled_batch_is_no_batch_to_write(self, new: New) -> None:
        """Its stamps belong to other records; left out, the rest goes in."""
        rb = new(capacity=8, schema={"x": "int64"}, format="torch")
        rb.extend({"x": [1, 2, 3]})
        batch = rb.sample(2)
        with pytest.raises(shmrb.RecordError, match="unknown 'index', 'index_generation'"):
            rb.extend(batch)
        assert rb.extend(batch.exclude("index", "index_generation")).tolist() == [3, 4]

    def test_cast_of_the_same_kind(self, new: New) -> None:
        rb = new(capacity=8, schema={"x": "float32"}, cast="same_kind")
        rb.extend({"x": np.arange(3.0)})
        assert rb["x"].dtype == np.float32
        with pytest.raises(shmrb.RecordError, match="complex128"):
            rb.extend({"x": np.zeros(2, complex)})
