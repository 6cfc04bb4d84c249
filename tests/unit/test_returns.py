"""What came next: after one step and after several, stored twice and stored once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.draws import allows

New = Callable[..., Any]
FLAGS = ("terminated", "truncated", "done")
TWICE = {
    "observation": "float32",
    "action": "int64",
    "next": {"observation": "float32", "reward": ("float32", 1)}
    | dict.fromkeys(FLAGS, ("bool", 1)),
}
ONCE = {
    "observation": "float32",
    "action": "int64",
    "reward": ("float32", 1),
    **dict.fromkeys(FLAGS, ("bool", 1)),
}


@dataclass
class Step:
    """One step: what was seen, what was done, and what came of it."""

    observation: float
    reward: float
    after: float
    terminated: bool = False
    truncated: bool = False

    @property
    def ends(self) -> bool:
        return self.terminated or self.truncated


def episode(first: float, length: int, end: str, reward: float = 1.0) -> list[Step]:
    """`length` steps from the observation `first` on; the last of them ends so, or not at all."""
    steps = [Step(first + k, reward, first + k + 1) for k in range(length)]
    steps[-1].terminated, steps[-1].truncated = end == "terminated", end == "truncated"
    return steps


def twice(steps: list[Step]) -> dict[str, Any]:
    """The records of steps that hold what came next."""
    column = {key: np.array([[getattr(s, key)] for s in steps]) for key in FLAGS[:2]}
    column["done"] = column["terminated"] | column["truncated"]
    return {
        "observation": np.array([s.observation for s in steps], np.float32),
        "action": np.array([int(s.observation) for s in steps]),
        "next": {
            "observation": np.array([s.after for s in steps], np.float32),
            "reward": np.array([[s.reward] for s in steps], np.float32),
            **column,
        },
    }


def once(steps: list[Step]) -> dict[str, Any]:
    """The records of an episode stored once, closed by its final observation."""
    rewards = [0.0, *(s.reward for s in steps)]
    flags = {
        "terminated": [False, *(s.terminated for s in steps)],
        "truncated": [False, *(s.truncated for s in steps)],
        "done": [False, *(s.ends for s in steps)],
    }
    return {
        "observation": np.array([*(s.observation for s in steps), steps[-1].after], np.float32),
        "action": np.array([*(int(s.observation) for s in steps), -1]),
        "reward": np.array(rewards, np.float32)[:, None],
        **{key: np.array(value)[:, None] for key, value in flags.items()},
    }


LAYOUTS = {"twice": (TWICE, twice), "once": (ONCE, once)}
layouts = pytest.mark.parametrize(("schema", "records"), LAYOUTS.values(), ids=LAYOUTS)


def by_observation(batch: Any) -> dict[float, dict[str, Any]]:
    """What a batch says of each record, which must be the same each time it was drawn."""
    found: dict[float, dict[str, Any]] = {}
    for row, observation in enumerate(batch["observation"].tolist()):
        said = {
            "after": float(batch["next"]["observation"][row]),
            "reward": float(batch["next"]["reward"][row, 0]),
            "terminated": bool(batch["next"]["terminated"][row, 0]),
            "truncated": bool(batch["next"]["truncated"][row, 0]),
            "done": bool(batch["next"]["done"][row, 0]),
            "action": int(batch["action"][row]),
        }
        if "bootstrap_factor" in batch:
            said["factor"] = float(batch["bootstrap_factor"][row, 0])
            said["steps"] = int(batch["steps_to_next_obs"][row, 0])
        assert found.setdefault(observation, said) == said
    return found


class TestOneStep:
    @layouts
    def test_a_time_limit_keeps_its_final_observation(
        self, new: New, schema: Any, records: Any
    ) -> None:
        buffer = new(capacity=16, schema=schema, seed=1)
        buffer.extend(records(episode(0, 3, "truncated")))
        buffer.extend(records(episode(100, 2, "terminated")))
        said = by_observation(buffer.sample(500))
        assert set(said) == {0, 1, 2, 100, 101}
        assert said[2]["after"] == 3
        assert (said[2]["truncated"], said[2]["terminated"], said[2]["done"]) == (1, 0, 1)
        assert said[101]["after"] == 102
        assert said[101]["terminated"]
        assert not said[1]["done"]

    def test_both_layouts_give_the_same_batches(self, new: New) -> None:
        batches = []
        for schema, records in LAYOUTS.values():
            buffer = new(capacity=64, schema=schema, seed=1)
            buffer.extend(records(episode(0, 20, "terminated", 0.5)))
            batches.append(buffer.sample(2000))
        twice_, once_ = batches
        assert by_observation(twice_) == by_observation(once_)
        for one, other in ((twice_, once_), (twice_["next"], once_["next"])):
            assert set(one) == set(other)
            for key, value in one.items():
                if key != "next":
                    assert (value.dtype, value.shape) == (other[key].dtype, other[key].shape)
                    assert other[key].flags.c_contiguous

    def test_final_observations_are_no_anchors_and_the_others_alike(self, new: New) -> None:
        buffer = new(capacity=64, schema=ONCE, seed=4)
        for first in (0, 100, 200):
            buffer.extend(once(episode(first, 5, "truncated")))
        drawn = buffer.sample(6000)["observation"]
        for first in (0, 100, 200):
            assert not (drawn == first + 5).any()
            for k in range(5):
                assert allows(int((drawn == first + k).sum()), 6000, 1 / 15)

    def test_nothing_is_read_over_a_cut_the_seam_or_the_head(self, new: New) -> None:
        buffer = new("once", capacity=8, schema=ONCE, seed=4)
        other = shmrb.attach("once", format="numpy")
        open_episode = {key: value[:3] for key, value in once(episode(0, 5, "no")).items()}
        buffer.extend(open_episode)
        assert set(by_observation(buffer.sample(100))) == {0, 1}
        other.extend(open_episode | {"observation": np.array([50, 51, 52], np.float32)})
        assert set(by_observation(buffer.sample(100))) == {0, 1, 50, 51}
        # The ring goes on over the oldest: 2 is the last that is left of the first three.
        other.extend(open_episode | {"observation": np.array([53, 54, 55], np.float32)})
        other.add({key: value[0] for key, value in open_episode.items()} | {"observation": 56.0})
        said = by_observation(buffer.sample(300))
        assert set(said) == {50, 51, 52, 53, 54, 55}
        assert all(value["after"] == key + 1 for key, value in said.items())
        other.close()

    def test_other_samplers_draw_the_same(self, new: New) -> None:
        data = once(episode(0, 5, "terminated"))
        prioritized = shmrb.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
        buffer = new(capacity=16, schema=ONCE, sampler=prioritized, seed=1)
        index = buffer.extend(data)
        buffer.update_priority(index, [0, 0, 1, 0, 0, 9])
        batch = buffer.sample(20)
        assert set(batch["observation"].tolist()) == {2}
        assert np.allclose(batch["priority_weight"], 1.0)
        assert buffer.update_priority(batch, 3.0).updated.all()
        whole = shmrb.SamplerWithoutReplacement()
        buffer = new(capacity=16, schema=ONCE, sampler=whole, batch_size=3)
        buffer.extend(data)
        drawn = [batch["observation"].tolist() for batch in buffer]
        assert sorted(x for part in drawn for x in part) == [0, 1, 2, 3, 4]

    def test_memory_is_used_again_and_torch_gets_the_same(self, new: New) -> None:
        import torch

        buffer = new(capacity=16, schema=ONCE, format="torch", seed=1)
        buffer.extend(once(episode(0, 5, "terminated")))
        batch = buffer.sample(6)
        again = buffer.sample(6, out=batch)
        assert again is batch
        assert (batch["next", "observation"] == batch["observation"] + 1).all()
        assert torch.equal(batch["index"], batch["observation"].long())
        assert (batch["index_generation"] == 0).all()

    def test_records_that_nothing_follows_say_how_they_are_meant(self, new: New) -> None:
        buffer = new(capacity=16, schema=ONCE)
        for k in range(4):
            buffer.extend(
                {key: value[-1:] for key, value in once(episode(k, 1, "terminated")).items()}
            )
        with pytest.raises(shmrb.NoWindowError, match="final observation, as a producer writes it"):
            buffer.sample(4)

    def test_other_schemas_without_next_are_left_alone(self, new: New) -> None:
        for schema in (
            {"observation": "float32", "action": "int64", "reward": "float32"},
            {"x": "int64", "done": bool},
        ):
            buffer = new(capacity=8, schema=schema)
            buffer.add(dict.fromkeys(schema, 0) | ({"done": True} if "done" in schema else {}))
            assert set(buffer.sample(1)) == {*schema, "index", "index_generation"}


class TestSeveralSteps:
    @layouts
    def test_three_steps_of_one(self, new: New, schema: Any, records: Any) -> None:
        buffer = new(capacity=64, schema=schema, sample_unit=shmrb.MultiStep(3, gamma=0.5), seed=1)
        buffer.extend(records(episode(0, 6, "terminated")))
        buffer.extend(records(episode(100, 6, "truncated")))
        said = by_observation(buffer.sample(2000))
        assert set(said) == {*range(6), *range(100, 106)}
        got = {o: (v["reward"], v["factor"], v["steps"], v["after"]) for o, v in said.items()}
        assert got[0] == (1.75, 0.125, 3, 3)
        assert got[3] == (1.75, 0.0, 3, 6)
        assert got[4] == (1.5, 0.0, 2, 6)
        assert got[5] == (1.0, 0.0, 1, 6)
        assert got[104] == (1.5, 0.25, 2, 106)
        assert got[105] == (1.0, 0.5, 1, 106)
        assert said[4]["terminated"]
        assert said[4]["action"] == 4

    @layouts
    def test_the_live_head_has_no_future_yet(self, new: New, schema: Any, records: Any) -> None:
        buffer = new("head", capacity=64, schema=schema, sample_unit=shmrb.MultiStep(3, 0.5))
        whole = records(episode(0, 10, "no"))
        part = _first(whole, 6)
        buffer.extend(part)
        # Stored once the observation after three steps is that of a record: one less is known.
        open_ = {0, 1, 2} if schema is ONCE else {0, 1, 2, 3}
        assert set(by_observation(buffer.sample(300))) == open_
        # Cut, it never will have one, and what there is counts.
        other = shmrb.attach("head", format="numpy")
        other.extend(_first(records(episode(500, 3, "no")), 1))
        said = by_observation(buffer.sample(900))
        assert set(said) == ({0, 1, 2, 3, 4} if schema is ONCE else {0, 1, 2, 3, 4, 5})
        assert (said[4]["reward"], said[4]["factor"]) == (
            (1.0, 0.5) if schema is ONCE else (1.5, 0.25)
        )
        other.close()

    def test_a_told_end_is_the_end(self, new: New) -> None:
        buffer = new(capacity=64, schema=TWICE, sample_unit=shmrb.MultiStep(3, 0.5))
        buffer.extend(twice(episode(0, 2, "no")))
        with pytest.raises(shmrb.NoWindowError, match="required=3"):
            buffer.sample(4)
        buffer.end_trajectory()
        said = by_observation(buffer.sample(100))
        assert (said[0]["reward"], said[0]["factor"]) == (1.5, 0.25)
        assert (said[1]["reward"], said[1]["factor"]) == (1.0, 0.5)

    def test_what_is_beyond_the_end_does_not_count(self, new: New) -> None:
        buffer = new(capacity=64, schema=TWICE, sample_unit=shmrb.MultiStep(4, 1.0))
        steps = episode(0, 2, "terminated")
        steps[1].reward = float("nan")
        steps[0].reward = 2.0
        buffer.extend(twice(steps))
        buffer.extend(twice(episode(50, 3, "terminated", 7.0)))
        batch = buffer.sample(200)
        rewards = batch["next"]["reward"][:, 0]
        assert np.isnan(rewards[batch["observation"] < 2]).all()
        assert set(rewards[batch["observation"] >= 50].tolist()) == {7.0, 14.0, 21.0}

    def test_prioritized_passes_and_memory(self, new: New) -> None:
        sampler = shmrb.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
        unit = shmrb.MultiStep(2, 0.5)
        buffer = new(capacity=64, schema=TWICE, sampler=sampler, sample_unit=unit, format="torch")
        index = buffer.extend(twice(episode(0, 4, "terminated")))
        buffer.update_priority(index, [0.0, 1.0, 0.0, 3.0])
        batch = buffer.sample(100)
        assert set(batch["observation"].tolist()) == {1.0, 3.0}
        again = buffer.sample(100, out=batch)
        assert again is batch
        assert batch["bootstrap_factor"].shape == (100, 1)
        in_order = shmrb.SamplerWithoutReplacement(shuffle=False)
        buffer = new(capacity=64, schema=TWICE, sampler=in_order, sample_unit=unit)
        buffer.extend(twice(episode(0, 4, "no")))
        batch = buffer.sample(4)
        assert batch["observation"].tolist() == [0, 1, 2]
        assert batch["bootstrap_factor"][:, 0].tolist() == [0.25] * 3

    @pytest.mark.parametrize(
        ("schema", "words"),
        [
            ({"x": "int64"}, r"no \('next', 'reward'\), \('next', 'terminated'\)"),
            ({"next": {"reward": "float32", "truncated": bool}}, r"no \('next', 'terminated'\)"),
            ({"next": {"reward": "int64", "done": bool}}, "float16, float32 or float64"),
        ],
    )
    def test_schemas_that_have_no_returns(self, new: New, schema: Any, words: str) -> None:
        with pytest.raises(shmrb.SpecError, match=words):
            new(schema=schema, sample_unit=shmrb.MultiStep(2, 0.9))

    @pytest.mark.parametrize("arguments", [(0, 0.5), (2, 1.5), (2, -0.1)])
    def test_impossible_units(self, arguments: tuple[Any, ...]) -> None:
        with pytest.raises(shmrb.SpecError, match="must be"):
            shmrb.MultiStep(*arguments)

    def test_flags_that_say_less(self, new: New) -> None:
        schema = {"t": "int64", "next": {"reward": "float64", "done": bool}}
        buffer = new(capacity=8, schema=schema, sample_unit=shmrb.MultiStep(2, 0.5))
        data = {"t": np.arange(2), "next": {"reward": np.ones(2), "done": np.array([False, True])}}
        buffer.extend(data)
        batch = buffer.sample(50)
        assert batch["bootstrap_factor"].shape == (50,)
        assert (batch["bootstrap_factor"] == 0).all()
        assert set(batch["next"]["reward"].tolist()) == {1.0, 1.5}


def _first(records: Any, count: int) -> Any:
    return {
        key: _first(value, count) if isinstance(value, dict) else value[:count]
        for key, value in records.items()
    }


# ---- random episodes against a slow model --------------------------------------------------------


def expected(
    pieces: list[list[Step]], newest: list[Step], n: int, gamma: float, once_: bool
) -> Any:
    """What must come out for each observation, in plain Python."""
    found = {}
    for piece in pieces:
        is_open = piece is newest and not piece[-1].ends
        # Stored once, the last record of a piece that was cut has no next observation.
        known = len(piece) - (1 if once_ and not piece[-1].ends else 0)
        for place in range(known):
            steps = piece[place : min(place + n, known)]
            if is_open and len(steps) < n:
                continue
            found[piece[place].observation] = {
                "reward": float(np.float32(sum(gamma**k * s.reward for k, s in enumerate(steps)))),
                "factor": float(np.float32(0 if steps[-1].terminated else gamma ** len(steps))),
                "steps": len(steps),
                "after": steps[-1].after,
            }
    return found


@pytest.mark.parametrize("seed", range(6))
@layouts
def test_random_episodes(new: New, schema: Any, records: Any, seed: int) -> None:
    rng = random.Random(seed)
    stored_once = schema is ONCE
    n, gamma = rng.randrange(1, 6), rng.choice([0.5, 0.9, 1.0])
    capacity = rng.choice([40, 64, 500])
    name = f"random-{seed}"
    in_order = shmrb.SamplerWithoutReplacement(shuffle=False)
    unit = shmrb.MultiStep(n, gamma)
    buffer = new(name, capacity=capacity, schema=schema, sample_unit=unit, sampler=in_order)
    writers = [buffer, shmrb.attach(name, format="numpy")]
    rows: list[tuple[int, Step | None]] = []
    for number in range(60):
        end = rng.choice(["terminated", "truncated", "no"])
        steps = episode(1000 * number, rng.randrange(1, 12), end)
        for step in steps:
            step.reward = rng.randrange(-8, 8) / 4
        data = records(steps)
        rows += [(number, step) for step in steps]
        if stored_once and end == "no":
            data = _first(data, len(steps))
        elif stored_once:
            rows.append((number, None))  # its final observation
        writers[number % 2].extend(data)
    kept = rows[-capacity:]
    pieces = [
        [step for of, step in kept if of == number and step is not None] for number in range(60)
    ]
    pieces = [piece for piece in pieces if piece]
    want = expected(pieces, pieces[-1], n, gamma, stored_once)
    said = by_observation(buffer.sample(capacity))
    got = {o: {k: v[k] for k in ("reward", "factor", "steps", "after")} for o, v in said.items()}
    assert got == want
    writers[1].close()
