"""Slices through the handle: which starts, how often, and what is marked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.draws import allows

New = Callable[..., Any]
ORACLE = Path(__file__).parents[1] / "oracle"
FIELDS = {"t": "int64", "next": {"done": ("bool", 1)}}
FLAGS = {"truncated_key": None}


def steps(numbers: Any, done: Any = ()) -> dict[str, Any]:
    ends = np.zeros((len(numbers), 1), bool)
    ends[list(done)] = True
    return {"t": np.asarray(numbers), "next": {"done": ends}}


def starts(buffer: Any, slices: int, length: int) -> Counter[int]:
    """The first slots of so many slices, each of which is checked to be one piece."""
    batch = buffer.sample(slices * length)
    index, t = (batch[key].reshape(slices, length) for key in ("index", "t"))
    assert (np.diff(t, axis=1) == 1).all()
    return Counter(index[:, 0].tolist())


def wrapped_ring(new: New, **options: Any) -> Any:
    """slot0=B3, 1=B4, 2=A2, 3=A3, 4=A4, 5=B0, 6=B1, 7=B2, cursor 2."""
    buffer = new(capacity=8, schema=FIELDS, seed=5, **options)
    buffer.extend(steps(range(5), [4]))
    buffer.extend(steps(range(100, 105), [4]))
    assert buffer["t"].tolist() == [103, 104, 2, 3, 4, 100, 101, 102]
    return buffer


class TestStarts:
    @pytest.mark.parametrize(
        ("sampler", "chances"),
        [
            (shmrb.SliceSampler(slice_len=3, weight="records"), {2: 1, 5: 1, 6: 1, 7: 1}),
            (shmrb.SliceSampler(slice_len=3), {2: 3, 5: 1, 6: 1, 7: 1}),
        ],
    )
    def test_newest_and_oldest_are_never_joined(
        self, new: New, sampler: Any, chances: dict[int, int]
    ) -> None:
        found = starts(wrapped_ring(new, sampler=sampler), 4000, 3)
        whole = sum(chances.values())
        assert set(found) == set(chances)
        assert all(allows(found[slot], 4000, chances[slot] / whole) for slot in chances)

    def test_the_last_step_is_drawn_as_often_as_it_should_be(self, new: New) -> None:
        buffer = new(capacity=8, schema=FIELDS, sampler=shmrb.SliceSampler(slice_len=1), seed=1)
        buffer.extend(steps(range(2), [1]))
        found = starts(buffer, 10_000, 1)
        assert set(found) == {0, 1}
        assert allows(found[1], 10_000, 0.5)
        exact = new(capacity=8, schema=FIELDS, sampler=shmrb.SliceSampler(slice_len=2), seed=1)
        exact.extend(steps(range(2), [1]))
        assert starts(exact, 100, 2) == {0: 100}

    @pytest.mark.parametrize("weight", ["trajectories", "records"])
    def test_chances_over_trajectories_and_starts_in_several_lanes(
        self, new: New, weight: str
    ) -> None:
        storage = shmrb.SharedStorage(3 * 130, lanes=3)
        sampler = shmrb.SliceSampler(slice_len=4, weight=weight)
        buffer = new(storage=storage, schema=FIELDS, sampler=sampler, seed=11)
        rng = np.random.default_rng(2)
        with buffer.lane(count=3, rotate=False) as lane:
            for _ in range(4):
                ends = rng.random((50, 3, 1)) < 0.12
                t = np.full((50, 3), 0)
                lane.extend({"t": t, "next": {"done": ends}})
        runs = [
            (130 * number, run)
            for number in range(3)
            for run in buffer._attachment.segment.runs(number)
            if run[1] >= 4
        ]
        exact: dict[int, float] = {}
        spare = sum(run[1] - 3 for _, run in runs)
        for first, (ticket, length, _, _) in runs:
            for k in range(length - 3):
                slot = first + (ticket + k) % 130
                exact[slot] = 1 / spare if weight == "records" else 1 / len(runs) / (length - 3)
        slices = 30_000
        index = buffer.sample(slices * 4)["index"][::4]
        found = Counter(index.tolist())
        assert set(found) <= set(exact)
        assert all(allows(found[slot], slices, exact[slot]) for slot in exact)

    def test_prioritized_slices_start_by_mass(self, new: New) -> None:
        sampler = shmrb.PrioritizedSliceSampler(alpha=1.0, beta=1.0, eps=0.0, slice_len=3)
        buffer = wrapped_ring(new, sampler=sampler)
        buffer.update_priority(np.arange(8), [9, 9, 1, 9, 9, 2, 3, 4])
        batch = buffer.sample(4000 * 3)
        found = Counter(batch["index"][::3].tolist())
        assert set(found) == {2, 5, 6, 7}
        for slot, mass in {2: 1, 5: 2, 6: 3, 7: 4}.items():
            assert allows(found[slot], 4000, mass / 10)
        weights = batch["priority_weight"].reshape(-1, 3)
        firsts = batch["index"][::3]
        assert (weights == weights[:, :1]).all()
        assert np.allclose(weights[firsts == 7], 0.25)
        # Starts that were passed over keep their mass.
        assert buffer._attachment.segment.priorities()["total"] == 46.0
        buffer.update_priority(batch, np.ones(len(batch["t"])))
        assert buffer.sampler.priorities_of([2, 3, 4, 5]).tolist() == [1, 1, 1, 1]

    def test_without_replacement_every_trajectory_once(self, new: New) -> None:
        sampler = shmrb.SliceSamplerWithoutReplacement(slice_len=2)
        buffer = new(capacity=64, schema=FIELDS, sampler=sampler, batch_size=8, seed=1)
        for number in range(10):
            length = number % 4 + 1
            buffer.extend(steps(range(10 * number, 10 * number + length), [length - 1]))
        seen: list[int] = []
        sizes = []
        for batch in buffer:
            sizes.append(len(batch["t"]))
            assert (np.diff(batch["t"].reshape(-1, 2)) == 1).all()
            seen += (batch["t"][::2] // 10).tolist()
        assert sorted(seen) == [n for n in range(10) if n % 4]
        assert sizes == [8, 6]

    def test_a_start_that_is_overwritten_meanwhile_is_left_out(self, new: New) -> None:
        sampler = shmrb.SliceSamplerWithoutReplacement(slice_len=2, shuffle=False)
        buffer = new(capacity=8, schema=FIELDS, sampler=sampler)
        buffer.extend(steps(range(4), [1, 3]))
        assert buffer.sample(2)["t"].tolist() == [0, 1]
        buffer.extend(steps(range(10, 18), [7]))
        assert not buffer.sampler.ran_out
        with pytest.raises(shmrb.EmptyBufferError):  # the pass ends with what is gone
            buffer.sample(2)
        assert buffer.sample(2)["t"][0] >= 10


class TestTorchRL:
    """Which slices, with which chances, and the words of refusals."""

    @pytest.mark.parametrize(
        "name",
        sorted({c["ring"] for c in json.loads((ORACLE / "slices.json").read_text())["cases"]}),
    )
    def test_the_same_slices_as_often(self, new: New, name: str) -> None:
        cases = json.loads((ORACLE / "slices.json").read_text())["cases"]
        cases = [case for case in cases if case["ring"] == name]
        buffer = new("ring", capacity=10, schema=FIELDS)
        for ticket in range(cases[0]["written"]):
            is_last = ticket >= cases[0]["written"] - 10 and ticket % 10 in cases[0]["done"]
            buffer.add({"t": ticket, "next": {"done": [is_last]}})
        for case in cases:
            sampler = shmrb.SliceSampler(**case["sampler"])
            with shmrb.attach("ring", sampler=sampler, format="numpy", seed=3) as handle:
                if "error" in case:
                    with pytest.raises(RuntimeError) as caught:
                        handle.sample(4 * sampler.slice_len)
                    assert case["error"][1] in str(caught.value)
                else:
                    _compare(handle, sampler.slice_len, case)


def _compare(handle: Any, length: int, case: dict[str, Any]) -> None:
    found: Counter[str] = Counter()
    batch = handle.sample(1000 * length)
    for number in range(1000):
        rows = batch["sequence_id"] == number
        found[json.dumps(batch["index"][rows].tolist())] += 1
    recorded = {json.dumps(slots): count for slots, count in case["slices"]}
    assert set(found) == set(recorded)
    for slots, count in recorded.items():
        # Two samples of a thousand: twice the variance of one.
        assert abs(found[slots] - count) <= 5 * np.sqrt(2 * max(count, 25) * (1 - count / 1000) + 1)
    nested = {f"('next', '{key}')" for key in batch["next"] if key != "done"}
    if "collector" in batch:
        nested.add("('collector', 'mask')")
    assert nested == {key for key in case["keys"] if "done" not in key and key != "index"}


class TestMarks:
    def test_ends_are_marked_and_what_is_stored_stays(self, new: New) -> None:
        schema = {
            "t": "int64",
            "is_init": bool,
            "next": {"done": ("bool", 1), "terminated": bool, "truncated": ("bool", 1)},
        }
        sampler = shmrb.SliceSampler(slice_len=3)
        buffer = new(capacity=16, schema=schema, sampler=sampler, seed=2)
        ended = np.array([False, False, False, False, True])
        buffer.extend(
            {
                "t": np.arange(5),
                "is_init": np.array([True, False, False, False, False]),
                "next": {
                    "done": ended[:, None],
                    "terminated": ended,
                    "truncated": np.zeros((5, 1), bool),
                },
            }
        )
        batch = buffer.sample(300)
        last = np.tile([False, False, True], 100)
        assert batch["next"]["truncated"].reshape(-1).tolist() == last.tolist()
        assert (batch["next"]["terminated"] == (batch["t"] == 4)).all()
        assert batch["next"]["done"].reshape(-1).tolist() == last.tolist()
        assert batch["is_init"].tolist() == np.roll(last, 1).tolist()
        assert buffer["is_init"].tolist() == [True, False, False, False, False]

    def test_missing_flags_are_added_beside_truncated(self, new: New) -> None:
        buffer = wrapped_ring(new, sampler=shmrb.SliceSampler(slice_len=3))
        batch = buffer.sample(30)
        assert set(batch["next"]) == {"done", "truncated", "terminated"}
        assert batch["next"]["truncated"].shape == (30, 1)
        assert not batch["next"]["terminated"].any()
        plain = wrapped_ring(new, sampler=shmrb.SliceSampler(slice_len=3, truncated_key=None))
        assert set(plain.sample(30)["next"]) == {"done"}

    def test_a_slice_may_be_padded(self, new: New) -> None:
        sampler = shmrb.SliceSampler(slice_len=4, strict_length=False, pad_output=True)
        buffer = new(capacity=16, schema=FIELDS, sampler=sampler, seed=2)
        buffer.extend(steps(range(2), [1]))
        batch = buffer.sample(8)
        assert batch["t"].tolist() == [0, 1, 1, 1] * 2
        assert batch["collector"]["mask"].tolist() == [True, True, False, False] * 2
        assert batch["validity_mask"].tolist() == batch["collector"]["mask"].tolist()
        assert (
            batch["next"]["truncated"].reshape(2, 4).tolist() == [[False, True, False, False]] * 2
        )
        # What is computed for padding changes no record.
        result = buffer.update_if_present(batch, patch={"t": np.arange(8) * 10})
        assert result.updated.tolist() == [True, True, False, False] * 2
        assert buffer["t"].tolist() == [40, 50]

    def test_or_the_batch_is_shorter(self, new: New) -> None:
        sampler = shmrb.SliceSampler(num_slices=2, strict_length=False)
        buffer = new(capacity=16, schema=FIELDS, sampler=sampler, seed=2, format="torch")
        buffer.extend(steps(range(3), [2]))
        batch = buffer.sample(10)
        assert batch["t"].tolist() == [0, 1, 2] * 2
        assert batch["sequence_id"].tolist() == [0, 0, 0, 1, 1, 1]
        assert ("collector", "mask") not in batch.keys(True)

    def test_memory_of_an_earlier_batch_is_used_again(self, new: New) -> None:
        buffer = wrapped_ring(new, sampler=shmrb.SliceSampler(slice_len=3))
        batch = buffer.sample(30)
        place = batch["t"].ctypes.data
        again = buffer.sample(30, out=batch)
        assert again is batch
        assert again["t"].ctypes.data == place
        assert again["next"]["truncated"].reshape(-1, 3).tolist() == [[False, False, True]] * 10


class TestRefusals:
    def test_interleaved_records_name_lanes_as_the_cure(self, new: New) -> None:
        schema = FIELDS | {"traj_ids": "int64"}
        buffer = new(capacity=64, schema=schema, sampler=shmrb.SliceSampler(slice_len=4))
        for step in range(8):  # a [2, 1] extend, eight times: environment 0, environment 1
            data = steps([step, 100 + step]) | {"traj_ids": np.array([0, 1])}
            buffer.extend(data)
        with pytest.raises(shmrb.NoWindowError, match=r"15 of 16 pieces.*lanes=N.*rb.lane\(\)"):
            buffer.sample(8)

    def test_lanes_are_the_cure(self, new: New) -> None:
        storage = shmrb.SharedStorage(64, lanes=2)
        schema = FIELDS | {"traj_ids": "int64"}
        buffer = new(storage=storage, schema=schema, sampler=shmrb.SliceSampler(slice_len=4))
        with buffer.lane(count=2) as lane:
            for step in range(8):
                data = {
                    "t": np.array([[step, 100 + step]]),
                    "traj_ids": np.array([[0, 1]]),
                    "next": {"done": np.zeros((1, 2, 1), bool)},
                }
                lane.extend(data)
        batch = buffer.sample(400)
        assert (np.diff(batch["t"].reshape(-1, 4)) == 1).all()
        assert set(batch["traj_ids"].tolist()) == {0, 1}

    def test_no_legal_start_is_said_at_once_or_waited_for(self, new: New) -> None:
        buffer = new(capacity=16, schema=FIELDS, sampler=shmrb.SliceSampler(slice_len=3))
        buffer.extend(steps(range(8), range(8)))
        words = r"length range: 1 - 1 / required=3\)\)\. Take shorter windows\. Or wait"
        with pytest.raises(shmrb.NoWindowError, match=words):
            buffer.sample(6)
        with pytest.raises(shmrb.DeadlineError, match="required=3"):
            buffer.sample(6, timeout=0.05)
        buffer.extend(steps(range(3)))
        assert len(buffer.sample(6)["t"]) == 6

    @pytest.mark.parametrize(
        "sampler",
        [
            shmrb.SliceSamplerWithoutReplacement(slice_len=3),
            shmrb.PrioritizedSliceSampler(slice_len=3, alpha=1.0, beta=1.0),
        ],
    )
    def test_so_for_the_other_samplers(self, new: New, sampler: Any) -> None:
        buffer = new(capacity=16, schema=FIELDS, sampler=sampler)
        with pytest.raises(shmrb.EmptyBufferError):
            buffer.sample(6)
        buffer.extend(steps(range(8), range(8)))
        with pytest.raises(shmrb.NoWindowError, match="required=3"):
            buffer.sample(6)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({}, "Either num_slices or slice_len must be not None, and not both"),
            ({"num_slices": 2, "slice_len": 2}, "Either num_slices or slice_len must be not None"),
            ({"slice_len": 0}, "slice_len must be"),
            ({"slice_len": 2, "pad_output": True}, "strict_length=False"),
            ({"slice_len": 2, "weight": "x"}, "weight must be trajectories or records"),
            ({"slice_len": 2, "end_key": "a", "end_keys": ["b"]}, "say the same"),
        ],
    )
    def test_impossible_settings(self, arguments: dict[str, Any], words: str) -> None:
        with pytest.raises((ValueError, TypeError), match=words):
            shmrb.SliceSampler(**arguments)

    def test_what_does_not_go_together(self, new: New) -> None:
        words = (
            "The batch-size must be divisible by the slice length, got batch_size=8 and slice_len=3"
        )
        with pytest.raises(shmrb.SpecError, match=words):
            new(schema=FIELDS, sampler=shmrb.SliceSampler(slice_len=3), batch_size=8)
        buffer = wrapped_ring(new, sampler=shmrb.SliceSampler(slice_len=3))
        with pytest.raises(shmrb.SpecError, match=words):
            buffer.sample(8)
        with pytest.raises(shmrb.SpecError, match="sample_unit=Transition"):
            new(
                schema=FIELDS,
                sampler=shmrb.SliceSampler(slice_len=3),
                sample_unit=shmrb.Sequence(length=3),
            )
        with pytest.raises(shmrb.SpecError, match=r"traj_key='t'"):
            buffer.set_sampler(shmrb.SliceSampler(slice_len=3, traj_key="t"))
        with pytest.raises(shmrb.SpecError, match=r"done_keys=\['over'\]"):
            buffer.set_sampler(shmrb.SliceSampler(slice_len=3, end_key="over"))
        with pytest.raises(shmrb.SpecError, match="truncated_key"):
            new(schema=FIELDS, sampler=shmrb.SliceSampler(slice_len=3, truncated_key="t"))
        with pytest.raises(shmrb.SpecError, match="init_key"):
            new(schema=FIELDS, sampler=shmrb.SliceSampler(slice_len=3, init_key="t"))

    def test_the_first_sampler_decides_what_ends_a_trajectory(self, new: New) -> None:
        schema = {"t": "int64", "who": "int32", "over": bool, "next": {"done": ("bool", 1)}}
        sampler = shmrb.SliceSampler(slice_len=2, traj_key="who", end_key="over")
        buffer = new(capacity=16, schema=schema, sampler=sampler, seed=1)
        assert buffer._attachment.spec.traj_key == ("who",)
        assert set(buffer._attachment.spec.done_keys) == {("next", "done"), ("over",)}
        data = steps(range(6)) | {
            "who": np.array([5, 5, 5, 6, 6, 6], np.int32),
            "over": np.array([False, True, False, False, False, False]),
        }
        buffer.extend(data)
        assert set(starts(buffer, 100, 2)) == {0, 3, 4}
