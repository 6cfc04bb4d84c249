"""Lanes through the handle: leases, blocks, ends, turning to another lane, emptying some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shmrb

New = Callable[..., Any]
FIELDS = {"t": "int64", "next": {"truncated": ("bool", 1), "done": ("bool", 1)}}


def laned(new: New, capacity: int = 24, lanes: int = 3, **options: Any) -> Any:
    options.setdefault("schema", FIELDS)
    return new("laned", storage=shmrb.SharedStorage(capacity, lanes=lanes), **options)


def block(numbers: Any, done: Any = ()) -> dict[str, Any]:
    """Records of the shape of `numbers`; `done` are the places of ends."""
    t = np.asarray(numbers)
    ends = np.zeros((*t.shape, 1), bool)
    for place in done:
        ends[place] = True
    return {"t": t, "next": {"truncated": np.zeros_like(ends), "done": ends}}


def pieces(buffer: Any) -> list[list[int]]:
    """The `t` of the runs of every lane."""
    attachment = buffer._attachment
    capacity = attachment.spec.lane_capacity
    found = []
    for lane in range(attachment.spec.lanes):
        for first, count, _, _ in attachment.segment.runs(lane):
            slots = lane * capacity + np.arange(first, first + count) % capacity
            found.append([int(buffer[int(slot)]["t"]) for slot in slots])
    return found


class TestLeases:
    def test_a_lane_is_its_holders_until_given_back(self, new: New) -> None:
        buffer = laned(new, lanes=2)
        other = shmrb.attach("laned", format="numpy", client_name="the other")
        with buffer.lane() as mine, other.lane() as yours:
            assert set(mine.lanes) | set(yours.lanes) == {0, 1}
            with pytest.raises(shmrb.LaneBusyError, match=r"all 2 lanes.*the other.*pid"):
                buffer.lane(timeout=0.03)
        with buffer.lane(count=2) as both:
            assert sorted(both.lanes) == [0, 1]
        other.close()

    def test_all_of_them_or_none(self, new: New) -> None:
        buffer = laned(new)
        with buffer.lane(count=2):
            with pytest.raises(shmrb.LaneBusyError, match=r"2 of 3 lanes.*2 are wanted"):
                buffer.lane(count=2, timeout=0.03)
            with buffer.lane() as last:
                assert len(last.lanes) == 1
        with pytest.raises(shmrb.SpecError, match="lanes=4"):
            buffer.lane(count=4)

    def test_closing_the_handle_frees_them(self, new: New) -> None:
        buffer = laned(new)
        other = shmrb.attach("laned", format="numpy")
        lane = other.lane(count=3)
        other.close()
        with buffer.lane(count=3, timeout=5):
            pass
        lane.close()

    def test_the_least_recently_written_is_granted_first(self, new: New) -> None:
        buffer = laned(new)
        seen = []
        for number in range(6):
            with buffer.lane(rotate=False) as lane:
                seen += lane.lanes
                lane.extend(block([number]))
            _later(buffer)
        assert sorted(seen[:3]) == [0, 1, 2]
        assert seen[3:] == seen[:3]

    def test_a_lane_that_was_given_back_takes_nothing(self, new: New) -> None:
        buffer = laned(new)
        with buffer.lane() as lane:
            lane.add({"t": 1, "next": {"truncated": [False], "done": [False]}})
        with pytest.raises(shmrb.ClosedError, match="given back"):
            lane.extend(block([1]))

    def test_a_reader_leases_none(self, new: New) -> None:
        laned(new)
        with (
            shmrb.attach("laned", role="observer") as reader,
            pytest.raises(shmrb.ReadOnlyError),
        ):
            reader.lane()

    def test_a_ring_of_one_lane_has_one_for_everybody(self, new: New) -> None:
        buffer = new("ring", capacity=8, schema=FIELDS)
        with buffer.lane() as one, buffer.lane() as two:
            assert one.lanes == two.lanes == (0,)
            one.extend(block([1, 2]))
            two.end_trajectory()
            one.extend(block([3]))
        assert pieces(buffer) == [[1, 2], [3]]


def _later(buffer: Any) -> None:
    """Waits for the next tick of the clock that dates lanes, which is coarse."""
    stamps = [lane.written_ns for lane in buffer.statistics().lanes]
    with shmrb.ReplayBuffer(storage=shmrb.SharedStorage(1), schema={"x": "int64"}) as clock:
        while True:
            clock.add({"x": 0})
            if clock.statistics().lanes[0].written_ns > max(stamps):
                return


class TestBlocks:
    def test_columns_go_to_their_lanes_in_order(self, new: New) -> None:
        buffer = laned(new)
        with buffer.lane(count=3) as lane:
            index = lane.extend(block(np.arange(12).reshape(4, 3), [(1, 2)]))
            assert index.dtype == np.int64
            assert [int(buffer[int(slot)]["t"]) for slot in index] == list(range(12))
            lane.add(block([100, 101, 102]))
            columns = lane.lanes
        assert _by_lane(buffer)[columns[0]] == [0, 3, 6, 9, 100]
        assert _by_lane(buffer)[columns[2]] == [2, 5, 8, 11, 102]
        assert [2, 5] in pieces(buffer)
        assert [8, 11, 102] in pieces(buffer)

    def test_coordinates_say_time_and_lane(self, new: New) -> None:
        buffer = laned(new)
        with buffer.lane(count=3) as lane:
            index = lane.extend(block(np.arange(12).reshape(4, 3)))
            places = buffer.coordinates(index)
            assert places.shape == (12, 2)
            assert places[:, 0].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
            assert places[:, 1].tolist() == list(lane.lanes) * 4
        with pytest.raises(shmrb.RecordError, match="row 1 is 24"):
            buffer.coordinates([0, 24])

    def test_numbers_lists_and_tensordicts(self, new: New) -> None:
        import torch
        from tensordict import TensorDict

        buffer = laned(new, format="torch", schema={"t": "int64", "w": ("float32", 2)})
        with buffer.lane(count=2) as lane:
            lane.extend({"t": [[1, 2], [3, 4]], "w": [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]})
            data = {"t": torch.tensor([[5, 6]]), "w": torch.tensor([[[8.0, 9], [10, 11]]])}
            assert lane.extend(TensorDict(data, [1, 2])).tolist()[0] % 8 == 2
            assert lane.extend(TensorDict(data, [1])).dtype == torch.int64
        assert sorted(buffer["t"].tolist()) == [1, 2, 3, 4, 5, 5, 6, 6]
        assert buffer["w"].sum() == 28 + 2 * 38

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (block(np.zeros((4, 2), int)), r"expected \[T, 3, ...\], one column a lane, got"),
            (block(np.zeros(4, int)), r"'t': expected \[T, 3, ...\]"),
            ({"t": np.zeros((4, 3), int)}, "missing"),
            (block(np.zeros((0, 3), int)), "at least one"),
        ],
    )
    def test_a_block_that_does_not_fit_changes_nothing(
        self, new: New, data: Any, words: str
    ) -> None:
        buffer = laned(new)
        with buffer.lane(count=3) as lane, pytest.raises(shmrb.RecordError, match=words):
            lane.extend(data)
        assert buffer.write_count == 0

    def test_longer_than_half_a_lane_goes_in_pieces(self, new: New) -> None:
        buffer = laned(new)
        with buffer.lane(count=3) as lane:
            lane.extend(block(np.arange(21).reshape(7, 3)))
        assert sorted(map(len, pieces(buffer))) == [7, 7, 7]
        assert len(buffer) == 21

    def test_a_limiter_lets_in_the_whole_block_or_nothing(self, new: New) -> None:
        limiter = shmrb.RateLimiter(min_size=1, samples_per_insert=1.0, error_buffer=8.0)
        buffer = laned(new, limiter=limiter)
        with buffer.lane(count=3) as lane:
            lane.extend(block(np.zeros((2, 3), int)))
            with pytest.raises(shmrb.LimiterTimeoutError):
                lane.extend(block(np.zeros((2, 3), int)), timeout=0.03)
        assert buffer.write_count == 6

    def test_priorities_come_with_blocks(self, new: New) -> None:
        sampler = shmrb.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
        buffer = laned(new, sampler=sampler, priority_key="p")
        with buffer.lane(count=2) as lane:
            data = block(np.arange(4).reshape(2, 2)) | {"p": np.array([[1.0, 2], [3, 4]], "f4")}
            index = lane.extend(data)
        assert buffer.sampler.priorities_of(index).tolist() == [1, 2, 3, 4]

    def test_a_declared_buffer_leases_with_its_first_write(self, new: New) -> None:
        buffer = laned(new, schema=None)
        with buffer.lane(count=3) as lane:
            lane.extend(block(np.arange(3).reshape(1, 3)))
            assert len(lane.lanes) == 3
        assert len(buffer) == 3


def _by_lane(buffer: Any) -> list[list[int]]:
    lanes: dict[int, list[int]] = {}
    for lane, piece in zip(_lane_of_pieces(buffer), pieces(buffer), strict=True):
        lanes.setdefault(lane, []).extend(piece)
    return [lanes[lane] for lane in sorted(lanes)]


def _lane_of_pieces(buffer: Any) -> list[int]:
    segment = buffer._attachment.segment
    lanes = range(buffer._attachment.spec.lanes)
    return [lane for lane in lanes for _ in segment.runs(lane)]


class TestEnds:
    def test_a_told_end_parts_and_says_nothing_of_the_record(self, new: New) -> None:
        buffer = laned(new)
        with buffer.lane(rotate=False) as lane:
            index = lane.extend(block([1, 2]))
            lane.end_trajectory()
            lane.extend(block([3]))
        assert pieces(buffer) == [[1, 2], [3]]
        assert not buffer[index]["next"]["done"].any()

    def test_a_cut_episode_is_marked_truncated(self, new: New) -> None:
        buffer = laned(new)
        with buffer.lane(count=3, rotate=False) as lane:
            index = lane.extend(block(np.arange(6).reshape(2, 3)))
            before = buffer.generations_of(index)
            lane.end_trajectory(truncated=True, lanes=[0, 2])
        flags = buffer[index]["next"]
        assert flags["truncated"].reshape(2, 3).tolist() == [[False] * 3, [True, False, True]]
        assert (flags["done"] == flags["truncated"]).all()
        assert (buffer.generations_of(index) == before).all()

    def test_somebody_elses_record_is_not_marked(self, new: New) -> None:
        buffer = new("ring", capacity=8, schema=FIELDS)
        other = shmrb.attach("ring", format="numpy")
        with buffer.lane() as lane:
            lane.extend(block([1]))
            other.extend(block([2]))
            lane.end_trajectory(truncated=True)
        assert not buffer["next", "done"].any()
        other.close()


class TestTurning:
    def test_a_handle_goes_through_the_free_lanes(self, new: New) -> None:
        buffer = laned(new)
        for number in range(9):
            buffer.extend(block([10 * number, 10 * number + 1], [1]))
            _later(buffer)
        # Nine trajectories of two in three lanes of eight: nothing is overwritten yet.
        assert sorted(pieces(buffer)) == [[10 * n, 10 * n + 1] for n in range(9)]
        assert [len(piece) for piece in _by_lane(buffer)] == [6, 6, 6]

    def test_an_open_trajectory_stays_where_it_is(self, new: New) -> None:
        buffer = laned(new)
        for number in range(4):
            buffer.extend(block([number]))
        assert pieces(buffer) == [[0, 1, 2, 3]]

    def test_every_column_turns_by_itself(self, new: New) -> None:
        buffer = laned(new, lanes=4, capacity=32)
        with buffer.lane(count=2) as lane:
            first = lane.lanes
            lane.extend(block([[0, 100], [1, 101]], [(1, 1)]))
            _later(buffer)
            lane.extend(block([[2, 102], [3, 103]]))
            assert lane.lanes[0] == first[0]
            assert lane.lanes[1] not in first
        assert sorted(pieces(buffer)) == [[0, 1, 2, 3], [100, 101], [102, 103]]

    def test_a_lane_that_others_hold_is_left_to_them(self, new: New) -> None:
        buffer = laned(new, lanes=2)
        other = shmrb.attach("laned", format="numpy")
        with other.lane():
            for number in range(3):
                buffer.extend(block([number], [0]))
                _later(buffer)
            assert [len(piece) for piece in _by_lane(buffer)] == [3]
        other.close()

    def test_who_asked_to_stay_stays(self, new: New) -> None:
        buffer = laned(new)
        with buffer.lane(rotate=False) as lane:
            for number in range(3):
                lane.extend(block([number], [0]))
                _later(buffer)
        assert [len(piece) for piece in _by_lane(buffer)] == [3]


class TestEmptying:
    def test_some_lanes_are_emptied(self, new: New) -> None:
        buffer = laned(new)
        with buffer.lane(count=3, rotate=False) as lane:
            index = lane.extend(block(np.arange(12).reshape(4, 3)))
            stamps = buffer.generations_of(index)
            buffer.empty(lanes=[lane.lanes[1], lane.lanes[1]])
            assert len(buffer) == 8
            assert buffer.write_count == 12
            moved = (buffer.generations_of(index) != stamps).reshape(4, 3)
            assert moved.tolist() == [[False, True, False]] * 4
            lane.extend(block([[12, 13, 14]]))
        assert sorted(map(len, pieces(buffer))) == [1, 5, 5]
        with pytest.raises(shmrb.SpecError, match="lanes must be between 0 and 2"):
            buffer.empty(lanes=[3])

    def test_their_priorities_go_too(self, new: New) -> None:
        sampler = shmrb.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
        buffer = laned(new, sampler=sampler)
        with buffer.lane(count=3) as lane:
            lane.extend(block(np.arange(12).reshape(4, 3)))
            buffer.empty(lanes=[lane.lanes[0]])
        assert set((buffer.sample(200)["t"] % 3).tolist()) == {1, 2}
        assert buffer._attachment.segment.priorities()["total"] == 8.0


def test_draws_cover_all_lanes(new: New) -> None:
    buffer = laned(new, seed=2)
    with buffer.lane(count=3) as lane:
        lane.extend(block(np.arange(24).reshape(8, 3)))
    assert set(buffer.sample(1000)["t"].tolist()) == set(range(24))
    assert sorted(buffer[:]["t"].tolist()) == list(range(24))
    assert sorted(buffer.read_all_in_order()["t"].tolist()) == list(range(24))
