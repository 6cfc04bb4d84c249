"""Producers of records stored once, and of vectors of environments: each against what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

import shmrb
from helpers.environments import MODES, Line, Loop, Truth, line_step

New = Callable[..., Any]
in_every_mode = pytest.mark.parametrize(("autoreset", "loop"), MODES.values(), ids=MODES)
layouts = pytest.mark.parametrize("stored_once", [False, True], ids=["twice", "once"])
IN_ORDER = shmrb.SamplerWithoutReplacement(shuffle=False)


def transitions(buffer: Any) -> dict[str, np.ndarray]:
    """All that can be drawn, in the order of the slots."""
    batch = buffer.sample(len(buffer))
    after = batch["next"]
    return {
        "obs": batch["observation"],
        "action": batch["action"],
        "next_obs": after["observation"],
        "reward": after["reward"][:, 0],
        "terminated": after["terminated"][:, 0],
        "truncated": after["truncated"][:, 0],
        "done": after["done"][:, 0],
    }


def assert_happened(drawn: dict[str, np.ndarray], happened: list[tuple[Any, ...]]) -> None:
    obs, action, next_obs, reward, terminated, truncated = (
        np.array(column) for column in zip(*happened, strict=True)
    )
    expected = {
        "obs": obs,
        "action": action,
        "next_obs": next_obs,
        "reward": reward.astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "done": terminated | truncated,
    }
    for key, values in expected.items():
        np.testing.assert_array_equal(drawn[key], values, err_msg=key)


def once(new: New, env: Any, capacity: int = 4096, **options: Any) -> Any:
    schema = shmrb.schema_from_env(env, stored_once=True)
    return new(capacity=capacity, schema=schema, sampler=IN_ORDER, **options)


class TestOnce:
    @in_every_mode
    @pytest.mark.parametrize("chunk", [1, 5, 64])
    @pytest.mark.parametrize(
        ("name", "options"),
        [("CartPole-v1", {"max_episode_steps": 12}), ("Pendulum-v1", {"max_episode_steps": 25})],
        ids=["CartPole", "Pendulum"],
    )
    def test_what_is_drawn_is_what_happened(
        self, new: New, autoreset: Any, loop: Loop, chunk: int, name: str, options: Any
    ) -> None:
        truth = Truth(gym.make(name, **options))
        truth.action_space.seed(3)
        buffer = once(new, truth)
        with buffer.producer(autoreset=autoreset, chunk=chunk) as out:
            loop(truth, 200, truth.action_space.sample, out)
        assert_happened(transitions(buffer), truth.happened)
        # One record more a trajectory, the last of which closing the producer ended.
        ends = sum(t or c for *_, t, c in truth.happened[:-1]) + 1
        assert len(buffer) == len(truth.happened) + ends
        assert len(buffer._attachment.segment.runs(0)) == ends

    def test_a_final_record_holds_the_observation_and_nothing_else(self, new: New) -> None:
        buffer = once(new, Line())
        with buffer.producer(autoreset="disabled") as out:
            line_step(out, 0)
            line_step(out, 1, end=True)
            line_step(out, 100)
        assert buffer["observation"][:, 0].tolist() == [0, 1, 2, 100, 101]
        assert buffer["action"].tolist() == [1, 1, 0, 1, 0]
        assert buffer["reward"][:, 0].tolist() == [0, 0.5, 0.5, 0, 0.5]
        assert buffer["terminated"][:, 0].tolist() == [False, False, True, False, False]
        assert buffer["done"][:, 0].tolist() == [False, False, True, False, False]

    def test_an_end_that_is_told_closes_with_what_was_seen_last(self, new: New) -> None:
        buffer = once(new, Line())
        out = buffer.producer(autoreset="disabled", chunk=2)
        for first in (0, 100):
            line_step(out, first)
            line_step(out, first + 1)
            out.end_trajectory()
        out.close()
        drawn = transitions(buffer)
        assert drawn["obs"][:, 0].tolist() == [0, 1, 100, 101]
        assert drawn["next_obs"][:, 0].tolist() == [1, 2, 101, 102]
        assert not drawn["done"].any()

    def test_a_step_from_elsewhere_is_refused(self, new: New) -> None:
        buffer = once(new, Line())
        out = buffer.producer(autoreset="disabled")
        line_step(out, 0)
        with pytest.raises(shmrb.RecordError, match="end_trajectory"):
            line_step(out, 100)
        line_step(out, 1)
        out.close()
        assert buffer["observation"][:, 0].tolist() == [0, 1, 2]

    def test_environments_that_reuse_their_arrays(self, new: New) -> None:
        buffer = once(new, Line())
        at = np.zeros(1, np.float32)
        with buffer.producer(autoreset="disabled", chunk=3) as out:
            for _ in range(7):
                obs = at
                at += 1
                out.step(obs, 1, 0.5, at, False, False)
        assert buffer["observation"][1:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7]

    def test_a_chunk_that_is_not_let_in_is_not_lost(self, new: New) -> None:
        limiter = shmrb.RateLimiter(min_size=1, samples_per_insert=1.0, error_buffer=4.0)
        buffer = once(new, Line(), limiter=limiter)
        out = buffer.producer(autoreset="disabled", chunk=2, timeout=0.02)
        step, refused = 0, 0
        while step < 12:
            try:
                line_step(out, step, end=step == 5)
                step += 1
            except shmrb.LimiterTimeoutError:
                refused += 1
                buffer.sample(1, timeout=1)
        assert refused
        buffer.limiter.lift()
        out.close()
        drawn = transitions(buffer)
        assert drawn["obs"][:, 0].tolist() == list(range(12))
        assert drawn["next_obs"][:, 0].tolist() == list(range(1, 13))

    def test_further_fields_are_in_the_final_record_too(self, new: New) -> None:
        fields = shmrb.schema_from_env(Line(), stored_once=True).fields
        more = shmrb.Schema.from_mapping({"policy_version": "int64"}).fields
        buffer = new(capacity=64, schema=shmrb.Schema((*fields, *more)))
        with buffer.producer(autoreset="disabled", chunk=2) as out:
            for step in range(3):
                line_step(out, step, policy_version=step)
        assert buffer["policy_version"].tolist() == [0, 1, 2, 2]

    def test_half_the_memory_for_images(self) -> None:
        class Images(Line):
            observation_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)

        twice, half = (
            shmrb.schema_from_env(Images(), stored_once=flag).row_bytes for flag in (False, True)
        )
        assert half < 0.51 * twice


# ---- vectors -------------------------------------------------------------------------------------


def vector_loop(envs: list[Any], mode: AutoresetMode, steps: int, out: Any) -> None:
    vector = SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=mode)
    vector.action_space.seed(7)
    obs, _ = vector.reset(seed=1)
    for _ in range(steps):
        action = vector.action_space.sample()
        next_obs, reward, terminated, truncated, info = vector.step(action)
        out.step(obs, action, reward, next_obs, terminated, truncated, info)
        obs = next_obs


MODES_OF_VECTORS = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


class TestVectors:
    @layouts
    @pytest.mark.parametrize("mode", MODES_OF_VECTORS)
    @pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
    def test_environment_i_in_lane_i(
        self, new: New, stored_once: bool, mode: AutoresetMode, name: str
    ) -> None:
        envs = [Truth(gym.make(name, max_episode_steps=9 + i)) for i in range(3)]
        schema = shmrb.schema_from_env(envs[0], stored_once=stored_once)
        storage = shmrb.SharedStorage(3 * 400, lanes=3)
        buffer = new(storage=storage, schema=schema, sampler=IN_ORDER)
        with buffer.producer(envs=3, chunk=7, autoreset=mode) as out:
            lanes = out.lanes
            vector_loop(envs, mode, 150, out)
        drawn = transitions(buffer)
        lane = buffer.sample(len(buffer))["index"] // 400
        for place, env in enumerate(envs):
            mine = {key: value[lane == lanes[place]] for key, value in drawn.items()}
            assert_happened(mine, env.happened)

    def test_a_dead_lanes_place_is_taken_by_a_free_one(self, new: New) -> None:
        envs = [Truth(TimeLimit(Line(), 5)) for _ in range(2)]
        storage = shmrb.SharedStorage(4 * 40, lanes=4)
        schema = shmrb.schema_from_env(envs[0])
        buffer = new(storage=storage, schema=schema, sampler=IN_ORDER)
        mode = AutoresetMode.NEXT_STEP
        with buffer.producer(envs=2, chunk=1, autoreset=mode) as out:
            vector_loop(envs, mode, 60, out)
        assert all(buffer._attachment.segment.runs(lane) for lane in range(4))
        assert len(buffer) == sum(len(env.happened) for env in envs)

    def test_nested_observations(self, new: New) -> None:
        class Both(Line):
            observation_space = gym.spaces.Dict(
                {"a": gym.spaces.Box(-1, 1, (2,), np.float32), "b": gym.spaces.Discrete(1000)}
            )

            def _where(self) -> Any:
                return {"a": np.zeros(2, np.float32), "b": self.steps}

        storage = shmrb.SharedStorage(64, lanes=2)
        buffer = new(storage=storage, schema=shmrb.schema_from_env(Both()), sampler=IN_ORDER)
        with buffer.producer(envs=2) as out:
            vector_loop([Both(), Both()], AutoresetMode.NEXT_STEP, 4, out)
        assert buffer["next", "observation", "b"].tolist() == [1, 2, 3, 4] * 2

    def test_a_step_that_failed_half_way_goes_on_where_it_was(self, new: New) -> None:
        limiter = shmrb.RateLimiter(min_size=1, samples_per_insert=1.0, error_buffer=2.0)
        storage = shmrb.SharedStorage(3 * 64, lanes=3)
        options = {"limiter": limiter, "sampler": IN_ORDER}
        buffer = new(storage=storage, schema=shmrb.schema_from_env(Line()), **options)
        out = buffer.producer(envs=3, chunk=1, autoreset="disabled", timeout=0.02)
        step, refused = 0, 0
        while step < 5:
            at = np.full((3, 1), step, np.float32) + 100 * np.arange(3, dtype=np.float32)[:, None]
            nothing = np.zeros(3, bool)
            try:
                out.step(at, np.ones(3, int), np.ones(3), at + 1, nothing, nothing)
                step += 1
            except shmrb.LimiterTimeoutError:
                refused += 1
                buffer.sample(1, timeout=1)
        assert refused > 2
        out.close()
        assert sorted(buffer["observation"][:, 0].tolist()) == sorted(
            100 * env + step for env in range(3) for step in range(5)
        )

    def test_what_cannot_be(self, new: New) -> None:
        schema = shmrb.schema_from_env(Line())
        with pytest.raises(shmrb.SpecError, match="lanes=4"):
            new(capacity=8, schema=schema).producer(envs=4)
        with pytest.raises(shmrb.SpecError, match="envs must be at least 1"):
            new(capacity=8, schema=schema).producer(envs=0)
        buffer = new(storage=shmrb.SharedStorage(8, lanes=2), schema=schema)
        with pytest.raises(shmrb.SpecError, match="autoreset"):
            buffer.producer(envs=2, autoreset="never")
        obs = np.zeros((2, 1), np.float32)
        out = buffer.producer(envs=2)  # the lanes of the refused one are free
        with pytest.raises(shmrb.RecordError, match="reward: expected one entry for each of 2"):
            out.step(obs, [0, 0], 1.0, obs, [False, False], [False, False])
        out.close()
        with pytest.raises(shmrb.ClosedError):
            out.step(obs, [0, 0], [1, 1], obs, [False, False], [False, False])
