"""The daemon as a program talks to it; floor F5.

Only names and numbers go through the daemon. Who has a handle reads and writes the shared memory
itself, and goes on when the daemon is restarted.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from shmrb import opening, wire
from shmrb.buffer import ReplayBuffer, attach
from shmrb.channel import Channel
from shmrb.errors import SpecError
from shmrb.results import BufferStats
from shmrb.segment import names
from shmrb.segment.directory import Exist
from shmrb.segment.layout import Layout
from shmrb.segment.room import SLOWEST_BYTES_PER_S
from shmrb.segment.survey import BufferSummary
from shmrb.spec import BufferSpec, Storage
from shmrb.waiting import DEFAULT_TIMEOUT_S

# Arguments of `ReplayBuffer` that are the handle's alone; the daemon never hears of them.
_OF_HANDLE = frozenset({"cast", "client_name", "default_timeout", "format", "priority_key", "seed"})
# Those that give the buffer its defaults and the handle its own.
_OF_BOTH = frozenset({"batch_size", "sample_unit", "sampler"})


def connect(
    socket: str | os.PathLike[str] | None = None, *, timeout: float | None = None
) -> Client:
    """A connection to the daemon.

    Args:
        socket: path of its socket; None: $SHMRB_SOCKET, else the first that answers of
            $XDG_RUNTIME_DIR/shmrb/daemon.sock and /run/shmrb/daemon.sock.
        timeout: seconds to wait for a daemon that is not there yet, and for each of its replies.
            None or 0: a missing daemon is an error at once, and replies are waited for as
            configured (60).

    Raises:
        DaemonError: no daemon answers; the message names the sockets that were tried.
    """
    wait_s = timeout or 0.0
    if not wait_s >= 0:
        raise SpecError(f"timeout: expected seconds >= 0, got {timeout!r}.")
    sockets = names.client_sockets(socket)
    return Client(sockets, wait_s=wait_s, timeout_s=wait_s or DEFAULT_TIMEOUT_S)


class Client:
    """Creates, finds, lists and drops buffers through the daemon; made by `connect`.

    A daemon that was restarted between two calls is connected to again. Every call raises the error
    that the daemon raised, of its class; `DaemonError` when none answers, and `DeadlineError` when
    one is there and does not reply in time.

    Concurrency: threads may share a client, and a forked child may go on using it.
    """

    def __init__(self, sockets: list[str], *, wait_s: float, timeout_s: float) -> None:
        self._channel = Channel(sockets)
        self._timeout_s = timeout_s
        self._channel.open(wait_s)

    def ping(self) -> wire.DaemonInfo:
        """Who the daemon is: `pid`, `version`, and the `root` of its buffers."""
        info: wire.DaemonInfo = self._ask(wire.Ping())
        return info

    def create(
        self, name: str, *, storage: Storage, exist: Exist = "attach", **settings: Any
    ) -> ReplayBuffer:
        """Have the daemon create a buffer that lasts until it is dropped; a handle on it.

        Args:
            name: what others attach by.
            storage, exist, settings: as for `ReplayBuffer`. Descriptions travel; a Python callable
                belongs to one handle and is refused.

        Raises:
            SpecError: an impossible description, or a callable.
            AlreadyExistsError: the name is taken by another description.
            CapacityError: there is no room; nothing is left behind.
        """
        if "progress" in settings:
            raise SpecError("progress: the daemon does not tell how far it is. Leave it out.")
        for key, value in settings.items():
            if callable(value):
                raise SpecError(
                    f"{key}: expected a description, which travels to the daemon, got the callable "
                    f"{value!r}. Give it to your handle afterwards: append_transform."
                )
        if "root" in settings:
            raise SpecError("root: the daemon has its own. Connect to the one that serves it.")
        of_handle = {key: settings.pop(key) for key in _OF_HANDLE & settings.keys()}
        of_handle |= {key: settings[key] for key in _OF_BOTH & settings.keys()}
        spec = opening.describe(storage=storage, **settings)
        root = self.create_described(name, spec, exist=exist)
        return attach(name, root=root, **of_handle)

    def create_described(self, name: str, spec: BufferSpec, *, exist: Exist = "attach") -> str:
        """Have the daemon create the buffer of this description; the root where it lies.

        Raises as `create`.
        """
        request = wire.Create(name=name, spec=spec.to_json(), exist=exist)
        needed = Layout.of(spec).total_bytes if spec.schema is not None else 0
        patience_s = self._timeout_s + needed / SLOWEST_BYTES_PER_S
        place: wire.Place = self._channel.ask(request, patience_s)
        return place.root

    def attach(self, name: str, **options: Any) -> ReplayBuffer:
        """A handle on a buffer of the daemon's root.

        Args:
            name: the buffer.
            options: of the handle, as for `shmrb.attach`.

        Raises:
            NoSuchBufferError: the daemon knows none of that name.
        """
        timeout = options.get("timeout", 0.0)
        # A name that is waited for need not be there yet.
        place = self._ask(wire.Ping() if timeout else wire.Attach(name=name))
        return attach(name, root=place.root, **options)

    def list(self, prefix: str = "") -> list[BufferSummary]:
        """The buffers called `prefix` or below it, by name."""
        return [BufferSummary.from_json(row) for row in self._ask(wire.List(prefix=prefix))]

    def drop(self, name: str, *, force: bool = False) -> None:
        """Take a buffer's name away and free its memory.

        Args:
            name: the buffer.
            force: also while it has members. Their next call raises StaleAttachmentError.

        Raises:
            NoSuchBufferError: the daemon knows none of that name.
            AttachError: it has members, named in the message.
        """
        self._ask(wire.Drop(name=name, force=force))

    def stats(self, name: str) -> BufferStats:
        """The counters, lanes and clients of a buffer, as `BufferStats`."""
        return BufferStats.from_json(self._ask(wire.Stats(name=name)))

    def events(self, after: int = 0) -> wire.EventPage:
        """What the daemon saw and did since its event number `after`, as far as it remembers.

        Another `pid` in the answer means another daemon, whose numbers begin at 1 again.
        """
        page: wire.EventPage = self._ask(wire.Events(after=after))
        return page

    def metrics(self) -> str:
        """What a Prometheus server would be told, in its text format."""
        text: str = self._ask(wire.Metrics())
        return text

    def close(self) -> None:
        """Hang up. Handles that were made through this client stay."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, request: wire.Request) -> Any:
        return self._channel.ask(request, self._timeout_s)
