"""Daemons are born, die, come back and meet each other: real processes, real sockets."""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import shmrb
from helpers.child import emit
from helpers.daemons import Daemons
from helpers.procs import Children, until
from shmrb.client import Client
from shmrb.errors import AttachError, DaemonError
from shmrbd import EXIT_TAKEN
from shmrbd.signals import STOPS, Signals

SCHEMA = {"uid": "int64"}
LONG = [pytest.mark.long, pytest.mark.watchdog(900)]


def client() -> Client:
    return shmrb.connect(timeout=30)


def socket_path() -> Path:
    return Path(os.environ["SHMRB_SOCKET"])


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=LONG)])
def test_attach_works_at_the_moment_of_ready(daemons: Daemons, rounds: int) -> None:
    attached = 0
    for round_ in range(rounds):
        child = daemons.start(abstract=round_ % 2 == 1)
        with client() as asking:
            handle = asking.create(
                f"ready/{round_}", storage=shmrb.SharedStorage(64), schema=SCHEMA, format="numpy"
            )
            handle.extend({"uid": np.arange(10)})
            assert len(shmrb.attach("ready/0", format="numpy")) == 10
            handle.close()
        attached += 1
        child.signal(signal.SIGTERM)
        assert child.wait() == 0
    print(f"{rounds} starts, attached at READY=1 {attached} times")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_it_in_order(daemons: Daemons, number: signal.Signals) -> None:
    child, manager = daemons.launch()
    manager.hear("READY=1", child)
    with client() as asking:
        asking.create("a", storage=shmrb.SharedStorage(64), schema=SCHEMA, format="numpy")
        child.signal(number)
        manager.hear("STOPPING=1", child)
        assert child.wait() == 0
    assert not socket_path().exists()
    assert shmrb.attach("a", format="numpy").write_count == 0
    assert "Traceback" not in child.stderr


def test_a_stop_signal_that_comes_before_the_loop_runs_is_kept() -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        ready, _, _ = select.select([signals], [], [], 10)
        assert ready
        assert signals.caught() & STOPS == {signal.SIGTERM}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def write_on(buffer: str) -> None:
    """Writes and draws without a pause until it is told to stop; says how long a call ever took."""
    handle = shmrb.attach(buffer, timeout=30, format="numpy", client_name="writer")
    emit("attached")
    written, longest_s = 0, 0.0
    while not select.select([0], [], [], 0)[0]:
        before = time.perf_counter()
        handle.extend({"uid": np.arange(written, written + 10)})
        handle.sample(32)
        longest_s = max(longest_s, time.perf_counter() - before)
        written += 10
    emit("ended", written=written, longest_ms=longest_s * 1e3)
    handle.close()


@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=LONG)])
def test_clients_go_on_while_the_daemon_is_killed_and_restarted(
    daemons: Daemons, children: Children, rounds: int
) -> None:
    child = daemons.start()
    with client() as asking:
        reader = asking.create(
            "exp/replay", storage=shmrb.SharedStorage(4096), schema=SCHEMA, format="numpy"
        )
    writer = children.start(write_on, buffer="exp/replay")
    writer.expect("attached")
    adopted = 0
    for _ in range(rounds):
        until_more_is_written(reader)
        child.kill()
        # They go on with no daemon, and with the next one.
        assert socket_path().exists(), "a killed daemon leaves its socket"
        until_more_is_written(reader)
        child = daemons.start()
        with client() as asking:
            assert asking.ping().pid == child.pid
            before = reader.write_count
            assert asking.stats("exp/replay").write_count >= before
            assert [summary.clients for summary in asking.list()] == [2]
        adopted += "adopted buffer=exp/replay" in child.stderr
    assert adopted == rounds
    writer.send("stop")
    ended = writer.expect("ended")
    writer.succeed()
    print(
        f"{rounds} daemons killed under load, adopted {adopted} times, {ended['written']} records "
        f"written, longest gap of the attached {ended['longest_ms']:.1f} ms"
    )
    assert reader.write_count == ended["written"]
    assert sorted(reader[:]["uid"]) == list(range(ended["written"] - 4096, ended["written"]))


def until_more_is_written(reader: shmrb.ReplayBuffer) -> None:
    before = reader.write_count
    until(lambda: reader.write_count >= before + 5000)


def write_and_stop(buffer: str, point: str) -> None:
    """Stands still at a named point of a write."""
    handle = shmrb.attach(buffer, format="numpy", client_name="stopped")
    shmrb.core.stop_at(point, "stop")
    handle.extend({"uid": np.arange(8)})


@pytest.mark.parametrize("point", ["holding_lock", "mid_payload", "epoch_moved"])
def test_a_stopped_client_does_not_keep_the_daemon_from_starting_or_answering(
    daemons: Daemons, children: Children, point: str
) -> None:
    first = daemons.start()
    with client() as asking:
        handle = asking.create("a", storage=shmrb.SharedStorage(64), schema=SCHEMA, format="numpy")
        handle.extend({"uid": np.arange(8)})
        environment = {"SHMRB_STOP_AT": f"{point}:stop"} if point == "epoch_moved" else {}
        stopped = children.start(write_and_stop, buffer="a", point=point, environment=environment)
        stopped.wait_stopped()
        first.kill()
        daemons.start()
        assert asking.stats("a").size == 8
        assert [summary.name for summary in asking.list("a")] == ["a"]
        with pytest.raises(AttachError, match="in use"):
            asking.drop("a")
        asking.drop("a", force=True)


def test_a_second_daemon_of_the_root_is_refused(daemons: Daemons, tmp_path: Path) -> None:
    first = daemons.start()
    with client() as asking:
        asking.create("a", storage=shmrb.SharedStorage(64), schema=SCHEMA, format="numpy")
        for flags in ([], [f"--socket={tmp_path}/other.sock"], [f"--root={tmp_path}/other"]):
            second, _ = daemons.launch(*flags)
            assert second.wait() == EXIT_TAKEN
            assert "Another daemon already serves" in second.stderr
        assert not (tmp_path / "other.sock").exists()
        assert asking.ping().pid == first.pid
        assert [summary.name for summary in asking.list()] == ["a"]


def test_what_a_killed_daemon_leaves_does_not_keep_the_next_one_out(
    daemons: Daemons, root: Path
) -> None:
    first = daemons.start()
    first.kill()
    assert socket_path().exists()
    daemons.start().kill()
    lock, socket_lock = root / ".daemon.lock", Path(f"{socket_path()}.lock")
    socket_path().unlink()
    assert lock.exists()
    assert socket_lock.exists()
    daemons.start().kill()
    lock.unlink()
    socket_lock.unlink()
    last = daemons.start()
    with client() as asking:
        assert asking.ping().pid == last.pid


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
def test_a_foreign_socket_is_left_alone(daemons: Daemons, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as foreign:
        foreign.bind(str(socket_path()))
        foreign.listen()
        inode = socket_path().stat().st_ino
        child, _ = daemons.launch()
        assert child.wait() == EXIT_TAKEN
        assert "is no shmrb daemon" in child.stderr
        assert socket_path().stat().st_ino == inode


def test_a_plain_file_in_the_sockets_place_is_left_alone(daemons: Daemons) -> None:
    socket_path().write_text("precious")
    child, _ = daemons.launch()
    assert child.wait() == EXIT_TAKEN
    assert socket_path().read_text() == "precious"


def test_links_in_the_place_of_locks_are_not_followed(daemons: Daemons, root: Path) -> None:
    victim = root.parent / "victim"
    victim.write_text("precious")
    for lock in (root / ".daemon.lock", Path(f"{socket_path()}.lock")):
        lock.symlink_to(victim)
        child, _ = daemons.launch()
        assert child.wait() == 1
        assert str(lock) in child.stderr
        assert "Traceback" not in child.stderr
        assert victim.read_text() == "precious"
        lock.unlink()


def test_a_long_socket_path_is_refused_and_never_cut(daemons: Daemons, tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100)
    directory.mkdir()
    path = f"{directory}/first.sock"
    child, _ = daemons.launch(f"--socket={path}")
    assert child.wait() == 1
    assert f"has {len(path)} bytes" in child.stderr
    assert "at most 107" in child.stderr
    assert list(directory.iterdir()) == []
    with pytest.raises(DaemonError, match="at most 107"):
        shmrb.connect(path)


@pytest.mark.parametrize(
    ("umask", "root_mode", "expected"), [(0o777, 0o700, 0o600), (0, 0o770, 0o660)]
)
def test_modes_do_not_depend_on_the_umask(
    children: Children, root: Path, umask: int, root_mode: int, expected: int
) -> None:
    root.chmod(root_mode)
    program = f"import os, sys; os.umask({umask}); from shmrbd.__main__ import main; main([])"
    children.program([sys.executable, "-c", program], name="shmrbd")
    with client() as asking:
        asking.create("a", storage=shmrb.SharedStorage(64), schema=SCHEMA, format="numpy")
    assert stat.S_IMODE(socket_path().stat().st_mode) == expected
    assert stat.S_IMODE((root / "a").stat().st_mode) == root_mode
    assert stat.S_IMODE((root / "a" / "data").stat().st_mode) == expected


def test_the_daemon_makes_the_sockets_directory(daemons: Daemons, tmp_path: Path) -> None:
    path = tmp_path / "shmrb" / "daemon.sock"
    daemons.start(f"--socket={path}")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    with shmrb.connect(path) as asking:
        assert asking.ping().version == shmrb.__version__


def test_the_daemon_is_small(daemons: Daemons) -> None:
    child = daemons.start(torch_blocked=False)
    with client() as asking:
        make = {"storage": shmrb.SharedStorage(64), "schema": SCHEMA, "format": "numpy"}
        asking.create("a", **make).close()
        asking.drop("a")
    maps = Path(f"/proc/{child.pid}/maps").read_text()
    assert "torch" not in maps
    assert "numpy" not in maps
    rollup = Path(f"/proc/{child.pid}/smaps_rollup").read_text()
    private = sum(int(line.split()[1]) for line in rollup.splitlines() if "Private_" in line)
    print(f"daemon: {private / 1024:.1f} MiB private")
