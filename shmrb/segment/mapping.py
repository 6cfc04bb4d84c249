"""Files whose room is reserved, and mappings of them; floor F3, the only place that calls mmap.

A mapping made here cannot end in SIGBUS while nobody shortens the file: room is reserved and
touched before the file gets its name, and a file of another length is refused. The descriptor is
closed once the file is mapped: the many buffers of a process then cost it none (Python's own mmap
keeps one open).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shmrb import core
from shmrb.errors import ClosedError, FormatMismatchError

if TYPE_CHECKING:
    import numpy as np

# An interrupted fallocate on tmpfs gives back all that the call had taken: large ones would never
# end under a busy signal.
RESERVE_STEP_BYTES = 256 * 1024 * 1024
# The least that can be reserved anywhere.
PAGE_BYTES = 4096
WORD_BYTES = 8
_ZEROS = bytes(1024 * 1024)

_PROT_READ, _PROT_WRITE, _MAP_SHARED = 1, 2, 1
# Since Linux 5.14. Touches every page, and fails with an error where a store would end in SIGBUS.
_MADV_POPULATE_WRITE = 23
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class _Pages:
    """The mapped pages. Views hold on to them; the last reference unmaps."""

    def __init__(self, descriptor: int, size: int, writable: bool) -> None:
        self.address = 0
        self.size = size
        protection = _PROT_READ | _PROT_WRITE if writable else _PROT_READ
        address = _libc.mmap(None, size, protection, _MAP_SHARED, descriptor, 0)
        if address in (None, _MAP_FAILED):
            number = ctypes.get_errno()
            raise OSError(number, f"mmap of {size} bytes: {os.strerror(number)}")
        self.address = address
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "data": (address, not writable),
            "shape": (size,),
            "typestr": "|u1",
        }

    def __del__(self) -> None:
        if self.address:
            _libc.munmap(self.address, self.size)
            self.address = 0


class Mapping:
    """One file of a buffer, mapped whole and shared.

    Attributes:
        address: of the first byte, for the native core; 0 once closed.
        size: bytes.
    """

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        self._pages: _Pages | None = _Pages(descriptor, size, writable)
        self.address = self._pages.address
        self.size = size

    @classmethod
    def open(cls, name: str, size: int, *, directory: int, writable: bool, where: str) -> Mapping:
        """Map the file `name` of an open directory.

        Args:
            name: the file; a link is not followed.
            size: the bytes that it must have.
            directory: a descriptor.
            writable: for reading and writing, else for reading only.
            where: what to call the directory in messages.

        Raises:
            FormatMismatchError: it is no plain file, or has another size.
            OSError: it cannot be opened or mapped.
        """
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
        # A fifo under our name must not hold up whoever opens it.
        descriptor = os.open(name, flags | os.O_NONBLOCK, dir_fd=directory)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                raise FormatMismatchError(
                    f"{where}: file {name!r}: expected a plain file of {size} bytes, got "
                    f"{stat.filemode(found.st_mode)} of {found.st_size} bytes. Remove the "
                    "directory."
                )
            return cls(descriptor, size, writable=writable)
        finally:
            os.close(descriptor)

    def view(self, dtype: str, offset: int, size: int) -> np.ndarray[Any, Any]:
        """An array over `size` bytes from byte `offset` on; it keeps the pages mapped."""
        # Not at the top: the daemon does without numpy, which takes as much memory as it does.
        import numpy as np

        if self._pages is None:
            raise ClosedError("expected a mapping that is open, got a closed one")
        return np.asarray(self._pages)[offset : offset + size].view(dtype)

    def fill(self, offset: int, size: int, byte: int) -> None:
        """Give `size` bytes from byte `offset` on this value."""
        ctypes.memset(self._place(offset, size), byte, size)

    def write(self, offset: int, raw: bytes) -> None:
        """Write bytes at byte `offset`."""
        ctypes.memmove(self._place(offset, len(raw)), raw, len(raw))

    def highest_word(self, offset: int, size: int) -> int:
        """The largest of the unsigned 64-bit words in `size` bytes from byte `offset` on."""
        return core.highest_word(self._place(offset, size), size // WORD_BYTES)

    def _place(self, offset: int, size: int) -> int:
        if self._pages is None:
            raise ClosedError("expected a mapping that is open, got a closed one")
        if not 0 <= offset <= offset + size <= self.size:
            raise ValueError(f"expected a place in {self.size} bytes, got {size} from {offset} on")
        return self.address + offset

    def populate(self, start: int, length: int) -> None:
        """Touch pages for writing, so that each is charged to this process.

        Raises:
            OSError: EINVAL where the kernel is too old, ENOMEM or EFAULT where there is no room.
        """
        while _libc.madvise(self.address + start, length, _MADV_POPULATE_WRITE) != 0:
            number = ctypes.get_errno()
            if number not in (errno.EINTR, errno.EAGAIN):
                raise OSError(number, os.strerror(number))

    def close(self) -> None:
        """Unmap, or leave that to the last view. Again: nothing."""
        self._pages = None
        self.address = 0


def create_reserved(
    name: str,
    size: int,
    *,
    directory: int,
    mode: int,
    advance: Callable[[int], None] = lambda _bytes: None,
) -> None:
    """Make a file in an open directory whose every byte has its place.

    Args:
        name: the file; it must not exist.
        size: bytes, >= 1.
        directory: a descriptor.
        mode: its permissions, whatever the umask.
        advance: hears how many more bytes are reserved, after each step.

    Raises:
        OSError: an errno of `room.NO_ROOM` where there is no room; then the file may be left
            behind for the caller to remove.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        os.fchmod(descriptor, mode)
        start, most = 0, RESERVE_STEP_BYTES
        while start < size:
            length = min(most, size - start)
            try:
                # It calls again on EINTR, after the signal's handler had its turn.
                os.posix_fallocate(descriptor, start, length)
            except OSError as error:
                if error.errno != errno.EDQUOT or length <= PAGE_BYTES:
                    raise
                # What a quota leaves is told by nobody: smaller steps find out.
                most = length // 2
                continue
            start += length
            advance(length)
    finally:
        os.close(descriptor)


def touch(
    name: str,
    size: int,
    *,
    directory: int,
    where: str,
    advance: Callable[[int], None] = lambda _bytes: None,
) -> None:
    """Give every page of a reserved file its memory, and every byte its zero.

    Args:
        name: the file.
        size: bytes that were reserved.
        directory: a descriptor.
        where: what to call the directory in messages.
        advance: hears how many more bytes are touched, after each step.

    Raises:
        OSError: an errno of `room.NO_ROOM` where there is no room.
    """
    mapping = Mapping.open(name, size, directory=directory, writable=True, where=where)
    try:
        for start in range(0, size, RESERVE_STEP_BYTES):
            length = min(RESERVE_STEP_BYTES, size - start)
            try:
                mapping.populate(start, length)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                _write_zeros(name, start, length, directory)
            advance(length)
    finally:
        mapping.close()


def _write_zeros(name: str, start: int, length: int, directory: int) -> None:
    """What `populate` does, for kernels without it. Fails with ENOSPC, never with a signal."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
    try:
        end = start + length
        while start < end:
            start += os.pwrite(descriptor, _ZEROS[: end - start], start)
    finally:
        os.close(descriptor)
