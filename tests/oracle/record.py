"""Records what TorchRL does, so that tests can compare without installing it.

Run it in an environment with the versions that the design names (torchrl 0.14.1, torch 2.14.1):

    python tests/oracle/record.py

It writes one JSON file a topic beside itself; each holds the versions it was recorded with.
"""

from __future__ import annotations

import json
import os
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["RL_LOGGING_LEVEL"] = "ERROR"  # read when torchrl is imported

import consuming
import numpy as np
import schedules
import scripts
import torch
import trajectories
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    RandomSampler,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers.samplers import PrioritizedSampler
from torchrl.data.replay_buffers.writers import TensorDictRoundRobinWriter

HERE = Path(__file__).parent
PACKAGES = ("torchrl", "torch", "tensordict", "numpy")


def records(numbers: list[int], *, versioned: bool = False) -> TensorDict:
    x = torch.tensor(numbers, dtype=torch.int64)
    w = torch.stack([x.float(), x.float() + 0.5], -1)
    fields: dict[str, Any] = {"x": x, "n": {"w": w}}
    if versioned:
        fields["ver"] = torch.zeros(len(numbers), dtype=torch.int64)
    return TensorDict(fields, [len(numbers)])


def index_of(at: list[Any]) -> Any:
    kind, value = at
    if kind == "slice":
        return slice(*value)
    if kind == "key":
        return value if isinstance(value, str) else tuple(value)
    makers: dict[str, Any] = {
        "int": int,
        "list": list,
        "tuple": lambda parts: tuple(torch.tensor(part) for part in parts),
        "tensor": lambda slots: torch.tensor(slots, dtype=torch.int64),
        "int32": lambda slots: torch.tensor(slots, dtype=torch.int32),
        "numpy": lambda slots: np.asarray(slots, dtype=np.int64),
        "mask": lambda flags: torch.tensor(flags),
    }
    return makers[kind](value)


def plain(value: Any) -> Any:
    """A result as JSON: tensors with their shape, batches by their field x."""
    if isinstance(value, TensorDict):
        return {"fields": sorted(map(str, value.keys(True, True))), **plain_leaf(value)}
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
    return value


def plain_leaf(batch: TensorDict) -> dict[str, Any]:
    leaf = batch.get("x") if "x" in batch.keys() else batch.get("w")  # noqa: SIM118
    return {"batch_size": list(batch.batch_size), "values": leaf.tolist()}


class Script:
    """One buffer and the calls made on it."""

    def __init__(
        self,
        capacity: int,
        sampler: Any = None,
        batch_size: int | None = None,
        versioned: bool = False,
    ) -> None:
        self.versioned = versioned
        self.capacity = capacity
        self.rb = TensorDictReplayBuffer(
            storage=LazyTensorStorage(capacity),
            sampler=sampler or RandomSampler(),
            writer=TensorDictRoundRobinWriter(track_generations=True),
            batch_size=batch_size,
        )

    def run(self, steps: list[scripts.Step]) -> list[dict[str, Any]]:
        return [self._step(call, dict(arguments)) for call, arguments in steps]

    def _step(self, call: str, arguments: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"call": call, "arguments": arguments}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found["returned"] = plain(getattr(self, call)(**arguments))
            except Exception as error:
                found["error"] = [type(error).__name__, str(error)]
        found["warnings"] = [str(warning.message) for warning in caught]
        return found | self._look()

    def _look(self) -> dict[str, Any]:
        rb = self.rb
        state = {
            "len": len(rb),
            "write_count": rb.write_count,
            "generations": rb.writer.generations_of(torch.arange(self.capacity)).tolist(),
            "x": rb[:]["x"].tolist() if len(rb) else [],
            "w": rb[:]["n", "w"].tolist() if len(rb) else [],
        }
        if self.versioned:
            state["ver"] = rb[:]["ver"].tolist() if len(rb) else []
        return state

    # The calls

    def extend(self, numbers: list[int]) -> Any:
        return self.rb.extend(records(numbers, versioned=self.versioned))

    def extend_list(self, numbers: list[int]) -> Any:
        # A TensorDictReplayBuffer takes no lists; the base class stacks them.
        return self.rb.extend(torch.stack([records([u])[0] for u in numbers]))

    def add(self, number: int) -> Any:
        return self.rb.add(records([number])[0])

    def empty(self, **arguments: Any) -> Any:
        return self.rb.empty(**arguments)

    def generations_of(self, at: list[Any]) -> Any:
        return self.rb.writer.generations_of(index_of(at))

    def setitem(self, at: list[Any], numbers: list[int]) -> None:
        new = records(numbers)
        # Whole records in TorchRL hold their slot too.
        new["index"] = torch.arange(self.capacity)[index_of(at)].reshape(-1)
        self.rb[index_of(at)] = new[0] if at[0] == "int" else new

    def getitem(self, at: list[Any]) -> Any:
        return self.rb[index_of(at)]

    def set_at_(self, key: Any, values: Any, at: list[Any]) -> None:
        self.rb.set_at_(index_of(["key", key]), torch.tensor(values), index_of(at))

    def set_(self, key: Any, values: Any) -> None:
        self.rb.set_(index_of(["key", key]), torch.tensor(values))

    def update_(self, fields: dict[str, Any], keys_to_update: Any = None) -> None:
        size = [len(fields["x"])]
        self.rb.update_(TensorDict(fields, size), keys_to_update=keys_to_update)

    def write_all(self, numbers: list[int], end: int | None = None) -> None:
        new = records(numbers)
        new["index"] = torch.arange(len(numbers))
        self.rb.write_all(new, end=end)

    def read_all_in_order(self, end: int | None = None) -> Any:
        return self.rb.read_all_in_order(end)

    def sample(self, batch_size: int | None = None) -> Any:
        batch = self.rb.sample(batch_size)
        order = batch["index"].tolist() if self._in_order else None
        return self._batch(len(batch), order)

    def iterate(self) -> Any:
        return [self._batch(len(batch), None) for batch in self.rb]

    def next(self) -> Any:
        batch = self.rb.next()
        return None if batch is None else self._batch(len(batch), None)

    @property
    def _in_order(self) -> bool:
        return not getattr(self.rb.sampler, "shuffle", True)

    def _batch(self, size: int, order: list[int] | None) -> dict[str, Any]:
        ran_out = bool(self.rb.sampler.ran_out)
        return {"size": size, "ran_out": ran_out} | ({"index": order} if order else {})

    def update_if_present(self, **arguments: Any) -> Any:
        arguments["index"] = torch.tensor(arguments["index"], dtype=torch.int64)
        arguments["generation"] = torch.tensor(arguments["generation"], dtype=torch.int64)
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


def _patch(values: dict[str, Any]) -> dict[Any, Any]:
    patch: dict[Any, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            patch |= {(key, below): torch.tensor(rows) for below, rows in value.items()}
        else:
            patch[key] = torch.tensor(value) if value else torch.tensor(value, dtype=torch.int64)
    return patch


def ring() -> list[Any]:
    return [
        {"name": name, "capacity": capacity, "steps": Script(capacity).run(steps)}
        for name, capacity, steps in (*scripts.RING, *scripts.SETTERS)
    ]


def batches() -> list[Any]:
    sizes = [
        {"name": name, "batch_size": size, "steps": Script(8, batch_size=size).run(steps)}
        for name, size, steps in scripts.BATCH_SIZES
    ]
    passes = [
        {
            "name": name,
            "batch_size": size,
            "drop_last": drop_last,
            "shuffle": shuffle,
            "steps": Script(16, SamplerWithoutReplacement(drop_last, shuffle), size).run(steps),
        }
        for name, drop_last, shuffle, size, steps in scripts.PASSES
    ]
    return sizes + passes


def updates() -> list[Any]:
    found = []
    for name, steps in scripts.UPDATES:
        script = Script(8, versioned=True)
        script.extend(list(range(12)))
        found.append({"name": name, "capacity": 8, "steps": script.run(steps)})
    return found


PRIORITY_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("extend", {"numbers": [0, 1, 2, 3]}),
    ("update", {"index": [0, 1, 2, 3], "priority": [1.0, 4.0, 9.0, 16.0]}),
    ("extend", {"numbers": [4, 5]}),
    ("update", {"index": [2, 2, 2], "priority": [1.0, 2.0, 3.0]}),
    ("update", {"index": [5], "priority": [0.0]}),
    ("extend", {"numbers": [6, 7, 8]}),
    ("empty", {}),
    ("extend", {"numbers": [9]}),
)


def priorities() -> list[Any]:
    found = []
    for alpha, beta in ((0.6, 0.4), (0.5, 1.0), (0.5, 0.5), (1.0, 1.0), (0.0, 0.4)):
        sampler = PrioritizedSampler(8, alpha=alpha, beta=beta)
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(8), sampler=sampler)
        steps = []
        for call, arguments in PRIORITY_CALLS:
            if call == "extend":
                rb.extend(records(arguments["numbers"]))
            elif call == "empty":
                rb.empty()
            else:
                rb.update_priority(*(torch.tensor(value) for value in arguments.values()))
            steps.append({"call": call, "arguments": arguments} | _priorities(rb))
        found.append({"alpha": alpha, "beta": beta, "eps": 1e-8, "steps": steps})
    return found


def _priorities(rb: TensorDictReplayBuffer) -> dict[str, Any]:
    """Masses of the records, and the importance weights of those that a large batch holds."""
    masses = [float(rb.sampler._sum_tree[slot]) for slot in range(len(rb))]
    weights: dict[int, float] = {}
    if masses:
        batch = rb.sample(4096)
        weights = dict(zip(batch["index"].tolist(), batch["priority_weight"].tolist(), strict=True))
    return {
        "masses": masses,
        "weights": [weights.get(slot) for slot in range(len(rb))],
        "default_priority": float(rb.sampler.default_priority),
    }


TOPICS = (
    ring,
    batches,
    updates,
    priorities,
    consuming.consumption,
    schedules.schedules,
    trajectories.sequences,
    trajectories.boundaries,
    trajectories.slices,
)


def main() -> None:
    torch.manual_seed(0)
    versions = {name: version(name) for name in PACKAGES}
    for topic in TOPICS:
        cases = topic()
        lines = ",\n".join(json.dumps(case) for case in cases)
        text = f'{{"versions": {json.dumps(versions)},\n"cases": [\n{lines}\n]}}\n'
        (HERE / f"{topic.__name__}.json").write_text(text)
        print(f"{topic.__name__}: {len(cases)} cases, {len(text)} bytes")


if __name__ == "__main__":
    main()
