"""Clients and daemons in containers: the root and the socket's directory are all that they share.

Each has PID, user, mount and IPC namespaces of its own, so /dev/shm is another one there, no
semaphore of a buffer can be opened, and every process has the number 2.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers import container as inside
from helpers.child import emit, receive
from helpers.daemons import Daemons, daemons_for
from helpers.procs import Child, Children, until
from shmrb import core
from shmrb.core import Bell, Status
from shmrb.segment import doorbell, names
from shmrb.segment.member import Member

SCHEMA = {"uid": "int64"}
STORAGE = shmrb.SharedStorage(64)
# The process that enters a container is its first; what it starts is the second.
WORKER = 2

CLONE_NEWPID = 0x2000_0000

Contained = Callable[..., Child]


@pytest.fixture
def sockets(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the daemon's socket, which containers are given beside the root."""
    directory = root.parent / "sockets"
    directory.mkdir()
    monkeypatch.setenv("SHMRB_SOCKET", str(directory / "daemon.sock"))
    return directory


@pytest.fixture
def contained(children: Children, root: Path, sockets: Path) -> Contained:
    """Starts a function of this file in a container."""
    enter = ["unshare", *inside.NAMESPACES]
    probe = subprocess.run([*enter, "mount", "-t", "proc", "proc", "/proc"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip(f"no namespaces for this user: {probe.stderr.decode().strip()}")

    def start(
        function: Callable[..., None], environment: dict[str, str] | None = None, **kwargs: object
    ) -> Child:
        file = inspect.getsourcefile(function)
        assert file is not None
        script = str(Path(inside.__file__).resolve())
        words = [script, root, sockets, file, function.__name__, json.dumps(kwargs)]
        command = [*enter, sys.executable, *map(str, words)]
        return children.program(command, name=function.__name__, environment=environment)

    return start


@pytest.fixture
def daemons(children: Children, tmp_path: Path, sockets: Path) -> Iterator[Daemons]:
    """Starts daemons outside of all containers."""
    with daemons_for(children, tmp_path) as started:
        yield started


@pytest.fixture
def rb(sockets: Path) -> Iterator[shmrb.ReplayBuffer]:
    """Ten records in a ring that was made outside."""
    with shmrb.ReplayBuffer("ring", storage=STORAGE, schema=SCHEMA, format="numpy") as made:
        made.extend({"uid": np.arange(10)})
        yield made


def outside_pid(contained: Child) -> int:
    """The number that the host knows a container's worker by."""
    first = until(lambda: _child_of(contained.pid))
    return int(until(lambda: _child_of(first)))


def _child_of(pid: int) -> int | None:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(words[0]) if words else None


def alive(rb: shmrb.ReplayBuffer) -> list[int]:
    return [client.pid for client in rb.statistics().clients if client.alive]


# What runs in the containers


def use_the_daemon() -> None:
    shared_memory = [
        os.path.join(where, name)
        for where, _, names in os.walk(inside.SHARED_MEMORY)
        for name in names
    ]
    with shmrb.connect(timeout=30) as client:
        handle = client.attach("made/outside", format="numpy", client_name="inside")
        records, _ = names.semaphore_names(handle._attachment.member.uuid)
        has_semaphores = doorbell.open_semaphore(records) is not None
        records = handle["uid"].tolist()
        handle.extend({"uid": np.arange(3)})
        made = client.create("made/inside", storage=STORAGE, schema=SCHEMA, format="numpy")
        made.extend({"uid": np.arange(4)})
    emit(
        "used",
        pid=os.getpid(),
        semaphores=has_semaphores,
        records=records,
        shared_memory=shared_memory,
    )
    receive()
    handle.close()
    made.close()


def wait_for_bell(root: str) -> None:
    """Sleeps until it is rung for; a slice that ends by itself is no reason to stop."""

    def is_over() -> bool:
        emit("counted")
        return False

    with Member.join(root, "ring") as member:
        while not member.bell(Bell.RECORDS).wait(is_over):
            pass
    emit("woken")


def write_when_told() -> None:
    handle = shmrb.attach("ring", format="numpy", client_name="writer")
    emit("attached", pid=os.getpid(), token=handle._attachment.member.token)
    while receive():
        handle.extend({"uid": np.arange(4)})
        emit("written", records=len(handle))


def write_to_a_point(point: str, action: str) -> None:
    """Writes until it stands still or dies."""
    handle = shmrb.attach("ring", format="numpy", client_name=action)
    emit("attached", pid=os.getpid(), token=handle._attachment.member.token)
    receive()
    core.stop_at(point, action)
    handle.extend({"uid": np.arange(4)})
    emit("written")


def use_below() -> None:
    """Uses what it has in a child of a child, which bears its number in a namespace below."""
    handle = shmrb.attach("ring", format="numpy", batch_size=16, prefetch=2)
    client = shmrb.connect(timeout=30)
    handle.sample()
    client.ping()
    ctypes.CDLL(None).unshare(CLONE_NEWPID)
    if os.fork() == 0:
        if os.fork() == 0:
            _tell("below", handle, client)
            handle.close()
            os._exit(0)
        os.wait()
        os._exit(0)
    os.wait()
    _tell("above", handle, client)


def _tell(event: str, handle: shmrb.ReplayBuffer, client: shmrb.Client) -> None:
    connections = re.search(r"^shmrb_daemon_connections (\d+)", client.metrics(), re.MULTILINE)
    emit(
        event,
        pid=os.getpid(),
        token=handle._attachment.member.token,
        drawn=[handle.sample()["uid"].tolist() for _ in range(2)],
        connections=int(connections[1]),
    )


def serve() -> None:
    from shmrbd.__main__ import main

    emit("serving", pid=os.getpid())
    sys.exit(main([]))


# Tests


def test_a_container_uses_what_the_daemon_has(
    contained: Contained, daemons: Daemons, root: Path, sockets: Path
) -> None:
    daemon = daemons.start("--sweep-interval-s=0.01")
    with shmrb.connect(timeout=30) as client:
        rb = client.create("made/outside", storage=STORAGE, schema=SCHEMA, format="numpy")
        rb.extend({"uid": np.arange(10)})
        child = contained(use_the_daemon)
        seen = child.expect("used")
        assert seen["pid"] == WORKER
        assert seen["records"] == list(range(10))
        assert not seen["semaphores"], "it waits on the futex words"
        visible = {Path(path).relative_to(root.parent).parts[0] for path in seen["shared_memory"]}
        assert visible == {root.name, sockets.name}, "and nothing else of the host's"
        assert len(rb) == 13
        assert shmrb.attach("made/inside", format="numpy")["uid"].tolist() == [0, 1, 2, 3]
        until(lambda: f"client=inside pid={WORKER} " in daemon.stderr)
        child.send("end")
        child.succeed()
        until(lambda: "left buffer=made/outside client=inside" in daemon.stderr)
    rb.close()


def test_a_container_that_waits_is_woken_from_outside(
    contained: Contained, rb: shmrb.ReplayBuffer, root: Path
) -> None:
    child = contained(wait_for_bell, root=str(root))
    while child.expect_line('"event": "(counted|woken)"')[1] == "counted":
        rb.extend({"uid": np.arange(5)})
    child.succeed()


def test_whoever_waits_outside_hears_a_container(
    contained: Contained, rb: shmrb.ReplayBuffer
) -> None:
    """Who rings there cannot post the semaphore on which one waits here."""
    rb.empty()
    child = contained(write_when_told)
    child.expect("attached")
    child.send("write")
    assert rb.sample(2, timeout=60)["uid"].shape == (2,)
    bell = rb._attachment.member.bell(Bell.RECORDS)

    def is_over() -> bool:
        child.send("write")
        return False

    # Each sleep but those that are unrung makes it write once more.
    while not bell.wait(is_over):
        child.expect("written")


def test_a_death_in_a_container_is_proved_outside_and_the_other_way(
    contained: Contained, children: Children, rb: shmrb.ReplayBuffer
) -> None:
    inner = contained(write_to_a_point, point="holding_lock", action="kill")
    inner.expect("attached")
    assert sorted(alive(rb)) == [WORKER, os.getpid()]
    inner.send("go")
    assert inner.wait() == inside.SIGNALLED + signal.SIGKILL
    rb.extend({"uid": np.arange(4)})
    assert alive(rb) == [os.getpid()]
    assert rb.statistics().counters["lock_take_overs"] == 1

    survivor = contained(write_when_told)
    survivor.expect("attached")
    outer = children.start(write_to_a_point, point="holding_lock", action="kill")
    outer.send("go")
    assert outer.wait() == -signal.SIGKILL
    survivor.send("write")
    assert survivor.expect("written") == {"records": 18}
    assert rb.statistics().counters["lock_take_overs"] == 2


def test_equal_pids_confuse_nobody(contained: Contained, rb: shmrb.ReplayBuffer) -> None:
    """What bears the number of the dead is no sign of life, nor of death."""
    living = contained(write_to_a_point, point="mid_payload", action="stop")
    dying = contained(write_to_a_point, point="mid_payload", action="kill")
    tokens = set()
    for child in (living, dying):
        seen = child.expect("attached")
        assert seen["pid"] == WORKER
        tokens.add(seen["token"])
    assert len(tokens) == 2
    number = outside_pid(living)
    living.send("go")
    until(lambda: Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    dying.send("go")
    assert dying.wait() == inside.SIGNALLED + signal.SIGKILL
    # Both stood over their records: those of the dead are gone, those of the living are its own.
    rb.extend({"uid": np.arange(4)})
    until(lambda: rb._attachment.member.segment.reap()[0] == Status.OK and len(alive(rb)) == 2)
    assert sorted(alive(rb)) == [WORKER, os.getpid()]
    assert rb.statistics().counters["clients_recovered"] == 1
    assert rb.statistics().counters["voided_records"] == 4
    os.kill(number, signal.SIGCONT)
    living.expect("written")
    assert len(rb) == 18
    living.succeed()


def test_a_child_with_its_parents_number_is_another_process(
    contained: Contained, daemons: Daemons, rb: shmrb.ReplayBuffer
) -> None:
    daemons.start()
    child = contained(use_below)
    below, above = child.expect("below"), child.expect("above")
    child.succeed()
    assert below["pid"] == above["pid"] == WORKER
    assert below["token"] != above["token"]
    assert below["connections"] == 2, "it does not talk on its parent's"
    # What was drawn ahead is handed out once.
    assert below["drawn"] != above["drawn"]


def test_a_living_process_with_the_number_of_the_dead_is_no_sign_of_life(
    children: Children, rb: shmrb.ReplayBuffer, root: Path
) -> None:
    """As when a number is given again, to a stranger or to this very process."""
    for number in (os.getppid(), os.getpid()):
        victim = children.start(write_to_a_point, point="mid_payload", action="kill")
        token = victim.expect("attached")["token"]
        victim.send("go")
        assert victim.wait() == -signal.SIGKILL
        member = rb._attachment.member

        def entry(token: int = token) -> dict[str, Any] | None:
            rows = rb._attachment.member.segment.clients()
            return next((row for row in rows if row["token"] == token), None)

        block = core.abi()["ClientBlock"]
        offset, size = block["fields"]["pid"]
        start = member.layout.regions["clients"].offset + entry()["slot"] * block["size"]
        with open(root / "ring" / "ctl", "r+b") as control:
            control.seek(start + offset)
            control.write(number.to_bytes(size, "little"))
        assert (entry()["pid"], entry()["alive"]) == (number, False)
        member.segment.reap()
        assert entry() is None
        rb.extend({"uid": np.arange(4)})


def test_a_daemon_in_a_container_looks_after_those_in_another(
    contained: Contained, rb: shmrb.ReplayBuffer
) -> None:
    daemon = contained(serve)
    assert daemon.expect("serving")["pid"] == WORKER
    with shmrb.connect(timeout=30) as client:
        assert client.ping().pid == WORKER
    victim = contained(use_the_daemon_and_hold_on)
    victim.expect("holds")
    until(lambda: f"attached buffer=ring client=holder pid={WORKER} " in daemon.stderr)
    victim.kill()
    until(lambda: f"died buffer=ring client=holder pid={WORKER} " in daemon.stderr)
    until(lambda: "repaired buffer=ring" in daemon.stderr)
    assert sorted(alive(rb)) == [WORKER, os.getpid()]


def use_the_daemon_and_hold_on() -> None:
    client = shmrb.connect(timeout=30)
    handle = client.attach("ring", format="numpy", client_name="holder")
    emit("holds", records=len(handle))
    receive()
