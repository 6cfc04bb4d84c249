"""What a step's values must be, and where they go."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import shmrb
from helpers.environments import Line, line_step, loop_by_hand
from shmrb.errors import RecordError


class TestValues:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"obs": np.zeros(2, np.float32)}, r"shape \[1\], got \[2\]"),
            ({"obs": np.zeros(1, np.float64)}, "expected dtype float32, got float64"),
            ({"obs": [[1.0]]}, "shape"),
            ({"obs": None}, "float32"),
            ({"action": 0.5}, "int64"),
            ({"action": np.array(1, np.int32)}, "expected dtype int64, got int32"),
            ({"action": 1 << 70}, "int64"),
            ({"reward": np.zeros(2)}, "reward: expected one real number"),
            ({"reward": None}, "reward: expected one real number"),
            ({"reward": 1e300}, "reward: 1e[+]300 cannot be represented as float32"),
            ({"next_obs": np.zeros((1, 1), np.float32)}, "shape"),
            ({"terminated": 1}, "terminated: expected True or False, got 1"),
            ({"truncated": None}, "truncated: expected True or False, got None"),
            ({"policy_version": 3}, "unknown 'policy_version'"),
        ],
    )
    def test_refused_step_is_not_taken_in(self, make: Any, change: Any, message: str) -> None:
        buffer = make()
        one = np.ones(1, np.float32)
        values = {"obs": one, "action": 1, "reward": 1.0, "next_obs": one}
        values |= {"terminated": False, "truncated": False}
        with buffer.producer() as out:
            out.step(**values)
            with pytest.raises(RecordError, match=message):
                out.step(**(values | change))
            out.step(**values)
        records = buffer[:]
        assert records["observation"].tolist() == [[1.0], [1.0]]
        assert records["action"].tolist() == [1, 1]

    @pytest.mark.parametrize(
        "number", [2, 2.0, np.float32(2), np.float64(2), np.array(2.0), np.array([2.0])]
    )
    def test_every_real_number_is_a_reward(self, make: Any, number: Any) -> None:
        buffer = make()
        zero = np.zeros(1, np.float32)
        with buffer.producer() as out:
            out.step(zero, np.int64(0), number, zero, np.bool_(False), np.array([False]))
        assert buffer[:]["next"]["reward"].tolist() == [[2.0]]

    @pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
    def test_no_number_is_a_number_too(self, make: Any, number: float) -> None:
        buffer = make()
        zero = np.zeros(1, np.float32)
        with buffer.producer() as out:
            out.step(zero, 0, number, zero, False, False)
        np.testing.assert_array_equal(buffer[:]["next"]["reward"], [[number]])


class TestFields:
    def test_without_truncated_the_done_field_tells(self, make: Any) -> None:
        schema = shmrb.schema_from_env(Line())
        fields = tuple(field for field in schema.fields if field.path != ("next", "truncated"))
        buffer = make(schema=shmrb.Schema(fields))
        with buffer.producer(autoreset="disabled") as out:
            loop_by_hand(TimeLimit(Line(), 2), 2, lambda: 0, out)
        after = buffer[:]["next"]
        assert after["terminated"][:, 0].tolist() == [False, False]
        assert after["done"][:, 0].tolist() == [False, True]

    def test_further_fields_by_name(self, make: Any) -> None:
        schema = shmrb.schema_from_env(Line())
        extra = shmrb.Schema.from_mapping(
            {
                "policy_version": "int64",
                "agent": {"state": ("float32", 2), "id": ("int32", (1,))},
                "next": {"cost": "float64"},
            }
        )
        buffer = make(schema=shmrb.Schema((*schema.fields, *extra.fields)))
        agent = {"state": np.array([3, 4], np.float32), "id": np.int32(9)}
        with buffer.producer() as out:
            line_step(out, 0, policy_version=7, agent=agent, next={"cost": 1.5})
            with pytest.raises(RecordError, match="missing 'policy_version'"):
                line_step(out, 1, agent=agent, next={"cost": 1.5})
            wrong = {"state": agent["state"], "name": 1}
            with pytest.raises(RecordError, match="missing 'id' and unknown 'name'"):
                line_step(out, 1, policy_version=7, agent=wrong, next={"cost": 1.5})
            with pytest.raises(RecordError, match="expected 'cost' by name, got float"):
                line_step(out, 1, policy_version=7, agent=agent, next=1.5)
        records = buffer[:]
        assert records["policy_version"].tolist() == [7]
        assert records["agent"]["state"].tolist() == [[3.0, 4.0]]
        assert records["agent"]["id"].tolist() == [[9]]
        assert records["next"]["cost"].tolist() == [1.5]

    def test_observations_of_several_parts(self, make: Any) -> None:
        class Parts(gym.Env[Any, Any]):
            observation_space = spaces.Dict(
                {
                    "image": spaces.Box(0, 255, (2, 2), np.uint8),
                    "body": spaces.Dict({"speed": spaces.Box(-1, 1, (1,), np.float64)}),
                }
            )
            action_space = spaces.Box(-1, 1, (2,), np.float32)

        def at(number: int) -> dict[str, Any]:
            image = np.full((2, 2), number, np.uint8)
            return {"image": image, "body": {"speed": np.array([number / 4])}}

        buffer = make(Parts())
        action = np.array([0.5, -0.5], np.float32)
        with buffer.producer() as out:
            out.step(at(0), action, 1, at(1), False, False)
            out.step(at(1), action, 1, at(2), True, False)
            with pytest.raises(RecordError, match="missing 'image'"):
                out.step({"body": at(2)["body"]}, action, 0, at(100), False, False)
            out.step(at(2), action, 0, at(100), False, False)
            out.step(at(100), action, 1, at(101), False, False)
        records = buffer[:]
        assert records["observation"]["image"][:, 0, 0].tolist() == [0, 1, 100]
        assert records["observation"]["body"]["speed"][:, 0].tolist() == [0, 0.25, 25]
        assert records["next"]["observation"]["image"][:, 1, 1].tolist() == [1, 2, 101]
        assert records["action"].tolist() == [[0.5, -0.5]] * 3

    def test_arrays_of_a_kindred_dtype_where_the_handle_takes_them(self, make: Any) -> None:
        buffer = make(cast="same_kind")
        with buffer.producer() as out:
            out.step(np.zeros(1), np.int32(3), 0.0, np.ones(1), False, False)
        assert buffer[:]["next"]["observation"].tolist() == [[1.0]]
        assert buffer[:]["action"].tolist() == [3]

    def test_tensors(self, make: Any) -> None:
        torch = pytest.importorskip("torch")
        buffer = make()
        with buffer.producer() as out:
            out.step(torch.zeros(1), torch.tensor(3), 0.0, torch.ones(1), False, False)
        assert buffer[:]["next"]["observation"].tolist() == [[1.0]]
        assert buffer[:]["action"].tolist() == [3]
