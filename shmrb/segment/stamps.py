"""What outlives a dropped buffer: the highest generation given under its name; floor F3.

A handle in a batch is (index, generation) and nothing more. A new buffer under an old name
therefore starts above everything that the old one gave, and no old handle matches a new record. The
caller holds the root's administration lock.
"""

from __future__ import annotations

import os

from shmrb.errors import CorruptionError
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
    """
    path = _path(root, name)
    try:
        with open(path, "rb") as file:
            text = file.read(64)
    except FileNotFoundError:
        return 0
    if not text.strip().isdigit() or not 0 <= int(text) <= _MAX_GENERATION:
        raise CorruptionError(
            f"{path}: expected a generation below 2**44, got {text!r}. Remove the file if no "
            f"handle of an earlier buffer {name!r} is in use any more."
        )
    return int(text)


def reserve_stamp(root: str, name: str, modes: tuple[int, int]) -> int:
    """Make the file while there is room: dropping a buffer must work when there is none.

    Private names never come again, and keep nothing.

    Returns:
        What `read_stamp` gives.
    """
    highest = read_stamp(root, name)
    path = _path(root, name)
    if names.is_private(name) or os.path.exists(path):
        return highest
    directory_mode, file_mode = modes
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        os.mkdir(folder, 0o700)
        os.chmod(folder, directory_mode | os.stat(folder).st_mode & 0o2000)
    # A name of its own, since no directory of a buffer begins with a point.
    unfinished = os.path.join(folder, "." + os.path.basename(path))
    with open(unfinished, "wb") as file:
        os.fchmod(file.fileno(), file_mode)
        file.write(_text(highest))
    os.rename(unfinished, path)
    return highest


def raise_stamp(root: str, name: str, highest: int) -> None:
    """Keep `highest` for the next buffer of this name, unless a higher one is kept already.

    One write in place inside one block, so that it is made wholly or not at all, and takes no room.
    """
    if names.is_private(name) or highest <= read_stamp(root, name):
        return
    descriptor = os.open(_path(root, name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, _text(min(highest, _MAX_GENERATION)), 0)
    finally:
        os.close(descriptor)


def _text(generation: int) -> bytes:
    return b"%020d\n" % generation


def _path(root: str, name: str) -> str:
    return os.path.join(root, names.STAMPS, names.directory_name(name))
