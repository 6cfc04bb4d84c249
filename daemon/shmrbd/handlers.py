"""One function a message of the wire."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shmrb import __version__, wire
from shmrb.segment.room import SLOWEST_BYTES_PER_S
from shmrb.spec import BufferSpec
from shmrbd.events import EventLog
from shmrbd.notify import Notifier
from shmrbd.registry import Registry, total_bytes


@dataclass(frozen=True)
class Organs:
    """What requests are answered from."""

    registry: Registry
    events: EventLog
    notifier: Notifier
    metrics: Callable[[], str]


def answer(organs: Organs, request: wire.AnyRequest) -> Any:
    """The value of the reply to a request.

    Raises:
        ShmrbError: it is refused; the client gets the same error.
    """
    return _ANSWERS[type(request)](organs, request)


def ping(organs: Organs, _request: wire.Ping) -> wire.DaemonInfo:
    """Who serves, and which root."""
    return wire.DaemonInfo(pid=os.getpid(), version=__version__, root=organs.registry.root)


def create(organs: Organs, request: wire.Create) -> wire.Place:
    """Reserve or declare a buffer that lasts until it is dropped."""
    spec = BufferSpec.from_json(request.spec)
    with organs.notifier.patience(total_bytes(spec) / SLOWEST_BYTES_PER_S):
        organs.registry.create(request.name, spec, request.exist)
    return organs.registry.place(request.name)


def attach(organs: Organs, request: wire.Attach) -> wire.Place:
    """Where the client finds the buffer; it attaches by itself."""
    return organs.registry.place(request.name)


def list_(organs: Organs, request: wire.List) -> list[dict[str, Any]]:
    """One summary a buffer."""
    return [summary.to_json() for summary in organs.registry.list(request.prefix)]


def drop(organs: Organs, request: wire.Drop) -> None:
    """Take a name away."""
    organs.registry.drop(request.name, force=request.force)


def stats(organs: Organs, request: wire.Stats) -> dict[str, Any]:
    """The counters of one buffer."""
    return organs.registry.stats(request.name).to_json()


def events(organs: Organs, request: wire.Events) -> wire.EventPage:
    """What happened since."""
    return organs.events.after(request.after)


def metrics(organs: Organs, _request: wire.Metrics) -> str:
    """What a Prometheus server would be told."""
    return organs.metrics()


_ANSWERS: dict[type[wire.Request], Callable[[Organs, Any], Any]] = {
    wire.Ping: ping,
    wire.Create: create,
    wire.Attach: attach,
    wire.List: list_,
    wire.Drop: drop,
    wire.Stats: stats,
    wire.Events: events,
    wire.Metrics: metrics,
}
