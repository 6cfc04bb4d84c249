"""The daemon's event loop: sockets and signals. It knows nothing about buffers.

A signal handler only puts its number into a pipe; the loop reads it and acts. Requests are answered
on the loop, one after another, so creating a large buffer (about half a second a GiB) makes the
others wait; nobody who is attached waits for the daemon.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from shmrb import wire
from shmrb.errors import DaemonError, ShmrbError
from shmrbd.janitor import Janitor

_log = logging.getLogger(__name__)

# SO_PEERPIDFD (Linux 6.5); the socket module has no name for it.
_SO_PEERPIDFD = 77
# struct ucred: pid, uid, gid.
_UCRED = struct.Struct("3i")


class StopSignals:
    """SIGTERM and SIGINT as a descriptor that becomes readable; restores what it replaced.

    Use it before anything slow: a signal that comes while buffers are adopted is kept for the loop.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> StopSignals:
        self._old_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # A handler of Python's is needed, or the signal ends the process; the pipe does the work.
        self._old_handlers = {
            number: signal.signal(number, lambda *_: None)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._reader)
        os.close(self._writer)

    def fileno(self) -> int:
        """The descriptor to select on."""
        return self._reader

    def caught(self) -> bool:
        """Whether what made the descriptor readable asks for a stop."""
        # Numbers of other signals whose handlers are Python's come through here too.
        numbers = os.read(self._reader, 64)
        return bool({signal.SIGTERM, signal.SIGINT} & set(numbers))


@dataclass(frozen=True, eq=False)
class Peer:
    """One connection, and the process at its other end as the kernel knows it."""

    sock: socket.socket
    pid: int
    pidfd: int | None


class Server:
    """Accepts connections, answers requests and gives the janitor its turns until a stop signal."""

    def __init__(
        self,
        listener: socket.socket,
        signals: StopSignals,
        answer: Callable[[wire.AnyRequest], Any],
        janitor: Janitor,
        *,
        max_connections: int,
    ) -> None:
        self._listener = listener
        self._signals = signals
        self._answer = answer
        self._janitor = janitor
        self._max_connections = max_connections
        self._peers: set[Peer] = set()
        self._is_accepting = False
        self._is_stopping = False
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self._selector.register(self._signals, selectors.EVENT_READ, self._note_signals)
        self._accept_again()
        while not self._is_stopping:
            for key, _ in self._selector.select(self._janitor.seconds_to_next_round()):
                key.data()
            if self._janitor.is_due():
                self._janitor.do_round()
                self._accept_again()

    def close(self) -> None:
        """Hang up on everybody."""
        for peer in list(self._peers):
            self._disconnect(peer)
        self._selector.close()

    def _note_signals(self) -> None:
        self._is_stopping = self._signals.caught() or self._is_stopping

    def _accept_again(self) -> None:
        if not self._is_accepting and len(self._peers) < self._max_connections:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._is_accepting = True

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # Out of descriptors, most likely: let callers queue until the janitor's next round.
            _log.warning("cannot accept a connection: %s", error)
            self._stop_accepting()
            return
        sock.setblocking(False)
        peer = Peer(sock, *_process_behind(sock))
        self._peers.add(peer)
        self._selector.register(sock, selectors.EVENT_READ, partial(self._serve, peer))
        if peer.pidfd is not None:
            self._selector.register(peer.pidfd, selectors.EVENT_READ, partial(self._bury, peer))
        if len(self._peers) >= self._max_connections:
            _log.warning("%d connections: further ones have to wait", len(self._peers))
            self._stop_accepting()

    def _stop_accepting(self) -> None:
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
            self._janitor.hurry()

    def _reply(self, peer: Peer, packet: bytes) -> None:
        try:
            value = self._answer(wire.read_request(packet))
        except ShmrbError as error:
            wire.send_failure(peer.sock, error)
        except Exception as error:
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
        self._janitor.hurry()

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
