"""Threads that share one handle."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers import stamped
from helpers.procs import until

New = Callable[..., shmrb.ReplayBuffer]
BODY = 256
SECONDS = 1.5


@contextmanager
def threads(*targets: Callable[[], Any]) -> Iterator[list[BaseException]]:
    """Runs the targets beside the block; what they raise is collected."""
    errors: list[BaseException] = []

    def run(target: Callable[[], Any]) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=run, args=(target,)) for target in targets]
    for thread in started:
        thread.start()
    yield errors
    for thread in started:
        thread.join()


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_writers_and_readers_share_one_handle(new: New) -> None:
    """No torn rows, and the counters add up."""
    rb = new(capacity=64, schema=stamped.schema(BODY), batch_size=32)
    rb.extend(stamped.records(9, 0, 8, BODY))
    stop = time.monotonic() + SECONDS
    written = [0] * 4
    batches = [0] * 4

    def write(number: int) -> None:
        while time.monotonic() < stop:
            count = 1 + written[number] % 7
            rb.extend(stamped.records(number, written[number], count, BODY))
            written[number] += count

    def read(number: int) -> None:
        out = None
        while time.monotonic() < stop:
            batch = rb.sample() if number % 2 else rb.sample(out=out)
            out = batch
            assert stamped.torn(batch) == []
            rb.set_at_("traj", batch["index"][:4], batch["index"][:4])
            rb.generations_of(batch["index"])
            batches[number] += 1

    targets = [lambda i=i: write(i) for i in range(4)] + [lambda i=i: read(i) for i in range(4)]
    with threads(*targets) as errors:
        pass
    assert errors == []
    assert rb.write_count == 8 + sum(written)
    assert min(written) > 0
    assert min(batches) > 0
    counters = rb.statistics().counters
    assert counters["records_written"] == rb.write_count
    assert counters["records_sampled"] == 32 * sum(batches)


def test_passes_without_replacement_are_shared_out(new: New) -> None:
    rb = new(
        capacity=1024,
        schema={"x": "int64"},
        sampler=shmrb.SamplerWithoutReplacement(drop_last=True),
        batch_size=8,
    )
    rb.extend({"x": np.arange(1024)})
    drawn: list[list[int]] = [[] for _ in range(4)]

    def draw(number: int) -> None:
        for _ in range(32):
            drawn[number] += rb.sample()["x"].tolist()

    with threads(*[lambda i=i: draw(i) for i in range(4)]) as errors:
        pass
    assert errors == []
    assert sorted(sum(drawn, [])) == list(range(1024))  # noqa: RUF017


def test_first_write_of_many_threads(new: New) -> None:
    rb = new(capacity=64)
    gate = threading.Barrier(4)

    def write(number: int) -> None:
        gate.wait()
        rb.extend({"x": np.full(4, number)})

    with threads(*[lambda i=i: write(i) for i in range(4)]) as errors:
        pass
    assert errors == []
    assert sorted(rb["x"].tolist()) == sorted([0, 1, 2, 3] * 4)


def test_closing_while_others_sample_and_wait(new: New) -> None:
    """Calls under way end first; those that come later, and those that wait, are refused."""
    rb = new("closing", capacity=64, schema=stamped.schema(BODY), batch_size=32)
    rb.extend(stamped.records(1, 0, 64, BODY))
    limited = new("waiting", schema={"x": "int64"}, limiter=shmrb.MinSize(5))
    busy = threading.Event()

    def sample() -> None:
        while True:
            assert stamped.torn(rb.sample()) == []
            busy.set()

    with threads(sample, sample, lambda: limited.sample(1, timeout=60)) as errors:
        busy.wait()
        with shmrb.attach("waiting", role="observer", format="numpy") as watcher:
            until(lambda: watcher.statistics().blocked)
        rb.close()
        rb.close()
        limited.close()
    assert [type(error) for error in errors] == [shmrb.ClosedError] * 3


def test_closing_the_last_handle_frees_memory_that_others_still_use(new: New) -> None:
    """Batches are private: they outlive the mapping."""
    rb = new(capacity=64, schema=stamped.schema(BODY))
    rb.extend(stamped.records(1, 0, 64, BODY))
    batch = rb.sample(64)
    rb.close()
    assert stamped.torn(batch) == []
