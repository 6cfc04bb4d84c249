"""What the kernel really limits: a buffer that does not fit is refused before anybody is killed."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.cgroups import memory_cgroup
from helpers.child import emit, receive
from helpers.procs import Child, Children
from helpers.segments import remains, sized_spec, uid_spec
from shmrb.errors import CapacityError, ShmrbError
from shmrb.segment.cgroups import memory_cgroups
from shmrb.segment.directory import Root
from shmrb.segment.member import Member

MIB = 1024 * 1024
LIMIT = 160 * MIB

InOwnMounts = Callable[[Callable[..., None]], Child]


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup that allows `LIMIT` bytes of memory."""
    with memory_cgroup(LIMIT) as group:
        yield group


def create(root: str, mebibytes: int) -> None:
    emit("ready")
    receive()
    for size in (mebibytes, 8):
        try:
            Root(root).create(sized_spec(size), f"of-{size}")
        except CapacityError as error:
            emit("refused", message=str(error), needed=error.needed_bytes)
        else:
            emit("created", size=size)


def attach_with_few_addresses(root: str) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 32 * MIB, resource.RLIM_INFINITY))
    try:
        Member.join(root, "ring")
    except ShmrbError as error:
        emit("refused", kind=type(error).__name__, message=str(error))
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    Member.join(root, "ring").close()


def create_without_inodes(root: str) -> None:
    options = "size=16m,nr_inodes=6"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", root], check=True)
    try:
        Root(root).create(uid_spec(), "ring")
    except CapacityError as error:
        emit("refused", message=str(error))
    emit("left", names=remains(Path(root)))


def test_a_cgroup_that_leaves_too_little_is_named_and_nobody_is_killed(
    small_cgroup: Path, children: Children, root: Path
) -> None:
    child = children.start(create, root=str(root), mebibytes=192)
    child.expect("ready")
    (small_cgroup / "cgroup.procs").write_text(str(child.pid))
    child.send()
    message = child.expect("refused")["message"]
    assert f"in {small_cgroup}) is the limit" in message
    assert child.expect("created") == {"size": 8}
    child.succeed()
    assert remains(root) == ["of-8"]


def test_the_cgroup_of_this_very_process_is_found() -> None:
    own = next((directory for directory, _ in memory_cgroups()), None)
    if own is None:
        pytest.skip("no cgroup here counts memory")
    assert str(os.getpid()) in Path(own, "cgroup.procs").read_text().split()


def test_attaching_without_addresses_says_so_and_takes_no_place(
    children: Children, root: Path
) -> None:
    Root(str(root)).create(sized_spec(64), "ring")
    child = children.start(attach_with_few_addresses, root=str(root))
    found = child.expect("refused")
    assert found["kind"] == "CapacityError"
    assert "RLIMIT_AS" in found["message"]
    child.succeed()
    with Member.join(str(root), "ring") as member:
        assert [row["pid"] for row in member.segment.clients()] == [os.getpid()]


def test_progress_is_told_up_to_the_end_and_may_break_off(root: Path) -> None:
    told: list[tuple[int, int]] = []
    spec = sized_spec(4)

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    entry = Root(str(root)).create(spec, "told", progress=tell).entry
    assert entry.meta is not None
    total = entry.meta.layout.total_bytes
    assert {each for _, each in told} == {total}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    # What is left are `meta` and `live.lock`, which nobody waits for.
    assert total - 16 * 1024 < told[-1][0] <= total

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Root(str(root)).create(spec, "broken-off", progress=interrupt)
    assert remains(root) == ["told"]


def test_a_file_system_without_room_for_another_file_says_so(in_own_mounts: InOwnMounts) -> None:
    child = in_own_mounts(create_without_inodes)
    assert "number of files that this tmpfs may hold" in child.expect("refused")["message"]
    assert child.expect("left")["names"] == []
    child.succeed()
