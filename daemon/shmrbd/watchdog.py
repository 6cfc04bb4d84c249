"""Signs of life for the service manager, each proved by a request that went round the loop.

The request takes the way of every client's: a packet on a SOCK_SEQPACKET socket, the selector, the
parser, the answer. What is tested is the daemon's own loop, not locks that a stopped client may
hold: those are no reason to restart the daemon.
"""

from __future__ import annotations

import logging
import os
import socket
import time

from shmrb import wire
from shmrb.errors import ShmrbError
from shmrbd.notify import Notifier

_log = logging.getLogger(__name__)


class Watchdog:
    """A client of the daemon inside the daemon, which reports that it was answered.

    Attributes:
        asking: its end of a connection; `heard` is to be called when it can be read.
        answering: the other end, to be served like any client's.
    """

    def __init__(self, notifier: Notifier, watchdog_s: float) -> None:
        self._notifier = notifier
        # Twice within the manager's patience, as sd_watchdog_enabled recommends.
        self._interval_s = watchdog_s / 2
        self._next = time.monotonic()
        self._is_waiting = False
        self.asking, self.answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.asking.setblocking(False)

    def seconds_left(self) -> float:
        """How long the loop may wait for other events."""
        return max(0.0, self._next - time.monotonic())

    def act(self) -> None:
        """Ask. While a request goes unanswered there is no other one, and no sign of life."""
        self._next = time.monotonic() + self._interval_s
        if self._is_waiting:
            _log.warning("the daemon did not answer itself for %g s", self._interval_s)
            return
        try:
            self.asking.send(wire.write_request(wire.Ping()))
            self._is_waiting = True
        except OSError as error:
            _log.error("the daemon cannot ask itself: %s", error)

    def heard(self) -> None:
        """Check the answer, and report it."""
        try:
            info: wire.DaemonInfo = wire.receive_reply(self.asking, wire.Ping())
        except (ShmrbError, OSError) as error:
            # Stays unanswered: the manager shall see it.
            _log.error("the daemon does not answer itself: %s", error)
            self._next = time.monotonic() + self._interval_s
            return
        if info.pid == os.getpid():
            self._is_waiting = False
            self._notifier.alive()
