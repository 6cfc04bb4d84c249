"""Signals and ends while calls are under way or waiting."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import shmrb
from helpers import stamped
from helpers.child import emit, receive
from helpers.procs import Child, Children, until
from shmrb.segment.directory import Root

BODY = 512
CAPACITY = 65_536
# An interrupt ends a wait within a slice of 50 ms or a sleep of 100 ms; the rest is a loaded
# machine's.
SOON_S = 5.0


def attach(name: str, **options: object) -> shmrb.ReplayBuffer:
    return shmrb.attach(name, format="numpy", timeout=30.0, **options)  # type: ignore[arg-type]


# ---- children ------------------------------------------------------------------------------------


def go_on_whatever_comes(buffer: str) -> None:
    """Extends, samples and changes in a loop, catches every interrupt and goes on."""
    rb = attach(buffer, batch_size=16)
    returned: list[list[int]] = []
    seq, interrupts, faults, exposed = 0, 0, 0, False

    def interrupt(*_: object) -> None:
        nonlocal interrupts, exposed
        if exposed:  # between two rounds of the loop below an interrupt would end this test
            exposed = False
            interrupts += 1
            raise KeyboardInterrupt

    over = threading.Event()
    threading.Thread(target=lambda: (receive(), over.set()), daemon=True).start()
    signal.signal(signal.SIGINT, interrupt)
    emit("ready")
    while not over.is_set():
        try:
            exposed = True
            while not over.is_set():
                index = rb.extend(stamped.records(1, seq, 3, BODY))
                returned.append([seq, *index.tolist()])
                seq += 3
                batch = rb.sample()
                faults += len(stamped.torn(batch))
                rb.set_at_("traj", batch["index"][:3], batch["index"][:3])
        except KeyboardInterrupt:
            # Whether that extend went in is not known: its numbers are not given again.
            seq += 3
        exposed = False
    emit("done", returned=returned, interrupts=interrupts, faults=faults)


def run_freely(buffer: str) -> None:
    rb = attach(buffer, batch_size=16)
    emit("ready")
    longest, calls, faults = 0.0, 0, 0
    over = threading.Event()
    threading.Thread(target=lambda: (receive(), over.set()), daemon=True).start()
    while not over.is_set():
        start = time.monotonic()
        faults += len(stamped.torn(rb.sample()))
        rb.extend(stamped.records(2, calls, 1, BODY))
        longest = max(longest, time.monotonic() - start)
        calls += 1
    emit("done", longest=longest, calls=calls, faults=faults)


def wait_in_a_thread(buffer: str, how: str) -> None:
    """One thread waits in a native call; the main thread counts."""
    rb = attach(buffer)
    waiting = threading.Thread(target=lambda: rb.sample(4, timeout=60), daemon=True)
    waiting.start()
    until(lambda: rb.statistics().blocked)
    stop = time.monotonic() + 0.5
    counted = 0
    while time.monotonic() < stop:
        threading.Event().wait(0.001)
        counted += 1
    try:
        emit("counted", counted=counted)
        receive()
    except KeyboardInterrupt:
        emit("interrupted")
        os._exit(7)


def wait_in_the_main_thread(buffer: str, call: str, handler: bool) -> None:
    """Blocks in a call; an interrupt must come through as KeyboardInterrupt."""
    if handler:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    rb = attach(buffer, client_name="blocked")
    try:
        emit("waiting")
        if call == "sample":
            rb.sample(4, timeout=60)
        else:
            rb.extend({"x": np.arange(4)}, timeout=60)
    except KeyboardInterrupt:
        emit("interrupted")
        sys.exit(7)


def collect_until_ended(buffer: str, by: str) -> None:
    """A collector that the limiter blocks; it ends orderly, whatever ends it."""
    if by == "terminated":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    rb = attach(buffer)
    emit("ready")
    try:
        while True:
            rb.add({"x": 1})
    except shmrb.StaleAttachmentError:
        rb.close()
        rb.close()


# ---- tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "interrupts", [60, pytest.param(500, marks=[pytest.mark.long, pytest.mark.watchdog(300)])]
)
def test_interrupts_at_any_moment_cost_at_most_that_call(
    children: Children, interrupts: int
) -> None:
    """Whoever is interrupted again and again loses nothing that had returned."""
    rb = shmrb.ReplayBuffer(
        "interrupted",
        storage=shmrb.SharedStorage(CAPACITY),
        schema=stamped.schema(BODY),
        format="numpy",
    )
    rb.extend(stamped.records(3, 0, 16, BODY))
    stormed = children.start(go_on_whatever_comes, buffer="interrupted")
    free = children.start(run_freely, buffer="interrupted")
    for child in (stormed, free):
        child.expect("ready")
    draws = random.Random(58)
    for _ in range(interrupts):
        stormed.signal(signal.SIGINT)
        pause = time.monotonic() + draws.uniform(0.001, 0.02)
        until(lambda pause=pause: time.monotonic() > pause)
    for child in (stormed, free):
        child.send("end")
    seen, other = stormed.expect("done"), free.expect("done")
    assert seen["interrupts"] > 0
    assert (seen["faults"], other["faults"]) == (0, 0)
    assert other["calls"] > 0
    assert other["longest"] < SOON_S
    stored = rb[:]
    assert stamped.torn({**stored, "index": np.arange(len(rb))}) == []
    lap, before, kept = 0, -1, 0
    for seq, *slots in seen["returned"]:
        lap, before = lap + (slots[0] < before), slots[0]
        if lap * CAPACITY + slots[0] >= rb.write_count - CAPACITY:
            assert stored["uid"][slots].tolist() == [stamped.WRITER + seq + i for i in range(3)]
            kept += 1
    assert kept > 0
    extra = rb.write_count - 16 - other["calls"] - 3 * len(seen["returned"])
    assert extra % 3 == 0
    assert 0 <= extra // 3 <= seen["interrupts"], "at most one call's records an interrupt"
    assert rb.extend(stamped.records(4, 0, 1, BODY), timeout=5).size == 1, "no lock is left held"
    assert len(rb.statistics().clients) <= 3
    rb.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_waiting_thread_leaves_the_interpreter_to_others(
    children: Children, number: signal.Signals
) -> None:
    """The main thread runs on, and signals reach it."""
    rb = shmrb.ReplayBuffer("empty", storage=shmrb.SharedStorage(8), schema={"x": "int64"})
    child = children.start(wait_in_a_thread, buffer="empty", how=number.name)
    assert child.expect("counted")["counted"] > 100
    ended_within(child, number, {signal.SIGINT: 7, signal.SIGTERM: -signal.SIGTERM}[number])
    rb.close()


@pytest.mark.parametrize("call", ["sample", "extend"])
@pytest.mark.parametrize(
    ("number", "handler", "code"),
    [
        (signal.SIGINT, False, 7),
        (signal.SIGTERM, False, -signal.SIGTERM),
        (signal.SIGTERM, True, 9),
    ],
)
def test_waiting_call_ends_with_a_signal(
    children: Children, call: str, number: signal.Signals, handler: bool, code: int
) -> None:
    """While the limiter blocks the main thread itself."""
    rb = shmrb.ReplayBuffer(
        "blocked",
        storage=shmrb.SharedStorage(8),
        schema={"x": "int64"},
        limiter=shmrb.Queue(4),
        format="numpy",
    )
    if call == "extend":
        rb.extend({"x": np.arange(4)})
    child = children.start(wait_in_the_main_thread, buffer="blocked", call=call, handler=handler)
    child.expect("waiting")
    until(lambda: rb.statistics().blocked)
    ended_within(child, number, code)
    assert "Traceback" not in child.stderr
    until(lambda: not rb.statistics().blocked)
    rb.close()


def ended_within(child: Child, number: int, code: int) -> None:
    start = time.monotonic()
    child.signal(number)
    assert child.wait() == code, child.report()
    assert time.monotonic() - start < SOON_S


@pytest.mark.parametrize("by", ["dropped", "terminated"])
def test_parent_closes_while_collectors_are_blocked(
    children: Children, root: Path, by: str
) -> None:
    """Eight blocked collectors, one of them dead; nobody hangs, nobody complains."""
    rb = shmrb.ReplayBuffer(
        "closing",
        storage=shmrb.SharedStorage(64),
        schema={"x": "int64"},
        limiter=shmrb.Queue(4),
        format="numpy",
    )
    collectors = [
        children.start(collect_until_ended, method="fork", buffer="closing", by=by)
        for _ in range(8)
    ]
    for collector in collectors:
        collector.expect("ready")
    until(lambda: len(rb.statistics().blocked) == 8)
    collectors[0].kill()
    start = time.monotonic()
    rb.close()
    rb.close()
    if by == "dropped":
        Root(root).drop("closing", force=True)
    for collector in collectors[1:]:
        if by == "terminated":
            collector.signal(signal.SIGTERM)
    for collector in collectors[1:]:
        collector.succeed()
        assert collector.stderr == ""
    assert time.monotonic() - start < 2 * SOON_S
    with shmrb.ReplayBuffer(
        "closing", storage=shmrb.SharedStorage(64), schema={"x": "int64"}, exist="replace"
    ) as fresh:
        assert len(fresh) == 0


def test_learner_learns_that_its_writers_are_dead(children: Children) -> None:
    """The error of a wait that ran out counts who is left."""
    rb = shmrb.ReplayBuffer(
        "orphaned",
        storage=shmrb.SharedStorage(1000),
        schema={"x": "int64"},
        limiter=shmrb.RateLimiter(min_size=500, samples_per_insert=1.0, error_buffer=500.0),
        format="numpy",
    )
    writers = [children.start(collect_three, method="fork", buffer="orphaned") for _ in range(2)]
    for writer in writers:
        writer.expect("written")
    with pytest.raises(shmrb.LimiterTimeoutError, match=r"6 of 500 .*; 2 live writers"):
        rb.sample(4, timeout=0.2)
    for writer in writers:
        writer.kill()
    start = time.monotonic()
    with pytest.raises(shmrb.LimiterTimeoutError, match=r"6 of 500 .*; 0 live writers"):
        rb.sample(4, timeout=0.5)
    assert 0.5 <= time.monotonic() - start < SOON_S
    assert rb.statistics().producers == ()
    rb.close()


def collect_three(buffer: str) -> None:
    rb = attach(buffer)
    rb.extend({"x": np.arange(3)})
    emit("written")
    receive()
