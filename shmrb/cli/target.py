"""What a command acts on: the daemon, where one answers, or the roots themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shmrb import attachment
from shmrb.client import Client, connect
from shmrb.errors import DaemonError
from shmrb.segment import names
from shmrb.segment.directory import Root


@dataclass(frozen=True)
class Target:
    """Where buffers are looked for.

    Attributes:
        roots: in the order in which `attach` searches them; new buffers go into the first.
        client: of the daemon that serves the first root; None if none does.
    """

    roots: list[str]
    client: Client | None

    def root_of(self, name: str) -> Root:
        """The root that holds a buffer.

        Raises:
            NoSuchBufferError: none does; the message names those that were searched.
        """
        names.check_name(name)
        return Root(attachment.find(self.roots, name, 0.0)[0])

    def client_for(self, root: Root) -> Client | None:
        """The daemon that serves this root, which must be asked to change it."""
        return self.client if root.path == self.roots[0] else None


@contextmanager
def target_of(socket: str | None) -> Iterator[Target]:
    """The daemon at `socket`, or whatever this user's surroundings name.

    A root in $SHMRB_ROOT is acted on alone, through the daemon only if that is the one it serves.

    Raises:
        DaemonError: `socket` is given and no daemon answers there.
    """
    client = connect(socket) if socket is not None else _client_if_any()
    if client is None:
        yield Target(names.search_roots(), None)
        return
    with client:
        reported = client.ping().root
        roots = [reported] if socket is not None else names.search_roots(reported=reported)
        yield Target(roots, client if roots[0] == reported else None)


def _client_if_any() -> Client | None:
    try:
        # A stale socket is no reason to fail: the roots are there without a daemon.
        return connect() if any(map(os.path.exists, names.client_sockets())) else None
    except DaemonError:
        return None
