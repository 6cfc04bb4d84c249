"""Late writes through the handle: which rows they reach, and what they refuse unchanged."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.draws import numbered, prioritized
from helpers.stamped import contents

New = Callable[..., Any]

FIELDS = {"x": "int64", "n": {"w": ("float32", (2,))}, "ver": "int32"}


def rows(first: int, stop: int) -> dict[str, Any]:
    count = stop - first
    return {
        "x": np.arange(first, stop),
        "n": {"w": np.zeros((count, 2), np.float32)},
        "ver": np.zeros(count, np.int32),
    }


@pytest.fixture
def ring(new: New) -> Any:
    """Eight slots of which five are written once."""
    rb = new(schema=FIELDS)
    rb.extend(rows(0, 4))
    rb.add(
        {key: value[0] for key, value in rows(4, 5).items() if key != "n"} | {"n": {"w": [0, 0]}}
    )
    return rb


def stats(buffer: Any, *names: str) -> list[int]:
    return [buffer.stats()[name] for name in names]


class TestPriorities:
    def test_of_a_record_that_is_gone(self, new: New) -> None:
        rb = prioritized(new, 4)
        index = np.concatenate([rb.extend(numbered(0, 2)), rb.extend(numbered(2, 4))])
        stamps = rb.generations_of(index)
        rb.extend(numbered(4, 6))
        result = rb.update_priority(index, 100.0, stamps)
        assert result.updated.tolist() == [False, False, True, True]
        assert (result.updated_count, result.stale_count) == (2, 2)
        assert result.version_rejected is None
        assert rb.sampler.priorities_of(range(4)).tolist() == [1, 1, 100, 100]
        assert stats(rb, "stale_rows", "rows_updated", "unchecked_updates") == [2, 2, 0]

    def test_of_a_batch_and_of_its_info(self, new: New) -> None:
        rb = prioritized(new, 4)
        rb.extend(numbered(0, 2))
        batch, info = rb.sample(6, return_info=True)
        rb.extend(numbered(2, 4))
        rb.add({"x": 4})
        for named in (batch, info):
            result = rb.update_priority(named, 3.0)
            assert (result.updated == (batch["index"] == 1)).all()
        with pytest.raises(shmrb.RecordError, match="leave generation= out"):
            rb.update_priority(batch, 3.0, info["index_generation"])
        del batch["index_generation"]
        with pytest.raises(shmrb.RecordError, match="no 'index_generation'"):
            rb.update_priority(batch, 3.0)

    def test_of_one_record_several_times(self, new: New) -> None:
        rb = prioritized(new, 8)
        rb.extend(numbered(0, 4))
        rb.extend(numbered(4, 8))
        assert rb.update_priority([5, 5, 5], [1, 2, 3]).updated.all()
        assert rb.sampler.priorities_of(5)[0] == 3
        info = rb.statistics().priorities
        assert info is not None
        assert info.total_mass == 7 + 3

    def test_by_bare_slots_are_counted_as_unchecked(self, new: New) -> None:
        rb = prioritized(new, 8)
        rb.extend(numbered(0, 4))
        result = rb.update_priority([0, 3, 5, -1], [2, 3, 4, 5])
        assert result.updated.tolist() == [True, True, False, False]
        assert np.isnan(rb.sampler.priorities_of([5, 7])).all()
        assert stats(rb, "unchecked_updates", "stale_rows") == [4, 0]

    @pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, -np.inf, 1e300])
    def test_that_cannot_be_are_refused_with_row_and_value(
        self, new: New, root: Any, bad: float
    ) -> None:
        rb = prioritized(new, 8, name="shared")
        rb.extend(numbered(0, 4))
        batch = rb.sample(4)
        before = contents(rb, root)
        raw = np.array([1, 2, bad, 4])
        shown = "inf" if bad == 1e300 else f"{bad:g}"  # as float32 has it
        for call in (
            lambda: rb.update_priority(batch, raw),
            lambda: rb.update_priority([0, 1, 2, 3], raw),
            lambda: rb.update_tensordict_priority({**batch, "td_error": raw}),
            lambda: rb.extend(numbered(4, 8), priority=raw),
            lambda: rb.extend({**numbered(4, 8), "td_error": raw}),
            lambda: rb.extend(numbered(4, 10), priority=np.resize(raw, 6)),
        ):
            with pytest.raises(shmrb.RecordError, match=f"row 2 has priority {shown}"):
                call()
        assert contents(rb, root) == before
        assert stats(rb, "refused_priorities") == [6]

    def test_whose_mass_is_beyond_float32_are_refused(self, new: New) -> None:
        rb = prioritized(new, 8, alpha=2.0)
        rb.extend(numbered(0, 2))
        with pytest.raises(shmrb.RecordError, match="row 1 has priority 1e"):
            rb.update_priority([0, 1], [1.0, 1e20])
        assert rb.sampler.priorities_of([0, 1]).tolist() == [1, 1]

    @pytest.mark.parametrize(
        ("index", "words"),
        [
            ([0.0, 1.0], "expected whole numbers"),
            (["0", "1"], "expected whole numbers"),
            ([True, False], "expected whole numbers"),
            (np.array([[0, 1], [2, 3]]), "expected one dimension"),
            ([0, 8], "row 1 has index 8"),
            ([0, 1 << 40], "row 1 has index 1099511627776"),
            ([-2, 1], "row 0 has index -2"),
            (np.array([0, 1 << 63], np.uint64), "row 1 is 9223372036854775808"),
            ([0, 1 << 70], "whole numbers"),
            ([0, 1, 2], "same length as index"),
        ],
    )
    def test_of_a_bad_index_are_refused(self, new: New, root: Any, index: Any, words: str) -> None:
        rb = prioritized(new, 8, name="shared")
        rb.extend(numbered(0, 4))
        before = contents(rb, root)
        with pytest.raises(shmrb.RecordError, match=words):
            rb.update_priority(index, [1.0, 2.0])
        assert contents(rb, root) == before

    @pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint32", "uint64"])
    def test_of_an_index_of_any_whole_dtype(self, new: New, dtype: str) -> None:
        rb = prioritized(new, 8)
        rb.extend(numbered(0, 4))
        strided = np.array([0, 9, 2, 9], dtype)[::2]
        assert rb.update_priority(strided, [5, 6]).updated_count == 2
        assert rb.update_priority(strided[:, None], [[7], [8]]).updated_count == 2
        assert rb.sampler.priorities_of(range(4)).tolist() == [7, 1, 8, 1]
        assert len(rb.update_priority(strided[:0], [])) == 0

    def test_with_a_generation_a_slot_outside_is_stale(self, new: New) -> None:
        rb = prioritized(new, 8)
        rb.extend(numbered(0, 4))
        index = [-1, 8, 1 << 40, 0]
        assert rb.update_priority(index, 2.0, [0, 0, 0, 0]).updated.tolist() == [0, 0, 0, 1]
        with pytest.raises(shmrb.RecordError, match="4 indices and 1 generations"):
            rb.update_priority(index, 2.0, [0])

    def test_on_a_buffer_without_priorities_warn(self, ring: Any) -> None:
        with pytest.warns(UserWarning, match="not prioritized"):
            result = ring.update_priority([0, 1], 2.0)
        assert result.updated_count == 0
        result = ring.update_tensordict_priority(ring.sample(3))
        assert result.updated_count == 0

    @pytest.mark.parametrize(
        ("reduction", "expected"),
        [("max", 4), ("min", 1), ("mean", 2.5), ("sum", 10), ("median", 2)],
    )
    def test_in_the_batch_are_reduced(self, new: New, reduction: str, expected: float) -> None:
        sampler = shmrb.PrioritizedSampler(alpha=1.0, beta=1.0, reduction=reduction)
        rb = new(schema={"x": "int64"}, sampler=sampler)
        rb.extend(numbered(0, 2))
        batch = rb.sample(5)
        with pytest.raises(shmrb.RecordError, match="no 'td_error'"):
            rb.update_tensordict_priority(batch)
        batch["td_error"] = np.tile(np.array([[[4, 1], [2, 3]]]), (5, 1, 1))
        assert rb.update_tensordict_priority(batch).updated.all()
        drawn = set(batch["index"].tolist())
        assert set(rb.sampler.priorities_of(list(drawn)).tolist()) == {expected}
        slot = rb.add({"x": 2, "td_error": np.array([4, 1, 2, 3])})
        assert rb.sampler.priorities_of(slot)[0] == expected


class TestPatches:
    def test_reach_only_the_records_that_are_there(self, ring: Any) -> None:
        batch = ring[:]
        batch |= {"index": np.arange(5), "index_generation": ring.generations_of(np.arange(5))}
        ring.extend(rows(10, 13))
        ring.extend(rows(13, 15))
        result = ring.update_if_present(batch, patch={"x": np.arange(100, 105)})
        assert result.updated.tolist() == [False, False, True, True, True]
        assert ring["x"].tolist() == [13, 14, 102, 103, 104, 10, 11, 12]
        assert stats(ring, "rows_updated", "stale_rows") == [3, 2]

    @pytest.mark.parametrize("generation", [-1, 0, -2, (1 << 63) - 1])
    def test_never_reach_a_slot_that_was_never_written(self, ring: Any, generation: int) -> None:
        segment = ring._attachment.member
        before = segment.mapping("data").view("u1", 0, 8 * 8).tobytes()
        result = ring.update_if_present(index=[7], generation=[generation], patch={"x": [99]})
        assert not result.updated.any()
        assert len(ring) == 5
        assert segment.mapping("data").view("u1", 0, 8 * 8).tobytes() == before

    def test_of_rows_that_their_own_call_overwrote_are_stale(self, new: New) -> None:
        rb = new(capacity=4, schema={"x": "int64"})
        with pytest.warns(UserWarning, match="more records in one call"):
            index = rb.extend(numbered(0, 10))
        # The n-th write of a slot is its generation n.
        handles = {"index": index, "generation": np.arange(10) // 4}
        result = rb.update_if_present(**handles, patch={"x": np.arange(100, 110)})
        assert result.updated.tolist() == [False] * 6 + [True] * 4
        assert rb["x"].tolist() == [108, 109, 106, 107]

    def test_of_records_from_before_an_empty_are_stale(self, new: New) -> None:
        rb = prioritized(new, 4)
        index = np.concatenate([rb.extend(numbered(0, 2)), rb.extend(numbered(2, 4))])
        handles = {"index": index, "generation": rb.generations_of(index)}
        rb.empty()
        for first in (None, 10):
            if first is not None:
                rb.extend(numbered(first, first + 2))
                rb.extend(numbered(first + 2, first + 4))
            patched = rb.update_if_present(**handles, patch={"x": np.full(4, -1)})
            assert patched.stale.all()
            assert rb.update_priority(handles["index"], 9.0, handles["generation"]).stale.all()
        assert rb["x"].tolist() == [10, 11, 12, 13]
        assert rb.sampler.priorities_of(range(4)).tolist() == [1, 1, 1, 1]
        assert (rb.generations_of(index) > handles["generation"]).all()

    def test_of_nested_fields_in_every_spelling(self, ring: Any) -> None:
        new = np.ones((2, 2), np.float32)
        for value, patch in enumerate(
            ({("n", "w"): new}, {"n": {"w": new * 2}}, {("n", ("w",)): new * 3})
        ):
            ring.update_if_present(index=[0, 1], generation=[0, 0], patch=patch)
            assert ring["n", "w"][:2].tolist() == [[value + 1] * 2] * 2

    def test_in_any_shape_of_the_same_size(self, ring: Any) -> None:
        flat = np.arange(4, dtype=np.float32)
        patch = {("n", "w"): flat, "x": [[7], [8]]}
        assert ring.update_if_present(index=[0, 1], generation=[0, 0], patch=patch).updated.all()
        assert ring["n", "w"][:2].tolist() == [[0, 1], [2, 3]]
        assert ring["x"][:2].tolist() == [7, 8]

    def test_are_all_checked_before_the_first_is_written(self, ring: Any, root: Any) -> None:
        good = {"x": np.arange(2)}
        bad: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"patch": good | {"y": [1, 2]}}, KeyError, "Key y does not exist"),
            ({"patch": good | {("n", "w"): np.zeros((2, 2))}}, ValueError, "dtype mismatch"),
            ({"patch": good | {"ver": np.zeros(3, np.int32)}}, ValueError, "shape mismatch"),
            ({"patch": good | {"ver": [1, 1 << 40]}}, ValueError, "cannot be represented"),
            ({"patch": good | {"ver": [[1], [2, 3]]}}, ValueError, "ragged"),
            ({"patch": good, "version": [1, 2, 3]}, ValueError, "one entry per record"),
            ({"patch": good, "version": 1.5}, ValueError, "expected whole numbers"),
            ({"patch": good, "version_key": "ver"}, ValueError, "provided together"),
            ({"patch": good, "require_newer": True}, ValueError, "give version="),
            ({"patch": good, "version_key": "ver", "version": 1 << 40}, ValueError, "cannot be"),
            ({"patch": 3}, KeyError, "tensor"),
            ({"patch": None}, ValueError, "expected fields by name"),
            ({"patch": {3: [1, 2]}}, KeyError, "name"),
        ]
        before = contents(ring, root) if (root / ring.name).exists() else None
        stored = copy.deepcopy(ring[:])
        for arguments, error, words in bad:
            with pytest.raises(error, match=words):
                ring.update_if_present(index=[0, 1], generation=[0, 0], **arguments)
        for key in ("x", "ver"):
            assert ring[key].tolist() == stored[key].tolist()
        assert before is None or contents(ring, root) == before
        assert stats(ring, "rows_updated", "stale_rows") == [0, 0]

    def test_name_their_records_in_one_way(self, ring: Any) -> None:
        batch = ring.sample(2)
        patch = {"x": [1, 2]}
        for arguments in (
            {},
            {"batch": batch, "index": [0, 1], "generation": [0, 0]},
            {"index": [0, 1]},
            {"batch": np.array([0, 1]), "generation": [0, 0]},
        ):
            with pytest.raises(shmrb.RecordError):
                ring.update_if_present(patch=patch, **arguments)

    def test_of_nothing(self, ring: Any) -> None:
        empty = ring.update_if_present(index=[], generation=[], patch={"x": []})
        assert len(empty) == empty.updated_count == empty.stale_count == 0
        nothing = ring.update_if_present(index=[0, 7], generation=[0, 0], patch={})
        assert nothing.updated.tolist() == [True, False]

    def test_leave_order_counts_stamps_and_priorities(self, new: New) -> None:
        rb = prioritized(new, 4)
        rb.extend(numbered(0, 2), priority=[2, 3])
        before = rb.generations_of(range(4)).tolist(), rb.write_count, len(rb)
        assert rb.update_if_present(rb.sample(3), patch={"x": [7, 7, 7]}).updated.all()
        assert (rb.generations_of(range(4)).tolist(), rb.write_count, len(rb)) == before
        assert rb.sampler.priorities_of([0, 1]).tolist() == [2, 3]

    def test_of_records_that_are_bare_arrays(self, new: New) -> None:
        rb = new(schema=shmrb.schema_like(np.zeros(3, np.float32)))
        rb.extend(np.zeros((2, 3), np.float32))
        rb.update_if_present(index=[1], generation=[0], patch=np.ones((1, 3), np.float32))
        assert rb[:].tolist() == [[0, 0, 0], [1, 1, 1]]

    def test_of_a_buffer_that_is_only_declared(self, new: New) -> None:
        rb = new()
        with pytest.raises(RuntimeError, match="require an initialized storage"):
            rb.update_if_present(index=[0], generation=[0], patch={"x": [1]})
        assert rb.update_if_present(index=[0], generation=[0], patch={}).stale_count == 1

    def test_through_a_handle_that_may_not_write(self, new: New) -> None:
        rb = new("shared", schema={"x": "int64"})
        rb.extend(numbered(0, 2))
        learner = shmrb.attach("shared", role="learner", format="numpy")
        with pytest.raises(shmrb.ReadOnlyError, match="learner"):
            learner.update_if_present(learner.sample(2), patch={"x": [1, 2]})
        learner.close()


class TestVersions:
    def test_an_older_result_comes_late(self, ring: Any) -> None:
        handle = {"index": [3], "generation": [0], "version_key": "ver"}
        assert ring.update_if_present(**handle, patch={"x": [70]}, version=7).updated.all()
        late = ring.update_if_present(**handle, patch={"x": [50]}, version=5)
        assert late.version_rejected.all()
        assert not late.stale.any()
        assert (ring["x"][3], ring["ver"][3]) == (70, 7)
        assert stats(ring, "versions_rejected") == [1]

    def test_several_in_one_call(self, ring: Any) -> None:
        result = ring.update_if_present(
            index=[3, 3, 4, 3, 4],
            generation=[0, 0, 0, 5, 0],
            patch={"x": [70, 50, 1, 9, 2]},
            version_key="ver",
            version=[7, 5, 2, 9, 2],
        )
        assert result.updated.tolist() == [1, 0, 0, 0, 1]
        assert result.version_rejected.tolist() == [0, 1, 1, 0, 0]
        assert result.stale.tolist() == [0, 0, 0, 1, 0]
        assert ring["x"][3:].tolist() == [70, 2]
        assert ring["ver"][3:].tolist() == [7, 2]

    def test_equal_ones_by_require_newer(self, ring: Any) -> None:
        handle = {"index": [3], "generation": [0], "version_key": "ver", "version": 7}
        assert ring.update_if_present(**handle, patch={"x": [1]}).updated.all()
        assert ring.update_if_present(**handle, patch={"x": [2]}).updated.all()
        result = ring.update_if_present(**handle, patch={"x": [3]}, require_newer=True)
        assert result.version_rejected.all()
        assert ring["x"][3] == 2

    def test_the_buffers_own(self, ring: Any) -> None:
        handle = {"index": [0, 1], "generation": [0, 0]}
        assert ring.update_if_present(**handle, patch={"x": [1, 2]}, version=-1).updated.all()
        first = ring.update_if_present(
            **handle, patch={"x": [3, 4]}, version=[-1, 5], require_newer=True
        )
        assert first.version_rejected.tolist() == [True, False]
        assert ring.update_if_present(**handle, patch={}, version=4).updated.tolist() == [1, 0]
        assert ring["x"][:2].tolist() == [1, 4]
        # A new record has no version yet.
        ring.extend(rows(5, 8))
        slots = ring.extend(rows(8, 10))
        fresh = ring.update_if_present(
            index=slots, generation=ring.generations_of(slots), patch={}, version=0
        )
        assert fresh.updated.all()

    @pytest.mark.parametrize(
        "dtype",
        [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
        + ["float16", "float32", "float64", "bool"],
    )
    @pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
    def test_of_any_dtype(self, new: New, dtype: str, shape: tuple[int, ...]) -> None:
        rb = new(schema={"x": "int64", "v": (dtype, shape)})
        kind = np.dtype(dtype).kind
        ladder: list[Any] = [0, 1]
        if kind in "iu":
            ladder += [int(np.iinfo(dtype).max) - 1, int(np.iinfo(dtype).max)]
        if kind == "i":
            ladder = [int(np.iinfo(dtype).min), -1, *ladder]
        if kind == "f":
            tiny, huge = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
            ladder = [-np.inf, -float(huge), -1.5, -float(tiny), 0.0, float(tiny), 1.5, np.inf]
        for stored, incoming in itertools.product(np.array(ladder, dtype), repeat=2):
            for require_newer in (True, False):
                rb.empty()
                slot = rb.add({"x": 0, "v": np.full(shape, stored, dtype)})
                result = rb.update_if_present(
                    index=[slot],
                    generation=rb.generations_of([slot]),
                    patch={"x": [1]},
                    version_key="v",
                    version=np.array([incoming]),
                    require_newer=require_newer,
                )
                newer = incoming > stored if require_newer else incoming >= stored
                assert result.updated[0] == newer, (stored, incoming)
                assert rb["v"].reshape(-1)[0] == (incoming if newer else stored)

    def test_that_are_not_numbers(self, new: New) -> None:
        rb = new(schema={"x": "int64", "v": "float32", "z": "complex64"})
        rb.extend({"x": [0], "v": [np.nan], "z": [0j]})
        handle = {"index": [0], "generation": [0], "patch": {"x": [1]}}
        with pytest.raises(shmrb.RecordError, match="NaN is neither newer nor older"):
            rb.update_if_present(**handle, version_key="v", version=float("nan"))
        # As in TorchRL nothing is newer than a stored NaN.
        assert rb.update_if_present(**handle, version_key="v", version=1.0).version_rejected.all()
        with pytest.raises(shmrb.RecordError, match="per-record scalar"):
            rb.update_if_present(**handle, version_key="z", version=1)


class TestSubmitted:
    def test_in_order_and_from_copies(self, ring: Any) -> None:
        batch = ring[:]
        batch |= {"index": np.arange(5), "index_generation": np.zeros(5, np.int64)}
        futures: list[Future[Any]] = []
        value = np.zeros(5, np.int64)
        for number in range(1, 51):
            value[:] = number
            futures.append(ring.submit_update_if_present(batch, patch={"x": value}, version=number))
            batch["index_generation"][:] = 0
        value[:] = -1
        batch["index"][:] = 7
        assert [future.result().updated_count for future in futures] == [5] * 50
        assert ring["x"].tolist() == [50] * 5

    def test_errors_are_the_futures(self, ring: Any) -> None:
        future = ring.submit_update_if_present(index=[0], generation=[0], patch={"y": [1]})
        assert isinstance(future.exception(), KeyError)
        with pytest.raises(shmrb.RecordError, match="give a batch"):
            ring.submit_update_if_present(patch={"x": [1]})

    def test_close_finishes_them(self, new: New) -> None:
        rb = new("shared", schema={"x": "int64"})
        rb.extend(numbered(0, 4))
        other = shmrb.attach("shared", format="numpy")
        threads = threading.active_count()
        futures = [
            rb.submit_update_if_present(index=[0], generation=[0], patch={"x": [n]})
            for n in range(200)
        ]
        rb.close()
        rb.close()
        assert all(future.result().updated.all() for future in futures)
        assert other["x"][0] == 199
        assert threading.active_count() == threads
        with pytest.raises(shmrb.ClosedError):
            rb.update_if_present(index=[0], generation=[0], patch={"x": [1]})
        future = rb.submit_update_if_present(index=[0], generation=[0], patch={"x": [1]})
        assert isinstance(future.exception(), shmrb.ClosedError)
        rb.close()
        other.close()
