"""What `shmrb doctor` knows to look at: the machine, the limits, the permissions, the versions.

Each check looks at the places it is given, so that a test can give it others.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shmrb import __version__, core
from shmrb.client import connect
from shmrb.errors import FileSystemError, ShmrbError
from shmrb.segment import names
from shmrb.segment.accounts import group_name, user_name
from shmrb.segment.cgroups import memory_rooms
from shmrb.segment.filesystem import check_file_system, file_system
from shmrb.segment.logind import Logind
from shmrb.segment.mounts import PROC

Level = Literal["ok", "note", "warning", "problem"]

GIB = 1 << 30
# Docker's default is 64 MiB; a million small records take about 200.
SMALL_BYTES = GIB
# select is not used, but a daemon takes two descriptors a connection.
FEW_DESCRIPTORS = 1024
# MADV_POPULATE_WRITE; older kernels are served by writing zeros.
GOOD_KERNEL = (5, 14)


@dataclass(frozen=True)
class Advice:
    """What a check found, and what to do about it if anything."""

    check: str
    level: Level
    found: str
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where the checks look."""

    roots: Sequence[str]
    sockets: Sequence[str]
    uid: int = field(default_factory=os.geteuid)
    shared_memory: str = names.SHARED_MEMORY
    logind: Logind = field(default_factory=Logind)
    proc: str = PROC
    limits: Mapping[int, tuple[int, int]] = field(
        default_factory=lambda: {
            number: resource.getrlimit(number)
            for number in (resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_NOFILE)
        }
    )
    path: str | None = None
    kernel: str = field(default_factory=platform.release)


def examine(surroundings: Surroundings) -> list[Advice]:
    """Every check, in the order in which they matter."""
    return [advice for check in CHECKS for advice in check(surroundings)]


def check_shared_memory(around: Surroundings) -> Iterator[Advice]:
    """Is there a /dev/shm that is large enough and open?"""
    where = around.shared_memory
    if not os.path.isdir(where):
        advice = "Mount a tmpfs there; semaphores and the default root need it."
        yield Advice("shared memory", "problem", f"{where} is not there", advice)
        return
    room = os.statvfs(where)
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    found = f"{where}: {_bytes(total)}, {_bytes(free)} free"
    if not os.access(where, os.W_OK | os.X_OK):
        advice = f"Ask for mode 1777 (chmod 1777 {where}), or name another root (SHMRB_ROOT)."
        yield Advice("shared memory", "problem", f"{found}, not open to this user", advice)
    elif 0 < total < SMALL_BYTES:
        advice = (
            f"Enlarge it (mount -o remount,size=… {where}; in a container --shm-size or "
            "--ipc=host), or name a root on another tmpfs (SHMRB_ROOT)."
        )
        yield Advice("shared memory", "warning", found, advice)
    else:
        yield Advice("shared memory", "ok", found)


def check_roots(around: Surroundings) -> Iterator[Advice]:
    """Can buffers be made and found, and do locks prove there who lives?"""
    for root in around.roots:
        try:
            found = os.lstat(root)
        except FileNotFoundError:
            yield Advice("root", "note", f"{root} is not there yet", "The first buffer makes it.")
            continue
        except PermissionError:
            yield Advice("root", "problem", f"{root} cannot be reached", "Open its parents to you.")
            continue
        group = group_name(found.st_gid)
        whose = f"{user_name(found.st_uid)}:{group} {stat.S_IMODE(found.st_mode):04o}"
        kind = file_system(root)
        shown = f"{root} ({kind}, {whose})"
        if not stat.S_ISDIR(found.st_mode):
            yield Advice("root", "problem", f"{root} is no directory", "Remove it, or use another.")
        elif not os.access(root, os.R_OK | os.W_OK | os.X_OK):
            advice = (
                f"Join the group (usermod -aG {group} {user_name(around.uid)}, then log in "
                "anew), or name another root (SHMRB_ROOT)."
            )
            yield Advice("root", "problem", f"{shown} is not open to this user", advice)
        elif found.st_mode & stat.S_IWOTH:
            advice = f"chmod o-rwx {root}: whoever may write there may end every process."
            yield Advice("root", "problem", f"{shown} is open to everybody", advice)
        else:
            yield _proof_of_life(root, shown)


def _proof_of_life(root: str, shown: str) -> Advice:
    advice = "Use a root on tmpfs, ext4 or xfs (SHMRB_ROOT)."
    try:
        check_file_system(root)
    except FileSystemError as error:
        return Advice("root", "problem", str(error), advice)
    with tempfile.NamedTemporaryFile(dir=root, prefix=".doctor.") as probe:
        probe.truncate(1)
        hold = core.HeldByte()
        taken = hold.take(probe.name, 0) == 0
        holds = taken and core.byte_held(probe.name, 0)
        hold.release()
        if not holds or core.byte_held(probe.name, 0):
            return Advice("root", "problem", f"{shown} does not keep the locks of mappings", advice)
    return Advice("root", "ok", shown)


def check_remove_ipc(around: Surroundings) -> Iterator[Advice]:
    """Does logind remove this user's buffers at the last logout?"""
    verdict = around.logind.verdict(around.roots, around.uid)
    advice = (
        "Run the daemon as a system user (systemd/shmrbd.service), or loginctl enable-linger, or "
        "RemoveIPC=no in /etc/systemd/logind.conf."
    )
    if verdict.removes:
        yield Advice("RemoveIPC", "warning", verdict.reason, advice)
    else:
        yield Advice("RemoveIPC", "ok", verdict.reason)


def check_limits(around: Surroundings) -> Iterator[Advice]:
    """Do limits of the process stand in the way?"""
    unlimited = resource.RLIM_INFINITY
    for number, flag, what in (
        (resource.RLIMIT_FSIZE, "-f", "size of a file"),
        (resource.RLIMIT_AS, "-v", "address space"),
    ):
        limit = around.limits[number][0]
        if limit != unlimited:
            advice = f"Larger buffers fail: ulimit {flag} unlimited."
            yield Advice("limits", "warning", f"{what} at most {_bytes(limit)}", advice)
    descriptors = around.limits[resource.RLIMIT_NOFILE][0]
    if descriptors != unlimited and descriptors < FEW_DESCRIPTORS:
        advice = f"ulimit -n {FEW_DESCRIPTORS}"
        yield Advice("limits", "warning", f"{descriptors} descriptors", advice)
    rooms = list(memory_rooms(around.proc))
    if rooms:
        room = min(rooms, key=lambda one: one.limit_bytes)
        level: Level = "warning" if room.limit_bytes < SMALL_BYTES else "note"
        found = f"cgroup {room.directory}: at most {_bytes(room.limit_bytes)} of memory"
        advice = (
            "Pages count where they are touched first: by who creates the buffer. Raise "
            f"{room.setting}, or let a daemon in another cgroup create."
        )
        yield Advice("limits", level, found, advice)
    else:
        yield Advice("limits", "ok", "no limit on memory by a cgroup")


def check_daemon(around: Surroundings) -> Iterator[Advice]:
    """Does a daemon answer, of this version?"""
    there = [path for path in around.sockets if os.path.exists(path)]
    if not there:
        found = f"no socket at {', '.join(around.sockets)}"
        yield Advice("daemon", "note", found, "Buffers work without one; start it: shmrb serve.")
        return
    try:
        with connect(there[0]) as client:
            info = client.ping()
    except ShmrbError as error:
        advice = "Start it again (shmrb serve), or join the socket's group."
        yield Advice("daemon", "problem", str(error), advice)
        return
    found = f"pid {info.pid}, version {info.version}, root {info.root}"
    if info.version != __version__:
        advice = f"This is {__version__}: restart the daemon; nobody attached notices."
        yield Advice("daemon", "warning", found, advice)
    elif info.root not in around.roots:
        advice = "It serves another root than this user's; see SHMRB_ROOT."
        yield Advice("daemon", "warning", found, advice)
    else:
        yield Advice("daemon", "ok", found)


def check_versions(around: Surroundings) -> Iterator[Advice]:
    """What is installed, and what is too old."""
    kernel = tuple(int(part) for part in around.kernel.split("-")[0].split(".")[:2])
    if kernel < GOOD_KERNEL:
        advice = "Works; creating large buffers is slower than on 5.14 and later."
        yield Advice("versions", "note", f"Linux {around.kernel}", advice)
    parts = [f"shmrb {__version__}", f"format {core.FORMAT_NUMBER}"]
    parts += [f"Python {sys.version.split()[0]}", f"Linux {around.kernel}"]
    parts += [f"{name} {_version(name)}" for name in ("numpy", "torch", "tensordict", "torchrl")]
    yield Advice("versions", "ok", ", ".join(parts))


def check_video(around: Surroundings) -> Iterator[Advice]:
    """Can frames be decoded?"""
    ffmpeg = shutil.which("ffmpeg", path=around.path)
    found = f"FFmpeg {ffmpeg or 'not found'}, torchcodec {_version('torchcodec')}"
    advice = (
        "" if ffmpeg else "Only video needs it: apt-get install ffmpeg, pip install shmrb[video]."
    )
    yield Advice("video", "ok" if ffmpeg else "note", found, advice)


CHECKS: tuple[Callable[[Surroundings], Iterator[Advice]], ...] = (
    check_shared_memory,
    check_roots,
    check_remove_ipc,
    check_limits,
    check_daemon,
    check_versions,
    check_video,
)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _bytes(number: int) -> str:
    return f"{number / GIB:.1f} GiB" if number >= GIB // 10 else f"{number / (1 << 20):.1f} MiB"
