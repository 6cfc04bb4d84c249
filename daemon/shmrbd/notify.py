"""What the daemon tells its service manager: sd_notify's datagrams, without libsystemd."""

from __future__ import annotations

import logging
import socket

_log = logging.getLogger(__name__)

# A manager that does not read for this long is not waited for: the daemon has clients.
_SEND_TIMEOUT_S = 5.0


class Notifier:
    """Sends states to the socket that `NOTIFY_SOCKET` names; does nothing without one."""

    def __init__(self, address: str | None) -> None:
        # A leading @ stands for the zero byte of Linux's abstract namespace.
        self._address = "\0" + address[1:] if address and address[0] == "@" else address

    def ready(self, status: str) -> None:
        """A client that attaches from now on is served."""
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={text}")

    def stopping(self) -> None:
        """An orderly stop has begun."""
        self._send("STOPPING=1")

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
