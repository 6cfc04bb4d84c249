"""Is there room for a buffer, and if not: what limits it, what is left, what to do; floor F3."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shmrb.errors import CapacityError
from shmrb.segment.cgroups import memory_free_bytes, memory_rooms
from shmrb.segment.filesystem import file_system
from shmrb.segment.mounts import PROC

# How the kernel says that there is no room, when a file is reserved or its pages are touched.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EFAULT})

# No memory or disk that anybody uses is reserved and touched more slowly than this.
SLOWEST_BYTES_PER_S = 64 * 1024 * 1024

# A smaller buffer is always a way out.
_SMALLER = "or take a smaller capacity"


@dataclass(frozen=True)
class Limit:
    """Something that ends.

    Attributes:
        what: it is, for a message.
        needed_bytes: what the buffer takes of it.
        available_bytes: what is left of it.
        advice: what to do.
        number: how the kernel says that it is met.
    """

    what: str
    needed_bytes: int
    available_bytes: int
    advice: str
    number: int


def check_room(path: str | os.PathLike[str], files: Mapping[str, int], proc: str = PROC) -> None:
    """Refuse what plainly does not fit. What passes can still find a full disk when it reserves.

    Args:
        path: where the files shall be.
        files: the bytes of each.
        proc: where the proc file system is mounted.

    Raises:
        CapacityError: less room than needed.
    """
    met = [one for one in _limits(path, files, proc) if one.needed_bytes > one.available_bytes]
    if met:
        raise _refusal(path, min(met, key=lambda one: one.available_bytes))


def no_room(
    path: str | os.PathLike[str],
    files: Mapping[str, int],
    number: int | None,
    reserved_bytes: int = 0,
) -> CapacityError:
    """The error for a buffer that turned out not to fit.

    Args:
        path: where it should have been.
        files: the bytes of each of its files.
        number: what the kernel said, one of `NO_ROOM`.
        reserved_bytes: what had been reserved until then. Of a limit that nobody tells it is all
            that is known.
    """
    if number == errno.EFAULT:
        # The answer of MADV_POPULATE_WRITE where a store would end in SIGBUS.
        number = errno.ENOMEM if file_system(path) == "tmpfs" else errno.ENOSPC
    named = [one for one in _limits(path, files, PROC) if one.number == number]
    if named:
        return _refusal(path, min(named, key=lambda one: one.available_bytes - one.needed_bytes))
    what, advice = {
        errno.EDQUOT: ("the disk quota of this user or group", f"Raise the quota, {_SMALLER}."),
        errno.EFBIG: (f"the largest file of {file_system(path)}", "Take a smaller capacity."),
    }.get(number or 0, ("memory", f"Free some, {_SMALLER}."))
    return _refusal(path, Limit(what, sum(files.values()), reserved_bytes, advice, number or 0))


def no_addresses(path: str, needed_bytes: int) -> CapacityError:
    """The error for a buffer that is there, and that this process cannot map."""
    left = _addresses_left(PROC)
    if left is None:
        what = "the number of mappings (vm.max_map_count) is"
        advice = "Close handles that are not needed, or raise it."
    else:
        what, advice = "RLIMIT_AS, the address space, is", "Raise it (ulimit -v)."
    return CapacityError(
        f"{path} cannot be mapped: needed {needed_bytes} bytes of addresses, available "
        f"{'some' if left is None else left}; {what} the limit. {advice}",
        needed_bytes=needed_bytes,
        available_bytes=left or 0,
    )


def _limits(path: str | os.PathLike[str], files: Mapping[str, int], proc: str) -> Iterator[Limit]:
    """All that a buffer of these files draws on, as far as it can be known."""
    needed = sum(files.values())
    kind = file_system(path)
    yield from _file_system_limits(path, kind, needed, len(files))
    largest = max(files.values(), default=0)
    file_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if file_bytes != resource.RLIM_INFINITY:
        advice = f"Raise it (ulimit -f), {_SMALLER}."
        yield Limit("RLIMIT_FSIZE, for one file,", largest, file_bytes, advice, errno.EFBIG)
    left = _addresses_left(proc)
    if left is not None:
        advice = f"Raise it (ulimit -v), {_SMALLER}."
        yield Limit("RLIMIT_AS, the address space,", needed, left, advice, errno.ENOMEM)
    if kind == "tmpfs":
        yield from _memory_limits(needed, proc)


def _addresses_left(proc: str) -> int | None:
    """What RLIMIT_AS leaves, None where it is not set."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(Path(proc, "self/statm").read_text().split()[0])
    return max(0, limit - pages * os.sysconf("SC_PAGESIZE"))


def _file_system_limits(
    path: str | os.PathLike[str], kind: str, needed: int, files: int
) -> Iterator[Limit]:
    room = os.statvfs(path)
    if kind == "tmpfs":
        what = "the size of this tmpfs"
        advice = (
            "Take a smaller capacity, drop a buffer, or enlarge it (mount -o remount,size=…; in a "
            "container --shm-size or --ipc=host)."
        )
    else:
        what, advice = f"the {kind} file system", f"Free some space, {_SMALLER}."
    # A tmpfs without a limit (size=0) reports no blocks at all, and one without nr_inodes no files.
    if room.f_blocks:
        yield Limit(what, needed, room.f_bavail * room.f_frsize, advice, errno.ENOSPC)
    if room.f_files and room.f_favail < files:
        what = f"the number of files that this {kind} may hold"
        yield Limit(what, needed, 0, "Remove some, or mount it with more inodes.", errno.ENOSPC)


def _memory_limits(needed: int, proc: str) -> Iterator[Limit]:
    """What a tmpfs keeps is memory: the machine's, and that of every cgroup above this process."""
    for room in memory_rooms(proc):
        what = f"the memory limit of a cgroup ({room.setting} in {room.directory})"
        advice = f"Raise it (in a unit MemoryMax=, in a container --memory), {_SMALLER}."
        yield Limit(what, needed, room.available_bytes, advice, errno.ENOMEM)
    free = memory_free_bytes(proc)
    if free is not None:
        yield Limit(
            "the memory of this machine", needed, free, f"Free some, {_SMALLER}.", errno.ENOMEM
        )


def _refusal(path: str | os.PathLike[str], limit: Limit) -> CapacityError:
    return CapacityError(
        f"No room for the buffer in {os.fspath(path)}: needed {limit.needed_bytes} bytes, "
        f"available {limit.available_bytes} bytes; {limit.what} is the limit. {limit.advice}",
        needed_bytes=limit.needed_bytes,
        available_bytes=limit.available_bytes,
    )
