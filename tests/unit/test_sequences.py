"""Sequences through the handle: what is beside the records, who draws them, where priorities go."""

from __future__ import annotations

import json
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


def steps(tickets: list[int], done: list[int] = ()) -> dict[str, Any]:
    """Records whose `t` is given; `done` are places in the list."""
    ends = np.zeros((len(tickets), 1), bool)
    ends[list(done)] = True
    return {"t": np.array(tickets), "next": {"done": ends}}


def ring(new: New, capacity: int = 10, **options: Any) -> Any:
    """A ring of two episodes of five, whose records are their slot."""
    buffer = new(capacity=capacity, schema=FIELDS, seed=3, **options)
    buffer.extend(steps(list(range(10)), [4, 9]))
    return buffer


def recorded() -> dict[str, list[dict[str, Any]]]:
    """TorchRL's answers by ring."""
    rings: dict[str, list[dict[str, Any]]] = {}
    for case in json.loads((ORACLE / "sequences.json").read_text())["cases"]:
        rings.setdefault(case["ring"], []).append(case)
    return rings


@pytest.mark.parametrize(("name", "cases"), recorded().items(), ids=list(recorded()))
def test_anchors_become_what_torchrl_makes_of_them(
    new: New, name: str, cases: list[dict[str, Any]]
) -> None:
    buffer = new("ring", capacity=10, schema=FIELDS)
    for ticket in range(cases[0]["written"]):
        is_last = ticket >= cases[0]["written"] - 10 and ticket % 10 in cases[0]["done"]
        buffer.add({"t": ticket, "next": {"done": [is_last]}})
    for case in cases:
        unit = shmrb.Sequence(**case["unit"])
        in_order = shmrb.SamplerWithoutReplacement(shuffle=False)
        handle = shmrb.attach("ring", sampler=in_order, sample_unit=unit, format="numpy")
        compare(handle, handle.sample(len(buffer)), case)
        handle.close()


def compare(handle: Any, batch: Any, case: dict[str, Any]) -> None:
    wide = (len(handle), -1)
    assert batch["index"].reshape(wide).tolist() == case["index"]
    for key in ("validity_mask", "learning_mask", "step_in_sequence", "anchor_index"):
        assert batch[key].reshape(wide).astype(int).tolist() == case[key], key
    assert (batch["t"] % 10 == batch["index"]).all()
    assert (batch["index_generation"] == handle.generations_of(batch["index"])).all()
    assert (batch["anchor_generation"] == handle.generations_of(batch["anchor_index"])).all()
    window = len(batch["t"]) // len(handle)
    assert (batch["sequence_id"] == np.arange(len(handle)).repeat(window)).all()


def test_a_batch_says_of_every_record_where_it_belongs(new: New) -> None:
    unit = shmrb.Sequence(length=3, burn_in=1, bootstrap=1)
    batch = ring(new, sample_unit=unit, batch_size=4).sample()
    types = {
        "t": np.int64,
        "index": np.int64,
        "index_generation": np.int64,
        "anchor_index": np.int64,
        "anchor_generation": np.int64,
        "sequence_id": np.int64,
        "step_in_sequence": np.int64,
        "learning_mask": np.bool_,
        "validity_mask": np.bool_,
    }
    assert {key: value.dtype for key, value in batch.items() if key != "next"} == types
    assert all(len(batch[key]) == 20 for key in types)
    assert batch["next"]["done"].shape == (20, 1)
    assert batch["learning_mask"].reshape(4, 5).tolist() == [[False, True, True, True, False]] * 4


def test_torch_batches_hold_the_same(new: New) -> None:
    import torch

    buffer = ring(new, format="torch", sample_unit=shmrb.Sequence(length=4), batch_size=3)
    batch, info = buffer.sample(return_info=True)
    assert batch.batch_size == torch.Size([12])
    assert batch["validity_mask"].dtype == torch.bool
    assert {"anchor_index", "sequence_id"} <= set(info)
    again = buffer.sample(out=batch)
    assert again is batch
    assert (batch["t"] == batch["index"]).all()
    assert (batch["anchor_index"].view(3, 4)[:, 0] == batch["index"].view(3, 4)[:, 0]).all()


def test_anchors_are_drawn_alike(new: New) -> None:
    buffer = ring(new, sample_unit=shmrb.Sequence(length=4))
    anchors = buffer.sample(5000)["anchor_index"].reshape(5000, 4)[:, 0]
    found = np.bincount(anchors, minlength=10)
    assert all(allows(int(count), 5000, 0.1) for count in found)


def test_lanes_are_never_joined(new: New) -> None:
    storage = shmrb.SharedStorage(20, lanes=2)
    buffer = new(storage=storage, schema=FIELDS, sample_unit=shmrb.Sequence(length=6), seed=1)
    with buffer.lane(count=2) as lane:
        lane.extend(
            {
                "t": np.arange(20).reshape(10, 2),
                "next": {"done": np.zeros((10, 2, 1), bool)},
            }
        )
    batch = buffer.sample(500)
    lanes = batch["index"].reshape(500, 6) // 10
    assert (lanes == lanes[:, :1]).all()
    assert set(lanes[:, 0].tolist()) == {0, 1}
    real = batch["validity_mask"].reshape(500, 6)
    jumps = np.diff(batch["t"].reshape(500, 6))
    assert (jumps[real[:, 1:]] == 2).all()
    assert (jumps[~real[:, 1:]] == 0).all()


def test_a_pass_goes_through_every_anchor_once(new: New) -> None:
    buffer = ring(
        new,
        sampler=shmrb.SamplerWithoutReplacement(),
        sample_unit=shmrb.Sequence(length=2),
        batch_size=4,
    )
    batches = list(buffer)
    assert [len(batch["t"]) for batch in batches] == [8, 8, 4]
    anchors = np.concatenate([batch["anchor_index"][::2] for batch in batches])
    assert sorted(anchors.tolist()) == list(range(10))
    assert buffer.sampler.ran_out


def test_a_limiter_counts_loss_bearing_records(new: New) -> None:
    limiter = shmrb.RateLimiter(min_size=1, samples_per_insert=4.0, error_buffer=1000.0)
    buffer = ring(
        new,
        limiter=limiter,
        sample_unit=shmrb.Sequence(length=3, burn_in=2, bootstrap=1),
        batch_size=4,
    )
    buffer.sample()
    assert buffer.limiter.info.samples == 12


# ---- priorities ----------------------------------------------------------------------------------


def prioritized(new: New, **unit: Any) -> Any:
    sampler = shmrb.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
    return ring(new, sampler=sampler, sample_unit=shmrb.Sequence(**unit))


def test_anchors_are_drawn_by_mass_with_one_weight_a_sequence(new: New) -> None:
    buffer = prioritized(new, length=3)
    buffer.update_priority(np.arange(10), [0, 0, 0, 1, 0, 0, 3, 0, 0, 0])
    batch = buffer.sample(4000)
    anchors = batch["anchor_index"].reshape(4000, 3)
    weights = batch["priority_weight"].reshape(4000, 3)
    assert set(anchors[:, 0].tolist()) == {3, 6}
    assert allows(int((anchors[:, 0] == 6).sum()), 4000, 0.75)
    assert (weights == weights[:, :1]).all()
    assert weights.dtype == np.float32
    assert np.allclose(weights[anchors == 3], 1.0)
    assert np.allclose(weights[anchors == 6], 1 / 3)


def test_a_sequence_gives_its_anchor_the_greatest_of_its_real_records(new: New) -> None:
    buffer = prioritized(new, length=3)
    # TorchRL 0.14.1 does the same: max over valid records of each anchor, anchors only.
    batch = buffer.sample(64)
    anchors = batch["anchor_index"].reshape(64, 3)[:, 0]
    batch["td_error"] = np.where(batch["validity_mask"], batch["index"] + 0.5, 99.0)
    result = buffer.update_tensordict_priority(batch)
    assert result.updated.all()
    assert len(result.updated) == 192
    after = buffer.sampler.priorities_of(np.arange(10))
    last = {slot: min(slot + 2, 4 if slot < 5 else 9) for slot in range(10)}
    for slot in range(10):
        assert after[slot] == (last[slot] + 0.5 if slot in anchors else 1.0)


def test_one_priority_a_sequence_will_do(new: New) -> None:
    buffer = prioritized(new, length=2, burn_in=1)
    batch = buffer.sample(5)
    anchors = batch["anchor_index"].reshape(5, 3)[:, 0]
    buffer.update_priority(batch, 2.0 + np.arange(5, dtype=np.float32))
    after = buffer.sampler.priorities_of(anchors)
    for row, anchor in enumerate(anchors):
        assert after[row] == 2.0 + max(np.flatnonzero(anchors == anchor))
    buffer.update_priority(batch, 7.0)
    assert (buffer.sampler.priorities_of(anchors) == 7.0).all()
    with pytest.raises(shmrb.RecordError, match="Got 4 for 15 records in 5 sequences"):
        buffer.update_priority(batch, np.ones(4))
    with pytest.raises(shmrb.RecordError, match="nan"):
        buffer.update_priority(batch, np.full(15, np.nan))


def test_a_priority_for_an_anchor_that_is_gone_is_stale(new: New) -> None:
    buffer = prioritized(new, length=2)
    batch = buffer.sample(20)
    buffer.extend(steps(list(range(10, 15))))
    result = buffer.update_priority(batch, 5.0)
    gone = batch["anchor_index"] < 5
    assert result.updated.tolist() == (~gone).tolist()
    assert (buffer.sampler.priorities_of(np.arange(5)) == 1.0).all()


def test_the_anchor_need_not_be_in_its_window(new: New) -> None:
    # Moved back from 3 to 0 with a step of 2 the window is 0, 2, 4.
    unit = {"length": 3, "dilation": 2, "episode_boundary": "stop"}
    buffer = prioritized(new, **unit)
    buffer.update_priority(np.arange(10), [0, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    batch = buffer.sample(2)
    assert batch["index"].tolist() == [0, 2, 4] * 2
    assert batch["anchor_index"].tolist() == [3] * 6
    assert buffer.update_priority(batch, 8.0).updated.all()
    assert buffer.sampler.priorities_of([3]) == 8.0


def test_late_writes_leave_padding_alone(new: New) -> None:
    sampler = shmrb.SamplerWithoutReplacement(shuffle=False)
    buffer = ring(new, sampler=sampler, sample_unit=shmrb.Sequence(length=4))
    batch = buffer.sample(10)
    rows = np.arange(8, 12)  # anchor 2: the records 2, 3, 4, and 4 again
    some = {key: batch[key][rows] for key in ("index", "index_generation", "validity_mask")}
    assert some["index"].tolist() == [2, 3, 4, 4]
    result = buffer.update_if_present(some, patch={"t": np.array([20, 30, 40, 99])})
    assert result.updated.tolist() == [True, True, True, False]
    assert buffer["t"].tolist() == [0, 1, 20, 30, 40, 5, 6, 7, 8, 9]


# ---- what cannot be ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"length": 0}, "length must be strictly positive, got 0."),
        ({"length": 1, "burn_in": -1}, "burn_in must be non-negative, got -1."),
        ({"length": 1, "bootstrap": -1}, "bootstrap must be non-negative, got -1."),
        ({"length": 1, "dilation": 0}, "dilation must be strictly positive, got 0."),
        ({"length": 1, "episode_boundary": "x"}, "Unknown episode_boundary x"),
        ({"length": 1 << 20, "dilation": 1 << 20}, "may span"),
    ],
)
def test_impossible_units(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        shmrb.Sequence(**arguments)


def test_a_done_key_that_ends_nothing_is_refused(new: New) -> None:
    with pytest.raises(shmrb.SpecError, match=r"done_keys=\['over'\]"):
        new(schema=FIELDS, sample_unit=shmrb.Sequence(length=2, done_key="over"))
    schema = {"t": "int64", "over": bool}
    unit = shmrb.Sequence(length=2, done_key="over")
    buffer = new(schema=schema, done_keys=["over"], sample_unit=unit)
    buffer.extend({"t": np.arange(3), "over": np.array([False, True, False])})
    batch = buffer.sample(50)
    assert not ((batch["t"][0::2] == 1) & (batch["t"][1::2] == 2)).any()


def test_trajectory_ids_alone_part_episodes(new: New) -> None:
    buffer = new(schema={"t": "int64", "traj_ids": "int32"}, sample_unit=shmrb.Sequence(length=2))
    ids = np.array([7, 7, 7, 9, 9], np.int32)
    buffer.extend({"t": np.arange(5), "traj_ids": ids})
    batch = buffer.sample(200)
    pairs = set(zip(batch["t"][0::2].tolist(), batch["t"][1::2].tolist(), strict=True))
    assert pairs == {(0, 1), (1, 2), (2, 2), (3, 4), (4, 4)}


def test_an_empty_buffer_is_refused_or_waited_for(new: New) -> None:
    buffer = new(schema=FIELDS, sample_unit=shmrb.Sequence(length=2), batch_size=2)
    with pytest.raises(shmrb.EmptyBufferError):
        buffer.sample()
    with pytest.raises(shmrb.DeadlineError, match="first record"):
        buffer.sample(timeout=0.05)
