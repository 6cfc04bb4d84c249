"""What limits a buffer: cgroups of both versions, the machine, this process, the file system."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from shmrb.errors import CapacityError
from shmrb.segment import room
from shmrb.segment.cgroups import MemoryRoom, memory_free_bytes, memory_rooms

MIB = 1024 * 1024
NOWHERE = 1 << 62
UNLIMITED_V1 = 9223372036854771712


class Machine:
    """A proc file system and cgroup trees, as files."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.tree = folder / "cgroup tree"
        (self.proc / "self").mkdir(parents=True)
        self.mounted: list[str] = []
        self.tell(available=10_000 * MIB)

    def tell(self, available: int, swap: int = 0) -> None:
        text = (
            f"MemTotal: 1 kB\nMemAvailable: {available // 1024} kB\nSwapFree: {swap // 1024} kB\n"
        )
        (self.proc / "meminfo").write_text(text + "HugePages_Total: 0\n")

    def mount(self, kind: str, root: str, point: Path, options: str) -> None:
        shown = str(point).replace(" ", "\\040")
        self.mounted.append(f"31 23 0:28 {root} {shown} rw,relatime shared:9 - {kind} x {options}")
        (self.proc / "self/mountinfo").write_text("\n".join(self.mounted) + "\n")

    def belong(self, *lines: str) -> None:
        (self.proc / "self/cgroup").write_text("\n".join(lines) + "\n")

    def group(self, path: str, **files: object) -> str:
        place = self.tree / path
        place.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (place / name.replace("_in_", "~").replace("_", ".").replace("~", "_in_")).write_text(
                f"{value}\n"
            )
        return str(place)

    def rooms(self) -> list[MemoryRoom]:
        return list(memory_rooms(str(self.proc)))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


STAT = "anon 5\ninactive_file {}\nactive_file {}\nshmem 7"


def test_version_2_counts_each_group_up_to_the_top(machine: Machine) -> None:
    machine.mount("cgroup2", "/", machine.tree, "rw,nsdelegate")
    machine.belong("0::/a/b")
    stat = STAT.format(2 * MIB, 3 * MIB)
    own = machine.group("a/b", memory_max=100 * MIB, memory_current=60 * MIB, memory_stat=stat)
    above = machine.group("a", memory_max=80 * MIB, memory_current=79 * MIB)
    machine.group(".", cgroup_controllers="memory")
    assert machine.rooms() == [
        MemoryRoom(own, "memory.max", 100 * MIB, 45 * MIB),
        MemoryRoom(above, "memory.max", 80 * MIB, MIB),
    ]


def test_version_2_without_a_limit_is_no_limit(machine: Machine) -> None:
    machine.mount("cgroup2", "/", machine.tree, "rw")
    machine.belong("0::/a")
    machine.group("a", memory_max="max", memory_current=60 * MIB)
    assert machine.rooms() == []


@pytest.mark.parametrize(
    ("limit", "available"), [(0, 10), (4 * MIB, 13), (1 << 40, 18), ("max", 18), (None, 18)]
)
def test_swap_counts_as_far_as_the_group_may_use_it(
    machine: Machine, limit: object, available: int
) -> None:
    machine.tell(available=1000 * MIB, swap=8 * MIB)
    machine.mount("cgroup2", "/", machine.tree, "rw")
    machine.belong("0::/a")
    swap = {} if limit is None else {"memory_swap_max": limit, "memory_swap_current": MIB}
    if limit == 0:
        swap["memory_swap_current"] = 0
    machine.group("a", memory_max=100 * MIB, memory_current=90 * MIB, **swap)
    assert [one.available_bytes for one in machine.rooms()] == [available * MIB]


def test_a_container_sees_its_own_group_at_the_top(machine: Machine) -> None:
    machine.mount("cgroup2", "/", machine.tree, "rw")
    machine.belong("0::/")
    own = machine.group(".", memory_max=64 * MIB, memory_current=0)
    assert [one.directory for one in machine.rooms()] == [own]


@pytest.mark.parametrize("own", ["/docker/abc", "/../elsewhere", "/docker"])
def test_a_mount_of_a_part_of_the_tree_is_all_that_is_seen(machine: Machine, own: str) -> None:
    machine.mount("cgroup2", "/docker/abc", machine.tree, "rw")
    machine.belong(f"0::{own}")
    there = machine.group(".", memory_max=64 * MIB, memory_current=MIB)
    assert [one.directory for one in machine.rooms()] == [there]


def test_version_1_finds_the_memory_controller_among_the_others(machine: Machine) -> None:
    machine.mount("cgroup", "/", machine.tree / "cpu", "rw,cpu,cpuacct")
    machine.mount("cgroup", "/", machine.tree / "memory", "rw,memory")
    machine.mount("cgroup2", "/", machine.tree / "unified", "rw")
    machine.belong("5:cpu,cpuacct:/c", "4:memory:/a/b", "0::/")
    stat = "inactive_file 1\ntotal_inactive_file 1048576\ntotal_active_file 2097152"
    own = machine.group(
        "memory/a/b",
        memory_limit_in_bytes=50 * MIB,
        memory_usage_in_bytes=20 * MIB,
        memory_stat=stat,
    )
    machine.group("memory/a", memory_limit_in_bytes=UNLIMITED_V1, memory_usage_in_bytes=1)
    machine.group("unified", cgroup_controllers="")
    assert machine.rooms() == [
        MemoryRoom(own, "memory.limit_in_bytes", 50 * MIB, 33 * MIB),
    ]


def test_version_1_may_limit_memory_and_swap_together(machine: Machine) -> None:
    machine.tell(available=1000 * MIB, swap=8 * MIB)
    machine.mount("cgroup", "/", machine.tree, "rw,memory")
    machine.belong("4:memory:/a")
    machine.group(
        "a",
        memory_limit_in_bytes=50 * MIB,
        memory_usage_in_bytes=20 * MIB,
        memory_memsw_limit_in_bytes=52 * MIB,
        memory_memsw_usage_in_bytes=21 * MIB,
    )
    assert [one.available_bytes for one in machine.rooms()] == [31 * MIB]


def test_a_machine_that_tells_nothing_limits_nothing(tmp_path: Path) -> None:
    assert list(memory_rooms(str(tmp_path))) == []
    assert memory_free_bytes(str(tmp_path)) is None
    room.check_room("/dev/shm", {"data": MIB}, str(tmp_path))


def test_what_a_group_leaves_refuses_a_buffer_by_name(machine: Machine, root: Path) -> None:
    machine.mount("cgroup2", "/", machine.tree, "rw")
    machine.belong("0::/a")
    own = machine.group("a", memory_max=64 * MIB, memory_current=40 * MIB)
    room.check_room(root, {"data": 20 * MIB, "ctl": 4 * MIB}, str(machine.proc))
    with pytest.raises(CapacityError) as caught:
        room.check_room(root, {"data": 20 * MIB, "ctl": 4 * MIB + 1}, str(machine.proc))
    assert f"needed {24 * MIB + 1} bytes, available {24 * MIB} bytes" in str(caught.value)
    assert f"memory.max in {own}" in str(caught.value)
    assert "MemoryMax=" in str(caught.value)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (24 * MIB + 1, 24 * MIB)


def test_the_memory_of_the_machine_refuses_what_a_larger_tmpfs_would_take(
    machine: Machine, root: Path
) -> None:
    machine.tell(available=2 * MIB, swap=MIB)
    room.check_room(root, {"data": 3 * MIB}, str(machine.proc))
    with pytest.raises(CapacityError, match=f"available {3 * MIB} bytes; the memory of this mach"):
        room.check_room(root, {"data": 4 * MIB}, str(machine.proc))


def test_the_least_of_several_limits_is_named(machine: Machine, root: Path) -> None:
    machine.tell(available=2 * MIB)
    machine.mount("cgroup2", "/", machine.tree, "rw")
    machine.belong("0::/a")
    machine.group("a", memory_max=64 * MIB, memory_current=63 * MIB)
    with pytest.raises(CapacityError, match=f"available {MIB} bytes; the memory limit of a cgroup"):
        room.check_room(root, {"data": 4 * MIB}, str(machine.proc))


@contextmanager
def limited(number: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(number)
    resource.setrlimit(number, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(number, before)


def test_a_limit_on_files_is_held_against_the_largest(root: Path) -> None:
    files = {"data": 3 * MIB, "slots": 3 * MIB}
    with limited(resource.RLIMIT_FSIZE, 3 * MIB):
        room.check_room(root, files)
    with limited(resource.RLIMIT_FSIZE, 3 * MIB - 1):
        with pytest.raises(CapacityError, match=r"RLIMIT_FSIZE.*ulimit -f") as caught:
            room.check_room(root, files)
        assert "RLIMIT_FSIZE" in str(room.no_room(root, files, errno.EFBIG))
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (3 * MIB, 3 * MIB - 1)


def test_a_limit_on_addresses_counts_what_is_mapped_already(root: Path) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    with limited(resource.RLIMIT_AS, pages * 4096 + 512 * MIB):
        room.check_room(root, {"data": 64 * MIB})
        with pytest.raises(CapacityError, match=r"RLIMIT_AS.*ulimit -v") as caught:
            room.check_room(root, {"data": 600 * MIB})
        assert 0 < caught.value.available_bytes < 600 * MIB
        assert "RLIMIT_AS" in str(room.no_addresses("/x", 600 * MIB))
    assert "max_map_count" in str(room.no_addresses("/x", 600 * MIB))


SAID: Mapping[int, str] = {
    errno.ENOSPC: "the size of this tmpfs is the limit.*--shm-size",
    errno.EDQUOT: "available 5 bytes; the disk quota of this user or group is the limit",
    errno.EFBIG: "the largest file of tmpfs is the limit",
    errno.ENOMEM: "memory.* is the limit",
    errno.EFAULT: "memory.* is the limit",
}


@pytest.mark.parametrize("number", sorted(room.NO_ROOM))
def test_each_answer_of_the_kernel_is_explained(root: Path, number: int) -> None:
    error = room.no_room(root, {"data": NOWHERE}, number, 5)
    assert error.needed_bytes == NOWHERE
    with pytest.raises(CapacityError, match=SAID[number]):
        raise error
