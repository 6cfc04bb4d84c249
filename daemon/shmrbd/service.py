"""The daemon's life: open the doors, adopt, say READY, serve, reload, stop."""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from shmrb.errors import ShmrbError
from shmrb.segment.directory import Root
from shmrb.segment.logind import Logind
from shmrbd import disks, doors, events, handlers
from shmrbd.config import Config, Settings
from shmrbd.events import EventLog
from shmrbd.guard import listener_at, only_daemon_of
from shmrbd.janitor import Janitor
from shmrbd.metrics import Collector
from shmrbd.notify import Notifier
from shmrbd.registry import Registry
from shmrbd.scrape import Scrape, listener_on
from shmrbd.server import Periodic, Server
from shmrbd.signals import RELOAD, STOPS, Signals
from shmrbd.watchdog import Watchdog

_log = logging.getLogger(__name__)

# Clients hold the administration lock for about a millisecond. A request that meets a stopped one
# fails after this long; the others wait no longer for it.
_LOCK_TIMEOUT_S = 5.0


def serve(config: Config, read_again: Callable[[], Config]) -> None:
    """Adopt what is in the root, listen, say READY, and serve until a stop signal.

    Args:
        config: the settings to start with.
        read_again: gives those that a reload shall go by.
    """
    _allow_descriptors()
    notifier = Notifier.of_environment()
    settings, journal = Settings(config), EventLog()
    passed = doors.passed_sockets()
    if config.group:
        doors.take_group(config.group)
    root = Root(config.root, mode=config.file_mode, lock_timeout=_LOCK_TIMEOUT_S)
    doors.open_root(root, is_configured=config.file_mode is not None)
    with (
        Signals() as signals,
        only_daemon_of(config.root),
        _listener(passed.control, config.socket, root.mode) as listener,
        Registry(root, journal, settings, notifier.working) as registry,
    ):
        places = [config.root, *config.memmap_places]
        warn_of_logind(journal, places, os.geteuid(), Logind())
        notifier.working("looking for buffers")
        disks.find_again(root, settings.now.memmap_places, journal, notifier.working)
        janitor = Janitor(registry, settings, journal)
        janitor.act()
        requests: Counter[str] = Counter()
        collector = Collector(registry, requests, journal.totals, lambda: server.connections)
        organs = handlers.Organs(registry, journal, notifier, collector.text)
        server = Server(partial(handlers.answer, organs), janitor.hurry, settings, requests)
        periodics: list[Periodic] = [janitor]
        if notifier.watchdog_s is not None:
            periodics.append(_start_watchdog(notifier, notifier.watchdog_s, server))
        scrape = _start_scrape(passed.metrics, config.metrics_port, server, collector)
        if scrape is not None:
            periodics.append(scrape)
        where = f"{config.root} on {listener.getsockname()}"

        def act_on_signals() -> None:
            caught = signals.caught()
            if RELOAD in caught:
                notifier.reloading()
                _reload(settings, read_again, journal)
                notifier.ready(f"serving {where}")
            if caught & STOPS:
                server.stop()

        server.watch(signals, act_on_signals)
        server.listen(listener)
        journal.record("serving", root=config.root, socket=listener.getsockname(), pid=os.getpid())
        notifier.ready(f"serving {where}")
        server.run(periodics)
        notifier.stopping()
        notifier.working("letting go of the buffers")
        if scrape is not None:
            scrape.close()
        server.close()
    journal.record("stopped")


def warn_of_logind(journal: EventLog, places: list[str], uid: int, logind: Logind) -> None:
    """Say so at the start when buffers in these places will be gone after the last logout."""
    verdict = logind.verdict(places, uid)
    if verdict.removes:
        journal.record(
            "at_risk",
            level=logging.WARNING,
            reason=verdict.reason,
            advice="loginctl enable-linger, or run as a system user; shmrb doctor tells more",
        )


@contextmanager
def _listener(passed: socket.socket | None, path: str, mode: int) -> Iterator[socket.socket]:
    """The socket that the manager passed, which stays when we go, or one of our own."""
    if passed is None:
        with listener_at(path, mode) as own:
            yield own
    else:
        with passed:
            yield passed


def _start_watchdog(notifier: Notifier, watchdog_s: float, server: Server) -> Watchdog:
    watchdog = Watchdog(notifier, watchdog_s)
    server.welcome(watchdog.answering)
    server.watch(watchdog.asking, watchdog.heard)
    return watchdog


def _start_scrape(
    passed: socket.socket | None, port: int, server: Server, collector: Collector
) -> Scrape | None:
    """Metrics over HTTP, where a socket is passed or a port configured."""
    listener = passed or (listener_on(port) if port else None)
    return Scrape(listener, server, collector.text) if listener is not None else None


def _reload(settings: Settings, read_again: Callable[[], Config], journal: EventLog) -> None:
    """Go by the configuration as it is now; one that makes no sense changes nothing."""
    try:
        changed, waiting = settings.take(read_again())
    except ShmrbError as error:
        journal.record("not_reloaded", level=logging.ERROR, reason=str(error))
        return
    events.set_level(settings.now.log_level)
    level = logging.WARNING if waiting else logging.INFO
    journal.record(
        "reloaded",
        level=level,
        changed=",".join(changed) or None,
        needs_restart=",".join(waiting) or None,
    )


def _allow_descriptors() -> None:
    """Lift the soft limit, which is meant for programs that use select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # A sandbox may refuse it; then there are fewer connections.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
