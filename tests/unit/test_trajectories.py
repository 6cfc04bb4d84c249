"""Trajectories: where they lie in arrays, conditions on them, and queries of a buffer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import shmrb
from shmrb import Trajectory, filter_trajectories, find_start_stop_traj, iter_trajectories, traj

New = Callable[..., Any]
ORACLE = Path(__file__).parents[1] / "oracle"
FIELDS = {"t": "int64", "next": {"reward": ("float32", 1), "done": ("bool", 1)}}


class TestBoundaries:
    def test_as_torchrl_finds_them(self) -> None:
        cases = json.loads((ORACLE / "boundaries.json").read_text())["cases"]
        assert len(cases) >= 60
        for case in cases:
            key = "end" if "end" in case else "trajectory"
            options = {"at_capacity": case["at_capacity"], "cursor": case["cursor"]}
            start, stop, lengths = find_start_stop_traj(**{key: np.array(case[key])}, **options)
            assert start[:, 0].tolist() == case["start"], case
            assert stop[:, 0].tolist() == case["stop"], case
            assert lengths.tolist() == case["lengths"], case

    def test_tensors_give_tensors(self) -> None:
        end = torch.zeros(10, dtype=torch.bool)
        end[2] = end[7] = True
        start, stop, lengths = find_start_stop_traj(end=end, at_capacity=True, cursor=4)
        assert (start[:, 0].tolist(), stop[:, 0].tolist()) == ([8, 3, 5], [2, 4, 7])
        assert lengths.tolist() == [5, 2, 3]
        assert start.dtype == stop.dtype == lengths.dtype == torch.int64

    def test_columns_come_one_after_another(self) -> None:
        end = np.zeros((4, 2, 3), bool)
        end[1, 0, 2] = end[3, 1, 0] = True
        start, stop, lengths = find_start_stop_traj(end=end, at_capacity=False)
        # The last column counts first, as in TorchRL.
        columns = [(b, a) for _, a, b in start.tolist()]
        assert columns == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 0), (2, 1)]
        assert start[:, 1:].tolist() == stop[:, 1:].tolist()
        assert stop[4:6, 0].tolist() == [1, 3]
        assert lengths.tolist() == [4, 4, 4, 4, 2, 2, 4]

    @pytest.mark.parametrize("cursor", [4, torch.tensor([1, 4]), range(2, 5), np.array(4)])
    def test_any_cursor(self, cursor: Any) -> None:
        _, stop, _ = find_start_stop_traj(end=np.zeros(6, bool), at_capacity=True, cursor=cursor)
        assert stop.tolist() == [[4]]

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({}, TypeError),
            ({"end": np.zeros(2, bool), "trajectory": np.zeros(2)}, TypeError),
            ({"end": np.array(True)}, RuntimeError),
            ({"end": np.zeros(0, bool)}, RuntimeError),
            ({"end": np.zeros(2, bool), "cursor": range(0)}, RuntimeError),
            ({"end": np.zeros(2, bool), "cursor": torch.zeros(0)}, RuntimeError),
        ],
    )
    def test_refusals(self, arguments: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error, match="find_start_stop_traj"):
            find_start_stop_traj(**arguments, at_capacity=True)


def batch(numbers: Any, ids: Any = None, done: Any = ()) -> dict[str, Any]:
    t = np.asarray(numbers)
    ends = np.zeros((len(t), 1), bool)
    ends[list(done)] = True
    data = {"t": t, "next": {"reward": t[:, None].astype(np.float32), "done": ends}}
    return data if ids is None else data | {"collector": {"traj_ids": np.asarray(ids)}}


class TestBatches:
    def test_ids_before_flags(self) -> None:
        data = batch(range(6), [3, 3, 4, 4, 4, 3], [1])
        assert [t.t.tolist() for t in iter_trajectories(data)] == [[0, 1], [2, 3, 4], [5]]
        assert [t.length for t in iter_trajectories(data, "t")] == [1] * 6

    def test_flags_with_a_warning(self) -> None:
        with pytest.warns(UserWarning, match=r"\('next', 'done'\) alone"):
            parts = filter_trajectories(batch(range(5), done=[1]), traj.length > 2)
        assert [t.t.tolist() for t in parts] == [[2, 3, 4]]

    def test_tensordicts(self) -> None:
        data = TensorDict(
            {
                "t": torch.arange(4),
                "episode": torch.tensor([0, 0, 1, 1]),
                "next": {"x": torch.ones(4)},
            },
            [4],
        )
        parts = filter_trajectories(data, (traj.t.sum() > 2) & (traj.x.mean() == 1))
        assert len(parts) == 1
        assert isinstance(parts[0].data, TensorDict)
        assert parts[0][-1:].t.tolist() == [3]

    def test_what_cannot_be_split(self) -> None:
        with pytest.raises(KeyError, match="trajectory_key 'x' not found"):
            list(iter_trajectories(batch(range(2)), "x"))
        with pytest.raises(KeyError, match="Cannot split data"):
            list(iter_trajectories({"t": np.arange(2)}))
        with pytest.raises(TypeError):
            list(iter_trajectories(np.arange(2)))
        assert list(iter_trajectories(batch([]))) == []


class TestTrajectory:
    def test_fields_of_the_root_and_below_next(self) -> None:
        trajectory = Trajectory(batch([1, 2, 3], [0] * 3))
        assert trajectory.length == len(trajectory) == 3
        assert trajectory.total_reward == 6
        assert trajectory.reward.shape == (3, 1)
        assert trajectory[("collector", "traj_ids")].tolist() == [0, 0, 0]
        assert trajectory.get("nothing") is None
        assert trajectory.get("nothing", 7) == 7
        assert trajectory[1:].t.tolist() == [2, 3]
        assert set(trajectory.keys()) == {"t", "next", "collector"}
        assert repr(trajectory) == "Trajectory(length=3, keys=['collector', 'next', 't'])"
        with pytest.raises(AttributeError, match="no entry 'nothing'"):
            _ = trajectory.nothing
        with pytest.raises(KeyError):
            trajectory["nothing"]

    @pytest.mark.parametrize(
        ("predicate", "holds"),
        [
            (traj.reward.sum() == 6, True),
            (traj.reward.mean() >= 2, True),
            (traj.t.max() < 3, False),
            (traj.t.min() != 1, False),
            (traj.t.first() <= 1, True),
            (traj["t"].last() > 2, True),
            (traj.length == 3, True),
            (traj.total_reward > 6, False),
            ((traj.t > 2).any(), True),
            ((traj.t > 2).all(), False),
            (traj["next", "reward"].max() == 3, True),
            (~(traj.t.max() < 3) & (traj.length > 2), True),
            ((traj.t.max() < 3) | (traj.length > 5), False),
        ],
        ids=repr,
    )
    def test_conditions(self, predicate: Any, holds: bool) -> None:
        assert predicate(Trajectory(batch([1, 2, 3]))) is holds
        tensors = TensorDict(batch([1, 2, 3]), [3])
        assert predicate(Trajectory(tensors)) is holds

    def test_a_condition_knows_its_fields_and_says_what_it_is(self) -> None:
        predicate = (traj.reward.sum() > 100) & ~(traj["next", "done"] == 1).any()
        assert predicate.required_keys() == {"reward", ("next", "done")}
        assert repr(predicate) == (
            "TrajectoryPredicate(((traj.reward.sum() > 100) & "
            "~(traj[('next', 'done')] == 1).any()))"
        )
        assert (traj.length > 1).required_keys() == frozenset()

    def test_what_is_no_condition_is_refused(self) -> None:
        words = (
            r"\(traj.o > 3\) compares per-transition values and is ambiguous.*\.any\(\) or \.all"
        )
        for use in (lambda p: p(None), lambda p: p & (traj.length > 1), bool):
            with pytest.raises(TypeError, match=words):
                use(traj.o > 3)
        with pytest.raises(TypeError, match="join conditions by"):
            bool(traj.length > 3)


def filled(new: New, **options: Any) -> Any:
    buffer = new(capacity=16, schema=FIELDS, **options)
    for first, length in ((0, 4), (100, 3), (200, 5)):
        buffer.extend(batch(range(first, first + length), done=[length - 1]))
    return buffer


class TestQueries:
    def test_all_oldest_first(self, new: New) -> None:
        buffer = filled(new)
        parts = buffer.query()
        assert [t.t.tolist() for t in parts] == [
            [0, 1, 2, 3],
            [100, 101, 102],
            [200, 201, 202, 203, 204],
        ]
        buffer.extend(batch(range(300, 306), done=[5]))
        assert [t.t.tolist() for t in buffer.query()] == [
            [2, 3],  # what is left of it
            [100, 101, 102],
            [200, 201, 202, 203, 204],
            [300, 301, 302, 303, 304, 305],
        ]
        buffer.add({"t": 400, "next": {"reward": [1.0], "done": [False]}})
        assert buffer.query(traj.t.first() == 400)[0].length == 1
        assert new(capacity=4, schema=FIELDS).query() == []
        assert new(capacity=4).query() == []

    def test_by_conditions_and_functions(self, new: New) -> None:
        buffer = filled(new)
        assert [t.length for t in buffer.query(traj.length >= 4)] == [4, 5]
        assert [t.length for t in buffer.query(traj.reward.sum() > 1000)] == [5]
        assert [t.length for t in buffer.query((traj.t == 101).any())] == [3]
        assert [t.length for t in buffer.query(lambda t: t.total_reward < 10)] == [4]
        with pytest.raises(KeyError, match="'nothing' not found"):
            buffer.query(traj.nothing.sum() > 0)
        with pytest.raises(TypeError, match=r"Call \.any\(\)"):
            buffer.query(traj.t > 3)
        with pytest.raises(TypeError, match="expected a predicate"):
            buffer.query(3)

    def test_only_the_fields_that_decide_are_read(self, new: New, monkeypatch: Any) -> None:
        from shmrb.cells import Cells

        read: list[Any] = []
        as_is = Cells.read_as_is

        def spied(cells: Any, slots: Any, columns: Any = None) -> Any:
            read.append((len(slots), columns))
            return as_is(cells, slots, columns)

        monkeypatch.setattr(Cells, "read_as_is", spied)
        buffer = filled(new)
        assert [t.length for t in buffer.query(traj.reward.sum() > 1000)] == [5]
        assert read == [(12, [1]), (5, None)]
        read.clear()
        buffer.query(traj.length == 3)
        assert read == [(12, []), (3, None)]

    def test_transforms_are_seen(self, new: New) -> None:
        buffer = filled(new)
        buffer.append_transform(lambda data: data | {"t": data["t"] * 10})
        assert [t.t.tolist() for t in buffer.query(traj.t.max() == 1020)] == [[1000, 1010, 1020]]

    def test_torch_and_lanes(self, new: New) -> None:
        storage = shmrb.SharedStorage(32, lanes=2)
        buffer = new(storage=storage, schema=FIELDS, format="torch")
        with buffer.lane(count=2, rotate=False) as lane:
            data = batch(range(8), done=[4, 5])
            lane.extend(TensorDict(data, [8]).reshape(4, 2))
        parts = buffer.query()
        assert [t.t.tolist() for t in parts] == [[0, 2, 4], [6], [1, 3, 5], [7]]
        assert isinstance(parts[0].data, TensorDict)
        assert parts[0].data.batch_size == torch.Size([3])

    def test_a_key_parts_further_and_never_joins(self, new: New) -> None:
        schema = FIELDS | {"phase": "int32"}
        buffer = new(capacity=16, schema=schema)
        phase = np.array([0, 0, 1, 1, 1, 1], np.int32)
        buffer.extend(batch(range(6), done=[3]) | {"phase": phase})
        parts = buffer.query(trajectory_key="phase")
        assert [t.t.tolist() for t in parts] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(KeyError):
            buffer.query(trajectory_key="nothing")

    def test_writers_and_told_ends_part_too(self, new: New) -> None:
        buffer = new("shared", capacity=32, schema=FIELDS)
        other = shmrb.attach("shared", format="numpy")
        buffer.extend(batch([1, 2]))
        other.extend(batch([10]))
        buffer.extend(batch([3]))
        buffer.end_trajectory()
        buffer.extend(batch([4, 5]))
        assert [t.t.tolist() for t in buffer.query()] == [[1, 2], [10], [3], [4, 5]]
        other.close()

    def test_a_record_that_died_parts_its_trajectory(self, new: New) -> None:
        buffer = filled(new)
        member = buffer._attachment.member
        region = member.layout.regions["words"]
        words = member.mapping(region.file).view("<u8", region.offset, region.bytes)
        words[9] = ((int(words[9]) >> 20) + 1) << 20 | 2
        assert [t.t.tolist() for t in buffer.query()][2:] == [[200, 201], [203, 204]]
