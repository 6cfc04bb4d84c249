"""Consumption between processes: each record once, none lost that was held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.child import emit, receive
from helpers.procs import Child, Children

# The only thread beside pytest's is the watchdog of faulthandler, which touches no lock of ours.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

NAME = "once/records"
RECORDS = 10_000
BATCH = 32
IN_FLIGHT = 8


def body_of(uids: Any) -> Any:
    return (np.asarray(uids)[:, None] * 7 + np.arange(16)).astype(np.int64)


def records(uids: Any) -> dict[str, Any]:
    return {"uid": np.asarray(uids, np.int64), "body": body_of(uids)}


def created(**options: Any) -> shmrb.ReplayBuffer:
    options.setdefault("storage", shmrb.SharedStorage(RECORDS))
    return shmrb.ReplayBuffer(
        NAME,
        schema={"uid": "int64", "body": ("int64", (16,))},
        batch_size=BATCH,
        consume_after_n_samples=1,
        format="numpy",
        **options,
    )


def consume(hold: bool, timeout: float) -> None:
    """Draws until nothing comes for `timeout` seconds; reports the uids it was done with."""
    with shmrb.attach(NAME, format="numpy", timeout=30) as rb:
        emit("ready")
        receive()
        done: list[int] = []
        while True:
            try:
                batch = rb.sample(timeout=timeout, hold=hold)
            except (shmrb.DeadlineError, shmrb.EmptyBufferError):
                break
            assert (batch["body"] == body_of(batch["uid"])).all()
            if hold:
                assert rb.ack(batch).all()
            done += batch["uid"].tolist()
        emit("done", uids=done)


def hold_some(batches: int, acknowledged: int) -> None:
    """Has that many batches in flight, after it was done with a few others."""
    rb = shmrb.attach(NAME, format="numpy", timeout=30)
    done: list[int] = []
    for _ in range(acknowledged):
        batch = rb.sample(hold=True)
        rb.ack(batch)
        done += batch["uid"].tolist()
    held = [rb.sample(hold=True)["uid"].tolist() for _ in range(batches)]
    emit("holding", done=done, held=held)
    receive()


def take_some(batches: int) -> None:
    """Draws without hold, and is stopped before it has done anything with them."""
    rb = shmrb.attach(NAME, format="numpy", timeout=30)
    emit("holding", held=[rb.sample()["uid"].tolist() for _ in range(batches)])
    receive()


def write(start: int, count: int) -> None:
    with shmrb.attach(NAME, format="numpy", timeout=30) as rb:
        for uid in range(start, start + count, 50):
            rb.extend(records(range(uid, min(uid + 50, start + count))), timeout=60)


def start_consumers(children: Children, hold: bool, timeout: float) -> list[Child]:
    options = {"hold": hold, "timeout": timeout}
    started = [children.start(consume, method="fork", **options) for _ in range(3)]
    for child in started:
        child.expect("ready")
    for child in started:
        child.send()
    return started


def done_by(consumers: list[Child]) -> list[int]:
    return [uid for child in consumers for uid in child.expect("done")["uids"]]


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("sampler", [shmrb.RandomSampler(), shmrb.FifoSampler()])
def test_three_consumers_get_each_record_once(
    children: Children, sampler: shmrb.RandomSampler | shmrb.FifoSampler, hold: bool
) -> None:
    with created(sampler=sampler) as rb:
        rb.extend(records(range(RECORDS)))
        found = done_by(start_consumers(children, hold, timeout=0.0))
        assert sorted(found) == list(range(RECORDS))
        assert len(rb) == 0


def test_a_killed_consumer_loses_nothing_that_it_held(children: Children) -> None:
    with created() as rb:
        rb.extend(records(range(RECORDS)))
        victim = children.start(hold_some, method="fork", batches=IN_FLIGHT, acknowledged=5)
        told = victim.expect("holding")
        assert len(told["held"]) == IN_FLIGHT
        victim.kill()
        found = done_by(start_consumers(children, hold=True, timeout=0.0))
        assert sorted(found + told["done"]) == list(range(RECORDS))
        assert len(rb) == 0


def test_a_killed_consumer_takes_along_what_it_did_not_hold(children: Children) -> None:
    with created() as rb:
        rb.extend(records(range(RECORDS)))
        victim = children.start(take_some, method="fork", batches=IN_FLIGHT)
        lost = [uid for batch in victim.expect("holding")["held"] for uid in batch]
        victim.kill()
        found = done_by(start_consumers(children, hold=False, timeout=0.0))
        assert sorted(found + lost) == list(range(RECORDS))


def test_a_queue_between_processes_gives_each_record_once(children: Children) -> None:
    """Two writers, three consumers and a small ring whose slots are used again and again; one
    consumer dies with records in its hands."""
    storage = shmrb.SharedStorage(200)
    half = RECORDS // 4
    with created(storage=storage, limiter=shmrb.Queue(200), sampler=shmrb.FifoSampler()):
        writers = [
            children.start(write, method="fork", start=i * half, count=half) for i in range(2)
        ]
        victim = children.start(hold_some, method="fork", batches=2, acknowledged=3)
        told = victim.expect("holding")
        victim.kill()
        found = done_by(start_consumers(children, hold=True, timeout=2.0))
        for writer in writers:
            assert writer.wait() == 0, writer.report()
        assert sorted(found + told["done"]) == list(range(2 * half))


def draw_on_and_on(acknowledges: bool, times: int) -> None:
    with shmrb.attach(NAME, format="numpy", timeout=30) as rb:
        for i in range(times):
            rb.extend(records([i]))
            batch = rb.sample(1 + i % 2, hold=acknowledges)
            if acknowledges:
                rb.ack(batch)
            if i == times // 4:
                emit("warm")
                receive()
        emit("done")
        receive()


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Private_Dirty")


@pytest.mark.filterwarnings("ignore:batch_size")
@pytest.mark.watchdog(900)
@pytest.mark.parametrize("times", [4_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_the_books_of_consumption_do_not_grow(children: Children, times: int) -> None:
    """What is consumed and acknowledged leaves nothing behind in the client."""
    with created(storage=shmrb.SharedStorage(64)) as rb:
        child = children.start(draw_on_and_on, method="fork", acknowledges=True, times=times)
        child.expect("warm")
        before = resident(child.pid)
        child.send()
        child.expect("done")
        assert resident(child.pid) - before < 2 << 20
        assert rb.write_count == times
