"""What happened: a line of log for each event, and the last ones kept for `shmrb events`.

A line is `event key=value …`; values with anything but plain characters are JSON strings, so that
no client's name can forge a line. On journald the level goes in front as `<6>`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, TextIO

from shmrb.wire import Event, EventPage

_log = logging.getLogger("shmrbd")

# An event is about 200 bytes; a page of all of them stays far below what a client reads.
KEPT = 1024
_PLAIN = re.compile(r"[A-Za-z0-9_./:@+,-]+")
# syslog's numbers of logging's levels.
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))


class EventLog:
    """Numbers events, logs them and keeps the last `KEPT`.

    Attributes:
        totals: how often each kind happened.
    """

    def __init__(self) -> None:
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._next = 1
        self.totals: Counter[str] = Counter()

    def record(self, kind: str, *, level: int = logging.INFO, **facts: Any) -> None:
        """Something happened."""
        said = {key: value for key, value in facts.items() if value is not None}
        self._kept.append(Event(self._next, time.time(), kind, said))
        self._next += 1
        self.totals[kind] += 1
        _log.log(level, "%s", line(kind, said.items()))

    def after(self, number: int) -> EventPage:
        """The events younger than number `number`, as far as they are kept."""
        kept = [event for event in self._kept if event.number > number]
        return EventPage(os.getpid(), kept)


def line(kind: str, facts: Iterable[tuple[str, Any]]) -> str:
    """One event as the log shows it."""
    return " ".join([kind, *(f"{key}={_shown(value)}" for key, value in facts)])


def log_to(stream: TextIO, level: str) -> None:
    """Send the log of this process to a stream, from a level on."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(is_journal=_is_journal(stream)))
    logging.basicConfig(handlers=[handler])
    set_level(level)


def set_level(level: str) -> None:
    """From which level on the daemon's own log is written."""
    logging.getLogger("shmrbd").setLevel(level.upper())


class _Formatter(logging.Formatter):
    def __init__(self, *, is_journal: bool) -> None:
        super().__init__("%(message)s")
        self._is_journal = is_journal

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if not self._is_journal:
            return f"shmrbd: {text}"
        priority = next(number for level, number in _PRIORITIES if record.levelno >= level)
        # Each line of a traceback is an entry of its own.
        return "\n".join(f"<{priority}>{part}" for part in text.splitlines())


def _is_journal(stream: TextIO) -> bool:
    """Is it the stream that journald made? JOURNAL_STREAM names its device and inode."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _shown(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
