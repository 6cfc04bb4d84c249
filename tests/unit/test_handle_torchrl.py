"""The handle does what TorchRL does: its recorded scripts (tests/oracle) are replayed and compared.

Where TorchRL's behaviour is a fault, or depends on a schema that may change, `DIFFERENCES` says
what is right, and why.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import shmrb

ORACLE = Path(__file__).parents[1] / "oracle"
SCHEMA = {"x": "int64", "n": {"w": ("float32", 2)}}


def _cases(topic: str) -> list[dict[str, Any]]:
    recorded = json.loads((ORACLE / f"{topic}.json").read_text())
    assert recorded["versions"]["torchrl"] == "0.14.1"
    assert recorded["versions"]["torch"] == "2.14.1"
    return list(recorded["cases"])


class Right(NamedTuple):
    """What is right instead of what TorchRL did; None: an error of this type instead."""

    why: str
    values: dict[str, Any]
    error: type[Exception] | None = None


_EMPTIED_AGAIN = (
    "A stamp tells records apart; a slot that holds none keeps the stamp that its last `empty` "
    "gave it, however often the buffer is emptied after that."
)
# By the name of the case and the number of the step.
DIFFERENCES: dict[tuple[str, int], Right] = {
    ("nothing to write", 1): Right(
        "TorchRL itself refuses an empty extend except behind its TensorDict writer.",
        {},
        shmrb.RecordError,
    ),
    ("emptied and filled again", 3): Right(
        _EMPTIED_AGAIN, {"generations": [3, 3, 3, 1], "x": [], "w": []}
    ),
    ("emptied twice", 2): Right(_EMPTIED_AGAIN, {"generations": [1, 1, 1, -1]}),
    ("emptied twice", 3): Right(_EMPTIED_AGAIN, {"generations": [2, 2, 2, -1]}),
    ("read by any index", 7): Right(
        "A slice ranges over the live slots, in either direction.",
        {"returned": {"batch_size": [4], "values": [3, 2, 5, 4]}},
    ),
}

# What TorchRL's calls raise, and what ours do: descriptions are refused by one family of errors.
ERRORS = {
    "RuntimeError": (RuntimeError, shmrb.SpecError),
    "ValueError": (ValueError,),
    "KeyError": (KeyError,),
    "IndexError": (IndexError,),
}
# Its words that ours begin with.
WORDS = (
    "Cannot sample from an empty storage.",
    "batch_size not specified. You can specify the batch_size when constructing the replay buffer",
    "Cannot iterate over the replay buffer. Batch_size was not specified during construction of",
    "The batch size (4) is greater than the storage capacity (2). This makes it impossible to",
)


def records(numbers: list[int]) -> TensorDict:
    x = torch.tensor(numbers, dtype=torch.int64)
    w = torch.stack([x.float(), x.float() + 0.5], -1)
    return TensorDict({"x": x, "n": {"w": w}}, [len(numbers)])


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
        "mask": torch.tensor,
    }
    return makers[kind](value)


def plain(value: Any) -> Any:
    if isinstance(value, TensorDict):
        leaf = value["x"] if "x" in value.keys() else value["w"]  # noqa: SIM118
        return {"batch_size": list(value.batch_size), "values": leaf.tolist()}
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
    return value


class Replay:
    """The calls of `oracle/record.py`, made on one of our buffers."""

    def __init__(self, capacity: int, **options: Any) -> None:
        self.capacity = capacity
        self.rb = shmrb.ReplayBuffer(storage=shmrb.SharedStorage(capacity), **options)

    def look(self) -> dict[str, Any]:
        rb = self.rb
        stored = rb[:] if len(rb) else None
        return {
            "len": len(rb),
            "write_count": rb.write_count,
            "generations": rb.writer.generations_of(torch.arange(self.capacity)).tolist(),
            "x": [] if stored is None else stored["x"].tolist(),
            "w": [] if stored is None else stored["n", "w"].tolist(),
        }

    def extend(self, numbers: list[int]) -> Any:
        return self.rb.extend(records(numbers))

    def extend_list(self, numbers: list[int]) -> Any:
        return self.rb.extend([records([u])[0] for u in numbers])

    def add(self, number: int) -> Any:
        return self.rb.add(records([number])[0])

    def empty(self, **arguments: Any) -> Any:
        return self.rb.empty(**arguments)

    def generations_of(self, at: list[Any]) -> Any:
        return self.rb.generations_of(index_of(at))

    def setitem(self, at: list[Any], numbers: list[int]) -> None:
        new = records(numbers)
        self.rb[index_of(at)] = new[0] if at[0] == "int" else new

    def getitem(self, at: list[Any]) -> Any:
        return self.rb[index_of(at)]

    def set_at_(self, key: Any, values: Any, at: list[Any]) -> None:
        done = self.rb.set_at_(index_of(["key", key]), torch.tensor(values), index_of(at))
        assert done is self.rb

    def set_(self, key: Any, values: Any) -> None:
        assert self.rb.set_(index_of(["key", key]), torch.tensor(values)) is self.rb

    def update_(self, fields: dict[str, Any], keys_to_update: Any = None) -> None:
        given = TensorDict(fields, [len(fields["x"])])
        assert self.rb.update_(given, keys_to_update=keys_to_update) is self.rb

    def write_all(self, numbers: list[int], end: int | None = None) -> None:
        self.rb.write_all(records(numbers), end=end)

    def read_all_in_order(self, end: int | None = None) -> Any:
        return self.rb.read_all_in_order(end)

    def sample(self, batch_size: int | None = None) -> Any:
        return self._batch(self.rb.sample(batch_size))

    def iterate(self) -> Any:
        return [self._batch(batch) for batch in self.rb]

    def next(self) -> Any:
        batch = self.rb.next()
        return None if batch is None else self._batch(batch)

    def _batch(self, batch: TensorDict) -> dict[str, Any]:
        assert torch.equal(batch["x"], self.rb["x"][batch["index"]])
        found = {"size": len(batch), "ran_out": self.rb.sampler.ran_out}
        return found | {"index": batch["index"].tolist()}


def _same_return(found: Any, expected: Any) -> bool:
    if isinstance(expected, list) and isinstance(found, list):
        same = (_same_return(*pair) for pair in zip(found, expected, strict=True))
        return all(same)
    if isinstance(expected, dict) and isinstance(found, dict):
        # Their records hold a field `index`; and a shuffled order is not recorded.
        return all(found[key] == value for key, value in expected.items() if key != "fields")
    return bool(found == expected)


def _replay(case: dict[str, Any], replay: Replay) -> Iterator[str]:
    """Makes the recorded calls; yields what came out otherwise."""
    for number, step in enumerate(case["steps"]):
        where = f"step {number}, {step['call']}{step['arguments']}"
        right = DIFFERENCES.get((case["name"], number))
        expected = step | ({} if right is None else right.values)
        error, found = None, None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = plain(getattr(replay, step["call"])(**step["arguments"]))
            except Exception as raised:
                error = raised
        if right is not None and right.error is not None:
            if not isinstance(error, right.error):
                yield f"{where}: expected {right.error.__name__}, got {error!r}"
        elif "error" in expected and (right is None or "returned" not in right.values):
            kind, words = expected["error"]
            if not isinstance(error, ERRORS[kind]):
                yield f"{where}: expected {kind}, got {error!r}"
            for begin in WORDS:
                if words.startswith(begin) and not str(error).startswith(begin):
                    yield f"{where}: expected the words {begin!r}, got {error}"
        elif error is not None:
            yield f"{where}: expected {expected['returned']}, got {error!r}"
        elif not _same_return(found, expected["returned"]):
            yield f"{where}: expected {expected['returned']}, got {found}"
        if bool(step["warnings"]) != any("batch_size" in str(w.message) for w in caught):
            yield f"{where}: expected warnings {step['warnings']}, got {caught}"
        for key, value in replay.look().items():
            if value != expected[key]:
                yield f"{where}: {key}: expected {expected[key]}, got {value}"


@pytest.mark.parametrize("case", _cases("ring"), ids=lambda case: case["name"])
def test_ring_setters_and_indexing(case: dict[str, Any]) -> None:
    """Generations, slots, counts, setters and reads of TorchRL."""
    replay = Replay(case["capacity"], schema=SCHEMA)
    assert list(_replay(case, replay)) == []
    replay.rb.close()


@pytest.mark.parametrize("case", _cases("ring")[:17], ids=lambda case: case["name"])
def test_ring_whose_first_write_decides_the_schema(case: dict[str, Any]) -> None:
    replay = Replay(case["capacity"])
    assert list(_replay(case, replay)) == []
    replay.rb.close()


@pytest.mark.parametrize("case", _cases("batches"), ids=lambda case: case["name"])
def test_batch_sizes_and_passes(case: dict[str, Any]) -> None:
    options: dict[str, Any] = {"batch_size": case["batch_size"]}
    if "shuffle" in case:
        options["sampler"] = shmrb.SamplerWithoutReplacement(
            drop_last=case["drop_last"], shuffle=case["shuffle"]
        )
    replay = Replay(16 if "shuffle" in case else 8, schema=SCHEMA, **options)
    assert list(_replay(case, replay)) == []
    replay.rb.close()


def test_every_difference_is_still_met() -> None:
    """The list does not outlive its reasons."""
    names = {case["name"]: case for topic in ("ring", "batches") for case in _cases(topic)}
    for (name, number), right in DIFFERENCES.items():
        step = names[name]["steps"][number]
        differs = any(step.get(key) != value for key, value in right.values.items())
        assert differs or right.error is not None, f"{name}, step {number}: {right.why}"
