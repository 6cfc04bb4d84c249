"""What a daemon is told, resolved once at its start."""

from __future__ import annotations

from dataclasses import dataclass

from shmrb.segment import names


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of one daemon.

    Attributes:
        root: directory of the segments, absolute.
        socket: path of the control socket, absolute.
        sweep_interval_s: how often the janitor looks for dead clients whose end nobody announced.
            A look takes about a microsecond a client.
        leftovers_interval_s: how often it looks for what dead creators left. That takes the root's
            administration lock, so it is rarer.
        max_connections: control connections at a time; further ones queue. Each takes two
            descriptors.
    """

    root: str
    socket: str
    sweep_interval_s: float = 0.5
    leftovers_interval_s: float = 10.0
    max_connections: int = 400


def resolve(root: str | None, socket: str | None) -> Config:
    """The settings of a daemon that was started with these flags and this environment.

    Raises:
        SpecError: no socket is named and the user has no runtime directory.
        DaemonError: the socket's path is too long.
    """
    return Config(root=names.creation_root(root), socket=names.daemon_socket(socket))
