"""What outlives a dropped buffer: the highest generation given under its name; floor F3.

A handle in a batch is (index, generation) and nothing more. A new buffer under an old name
therefore starts above everything that the old one gave, and no old handle matches a new record. The
caller holds the root's administration lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from shmrb.errors import CorruptionError, FileSystemError
from shmrb.segment import names

# Calls that are under way when members are forced out still give generations. A call gives a slot
# one at most, so this is more than all clients together can add.
MARGIN = 1 << 20
# A generation has 44 bits in the slot's word. What only a damaged word can reach leaves the next
# buffer room to count.
_MAX_GENERATION = (1 << 44) - (1 << 40)


def read_stamp(root: str, name: str) -> int:
    """The highest generation that buffers of this name have given; 0 if there was none.

    Raises:
        CorruptionError: the file holds something else.
        FileSystemError: a link lies there, which is not followed.
    """
    try:
        with _folder(root) as folder:
            descriptor = _open(root, folder, names.directory_name(name), os.O_RDONLY)
    except FileNotFoundError:
        return 0
    with open(descriptor, "rb") as file:
        text = file.read(64)
    if not text.strip().isdigit() or not 0 <= int(text) <= _MAX_GENERATION:
        raise CorruptionError(
            f"{_path(root, name)}: expected a generation below 2**44, got {text!r}. Remove the "
            f"file if no handle of an earlier buffer {name!r} is in use any more."
        )
    return int(text)


def reserve_stamp(root: str, name: str, modes: tuple[int, int]) -> int:
    """Make the file while there is room: dropping a buffer must work when there is none.

    Private names never come again, and keep nothing.

    Returns:
        What `read_stamp` gives.
    """
    highest = read_stamp(root, name)
    if names.is_private(name) or os.path.exists(_path(root, name)):
        return highest
    directory_mode, file_mode = modes
    with contextlib.suppress(FileExistsError):
        os.mkdir(_path(root), 0o700)
        os.chmod(_path(root), directory_mode | os.stat(_path(root)).st_mode & 0o2000)
    file = names.directory_name(name)
    # A name of its own, since no directory of a buffer begins with a point.
    unfinished = "." + file
    with _folder(root) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=folder)
        descriptor = _open(root, folder, unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(descriptor, "wb") as written:
            os.fchmod(descriptor, file_mode)
            written.write(_text(highest))
        os.rename(unfinished, file, src_dir_fd=folder, dst_dir_fd=folder)
    return highest


def raise_stamp(root: str, name: str, highest: int) -> None:
    """Keep `highest` for the next buffer of this name, unless a higher one is kept already.

    One write in place inside one block, so that it is made wholly or not at all, and takes no room.
    """
    if names.is_private(name) or highest <= read_stamp(root, name):
        return
    with _folder(root) as folder:
        descriptor = _open(root, folder, names.directory_name(name), os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(descriptor, _text(min(highest, _MAX_GENERATION)), 0)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _folder(root: str) -> Iterator[int]:
    """A descriptor of the folder: whoever may write in the root may not lead us elsewhere."""
    try:
        folder = os.open(_path(root), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise _strange(_path(root), "a directory") from None
    try:
        yield folder
    finally:
        os.close(folder)


def _open(root: str, folder: int, file: str, flags: int) -> int:
    try:
        return os.open(file, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _strange(os.path.join(_path(root), file), "a plain file") from None


def _strange(path: str, expected: str) -> FileSystemError:
    return FileSystemError(f"{path}: expected {expected}, got a link or another kind. Remove it.")


def _text(generation: int) -> bytes:
    return b"%020d\n" % generation


def _path(root: str, name: str = "") -> str:
    folder = os.path.join(root, names.STAMPS)
    return os.path.join(folder, names.directory_name(name)) if name else folder
