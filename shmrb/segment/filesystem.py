"""What a file system can do for a buffer: its type, its room; floor F3."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from shmrb.errors import CapacityError, FileSystemError

# The locks of one host are unknown to the others, or a mapping does not keep them (overlay; FUSE
# leaves that to each server).
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph"})
_CLUSTER = frozenset({"lustre", "gfs2", "ocfs2"})
_REFUSED = _NETWORK | _CLUSTER | {"overlay"}
_REFUSED_PREFIX = "fuse"

# How the kernel says that there is no room, when a file is reserved or its pages are touched.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EFAULT})


def file_system(path: str | os.PathLike[str]) -> str:
    """The type of the file system under `path` as /proc/self/mountinfo names it, or "unknown".

    The longest mount point wins, and of equal ones the last: it covers the others. The device
    number of a file would be simpler, but overlayfs shows the numbers of its layers.
    """
    real = os.path.realpath(path)
    best, kind = "", "unknown"
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return kind
    for line in lines:
        mount, _, source = line.partition(" - ")
        point = _unescape(mount.split(" ")[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, source.split(" ", 1)[0]
    return kind


def check_file_system(path: str | os.PathLike[str]) -> None:
    """Refuse a file system on which nobody can prove that a client lives.

    Raises:
        FileSystemError: a network file system, FUSE, or overlay.
    """
    kind = file_system(path)
    if kind in _REFUSED or kind.startswith(_REFUSED_PREFIX):
        raise unproven(path, kind)


def unproven(path: str | os.PathLike[str], kind: str | None = None) -> FileSystemError:
    """The error for a file system whose locks do not prove that a client lives."""
    return FileSystemError(
        f"{os.fspath(path)}: expected a file system that keeps a lock for as long as a mapping of "
        f"the locked file lives (tmpfs, ext4, xfs), got {kind or file_system(path)}. Use a root on "
        "tmpfs, for example below /dev/shm."
    )


def check_room(path: str | os.PathLike[str], needed_bytes: int) -> None:
    """Refuse what plainly does not fit. What passes can still find a full disk when it reserves.

    Raises:
        CapacityError: less room than needed.
    """
    room = os.statvfs(path)
    # A tmpfs without a limit (size=0) reports no blocks at all.
    if room.f_blocks and room.f_bavail * room.f_frsize < needed_bytes:
        raise no_room(path, needed_bytes)


def no_room(
    path: str | os.PathLike[str], needed_bytes: int, number: int | None = errno.ENOSPC
) -> CapacityError:
    """The error for a buffer that does not fit, with what limits it and what to do.

    Args:
        path: where it should have been.
        needed_bytes: all that it takes.
        number: what the kernel said, one of `NO_ROOM`.
    """
    room = os.statvfs(path)
    available = room.f_bavail * room.f_frsize
    kind = file_system(path)
    if number == errno.EDQUOT:
        limit, advice = "the disk quota", "Raise the quota, or take a smaller capacity."
    elif number == errno.EFBIG:
        limit, advice = "RLIMIT_FSIZE", "Raise `ulimit -f`, or take a smaller capacity."
    elif number in (errno.ENOMEM, errno.EFAULT):
        limit, advice = "memory (a cgroup's, or all)", "Raise it, or take a smaller capacity."
    elif kind == "tmpfs":
        limit = "the size of this tmpfs"
        advice = (
            "Take a smaller capacity, drop a buffer, or enlarge it (mount -o remount,size=…; in a "
            "container --shm-size or --ipc=host)."
        )
    else:
        limit, advice = f"the {kind} file system", "Take a smaller capacity, or free some space."
    return CapacityError(
        f"No room for the buffer in {os.fspath(path)}: needed {needed_bytes} bytes, available "
        f"{available} bytes; {limit} is the limit. {advice}",
        needed_bytes=needed_bytes,
        available_bytes=available,
    )


def _unescape(field: str) -> str:
    """mountinfo writes space, tab, newline and backslash in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)
