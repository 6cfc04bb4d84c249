"""Conditional updates and priorities do what TorchRL does: its recorded scripts are replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import shmrb

ORACLE = Path(__file__).parents[1] / "oracle"
SCHEMA = {"x": "int64", "n": {"w": ("float32", 2)}, "ver": "int64"}
CAPACITY = 8
ERRORS = {"ValueError": ValueError, "KeyError": KeyError}

# What TorchRL refuses and we have a meaning for.
OURS = {"a version without its key": "a version alone is compared with the buffer's own array"}


def _cases(topic: str) -> list[dict[str, Any]]:
    return list(json.loads((ORACLE / f"{topic}.json").read_text())["cases"])


def records(numbers: list[int], *, versioned: bool) -> TensorDict:
    x = torch.tensor(numbers, dtype=torch.int64)
    fields: dict[str, Any] = {"x": x, "n": {"w": torch.stack([x.float(), x.float() + 0.5], -1)}}
    if versioned:
        fields["ver"] = torch.zeros(len(numbers), dtype=torch.int64)
    return TensorDict(fields, [len(numbers)])


class Replay:
    """The calls of `oracle/record.py` on one of our buffers."""

    def __init__(self) -> None:
        self.rb = shmrb.ReplayBuffer(storage=shmrb.SharedStorage(CAPACITY), schema=SCHEMA)
        self.extend(list(range(8)))
        self.extend(list(range(8, 12)))

    def extend(self, numbers: list[int]) -> Any:
        self.rb.extend(records(numbers, versioned=True))

    def empty(self) -> Any:
        self.rb.empty()

    def update_if_present(self, **arguments: Any) -> Any:
        for key in ("index", "generation"):
            arguments[key] = torch.tensor(arguments[key], dtype=torch.int64)
        if isinstance(arguments.get("version"), list):
            arguments["version"] = torch.tensor(arguments["version"])
        if isinstance(arguments.get("version_key"), list):
            arguments["version_key"] = tuple(arguments["version_key"])
        arguments["patch"] = _patch(arguments["patch"])
        result = self.rb.update_if_present(**arguments)
        rejected = result.version_rejected
        return {
            "updated": result.updated.tolist(),
            "version_rejected": None if rejected is None else rejected.tolist(),
            "stale_count": result.stale_count,
        }

    def look(self) -> dict[str, Any]:
        rb = self.rb
        stored = rb[:] if len(rb) else None
        return {
            "len": len(rb),
            "write_count": rb.write_count,
            "generations": rb.generations_of(torch.arange(CAPACITY)).tolist(),
            "x": [] if stored is None else stored["x"].tolist(),
            "w": [] if stored is None else stored["n", "w"].tolist(),
            "ver": [] if stored is None else stored["ver"].tolist(),
        }


def _patch(values: dict[str, Any]) -> dict[Any, Any]:
    patch: dict[Any, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            patch |= {(key, below): torch.tensor(rows) for below, rows in value.items()}
        else:
            patch[key] = torch.tensor(value) if value else torch.tensor(value, dtype=torch.int64)
    return patch


def _differences(replay: Replay, steps: list[dict[str, Any]]) -> Iterator[str]:
    for number, step in enumerate(steps):
        where = f"step {number}, {step['call']}{step['arguments']}"
        found, error = None, None
        try:
            found = getattr(replay, step["call"])(**step["arguments"])
        except Exception as raised:
            error = raised
        if "error" in step:
            kind, words = step["error"]
            if not isinstance(error, ERRORS[kind]) or not str(error).startswith(words.strip("'")):
                yield f"{where}: expected {kind} {words!r}, got {error!r}"
        elif error is not None:
            yield f"{where}: expected {step['returned']}, got {error!r}"
        elif step["call"] == "update_if_present" and found != step["returned"]:
            yield f"{where}: expected {step['returned']}, got {found}"
        for key, value in replay.look().items():
            if value != step[key]:
                yield f"{where}: {key}: expected {step[key]}, got {value}"


@pytest.mark.parametrize("case", _cases("updates"), ids=lambda case: case["name"])
def test_masks_contents_and_errors_of_conditional_updates(case: dict[str, Any]) -> None:
    if case["name"] in OURS:
        assert "error" in case["steps"][0]
        return
    replay = Replay()
    assert list(_differences(replay, case["steps"])) == []
    replay.rb.close()


def _name(case: dict[str, Any]) -> str:
    return f"alpha {case['alpha']}, beta {case['beta']}"


@pytest.mark.parametrize("case", _cases("priorities"), ids=_name)
def test_weights_and_defaults_of_priorities(case: dict[str, Any]) -> None:
    sampler = shmrb.PrioritizedSampler(alpha=case["alpha"], beta=case["beta"], eps=case["eps"])
    schema = {key: SCHEMA[key] for key in ("x", "n")}
    rb = shmrb.ReplayBuffer(
        storage=shmrb.SharedStorage(CAPACITY), schema=schema, sampler=sampler, seed=1
    )
    for step in case["steps"]:
        arguments = step["arguments"]
        if step["call"] == "extend":
            rb.extend(records(arguments["numbers"], versioned=False))
        elif step["call"] == "empty":
            rb.empty()
        else:
            rb.update_priority(*(torch.tensor(value) for value in arguments.values()))
        assert rb.sampler.default_priority == step["default_priority"]
        masses = step["masses"]
        assert len(rb) == len(masses)
        if not masses:
            continue
        info = rb.statistics().priorities
        assert info is not None
        np.testing.assert_allclose(info.total_mass, sum(masses), rtol=1e-6)
        np.testing.assert_allclose(info.least_mass, min(masses), rtol=1e-6)
        batch = rb.sample(4096)
        for slot, weight in zip(
            batch["index"].tolist(), batch["priority_weight"].tolist(), strict=True
        ):
            expected = step["weights"][slot]
            if expected is not None:
                assert weight == pytest.approx(expected, rel=1e-5)
    rb.close()
