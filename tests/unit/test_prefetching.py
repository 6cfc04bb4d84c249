"""Batches drawn ahead: nothing is lost, nothing stale is handed out, one thread that ends."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import shmrb
from helpers.procs import until

NUMBERS = {"x": "int64"}
STEPS = {"x": "int64", "next": {"done": ("bool", (1,))}}

New = Callable[..., Any]


def numbers(*values: int) -> dict[str, Any]:
    return {"x": np.array(values, np.int64)}


def steps(*values: int) -> dict[str, Any]:
    return {**numbers(*values), "next": {"done": np.zeros((len(values), 1), np.bool_)}}


def drawn(batch: Any) -> list[int]:
    values: list[int] = np.asarray(batch["x"]).tolist()
    return values


def waiting(rb: Any) -> int:
    size: int = rb.stats()["prefetch_queue_size"]
    return size


def filled(rb: Any, count: int) -> None:
    until(lambda: waiting(rb) == count)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("shmrb batches")]


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_pass_loses_no_batch(new: New, ahead: int, drop_last: bool) -> None:
    sampler = shmrb.SamplerWithoutReplacement(drop_last=drop_last)
    rb = new(schema=NUMBERS, capacity=16, batch_size=3, sampler=sampler, prefetch=ahead)
    rb.extend(numbers(*range(10)))
    for _ in range(4):
        batches = [drawn(batch) for batch in rb]
        assert [len(batch) for batch in batches] == ([3, 3, 3] if drop_last else [3, 3, 3, 1])
        union = sorted(value for batch in batches for value in batch)
        assert len(set(union)) == len(union)
        if not drop_last:
            assert union == list(range(10))
    assert not drop_last or rb.sampler.ran_out


def test_next_ends_a_pass_as_without(new: New) -> None:
    sampler = shmrb.SamplerWithoutReplacement()
    rb = new(schema=NUMBERS, capacity=16, batch_size=4, sampler=sampler, prefetch=2)
    rb.extend(numbers(*range(10)))
    for _ in range(3):
        batches = []
        while (batch := rb.next()) is not None:
            batches.append(drawn(batch))
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert sorted(value for batch in batches for value in batch) == list(range(10))


def test_one_batch_ahead_is_one(new: New) -> None:
    rb = new(schema=NUMBERS, batch_size=3, prefetch=1)
    rb.extend(numbers(*range(8)))
    assert waiting(rb) == 0
    rb.sample()
    filled(rb, 1)
    rb.sample()
    filled(rb, 1)


def test_what_is_stale_is_drawn_again(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=8, batch_size=6, prefetch=2)
    rb.extend(numbers(*range(8)))
    for start in range(8, 400, 4):
        rb.sample()
        filled(rb, 2)
        rb.extend(numbers(*range(start, start + 4)))
        for batch in (rb.sample(), rb.sample()):
            assert len(drawn(batch)) == 6
            assert min(drawn(batch)) >= start - 4
            assert (rb.generations_of(batch["index"]) == batch["index_generation"]).all()
            assert drawn(batch) == drawn(rb[batch["index"]])


def test_what_is_drawn_again_is_drawn_alike(new: New) -> None:
    rb = new(schema=NUMBERS, capacity=4, batch_size=64, prefetch=1, seed=3)
    rb.extend(numbers(0, 1, 2, 3))
    found: Counter[int] = Counter()
    for start in range(4, 804, 4):
        rb.sample()
        filled(rb, 1)
        rb.extend(numbers(start, start + 1))
        rb.extend(numbers(start + 2, start + 3))
        found.update(value % 4 for value in drawn(rb.sample()))
    # 12,800 draws from four: five sigma are 245.
    assert all(abs(count - 3200) < 245 for count in found.values())


def test_weights_come_with_what_is_drawn_again(new: New) -> None:
    sampler = shmrb.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
    rb = new(schema=NUMBERS, capacity=4, batch_size=32, sampler=sampler, prefetch=1)
    rb.extend(numbers(0, 1, 2, 3), priority=np.array([1.0, 2.0, 4.0, 8.0]))
    rb.sample()
    filled(rb, 1)
    rb.extend(numbers(4, 5), priority=np.array([16.0, 1.0]))
    batch = rb.sample()
    priorities = {2: 4.0, 3: 8.0, 4: 16.0, 5: 1.0}
    stored = {2: 4.0, 3: 8.0}
    for value, weight in zip(drawn(batch), batch["priority_weight"].tolist(), strict=True):
        # Least mass 1 before and after.
        assert weight == pytest.approx(1.0 / (stored.get(value) or priorities[value]))


def test_a_pass_reads_what_has_taken_the_place(new: New) -> None:
    sampler = shmrb.SamplerWithoutReplacement(shuffle=False)
    rb = new(schema=NUMBERS, capacity=8, batch_size=4, sampler=sampler, prefetch=1)
    rb.extend(numbers(*range(8)))
    assert drawn(rb.sample()) == [0, 1, 2, 3]
    filled(rb, 1)
    rb.extend(numbers(8, 9, 10, 11))
    rb.extend(numbers(12, 13))
    assert drawn(rb.sample()) == [12, 13, 6, 7]
    assert rb.sampler.ran_out


@pytest.mark.parametrize(
    "unit", [shmrb.Sequence(length=3), shmrb.Sequence(length=2, burn_in=1, bootstrap=1)]
)
@pytest.mark.parametrize("by_mass", [False, True])
def test_windows_that_lost_a_record_are_drawn_again(new: New, unit: Any, by_mass: bool) -> None:
    options: dict[str, Any] = {"batch_size": 5, "sample_unit": unit, "prefetch": 1}
    if by_mass:
        options["sampler"] = shmrb.PrioritizedSampler(alpha=1.0, beta=1.0)
    rb = new(schema=STEPS, capacity=16, **options)
    rb.extend(steps(*range(8)))
    rb.extend(steps(*range(8, 16)))
    for start in range(16, 160, 4):
        rb.sample()
        filled(rb, 1)
        rb.extend(steps(*range(start, start + 4)))
        batch = rb.sample()
        assert len(drawn(batch)) == 5 * unit.window
        assert min(drawn(batch)) >= start - 12
        assert (rb.generations_of(batch["index"]) == batch["index_generation"]).all()
        assert batch["sequence_id"].tolist() == np.arange(5).repeat(unit.window).tolist()
        assert ("priority_weight" in batch) == by_mass
        for window in np.array(drawn(batch)).reshape(5, -1):
            assert set(np.diff(window)) <= {0, 1}


def test_windows_of_a_pass_that_lost_a_record_are_passed_over(new: New) -> None:
    rb = new(
        schema=STEPS,
        capacity=8,
        batch_size=4,
        sample_unit=shmrb.Sequence(length=2),
        sampler=shmrb.SamplerWithoutReplacement(shuffle=False),
        prefetch=1,
    )
    rb.extend(steps(*range(4)))
    rb.extend(steps(*range(4, 8)))
    assert drawn(rb.sample())[::2] == [0, 1, 2, 3]
    filled(rb, 1)
    rb.extend(steps(8, 9, 10, 11))
    rb.extend(steps(12, 13))
    assert drawn(rb.sample())[::2] == [6, 7]


@pytest.mark.parametrize(
    "sampler",
    [
        shmrb.SliceSampler(slice_len=3),
        shmrb.SliceSamplerWithoutReplacement(slice_len=3, strict_length=False),
    ],
)
def test_slices_that_lost_a_record_are_whole_again(new: New, sampler: Any) -> None:
    rb = new(schema=STEPS, capacity=16, batch_size=6, sampler=sampler, prefetch=1)

    def write(start: int) -> None:
        for first in (start, start + 4):
            rows = steps(*range(first, first + 4))
            rows["next"]["done"][-1] = True
            rb.extend(rows)

    write(0)
    write(8)
    for start in range(16, 80, 8):
        rb.sample()
        until(lambda: waiting(rb) == 1 or rb.sampler.ran_out)
        write(start)
        batch = rb.sample()
        assert min(drawn(batch)) >= start - 8
        assert (rb.generations_of(batch["index"]) == batch["index_generation"]).all()


def test_other_calls_draw_for_themselves(new: New) -> None:
    rb = new(schema=NUMBERS, format="torch", batch_size=3, prefetch=1)
    rb.extend({"x": torch.arange(8)})
    out = rb.sample()
    filled(rb, 1)
    assert rb.sample(out=out) is out
    with pytest.warns(UserWarning, match="batch_size"):
        assert len(rb.sample(5)) == 5
    assert waiting(rb) == 1


def test_an_emptied_buffer_has_nothing_ahead(new: New) -> None:
    rb = new(schema=NUMBERS, batch_size=3, prefetch=2)
    rb.extend(numbers(*range(8)))
    rb.sample()
    filled(rb, 2)
    rb.empty()
    assert waiting(rb) == 0
    with pytest.raises(shmrb.EmptyBufferError):
        rb.sample()
    rb.extend(numbers(20))
    assert drawn(rb.sample()) == [20] * 3


def test_what_another_process_empties_is_noticed(new: New) -> None:
    rb = new(schema=NUMBERS, batch_size=3, prefetch=2)
    rb.extend(numbers(*range(8)))
    rb.sample()
    filled(rb, 2)
    other = pickle.loads(pickle.dumps(rb))
    other.empty()
    other.close()
    with pytest.raises(shmrb.EmptyBufferError):
        rb.sample()
    rb.extend(numbers(20))
    assert drawn(rb.sample()) == [20] * 3


def test_another_sampler_draws_anew(new: New) -> None:
    rb = new(schema=NUMBERS, batch_size=4, prefetch=2)
    rb.extend(numbers(*range(8)))
    rb.sample()
    filled(rb, 2)
    rb.set_sampler(shmrb.SamplerWithoutReplacement(shuffle=False))
    assert [drawn(batch) for batch in rb] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(shmrb.SpecError, match="LifoSampler"):
        rb.set_sampler(shmrb.LifoSampler())


def test_a_limiter_is_charged_for_what_is_drawn_ahead_and_once(new: New) -> None:
    limiter = shmrb.RateLimiter(min_size=4, samples_per_insert=1.0, error_buffer=8.0)
    rb = new(schema=NUMBERS, capacity=8, batch_size=4, limiter=limiter, prefetch=3)
    with pytest.raises(shmrb.LimiterTimeoutError):
        rb.sample(timeout=0)
    rb.extend(numbers(0, 1, 2, 3))
    rb.extend(numbers(4, 5, 6, 7))
    rb.sample()
    filled(rb, 2)  # the limiter lets no more through
    assert rb.stats()["limiter"].samples == 12
    rb.extend(numbers(8, 9))
    assert len(drawn(rb.sample())) == 4
    until(lambda: waiting(rb) == 1)
    assert rb.stats()["limiter"].samples == 12


def test_threads_share_what_is_drawn_ahead(new: New) -> None:
    sampler = shmrb.SamplerWithoutReplacement()
    rb = new(schema=NUMBERS, capacity=1000, batch_size=10, sampler=sampler, prefetch=3)
    rb.extend(numbers(*range(500)))
    rb.extend(numbers(*range(500, 1000)))
    found: list[int] = []

    def draw() -> None:
        for _ in range(25):
            found.extend(drawn(rb.sample()))

    several = [threading.Thread(target=draw) for _ in range(4)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    assert sorted(found) == list(range(1000))


def test_closing_ends_the_thread(new: New) -> None:
    rb = new(schema=NUMBERS, batch_size=3, prefetch=2)
    assert threads() == []
    rb.extend(numbers(1, 2, 3))
    rb.sample()
    assert len(threads()) == 1
    rb.close()
    assert threads() == []
    with pytest.raises(shmrb.ClosedError):
        rb.sample()


def test_a_forgotten_handle_leaves_no_thread(new: New) -> None:
    kept = new(schema=NUMBERS, batch_size=3)
    kept.extend(numbers(1, 2, 3))
    rb = shmrb.ReplayBuffer._attached(
        kept._attachment, shmrb.opening.HandleOptions(prefetch=2, batch_size=3, format="numpy")
    )
    rb.sample()
    filled(rb, 2)
    del rb
    gc.collect()
    until(lambda: threads() == [])


def test_a_pickled_handle_draws_nothing_ahead(new: New) -> None:
    rb = new(schema=NUMBERS | {"body": ("uint8", 65_536)}, batch_size=3, prefetch=2)
    rb.extend(numbers(1, 2, 3) | {"body": np.zeros((3, 65_536), np.uint8)})
    rb.sample()
    filled(rb, 2)
    frozen = pickle.dumps(rb)
    assert len(frozen) < 4096
    with pickle.loads(frozen) as other:
        other.sample()
        assert waiting(other) == 0
    assert len(threads()) == 1


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_child_draws_its_own(new: New) -> None:
    rb = new(schema=NUMBERS, batch_size=3, prefetch=2)
    rb.extend(numbers(*range(8)))
    rb.sample()
    filled(rb, 2)
    child = os.fork()
    if child == 0:
        fine = waiting(rb) == 0 and len(drawn(rb.sample())) == 3
        until(lambda: waiting(rb) == 2)
        rb.close()
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert waiting(rb) == 2
    rb.sample()


def test_what_fails_ahead_shows_in_the_call(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    rb = new(schema=NUMBERS, batch_size=3, prefetch=1)
    rb.extend(numbers(1, 2, 3))

    def fail(*_: Any) -> None:
        raise shmrb.DeadlineError("no")

    rb.sample()
    filled(rb, 1)
    monkeypatch.setattr(rb._consumer, "ahead", fail)
    rb.sample()
    assert len(drawn(rb.sample())) == 3
    monkeypatch.undo()
    rb.sample()
    filled(rb, 1)


def test_a_batch_that_could_not_be_checked_stays(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = shmrb.SamplerWithoutReplacement(shuffle=False)
    rb = new(schema=NUMBERS, batch_size=4, sampler=sampler, prefetch=1)
    rb.extend(numbers(0, 1, 2, 3))
    rb.extend(numbers(4, 5, 6, 7))
    rb.sample()
    filled(rb, 1)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shmrb.prefetching.refreshed", fail)
        with pytest.raises(KeyboardInterrupt):
            rb.sample()
    assert drawn(rb.sample()) == [4, 5, 6, 7]


@pytest.mark.parametrize("prefetch", [-1, 1.5, True, "2"])
def test_a_number_of_batches_is_asked_for(new: New, prefetch: Any) -> None:
    with pytest.raises(shmrb.SpecError, match="prefetch: expected batches to draw ahead"):
        new(schema=NUMBERS, batch_size=3, prefetch=prefetch)


@pytest.mark.parametrize("prefetch", [None, 0])
def test_none_draws_nothing_ahead(new: New, prefetch: int | None) -> None:
    rb = new(schema=NUMBERS, batch_size=3, prefetch=prefetch)
    rb.extend(numbers(1, 2, 3))
    assert len(drawn(rb.sample())) == 3
    assert rb._prefetcher is None
    with pytest.raises(shmrb.SpecError, match="specified in advance"):
        new(schema=NUMBERS, prefetch=1)
