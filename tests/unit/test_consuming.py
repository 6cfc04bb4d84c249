"""Consumption through the handle: TorchRL's recorded answers, held records, order, queues."""

from __future__ import annotations

import json
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import shmrb
from helpers.procs import until

ORACLE = Path(__file__).parents[1] / "oracle" / "consumption.json"
RECORDED = json.loads(ORACLE.read_text())
assert RECORDED["versions"]["torchrl"] == "0.14.1"
SCRIPTS = {case["name"]: case for case in RECORDED["cases"] if "steps" in case}
REFUSED = {case["name"]: case for case in RECORDED["cases"][-1]["arguments"]}
NUMBERS = {"x": "int64"}
STEPS = {"x": "int64", "next": {"done": ("bool", (1,))}}

New = Callable[..., Any]


def numbers(*values: int) -> dict[str, Any]:
    return {"x": np.array(values, np.int64)}


def steps(*values: int) -> dict[str, Any]:
    done = np.zeros((len(values), 1), np.bool_)
    return {**numbers(*values), "next": {"done": done}}


def drawn(batch: Any) -> list[int]:
    values: list[int] = np.asarray(batch["x"]).tolist()
    return values


def another(rb: Any) -> Any:
    """Another handle on the same buffer."""
    return pickle.loads(pickle.dumps(rb))


# TorchRL's answers


class Replay:
    """Does a script, watching in which order slots are consumed."""

    def __init__(self, rb: Any, limit: int) -> None:
        self.rb = rb
        self.limit = limit
        self.draws: Counter[int] = Counter()
        self.waiting: list[int] = []

    def watch(self, batch: Any) -> int:
        slots = batch["index"].tolist()
        for slot in slots:
            self.draws[slot] += 1
            if self.draws[slot] == self.limit:
                self.waiting.append(slot)
        assert len(set(slots)) == len(slots)
        return len(slots)

    def do(self, step: Any) -> dict[str, Any]:
        rb = self.rb
        if isinstance(step, list):
            index = rb.extend(TensorDict({"x": torch.tensor(step)}, [len(step)])).tolist()
            filled = 0
            while self.waiting and filled < len(index) and index[filled] == self.waiting[0]:
                del self.waiting[0]
                filled += 1
            self.draws -= Counter({slot: self.draws[slot] for slot in index})
            return {"filled": filled, "rest": index[filled:]}
        if step == "empty":
            rb.empty()
            self.draws.clear()
            self.waiting.clear()
            return {}
        if step == "iterate":
            return {"batches": [self.watch(batch) for batch in rb], "ran_out": rb.sampler.ran_out}
        count = self.watch(rb.sample(step))
        return {"drawn": count, "distinct": count, "ran_out": rb.sampler.ran_out}


@pytest.mark.filterwarnings("ignore:batch_size 3 was given")
@pytest.mark.parametrize("name", SCRIPTS)
def test_torchrls_scripts_give_what_it_gave(name: str, new: New) -> None:
    case = SCRIPTS[name]
    rb = new(
        schema=NUMBERS,
        capacity=case["capacity"],
        format="torch",
        batch_size=3,
        consume_after_n_samples=case["limit"],
    )
    replay = Replay(rb, case["limit"])
    for step in case["steps"]:
        recorded = dict(step)
        if "error" in recorded:
            with pytest.raises(RuntimeError, match=r"Cannot sample from an empty storage\."):
                replay.do(recorded["do"])
            found: dict[str, Any] = {}
        else:
            found = replay.do(recorded["do"])
        found |= {
            "len": len(rb),
            "size": rb.stats()["size"],
            "write_count": rb.write_count,
            # Which slots were consumed first is chance.
            "generations": sum(rb.generations_of(torch.arange(case["capacity"])).tolist()),
        }
        recorded["generations"] = sum(recorded["generations"])
        assert found == {key: recorded[key] for key in found}
        assert len(drawn(rb[:])) == len(recorded["shown"])


@pytest.mark.parametrize("name", REFUSED)
def test_what_torchrl_refuses_is_refused(name: str, new: New) -> None:
    options: dict[str, Any] = {"batch_size": 3}
    for part in name.split(", "):
        key, _, value = part.partition("=")
        options[key] = {
            "prioritized": shmrb.PrioritizedSampler(alpha=1.0, beta=1.0),
            "without replacement": shmrb.SamplerWithoutReplacement(),
        }.get(value) or json.loads(value.lower().replace("none", "null"))
    recorded = REFUSED[name]
    kind = {"ValueError": ValueError, "TypeError": TypeError}[recorded["type"]]
    with pytest.raises(kind) as raised:
        new(schema=NUMBERS, capacity=8, **options)
    if "sampler" not in name:  # ours lists what it knows more
        assert str(raised.value) == recorded["text"]


# Held records


def test_what_is_held_is_gone_when_it_is_acknowledged(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=8, batch_size=4, consume_after_n_samples=1)
    rb.extend(numbers(*range(6)))
    batch = rb.sample(hold=True)
    assert len(rb) == 2
    assert rb.ack(batch).tolist() == [True] * 4
    assert rb.ack(batch).tolist() == [False] * 4
    assert sorted(drawn(batch) + drawn(rb.sample())) == list(range(6))
    assert len(rb) == 0


def test_a_part_of_a_batch_can_be_acknowledged(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=8, format="torch", batch_size=4, consume_after_n_samples=1)
    rb.extend(numbers(*range(4)))
    batch = rb.sample(hold=True)
    assert rb.ack(batch[1:3]).tolist() == [True, True]
    assert rb.ack(batch).tolist() == [True, False, False, True]


def test_a_held_record_has_draws_left(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=4, batch_size=4, consume_after_n_samples=2)
    rb.extend(numbers(7))
    for left in (1, 0):
        batch = rb.sample(hold=True)
        assert drawn(batch) == [7]
        assert len(rb) == 0
        rb.ack(batch)
        assert len(rb) == left


def test_who_leaves_gives_back_what_it_holds(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=8, batch_size=3, consume_after_n_samples=1)
    rb.extend(numbers(*range(5)))
    other = another(rb)
    held = other.sample(hold=True)
    assert len(rb) == 2
    other.close()
    assert sorted(value for batch in rb for value in drawn(batch)) == list(range(5))
    assert rb.ack(held).tolist() == [False] * 3


def test_only_the_taker_can_acknowledge(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=8, batch_size=8, consume_after_n_samples=1)
    rb.extend(numbers(1, 2))
    with another(rb) as other:
        batch = rb.sample(hold=True)
        assert other.ack(batch).tolist() == [False, False]
    assert rb.ack(batch).tolist() == [True, True]


def test_the_ring_takes_held_records_too(new: New) -> None:
    """Without a limiter a full ring overwrites what somebody holds."""
    rb = new(schema=NUMBERS, capacity=4, batch_size=4, consume_after_n_samples=1)
    rb.extend(numbers(0, 1, 2, 3))
    batch = rb.sample(hold=True)
    rb.extend(numbers(4, 5))
    assert len(rb) == 2
    assert sorted(zip(drawn(batch), rb.ack(batch).tolist(), strict=True)) == [
        (0, False),
        (1, False),
        (2, True),
        (3, True),
    ]
    rb.extend(numbers(6, 7))
    assert sorted(drawn(rb.sample())) == [4, 5, 6, 7]


def test_a_batch_without_stamps_cannot_be_acknowledged(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=4, batch_size=4, consume_after_n_samples=1)
    rb.extend(numbers(1))
    batch = rb.sample(hold=True)
    del batch["index_generation"]
    with pytest.raises(shmrb.RecordError, match="'index_generation'"):
        rb.ack(batch)


def test_where_nothing_is_consumed_nothing_is_held(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=4, batch_size=4)
    rb.extend(numbers(1))
    with pytest.raises(shmrb.SpecError, match="consume_after_n_samples=1"):
        rb.sample(hold=True)
    with pytest.raises(shmrb.SpecError, match="consume_after_n_samples=1"):
        rb.ack(rb.sample())


def test_a_failed_draw_takes_nothing(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    rb = new(
        schema=NUMBERS, capacity=8, batch_size=4, consume_after_n_samples=1, limiter=shmrb.Queue(8)
    )
    rb.extend(numbers(*range(4)))

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shmrb.consuming.read_batch", fail)
        with pytest.raises(KeyboardInterrupt):
            rb.sample()
    assert len(rb) == 4
    assert rb.stats()["limiter"].samples == 0
    assert sorted(drawn(rb.sample(timeout=0))) == [0, 1, 2, 3]


def test_a_device_is_for_tensors(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=4, batch_size=2)
    rb.extend(numbers(1, 2))
    with pytest.raises(shmrb.SpecError, match="format='torch'"):
        rb.sample(device="cpu")
    with pytest.raises(shmrb.SpecError, match="pin_memory"):
        rb.sample(pin_memory=True)


def test_a_batch_goes_to_its_device(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=4, format="torch", batch_size=2)
    rb.extend(numbers(1, 2))
    batch, info = rb.sample(return_info=True, device="cpu")
    assert batch.device == torch.device("cpu")
    assert info["index"].device == torch.device("cpu")
    with pytest.raises(shmrb.SpecError, match="device='nowhere'"):
        rb.sample(device="nowhere")


# Order


@pytest.mark.filterwarnings("ignore:batch_size 3 was given")
@pytest.mark.parametrize("consumes", [True, False])
@pytest.mark.parametrize(
    ("sampler", "order"), [(shmrb.FifoSampler(), 1), (shmrb.LifoSampler(), -1)]
)
def test_a_draw_begins_at_its_end(new: New, sampler: Any, order: int, consumes: bool) -> None:
    count = {"consume_after_n_samples": 1} if consumes else {}
    rb = new(schema=NUMBERS, capacity=8, batch_size=3, sampler=sampler, **count)
    for value in range(11):  # the ring has wrapped
        rb.extend(numbers(value))
    left = list(range(3, 11))[::order]
    assert drawn(rb.sample()) == left[:3]
    if consumes:
        assert drawn(rb.sample(5)) == left[3:]
        rb.extend(numbers(20, 21, 22))
        assert drawn(rb.sample(9)) == [20, 21, 22][::order]
    else:
        assert drawn(rb.sample(99)) == left
        assert drawn(rb.sample()) == left[:3]


def test_rows_that_fill_slots_come_before_those_with_tickets(new: New) -> None:
    rb = new(
        schema=NUMBERS,
        capacity=16,
        sampler=shmrb.FifoSampler(),
        consume_after_n_samples=1,
    )
    rb.extend(numbers(*range(4)))
    assert drawn(rb.sample(3)) == [0, 1, 2]
    assert rb.extend(numbers(*range(10, 17))).tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert drawn(rb.sample(16)) == [3, *range(10, 17)]


def test_lanes_have_no_common_order(new: New) -> None:
    storage = shmrb.SharedStorage(8, lanes=2)
    rb = new(schema=NUMBERS, storage=storage, sampler=shmrb.FifoSampler())
    with rb.lane(2) as lanes:
        lanes.extend({"x": np.arange(6).reshape(3, 2)})
    assert drawn(rb.sample(4)) == [0, 1, 2, 3]
    rb.set_sampler(shmrb.LifoSampler())
    assert drawn(rb.sample(4)) == [4, 5, 2, 3]


@pytest.mark.parametrize("sampler", [shmrb.FifoSampler(), shmrb.LifoSampler()])
def test_an_empty_end_has_no_record(new: New, sampler: Any) -> None:
    rb = new(schema=NUMBERS, capacity=8, batch_size=3, sampler=sampler)
    with pytest.raises(shmrb.EmptyBufferError, match="Cannot sample from an empty storage"):
        rb.sample()
    rb.extend(numbers(1))
    rb.empty()
    with pytest.raises(shmrb.EmptyBufferError, match="Cannot sample from an empty storage"):
        rb.sample()


def test_a_pass_over_the_oldest_is_one_without_end(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=8, batch_size=2, sampler=shmrb.FifoSampler())
    rb.extend(numbers(1, 2, 3))
    assert [drawn(batch) for batch, _ in zip(rb, range(3), strict=False)] == [[1, 2]] * 3


# Windows


def test_anchors_of_sequences_are_consumed(new: New) -> None:
    unit = shmrb.Sequence(length=3)
    options = {"sample_unit": unit, "sampler": shmrb.FifoSampler(), "consume_after_n_samples": 1}
    rb = new(schema=STEPS, capacity=16, batch_size=4, **options)
    rb.extend(steps(*range(6)))
    batch = rb.sample(hold=True)
    assert drawn(batch) == [0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5]
    assert len(rb) == 2
    assert rb.ack(batch).all()
    assert drawn(rb.sample()) == [4, 5, 5, 5, 5, 5]
    with pytest.raises(shmrb.EmptyBufferError):
        rb.sample()
    # The order of records counts: the ring goes on.
    assert rb.extend(steps(6, 7)).tolist() == [6, 7]


def test_what_came_next_stays_where_it_came(new: New) -> None:
    """Records whose successor says what came next are never written out of turn."""
    schema = {
        "observation": "int64",
        "action": "int64",
        "reward": "float32",
        "done": ("bool", (1,)),
    }
    rb = new(
        schema=schema,
        capacity=8,
        batch_size=2,
        sampler=shmrb.FifoSampler(),
        consume_after_n_samples=1,
    )

    def write(*values: int) -> list[int]:
        array = np.array(values, np.int64)
        done = np.zeros((len(values), 1), np.bool_)
        reward = array.astype(np.float32)
        row = {"observation": array, "action": array, "reward": reward, "done": done}
        slots: list[int] = rb.extend(row).tolist()
        return slots

    assert write(0, 1, 2, 3) == [0, 1, 2, 3]
    batch = rb.sample()
    assert batch["observation"].tolist() == [0, 1]
    assert batch["next"]["observation"].tolist() == [1, 2]
    assert write(4, 5) == [4, 5]


# Queues


def test_a_queue_gives_everything_once_and_holds_writers_up(new: New) -> None:
    rb = new(
        schema=NUMBERS,
        capacity=8,
        batch_size=3,
        sampler=shmrb.FifoSampler(),
        limiter=shmrb.Queue(8),
        consume_after_n_samples=1,
    )
    with another(rb) as writer:
        thread = threading.Thread(
            target=lambda: [writer.extend(numbers(value), timeout=60) for value in range(100)]
        )
        thread.start()
        found: list[int] = []
        while len(found) < 100:
            found += drawn(rb.sample(timeout=60))
            assert len(rb) <= 8
        thread.join()
    assert found == list(range(100))
    with pytest.raises(shmrb.LimiterTimeoutError):
        rb.sample(timeout=0)
    for value in range(8):
        rb.extend(numbers(value), timeout=0)
    with pytest.raises(shmrb.LimiterTimeoutError, match="at most max_diff"):
        rb.extend(numbers(9), timeout=0)


def test_held_records_are_charged_once(new: New) -> None:
    rb = new(
        schema=NUMBERS, capacity=4, batch_size=4, limiter=shmrb.Queue(4), consume_after_n_samples=1
    )
    for _ in range(3):
        rb.extend(numbers(1, 2), timeout=0)
        rb.extend(numbers(3, 4), timeout=0)
        other = another(rb)
        assert len(drawn(other.sample(hold=True, timeout=0))) == 4
        with pytest.raises(shmrb.LimiterTimeoutError):
            rb.sample(timeout=0)
        with pytest.raises(shmrb.LimiterTimeoutError, match="held 4"):
            rb.extend(numbers(5), timeout=0)
        other.close()
        assert sorted(drawn(rb.sample(timeout=0))) == [1, 2, 3, 4]


def test_a_waiting_consumer_gets_what_another_gives_back(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=8, batch_size=4, consume_after_n_samples=1)
    other = another(rb)
    rb.extend(numbers(1, 2))
    other.sample(hold=True)
    found: list[list[int]] = []
    thread = threading.Thread(target=lambda: found.append(drawn(rb.sample(timeout=60))))
    thread.start()
    until(lambda: rb.statistics().blocked)
    other.close()
    thread.join()
    assert sorted(found[0]) == [1, 2]


# Who may not write


def test_an_immutable_buffer_refuses_what_torchrl_refuses(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=8, writer=shmrb.ImmutableWriter())
    for write in (lambda: rb.extend(numbers(1)), lambda: rb.add({"x": 1}), rb.empty):
        with pytest.raises(RuntimeError, match=r"^This dataset doesn't allow writing\.$") as raised:
            write()
        assert isinstance(raised.value, shmrb.ReadOnlyError)
    assert rb.write_count == 0
    rb.set_("x", np.empty(0, np.int64))


# Bookkeeping


def test_freed_slots_are_used_once_and_get_new_generations(new: New) -> None:
    """No record is overwritten while a slot is free, and old handles are stale."""
    rb = new(schema=NUMBERS, capacity=8, consume_after_n_samples=1)
    rng = np.random.default_rng(8)
    there: set[int] = set()
    old: dict[tuple[int, int], int] = {}
    uid = drawn_in_all = 0
    for _ in range(1000):
        if rng.random() < 0.5 and there:
            batch = rb.sample(int(rng.integers(1, 9)))
            assert set(drawn(batch)) <= there
            there -= set(drawn(batch))
            handles = zip(batch["index"].tolist(), batch["index_generation"].tolist(), strict=True)
            old |= zip(handles, drawn(batch), strict=True)
            drawn_in_all += len(drawn(batch))
        else:
            count = int(rng.integers(1, 5))
            free = 8 - len(there)
            rb.extend(numbers(*range(uid, uid + count)))
            there |= set(range(uid, uid + count))
            uid += count
            gone = there - set(drawn(rb[:]))
            assert len(gone) == max(0, count - free)
            there -= gone
        assert len(rb) == len(there)
    assert len(old) == drawn_in_all, "every record has a handle of its own"
    # Nothing took the place of these yet; all other handles are stale.
    index, stamps = (np.array(part) for part in zip(*old, strict=True))
    consumed = rb.generations_of(index) == stamps
    assert rb["x"][index[consumed]].tolist() == np.array(list(old.values()))[consumed].tolist()
    result = rb.update_if_present(
        index=index, generation=stamps, patch={"x": np.full(len(old), -1)}
    )
    assert (result.updated == consumed).all()
    assert result.updated_count <= 8 < result.stale_count
    assert set(drawn(rb.sample(8))) == there if there else len(rb) == 0
