"""Processes come and go, in every way there is: the buffer stays, and nothing is said or kept."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import shmrb
from helpers.child import call, emit, receive
from helpers.daemons import Daemons, daemons_for
from helpers.procs import Child, Children, until

STORAGE = shmrb.SharedStorage(64)
SCHEMA = {"uid": "int64"}
MIB = 1 << 20
LONG = [pytest.mark.long, pytest.mark.watchdog(1800)]

# Each way out, and the exit code of an interpreter that takes it.
WAYS = {
    "return": 0,
    "sys.exit": 1,
    "os._exit": 3,
    "exception": 1,
    "terminate": -signal.SIGTERM,
    "kill": -signal.SIGKILL,
}


@pytest.fixture
def daemons(children: Children, tmp_path: Path) -> Iterator[Daemons]:
    """Starts daemons on this test's root and socket."""
    with daemons_for(children, tmp_path) as started:
        yield started


# What visitors do


def use_and_leave(way: str, uid: int) -> None:
    """Writes a record, reads those of the others, and leaves when told."""
    handle = shmrb.attach("ring", format="numpy")
    handle.add({"uid": uid})
    emit("used", drawn=len(handle.sample(4)["uid"]))
    receive()
    if way == "sys.exit":
        sys.exit(1)
    if way == "os._exit":
        os._exit(3)
    if way == "exception":
        raise RuntimeError("on purpose")
    if way != "return":
        receive()


def create_and_send_visitors(methods: dict[str, int]) -> None:
    """A tree of processes whose creator ends in order; all write to one stderr."""
    handle = shmrb.ReplayBuffer("tree", storage=STORAGE, schema=SCHEMA, format="numpy")
    handle.extend({"uid": np.arange(8)})
    visitors = []
    for method, count in methods.items():
        context: Any = multiprocessing.get_context(method)
        for uid in range(count):
            given = {"given": handle, "uid": uid}
            visitors.append(context.Process(target=call, args=(__file__, "visit"), kwargs=given))
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    emit("ended", codes=[visitor.exitcode for visitor in visitors], records=len(handle))


def visit(given: shmrb.ReplayBuffer, uid: int) -> None:
    given.add({"uid": uid})
    with shmrb.attach("tree", format="numpy") as handle:
        handle.sample(2)


def visit_again_and_again(times: int) -> None:
    for number in range(times):
        with shmrb.connect() as client, client.attach("ring", format="numpy") as handle:
            handle.sample(1) if number % 2 else handle.add({"uid": number})
        if number == times // 10:
            gc.collect()
            emit("warm")
            receive()
    gc.collect()
    emit("done")
    receive()


def send_short_lived(times: int) -> None:
    """Children that attach and end at once, every other one by SIGKILL."""
    # What the children need is imported before they are born.
    shmrb.connect().attach("ring", format="numpy").close()
    for number in range(times):
        pid = os.fork()
        if pid == 0:
            handle = shmrb.connect().attach("ring", format="numpy")
            handle.add({"uid": number})
            if number % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == (-signal.SIGKILL if number % 2 else 0)
        if number == times // 10:
            emit("warm")
            receive()
    emit("done")
    receive()


# Leaving


# Those of multiprocessing that import everything anew are slow.
SOME = {way: WAYS[way] for way in ("return", "exception", "kill")}


@pytest.mark.parametrize(
    ("method", "ways"),
    [("interpreter", WAYS), ("fork", WAYS), ("spawn", SOME), ("forkserver", SOME)]
    + [pytest.param(method, WAYS, marks=LONG) for method in ("spawn", "forkserver")],
)
def test_no_way_of_leaving_takes_the_buffer_along(
    children: Children, root: Path, method: str, ways: dict[str, int]
) -> None:
    with shmrb.ReplayBuffer("ring", storage=STORAGE, schema=SCHEMA, format="numpy") as rb:
        rb.add({"uid": 0})
        inode = (root / "ring").stat().st_ino
        visitors = {
            way: children.start(use_and_leave, method=method, way=way, uid=uid)
            for uid, way in enumerate(ways, 1)
        }
        for way, child in visitors.items():
            assert child.expect("used") == {"drawn": 4}
            child.send("leave")
            if way in ("terminate", "kill"):
                child.signal(-ways[way])
            assert child.wait() == ways[way], child.report()
            rb.add({"uid": 100})
            _check_what_was_said(child, way)
        assert (root / "ring").stat().st_ino == inode
        assert {*range(1 + len(ways)), 100} == set(rb["uid"].tolist())
        assert [client.pid for client in rb.statistics().clients if client.alive] == [os.getpid()]
    # With nobody attached at all, it is still there.
    with shmrb.attach("ring", format="numpy") as again:
        assert len(again) == 1 + 2 * len(ways)


def _check_what_was_said(child: Child, way: str) -> None:
    """Nothing, but for the user's own exception."""
    if way == "exception":
        assert "RuntimeError: on purpose" in child.stderr
        assert child.stderr.count("Traceback") == 1
    else:
        assert child.stderr == ""


def test_a_tree_of_processes_ends_without_a_word(children: Children) -> None:
    """No tracker complains about what it should not know."""
    methods = {"fork": 16, "spawn": 2, "forkserver": 2}
    creator = children.start(create_and_send_visitors, methods=methods)
    assert creator.expect("ended") == {"codes": [0] * 20, "records": 28}
    creator.succeed()
    assert creator.stderr == ""
    assert len(shmrb.attach("tree", format="numpy")) == 28


# Leaving nothing behind


class Costs:
    """What processes hold: descriptors, mappings, memory of their own."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._before = [self._of(pid) for pid in pids]

    def check(self) -> None:
        """They hold what they held."""
        for pid, before in zip(self._pids, self._before, strict=True):
            now = until(lambda pid=pid, before=before: self._if_settled(pid, before))
            print(f"descriptors {before[0]}→{now[0]}, maps {before[1]}→{now[1]}, ", end="")
            print(f"private {before[2] / MIB:.1f}→{now[2] / MIB:.1f} MiB")
            assert now[2] - before[2] < 2 * MIB

    def _if_settled(self, pid: int, before: tuple[int, int, int]) -> tuple[int, int, int] | None:
        """The daemon may still be hanging up on the last visitor."""
        now = self._of(pid)
        return now if now[0] <= before[0] and now[1] <= before[1] else None

    @staticmethod
    def _of(pid: int) -> tuple[int, int, int]:
        process = psutil.Process(pid)
        shared = Path(f"/proc/{pid}/maps").read_text().count("/dev/shm/")
        return process.num_fds(), shared, int(process.memory_full_info().uss)


@pytest.mark.parametrize("times", [200, pytest.param(5_000, marks=LONG)])
def test_visits_leave_client_and_daemon_as_they_were(
    daemons: Daemons, children: Children, times: int
) -> None:
    """The daemon remembers a thousand events, and nothing else."""
    daemon = daemons.start("--sweep-interval-s=0.02")
    with shmrb.connect(timeout=30) as client:
        rb = client.create("ring", storage=STORAGE, schema=SCHEMA, format="numpy")
        rb.add({"uid": 0})
        visitor = children.start(visit_again_and_again, times=times)
        visitor.expect("warm")
        costs = Costs(visitor.pid, daemon.pid)
        visitor.send("on")
        visitor.expect("done")
        costs.check()
        _check_that_nobody_is_left(client, rb)
        assert rb.write_count == 1 + times // 2
        visitor.send("end")
        visitor.succeed()


@pytest.mark.parametrize("times", [30, pytest.param(500, marks=LONG)])
def test_short_lived_processes_leave_the_daemon_as_it_was(
    daemons: Daemons, children: Children, times: int
) -> None:
    """Every other one dies."""
    daemon = daemons.start("--sweep-interval-s=0.02")
    with shmrb.connect(timeout=30) as client:
        rb = client.create("ring", storage=STORAGE, schema=SCHEMA, format="numpy")
        sender = children.start(send_short_lived, times=times)
        sender.expect("warm")
        costs = Costs(daemon.pid)
        sender.send("on")
        sender.expect("done")
        costs.check()
        _check_that_nobody_is_left(client, rb)
        assert rb.write_count == times
        sender.send("end")
        sender.succeed()


def _check_that_nobody_is_left(client: shmrb.Client, rb: shmrb.ReplayBuffer) -> None:
    tokens = [other.token for other in rb.statistics().clients]
    until(lambda: len(rb._attachment.member.segment.clients()) == 2)
    assert rb._attachment.member.token in tokens
    assert client.list("ring")[0].clients == 1, "the daemon does not count"
