"""Rate limits as the handle shows them: who is held up, by which number, and how to change it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.procs import until

New = Callable[..., shmrb.ReplayBuffer]
SCHEMA = {"x": "int64"}


def rows(count: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(count)}


def test_writer_is_held_up_at_the_documented_count(new: New) -> None:
    """Samples-per-insert 1, min size 10, slack 5; the error gives the numbers."""
    limiter = shmrb.RateLimiter(min_size=10, samples_per_insert=1.0, error_buffer=5.0)
    rb = new(capacity=64, schema=SCHEMA, limiter=limiter)
    rb.extend(rows(9))
    with pytest.raises(shmrb.LimiterTimeoutError, match=r"9 of 10 records are there \(min_size\)"):
        rb.sample(1, timeout=0.05)
    for _ in range(6):  # inserts <= max_diff = 15
        rb.add({"x": 0})
    with pytest.raises(shmrb.LimiterTimeoutError) as refused:
        rb.extend(rows(1), timeout=0.05)
    for part in (
        "extend: waited 0.",
        "for the rate limiter",
        "(inserts 15 + 1) * samples_per_insert 1.0 - samples 0 = 16.0, at most max_diff 15.0",
        "1 live writers, 0 live samplers",
    ):
        assert part in str(refused.value)
    assert len(rb.sample(10)["x"]) == 10  # 15 - 10 >= min_diff = 5
    with pytest.raises(shmrb.LimiterTimeoutError) as refused:
        rb.sample(1, timeout=0.05)
    assert "inserts 15 * samples_per_insert 1.0 - samples 10 - 1 = 4.0, at least min_diff" in str(
        refused.value
    )
    info = rb.limiter.info
    assert (info.inserts, info.samples, info.size) == (15, 10, 15)
    rb.extend(rows(10))


def test_stats_list_who_is_blocked_by_what(new: New) -> None:
    rb = new("blocked", capacity=64, schema=SCHEMA, limiter=shmrb.Queue(4))
    rb.extend(rows(4))
    writer = shmrb.attach("blocked", format="numpy", client_name="the writer")
    thread = threading.Thread(target=lambda: writer.extend(rows(2)))
    thread.start()
    until(lambda: rb.statistics().blocked)
    (blocked,) = rb.statistics().blocked
    assert (blocked.name, blocked.waiting_for, blocked.alive) == ("the writer", "room", True)
    assert blocked.waiting_since_ns > 0
    stats = rb.stats()
    assert stats["limiter"].difference == 4.0
    rb.sample(2)
    thread.join()
    until(lambda: not rb.statistics().blocked)
    writer.close()


@pytest.mark.parametrize(
    ("limiter", "cure"),
    [
        (
            shmrb.RateLimiter(min_size=1, samples_per_insert=1.0, error_buffer=16.0),
            r"error_buffer >= 64\.0",
        ),
        (shmrb.Queue(16), "size >= 64"),
        (shmrb.MinSize(1000), "min_size <= 512"),
        (
            shmrb.RateLimiter(min_size=1000, samples_per_insert=1.0, error_buffer=64.0),
            "min_size <= 512",
        ),
    ],
)
def test_limits_that_must_deadlock_are_refused(
    new: New, limiter: shmrb.RateLimiter | shmrb.MinSize | shmrb.Queue, cure: str
) -> None:
    """With the smallest that works in the message."""
    with pytest.raises(shmrb.SpecError, match=cure):
        new(capacity=512, schema=SCHEMA, limiter=limiter, batch_size=64)


@pytest.mark.parametrize("batch", [1, 32, 64, 500])
@pytest.mark.parametrize("ratio", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("min_size", [64, 65])
def test_default_error_buffer_never_blocks_both_sides(
    new: New, batch: int, ratio: float, min_size: int
) -> None:
    """One thread that samples when it may, and inserts when it may, always may do one of both."""
    limiter = shmrb.RateLimiter(min_size=min_size, samples_per_insert=ratio)
    rb = new(capacity=4096, schema=SCHEMA, limiter=limiter, batch_size=batch)
    done = {"extend": 0, "sample": 0}
    for _ in range(200):
        moved = False
        for name, call in (
            ("sample", lambda: rb.sample(timeout=0)),
            ("extend", lambda: rb.extend(rows(64), timeout=0)),
        ):
            try:
                call()
            except (shmrb.LimiterTimeoutError, shmrb.EmptyBufferError):
                continue
            done[name] += 1
            moved = True
        assert moved, f"both blocked after {done}: {rb.limiter.info}"
    assert min(done.values()) > 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler": shmrb.SamplerWithoutReplacement()},
        {"sampler": shmrb.FifoSampler()},
        {"sampler": shmrb.PrioritizedSampler(alpha=0.6, beta=0.4)},
        {"sampler": shmrb.FifoSampler(), "consume_after_n_samples": 1},
    ],
    ids=["uniform", "without replacement", "fifo", "prioritized", "consuming"],
)
def test_who_has_nothing_to_draw_lets_one_insert_pass(new: New, options: dict[str, Any]) -> None:
    """Emptied, a buffer still owes the samples of what it lost, and those can never be drawn."""
    limiter = shmrb.RateLimiter(min_size=1, samples_per_insert=1.0, error_buffer=4.0)
    rb = new(capacity=16, schema=SCHEMA, limiter=limiter, batch_size=2, **options)
    with contextlib.suppress(shmrb.LimiterTimeoutError):
        for _ in range(8):
            rb.extend(rows(2), timeout=0)
    rb.empty(empty_write_count=False)
    with pytest.raises(shmrb.LimiterTimeoutError):
        rb.extend(rows(2), timeout=0)
    with pytest.raises((shmrb.LimiterTimeoutError, shmrb.EmptyBufferError)):
        rb.sample(timeout=0)
    rb.extend(rows(2), timeout=0)
    assert rb.limiter.info.opened_times == 1
    with pytest.raises(shmrb.LimiterTimeoutError):
        rb.extend(rows(2), timeout=0)


def test_batch_beyond_the_limits_is_refused_at_the_first_call(new: New) -> None:
    """What only the call knows: it says what would work."""
    limiter = shmrb.RateLimiter(min_size=2, samples_per_insert=2.0, error_buffer=8.0)
    rb = new(capacity=64, schema=SCHEMA, limiter=limiter)
    rb.extend(rows(6))
    with pytest.raises(shmrb.SpecError, match=r"at most 16, or error_buffer >= 80\.0"):
        rb.sample(32)
    for count in (9, 40):
        with pytest.raises(
            shmrb.SpecError, match=rf"{count} records .* at most 8, or error_buffer"
        ):
            rb.extend(rows(count))
    queue = new(capacity=64, schema=SCHEMA, limiter=shmrb.Queue(4))
    queue.extend(rows(4))
    with pytest.raises(shmrb.SpecError, match="at most 4, or size >= 5"):
        queue.sample(5)
    with pytest.raises(shmrb.SpecError, match="at most 4, or size >= 5"):
        queue.extend(rows(5))
    assert (len(rb), len(queue)) == (6, 4)


def test_preloading_owes_nothing(new: New) -> None:
    """No stall while the limits are lifted, no burst afterwards."""
    limiter = shmrb.RateLimiter(min_size=100, samples_per_insert=1.0, error_buffer=50.0)
    rb = new(capacity=16_384, schema=SCHEMA, limiter=limiter)
    with rb.limiter.lifted():
        assert rb.limiter.info.lifted
        for _ in range(100):
            rb.extend(rows(100), timeout=0)
        rb.sample(5000, timeout=0)
    info = rb.limiter.info
    assert (info.lifted, info.inserts, info.samples, info.size) == (False, 0, 0, 10_000)
    with pytest.raises(shmrb.LimiterTimeoutError):
        rb.sample(1, timeout=0)
    rb.extend(rows(150), timeout=0)
    with pytest.raises(shmrb.LimiterTimeoutError):
        rb.extend(rows(1), timeout=0)
    rb.sample(100, timeout=0)
    with pytest.raises(shmrb.LimiterTimeoutError):
        rb.sample(1, timeout=0)


def test_limits_change_at_run_time_for_everybody(new: New) -> None:
    rb = new("changed", capacity=64, schema=SCHEMA, limiter=shmrb.Queue(4), batch_size=2)
    other = shmrb.attach("changed", format="numpy")
    rb.extend(rows(4))
    with pytest.raises(shmrb.LimiterTimeoutError):
        other.extend(rows(1), timeout=0)
    rb.limiter.set(shmrb.Queue(6))
    other.extend(rows(2), timeout=0)
    with pytest.raises(shmrb.SpecError, match="size >= 2"):
        rb.limiter.set(shmrb.Queue(1))
    assert other.limiter.info.max_diff == 6.0
    rb.limiter.set(None)
    other.extend(rows(30), timeout=0)
    assert not other.limiter.info.enabled
    other.close()


def test_change_wakes_who_waits(new: New) -> None:
    rb = new("woken", capacity=64, schema=SCHEMA, limiter=shmrb.Queue(4))
    rb.extend(rows(4))
    writer = shmrb.attach("woken", format="numpy")
    thread = threading.Thread(target=lambda: writer.extend(rows(3)))
    thread.start()
    until(lambda: rb.statistics().blocked)
    rb.limiter.set(shmrb.Queue(8))
    thread.join()
    assert len(rb) == 7
    writer.close()


def test_buffer_without_limiter_says_how_to_get_one(new: New) -> None:
    rb = new(schema=SCHEMA)
    for call in (
        lambda: rb.limiter.info,
        lambda: rb.limiter.lift(),
        lambda: rb.limiter.set(shmrb.Queue(4)),
    ):
        with pytest.raises(shmrb.SpecError, match="Create the buffer with limiter="):
            call()


def test_observer_looks_at_limits_and_draws_nothing_from_them(new: New) -> None:
    rb = new("looked", capacity=64, schema=SCHEMA, limiter=shmrb.Queue(8))
    rb.extend(rows(4))
    with shmrb.attach("looked", role="observer", format="numpy") as observer:
        assert observer.limiter.info.inserts == 4
        assert observer[:]["x"].tolist() == [0, 1, 2, 3]
        with pytest.raises(shmrb.ReadOnlyError):
            observer.sample(1)
        with pytest.raises(shmrb.ReadOnlyError):
            observer.limiter.lift()
    assert rb.limiter.info.samples == 0


def test_long_wait_tells_the_log_who_is_missing(
    new: New, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner whose writers are all dead says so while it waits."""
    monkeypatch.setattr("shmrb.waiting.REPORT_EVERY_S", 0.05)
    rb = new(capacity=1000, schema=SCHEMA, limiter=shmrb.MinSize(500))
    rb.extend(rows(3))
    with (
        caplog.at_level(logging.WARNING, logger="shmrb"),
        pytest.raises(shmrb.LimiterTimeoutError, match="3 of 500 records are there"),
    ):
        rb.sample(4, timeout=0.4)
    assert len(caplog.messages) >= 2
    assert all("3 of 500" in text and "live writers" in text for text in caplog.messages)
