"""The daemon's event loop: sockets and signals. It knows nothing about buffers.

A signal handler only puts its number into a pipe; the loop reads it and acts. Requests are answered
on the loop, one after another, so creating a large buffer (about half a second a GiB) makes the
others wait; nobody who is attached waits for the daemon.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from shmrb import wire
from shmrb.errors import DaemonError, ShmrbError
from shmrbd.config import Settings

_log = logging.getLogger(__name__)

# SO_PEERPIDFD (Linux 6.5); the socket module has no name for it.
_SO_PEERPIDFD = 77
# struct ucred: pid, uid, gid.
_UCRED = struct.Struct("3i")


class Periodic(Protocol):
    """Something that has its turns on the loop."""

    def seconds_left(self) -> float:
        """How long the loop may wait for other events; 0: its turn is due."""

    def act(self) -> None:
        """Take the turn."""


@dataclass(frozen=True, eq=False)
class Peer:
    """One connection, and the process at its other end as the kernel knows it."""

    sock: socket.socket
    pid: int
    pidfd: int | None


class Server:
    """Accepts connections, answers requests and gives others their turns until it is stopped.

    Args:
        answer: gives the value of the reply to a request.
        on_death: called when the process behind a connection may have ended.
        settings: how many connections there may be.
        requests: where each is counted by its name, and under "refused" those that were.
    """

    def __init__(
        self,
        answer: Callable[[wire.AnyRequest], Any],
        on_death: Callable[[], None],
        settings: Settings,
        requests: Counter[str],
    ) -> None:
        self._answer = answer
        self._on_death = on_death
        self._settings = settings
        self._listener: socket.socket | None = None
        self._peers: set[Peer] = set()
        self._is_accepting = False
        self._is_stopping = False
        self._selector = selectors.DefaultSelector()
        self._requests = requests

    @property
    def connections(self) -> int:
        """How many there are at this moment."""
        return len(self._peers)

    def watch(self, file: Any, when_readable: Callable[[], None]) -> None:
        """Call back on the loop whenever a descriptor can be read."""
        self._selector.register(file, selectors.EVENT_READ, when_readable)

    def watch_writing(self, file: Any, when_writable: Callable[[], None]) -> None:
        """Instead of reading, call back when a descriptor that is watched can be written."""
        self._selector.modify(file, selectors.EVENT_WRITE, when_writable)

    def forget(self, file: Any) -> None:
        """Stop watching a descriptor, which is still open."""
        self._selector.unregister(file)

    def listen(self, listener: socket.socket) -> None:
        """Take connections from a listening socket."""
        self._listener = listener
        self._accept_again()

    def run(self, periodics: Sequence[Periodic]) -> None:
        """Serve until `stop`."""
        while not self._is_stopping:
            wait_s = min(periodic.seconds_left() for periodic in periodics)
            for key, _ in self._selector.select(wait_s):
                key.data()
            due = [periodic for periodic in periodics if periodic.seconds_left() <= 0]
            for periodic in due:
                periodic.act()
            if due:
                self._accept_again()

    def stop(self) -> None:
        """End `run` after this round."""
        self._is_stopping = True

    def close(self) -> None:
        """Hang up on everybody."""
        for peer in list(self._peers):
            self._disconnect(peer)
        self._selector.close()

    def welcome(self, sock: socket.socket) -> None:
        """Serve a connection."""
        sock.setblocking(False)
        peer = Peer(sock, *_process_behind(sock))
        self._peers.add(peer)
        self._selector.register(sock, selectors.EVENT_READ, partial(self._serve, peer))
        if peer.pidfd is not None:
            self._selector.register(peer.pidfd, selectors.EVENT_READ, partial(self._bury, peer))

    def _accept_again(self) -> None:
        room = len(self._peers) < self._settings.now.max_connections
        if self._listener is not None and not self._is_accepting and room:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._is_accepting = True

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # Out of descriptors, most likely: let callers queue until the loop's next round.
            _log.warning("cannot accept a connection: %s", error)
            self._stop_accepting()
            return
        self.welcome(sock)
        if len(self._peers) >= self._settings.now.max_connections:
            _log.warning("%d connections: further ones have to wait", len(self._peers))
            self._stop_accepting()

    def _stop_accepting(self) -> None:
        if self._listener is not None and self._is_accepting:
            self._selector.unregister(self._listener)
        self._is_accepting = False

    def _serve(self, peer: Peer) -> None:
        """Answer one packet; whoever hangs up or does not read its replies is disconnected."""
        if peer not in self._peers:
            # Its pidfd was in the same batch of events, and before.
            return
        try:
            # No room for descriptors: the kernel closes any that were sent along.
            packet = peer.sock.recv(wire.PACKET_BYTES + 1)
            if packet:
                self._reply(peer, packet)
                return
        except BlockingIOError:
            _log.warning("pid %d does not read its replies: disconnected", peer.pid)
        except OSError as error:
            _log.info("connection of pid %d failed: %s", peer.pid, error)
        self._disconnect(peer)
        if peer.pidfd is None:
            # Perhaps its process died; without a pidfd nothing else tells us at once.
            self._on_death()

    def _reply(self, peer: Peer, packet: bytes) -> None:
        try:
            request = wire.read_request(packet)
            self._requests[type(request).__name__.lower()] += 1
            value = self._answer(request)
        except ShmrbError as error:
            self._requests["refused"] += 1
            wire.send_failure(peer.sock, error)
        except Exception as error:
            self._requests["refused"] += 1
            # A request must not end the daemon: the others' buffers hang on it.
            _log.exception("a request of pid %d failed", peer.pid)
            what = f"{type(error).__name__}: {error}"
            text = f"The daemon failed inside ({what}); its log says where."
            wire.send_failure(peer.sock, DaemonError(text))
        else:
            wire.send_value(peer.sock, value)

    def _bury(self, peer: Peer) -> None:
        """The process behind a connection has ended."""
        if peer in self._peers:
            self._disconnect(peer)
        self._on_death()

    def _disconnect(self, peer: Peer) -> None:
        self._peers.remove(peer)
        self._selector.unregister(peer.sock)
        peer.sock.close()
        if peer.pidfd is not None:
            self._selector.unregister(peer.pidfd)
            os.close(peer.pidfd)
        self._accept_again()


def _process_behind(sock: socket.socket) -> tuple[int, int | None]:
    """The peer's pid in our namespace (0 outside it) and, where possible, its pidfd."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, _, _ = _UCRED.unpack(credentials)
    try:
        return pid, sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        pass
    try:
        # An older kernel: the pid may belong to another process by now. A wrong pidfd only makes
        # the janitor look too early or not early; the lock byte stays the proof.
        return pid, os.pidfd_open(pid)
    except OSError:
        return pid, None
