"""Building a buffer's files in a directory that nobody looks into yet; floor F3.

A builder holds `flock` on the `live.lock` of its directory. The lock goes with the process, so an
unfinished directory whose lock can be taken was left by a builder that died.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from shmrb import core
from shmrb.segment import boot, doorbell, layout, names
from shmrb.segment.entries import READY_STATE
from shmrb.segment.filesystem import unproven
from shmrb.segment.layout import Declaration, Layout, Meta
from shmrb.segment.mapping import WORD_BYTES, Mapping, create_reserved, touch
from shmrb.segment.opening import open_directory
from shmrb.segment.room import NO_ROOM, check_room, no_room
from shmrb.spec import BufferSpec, MemmapStorage, Priorities

# Without a batch size the limiter's error buffer is chosen for this one.
ASSUMED_BATCH = 256
# A word of native/abi.h: never written, and void.
VOID_WORD = 2

# Hears how many bytes of how many have their place.
Progress = Callable[[int, int], None]


class _Steps:
    """How far a reservation has come. A byte counts half when it is reserved, half when touched."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.reserved = 0
        self._touched = 0
        self._total = total
        self._progress = progress

    def more_reserved(self, count: int) -> None:
        self.reserved += count
        self._report()

    def more_touched(self, count: int) -> None:
        self._touched += count
        self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress((self.reserved + self._touched) // 2, self._total)


@dataclass
class Building:
    """A directory in which a buffer is being built.

    Attributes:
        path: the directory.
        build: the id in its name; the uuid of the buffer too, unless it was declared before.
        descriptor: of `live.lock`, locked for as long as the builder is at work.
    """

    path: str
    build: str
    descriptor: int

    @property
    def live_lock(self) -> str:
        """The file whose bytes clients will hold."""
        return os.path.join(self.path, names.LIVE_LOCK)

    @classmethod
    def start(cls, root: str, live_bytes: int, modes: tuple[int, int]) -> Building:
        """Make the directory and lock it.

        REQUIRES: the root's administration lock is held, so that nobody meets the directory before
        it is locked.
        """
        build = uuid.uuid4().hex
        path = os.path.join(root, names.building_name(build))
        directory_mode, file_mode = modes
        descriptor = -1
        try:
            os.mkdir(path, 0o700)
            # In a root with the setgid bit new buffers belong to the root's group, and pass it on.
            os.chmod(path, directory_mode | os.stat(path).st_mode & 0o2000)
            live_lock = os.path.join(path, names.LIVE_LOCK)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(live_lock, flags, 0o600)
            os.fchmod(descriptor, file_mode)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.posix_fallocate(descriptor, 0, live_bytes)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            shutil.rmtree(path, ignore_errors=True)
            if error.errno in NO_ROOM:
                raise no_room(root, {names.LIVE_LOCK: live_bytes}, error.errno) from None
            raise
        return cls(path, build, descriptor)

    def reserve_and_fill(
        self, meta: Meta, file_mode: int, progress: Progress | None = None
    ) -> None:
        """Make every file, `meta` last. Takes as long as touching the memory takes.

        Raises:
            CapacityError: there is no room; nothing is left.
        """
        files = meta.layout.all_files
        steps = _Steps(meta.layout.total_bytes, progress)
        try:
            check_room(self.path, files)
            with open_directory(self.path) as directory:
                self._reserve(meta.layout, directory, file_mode, steps)
                core.stopping_point("sized")
                _fill_versions(meta.layout, directory, self.path)
                _write_control(meta, directory)
                if meta.layout.spec.purpose == "parameters":
                    _hold_all_slots_live(meta.layout, directory, self.path)
                _write_meta(meta, directory, file_mode)
                if isinstance(meta.layout.spec.storage, MemmapStorage):
                    boot.write_first_mark(directory, file_mode)
                    # Where a disk has promised more than it has, it says so now.
                    boot.write_out(directory)
        except OSError as error:
            # What is available is what was there before.
            self.discard()
            if error.errno in NO_ROOM:
                place = os.path.dirname(self.path)
                raise no_room(place, files, error.errno, steps.reserved) from None
            raise
        core.stopping_point("filled")

    def _reserve(self, layout_: Layout, directory: int, file_mode: int, steps: _Steps) -> None:
        """Every file but `live.lock`, which is there, and `meta`: first its room, then its pages.

        What does not fit is found out before anything is touched, which takes longer.
        """
        sizes = {name: size for name, size in layout_.files.items() if name != names.LIVE_LOCK}
        for name, size in sizes.items():
            create_reserved(
                name, size, directory=directory, mode=file_mode, advance=steps.more_reserved
            )
        for name, size in sizes.items():
            touch(name, size, directory=directory, where=self.path, advance=steps.more_touched)

    def write_declaration(self, declaration: Declaration, file_mode: int) -> None:
        """Make the file of a buffer that has no memory yet."""
        with open_directory(self.path) as directory:
            _write(names.DECLARATION, layout.pack_declaration(declaration), directory, file_mode)
            if isinstance(declaration.spec.storage, MemmapStorage):
                boot.write_out(directory)

    def set_generation_base(self, base: int) -> None:
        """Say below which generation no record may lie. Known only once the name is sure."""
        offset, size = core.abi()["ControlBlock"]["fields"]["generation_base"]
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(os.path.join(self.path, names.CONTROL), flags)
        try:
            os.pwrite(descriptor, base.to_bytes(size, "little"), offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """The builder's work is done: the name shows the buffer, or the directory is gone."""
        os.close(self.descriptor)

    def discard(self) -> None:
        """Take everything back."""
        doorbell.unlink_semaphores(bytes.fromhex(self.build))
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)


def take_hold(live_lock: str, byte: int) -> core.HeldByte:
    """Hold the byte that says that a bounded buffer's creator lives.

    Raises:
        FileSystemError: the file system does not keep it.
    """
    hold = core.HeldByte()
    number = hold.take(live_lock, byte)
    if number != 0:
        raise OSError(number, os.strerror(number), live_lock)
    if not core.byte_held(live_lock, byte):
        hold.release()
        raise unproven(live_lock)
    return hold


def limiter_numbers(spec: BufferSpec) -> dict[str, int | float]:
    """What the control block's limiter starts with."""
    if spec.limiter is None:
        return {}
    batch_cost = (spec.batch_size or ASSUMED_BATCH) * spec.sample_unit.cost
    limiter = spec.limiter.resolved(batch_cost)
    min_diff, max_diff = limiter.thresholds()
    return {
        "enabled": 1,
        "min_size": limiter.min_size,
        "samples_per_insert": float(limiter.samples_per_insert),
        "min_diff": float(min_diff),
        "max_diff": float(max_diff),
    }


def priority_numbers(priorities: Priorities) -> dict[str, int | float]:
    """What the control block's priorities start with."""
    return {
        "alpha": priorities.alpha,
        "beta": priorities.beta,
        "eps": priorities.eps,
        "within_buffer": int(priorities.max_priority_within_buffer),
    }


def _fill_versions(layout_: Layout, directory: int, where: str) -> None:
    region = layout_.regions["versions"]
    size = layout_.files[region.file]
    slots = Mapping.open(region.file, size, directory=directory, writable=True, where=where)
    # Every version is -1: never set.
    slots.fill(region.offset, region.bytes, 0xFF)
    slots.close()


def _write_control(meta: Meta, directory: int) -> None:
    """The control block; everything else in the file is zero. The magic goes last."""
    abi = core.abi()
    fields = abi["ControlBlock"]["fields"]
    spec = meta.layout.spec
    raw = bytearray(layout.CONTROL_BYTES)

    def put(offset: int, size: int, value: int | float | bytes) -> None:
        if isinstance(value, float):
            value = struct.pack("<d", value)
        elif isinstance(value, int):
            value = value.to_bytes(size, "little")
        raw[offset : offset + size] = value

    header: dict[str, int | bytes] = {
        "format": core.FORMAT_NUMBER,
        "state": READY_STATE,
        "uuid": meta.uuid,
        "generation_base": 1,
        "capacity": spec.capacity,
        "lanes": spec.lanes,
        "max_clients": spec.max_clients,
        "created_ns": meta.created_ns,
    }
    for name, value in header.items():
        offset, size = fields[name]
        put(offset, size, value)
    blocks = {"limiter": ("LimiterBlock", limiter_numbers(spec))}
    if spec.priorities is not None:
        blocks["priorities"] = ("PriorityBlock", priority_numbers(spec.priorities))
    for place, (block, numbers) in blocks.items():
        for name, number in numbers.items():
            offset, size = abi[block]["fields"][name]
            put(fields[place][0] + offset, size, number)
    descriptor = os.open(
        names.CONTROL, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory
    )
    try:
        os.pwrite(descriptor, raw, 0)
        os.pwrite(descriptor, core.CONTROL_MAGIC.to_bytes(8, "little"), fields["magic"][0])
    finally:
        os.close(descriptor)


def _hold_all_slots_live(layout_: Layout, directory: int, where: str) -> None:
    """Put every slot under a live ticket for good: parameters are written in place, never appended.

    The slots start void, so that none counts as a record before something is published.
    """
    capacity = layout_.spec.capacity
    words = layout_.regions["words"]
    slots = Mapping.open(
        words.file, layout_.files[words.file], directory=directory, writable=True, where=where
    )
    slots.write(words.offset, VOID_WORD.to_bytes(WORD_BYTES, "little") * capacity)
    slots.close()
    fields = core.abi()["LaneBlock"]["fields"]
    start = layout_.regions["lanes"].offset
    descriptor = os.open(
        names.CONTROL, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory
    )
    try:
        for name, number in (
            ("head", capacity),
            ("holes", capacity),
            ("written_offset", -capacity),
        ):
            offset, size = fields[name]
            os.pwrite(descriptor, number.to_bytes(size, "little", signed=True), start + offset)
    finally:
        os.close(descriptor)


def _write_meta(meta: Meta, directory: int, file_mode: int) -> None:
    # Nobody changes it afterwards, so nobody may.
    _write(names.META, layout.pack_meta(meta), directory, file_mode & 0o444, last=8)


def _write(name: str, raw: bytes, directory: int, mode: int, last: int = 0) -> None:
    """A new file with these bytes, the first `last` of them written last."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=directory), "wb", buffering=0) as file:
        os.fchmod(file.fileno(), mode)
        for start, part in ((last, raw[last:]), (0, raw[:last])):
            written = 0
            while written < len(part):
                written += os.pwrite(file.fileno(), part[written:], start + written)
