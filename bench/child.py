"""The process of one contender: it runs inside that contender's environment and answers questions.

One JSON object a line comes in on stdin, one goes out on what was stdout; anything the contender
prints goes to stderr, so that it cannot break a line. It needs numpy and the adaptor's own
packages. Requests: open, prepare, time, memory, scene, window, end_scene, close.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import json
import os
import sys
import time
import traceback
from typing import Any

from bench import records
from bench.scene import Scene

# Peers are compared on two cores, whatever the machine has.
CORES = 2
FILL_PIECE_BYTES = 1 << 22


class Child:
    """One adaptor, the buffer it opened, and the calls prepared for timing."""

    def __init__(self, adaptor: str) -> None:
        self.adaptor = adaptor
        self.module = importlib.import_module(adaptor)
        self.rival: Any = None
        self.calls: dict[str, tuple[Any, Any]] = {}
        self.scene: Scene | None = None

    def answer(self, request: dict[str, Any]) -> Any:
        return getattr(self, "do_" + request.pop("do"))(**request)

    def do_open(
        self, fields: dict[str, list[Any]], capacity: int, batch: int, variant: str, fill: bool
    ) -> dict[str, Any]:
        """Make the buffer, and write it full when asked to."""
        self.fields = {path: (dtype, tuple(shape)) for path, (dtype, shape) in fields.items()}
        self.capacity, self.variant = capacity, variant
        self.rival = self.module.Rival(self.fields, capacity, batch, variant)
        if fill:
            self._fill(min(capacity, getattr(self.module, "FILL_AT_MOST", capacity)))
        return {
            "label": self.module.LABEL,
            "options": self.module.OPTIONS,
            "versions": {name: _version(name) for name in self.module.DISTRIBUTIONS},
            "python": sys.version.split()[0],
        }

    def do_prepare(self, work: str, rows: int | None, block_s: float) -> int:
        """Build the call of one work, warm it up, and say how often it runs in `block_s`."""
        method = getattr(self.rival, work)
        made = method(records.rows(self.fields, rows, seed=1)) if rows else method()
        self.calls[work] = made if isinstance(made, tuple) else (made, None)
        count = 1
        while True:
            seconds = self.do_time(work, count, False)["seconds"]
            if seconds >= block_s / 4:
                return max(1, int(count * block_s / seconds))
            count *= 2

    def do_time(self, work: str, count: int, latency: bool) -> dict[str, Any]:
        """Run the call `count` times; single calls are timed for latencies or untimed clean-up."""
        call, after = self.calls[work]
        gc.collect()
        if not latency and after is None:
            start = time.perf_counter()
            for _ in range(count):
                call()
            return {"seconds": time.perf_counter() - start}
        spent = []
        for _ in range(count):
            start_ns = time.perf_counter_ns()
            result = call()
            spent.append(time.perf_counter_ns() - start_ns)
            if after is not None:
                after(result)
        return {"seconds": sum(spent) / 1e9, "latencies_ns": spent}

    def do_memory(self) -> dict[str, int]:
        """Bytes held now: private, shared, and outside of the process if the adaptor knows."""
        gc.collect()
        with open("/proc/self/status") as status:
            lines = dict(line.split(":", 1) for line in status)
        stored = getattr(self.rival, "stored_bytes", None)
        shared = int(lines["RssShmem"].split()[0]) * 1024
        return {
            "private": int(lines["RssAnon"].split()[0]) * 1024,
            "shared": stored() if stored is not None else shared,
        }

    def do_scene(self, writers: int, rows: int, records_per_s: float) -> None:
        """Start the writers of a scene; they wait for its windows."""
        self.scene = Scene(self.adaptor, self.rival.share(), self.fields, self.variant)
        self.scene.start(writers, rows, records_per_s)
        self.learn = self.rival.sample()

    def do_window(self, seconds: float, batches_per_s: float) -> dict[str, Any]:
        """Writers and the learner at work together for `seconds`."""
        assert self.scene is not None
        return self.scene.window(self.learn, seconds, batches_per_s)

    def do_end_scene(self) -> None:
        """Stop the writers."""
        if self.scene is not None:
            self.scene.end()
        self.scene = None

    def do_close(self) -> None:
        """Give everything back."""
        self.do_end_scene()
        self.calls.clear()
        if self.rival is not None:
            self.rival.close()
        self.rival = None

    def _fill(self, wanted: int) -> None:
        piece = max(1, min(wanted, FILL_PIECE_BYTES // records.record_bytes(self.fields)))
        data = records.rows(self.fields, piece)
        call = self.rival.extend(data)
        for _ in range(wanted // piece):
            call()
        if wanted % piece:
            self.rival.extend({path: array[: wanted % piece] for path, array in data.items()})()


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(distribution), "__version__", "unknown"))


def main(adaptor: str) -> None:
    """Answer line by line until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    child: Child | None = None
    for line in sys.stdin:
        try:
            child = child or Child(adaptor)
            reply = {"ok": child.answer(json.loads(line))}
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
