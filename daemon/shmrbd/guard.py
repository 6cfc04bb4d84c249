"""One daemon a root, and one a socket.

The kernel gives a lock back when its holder dies, so nothing that a killed daemon leaves (lock
files, socket) keeps the next one out, and no pid is ever trusted.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import filelock

from shmrb.errors import DaemonError
from shmrb.segment import names
from shmrbd import EXIT_TAKEN

_BACKLOG = 128


@contextmanager
def only_daemon_of(root: str) -> Iterator[None]:
    """Be the only daemon that serves a root.

    Raises:
        DaemonError: another one does.
    """
    with _lock(os.path.join(root, names.DAEMON_LOCK), f"root {root}"):
        yield


@contextmanager
def listener_at(path: str, mode: int) -> Iterator[socket.socket]:
    """A listening socket with this mode whatever the umask; it is unlinked at the end.

    Raises:
        DaemonError: somebody listens there, or something else bears the name.
    """
    directory = os.path.dirname(path)
    with suppress(FileExistsError):
        os.mkdir(directory)
        os.chmod(directory, 0o755)
    with (
        _lock(path + names.SOCKET_LOCK_SUFFIX, f"socket {path}"),
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        _remove_stale(path)
        listener.bind(path)
        try:
            # Before listen, so nobody gets in through a mode that the umask left.
            os.chmod(path, mode)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            yield listener
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)


@contextmanager
def _lock(path: str, what: str) -> Iterator[None]:
    lock = filelock.FileLock(path, mode=0o600)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise DaemonError(
            f"Another daemon already serves {what} (it holds {path}). Stop it first, or give this "
            "one another root and socket (--root, --socket).",
            code=EXIT_TAKEN,
        ) from None
    try:
        yield
    finally:
        lock.release()


def _remove_stale(path: str) -> None:
    """Remove the socket that a killed daemon left, and nothing else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise DaemonError(
            f"Socket path {path} is taken by something that is no socket. Remove it, or name "
            "another socket (--socket).",
            code=EXIT_TAKEN,
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError:
            # Somebody listens: with a full backlog, or for another kind of socket.
            pass
    raise DaemonError(
        f"Socket {path} belongs to a program that listens on it and is no shmrb daemon. Name "
        "another socket (--socket).",
        code=EXIT_TAKEN,
    )
