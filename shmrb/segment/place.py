"""A directory of buffers: what lies there, and the locks of its names; floor F3.

One lock a root guards its names. It is held for moments: memory is reserved and filled in a
directory that bears no buffer's name yet, and files are removed from one that bears none any more.
A directory on a disk that holds buffers has a lock of the same kind. The root's is taken first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

from shmrb.errors import NoSuchBufferError
from shmrb.segment import entries, names
from shmrb.segment.administration import TIMEOUT_S, administration_lock
from shmrb.segment.entries import Entry, State
from shmrb.segment.filesystem import check_file_system

# Names that an error lists.
SHOWN_NAMES = 8


class Place:
    """A directory of buffers.

    Args:
        path: of the root; made at the first creation.
        mode: permissions of new files, 0o600 or 0o660 for a group; directories get the matching
            search bits. Set whatever the umask. None: 0o660 in a root that its group may write and
            nobody else, 0o600 in any other.
        lock_timeout: seconds to wait for the administration lock.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: int | None = None,
        lock_timeout: float = TIMEOUT_S,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._mode = mode
        self.lock_timeout = lock_timeout

    @property
    def mode(self) -> int:
        """The mode of files."""
        if self._mode is not None:
            return self._mode
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.path).st_mode & 0o022 == 0o020:
                return 0o660
        return 0o600

    @property
    def directory_mode(self) -> int:
        """The mode of directories: whoever may read a file may pass through to it."""
        return self.mode | (self.mode & 0o444) >> 2

    @property
    def modes(self) -> tuple[int, int]:
        """Those of directories and of files."""
        return self.directory_mode, self.mode

    def path_of(self, name: str) -> str:
        """The directory of a buffer.

        Raises:
            SpecError: no buffer may bear the name.
        """
        return os.path.join(self.path, names.directory_name(name))

    def make(self) -> None:
        """Make the directory if it is not there.

        Raises:
            FileSystemError: nobody could prove there that a client lives.
            PermissionDeniedError: it is not ours to use.
        """
        names.make_root(self.path, self.directory_mode)
        check_file_system(self.path)

    def find(self, name: str) -> Entry:
        """What bears the name: missing, declared, ready or unclean.

        Raises:
            FormatMismatchError, FileSystemError: something else lies there.
            PermissionDeniedError: it is not open to this user.
        """
        found = entries.look(self.path, name)
        return replace(found, state=State.MISSING) if found.state is State.LEAVING else found

    def require(self, name: str) -> Entry:
        """What `find` gives, but a missing name is an error.

        Raises:
            NoSuchBufferError: nothing bears the name; the message lists known names.
        """
        found = self.find(name)
        if found.state is State.MISSING:
            raise self.unknown(name)
        return found

    def list(self, prefix: str = "") -> tuple[Entry, ...]:
        """Every buffer called `prefix` or below it; with the empty prefix also what is foreign."""
        return tuple(
            entry
            for entry in entries.list_entries(self.path)
            if entry.state is not State.LEAVING and names.is_below(entry.name, prefix)
        )

    def unknown(self, name: str) -> NoSuchBufferError:
        """The error for a name that nothing bears; it lists known ones."""
        known = [entry.name for entry in self.list() if entry.state is not State.FOREIGN]
        shown = ", ".join(known[:SHOWN_NAMES]) or "none"
        more = f" and {len(known) - SHOWN_NAMES} more" if len(known) > SHOWN_NAMES else ""
        return NoSuchBufferError(
            f"No buffer {name!r} in {self.path}; known there: {shown}{more}. Create it, or name "
            f"another root ({names.ROOT_VARIABLE})."
        )

    def lock_of(self, place: str) -> AbstractContextManager[None]:
        """The lock under which the names in a place change: the root, or a directory on a disk."""
        return administration_lock(place, self.mode, self.lock_timeout)

    @contextlib.contextmanager
    def inner_locks(self, *places: str) -> Iterator[None]:
        """Hold the locks of places beside the root's, in the order in which everybody does."""
        with contextlib.ExitStack() as stack:
            for place in sorted(set(places) - {self.path}):
                stack.enter_context(self.lock_of(place))
            yield

    @contextlib.contextmanager
    def holding(self, name: str, *places: str) -> Iterator[Entry]:
        """Hold the root's lock, those of places, and that of where the buffer of this name lies.

        Gives what bears the name then.
        """
        while True:
            place = entries.look(self.path, name).place
            with self.lock_of(self.path), self.inner_locks(place, *places):
                found = entries.look(self.path, name)
                if found.place == place:
                    yield found
                    return
