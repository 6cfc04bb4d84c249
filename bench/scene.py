"""Writers beside a learner: the part of a contender's process that needs several processes.

Writers are spawned once and wait; in a window they and the learner work together. Counts are read
twice, at both ends of the part that counts, so that starting and stopping is not measured.
"""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Callable
from typing import Any

from bench import records

# Imports of torch or TensorFlow in several processes at once on two cores.
START_S = 180.0
# Writers and caches get going before anything counts.
WARM_S = 0.3

IDLE, RUN, QUIT = 0, 1, 2


class Scene:
    """The writers of one contender. Everything they share is one small array and two signals."""

    def __init__(self, adaptor: str, shared: Any, fields: records.Fields, variant: str) -> None:
        self.adaptor, self.shared, self.fields, self.variant = adaptor, shared, fields, variant
        self.context = multiprocessing.get_context("spawn")
        self.writers: list[Any] = []

    def start(self, writers: int, rows: int, records_per_s: float) -> None:
        """Spawn the writers and wait until each has attached."""
        # Plain words, not an Event: asking it must cost a writer next to nothing a call.
        self.state = self.context.RawValue("i", IDLE)
        self.written = self.context.RawArray("q", writers)
        self.go = self.context.Event()
        ready = self.context.Semaphore(0)
        for number in range(writers):
            arguments = (self.adaptor, self.shared, self.fields, self.variant, number, rows,
                         records_per_s, self.state, self.written, self.go, ready)  # fmt: skip
            writer = self.context.Process(target=_write, args=arguments, daemon=True)
            writer.start()
            self.writers.append(writer)
        deadline = time.monotonic() + START_S
        for _ in range(writers):
            while not ready.acquire(timeout=0.2):
                dead = [w.exitcode for w in self.writers if w.exitcode is not None]
                if dead or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"expected {writers} writers to attach within {START_S:.0f} s; "
                        f"exit codes of the dead ones: {dead}"
                    )

    def window(
        self, learn: Callable[[], Any], seconds: float, batches_per_s: float
    ) -> dict[str, Any]:
        """What writers wrote, and how long each of the learner's batches took, in `seconds`."""
        self.state.value = RUN
        self.go.set()
        _learn(learn, WARM_S, batches_per_s)
        before, start = list(self.written), time.perf_counter()
        latencies = _learn(learn, seconds, batches_per_s)
        after, spent = list(self.written), time.perf_counter() - start
        self.go.clear()
        self.state.value = IDLE
        return {
            "records": [b - a for a, b in zip(before, after, strict=True)],
            "seconds": spent,
            "latencies_ns": latencies,
        }

    def end(self) -> None:
        """Let the writers go."""
        if not self.writers:
            return
        self.state.value = QUIT
        self.go.set()
        for writer in self.writers:
            writer.join(10)
            if writer.is_alive():
                writer.terminate()
        self.writers.clear()


def _learn(learn: Callable[[], Any], seconds: float, batches_per_s: float) -> list[int]:
    """Take batches for `seconds`, as fast as it goes (0) or at that rate."""
    latencies = []
    end = time.perf_counter() + seconds
    due = time.perf_counter()
    while (now := time.perf_counter()) < end:
        if batches_per_s:
            if due > now:
                time.sleep(due - now)
            due = max(due, now - 1.0) + 1.0 / batches_per_s
        start = time.perf_counter_ns()
        learn()
        latencies.append(time.perf_counter_ns() - start)
    return latencies


def _write(
    adaptor: str, shared: Any, fields: records.Fields, variant: str, number: int, rows: int,
    records_per_s: float, state: Any, written: Any, go: Any, ready: Any,
) -> None:  # fmt: skip
    """A writer's process: attach, then in every window extend until it is over."""
    module = importlib.import_module(adaptor)
    call = module.writer(shared, variant, records.rows(fields, rows, seed=number + 2))
    ready.release()
    while state.value != QUIT:
        go.wait()
        due = time.perf_counter()
        while state.value == RUN:
            if records_per_s:
                now = time.perf_counter()
                if due > now:
                    time.sleep(due - now)
                # Late by more than a second: it cannot keep the pace, no use in a longer debt.
                due = max(due, now - 1.0) + rows / records_per_s
            call()
            written[number] += rows
