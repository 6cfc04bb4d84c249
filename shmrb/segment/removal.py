"""Taking buffers down, and finding what the dead left; floor F3.

The caller holds the root's administration lock for everything here but `remove_tree`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from shmrb import core
from shmrb.errors import AttachError
from shmrb.segment import doorbell, entries, names, stamps
from shmrb.segment.entries import DEAD_STATE, Entry, State
from shmrb.segment.mapping import Mapping
from shmrb.segment.opening import open_directory

# The generation's place in a slot's word (native/abi.h).
GENERATION_SHIFT = 20


@dataclass(frozen=True)
class Leftover:
    """Something that nobody alive needs."""

    path: str
    reason: str

    @property
    def place(self) -> str:
        """The directory in which it lies."""
        return os.path.dirname(self.path)


def refuse_if_in_use(entry: Entry) -> None:
    """Refuse to drop a buffer that somebody else still has, by name.

    Raises:
        AttachError: it has members, or a living creator without whom it would end.
    """
    slots = list(entry.held_slots())
    if entry.meta is None:
        clients = [f"client slot {slot}" for slot in slots]
    else:
        clients = [str(label) for label in entries.read_labels(entry, slots)]
    if not clients and entry.is_bounded and entry.creator_lives:
        clients = ["its creator"]
    if clients:
        raise AttachError(
            f"Buffer {entry.name!r} is in use, expected nobody attached: {', '.join(clients)}. "
            "Close these handles, or drop it with force."
        )


def take_down(root: str, entry: Entry) -> list[str]:
    """Take the name away from a buffer, members or not, and keep its highest generation.

    Whoever is attached keeps its mapping, and learns at its next call that the buffer is dead.
    Killed half-way, the next caller begins anew and gets to the end. A door goes before what it
    leads to: so no door is left that leads nowhere while somebody drops.

    REQUIRES: the lock of the place where its files lie is held too.

    Returns:
        The directories where the files are now; `remove_tree` is left to do, without the lock.
    """
    if entry.meta is not None:
        forced = entry.state is State.UNCLEAN or any(True for _ in entry.held_slots())
        _mark_dead(entry)
        core.stopping_point("dropping")
        highest = _highest_generation(entry) + (stamps.MARGIN if forced else 0)
        for place in {root, entry.place}:
            stamps.raise_stamp(place, entry.name, highest)
    build = uuid.uuid4().hex
    if entry.uuid is not None:
        build = entry.uuid.hex()
        doorbell.unlink_semaphores(entry.uuid)
    else:
        # Only a door is left; whoever removed the buffer may have known another root.
        stamps.raise_stamp(root, entry.name, stamps.read_stamp(entry.place, entry.name))
    gone = []
    if entry.door is not None:
        gone.append(_put_aside(entry.door, build))
    if entry.uuid is not None:
        gone.append(_put_aside(entry.path, build))
    return gone


def _put_aside(path: str, build: str) -> str:
    gone = os.path.join(os.path.dirname(path), names.leaving_name(build))
    if os.path.lexists(gone):
        remove_tree(gone)
    os.rename(path, gone)
    return gone


def remove_tree(path: str) -> None:
    """Remove a directory that bears no name any more; somebody else may be at it too."""
    shutil.rmtree(path, ignore_errors=True)


def remove_trees(paths: list[str]) -> None:
    """Remove several."""
    for path in paths:
        remove_tree(path)


def find_leftovers(root: str, prefix: str = "") -> Iterator[Leftover]:
    """What can be removed: never what is foreign, and nothing that anybody alive holds.

    Buffers only if they are called `prefix` or lie below it; what bears no name is nobody's.
    """
    for directory in sorted(os.listdir(root)):
        path = os.path.join(root, directory)
        if names.unfinished_build(directory) is None or os.path.islink(path):
            continue
        if names.is_leaving(directory):
            yield Leftover(path, "its removal was interrupted")
        elif not _is_being_built(path):
            yield Leftover(path, "its builder died")
    for entry in entries.list_entries(root):
        if not names.is_below(entry.name, prefix):
            continue
        if entry.state is State.LEAVING:
            yield Leftover(entry.path, "its drop was interrupted")
        elif is_abandoned(entry):
            yield Leftover(entry.path, "its creator is gone and nobody is attached")


def is_abandoned(entry: Entry) -> bool:
    """Is it a bounded buffer without creator and without members?"""
    if not entry.is_bounded or entry.creator_lives:
        return False
    return not any(True for _ in entry.held_slots())


def clear(root: str, leftover: Leftover) -> list[str]:
    """Take a leftover out of the way; what is returned is to be removed without the lock.

    REQUIRES: the lock of the directory in which it lies is held too.
    """
    directory = os.path.basename(leftover.path)
    build = names.unfinished_build(directory)
    if build is not None:
        doorbell.unlink_semaphores(bytes.fromhex(build))
        return [leftover.path]
    name = names.buffer_name(directory)
    assert name is not None
    return take_down(root, entries.look(root, name))


def _is_being_built(path: str) -> bool:
    """Does a living builder hold the lock of this directory?"""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(os.path.join(path, names.LIVE_LOCK), flags)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _mark_dead(entry: Entry) -> None:
    offset, size = core.abi()["ControlBlock"]["fields"]["state"]
    descriptor = os.open(
        os.path.join(entry.path, names.CONTROL), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    )
    try:
        os.pwrite(descriptor, DEAD_STATE.to_bytes(size, "little"), offset)
    finally:
        os.close(descriptor)


def _highest_generation(entry: Entry) -> int:
    """The highest that anybody can have seen; an emptied slot shows one more than its word."""
    assert entry.meta is not None
    layout = entry.meta.layout
    region = layout.regions["words"]
    offset, size = core.abi()["ControlBlock"]["fields"]["generation_base"]
    with open_directory(entry.path) as directory:
        slots = Mapping.open(
            region.file,
            layout.files[region.file],
            directory=directory,
            writable=False,
            where=entry.path,
        )
        control = Mapping.open(
            names.CONTROL,
            layout.files[names.CONTROL],
            directory=directory,
            writable=False,
            where=entry.path,
        )
    base = control.highest_word(offset, size)
    highest = slots.highest_word(region.offset, region.bytes) >> GENERATION_SHIFT
    return max(base - 1, highest + 1 if highest else 0)
