"""Repairs what dead clients left, so that a survivor need not stumble over it first.

Proof of death is the lock byte alone, and the native core looks at it: a pidfd or a closed
connection only says when to look. Without a daemon the clients' own waiting does the same.
"""

from __future__ import annotations

import logging
import time

from shmrb.errors import ShmrbError
from shmrb.segment.directory import Root
from shmrbd.attendance import Attendance
from shmrbd.config import Settings
from shmrbd.events import EventLog
from shmrbd.registry import Registry

_log = logging.getLogger(__name__)


class Janitor:
    """Makes its rounds at an interval, and at once when somebody is known to have died."""

    def __init__(self, registry: Registry, settings: Settings, events: EventLog) -> None:
        self._registry = registry
        self._settings = settings
        self._events = events
        self._attendance = Attendance(events)
        # Whoever holds the lock may be stopped, and the loop must go on: look again next time.
        self._root = Root(settings.now.root, lock_timeout=0.0)
        self._next_round = time.monotonic()
        self._next_leftovers = time.monotonic()

    def seconds_left(self) -> float:
        """How long the loop may wait for other events."""
        return max(0.0, self._next_round - time.monotonic())

    def hurry(self) -> None:
        """Somebody has probably died: the next round is due now."""
        self._next_round = time.monotonic()

    def act(self) -> None:
        """Adopt and let go, recover the dead, and from time to time remove leftovers."""
        settings = self._settings.now
        try:
            self._registry.refresh()
            members = list(self._registry.members())
            self._attendance.keep_only(members)
            for member in members:
                self._attendance.look(member)
            if time.monotonic() >= self._next_leftovers:
                self._next_leftovers = time.monotonic() + settings.leftovers_interval_s
                self._reclaim()
        except (ShmrbError, OSError) as error:
            # What this round could not do, the next one tries again; the daemon has other work.
            _log.warning("a round was cut short: %s", error)
        self._next_round = time.monotonic() + settings.sweep_interval_s

    def _reclaim(self) -> None:
        for leftover in self._root.reclaim():
            self._events.record("removed", path=leftover.path, reason=leftover.reason)
