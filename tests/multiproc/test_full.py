"""16 MiB of shared memory and disks of 16 MiB: what does not fit is refused, what does goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shmrb
from helpers.child import emit
from helpers.mounts import own_mounts
from helpers.procs import Children
from helpers.segments import remains, sized_spec
from shmrb.errors import CapacityError
from shmrb.segment import names
from shmrb.segment.directory import Root

MIB = 1024 * 1024
ROW = 1024
SCHEMA = {"uid": "int64", "body": ("uint8", (ROW,))}
PROGRAM = "import sys; from shmrbd.__main__ import main; sys.exit(main(sys.argv[1:]))"


def mount(kind: str, where: str, *options: str) -> None:
    Path(where).mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", *options, kind, where], check=True)


def arrange(root: str, kind: str) -> tuple[Root, Path | None]:
    """A root in a /dev/shm of 16 MiB, and a disk of 16 MiB if the buffers shall lie on one."""
    mount("tmpfs", names.SHARED_MEMORY, "-t", "tmpfs", "-o", "size=16m")
    os.makedirs(root, mode=0o700)
    if kind == "shm":
        return Root(root), None
    disk = Path(os.environ["SMALL_DISK"])
    if kind == "tmpfs":
        mount("tmpfs", str(disk), "-t", "tmpfs", "-o", "size=16m")
    else:
        image = disk.parent / "image"
        with image.open("wb") as file:
            file.truncate(16 * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        mount(str(image), str(disk), "-o", "loop")
        (disk / "lost+found").rmdir()
    return Root(root), disk


def storage(disk: Path | None, mebibytes: int) -> shmrb.Storage:
    capacity = mebibytes * MIB // ROW
    if disk is None:
        return shmrb.SharedStorage(capacity)
    return shmrb.MemmapStorage(capacity, str(disk))


def new(disk: Path | None, name: str, mebibytes: int) -> shmrb.ReplayBuffer:
    return shmrb.ReplayBuffer(
        name,
        storage=storage(disk, mebibytes),
        schema=SCHEMA,
        sampler=shmrb.PrioritizedSampler(alpha=1.0, beta=1.0),
        batch_size=64,
        max_clients=8,
        format="numpy",
    )


def fill(path: Path) -> None:
    """Until not a byte is left."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as other:
        size = MIB
        while size:
            try:
                other.write(bytes(size))
            except OSError:
                size //= 2


def left(root: str, disk: Path | None) -> list[str]:
    return remains(Path(root)) + (remains(disk) if disk is not None else [])


def use_every_slot(rb: shmrb.ReplayBuffer) -> None:
    for start in range(0, 2 * 6 * MIB // ROW, 512):
        uid = np.arange(start, start + 512)
        rb.extend({"uid": uid, "body": np.repeat(uid[:, None] % 251, ROW, 1).astype(np.uint8)})
        batch = rb.sample()
        rb.update_priority(batch, np.ones(64))
        assert (batch["body"] == (batch["uid"] % 251)[:, None]).all()


def live_in_little_room(root: str, kind: str) -> None:
    place, disk = arrange(root, kind)
    full = Path(root).parent / "other" if disk is None else disk / "other"
    for name, mebibytes in (("large", 64), ("first", 6), ("second", 12)):
        try:
            new(disk, name, mebibytes)
        except CapacityError as error:
            emit(
                "refused",
                name=name,
                message=str(error),
                needed=error.needed_bytes,
                available=error.available_bytes,
                left=left(root, disk),
            )
    rb = shmrb.attach("first", format="numpy", batch_size=64)
    fill(full)
    use_every_slot(rb)
    emit("used", records=len(rb), free=os.statvfs(full.parent).f_bavail)
    with contextlib.suppress(CapacityError):
        new(disk, "third", 1)
        emit("unexpected")
    rb.close()
    emit("left", names=left(root, disk))
    place.drop("first", force=True)
    new(disk, "third", 1).close()
    place.drop("third", force=True)
    emit("left", names=[name for name in left(root, disk) if name != "other"])


def in_shm(root: str) -> None:
    live_in_little_room(root, "shm")


def on_tmpfs(root: str) -> None:
    live_in_little_room(root, "tmpfs")


def on_ext4(root: str) -> None:
    live_in_little_room(root, "ext4")


@pytest.mark.parametrize("kind", ["shm", "tmpfs", "ext4"])
def test_what_does_not_fit_is_refused_and_what_fits_goes_on(
    children: Children,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    if kind == "ext4" and (os.geteuid() != 0 or shutil.which("mkfs.ext4") is None):
        pytest.skip("only root can mount a disk, and mkfs.ext4 must make one")
    monkeypatch.setenv("SMALL_DISK", str(tmp_path / "disk"))
    start = own_mounts(children, root, "-m" if kind == "ext4" else "-rm")
    child = start({"shm": in_shm, "tmpfs": on_tmpfs, "ext4": on_ext4}[kind])
    large = child.expect("refused")
    assert (large["name"], large["left"]) == ("large", [])
    assert large["needed"] > 64 * MIB
    assert 10 * MIB < large["available"] <= 16 * MIB
    assert f"needed {large['needed']} bytes" in large["message"]
    assert f"available {large['available']} bytes" in large["message"]
    limit = "the ext4 file system" if kind == "ext4" else "the size of this tmpfs"
    assert f"{limit} is the limit" in large["message"]
    second = child.expect("refused")
    names_left = ["first"] if kind == "shm" else ["first", "first"]
    assert (second["name"], second["left"]) == ("second", names_left)
    assert child.expect("used") == {"records": 6 * MIB // ROW, "free": 0}
    assert child.expect("left")["names"] == (
        names_left if kind == "shm" else [*names_left, "other"]
    )
    assert child.expect("left")["names"] == []
    child.succeed()


def name_in_a_full_root(root: str) -> None:
    place, disk = arrange(root, "tmpfs")
    assert disk is not None
    rb = new(disk, "old", 1)
    use = {"uid": np.arange(8), "body": np.zeros((8, ROW), np.uint8)}
    rb.extend(use)
    fill(Path(root).parent / "other")
    before = left(root, disk)
    for name, exist in (("new", "attach"), ("old", "replace")):
        # The stamp of a new name, and the door, have no room in the root.
        spec = sized_spec(1, storage=storage(disk, 1))
        try:
            place.create(spec, name, exist=exist)
        except CapacityError as error:
            emit("refused", name=name, message=str(error), same=left(root, disk) == before)
    rb.extend(use)
    emit("used", records=len(rb))


def test_a_root_without_room_for_a_door_changes_nothing_on_the_disk(
    children: Children, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMALL_DISK", str(tmp_path / "disk"))
    child = own_mounts(children, root)(name_in_a_full_root)
    for name in ("new", "old"):
        refused = child.expect("refused")
        assert (refused["name"], refused["same"]) == (name, True)
        assert f"No room for the buffer in {root}" in refused["message"]
    assert child.expect("used") == {"records": 16}
    child.succeed()


def serve_on_a_full_disk(root: str) -> None:
    _, disk = arrange(root, "tmpfs")
    assert disk is not None
    socket = os.environ["SHMRB_SOCKET"]
    command = [sys.executable, "-c", PROGRAM, f"--memmap-directories={disk}"]
    with subprocess.Popen(command) as daemon, shmrb.connect(socket, timeout=60) as client:
        for name, mebibytes in (("large", 64), ("first", 6)):
            options = {"schema": SCHEMA, "max_clients": 8, "batch_size": 64, "format": "numpy"}
            try:
                rb = client.create(name, storage=storage(disk, mebibytes), **options)
            except CapacityError as error:
                emit("refused", message=str(error), left=left(root, disk))
        fill(disk / "other")
        fill(Path(root).parent / "other")
        rb.extend({"uid": np.arange(8), "body": np.zeros((8, ROW), np.uint8)})
        try:
            client.create("third", storage=storage(disk, 1), schema=SCHEMA)
        except CapacityError as error:
            emit("refused", message=str(error), left=left(root, disk))
        emit("served", buffers=[row.name for row in client.list()], size=client.stats("first").size)
        rb.close()
        client.drop("first")
        emit("dropped", buffers=[row.name for row in client.list()], left=left(root, disk))
        daemon.terminate()
        assert daemon.wait() == 0


def test_a_daemon_lives_on_when_its_disk_and_its_root_fill_up(
    children: Children, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMALL_DISK", str(tmp_path / "disk"))
    child = own_mounts(children, root)(serve_on_a_full_disk)
    assert (
        f"No room for the buffer in {tmp_path / 'disk'}"
        in (refused := child.expect("refused"))["message"]
    )
    assert refused["left"] == [names.DAEMON_LOCK]
    child.expect("refused")
    assert child.expect("served") == {"buffers": ["first"], "size": 8}
    dropped = child.expect("dropped")
    assert dropped["buffers"] == []
    assert dropped["left"] == [names.DAEMON_LOCK, "other"]
    child.succeed()


def create_and_be_killed(root: str) -> None:
    Root(root).create(sized_spec(8), "fixed")


def test_creators_that_die_half_way_never_block_the_name_nor_fill_the_memory(
    children: Children, root: Path
) -> None:
    """Each round clears what the one before it left."""
    for _ in range(2):
        child = children.start(
            create_and_be_killed, root=str(root), environment={"SHMRB_STOP_AT": "sized:kill"}
        )
        assert child.wait() == -signal.SIGKILL
        used = sum(file.stat().st_blocks * 512 for file in root.rglob("*") if file.is_file())
        assert used < 10 * MIB
    assert Root(root).create(sized_spec(8), "fixed").is_new
    assert remains(root) == ["fixed"]
