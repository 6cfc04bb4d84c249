"""Buffers on disks: where the daemon may make them, and how it finds its own again.

Their doors lie in the root, on tmpfs, and are gone after a start of the machine; their files are
still there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator

from shmrb.errors import ShmrbError, SpecError
from shmrb.segment import names
from shmrb.segment.directory import Root
from shmrb.segment.entries import State
from shmrb.spec import BufferSpec, MemmapStorage
from shmrbd.events import EventLog


def check_directory(spec: BufferSpec, allowed: Iterable[str]) -> None:
    """Refuse a buffer that would lie where the operator did not allow any.

    Links on the way are looked through: none leads out of an allowed directory.

    Raises:
        SpecError: not below an allowed directory.
    """
    if not isinstance(spec.storage, MemmapStorage):
        return
    real = os.path.realpath(spec.storage.directory)
    tops = [os.path.realpath(top) for top in allowed]
    if not any(real == top or real.startswith(top.rstrip("/") + "/") for top in tops):
        raise SpecError(
            f"MemmapStorage: expected a directory below one of the daemon's memmap_directories "
            f"({', '.join(tops) or 'none is set'}), got {real}. Name one of those, change the "
            "setting and reload, or create the buffer in your own process."
        )


def find_again(
    root: Root, tops: Iterable[str], events: EventLog, working: Callable[[str], None]
) -> None:
    """Give the daemon's buffers below these directories their doors, and clear what the dead left.

    What another user owns stays as it is, and so does what is no buffer of this format.
    """
    for top in tops:
        for place in _places(top):
            working(f"looking for buffers in {place}")
            try:
                Root(place, mode=root.mode, lock_timeout=root.lock_timeout).reclaim()
                found = Root(place).list()
            except (ShmrbError, OSError) as error:
                events.record(
                    "not_looked_into", level=logging.WARNING, directory=place, reason=str(error)
                )
                continue
            for entry in found:
                if entry.state is State.FOREIGN or entry.is_bounded:
                    continue
                if os.lstat(entry.path).st_uid != os.geteuid():
                    continue
                _adopt(root, place, entry.name, events)


def _adopt(root: Root, place: str, name: str, events: EventLog) -> None:
    try:
        there = root.find(name)
        if there.state is State.MISSING:
            root.adopt(place, name)
            events.record("found_again", buffer=name, directory=place)
        elif there.place != place:
            events.record(
                "not_found_again",
                level=logging.WARNING,
                buffer=name,
                directory=place,
                reason=f"another buffer of this name lies in {there.place}",
            )
    except (ShmrbError, OSError) as error:
        events.record(
            "not_found_again",
            level=logging.WARNING,
            buffer=name,
            directory=place,
            reason=str(error),
        )


def _places(top: str) -> Iterator[str]:
    """The directories below `top`, itself too, in which buffers were made. Links are left alone."""
    for folder, below, files in os.walk(top):
        is_buffer = names.META in files or names.DECLARATION in files
        below[:] = [] if is_buffer else [name for name in below if not name.startswith(".")]
        if names.ADMINISTRATION_LOCK in files:
            yield folder
