"""How much memory the cgroups of this process still allow it; floor F3.

Pages of a tmpfs are charged to the cgroup of whoever touches them first, up to the top of the
hierarchy. Where a limit is met the kernel ends processes, so it is looked at before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shmrb.segment.mounts import PROC, mounts

# What version 1 says where there is no limit: the largest number of whole pages in 63 bits.
_UNLIMITED = 1 << 60


@dataclass(frozen=True)
class MemoryRoom:
    """What one cgroup allows.

    Attributes:
        directory: of the cgroup.
        setting: the file that says the limit.
        limit_bytes: what it says.
        available_bytes: what is left of it, with page cache that can be given up, and with swap.
    """

    directory: str
    setting: str
    limit_bytes: int
    available_bytes: int


def memory_rooms(proc: str = PROC) -> Iterator[MemoryRoom]:
    """The limits of the cgroup of this process and of those above it, in both versions.

    Args:
        proc: where the proc file system is mounted.
    """
    swap_bytes = swap_free_bytes(proc)
    for directory, version in memory_cgroups(proc):
        look = _version_2 if version == 2 else _version_1
        room = look(directory, swap_bytes)
        if room is not None:
            yield room


def memory_free_bytes(proc: str = PROC) -> int | None:
    """What the machine has left for pages of a tmpfs, swap included; None if it does not tell."""
    available = _meminfo(proc).get("MemAvailable")
    return None if available is None else available + swap_free_bytes(proc)


def swap_free_bytes(proc: str = PROC) -> int:
    """Swap space that nobody uses."""
    return _meminfo(proc).get("SwapFree", 0)


def memory_cgroups(proc: str = PROC) -> Iterator[tuple[str, int]]:
    """The directory and version of each cgroup that counts our memory, from ours to the top."""
    own: dict[int, str] = {}
    try:
        lines = Path(proc, "self/cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            own[2] = path
        elif "memory" in controllers.split(","):
            own[1] = path
    for mount in mounts(proc):
        is_memory = mount.kind == "cgroup" and "memory" in mount.options
        version = 2 if mount.kind == "cgroup2" else 1 if is_memory else 0
        if version not in own:
            continue
        # In a container the mount may begin below the top, and our path beside it: then what is
        # mounted is all that we see.
        inside = os.path.relpath(own[version], mount.root)
        if inside.startswith(".."):
            inside = "."
        place = os.path.normpath(os.path.join(mount.point, inside))
        while True:
            yield place, version
            if place == mount.point or place == os.sep:
                break
            place = os.path.dirname(place)


def _version_2(directory: str, swap_free: int) -> MemoryRoom | None:
    limit = _number(directory, "memory.max")
    used = _number(directory, "memory.current")
    if limit is None or used is None:
        return None
    stat = _fields(directory)
    available = limit - used + stat.get("inactive_file", 0) + stat.get("active_file", 0)
    swap = swap_free
    swap_limit = _number(directory, "memory.swap.max")
    if swap_limit is not None:
        swap = min(swap, swap_limit - (_number(directory, "memory.swap.current") or 0))
    return MemoryRoom(directory, "memory.max", limit, max(0, available) + max(0, swap))


def _version_1(directory: str, swap_free: int) -> MemoryRoom | None:
    limit = _number(directory, "memory.limit_in_bytes")
    used = _number(directory, "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    stat = _fields(directory)
    cache = stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0)
    available = max(0, limit - used + cache) + swap_free
    both = _number(directory, "memory.memsw.limit_in_bytes")
    if both is not None:
        used_both = _number(directory, "memory.memsw.usage_in_bytes") or 0
        available = min(available, max(0, both - used_both + cache))
    return MemoryRoom(directory, "memory.limit_in_bytes", limit, available)


def _number(directory: str, file: str) -> int | None:
    """What a file of a cgroup says; None: no limit, or no such file."""
    try:
        text = Path(directory, file).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _fields(directory: str) -> dict[str, int]:
    try:
        lines = Path(directory, "memory.stat").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, value in (line.split() for line in lines)}


def _meminfo(proc: str) -> dict[str, int]:
    """The sizes in /proc/meminfo, in bytes."""
    try:
        lines = Path(proc, "meminfo").read_text().splitlines()
    except OSError:
        return {}
    words = (line.replace(":", " ").split() for line in lines)
    return {row[0]: int(row[1]) * 1024 for row in words if len(row) == 3 and row[2] == "kB"}
