"""The producer: which transitions it writes, when, and what it refuses."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

import shmrb
from helpers.environments import MODES, Line, Loop, Truth, line_step, loop_by_hand
from shmrb.core import Segment
from shmrb.errors import ClosedError, LimiterTimeoutError, ReadOnlyError, RecordError, SpecError

RUN_FIRST, RUN_LAST = 1 << 31, 1 << 30

in_every_mode = pytest.mark.parametrize(("autoreset", "loop"), MODES.values(), ids=MODES)


def written(buffer: shmrb.ReplayBuffer) -> list[float]:
    """The observations in the buffer, oldest first, if it has not wrapped."""
    return [float(at) for at in buffer[:]["observation"][:, 0]]


def runs(buffer: shmrb.ReplayBuffer) -> list[tuple[bool, bool]]:
    """Whether each record begins and ends its run."""
    member = buffer._attachment.member
    region = member.layout.regions["runs"]
    words = member.mapping(region.file).view("<u4", region.offset, region.bytes)[: len(buffer)]
    return [(bool(word & RUN_FIRST), bool(word & RUN_LAST)) for word in words.tolist()]


class TestEnds:
    @in_every_mode
    def test_truncated_episode_keeps_its_own_last_observation(
        self, make: Any, autoreset: Any, loop: Loop
    ) -> None:
        buffer = make()
        steps = 8 if "next" in str(autoreset).lower() else 6  # two rows of resets are left out
        with buffer.producer(autoreset=autoreset) as out:
            loop(TimeLimit(Line(), 3), steps, lambda: 4, out)
        records = buffer[:]
        after = records["next"]
        assert records["observation"][:, 0].tolist() == [0, 1, 2, 100, 101, 102]
        assert after["observation"][:, 0].tolist() == [1, 2, 3, 101, 102, 103]
        assert records["action"].tolist() == [4] * 6
        assert after["reward"][:, 0].tolist() == [2.0] * 6
        assert after["truncated"][:, 0].tolist() == [False, False, True] * 2
        assert after["terminated"][:, 0].tolist() == [False] * 6
        assert after["done"][:, 0].tolist() == [False, False, True] * 2
        assert runs(buffer) == [(True, False), (False, False), (False, True)] * 2

    @in_every_mode
    def test_terminated_episode(self, make: Any, autoreset: Any, loop: Loop) -> None:
        buffer = make()
        with buffer.producer(autoreset=autoreset) as out:
            loop(Line(goal=2), 4, lambda: 0, out)
        after = buffer[:]["next"]
        count = 3 if "next" in str(autoreset).lower() else 4
        assert written(buffer) == [0, 1, 100, 101][:count]
        assert after["observation"][:, 0].tolist() == [1, 2, 101, 102][:count]
        assert after["terminated"][:, 0].tolist() == [False, True, False, True][:count]
        assert after["done"][:, 0].tolist() == [False, True, False, True][:count]
        assert not after["truncated"].any()

    @in_every_mode
    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("CartPole-v1", {"max_episode_steps": 12}),
            ("Pendulum-v1", {"max_episode_steps": 25}),
            ("FrozenLake-v1", {}),
        ],
        ids=["CartPole", "Pendulum", "FrozenLake"],
    )
    def test_buffer_holds_what_happened(
        self, make: Any, autoreset: Any, loop: Loop, name: str, options: Any
    ) -> None:
        truth = Truth(gym.make(name, **options))
        buffer = make(truth)
        truth.action_space.seed(3)
        with buffer.producer(autoreset=autoreset, chunk=16) as out:
            loop(truth, 300, truth.action_space.sample, out)
        records = buffer[:]
        after = records["next"]
        happened = [np.array(column) for column in zip(*truth.happened, strict=True)]
        obs, action, next_obs, reward, terminated, truncated = happened
        np.testing.assert_array_equal(records["observation"], obs)
        np.testing.assert_array_equal(records["action"], action)
        np.testing.assert_array_equal(after["reward"][:, 0], reward.astype(np.float32))
        np.testing.assert_array_equal(after["observation"], next_obs)
        np.testing.assert_array_equal(after["terminated"][:, 0], terminated)
        np.testing.assert_array_equal(after["truncated"][:, 0], truncated)
        np.testing.assert_array_equal(after["done"][:, 0], terminated | truncated)
        ends = (terminated | truncated).tolist()
        ends[-1] = True  # closing the producer ends the trajectory
        starts = [True, *ends[:-1]]
        assert runs(buffer) == list(zip(starts, ends, strict=True))
        assert sum(ends) > 5

    def test_reset_by_hand_is_not_mistaken_for_autoreset(self, make: Any) -> None:
        buffer = make()
        out = buffer.producer()
        line_step(out, 0, end=True)
        with pytest.raises(RecordError, match="autoreset='disabled'"):
            line_step(out, 100)
        line_step(out, 1)  # the row of the step that resets
        line_step(out, 100)
        out.close()
        assert written(buffer) == [0, 100]

    def test_row_of_the_reset_is_left_out_across_chunks(self, make: Any) -> None:
        buffer = make()
        with buffer.producer(chunk=1) as out:
            line_step(out, 0, end=True)
            line_step(out, 1)
            line_step(out, 100)
        assert written(buffer) == [0, 100]

    def test_same_step_without_the_final_observation_is_refused(self, make: Any) -> None:
        buffer = make()
        reset = np.array([100], np.float32)
        last = np.array([1], np.float32)
        with buffer.producer(autoreset="same_step") as out:
            for info, got in ((None, "got no info"), ({}, "got info without it")):
                with pytest.raises(RecordError, match=got):
                    out.step(np.zeros(1, np.float32), 0, 0.0, reset, True, False, info)
            out.step(np.zeros(1, np.float32), 0, 0.0, reset, True, False, {"final_obs": last})
        assert buffer[:]["next"]["observation"].tolist() == [[1.0]]

    def test_end_that_the_done_keys_do_not_show_still_ends_its_run(self, make: Any) -> None:
        buffer = make(done_keys=[("next", "terminated")])
        with buffer.producer(autoreset="disabled") as out:
            loop_by_hand(TimeLimit(Line(), 2), 4, lambda: 0, out)
        assert runs(buffer) == [(True, False), (False, True)] * 2

    def test_end_trajectory_cuts_between_two_steps(self, make: Any) -> None:
        buffer = make()
        with buffer.producer() as out:
            line_step(out, 0)
            line_step(out, 1)
            out.end_trajectory()
            assert written(buffer) == [0, 1]
            line_step(out, 50)
            out.flush()
            out.end_trajectory()
            line_step(out, 70)
        assert runs(buffer) == [(True, False), (False, True), (True, True), (True, True)]
        assert not buffer[:]["next"]["done"].any()

    def test_next_producer_of_a_handle_starts_another_run(self, make: Any) -> None:
        buffer = make()
        for at in (0, 40):
            with buffer.producer() as out:
                line_step(out, at)
                out.flush()
        assert runs(buffer) == [(True, True), (True, True)]


class TestChunks:
    def test_written_when_full(self, make: Any) -> None:
        buffer = make()
        with buffer.producer(chunk=4) as out:
            seen = []
            for at in range(10):
                line_step(out, at)
                seen.append(len(buffer))
            assert seen == [0, 0, 0, 4, 4, 4, 4, 8, 8, 8]
            out.flush()
            assert len(buffer) == 10
            out.flush()
            line_step(out, 10)
        assert written(buffer) == [float(at) for at in range(11)]
        assert runs(buffer) == [(True, False), *[(False, False)] * 9, (False, True)]

    def test_one_at_a_time(self, make: Any) -> None:
        buffer = make()
        with buffer.producer(chunk=1) as out:
            line_step(out, 0)
            assert len(buffer) == 1

    def test_at_most_half_a_lane(self, make: Any) -> None:
        buffer = make(capacity=8)
        out = buffer.producer(chunk=64)
        for at in range(4):
            line_step(out, at)
        assert len(buffer) == 4
        out.close()

    @pytest.mark.parametrize("chunk", [1, 3, 64])
    def test_ring_that_wraps(self, make: Any, chunk: int) -> None:
        buffer = make(capacity=16)
        with buffer.producer(chunk=chunk) as out:
            for at in range(100):
                line_step(out, at)
        assert sorted(written(buffer)) == [float(at) for at in range(84, 100)]
        assert buffer.write_count == 100

    def test_arrays_of_the_caller_are_copied_at_the_step(self, make: Any) -> None:
        buffer = make()
        obs = np.zeros(1, np.float32)
        with buffer.producer() as out:
            for at in range(3):
                obs[:] = at
                out.step(obs, 0, 0.0, obs, False, False)
        assert written(buffer) == [0, 1, 2]

    def test_transforms_run_before_the_write(self, make: Any) -> None:
        buffer = make()

        def double(data: Any) -> Any:
            return {**data, "observation": 2 * data["observation"]}

        buffer.append_transform(double, invert=True)
        with buffer.producer(chunk=2) as out:
            for at in range(3):
                line_step(out, at)
        assert buffer["observation"][:, 0].tolist() == [0, 2, 4]


class TestErrors:
    def test_exception_in_the_block_writes_what_was_gathered(self, make: Any) -> None:
        buffer = make()

        def collect() -> None:
            with buffer.producer() as out:
                for at in range(5):
                    line_step(out, at)
                raise ZeroDivisionError("the environment broke")

        with pytest.raises(ZeroDivisionError, match="the environment broke"):
            collect()
        assert written(buffer) == [0, 1, 2, 3, 4]
        with buffer.producer() as out:  # the handle is free for another
            line_step(out, 9)

    def test_exception_in_the_block_is_the_one_to_see(self, make: Any) -> None:
        buffer = make()

        def collect() -> None:
            with buffer.producer() as out:
                line_step(out, 0)
                buffer.close()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            collect()

    def test_closed(self, make: Any) -> None:
        out = make().producer()
        out.close()
        out.close()
        with pytest.raises(ClosedError, match="step: this producer"):
            line_step(out, 0)

    def test_two_on_one_handle_are_refused(self, make: Any) -> None:
        buffer = make()
        first = buffer.producer()
        with pytest.raises(SpecError, match=r"shmrb\.attach"):
            buffer.producer()
        first.close()
        buffer.producer().close()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"chunk": 0}, "chunk must be at least 1, got 0"),
            ({"autoreset": "never"}, "autoreset must be one of next_step, same_step, disabled"),
        ],
    )
    def test_options(self, make: Any, options: Any, message: str) -> None:
        with pytest.raises(SpecError, match=message):
            make().producer(**options)

    def test_observer_is_refused(self, root: Any) -> None:
        storage = shmrb.SharedStorage(64)
        schema = shmrb.schema_from_env(Line())
        with shmrb.ReplayBuffer("a", storage=storage, schema=schema, format="numpy"):
            watcher = shmrb.attach("a", role="observer", format="numpy")
            with pytest.raises(ReadOnlyError, match="observer"):
                watcher.producer()
            watcher.close()

    @pytest.mark.parametrize(
        ("without", "message"),
        [
            (("next", "observation"), "has no [(]'next', 'observation'[)]"),
            (("action",), "has no 'action'"),
            (("next", "reward"), "has no [(]'next', 'reward'[)]"),
            (("next", "terminated"), "has no [(]'next', 'terminated'[)]"),
        ],
    )
    def test_schema_without_what_a_step_has(self, make: Any, without: Any, message: str) -> None:
        schema = shmrb.schema_from_env(Line())
        fields = tuple(field for field in schema.fields if field.path != without)
        with pytest.raises(SpecError, match=message):
            make(schema=shmrb.Schema(fields)).producer()

    def test_schema_that_cannot_tell_a_truncation(self, make: Any) -> None:
        schema = shmrb.schema_from_env(Line())
        ends = (("next", "truncated"), ("next", "done"))
        fields = tuple(field for field in schema.fields if field.path not in ends)
        with pytest.raises(SpecError, match="truncated"):
            make(schema=shmrb.Schema(fields)).producer()

    def test_declared_buffer_is_refused_with_what_to_do(self, make: Any) -> None:
        with pytest.raises(SpecError, match="schema_from_env"):
            make(schema=None).producer()

    def test_field_that_bears_the_name_of_an_argument(self, make: Any) -> None:
        schema = shmrb.schema_from_env(Line())
        extra = shmrb.Schema.from_mapping({"info": "int64"}).fields
        with pytest.raises(SpecError, match="'info' bears the name"):
            make(schema=shmrb.Schema((*schema.fields, *extra))).producer()


class TestLimiter:
    def test_chunk_that_is_not_let_in_stays_and_the_step_is_made_again(self, make: Any) -> None:
        limits = shmrb.RateLimiter(min_size=4, samples_per_insert=1.0, error_buffer=4.0)
        buffer = make(limiter=limits, batch_size=4)
        out = buffer.producer(chunk=4, timeout=0.05)
        for at in range(8):
            line_step(out, at)
        for at in (8, 9, 10):
            line_step(out, at)
        with pytest.raises(LimiterTimeoutError, match="waited"):
            line_step(out, 11)
        assert len(buffer) == 8
        with pytest.raises(LimiterTimeoutError):
            out.flush()
        buffer.sample()
        line_step(out, 11)
        out.close()
        assert written(buffer) == [float(at) for at in range(12)]

    def test_block_that_ends_by_an_exception_does_not_wait_long(self, make: Any) -> None:
        limits = shmrb.RateLimiter(min_size=4, samples_per_insert=1.0, error_buffer=4.0)
        buffer = make(limiter=limits, batch_size=4)

        def collect() -> None:
            with buffer.producer(chunk=4) as out:
                for at in range(10):
                    line_step(out, at)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            collect()
        assert written(buffer) == [float(at) for at in range(8)]
        buffer.producer().close()

    def test_chunk_is_no_longer_than_what_can_ever_be_let_in(self, make: Any) -> None:
        buffer = make(limiter=shmrb.Queue(10), batch_size=1)
        with buffer.producer(timeout=0) as out:
            for at in range(9):
                line_step(out, at)
            assert len(buffer) == 9


def test_one_native_call_a_chunk(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = make()
    counts = []
    segment = buffer._attachment.segment

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(segment, name)

        def extend(self, lane: int, count: int, *rest: Any) -> Any:
            counts.append(count)
            return Segment.extend(segment, lane, count, *rest)

    monkeypatch.setattr(buffer._attachment, "segment", Counting())
    with buffer.producer() as out:
        for at in range(130):
            line_step(out, at)
    assert counts == [64, 64, 2]
