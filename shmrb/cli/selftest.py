"""`shmrb selftest`: does this build, on this machine, keep what it promises?

Everything is done with real processes on the root that the user's buffers would take. Torch is not
needed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shmrb import core
from shmrb.buffer import ReplayBuffer
from shmrb.errors import ShmrbError
from shmrb.segment import names
from shmrb.segment.directory import Root
from shmrb.spec import SharedStorage

Records = dict[str, NDArray[np.int64]]

CAPACITY = 4096
WRITERS = 2
RECORDS_A_WRITER = 1000
CHUNK = 50
BATCHES = 200
BATCH = 64
# 255 more numbers make a record long enough that a torn one would show.
SCHEMA = {"uid": "int64", "payload": ("int64", (255,))}

# A child has to start an interpreter; a machine that is slower than this has other problems.
CHILD_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 10.0
TAKE_OVER_S = 1.0
# What a victim does at its stopping point. Anything but death has to fail the checks.
ENDING = "kill"
# Nothing is shared with a child but what the pickled handle names.
START_METHOD = "spawn"


class CheckFailed(Exception):
    """What was expected and what was found instead."""


@dataclass(frozen=True)
class Outcome:
    """How a check ended."""

    passed: bool
    title: str
    detail: str


def run(*, as_json: bool = False) -> bool:
    """Run every check and print how it ended, a line each or one document; whether all passed."""
    root = names.creation_root()
    outcomes = []
    if not as_json:
        print(f"selftest: format {core.FORMAT_NUMBER}, root {root}")
    for outcome in _outcomes(root):
        outcomes.append(outcome)
        if not as_json:
            word = "ok  " if outcome.passed else "FAIL"
            print(f"{word}  {outcome.title}: {outcome.detail}", flush=True)
    if as_json:
        checks = [asdict(outcome) for outcome in outcomes]
        print(json.dumps({"format": core.FORMAT_NUMBER, "root": root, "checks": checks}))
    return all(outcome.passed for outcome in outcomes)


def _outcomes(root: str) -> Iterator[Outcome]:
    try:
        handle = ReplayBuffer(
            storage=SharedStorage(CAPACITY),
            schema=SCHEMA,
            format="numpy",
            client_name="selftest",
            default_timeout=CALL_TIMEOUT_S,
            root=root,
        )
    except (ShmrbError, OSError) as error:
        yield Outcome(False, "a private buffer is created", str(error))
        return
    yield Outcome(True, "a private buffer is created", f"{CAPACITY} records")
    directory = Root(root).require(handle.name).path
    try:
        yield _check("writers in other processes share it", lambda: _share(handle))
        yield _check("a reader in another process draws whole records", lambda: _read(handle))
        yield _check("the lock of a dead owner is taken over", lambda: _outlive_owner(handle))
        yield _check(
            "a writer that died half-way loses only its own records",
            lambda: _outlive_writer(handle),
        )
    finally:
        handle.close()
    yield _check("nothing is left behind", lambda: _look_for_remains(directory))


def _share(handle: ReplayBuffer) -> str:
    children = [
        _start(_write, handle, number * RECORDS_A_WRITER, RECORDS_A_WRITER)
        for number in range(WRITERS)
    ]
    for child in children:
        _expect(child, 0)
    found = np.sort(_whole(handle[:]))
    total = WRITERS * RECORDS_A_WRITER
    if not np.array_equal(found, np.arange(total)):
        raise CheckFailed(f"expected {total} records, each once, found {len(np.unique(found))}")
    return f"{WRITERS} writers, {total} records, each once"


def _read(handle: ReplayBuffer) -> str:
    _expect(_start(_sample, handle), 0)
    return f"{BATCHES} batches of {BATCH}"


def _outlive_owner(handle: ReplayBuffer) -> str:
    before = _take_overs(handle)
    elapsed_s = _write_after(handle, "holding_lock")
    if _take_overs(handle) == before:
        raise CheckFailed("the lock was free: nobody died holding it, or nothing was repaired")
    return f"written again after {elapsed_s * 1e3:.1f} ms"


def _outlive_writer(handle: ReplayBuffer) -> str:
    before = _whole(handle[:])
    elapsed_s = _write_after(handle, "mid_payload")
    after = _whole(handle[:])
    lost = np.setdiff1d(before, after)
    if len(lost) or len(after) != len(before) + 1:
        raise CheckFailed(
            f"expected the {len(before)} records of before and one more, found {len(after)}, "
            f"{len(lost)} of the old ones gone"
        )
    return f"{len(before)} records kept, written again after {elapsed_s * 1e3:.1f} ms"


def _look_for_remains(directory: str) -> str:
    if os.path.exists(directory):
        raise CheckFailed(f"{directory} is still there")
    return "the buffer went with its creator"


def _write_after(handle: ReplayBuffer, point: str) -> float:
    """Seconds until this process has written a record after another one died at `point`."""
    _expect(_start(_end_at, handle, point, ENDING), -signal.SIGKILL)
    start = time.monotonic()
    handle.extend(_records(CAPACITY, 1), timeout=TAKE_OVER_S)
    elapsed_s = time.monotonic() - start
    if elapsed_s > TAKE_OVER_S:
        raise CheckFailed(f"expected an end within {TAKE_OVER_S:g} s, it took {elapsed_s:.1f} s")
    return elapsed_s


# In other processes


def _write(handle: ReplayBuffer, first: int, count: int) -> None:
    for start in range(first, first + count, CHUNK):
        handle.extend(_records(start, CHUNK))


def _sample(handle: ReplayBuffer) -> None:
    for _ in range(BATCHES):
        _whole(handle.sample(BATCH))


def _end_at(handle: ReplayBuffer, point: str, ending: str) -> None:
    core.stop_at(point, ending)
    handle.extend(_records(CAPACITY, 1))


# Records, children, lines


def _records(first: int, count: int) -> Records:
    uid = np.arange(first, first + count)
    return {"uid": uid, "payload": np.repeat(uid[:, None], 255, axis=1)}


def _whole(records: Records) -> NDArray[np.int64]:
    """The numbers of records none of which is torn."""
    torn = np.flatnonzero((records["payload"] != records["uid"][:, None]).any(axis=1))
    if len(torn):
        raise CheckFailed(f"{len(torn)} of {len(records['uid'])} records are torn")
    return records["uid"]


def _take_overs(handle: ReplayBuffer) -> int:
    return handle.statistics().counters["lock_take_overs"]


def _start(function: Callable[..., None], *arguments: Any) -> Any:
    context: Any = multiprocessing.get_context(START_METHOD)
    child = context.Process(target=function, args=arguments)
    child.start()
    return child


def _expect(child: Any, code: int) -> None:
    child.join(CHILD_TIMEOUT_S)
    found = child.exitcode
    if found is None:
        child.kill()
        child.join()
    if found != code:
        expected = f"expected exit code {code} of a child within {CHILD_TIMEOUT_S:g} s"
        raise CheckFailed(f"{expected}, got {found}")


def _check(title: str, check: Callable[[], str]) -> Outcome:
    try:
        return Outcome(True, title, check())
    except (CheckFailed, ShmrbError, OSError) as error:
        return Outcome(False, title, str(error))
