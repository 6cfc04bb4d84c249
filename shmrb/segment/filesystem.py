"""What a file system can do for a buffer; floor F3."""

from __future__ import annotations

import os

from shmrb.errors import FileSystemError
from shmrb.segment.mounts import mounts

# The locks of one host are unknown to the others, or a mapping does not keep them (overlay; FUSE
# leaves that to each server).
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph"})
_CLUSTER = frozenset({"lustre", "gfs2", "ocfs2"})
_REFUSED = _NETWORK | _CLUSTER | {"overlay"}
_REFUSED_PREFIX = "fuse"
# Where files were seen to keep locks, bytes and promised room.
_PROVEN = frozenset({"tmpfs", "ext2", "ext3", "ext4", "xfs"})


def file_system(path: str | os.PathLike[str]) -> str:
    """The type of the file system under `path` as /proc/self/mountinfo names it, or "unknown".

    The longest mount point wins, and of equal ones the last: it covers the others. The device
    number of a file would be simpler, but overlayfs shows the numbers of its layers.
    """
    real = os.path.realpath(path)
    best, kind = "", "unknown"
    for mount in mounts():
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and len(mount.point) >= len(best):
            best, kind = mount.point, mount.kind
    return kind


def check_file_system(path: str | os.PathLike[str]) -> None:
    """Refuse a file system on which nobody can prove that a client lives.

    Raises:
        FileSystemError: a network file system, FUSE, or overlay.
    """
    kind = file_system(path)
    if kind in _REFUSED or kind.startswith(_REFUSED_PREFIX):
        raise unproven(path, kind)


def check_lasting(path: str | os.PathLike[str]) -> str:
    """Refuse a file system for files that are mapped for long; what speaks against it otherwise.

    Raises:
        FileSystemError: a network file system, FUSE, or overlay.
    """
    kind = file_system(path)
    if kind in _REFUSED or kind.startswith(_REFUSED_PREFIX):
        raise FileSystemError(
            f"{os.fspath(path)}: expected a file system that keeps a lock for as long as a mapping "
            f"of the locked file lives (ext4, xfs, tmpfs), got {kind}. Name a directory on a local "
            "disk; in a container, on a volume."
        )
    if kind == "btrfs":
        return (
            f"{os.fspath(path)}: btrfs does not keep the room that it promised when a page is "
            "written again, so a full disk can end processes with SIGBUS. Use ext4 or xfs, or make "
            "the directory with chattr +C."
        )
    if kind not in _PROVEN:
        return f"{os.fspath(path)}: {kind} was not tested; ext4, xfs and tmpfs were."
    return ""


def unproven(path: str | os.PathLike[str], kind: str | None = None) -> FileSystemError:
    """The error for a file system whose locks do not prove that a client lives."""
    return FileSystemError(
        f"{os.fspath(path)}: expected a file system that keeps a lock for as long as a mapping of "
        f"the locked file lives (tmpfs, ext4, xfs), got {kind or file_system(path)}. Use a root on "
        "tmpfs, for example below /dev/shm."
    )
