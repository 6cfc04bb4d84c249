"""What a running daemon answers, to well-behaved clients and to others."""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.child import emit, receive
from helpers.daemons import Daemons
from helpers.procs import Child, Children, until
from shmrb import wire
from shmrb.errors import (
    AlreadyExistsError,
    AttachError,
    CapacityError,
    DaemonError,
    DeadlineError,
    EmptyBufferError,
    NoSuchBufferError,
    SpecError,
    StaleAttachmentError,
)
from shmrb.segment.survey import BufferSummary

STORAGE = shmrb.SharedStorage(64)
SCHEMA = {"uid": "int64"}


@pytest.fixture
def daemon(daemons: Daemons) -> Child:
    return daemons.start()


@pytest.fixture
def client(daemon: Child) -> Any:
    with shmrb.connect(timeout=30) as connected:
        yield connected


def raw_connection() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(os.environ["SHMRB_SOCKET"])
    return sock


def flood(sock: socket.socket) -> None:
    while True:
        sock.send(b'{"v": 1, "op": "ping"}')


def open_descriptors(child: Child) -> int:
    return len(os.listdir(f"/proc/{child.pid}/fd"))


# Buffers


def test_a_buffer_from_birth_to_end(client: shmrb.Client, root: Path) -> None:
    handle = client.create(
        "exp/replay", storage=STORAGE, schema=SCHEMA, batch_size=4, format="numpy", seed=1
    )
    handle.extend({"uid": np.arange(10)})
    assert len(handle.sample()["uid"]) == 4
    other = client.attach("exp/replay", format="numpy")
    assert len(other) == 10
    assert client.stats("exp/replay").write_count == 10
    expected = BufferSummary(
        name="exp/replay",
        root=str(root),
        state="ready",
        purpose="buffer",
        storage="SharedStorage",
        lifetime="persistent",
        capacity=64,
        lanes=1,
        size=10,
        write_count=10,
        bytes=client.list()[0].bytes,
        clients=2,
    )
    assert client.list() == [expected]
    with pytest.raises(AttachError, match=rf"in use.*\(pid {os.getpid()}\)"):
        client.drop("exp/replay")
    assert client.list() == [expected], "a refused drop changes nothing"
    other.close()
    handle.close()
    client.drop("exp/replay")
    assert client.list() == []
    assert not (root / "exp+replay").exists()


def test_members_of_a_dropped_buffer_learn_it_at_their_next_call(client: shmrb.Client) -> None:
    handle = client.create("a", storage=STORAGE, schema=SCHEMA, format="numpy")
    client.drop("a", force=True)
    with pytest.raises(StaleAttachmentError):
        handle.extend({"uid": np.arange(3)})


def test_the_same_again_is_attached_to_and_another_is_refused(client: shmrb.Client) -> None:
    first = client.create("a", storage=STORAGE, schema=SCHEMA, format="numpy")
    first.add({"uid": np.int64(7)})
    assert len(client.create("a", storage=STORAGE, schema=SCHEMA, format="numpy")) == 1
    with pytest.raises(AlreadyExistsError, match="capacity: existing 64, asked for 65"):
        client.create("a", storage=shmrb.SharedStorage(65), schema=SCHEMA)
    with pytest.raises(AlreadyExistsError):
        client.create("a", storage=STORAGE, schema=SCHEMA, exist="error")
    new = client.create("a", storage=STORAGE, schema=SCHEMA, exist="replace", format="numpy")
    assert len(new) == 0
    assert client.stats("a").write_count == 0


def test_a_declared_buffer_is_adopted_once_its_first_record_has_come(client: shmrb.Client) -> None:
    handle = client.create("a", storage=STORAGE, format="numpy")
    assert [summary.state for summary in client.list()] == ["declared"]
    assert not client.stats("a").initialized
    with pytest.raises(EmptyBufferError):
        handle.sample(1)
    handle.extend({"uid": np.arange(3)})
    until(lambda: "shmrbd" in {one.name for one in client.stats("a").clients})
    assert [summary.state for summary in client.list()] == ["ready"]


def test_buffers_that_others_made_or_dropped_are_followed(client: shmrb.Client) -> None:
    handle = shmrb.ReplayBuffer("theirs", storage=STORAGE, schema=SCHEMA, format="numpy")
    until(lambda: "shmrbd" in {one.name for one in client.stats("theirs").clients})
    second = shmrb.ReplayBuffer(
        "theirs", storage=STORAGE, schema=SCHEMA, format="numpy", exist="replace"
    )
    second.add({"uid": np.int64(1)})
    until(lambda: "shmrbd" in {one.name for one in client.stats("theirs").clients})
    handle.close()
    second.close()
    client.drop("theirs")


def test_a_list_takes_a_prefix_part_by_part(client: shmrb.Client) -> None:
    for name in ("exp4/a", "exp42/a", "exp42/b/c", "exp42"):
        client.create(name, storage=STORAGE, schema=SCHEMA, format="numpy").close()
    found = [summary.name for summary in client.list("exp42")]
    assert sorted(found) == ["exp42", "exp42/a", "exp42/b/c"]


def test_a_reply_that_no_packet_holds_arrives_whole(client: shmrb.Client, daemon: Child) -> None:
    storage = shmrb.SharedStorage(1024, lanes=1024)
    client.create("wide", storage=storage, schema=SCHEMA, format="numpy").close()
    before = open_descriptors(daemon)
    found = client.stats("wide")
    assert len(json.dumps(found.to_json())) > wire.PACKET_BYTES
    assert [lane.lane for lane in found.lanes] == list(range(1024))
    assert open_descriptors(daemon) == before


def test_errors_keep_their_class_and_their_numbers(client: shmrb.Client) -> None:
    for call in (client.attach, client.stats, client.drop):
        with pytest.raises(NoSuchBufferError, match="'nope'"):
            call("nope")
    with pytest.raises(SpecError, match=r"\.\./\.\./etc"):
        client.create("../../etc", storage=STORAGE, schema=SCHEMA)
    with pytest.raises(SpecError, match="end it with the daemon"):
        client.create("a", storage=STORAGE, schema=SCHEMA, lifetime="creator")
    with pytest.raises(SpecError, match=r"transform: .*append_transform"):
        client.create("a", storage=STORAGE, schema=SCHEMA, transform=lambda batch: batch)
    with pytest.raises(CapacityError) as caught:
        client.create("a", storage=shmrb.SharedStorage(1 << 40), schema=SCHEMA)
    assert caught.value.needed_bytes > caught.value.available_bytes > 0
    assert client.list() == []


# The dead


def hold_and_wait(buffer: str) -> None:
    """Is attached until it is killed; killed between claim and commit if asked to write."""
    handle = shmrb.attach(buffer, format="numpy", client_name="victim")
    handle.extend({"uid": np.arange(8)})
    emit("attached")
    receive()
    shmrb.core.stop_at("before_commit", "kill")
    handle.extend({"uid": np.arange(8)})


def test_the_daemon_repairs_after_a_client_that_died_while_it_wrote(
    client: shmrb.Client, children: Children
) -> None:
    client.create("a", storage=STORAGE, schema=SCHEMA, format="numpy").close()
    victim = children.start(hold_and_wait, buffer="a")
    victim.expect("attached")
    assert {one.name for one in client.stats("a").clients} == {"shmrbd", "victim"}
    victim.send()
    assert victim.wait() == -signal.SIGKILL
    # Nobody waits on anything here: the daemon finds the dead by itself.
    until(lambda: {one.name for one in client.stats("a").clients} == {"shmrbd"})
    until(lambda: client.stats("a").size == 8)
    found = client.stats("a")
    assert found.counters["clients_recovered"] == 1
    assert found.counters["voided_records"] == 8
    client.drop("a")


def hold_and_leave_a_child(buffer: str) -> None:
    """Is attached and connected; a child of its own keeps the connection open after its death."""
    client = shmrb.connect()
    handle = client.attach(buffer, format="numpy", client_name="victim")
    child = os.fork()
    if child == 0:
        signal.pause()
    emit("attached", child=child, records=len(handle))
    receive()


def test_the_end_of_a_connected_process_is_noticed_without_waiting_for_a_round(
    daemons: Daemons, children: Children
) -> None:
    daemons.start("--sweep-interval-s=1e6", "--leftovers-interval-s=1e6")
    with shmrb.connect(timeout=60) as client:
        client.create("a", storage=STORAGE, schema=SCHEMA, format="numpy").close()
        victim = children.start(hold_and_leave_a_child, buffer="a")
        grandchild = victim.expect("attached")["child"]
        assert "victim" in {one.name for one in client.stats("a").clients}
        victim.kill()
        until(lambda: {one.name for one in client.stats("a").clients} == {"shmrbd"})
        os.kill(grandchild, signal.SIGKILL)


def create_and_die() -> None:
    """Leaves a private buffer, and one that bounds its life, with a record each."""
    for name, lifetime in ((None, "persistent"), ("bounded", "creator")):
        handle = shmrb.ReplayBuffer(
            name, storage=STORAGE, schema=SCHEMA, lifetime=lifetime, format="numpy"
        )
        handle.add({"uid": np.int64(1)})
        emit("created", name=handle.name)
    os.kill(os.getpid(), signal.SIGKILL)


def test_leftovers_of_dead_creators_go_and_foreign_files_stay(
    daemons: Daemons, children: Children, root: Path
) -> None:
    foreign = [root / "notes.txt", root / ".hidden", root / "_not-ours", root / "looks-like-one"]
    for path in foreign:
        path.write_text("precious")
    child = children.start(create_and_die)
    names = [child.expect("created")["name"] for _ in range(2)]
    assert child.wait() == -signal.SIGKILL
    assert all((root / name).exists() for name in names)
    daemons.start()
    assert not any((root / name).exists() for name in names)
    assert [path.read_text() for path in foreign] == ["precious"] * 4
    with shmrb.connect() as client:
        assert {summary.state for summary in client.list()} == {"foreign"}
        with pytest.raises(AttachError):
            client.drop("looks-like-one", force=True)
    assert foreign[-1].exists()


# Hostile and clumsy peers


@pytest.mark.parametrize(
    "packet",
    [
        b"\x00" * 10,
        b"[" * 60_000,
        b"x" * (wire.PACKET_BYTES + 1),
        b"x" * 150_000,
        b'{"v": 2, "op": "ping"}',
        b'{"v": 1, "op": "shutdown"}',
        b'{"v": 1, "op": "create", "name": "a", "spec": {"kind": "BufferSpec"}}',
        b'{"v": 1, "op": "create", "name": "a", "spec": {"kind": "BufferSpec", "storage": 3}}',
        b'{"v": 1, "op": "stats", "name": "\\u0000"}',
        b'{"v": 1, "op": "drop", "name": ".stamps", "force": true}',
        b'{"v": 1, "op": "list", "prefix": "../.."}',
    ],
)
def test_a_bad_packet_is_answered_and_harms_nobody(
    client: shmrb.Client, daemon: Child, packet: bytes
) -> None:
    client.create("a", storage=STORAGE, schema=SCHEMA, format="numpy").close()
    with raw_connection() as sock:
        sock.send(packet)
        reply = json.loads(sock.recv(wire.PACKET_BYTES))
        assert reply.get("error") in ("DaemonError", "SpecError") or reply["value"] == []
        sock.send(b'{"v": 1, "op": "ping"}')
        assert json.loads(sock.recv(wire.PACKET_BYTES))["value"]["pid"] == daemon.pid
    assert [summary.name for summary in client.list()] == ["a"]
    assert "Traceback" not in daemon.stderr


def test_descriptors_that_are_sent_along_are_not_kept(client: shmrb.Client, daemon: Child) -> None:
    client.ping()
    with raw_connection() as sock:
        sock.send(b'{"v": 1, "op": "ping"}')
        sock.recv(wire.PACKET_BYTES)
        before = open_descriptors(daemon)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))
        for _ in range(5):
            sock.sendmsg([b'{"v": 1, "op": "ping"}'], [rights])
            sock.recv(wire.PACKET_BYTES)
        assert open_descriptors(daemon) == before


def test_who_never_reads_its_replies_is_disconnected(client: shmrb.Client, daemon: Child) -> None:
    with raw_connection() as sock, pytest.raises(ConnectionError):
        flood(sock)
    assert client.ping().pid == daemon.pid
    assert "does not read its replies" in daemon.stderr


def test_connections_beyond_the_limit_wait_for_their_turn(
    client: shmrb.Client, daemon: Child
) -> None:
    crowd = [raw_connection() for _ in range(450)]
    last = crowd[-1]
    last.send(b'{"v": 1, "op": "ping"}')
    until(lambda: "further ones have to wait" in daemon.stderr)
    for sock in crowd[:100]:
        sock.close()
    assert json.loads(last.recv(wire.PACKET_BYTES))["value"]["pid"] == daemon.pid
    for sock in crowd[100:]:
        sock.close()
    assert client.ping().pid == daemon.pid


def test_many_connections_leave_nothing_behind(client: shmrb.Client, daemon: Child) -> None:
    client.ping()
    before = open_descriptors(daemon)
    for _ in range(300):
        with shmrb.connect(timeout=30) as other:
            other.ping()
    # The last one's end may not have been seen yet.
    until(lambda: open_descriptors(daemon) == before)


# The client's side


def test_without_a_daemon_the_sockets_that_were_tried_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(stale))
    with pytest.raises(DaemonError, match=rf"tried {stale} \(Connection refused\)"):
        shmrb.connect(stale)
    with pytest.raises(DaemonError, match=rf"tried {tmp_path}/none \(No such file"):
        shmrb.connect(tmp_path / "none", timeout=0.1)
    monkeypatch.delenv("SHMRB_SOCKET")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    expected = rf"tried {tmp_path}/shmrb/daemon.sock .*, /run/shmrb/daemon.sock "
    with pytest.raises(DaemonError, match=expected):
        shmrb.connect()


def test_connect_waits_for_a_daemon_that_is_still_starting(daemons: Daemons) -> None:
    child, _ = daemons.launch()
    with shmrb.connect(timeout=60) as client:
        assert client.ping().pid == child.pid


def test_a_client_outlives_its_daemon(daemons: Daemons) -> None:
    first = daemons.start()
    with shmrb.connect() as client:
        assert client.ping().pid == first.pid
        first.kill()
        with pytest.raises(DaemonError, match="No daemon answers"):
            client.ping()
        second = daemons.start()
        assert client.ping().pid == second.pid


def test_a_daemon_that_does_not_reply_is_not_waited_for_for_ever(
    client: shmrb.Client, daemon: Child
) -> None:
    with shmrb.connect(timeout=0.2) as hasty:
        daemon.stop()
        with pytest.raises(DeadlineError, match=r"did not reply to 'ping' within 0\.2 s"):
            hasty.ping()
        daemon.resume()
        # The late reply belongs to the first request, and is not taken for this one's.
        assert until(lambda: _list_or_none(hasty)) == ([],)


def _list_or_none(client: shmrb.Client) -> tuple[list[BufferSummary]] | None:
    try:
        return (client.list(),)
    except DeadlineError:
        return None


def test_threads_share_a_client(client: shmrb.Client, daemon: Child) -> None:
    pids: list[int] = []

    def ask() -> None:
        for _ in range(50):
            pids.append(client.ping().pid)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pids == [daemon.pid] * 200


def test_a_forked_child_has_a_connection_of_its_own(
    client: shmrb.Client, daemon: Child, children: Children
) -> None:
    client.ping()

    def ask() -> None:
        for _ in range(100):
            assert client.ping().pid == daemon.pid
        emit("done")

    child = children.start(ask, method="fork")
    for _ in range(100):
        assert client.list() == []
    child.expect("done")
    child.succeed()
