"""Buffers whose files lie elsewhere, and the doors in a root that say where; floor F3.

A door is the directory `<root>/<name>` with nothing in it but the file `where`: the absolute path
of the directory that holds the files, and a newline. It is followed only if the owner of `where`
owns what it names too, or the root: else a member of the group could lead others astray.
"""

from __future__ import annotations

import os
import shutil
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from shmrb.errors import (
    FileSystemError,
    FormatMismatchError,
    PermissionDeniedError,
    SpecError,
)
from shmrb.segment import names
from shmrb.segment.accounts import user_name
from shmrb.segment.filesystem import check_lasting
from shmrb.segment.opening import denied, open_directory
from shmrb.segment.room import check_room

# PATH_MAX, and the newline.
_MOST_BYTES = 4096 + 1


class StaleDoor(FileNotFoundError):
    """A door whose buffer was removed.

    Attributes:
        target: where the buffer was.
    """

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target


@dataclass(frozen=True)
class Opened:
    """The open directory of a buffer's files.

    Attributes:
        path: of the directory.
        descriptor: of the directory.
        door: the directory in the root that says where it is; None if it is in the root itself.
    """

    path: str
    descriptor: int
    door: str | None


@contextmanager
def open_buffer(root: str, name: str) -> Iterator[Opened]:
    """The directory that holds the files of the buffer of this name.

    Raises:
        FileNotFoundError: nothing bears the name; `StaleDoor` if it is only a door.
        FileSystemError: a link, no directory, or the disk it lies on is not mounted.
        FormatMismatchError: its `where` names no place that could be its own.
        PermissionDeniedError: it is not open to this user, or its `where` is not to be trusted.
        SpecError: no buffer may bear the name.
    """
    door = os.path.join(root, names.directory_name(name))
    with ExitStack() as stack:
        descriptor = stack.enter_context(open_directory(door))
        said = _read_where(door, descriptor)
        if said is None:
            yield Opened(door, descriptor, None)
            return
        target, owner = said
        try:
            house = stack.enter_context(open_directory(target))
        except FileNotFoundError:
            if os.path.exists(os.path.join(os.path.dirname(target), names.ADMINISTRATION_LOCK)):
                raise StaleDoor(target) from None
            raise FileSystemError(
                f"Buffer {name!r} lies in {target}, which is not there. Mount its disk, or remove "
                f"{door} if it is gone for good."
            ) from None
        _check_owner(door, owner, target, os.fstat(house).st_uid, os.stat(root).st_uid)
        yield Opened(target, house, door)


def prepare_door(root: str, build: str, target: str, modes: tuple[int, int]) -> str:
    """A door under no buffer's name yet: once it is made, giving it its name takes no room.

    REQUIRES: the root's administration lock is held until it has its name: nothing else says that
    it is not left over.

    Args:
        root: where.
        build: the id in its name.
        target: the directory of the buffer's files.
        modes: of directories and of files.
    """
    path = os.path.join(root, names.building_name(build))
    directory_mode, file_mode = modes
    os.mkdir(path, 0o700)
    try:
        os.chmod(path, directory_mode | os.stat(path).st_mode & stat.S_ISGID)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(os.path.join(path, names.WHERE), flags, 0o600), "wb") as file:
            # Nobody changes it afterwards, so nobody may.
            os.fchmod(file.fileno(), file_mode & 0o444)
            file.write(os.fsencode(target) + b"\n")
    except OSError:
        shutil.rmtree(path)
        raise
    return path


def prepare_place(directory: str, root: str, mode: int, files: Mapping[str, int]) -> None:
    """Make the directory that a description names, with those above it, unless it is there.

    Args:
        directory: an absolute path.
        root: in which the door will be; the two must not lie in one another.
        mode: of directories that are made now.
        files: what shall lie in it; what plainly does not fit is refused before anything is made.

    Raises:
        SpecError: it lies in the root.
        FileSystemError: nobody could prove there that a client lives, or it is no directory.
        CapacityError: there is no room.
        PermissionDeniedError: it may not be made.
    """
    real, real_root = os.path.realpath(directory), os.path.realpath(root)
    if real == real_root or real.startswith(real_root + "/"):
        raise SpecError(
            f"MemmapStorage: expected a directory outside the root {root}, got {directory}. Name "
            "one on a disk."
        )
    there = directory
    missing = []
    while not os.path.lexists(there):
        missing.append(there)
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise FileSystemError(f"{there}: expected a directory for the buffer, got something else.")
    doubt = check_lasting(there)
    if doubt:
        warnings.warn(doubt, RuntimeWarning, stacklevel=2)
    check_room(there, files)
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o700)
            os.chmod(path, mode | os.stat(path).st_mode & stat.S_ISGID)
        except FileExistsError:
            continue
        except PermissionError:
            raise denied(os.path.dirname(path)) from None


def _read_where(door: str, descriptor: int) -> tuple[str, int] | None:
    """What the `where` of an open directory says, and who owns it; None if there is none."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    path = os.path.join(door, names.WHERE)
    try:
        opened = os.open(names.WHERE, flags, dir_fd=descriptor)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise denied(path) from None
    except OSError as error:
        raise FormatMismatchError(f"{path} cannot be opened: {error.strerror}.") from None
    with open(opened, "rb") as file:
        found = os.fstat(opened)
        raw = file.read(_MOST_BYTES + 1) if stat.S_ISREG(found.st_mode) else b""
    target = os.fsdecode(raw[:-1])
    is_path = raw.endswith(b"\n") and len(raw) <= _MOST_BYTES and "\0" not in target
    is_plain = os.path.isabs(target) and os.path.normpath(target) == target
    if not is_path or not is_plain or os.path.basename(target) != os.path.basename(door):
        raise FormatMismatchError(
            f"{path}: expected the absolute path of a directory {os.path.basename(door)!r}, got "
            f"{raw[:80]!r}. Remove {door}."
        )
    return target, found.st_uid


def _check_owner(door: str, owner: int, target: str, house_owner: int, root_owner: int) -> None:
    if owner not in (house_owner, root_owner):
        raise PermissionDeniedError(
            f"{door}: its {names.WHERE!r} belongs to {user_name(owner)}, and {target}, which it "
            f"names, to {user_name(house_owner)}: expected one owner of both, or the root's. It is "
            "not followed."
        )
