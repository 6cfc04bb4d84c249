"""Signals as a descriptor that becomes readable: a handler only puts its number into a pipe."""

from __future__ import annotations

import os
import signal
from types import TracebackType

STOPS = frozenset({signal.SIGTERM, signal.SIGINT})
RELOAD = signal.SIGHUP


class Signals:
    """SIGTERM, SIGINT and SIGHUP for a loop; restores what it replaced.

    Use it before anything slow: a signal that comes while buffers are adopted is kept for the loop.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Signals:
        self._old_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # A handler of Python's is needed, or the signal ends the process; the pipe does the work.
        self._old_handlers = {
            number: signal.signal(number, lambda *_: None) for number in (*STOPS, RELOAD)
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

    def caught(self) -> frozenset[int]:
        """The numbers of those that came, also of others whose handlers are Python's."""
        return frozenset(os.read(self._reader, 64))
