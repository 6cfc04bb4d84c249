"""The daemon and its service manager: time, watchdog, passed sockets, reload, doors, limits."""

from __future__ import annotations

import grp
import json
import os
import re
import signal
import socket
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import shmrb
from helpers.child import emit, receive
from helpers.daemons import Daemons, Manager
from helpers.procs import Child, Children, until
from shmrb.errors import CapacityError, DaemonError, PermissionDeniedError, SpecError
from shmrb.segment.logind import Logind
from shmrbd import EXIT_USAGE, doors, service
from shmrbd.events import EventLog

STORAGE = shmrb.SharedStorage(64)
SCHEMA = {"uid": "int64"}


def client() -> shmrb.Client:
    return shmrb.connect(timeout=30)


def make(*names: str) -> None:
    with client() as asking:
        for name in names:
            asking.create(name, storage=STORAGE, schema=SCHEMA, format="numpy").close()


def facts(child: Child, kind: str) -> list[dict[str, str]]:
    """The facts of each line of that kind in the daemon's log."""
    lines = re.findall(rf"^shmrbd: {kind} (.*)$", child.stderr, re.MULTILINE)
    pair = re.compile(r'(\w+)=(?:("(?:[^"\\]|\\.)*")|(\S+))')
    return [
        {key: json.loads(quoted) if quoted else plain for key, quoted, plain in pair.findall(line)}
        for line in lines
    ]


# Time


def test_a_slow_start_asks_for_time_before_it_is_ready_and_a_stop_after_it_has_begun(
    daemons: Daemons,
) -> None:
    for name in ("a", "b"):
        shmrb.ReplayBuffer(name, storage=STORAGE, schema=SCHEMA, format="numpy").close()
    # Adopting the first buffer takes longer than the interval at which work is reported.
    slow = {"SHMRB_STOP_AT": "epoch_moved:pause:1:1100"}
    child, manager = daemons.launch(environment=slow)
    heard = manager.hear("READY=1", child)
    assert heard.count("EXTEND_TIMEOUT_USEC=30000000") == 2
    assert {"STATUS=adopted a", "STATUS=adopted b"} & set(heard)
    child.signal(signal.SIGTERM)
    child.signal(signal.SIGTERM)
    manager.hear("STOPPING=1", child)
    assert manager.hear_next(child)[0].startswith("EXTEND_TIMEOUT_USEC=")
    assert child.wait() == 0


def test_a_start_that_fails_is_never_ready(daemons: Daemons) -> None:
    child, manager = daemons.launch("--log-level=loud")
    assert child.wait() == EXIT_USAGE
    assert "log_level: expected one of debug" in child.stderr
    assert manager.is_silent()


# Watchdog


def signs_of_life(manager: Manager, child: Child, count: int) -> list[float]:
    times = []
    while len(times) < count:
        if "WATCHDOG=1" in manager.hear_next(child):
            times.append(time.monotonic())
    return times


def test_signs_of_life_come_while_the_loop_works_and_stop_with_it(daemons: Daemons) -> None:
    child, manager = daemons.launch(environment={"WATCHDOG_USEC": "400000"})
    manager.hear("READY=1", child)
    started = time.monotonic()
    times = signs_of_life(manager, child, 5)
    # Not faster than half the interval either; how late they are is the machine's affair.
    assert times[-1] - started > 0.5
    make("a")
    signs_of_life(manager, child, 2)
    child.stop()
    until(manager.is_silent)
    assert manager.is_silent()
    child.resume()
    signs_of_life(manager, child, 1)


def test_a_loop_that_is_stuck_in_a_request_gives_no_sign(daemons: Daemons) -> None:
    # As if the core hung: creating pauses far longer than the watchdog's interval.
    stuck = {"WATCHDOG_USEC": "200000", "SHMRB_STOP_AT": "filled:pause:1:800"}
    child, manager = daemons.launch(environment=stuck)
    signs_of_life(manager, child, 2)
    with shmrb.connect(timeout=0.1) as asking, pytest.raises(shmrb.errors.DeadlineError):
        asking.create("a", storage=STORAGE, schema=SCHEMA)
    lines: list[str] = []
    while not lines or not lines[-1].startswith("WATCHDOG_USEC="):
        lines += manager.hear_next(child)
    assert int(lines[-1].partition("=")[2]) > 200_000, "small buffers get a little more time"
    assert manager.hear_next(child) == ["WATCHDOG_USEC=200000"], "nothing in between"
    signs_of_life(manager, child, 1)


def test_without_a_watchdog_there_are_no_signs(daemons: Daemons) -> None:
    child, manager = daemons.launch(
        environment={"WATCHDOG_USEC": "100000", "WATCHDOG_PID": str(os.getpid())}
    )
    manager.hear("READY=1", child)
    make("a")
    assert manager.is_silent()


# Passed sockets


@pytest.fixture
def passed() -> socket.socket:
    """A control socket that the manager made and keeps."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.environ["SHMRB_SOCKET"])
        listener.listen()
        yield listener


def test_a_passed_socket_is_served_and_outlives_the_daemon(
    daemons: Daemons, passed: socket.socket
) -> None:
    path = Path(os.environ["SHMRB_SOCKET"])
    inode = path.stat().st_ino
    first = daemons.start(passed=[passed.fileno()])
    with client() as asking:
        assert asking.ping().pid == first.pid
        first.signal(signal.SIGTERM)
        assert first.wait() == 0
        assert path.stat().st_ino == inode
        # Nobody serves; whoever connects queues in the manager's socket until somebody does.
        second = daemons.start(passed=[passed.fileno()])
        assert asking.ping().pid == second.pid


def test_a_passed_socket_of_another_kind_is_refused(
    daemons: Daemons, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf,
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as everywhere,
        open(os.devnull) as no_socket,
    ):
        stream.bind(str(tmp_path / "stream"))
        stream.listen()
        everywhere.bind(("0.0.0.0", 0))
        everywhere.listen()
        child, _ = daemons.launch(passed=[stream.fileno()])
        assert child.wait() == 1
        assert "Passed descriptor 3: expected one listening SOCK_SEQPACKET" in child.stderr
        environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
        for wrong in (deaf, everywhere, no_socket):
            copy = os.dup(wrong.fileno())
            monkeypatch.setattr(doors, "_FIRST_PASSED", copy)
            with pytest.raises(DaemonError, match=f"Passed descriptor {copy}: expected"):
                doors.passed_sockets(dict(environment))
            with suppress(OSError):
                os.close(copy)


def test_two_control_sockets_are_one_too_many(daemons: Daemons, passed: socket.socket) -> None:
    child, _ = daemons.launch(passed=[passed.fileno(), passed.fileno()])
    assert child.wait() == 1
    assert "Passed descriptor 4: expected" in child.stderr


# Reload


def test_a_reload_takes_limits_and_keeps_the_rest(daemons: Daemons, tmp_path: Path) -> None:
    file = tmp_path / "shmrbd.toml"
    file.write_text("max_buffers = 1\n")
    child, manager = daemons.launch(f"--config={file}")
    manager.hear("READY=1", child)
    make("a")
    with pytest.raises(CapacityError, match="max_buffers allows 1"):
        make("b")
    file.write_text("max_buffers = 2\nmetrics_port = 9\n")
    child.signal(signal.SIGHUP)
    reloading = manager.hear("RELOADING=1", child)
    assert "READY=1" in [*reloading, *manager.hear("READY=1", child)]
    make("b")
    assert facts(child, "reloaded") == [{"changed": "max_buffers", "needs_restart": "metrics_port"}]
    file.write_text("max_buffers = 'many'")
    child.signal(signal.SIGHUP)
    manager.hear("READY=1", child)
    assert "max_buffers: expected int, got 'many'" in facts(child, "not_reloaded")[0]["reason"]
    make("a", "b")
    with pytest.raises(CapacityError, match="max_buffers allows 2"):
        make("c")


# Limits


def test_limits_on_bytes_and_clients_refuse_with_numbers(daemons: Daemons, root: Path) -> None:
    daemons.start("--max-bytes=200000", "--max-clients=100")
    with client() as asking:
        with pytest.raises(SpecError, match=r"at most 100, .* got 1024"):
            asking.create("a", storage=STORAGE, schema=SCHEMA)
        small = {"storage": STORAGE, "schema": SCHEMA, "max_clients": 10, "format": "numpy"}
        asking.create("a", **small).close()
        used = asking.list("a")[0].bytes
        with pytest.raises(CapacityError, match="max_bytes allows") as caught:
            asking.create("b", storage=shmrb.SharedStorage(20_000), schema=SCHEMA, max_clients=10)
        assert caught.value.available_bytes == 200_000 - used
        assert caught.value.needed_bytes > caught.value.available_bytes
        assert not (root / "b").exists()
        asking.create("a", **small).close()
        asking.create("a", **small, exist="replace").close()
        # The place of a dropped buffer is free again.
        asking.drop("a")
        assert asking.list() == []
        asking.create("b", **small).close()


# Doors


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may take another group and become nobody")
@pytest.mark.parametrize("umask", [0o077, 0])
def test_the_configured_group_and_mode_are_those_of_everything_under_any_umask(
    daemons: Daemons, children: Children, root: Path, umask: int
) -> None:
    group = grp.getgrnam("games")
    before = os.umask(umask)
    try:
        daemons.start("--group=games", "--mode=0660")
    finally:
        os.umask(before)
    make("a")
    path = Path(os.environ["SHMRB_SOCKET"])
    root.parent.chmod(0o755)
    places = {root: 0o2770, root / "a": 0o2770, root / "a" / "data": 0o660, path: 0o660}
    for place, mode in places.items():
        found = place.stat()
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (group.gr_gid, mode), place
    member = children.start(visit, user=65534, group=group.gr_gid)
    assert member.expect("came in") == {"records": 2}
    member.succeed()
    stranger = children.start(visit, user=65534, group=65534)
    assert "games" in stranger.expect("kept out")["reason"]
    stranger.succeed()


def visit(user: int, group: int) -> None:
    """Becomes somebody else and tries to write a record."""
    # While this user may still read where modules lie.
    assert shmrb.attach
    assert shmrb.connect
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    try:
        handle = shmrb.attach("a", format="numpy")
    except PermissionDeniedError as error:
        emit("kept out", reason=str(error))
        return
    handle.extend({"uid": np.arange(2)})
    emit("came in", records=len(handle))
    handle.close()
    with shmrb.connect() as asking:
        assert asking.ping().pid


def test_a_group_that_is_not_there_is_refused(daemons: Daemons) -> None:
    child, _ = daemons.launch("--group=no-such-group")
    assert child.wait() == EXIT_USAGE
    assert "expected a group of this system, got 'no-such-group'" in child.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give another group to the root")
def test_a_root_of_another_group_is_put_right(daemons: Daemons, root: Path) -> None:
    os.chown(root, -1, grp.getgrnam("games").gr_gid)
    root.chmod(0o755)
    daemons.start("--mode=0600")
    found = root.stat()
    assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (os.getegid(), 0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give the root to somebody else")
def test_a_root_that_another_user_made_is_not_served(daemons: Daemons, root: Path) -> None:
    os.chown(root, 65534, -1)
    child, _ = daemons.launch()
    assert child.wait() == 1
    assert "expected a directory of uid 0 or of root, got one of uid 65534" in child.stderr


def test_the_daemon_works_where_no_page_may_be_written_and_executed(
    daemons: Daemons, children: Children
) -> None:
    # MemoryDenyWriteExecute= of the unit, as the kernel itself offers it (Linux 6.3).
    program = (
        "import ctypes, sys; prctl = ctypes.CDLL(None, use_errno=True).prctl\n"
        "sys.exit(77) if prctl(65, 1, 0, 0, 0) else None\n"
        "from shmrbd.__main__ import main; sys.exit(main([]))"
    )
    child = children.program([sys.executable, "-c", program], name="shmrbd")
    try:
        make("a")
    except DaemonError:
        assert child.wait() == 77, child.stderr
        pytest.skip("this kernel has no PR_SET_MDWE")
    with client() as asking:
        assert "shmrb_daemon_info" in asking.metrics()


# What is told


def come_and_go(buffer: str) -> None:
    """Attaches, leaves when told, attaches again and dies while it writes."""
    handle = shmrb.attach(buffer, format="numpy", client_name='a "b"\nc=d')
    emit("attached")
    receive()
    handle.close()
    emit("left")
    receive()
    handle = shmrb.attach(buffer, format="numpy", client_name="victim")
    shmrb.core.stop_at("before_commit", "kill")
    emit("attached")
    receive()
    handle.extend({"uid": np.arange(8)})


def test_who_came_left_died_and_was_repaired_is_told(daemons: Daemons, children: Children) -> None:
    daemon = daemons.start("--sweep-interval-s=0.01")
    make("exp/replay")
    child = children.start(come_and_go, buffer="exp/replay")

    def seen(kind: str, name: str) -> dict[str, str] | None:
        return next((one for one in facts(daemon, kind) if name in one.get("client", "")), None)

    child.expect("attached")
    came = until(lambda: seen("attached", "c=d"))
    assert came["pid"] == str(child.pid)
    assert came["buffer"] == "exp/replay"
    assert "\nc=d" not in daemon.stderr, "no name forges a line"
    child.send()
    child.expect("left")
    until(lambda: seen("left", "c=d"))
    child.send()
    child.expect("attached")
    until(lambda: seen("attached", "victim"))
    child.send()
    until(lambda: seen("died", "victim"))
    [repaired] = until(lambda: facts(daemon, "repaired"))
    assert (repaired["buffer"], repaired["voided_records"]) == ("exp/replay", "8")
    with client() as asking:
        page = asking.events()
        assert page.pid == daemon.pid
        theirs = [event for event in page.events if event.facts.get("pid") == child.pid]
        assert [event.kind for event in theirs] == ["attached", "left", "attached", "died"]
        last = page.events[-1]
        assert asking.events(after=last.number).events == []
        assert [event.number for event in asking.events(after=last.number - 2).events] == [
            last.number - 1,
            last.number,
        ]


def test_a_root_that_logind_will_remove_is_warned_of_at_the_start(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    around = Logind(files=[], linger="/none", systemd=str(tmp_path), shared_memory=str(root.parent))
    elsewhere = str(tmp_path)
    for uid, places, expected in (
        (999, [str(root)], 0),
        (1234, [elsewhere], 0),
        (1234, [str(root)], 1),
        # Buffers on disks, so called, whose directory lies below /dev/shm.
        (1234, [elsewhere, str(root / "disks")], 1),
    ):
        journal = EventLog()
        service.warn_of_logind(journal, places, uid, around)
        assert journal.totals["at_risk"] == expected
    assert "RemoveIPC=yes: logind removes" in caplog.text


def test_on_journald_every_line_has_its_level(daemons: Daemons, tmp_path: Path) -> None:
    # JOURNAL_STREAM names the very file that stderr is; the child's stderr exists once it runs.
    program = "import os; f = os.fstat(2); os.environ['JOURNAL_STREAM'] = f'{f.st_dev}:{f.st_ino}'"
    (tmp_path / "sitecustomize.py").write_text(program)
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    child = daemons.start(environment={"PYTHONPATH": paths})
    child.signal(signal.SIGTERM)
    assert child.wait() == 0
    lines = child.stderr.splitlines()
    assert lines
    assert all(line.startswith("<6>") for line in lines)
