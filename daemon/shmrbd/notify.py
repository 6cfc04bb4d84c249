"""What the daemon tells its service manager: sd_notify's datagrams, without libsystemd."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_log = logging.getLogger(__name__)

# A manager that does not read for this long is not waited for: the daemon has clients.
_SEND_TIMEOUT_S = 5.0
# How often work at start and stop is reported, and how much time each report asks for.
_REPORT_INTERVAL_S = 1.0
_EXTENSION_S = 30.0


class Notifier:
    """Sends states to the socket that `NOTIFY_SOCKET` names; does nothing without one.

    Args:
        address: of the manager's socket.
        watchdog_s: how long the manager waits for a sign of life; None: it keeps no watch.
    """

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        # A leading @ stands for the zero byte of Linux's abstract namespace.
        self._address = "\0" + address[1:] if address and address[0] == "@" else address
        self._is_serving = False
        self._next_report = 0.0
        self.watchdog_s = watchdog_s if address else None

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Notifier:
        """As the manager that started this process says."""
        return cls(environment.get("NOTIFY_SOCKET"), _watchdog_s(environment))

    def ready(self, status: str) -> None:
        """A client that attaches from now on is served."""
        self._is_serving = True
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Settings are read anew; `ready` follows."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_us}")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        """The loop was seen to work."""
        self._send("WATCHDOG=1")

    def working(self, what: str, extra_s: float = 0.0) -> None:
        """One more step of a start or a stop is done: asks for more time, once a second at most.

        Each step is reported by who did it, so a start that hangs is still ended by its manager.

        Args:
            what: is done.
            extra_s: what begins now takes so long, at most.
        """
        now = time.monotonic()
        if self._is_serving or (now < self._next_report and not extra_s):
            return
        self._next_report = now + _REPORT_INTERVAL_S
        extension_us = int((_EXTENSION_S + extra_s) * 1e6)
        self._send(f"EXTEND_TIMEOUT_USEC={extension_us}\nSTATUS={what}")

    def stopping(self) -> None:
        """An orderly stop has begun."""
        self._is_serving = False
        self._next_report = 0.0
        self._send("STOPPING=1")

    @contextmanager
    def patience(self, extra_s: float) -> Iterator[None]:
        """The loop is about to be busy with one request for so long, at most."""
        if self.watchdog_s is None:
            yield
            return
        self._send(f"WATCHDOG_USEC={int((self.watchdog_s + extra_s) * 1e6)}")
        try:
            yield
        finally:
            self._send(f"WATCHDOG_USEC={int(self.watchdog_s * 1e6)}")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(_SEND_TIMEOUT_S)
                sock.sendto(state.encode(), self._address)
        except OSError as error:
            # The manager's trouble is no reason to leave clients without a daemon.
            _log.warning("could not notify the service manager: %s", error)


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """How long the manager waits for a sign of life of this very process."""
    try:
        microseconds = int(environment.get("WATCHDOG_USEC", "0"))
        pid = int(environment.get("WATCHDOG_PID") or os.getpid())
    except ValueError:
        _log.warning("WATCHDOG_USEC or WATCHDOG_PID is no number: no watchdog")
        return None
    return microseconds / 1e6 if microseconds > 0 and pid == os.getpid() else None
