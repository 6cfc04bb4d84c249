"""The words between client and daemon, over real sockets."""

from __future__ import annotations

import array
import inspect
import json
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmrb import errors, wire
from shmrb.errors import CapacityError, DaemonError, ShmrbError, SpecError

STATS = wire.Stats(name="a")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """(client's end, daemon's end) of a connection."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.settimeout(10)
    yield ends
    for end in ends:
        end.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "request_",
    [
        wire.Ping(),
        wire.Create(name="exp42/replay", spec={"kind": "buffer"}, exist="error"),
        wire.Attach(name="a"),
        wire.List(),
        wire.List(prefix="exp42"),
        wire.Drop(name="a", force=True),
        wire.Stats(name="a"),
        wire.Events(after=7),
        wire.Metrics(),
    ],
)
def test_each_request_arrives_as_it_was_sent(request_: wire.Request) -> None:
    assert wire.read_request(wire.write_request(request_)) == request_


@pytest.mark.parametrize(
    ("packet", "complaint"),
    [
        (b"", "truncated"),
        (b"\x00\x01\x02", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "Expected `object`"),
        (b'{"op": "ping"}', "missing required field `v`"),
        (b'{"v": "1", "op": "ping"}', "Expected `int`"),
        (b'{"v": 1}', "missing required field `op`"),
        (b'{"v": 1, "op": "shutdown"}', "Invalid value 'shutdown'"),
        (b'{"v": 1, "op": "stats"}', "missing required field `name`"),
        (b'{"v": 1, "op": "stats", "name": 7}', "Expected `str`, got `int`"),
        (b'{"v": 1, "op": "stats", "name": "a\xff"}', "UTF-8"),
        (b'{"v": 1, "op": "ping", "pickle": "gASV"}', "unknown field `pickle`"),
        (b'{"v": 1, "op": "create", "name": "a", "spec": {}, "exist": "maybe"}', "'maybe'"),
        (b'{"v": 1, "op": "ping"} {"v": 1, "op": "ping"}', "malformed"),
        (b'{"v": 1, "op": "create", "name": "a", "spec": ' + b'{"a":' * 9000, "recursion"),
        (b'{"v": 2, "op": "ping"}', "version 2 was asked for; this daemon speaks 1"),
        (b" " * (wire.PACKET_BYTES + 1), "longer than 65536"),
    ],
)
def test_what_is_no_request_is_refused_with_the_reason(packet: bytes, complaint: str) -> None:
    with pytest.raises(DaemonError) as caught:
        wire.read_request(packet)
    assert complaint in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
KEYS = st.sampled_from(["v", "op", "name", "spec", "exist", "force", "prefix"])
NEAR_MISSES = st.dictionaries(KEYS, JSON | st.sampled_from([1, "ping", "create", "drop", "a"]))


@settings(deadline=None, max_examples=50)
@given(st.binary() | NEAR_MISSES.map(lambda document: json.dumps(document).encode()))
def test_whatever_comes_is_a_request_or_refused(packet: bytes) -> None:
    try:
        request: object = wire.read_request(packet)
    except DaemonError:
        return
    assert isinstance(request, wire.Request)


def test_a_request_that_no_packet_holds_is_refused_before_it_is_sent() -> None:
    with pytest.raises(SpecError, match=r"takes \d+ bytes; the daemon reads at most 65536"):
        wire.write_request(wire.Create(name="a", spec={"x": "y" * wire.PACKET_BYTES}))


@pytest.mark.parametrize("length", [0, 1, 65_000, 70_000, 3_000_000])
def test_a_value_of_any_length_arrives(pair: Pair, length: int) -> None:
    client, daemon = pair
    before = open_descriptors()
    wire.send_value(daemon, {"text": "é" * length})
    assert wire.receive_reply(client, STATS) == {"text": "é" * length}
    assert open_descriptors() == before


def _memfd(content: bytes, *, sealed: bool) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    if sealed:
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, wire._SEALS)
    return descriptor


@pytest.mark.parametrize(
    ("announced", "sealed", "descriptors", "complaint"),
    [
        (20, True, 0, "without its descriptor"),
        (20, False, 1, "no sealed memfd"),
        (21, True, 1, "announced with 21 bytes has 20"),
        (-1, True, 1, "Long reply of -1 bytes"),
        (1 << 40, True, 1, "Long reply of 1099511627776 bytes"),
    ],
)
def test_a_long_reply_that_could_change_or_lies_is_refused(
    pair: Pair, announced: int, sealed: bool, descriptors: int, complaint: str
) -> None:
    client, daemon = pair
    descriptor = _memfd(b'{"v":1, "value": []} '[:20], sealed=sealed)
    before = open_descriptors()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor] * descriptors))
    packet = b'{"v": 1, "long_bytes": %d}' % announced
    daemon.sendmsg([packet], [rights] if descriptors else [])
    with pytest.raises(DaemonError, match=complaint):
        wire.receive_reply(client, STATS)
    assert open_descriptors() == before
    os.close(descriptor)


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, ShmrbError)
    ],
)
def test_an_error_arrives_as_the_class_that_was_raised(pair: Pair, kind: type[ShmrbError]) -> None:
    client, daemon = pair
    wire.send_failure(daemon, kind("expected 1, got 2"))
    with pytest.raises(kind, match="expected 1, got 2") as caught:
        wire.receive_reply(client, STATS)
    assert type(caught.value) is kind


def test_the_numbers_of_an_error_arrive_with_it(pair: Pair) -> None:
    client, daemon = pair
    wire.send_failure(daemon, CapacityError("no room", needed_bytes=64, available_bytes=16))
    with pytest.raises(CapacityError) as caught:
        wire.receive_reply(client, STATS)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (64, 16)


@pytest.mark.parametrize("name", ["FutureError", "annotations", "Exception", "__name__"])
def test_an_error_class_that_we_do_not_know_becomes_a_daemon_error(pair: Pair, name: str) -> None:
    client, daemon = pair
    daemon.send(b'{"v": 1, "error": "%s", "message": "text"}' % name.encode())
    with pytest.raises(DaemonError, match=f"{name}: text"):
        wire.receive_reply(client, STATS)


@pytest.mark.parametrize(
    ("packet", "complaint"),
    [
        (b"nonsense", "cannot be read"),
        (b'{"v": 9, "value": 1}', "speaks protocol version 9, this client 1"),
        (b'{"v": 1, "error": 3}', "cannot be read"),
        (b'{"v": 1, "value": [1]}', "makes no sense: Expected `object`, got `array`"),
    ],
)
def test_what_is_no_reply_is_a_daemon_error(pair: Pair, packet: bytes, complaint: str) -> None:
    client, daemon = pair
    daemon.send(packet)
    with pytest.raises(DaemonError, match=complaint):
        wire.receive_reply(client, STATS)


def test_a_newer_daemon_may_say_more(pair: Pair) -> None:
    client, daemon = pair
    daemon.send(b'{"v": 1, "value": {"pid": 5, "version": "2", "root": "/r", "x": 1}, "y": 2}')
    assert wire.receive_reply(client, wire.Ping()) == wire.DaemonInfo(5, "2", "/r")


def test_a_daemon_that_hangs_up_is_no_reply(pair: Pair) -> None:
    client, daemon = pair
    daemon.close()
    with pytest.raises(ConnectionResetError):
        wire.receive_reply(client, STATS)


def test_a_socket_path_is_refused_rather_than_cut() -> None:
    fits = "/" + "d" * (wire.SOCKET_PATH_BYTES - 1)
    assert wire.check_socket_path(fits) == fits
    for path in (fits + "x", "/" + "é" * 54):
        with pytest.raises(DaemonError, match=r"has 1\d\d bytes; a Unix socket takes at most 107"):
            wire.check_socket_path(path)
