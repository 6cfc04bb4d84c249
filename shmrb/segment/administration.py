"""The lock under which the names of a root change; floor F3."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import filelock

from shmrb.errors import FileSystemError, LockTimeoutError
from shmrb.segment import names
from shmrb.segment.opening import denied
from shmrb.segment.room import NO_ROOM, no_room

TIMEOUT_S = 60.0
# The lock is held for about a millisecond.
_POLL_S = 0.002


@contextlib.contextmanager
def administration_lock(root: str, mode: int, timeout: float) -> Iterator[None]:
    """Hold the lock of a root. It does not nest, not even in one thread.

    Args:
        root: its directory, which exists.
        mode: of the lock file, should it be made now.
        timeout: seconds to wait.

    Raises:
        LockTimeoutError: somebody holds it; the message names the process.
        PermissionDeniedError: the lock file is not open to this user.
        FileSystemError: something else lies in its place.
        CapacityError: there is no room for the file.
    """
    path = os.path.join(root, names.ADMINISTRATION_LOCK)
    lock = filelock.FileLock(path, timeout=timeout, mode=mode)
    try:
        lock.acquire(poll_interval=_POLL_S)
    except filelock.Timeout:
        raise LockTimeoutError(
            f"Waited {timeout:g} s for the administration lock {path}, held by {_holder(path)}. "
            "Continue or end that process."
        ) from None
    except PermissionError:
        raise denied(path if os.path.exists(path) else root) from None
    except OSError as error:
        if error.errno in NO_ROOM:
            raise no_room(root, {names.ADMINISTRATION_LOCK: 1}, error.errno) from None
        # A link is not followed, and a directory is no lock.
        raise FileSystemError(
            f"{path}: expected a plain file to lock, got another kind ({error.strerror}). "
            "Remove it."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _holder(path: str) -> str:
    """Who has a file locked, as the kernel lists it."""
    with contextlib.suppress(OSError):
        inode = os.stat(path).st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            # 1: FLOCK  ADVISORY  WRITE 7473 00:1b:74 0 EOF
            words = line.split()
            if len(words) > 5 and words[5].rpartition(":")[2] == str(inode):
                return f"process {words[4]}"
    return "a process that the kernel does not name"
