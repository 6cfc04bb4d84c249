"""Metrics over HTTP, on a loopback address and on the daemon's own loop.

Just enough of HTTP/1.1: one GET or HEAD a connection. Whoever is slow or sends too much loses its
connection; nobody waits for it.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable
from functools import partial

from shmrb.errors import DaemonError
from shmrbd import EXIT_TAKEN
from shmrbd.metrics import CONTENT_TYPE
from shmrbd.server import Server

_log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
# A server scrapes every few seconds with one connection.
MAX_CONNECTIONS = 8
REQUEST_BYTES = 8 * 1024
PATIENCE_S = 10.0
_BACKLOG = 8

_REQUEST_LINE = re.compile(rb"(GET|HEAD) (\S+) HTTP/1\.[01]\r\n")


class _Connection:
    """One scrape under way."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.deadline = time.monotonic() + PATIENCE_S
        self.received = b""
        self.unsent = b""


class Scrape:
    """Answers GET /metrics.

    Args:
        listener: on a loopback address.
        server: whose loop it runs on.
        text: gives the metrics.
    """

    def __init__(self, listener: socket.socket, server: Server, text: Callable[[], str]) -> None:
        self._listener = listener
        self._server = server
        self._text = text
        self._connections: set[_Connection] = set()
        listener.setblocking(False)
        server.watch(listener, self._accept)

    def seconds_left(self) -> float:
        """Until the slowest connection has lost its patience."""
        deadlines = [connection.deadline for connection in self._connections]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else PATIENCE_S

    def act(self) -> None:
        """Hang up on who is too slow."""
        now = time.monotonic()
        for connection in [each for each in self._connections if each.deadline <= now]:
            self._hang_up(connection)

    def close(self) -> None:
        """Hang up on everybody."""
        for connection in list(self._connections):
            self._hang_up(connection)
        self._server.forget(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            _log.warning("cannot accept a scrape: %s", error)
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            sock.close()
            return
        sock.setblocking(False)
        connection = _Connection(sock)
        self._connections.add(connection)
        self._server.watch(sock, partial(self._read, connection))

    def _read(self, connection: _Connection) -> None:
        try:
            piece = connection.sock.recv(REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        connection.received += piece
        if not piece:
            self._hang_up(connection)
        elif b"\r\n\r\n" in connection.received:
            connection.unsent = self._answer(connection.received)
            self._server.watch_writing(connection.sock, partial(self._write, connection))
        elif len(connection.received) > REQUEST_BYTES:
            connection.unsent = _response("431 Request Header Fields Too Large", "")
            self._server.watch_writing(connection.sock, partial(self._write, connection))

    def _write(self, connection: _Connection) -> None:
        try:
            sent = connection.sock.send(connection.unsent)
        except BlockingIOError:
            return
        except OSError:
            self._hang_up(connection)
            return
        connection.unsent = connection.unsent[sent:]
        if not connection.unsent:
            self._hang_up(connection)

    def _answer(self, request: bytes) -> bytes:
        match = _REQUEST_LINE.match(request)
        if match is None:
            return _response("405 Method Not Allowed", "GET /metrics\n")
        if match[2].partition(b"?")[0] != b"/metrics":
            return _response("404 Not Found", "GET /metrics\n")
        response = _response("200 OK", self._text())
        return response if match[1] == b"GET" else response.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    def _hang_up(self, connection: _Connection) -> None:
        self._connections.remove(connection)
        self._server.forget(connection.sock)
        connection.sock.close()


def listener_on(port: int) -> socket.socket:
    """A TCP socket that only this machine reaches.

    Raises:
        DaemonError: the port is taken, or there is no network in this sandbox.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise DaemonError(
            f"metrics_port: expected a free port on {LOOPBACK}, got {port} ({error.strerror}). "
            "Name another, or 0 for none.",
            code=EXIT_TAKEN,
        ) from None
    return listener


def _response(status: str, body: str) -> bytes:
    content = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content
