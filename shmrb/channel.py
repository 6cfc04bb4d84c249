"""A connection to the daemon, as a client holds it; floor F5, below `attachment` and `client`."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

from shmrb import core, wire
from shmrb.errors import DaemonError, DeadlineError

# While somebody waits for a daemon that is not there yet: short beside the start of one.
_RETRY_S = 0.02
# struct timeval: how long connect waits for a daemon whose backlog is full. Not by settimeout, with
# which a Unix socket refuses at once.
_BACKLOG_WAIT = struct.pack("ll", 1, 0)


class Channel:
    """Asks a daemon, one request at a time; survives its restart, and a fork of ours.

    Any number of threads may share a channel. A forked child opens a connection of its own.
    """

    def __init__(self, sockets: Sequence[str]) -> None:
        self._sockets = list(sockets)
        self._sock: socket.socket | None = None
        self._path = ""
        self._owner = core.this_process()
        self._lock = threading.Lock()

    @property
    def sockets(self) -> list[str]:
        """The sockets that are tried, in order."""
        return self._sockets

    def open(self, wait_s: float) -> None:
        """Connect to the first socket that answers, trying until `wait_s` have passed.

        Raises:
            DaemonError: no daemon answers; names every socket with its reason.
        """
        with self._own_lock():
            self._connect(wait_s)

    def ask(self, request: wire.Request, timeout_s: float) -> Any:
        """The daemon's reply to one request.

        Raises:
            ShmrbError: what the daemon raised, of its class.
            DaemonError: no daemon answers, or it ended before it replied.
            DeadlineError: it is there and did not reply in time.
        """
        packet = wire.write_request(request)
        op = type(request).__name__.lower()
        lock = self._own_lock()
        if not lock.acquire(timeout=timeout_s):
            raise DeadlineError(
                f"Request {op!r} waited {timeout_s:g} s for another thread of this process, which "
                f"waits for the daemon at {self._path}."
            )
        try:
            sock = self._send(packet, timeout_s)
            return wire.receive_reply(sock, request)
        except DaemonError:
            self._hang_up()
            raise
        except TimeoutError:
            # The reply may still come, and must not be taken for that to the next request.
            self._hang_up()
            raise DeadlineError(
                f"The daemon at {self._path} did not reply to {op!r} within {timeout_s:g} s; it "
                "may be creating a large buffer."
            ) from None
        except OSError as error:
            self._hang_up()
            raise DaemonError(
                f"The daemon at {self._path} ended before it replied to {op!r} ({error.strerror}); "
                "whether it was done is not known.",
                code=error.errno or 0,
            ) from None
        finally:
            lock.release()

    def close(self) -> None:
        """Hang up; the next `ask` connects again."""
        with self._own_lock():
            self._hang_up()

    def _own_lock(self) -> threading.Lock:
        """The lock of this process: in a forked child, the thread that held ours does not exist."""
        if self._owner != core.this_process():
            self._owner = core.this_process()
            self._lock = threading.Lock()
            self._hang_up()
        return self._lock

    def _send(self, packet: bytes, timeout_s: float) -> socket.socket:
        if self._sock is not None:
            try:
                self._sock.settimeout(timeout_s)
                self._sock.send(packet)
                return self._sock
            except ConnectionError:
                # Restarted since the last request; this one has reached nobody: ask the new one.
                self._hang_up()
        sock = self._connect(0.0)
        sock.settimeout(timeout_s)
        sock.send(packet)
        return sock

    def _connect(self, wait_s: float) -> socket.socket:
        deadline = time.monotonic() + wait_s
        while True:
            reasons = []
            for path in self._sockets:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                try:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _BACKLOG_WAIT)
                    sock.connect(path)
                except OSError as error:
                    sock.close()
                    reasons.append(f"{path} ({error.strerror or error})")
                else:
                    self._sock, self._path = sock, path
                    return sock
            left = deadline - time.monotonic()
            if left <= 0:
                raise DaemonError(
                    f"No daemon answers; tried {', '.join(reasons)}. Start one with `shmrb serve`, "
                    "or name its socket (socket=, SHMRB_SOCKET)."
                )
            time.sleep(min(_RETRY_S, left))

    def _hang_up(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
