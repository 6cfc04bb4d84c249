"""Repairs what dead clients left, so that a survivor need not stumble over it first.

Proof of death is the lock byte alone, and the native core looks at it: a pidfd or a closed
connection only says when to look. Without a daemon the clients' own waiting does the same.
"""

from __future__ import annotations

import logging
import time

from shmrb.core import Status
from shmrb.errors import ShmrbError
from shmrb.segment.directory import Root
from shmrbd.config import Config
from shmrbd.registry import Registry, ring

_log = logging.getLogger(__name__)


class Janitor:
    """Makes its rounds at an interval, and at once when somebody is known to have died."""

    def __init__(self, registry: Registry, settings: Config) -> None:
        self._registry = registry
        self._interval_s = settings.sweep_interval_s
        self._leftovers_interval_s = settings.leftovers_interval_s
        # Whoever holds the lock may be stopped, and the loop must go on: look again next time.
        self._root = Root(settings.root, lock_timeout=0.0)
        self._next_round = time.monotonic()
        self._next_leftovers = time.monotonic()

    def seconds_to_next_round(self) -> float:
        """How long the loop may wait for other events."""
        return max(0.0, self._next_round - time.monotonic())

    def is_due(self) -> bool:
        """Whether it is time for a round."""
        return time.monotonic() >= self._next_round

    def hurry(self) -> None:
        """Somebody has probably died: the next round is due now."""
        self._next_round = time.monotonic()

    def do_round(self) -> None:
        """Adopt and let go, recover the dead, and from time to time remove leftovers."""
        try:
            self._registry.refresh()
            self._recover_the_dead()
            if time.monotonic() >= self._next_leftovers:
                self._next_leftovers = time.monotonic() + self._leftovers_interval_s
                self._reclaim()
        except (ShmrbError, OSError) as error:
            # What this round could not do, the next one tries again; the daemon has other work.
            _log.warning("a round was cut short: %s", error)
        self._next_round = time.monotonic() + self._interval_s

    def _recover_the_dead(self) -> None:
        for member in self._registry.members():
            status, dead, _, _, wake = member.segment.reap()
            ring(member, wake)
            # Counts anew where records died; an observer that looks later may not.
            member.segment.size()
            if dead:
                _log.info("recovered %d dead clients of %s", dead, member.name)
            if status == Status.CORRUPT:
                _log.error("%s is damaged: its dead clients cannot be recovered", member.name)

    def _reclaim(self) -> None:
        for leftover in self._root.reclaim():
            _log.info("removed %s: %s", leftover.path, leftover.reason)
