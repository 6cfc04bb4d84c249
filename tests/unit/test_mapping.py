"""Reserving files and mapping them."""

from __future__ import annotations

import errno
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmrb.errors import ClosedError, FormatMismatchError
from shmrb.segment import mapping as mappings
from shmrb.segment.mapping import Mapping, create_reserved, touch

SIZE = 1024 * 1024


@pytest.fixture
def directory(root: Path) -> Iterator[int]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def _create(directory: int, name: str = "file", size: int = SIZE, mode: int = 0o600) -> None:
    create_reserved(name, size, directory=directory, mode=mode)
    touch(name, size, directory=directory, where="here")


def _open(
    directory: int, name: str = "file", size: int = SIZE, *, writable: bool = True
) -> Mapping:
    return Mapping.open(name, size, directory=directory, writable=writable, where="here")


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _is_mapped(name: str) -> bool:
    return name in Path("/proc/self/maps").read_text()


def test_a_reserved_file_has_all_its_blocks(directory: int) -> None:
    _create(directory)
    found = os.stat("file", dir_fd=directory)
    assert found.st_size == SIZE
    assert found.st_blocks * 512 >= SIZE


def test_reservation_goes_in_steps(directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "RESERVE_STEP_BYTES", 100_000)
    _create(directory)
    assert os.stat("file", dir_fd=directory).st_blocks * 512 >= SIZE
    mapping = _open(directory)
    mapping.view("u1", 0, SIZE)[:] = 7


def test_two_mappings_show_the_same_bytes(directory: int) -> None:
    _create(directory)
    one, other = _open(directory), _open(directory, writable=False)
    one.view("<u4", 4096, 8)[:] = [1, 2]
    seen = other.view("<u4", 4096, 8)
    assert seen.tolist() == [1, 2]
    assert not seen.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 1


def test_a_mapping_costs_no_descriptor_and_goes_with_its_last_view(directory: int) -> None:
    _create(directory, "file-of-this-test")
    before = _descriptors()
    mapping = _open(directory, "file-of-this-test")
    assert _descriptors() == before
    view = mapping.view("u1", 0, SIZE)
    mapping.close()
    mapping.close()
    assert mapping.address == 0
    view[-1] = 3
    assert view[-1] == 3
    assert _is_mapped("file-of-this-test")
    del view
    gc.collect()
    assert not _is_mapped("file-of-this-test")
    with pytest.raises(ClosedError):
        mapping.view("u1", 0, 1)


def test_a_file_of_another_size_or_kind_is_refused(directory: int) -> None:
    _create(directory)
    for size in (SIZE - 1, SIZE + 1):
        with pytest.raises(FormatMismatchError, match=f"{size} bytes, got .* of {SIZE} bytes"):
            _open(directory, size=size)
    os.truncate(f"/proc/self/fd/{directory}/file", 0)
    with pytest.raises(FormatMismatchError, match="of 0 bytes"):
        _open(directory)
    os.mkfifo("fifo", dir_fd=directory)
    with pytest.raises(FormatMismatchError, match="plain file"):
        _open(directory, "fifo", 0)
    os.symlink("file", "link", dir_fd=directory)
    with pytest.raises(OSError, match="symbolic links"):
        _open(directory, "link", 0)


def test_modes_are_as_asked_under_any_umask(root: Path) -> None:
    program = (
        "import os, sys; from shmrb.segment.mapping import create_reserved\n"
        "os.umask(int(sys.argv[2], 8)); d = os.open(sys.argv[1], os.O_RDONLY)\n"
        "create_reserved('f' + sys.argv[2], 4096, directory=d, mode=0o660)"
    )
    for umask in ("077", "000"):
        subprocess.run([sys.executable, "-c", program, root, umask], check=True)
        assert (root / f"f{umask}").stat().st_mode & 0o7777 == 0o660


def test_a_kernel_without_populate_gets_zeros_written(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mappings, "_MADV_POPULATE_WRITE", 9999)
    _create(directory, size=3 * SIZE + 5)
    mapping = _open(directory, size=3 * SIZE + 5)
    assert not mapping.view("u1", 0, 3 * SIZE + 5).any()


def test_what_does_not_fit_is_an_error_and_no_signal(directory: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            _create(directory, "big", 2 * SIZE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_each_step_of_a_reservation_is_told(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mappings, "RESERVE_STEP_BYTES", 400_000)
    told: list[int] = []
    create_reserved("file", SIZE, directory=directory, mode=0o600, advance=told.append)
    touch("file", SIZE, directory=directory, where="here", advance=told.append)
    assert told == 2 * [400_000, 400_000, SIZE - 800_000]


def test_a_quota_is_reached_in_ever_smaller_steps(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, quota = os.posix_fallocate, 300_000

    def limited(descriptor: int, start: int, length: int) -> None:
        if start + length > quota:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        reserve(descriptor, start, length)

    monkeypatch.setattr(os, "posix_fallocate", limited)
    told: list[int] = []
    with pytest.raises(OSError, match="quota"):
        create_reserved("file", SIZE, directory=directory, mode=0o600, advance=told.append)
    assert quota - 4096 < sum(told) <= quota
