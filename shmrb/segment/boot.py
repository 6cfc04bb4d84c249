"""Has the disk what the memory had? The mark of a buffer on a disk; floor F3.

While a machine runs, all its processes see one memory, whatever the disk has. After a power loss a
word can be on the disk without the bytes it vouches for. So such a buffer has a mark, the file
`boot`: the boot in which it was last in use, and whether it has been written out since.

    open      somebody may be attached
    closing   the last to leave looks whether it is the last, then writes everything out
    clean     everything is on the disk and nobody is attached

Who attaches takes its byte first and looks at the mark then; who leaves sets `closing` first and
looks at the bytes then. So of two who do both at a time one sees the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from shmrb.errors import FileSystemError, FormatMismatchError, UncleanError
from shmrb.segment import names
from shmrb.segment.opening import open_directory, read_file

OPEN, CLOSING, CLEAN = "open", "closing", "clean"

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
# One block of any disk, written at once.
_MARK_BYTES = 64


def boot_id() -> str:
    """Which start of the machine this is.

    Raises:
        FileSystemError: the kernel does not say.
    """
    try:
        return Path(_BOOT_ID).read_text().strip()
    except OSError as error:
        raise FileSystemError(
            f"MemmapStorage: expected the id of this boot in {_BOOT_ID}, got {error.strerror}. "
            "Use SharedStorage."
        ) from None


def is_whole(directory: int, where: str) -> bool:
    """May the buffer in an open directory be served?

    Raises:
        FormatMismatchError: it has no mark.
    """
    boot, word = _read(directory, where)
    return word == CLEAN or boot == boot_id()


def write_first_mark(directory: int, mode: int) -> None:
    """Mark a new buffer as clean, which it is once all its files are written out."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(names.BOOT, flags, 0o600, dir_fd=directory)
    try:
        os.fchmod(descriptor, mode)
        os.pwrite(descriptor, _text(CLEAN), 0)
    finally:
        os.close(descriptor)


def take_up(path: str, lock: Callable[[], AbstractContextManager[None]]) -> None:
    """Mark a buffer as open before anything is written to it.

    REQUIRES: the caller holds its byte.

    Args:
        path: the directory of its files.
        lock: gives the lock under which the mark changes.

    Raises:
        UncleanError: its machine stopped while it was open.
    """
    with open_directory(path) as directory:
        now = (boot_id(), OPEN)
        if _read(directory, path) == now:
            return
        with lock():
            if not is_whole(directory, path):
                raise unclean(path)
            if _read(directory, path) != now:
                _write(directory, OPEN)


def settle(
    path: str,
    is_in_use: Callable[[], bool],
    lock: Callable[[], AbstractContextManager[None]],
) -> None:
    """Write everything out and mark the buffer as clean, if nobody has it any more.

    Args:
        path: the directory of its files.
        is_in_use: looks at the bytes.
        lock: gives the lock under which the mark changes.
    """
    if is_in_use():
        return
    with open_directory(path) as directory:
        # What is of another boot by now is not ours to vouch for, nor what replaced it.
        if _read(directory, path) != (boot_id(), OPEN):
            return
        # Most of it now, without the lock: whoever attaches meanwhile need not wait for the disk.
        write_out(directory)
        with lock():
            _write(directory, CLOSING, lasting=False)
            if is_in_use():
                _write(directory, OPEN)
                return
            write_out(directory)
            _write(directory, CLEAN)


def write_out(directory: int) -> None:
    """Have the disk take every plain file of an open directory, and their names.

    Raises:
        OSError: it cannot; an errno of `room.NO_ROOM` where it had promised more than it has.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for name in os.listdir(directory):
        descriptor = os.open(name, flags, dir_fd=directory)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    os.fsync(directory)


def keep_names(path: str) -> None:
    """Have the disk take the names in a directory as they are now."""
    with open_directory(path) as directory:
        os.fsync(directory)


def unclean(path: str) -> UncleanError:
    """The error for a buffer that is not served."""
    return UncleanError(
        f"{path}: the machine stopped while this buffer was open, so records may be on the disk "
        "without their bytes: it is not served. Use its newest checkpoint in a new buffer: replace "
        "this one (exist='replace'), or drop it."
    )


def _read(directory: int, where: str) -> tuple[str, str]:
    raw = read_file(names.BOOT, directory, where, _MARK_BYTES)
    words = (raw or b"").decode("ascii", "replace").split()
    if len(words) != 2 or words[1] not in (OPEN, CLOSING, CLEAN):
        raise FormatMismatchError(
            f"{where}: expected a file {names.BOOT!r} with the id of a boot and one of {OPEN}, "
            f"{CLOSING}, {CLEAN}, got {raw!r}. Remove the directory."
        )
    return words[0], words[1]


def _write(directory: int, word: str, *, lasting: bool = True) -> None:
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(names.BOOT, flags, dir_fd=directory)
    try:
        os.pwrite(descriptor, _text(word), 0)
        if lasting:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _text(word: str) -> bytes:
    return f"{boot_id()} {word}".ljust(_MARK_BYTES - 1).encode("ascii") + b"\n"
