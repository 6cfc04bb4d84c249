"""One function a message of the wire."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from shmrb import __version__, wire
from shmrb.spec import BufferSpec
from shmrbd.registry import Registry


def answer(registry: Registry, request: wire.AnyRequest) -> Any:
    """The value of the reply to a request.

    Raises:
        ShmrbError: it is refused; the client gets the same error.
    """
    return _ANSWERS[type(request)](registry, request)


def ping(registry: Registry, _request: wire.Ping) -> wire.DaemonInfo:
    """Who serves, and which root."""
    return wire.DaemonInfo(pid=os.getpid(), version=__version__, root=registry.root)


def create(registry: Registry, request: wire.Create) -> wire.Place:
    """Reserve or declare a buffer that lasts until it is dropped."""
    registry.create(request.name, BufferSpec.from_json(request.spec), request.exist)
    return registry.place(request.name)


def attach(registry: Registry, request: wire.Attach) -> wire.Place:
    """Where the client finds the buffer; it attaches by itself."""
    return registry.place(request.name)


def list_(registry: Registry, request: wire.List) -> list[dict[str, Any]]:
    """One summary a buffer."""
    return [summary.to_json() for summary in registry.list(request.prefix)]


def drop(registry: Registry, request: wire.Drop) -> None:
    """Take a name away."""
    registry.drop(request.name, force=request.force)


def stats(registry: Registry, request: wire.Stats) -> dict[str, Any]:
    """The counters of one buffer."""
    return registry.stats(request.name).to_json()


_ANSWERS: dict[type[wire.Request], Callable[[Registry, Any], Any]] = {
    wire.Ping: ping,
    wire.Create: create,
    wire.Attach: attach,
    wire.List: list_,
    wire.Drop: drop,
    wire.Stats: stats,
}
