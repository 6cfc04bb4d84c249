"""Opening what may be anything: no link is followed, and a refusal says whose it is; floor F3."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from shmrb.errors import FileSystemError, FormatMismatchError, PermissionDeniedError
from shmrb.segment.accounts import group_name, user_name


@contextmanager
def open_directory(path: str) -> Iterator[int]:
    """A descriptor of a directory that is not reached by a link.

    Raises:
        FileSystemError: it is a link, or no directory.
        PermissionDeniedError: it is not open to this user.
        FileNotFoundError: nothing is there.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except NotADirectoryError:
        kind = "a link" if os.path.islink(path) else "no directory"
        raise FileSystemError(f"{path}: expected the directory of a buffer, got {kind}.") from None
    except PermissionError:
        raise denied(path) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_file(name: str, directory: int, where: str, limit: int, *, only: int = -1) -> bytes | None:
    """A file of an open directory, None if it is not there. Links are not followed.

    Args:
        name: the file.
        directory: a descriptor.
        where: what to call the directory in messages.
        limit: more bytes than it may have are refused.
        only: so many bytes of its beginning; -1: all.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise denied(os.path.join(where, name)) from None
    except OSError as error:
        raise FormatMismatchError(
            f"{where}: {name!r} cannot be opened: {error.strerror}."
        ) from None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FormatMismatchError(f"{where}: expected a plain file {name!r}, got another kind.")
        if found.st_size > limit:
            raise FormatMismatchError(
                f"{where}: expected at most {limit} bytes of {name!r}, got {found.st_size}."
            )
        return file.read(only)


def file_sizes(directory: int) -> dict[str, int]:
    """Bytes of each plain file in an open directory."""
    with os.scandir(directory) as found:
        return {
            item.name: item.stat(follow_symlinks=False).st_size
            for item in found
            if item.is_file(follow_symlinks=False)
        }


def denied(path: str) -> PermissionDeniedError:
    """The error for a path that is not open to this user, naming whose it or the way to it is."""
    place = path
    while True:
        try:
            found = os.stat(place)
            break
        except OSError:
            # The root of the file system can be looked at by everybody.
            place = os.path.dirname(place) or os.sep
    whose = "it" if place == path else place
    user, group = user_name(found.st_uid), group_name(found.st_gid)
    return PermissionDeniedError(
        f"{path}: not open to user {os.geteuid()}; {whose} belongs to user {user} and group "
        f"{group} with mode {stat.S_IMODE(found.st_mode):04o}. Join that group, or ask the owner "
        "for another mode."
    )
