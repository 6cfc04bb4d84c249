"""Prometheus text, on the control socket and over HTTP, read by Prometheus' own parser."""

from __future__ import annotations

import http.client
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import shmrb
from helpers.child import emit, receive
from helpers.daemons import Daemons
from helpers.procs import Child, Children, until
from shmrb import core
from shmrbd import metrics, scrape

SCHEMA = {"uid": "int64", "policy_version": "int64"}


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def fetch(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, body


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A TCP socket that the manager passes."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock


@pytest.fixture
def daemon(daemons: Daemons, listener: socket.socket) -> Child:
    """Serves metrics on the passed socket, and control on one of its own."""
    return daemons.start(passed=[listener.fileno()])


def wait_for_room(buffer: str) -> None:
    handle = shmrb.attach(buffer, format="numpy", client_name="waiter")
    emit("attached")
    receive()
    handle.sample(1, timeout=60)


def test_a_buffers_numbers_are_those_of_its_stats(
    daemon: Child, listener: socket.socket, children: Children
) -> None:
    with shmrb.connect(timeout=60) as client:
        handle = client.create(
            "exp/replay", storage=shmrb.SharedStorage(64), schema=SCHEMA, format="numpy", seed=1
        )
        policy = shmrb.Parameters("exp/policy", like={"w": np.zeros(3)}, format="numpy")
        for _ in range(6):
            policy.publish({"w": np.ones(3)})
        uids = np.arange(10)
        for number in range(2):
            handle.extend({"uid": uids, "policy_version": np.full(10, number + 2)})
        batch = handle.sample(8)
        handle.update_if_present(batch, patch={"uid": np.zeros(8, np.int64)})
        late = {"index": batch["index"], "generation": batch["index_generation"] - 1}
        handle.update_if_present(**late, patch={"uid": np.zeros(8, np.int64)})
        # Waits for records in an empty buffer.
        client.create("empty", storage=shmrb.SharedStorage(64), schema=SCHEMA, format="numpy")
        waiter = children.start(wait_for_room, buffer="empty")
        waiter.expect("attached")
        waiter.send()
        until(lambda: client.stats("empty").blocked)
        until(lambda: {"exp/policy"} <= {one.name for one in client.list() if one.clients})
        until(lambda: ("shmrb_buffer_records", "exp/policy") in samples(client.metrics()))
        found = samples(client.metrics())
        stats = client.stats("exp/replay")
        names = {one.name: one for one in client.list()}
    # Every counter of the core is told.
    assert {*metrics._COUNTERS, "blocked_ns"} == set(stats.counters)
    for counter, (name, _) in metrics._COUNTERS.items():
        assert found[f"shmrb_buffer_{name}_total", "exp/replay"] == stats.counters[counter], name
    assert found["shmrb_buffer_records_inserted_total", "exp/replay"] == 20
    assert found["shmrb_buffer_records_sampled_total", "exp/replay"] == 8
    assert found["shmrb_buffer_stale_updates_total", "exp/replay"] == 8
    assert found["shmrb_buffer_records", "exp/replay"] == 20
    assert found["shmrb_buffer_reserved_bytes", "exp/replay"] == names["exp/replay"].bytes
    assert found["shmrb_buffer_record_bytes", "exp/replay"] == 16
    assert found["shmrb_buffer_blocked_clients", "empty", "records"] == 1
    assert found["shmrb_buffer_blocked_clients", "exp/replay", "records"] == 0
    assert 0 <= found["shmrb_buffer_insert_age_seconds", "exp/replay"] < 600
    # The newest record was made with version 3, and version 5 is published.
    assert found["shmrb_buffer_policy_lag_versions", "exp/replay"] == 2
    assert ("shmrb_buffer_policy_lag_versions", "exp/policy") not in found
    assert found["shmrb_daemon_buffers",] == 3
    assert found["shmrb_daemon_requests_total", "create"] == 2
    assert found["shmrb_daemon_events_total", "created"] == 2
    assert found["shmrb_daemon_info", shmrb.__version__] == 1

    status, body = fetch(listener.getsockname()[1])
    assert status == 200
    # More kinds of request and event may have been seen since; nothing else differs.
    assert samples(body).keys() >= found.keys() | {("shmrb_daemon_requests_total", "stats")}
    assert {key[0] for key in samples(body)} == {key[0] for key in found}
    labels = {key[1:] for key in found if key[0].startswith("shmrb_buffer_")}
    assert str(os.getpid()) not in str(labels), "labels are bounded"


@pytest.mark.parametrize("border", [1 << 31, 1 << 32])
def test_counts_beyond_32_bits_are_told_as_they_are(daemon: Child, root: Path, border: int) -> None:
    with shmrb.connect(timeout=60) as client:
        handle = client.create("far", storage=shmrb.SharedStorage(8), schema=SCHEMA, format="numpy")
        handle.extend({"uid": np.arange(4), "policy_version": np.zeros(4, np.int64)})
        member = handle._attachment.member
        offset, size = core.abi()["LaneBlock"]["fields"]["head"]
        head = member.mapping("ctl").view("<i8", member.layout.regions["lanes"].offset + offset, 8)
        head[0] = border - 2
        member.segment.count(core.Counter.REFUSED_PRIORITIES, border)
        handle.extend({"uid": np.arange(4), "policy_version": np.zeros(4, np.int64)})
        assert client.stats("far").write_count == border + 2
        assert client.stats("far").lanes[0].head == border + 2
        found = samples(client.metrics())
    assert size == 8
    assert found["shmrb_buffer_refused_priorities_total", "far"] == border
    assert min(found.values()) >= 0


def test_what_is_no_scrape_is_refused_and_nobody_else_waits(
    daemon: Child, listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    assert fetch(port, "/")[0] == 404
    assert fetch(port, "/metrics?x=1")[0] == 200
    assert fetch(port, "/metrics", "POST")[0] == 405
    assert fetch(port, "/metrics", "HEAD") == (200, "")
    with socket.create_connection(("127.0.0.1", port)) as flood:
        flood.sendall(b"x" * (scrape.REQUEST_BYTES + 1))
        assert flood.recv(100).startswith(b"HTTP/1.1 431")
    with socket.create_connection(("127.0.0.1", port)) as split:
        split.sendall(b"GET /metrics HTTP/1.1\r\n")
        # Others are served while this one dawdles.
        assert fetch(port)[0] == 200
        split.sendall(b"Host: x\r\n\r\n")
        assert split.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(scrape.MAX_CONNECTIONS)]
    for sock in idle:
        sock.sendall(b"GET")
    with shmrb.connect(timeout=60) as client:
        assert client.ping().pid == daemon.pid
    for sock in idle:
        sock.close()
    assert until(lambda: _status_or_none(port)) == 200
    assert "Traceback" not in daemon.stderr


def _status_or_none(port: int) -> int | None:
    try:
        return fetch(port)[0]
    except (http.client.HTTPException, OSError):
        return None


class _Loop:
    """As much of a server as a scrape asks for."""

    def watch(self, file: object, when_readable: object) -> None:
        self.callbacks = [*getattr(self, "callbacks", []), when_readable]

    def forget(self, file: object) -> None:
        pass


def test_who_is_too_slow_loses_its_connection(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = _Loop()
    served = scrape.Scrape(listener, loop, lambda: "")  # type: ignore[arg-type]
    with socket.create_connection(listener.getsockname()) as slow:
        loop.callbacks[0]()  # type: ignore[operator]
        assert 0 < served.seconds_left() <= scrape.PATIENCE_S
        later = time.monotonic() + scrape.PATIENCE_S
        monkeypatch.setattr(scrape.time, "monotonic", lambda: later)
        assert served.seconds_left() == 0
        served.act()
        assert slow.recv(1) == b""


def test_a_configured_port_is_served_on_loopback_only(daemons: Daemons) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    daemon = daemons.start(f"--metrics-port={port}")
    assert fetch(port)[0] == 200
    lines = Path(f"/proc/{daemon.pid}/net/tcp").read_text()
    assert re.search(rf" 0100007F:{port:04X} 00000000:0000 0A ", lines)
    assert not re.search(rf" 00000000:{port:04X} ", lines)
    other, _ = daemons.launch(
        f"--metrics-port={port}", f"--socket={os.environ['SHMRB_SOCKET']}2", "--root=/dev/shm/none"
    )
    assert other.wait() == 4
    assert f"expected a free port on 127.0.0.1, got {port}" in other.stderr


def test_buffers_beyond_the_limit_are_counted_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "MAX_BUFFERS", 0)

    class Registry:
        def members(self) -> list[object]:
            return [object()] * 3

        def __len__(self) -> int:
            return 3

    totals: metrics.Counter[str] = metrics.Counter()
    collector = metrics.Collector(Registry(), totals, totals, lambda: 0)  # type: ignore[arg-type]
    found = samples(collector.text())
    assert found["shmrb_daemon_buffers_left_out",] == 3
    assert not [key for key in found if key[0].startswith("shmrb_buffer_")]
