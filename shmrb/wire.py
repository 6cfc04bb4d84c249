"""The words between client and daemon; floor F1, holds no state.

One packet on a SOCK_SEQPACKET socket is one JSON object in UTF-8 of at most 64 KiB. A client sends
one request and gets one reply; requests on one connection are answered in order.

    request   {"v": 1, "op": "stats", "name": "exp42/replay"}
    value     {"v": 1, "value": …}
    failure   {"v": 1, "error": "NoSuchBufferError", "message": "…", "details": {…}}
    long      {"v": 1, "long_bytes": 123456}  + one descriptor by SCM_RIGHTS: a sealed memfd with
              the value or failure that did not fit

A request is read strictly: an unknown key is refused, for half-understood is worse than refused. A
reply may carry keys that an older client does not know. Descriptors sent to the daemon are never
taken.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
from typing import Any, ClassVar, Literal

import msgspec

from shmrb import errors
from shmrb.errors import DaemonError, ShmrbError, SpecError

VERSION = 1
# A packet is one allocation in the kernel; 64 KiB fit well below the default send buffer (208 KiB).
PACKET_BYTES = 64 * 1024
# What a client is ready to read from a memfd. 1,024 buffers with 1,024 clients each stay below it.
LONG_REPLY_BYTES = 256 * 1024 * 1024
# sun_path has 108 bytes with the closing zero. A longer path is never cut: two daemons would meet.
SOCKET_PATH_BYTES = 107

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class DaemonInfo(msgspec.Struct, frozen=True):
    """Who a daemon is.

    Attributes:
        pid: its process, as it sees itself: a label.
        version: of shmrb.
        root: the directory of its buffers.
    """

    pid: int
    version: str
    root: str


class Place(msgspec.Struct, frozen=True):
    """Where a buffer lies: what a client needs to attach by itself."""

    root: str
    name: str


class Event(msgspec.Struct, frozen=True):
    """Something that the daemon saw or did.

    Attributes:
        number: one more with each event of a daemon's life.
        time: seconds since the epoch.
        kind: what happened, like "attached".
        facts: to whom; the buffer, the client, its pid.
    """

    number: int
    time: float
    kind: str
    facts: dict[str, Any]


class EventPage(msgspec.Struct, frozen=True):
    """What a daemon remembers.

    Attributes:
        pid: whose events these are: another daemon counts from 1 again.
        events: in order.
    """

    pid: int
    events: list[Event]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op"):
    """Base of the requests; `v` is checked before anything else is looked at.

    `answered_by` is the type of the reply's value.
    """

    answered_by: ClassVar[Any] = None

    v: int = VERSION


class Ping(Request, frozen=True, tag="ping"):
    """Who are you?"""

    answered_by: ClassVar[Any] = DaemonInfo


class Create(Request, frozen=True, kw_only=True, tag="create"):
    """Create or declare a named buffer."""

    answered_by: ClassVar[Any] = Place

    name: str
    spec: dict[str, Any]
    exist: Literal["attach", "error", "replace"] = "attach"


class Attach(Request, frozen=True, kw_only=True, tag="attach"):
    """Where does this buffer lie?"""

    answered_by: ClassVar[Any] = Place

    name: str


class List(Request, frozen=True, kw_only=True, tag="list"):
    """The buffers whose name is `prefix` or begins with `prefix/`; all with the empty prefix."""

    # Summaries as `BufferSummary.to_json` writes them.
    answered_by: ClassVar[Any] = list[dict[str, Any]]

    prefix: str = ""


class Drop(Request, frozen=True, kw_only=True, tag="drop"):
    """Drop a buffer. Refused while it has members, unless forced."""

    name: str
    force: bool = False


class Stats(Request, frozen=True, kw_only=True, tag="stats"):
    """The counters of one buffer."""

    # As `BufferStats.to_json` writes them.
    answered_by: ClassVar[Any] = dict[str, Any]

    name: str


class Events(Request, frozen=True, kw_only=True, tag="events"):
    """The events younger than number `after`, as far as they are kept."""

    answered_by: ClassVar[Any] = EventPage

    after: int = 0


class Metrics(Request, frozen=True, tag="metrics"):
    """What a Prometheus server would be told, in its text format."""

    answered_by: ClassVar[Any] = str


AnyRequest = Ping | Create | Attach | List | Drop | Stats | Events | Metrics


class _Head(msgspec.Struct, frozen=True):
    v: int


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    v: int = VERSION
    value: Any


class _Failure(msgspec.Struct, frozen=True, kw_only=True):
    v: int = VERSION
    error: str
    message: str
    details: dict[str, int] = {}


class _Long(msgspec.Struct, frozen=True, kw_only=True):
    v: int = VERSION
    long_bytes: int


class _Reply(msgspec.Struct, frozen=True):
    """Any of the three, as a client reads it."""

    value: Any = None
    error: str | None = None
    message: str = ""
    details: dict[str, int] = {}
    long_bytes: int | None = None


_read_head = msgspec.json.Decoder(_Head).decode
_read_request = msgspec.json.Decoder(AnyRequest).decode
_read_reply = msgspec.json.Decoder(_Reply).decode
_write = msgspec.json.Encoder().encode


def check_socket_path(path: str | os.PathLike[str]) -> str:
    """`path` as a string, if a Unix socket can have it.

    Raises:
        DaemonError: it is too long for `sun_path`; it is never cut.
    """
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES:
        raise DaemonError(
            f"Socket path {os.fspath(path)!r} has {length} bytes; a Unix socket takes at most "
            f"{SOCKET_PATH_BYTES}. Use a shorter directory (--socket, SHMRB_SOCKET)."
        )
    return os.fspath(path)


def write_request(request: Request) -> bytes:
    """The packet of a request.

    Raises:
        SpecError: it does not fit into a packet.
    """
    packet = _write(request)
    if len(packet) > PACKET_BYTES:
        raise SpecError(
            f"Request {type(request).__name__.lower()!r} takes {len(packet)} bytes; the daemon "
            f"reads at most {PACKET_BYTES}. Create so large a schema in your own process instead: "
            "shmrb.ReplayBuffer(name, ...)."
        )
    return packet


def read_request(packet: bytes) -> AnyRequest:
    """The request in a packet that came from anybody.

    Raises:
        DaemonError: too long, not JSON, another protocol version, or no request that we know.
    """
    if len(packet) > PACKET_BYTES:
        raise DaemonError(f"Packet is longer than {PACKET_BYTES} bytes.")
    try:
        head = _read_head(packet)
        if head.v == VERSION:
            return _read_request(packet)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DaemonError(f"Packet is no request of protocol version {VERSION}: {error}.") from None
    raise DaemonError(f"Protocol version {head.v} was asked for; this daemon speaks {VERSION}.")


def send_value(sock: socket.socket, value: Any) -> None:
    """Send the reply to a request that was done."""
    _send_reply(sock, _write(_Value(value=value)))


def send_failure(sock: socket.socket, error: ShmrbError) -> None:
    """Send the reply to a request that was refused or failed."""
    details = {key: value for key, value in vars(error).items() if isinstance(value, int)}
    failure = _Failure(error=type(error).__name__, message=str(error), details=details)
    _send_reply(sock, _write(failure))


def receive_reply(sock: socket.socket, request: Request) -> Any:
    """Wait for the reply to `request`, within the socket's time-out, and return its value.

    Raises:
        ShmrbError: of the class that the daemon named.
        DaemonError: what came is no reply.
        OSError: from the socket; TimeoutError when nothing came in time, ConnectionError when the
            daemon hung up.
    """
    room = socket.CMSG_SPACE(array.array("i").itemsize)
    flags = socket.MSG_CMSG_CLOEXEC
    packet, ancillary, _, _ = sock.recvmsg(PACKET_BYTES + 1, room, flags)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    try:
        if not packet:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
        reply = _parse_reply(packet)
        if reply.long_bytes is not None:
            if len(descriptors) != 1:
                raise DaemonError("The daemon announced a long reply without its descriptor.")
            reply = _parse_reply(_read_sealed(descriptors[0], reply.long_bytes))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    if reply.error is not None:
        raise _revive(reply)
    try:
        return msgspec.convert(reply.value, request.answered_by)
    except msgspec.ValidationError as error:
        raise DaemonError(f"The daemon's reply makes no sense: {error}.") from None


def _parse_reply(packet: bytes) -> _Reply:
    try:
        head = _read_head(packet)
        if head.v == VERSION:
            return _read_reply(packet)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DaemonError(f"The daemon's reply cannot be read: {error}.") from None
    raise DaemonError(f"The daemon speaks protocol version {head.v}, this client {VERSION}.")


def _revive(reply: _Reply) -> ShmrbError:
    """The error that the daemon raised; a class unknown to this version becomes a DaemonError."""
    kind = getattr(errors, reply.error or "", None)
    if not (isinstance(kind, type) and issubclass(kind, ShmrbError)):
        return DaemonError(f"{reply.error}: {reply.message}")
    error = kind(reply.message)
    for key in vars(error).keys() & reply.details.keys():
        setattr(error, key, reply.details[key])
    return error


def _send_reply(sock: socket.socket, packet: bytes) -> None:
    if len(packet) <= PACKET_BYTES:
        sock.send(packet)
        return
    descriptor = os.memfd_create("shmrb-reply", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(packet)
        # Sealed, so that a client may read it at leisure: neither side can change or cut it now.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
        sock.sendmsg([_write(_Long(long_bytes=len(packet)))], [rights])
    finally:
        os.close(descriptor)


def _read_sealed(descriptor: int, length: int) -> bytes:
    """The bytes of a long reply, after checking that nobody can change them while they are read."""
    if not 0 <= length <= LONG_REPLY_BYTES:
        raise DaemonError(f"Long reply of {length} bytes; at most {LONG_REPLY_BYTES} are read.")
    try:
        is_sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        is_sealed = False
    if not is_sealed:
        raise DaemonError("The descriptor of a long reply is no sealed memfd.")
    found = os.fstat(descriptor).st_size
    if found != length:
        raise DaemonError(f"Long reply announced with {length} bytes has {found}.")
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read(length)
