"""Buffers on a disk: found by their doors, shared like others, marked for power loss."""

from __future__ import annotations

import os
import pickle
import signal
import stat
import subprocess
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.child import emit, receive
from helpers.procs import Children
from helpers.segments import SCHEMA, read_uids, remains, write_uids
from shmrb.errors import (
    AlreadyExistsError,
    FileSystemError,
    FormatMismatchError,
    NoSuchBufferError,
    PermissionDeniedError,
    ShmrbError,
    SpecError,
    UncleanError,
)
from shmrb.schema import Schema
from shmrb.segment import boot, filesystem, names
from shmrb.segment.directory import Root
from shmrb.segment.entries import State
from shmrb.segment.member import Member
from shmrb.spec import BufferSpec, MemmapStorage, SharedStorage

ELSEWHERE = str(uuid.UUID(int=7))
LONG = "/" + "x" * 4096 + "/a+b\n"


@pytest.fixture
def disk(root: Path) -> Path:
    """A directory for files. It is on tmpfs too, where writing out costs nothing."""
    folder = root.parent / "disk"
    folder.mkdir()
    return folder


@pytest.fixture
def real_disk(tmp_path: Path) -> Path:
    """A directory where this machine keeps temporary files."""
    try:
        filesystem.check_lasting(tmp_path)
    except FileSystemError as error:
        pytest.skip(str(error))
    return tmp_path


def disk_spec(disk: object, capacity: int = 64, **options: object) -> BufferSpec:
    storage = MemmapStorage(capacity, str(disk))
    return BufferSpec(storage=storage, **{"schema": SCHEMA, **options})


def create(root: str, disk: str) -> None:
    made = Root(root).create(disk_spec(disk), "a/b")
    emit("created", is_new=made.is_new)


def attach(root: str, leave: str = "close") -> None:
    member = Member.join(root, "a/b", client_name="child")
    emit("attached", uids=read_uids(member, [0])[0], status=write_uids(member, [8]))
    receive()
    if leave == "close":
        member.close()


def publish(root: str) -> None:
    place = Root(root)
    uuid = place.require("a/b").uuid or b""
    emit("published", is_new=place.publish_declared("a/b", SCHEMA, uuid).is_new)


def drop(root: str, force: bool = False) -> None:
    Root(root).drop("a/b", force=force)


def mark(disk: Path, name: str = "a+b") -> list[str]:
    return (disk / name / names.BOOT).read_text().split()


def pull_the_plug(root: Path, disk: Path, name: str = "a+b", *, doors_go: bool = True) -> None:
    """The machine starts anew: another boot, and nothing left on tmpfs."""
    file = disk / name / names.BOOT
    _, word = file.read_text().split()
    file.write_text(f"{ELSEWHERE} {word}".ljust(63) + "\n")
    if doors_go:
        for door in root.iterdir():
            if (door / names.WHERE).exists():
                (door / names.WHERE).unlink()
                door.rmdir()


def test_files_lie_on_the_disk_and_a_door_says_where(root: Path, disk: Path) -> None:
    entry = Root(root).create(disk_spec(disk), "a/b").entry
    assert (entry.state, entry.name) == (State.READY, "a/b")
    assert entry.path == str(disk / "a+b")
    assert [item.name for item in (root / "a+b").iterdir()] == [names.WHERE]
    assert (root / "a+b" / names.WHERE).read_text() == f"{disk}/a+b\n"
    there = {"boot", "ctl", "data", "live.lock", "meta", "slots"}
    assert {item.name for item in (disk / "a+b").iterdir()} == there
    assert stat.S_IMODE((root / "a+b" / names.WHERE).stat().st_mode) == 0o400
    assert stat.S_IMODE((disk / "a+b" / names.BOOT).stat().st_mode) == 0o600
    assert [each.name for each in Root(root).list()] == ["a/b"]


def test_unrelated_processes_meet_in_it_and_drop_leaves_nothing(
    children: Children, root: Path, real_disk: Path
) -> None:
    disk = real_disk
    children.start(create, root=str(root), disk=str(disk)).succeed()
    with Member.join(str(root), "a/b") as member:
        assert write_uids(member, [7]) == 0
        child = children.start(attach, root=str(root))
        assert child.expect("attached") == {"uids": [7], "status": 0}
        assert read_uids(member, [1])[0] == [8]
        child.send()
        child.succeed()
    children.start(drop, root=str(root)).succeed()
    assert remains(root) == remains(disk) == []
    with pytest.raises(NoSuchBufferError):
        Member.join(str(root), "a/b")


def test_a_declared_buffer_is_published_on_its_disk(
    children: Children, root: Path, disk: Path
) -> None:
    declared = Root(root).create(disk_spec(disk, schema=None), "a/b").entry
    assert declared.state is State.DECLARED
    assert remains(disk / "a+b") == ["declaration", "live.lock"]
    child = children.start(publish, root=str(root))
    assert child.expect("published") == {"is_new": True}
    child.succeed()
    ready = Root(root).find("a/b")
    assert (ready.state, ready.uuid) == (State.READY, declared.uuid)
    assert remains(disk) == ["a+b"]
    Member.join(str(root), "a/b").close()
    assert mark(disk) == [boot.boot_id(), boot.CLEAN]


def write(root: str) -> None:
    with Member.join(root, "a/b") as member:
        write_uids(member, list(range(20)))


@pytest.mark.parametrize("point", ["mid_payload", "mid_commit"])
def test_a_writer_killed_on_a_disk_costs_only_its_own_records(
    children: Children, root: Path, real_disk: Path, point: str
) -> None:
    """The proof of death, a lock that a mapping keeps, holds on this disk too."""
    Root(root).create(disk_spec(real_disk), "a/b")
    with shmrb.attach("a/b", format="numpy") as rb:
        rb.extend({"uid": np.arange(7, 9)})
        stop = {"SHMRB_STOP_AT": f"{point}:kill"}
        child = children.start(write, root=str(root), environment=stop)
        assert child.wait() == -signal.SIGKILL
        rb.extend({"uid": np.arange(100, 120)})
        published = [0] if point == "mid_commit" else []
        assert sorted(rb["uid"]) == [*published, 7, 8, *range(100, 120)]
        assert [client.pid for client in rb.statistics().clients] == [os.getpid()]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_are_the_roots_whatever_the_umask(root: Path, disk: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        Root(root, mode=0o660).create(disk_spec(disk / "deep" / "er"), "a/b")
    finally:
        os.umask(before)
    folder = disk / "deep" / "er"
    modes = {
        str(path.relative_to(disk)): stat.S_IMODE(path.stat().st_mode) for path in disk.rglob("*")
    }
    directories = {"deep", "deep/er", "deep/er/a+b", "deep/er/.stamps"}
    assert {modes.pop(path) for path in directories} == {0o770}
    assert modes.pop("deep/er/a+b/meta") == 0o440
    assert set(modes.values()) == {0o660}
    assert stat.S_IMODE((root / "a+b" / names.WHERE).stat().st_mode) == 0o440
    assert folder.is_dir()


@pytest.mark.parametrize("planted", [names.BOOT, names.META, names.CONTROL, "../.lock"])
def test_links_among_the_files_lead_nowhere(
    root: Path, disk: Path, tmp_path: Path, planted: str
) -> None:
    place = Root(root)
    place.create(disk_spec(disk), "a/b")
    victim, link = tmp_path / "victim", disk / "a+b" / planted
    victim.write_bytes(link.read_bytes())
    before = victim.read_bytes()
    link.unlink()
    link.symlink_to(victim)
    for use in (
        lambda: Member.join(place, "a/b").close(),
        lambda: place.create(disk_spec(disk), "a/b", exist="replace"),
        lambda: place.drop("a/b", force=True),
    ):
        with pytest.raises(ShmrbError):
            use()
    assert victim.read_bytes() == before


def test_a_killed_creator_leaves_nothing_for_long(
    children: Children, root: Path, disk: Path
) -> None:
    child = children.start(
        create, root=str(root), disk=str(disk), environment={"SHMRB_STOP_AT": "filled:kill"}
    )
    assert child.wait() == -signal.SIGKILL
    assert len(remains(disk)) == 1
    Root(root).create(disk_spec(disk), "a/b")
    assert remains(disk) == ["a+b"]


def test_an_interrupted_drop_is_finished_and_the_name_is_free(
    children: Children, root: Path, disk: Path
) -> None:
    place = Root(root)
    place.create(disk_spec(disk), "a/b")
    environment = {"SHMRB_STOP_AT": "dropping:kill"}
    child = children.start(drop, root=str(root), environment=environment)
    assert child.wait() == -signal.SIGKILL
    assert place.find("a/b").state is State.MISSING
    place.reclaim()
    assert remains(root) == remains(disk) == []


def test_generations_go_on_over_every_kind_of_storage(root: Path, disk: Path) -> None:
    place = Root(root)
    seen = []
    for spec in (disk_spec(disk), BufferSpec(storage=SharedStorage(64), schema=SCHEMA)) * 2:
        place.create(spec, "a/b")
        with Member.join(place, "a/b") as member:
            write_uids(member, [1])
            seen += read_uids(member, [0])[1]
        place.drop("a/b")
    assert seen == sorted(set(seen))


def test_replace_takes_the_place_of_a_buffer_on_another_disk(root: Path, disk: Path) -> None:
    place = Root(root)
    for folder in ("one", "other"):
        place.create(disk_spec(disk / folder), "a/b", exist="replace")
    assert remains(disk / "one") == []
    assert place.find("a/b").path == str(disk / "other" / "a+b")
    place.create(BufferSpec(storage=SharedStorage(64), schema=SCHEMA), "a/b", exist="replace")
    assert remains(disk / "other") == []
    assert place.find("a/b").path == str(root / "a+b")


def test_a_private_one_goes_with_its_creator(root: Path, disk: Path) -> None:
    place = Root(root)
    made = place.create(disk_spec(disk))
    Member.join(place, made.entry.name, hold=made.hold).close()
    assert remains(root) == remains(disk) == []


class TestAfterTheMachineStopped:
    """A buffer of another boot is served if it was written out, and never otherwise."""

    def test_one_that_was_closed_is_found_again_with_its_records(
        self, root: Path, disk: Path
    ) -> None:
        place = Root(root)
        uuid_ = place.create(disk_spec(disk), "a/b").entry.uuid
        with Member.join(place, "a/b") as member:
            assert mark(disk) == [boot.boot_id(), boot.OPEN]
            write_uids(member, [7])
        assert mark(disk) == [boot.boot_id(), boot.CLEAN]
        pull_the_plug(root, disk)
        with pytest.raises(NoSuchBufferError):
            Member.join(place, "a/b")
        made = place.create(disk_spec(disk), "a/b")
        assert (made.is_new, made.entry.uuid) == (False, uuid_)
        with Member.join(place, "a/b") as member:
            assert read_uids(member, [0])[0] == [7]
            assert mark(disk) == [boot.boot_id(), boot.OPEN]

    @pytest.mark.parametrize("role", ["member", "learner", "observer"])
    def test_one_that_was_open_is_not_served(self, root: Path, disk: Path, role: str) -> None:
        place = Root(root)
        place.create(disk_spec(disk), "a/b")
        with Member.join(place, "a/b") as member:
            write_uids(member, [7])
            pull_the_plug(root, disk, doors_go=False)
            with pytest.raises(UncleanError, match="newest checkpoint"):
                Member.join(place, "a/b", role=role)
            with pytest.raises(UncleanError, match="newest checkpoint"):
                shmrb.attach("a/b", root=str(root))
        assert mark(disk)[1] != boot.CLEAN

    def test_one_that_was_open_can_be_replaced_or_dropped_but_not_created(
        self, root: Path, disk: Path
    ) -> None:
        place = Root(root)
        for end in ("replace", "drop"):
            place.create(disk_spec(disk), "a/b", exist="replace")
            member = Member.join(place, "a/b")
            write_uids(member, [7])
            stale = read_uids(member, [0])[1]
            pull_the_plug(root, disk, doors_go=end == "replace")
            with pytest.raises(UncleanError, match="newest checkpoint"):
                place.create(disk_spec(disk), "a/b")
            if end == "drop":
                assert place.find("a/b").state is State.UNCLEAN
                place.drop("a/b", force=True)
            place.create(disk_spec(disk), "a/b", exist="replace")
            with Member.join(place, "a/b") as fresh:
                write_uids(fresh, [8])
                assert read_uids(fresh, [0])[1] > stale
            member.close()
            assert remains(disk) == ["a+b"]

    def test_a_stop_while_it_was_written_out_counts_as_open(self, root: Path, disk: Path) -> None:
        Root(root).create(disk_spec(disk), "a/b")
        (disk / "a+b" / names.BOOT).write_text(f"{boot.boot_id()} {boot.CLOSING}".ljust(64))
        Member.join(str(root), "a/b").close()
        (disk / "a+b" / names.BOOT).write_text(f"{ELSEWHERE} {boot.CLOSING}".ljust(64))
        with pytest.raises(UncleanError):
            Member.join(str(root), "a/b")

    def test_only_the_last_to_leave_writes_it_out(
        self, children: Children, root: Path, disk: Path
    ) -> None:
        Root(root).create(disk_spec(disk), "a/b")
        child = children.start(attach, root=str(root))
        child.expect("attached")
        Member.join(str(root), "a/b").close()
        assert mark(disk)[1] == boot.OPEN
        child.send()
        child.succeed()
        assert mark(disk)[1] == boot.CLEAN

    def test_a_killed_member_leaves_it_open_and_the_next_one_cleans_up(
        self, children: Children, root: Path, disk: Path
    ) -> None:
        Root(root).create(disk_spec(disk), "a/b")
        child = children.start(attach, root=str(root))
        child.expect("attached")
        child.kill()
        assert mark(disk)[1] == boot.OPEN
        Member.join(str(root), "a/b").close()
        assert mark(disk)[1] == boot.CLEAN

    def test_a_handle_that_nobody_closed_is_closed_at_the_end_of_its_program(
        self, children: Children, root: Path, disk: Path
    ) -> None:
        for keeps in (True, False):
            children.start(leave_a_handle, disk=str(disk), keeps=keeps).succeed()
            assert mark(disk)[1] == boot.CLEAN

    def test_a_name_that_was_used_since_is_not_mixed_up(self, root: Path, disk: Path) -> None:
        place = Root(root)
        place.create(disk_spec(disk), "a/b")
        with Member.join(place, "a/b") as member:
            write_uids(member, [7])
        pull_the_plug(root, disk)
        place.create(BufferSpec(storage=SharedStorage(64), schema=SCHEMA), "a/b")
        with Member.join(place, "a/b") as member:
            write_uids(member, [7])
        place.drop("a/b")
        with pytest.raises(AlreadyExistsError, match="whose handles would match"):
            place.create(disk_spec(disk), "a/b")
        assert remains(root) == []
        place.create(disk_spec(disk), "a/b", exist="replace")
        assert remains(disk) == ["a+b"]


def leave_a_handle(disk: str, keeps: bool) -> None:
    storage = shmrb.MemmapStorage(64, disk)
    rb = shmrb.ReplayBuffer("a/b", storage=storage, schema=SCHEMA, format="numpy")
    rb.extend({"uid": np.arange(3)})
    assert (Path(disk) / "a+b" / names.BOOT).read_text().split()[1] == boot.OPEN
    if keeps:
        globals()["kept"] = rb


def test_handles_travel_and_read_records_like_any_others(
    children: Children, root: Path, disk: Path
) -> None:
    storage = shmrb.MemmapStorage(64, disk, lanes=2)  # type: ignore[arg-type]
    rb = shmrb.ReplayBuffer("a/b", storage=storage, schema=SCHEMA, batch_size=4, format="numpy")
    rb.extend({"uid": np.arange(8)})
    assert len(pickle.dumps(rb)) < 4096
    child = children.start(use_handle, handle=pickle.dumps(rb).hex())
    batch = child.expect("sampled")
    assert set(batch["uid"]) <= set(range(8))
    child.succeed()
    assert len(rb) == 9
    rb.close()


def use_handle(handle: str) -> None:
    rb = pickle.loads(bytes.fromhex(handle))
    emit("sampled", uid=rb.sample()["uid"].tolist())
    rb.extend({"uid": np.arange(1)})


class TestDoors:
    """What a `where` may say, and what it is worth."""

    @pytest.mark.parametrize(
        "text",
        ["", "\n", "a+b\n", "../a+b\n", "/x/../a+b\n", "/x/other\n", "/a+b", "/x\0/a+b\n", LONG],
    )
    def test_one_that_makes_no_sense_is_listed_and_never_followed(
        self, root: Path, text: str
    ) -> None:
        (root / "a+b").mkdir()
        (root / "a+b" / names.WHERE).write_text(text)
        with pytest.raises(FormatMismatchError, match="absolute path"):
            Root(root).find("a/b")
        (entry,) = Root(root).list()
        assert entry.state is State.FOREIGN
        Root(root).reclaim()
        assert (root / "a+b" / names.WHERE).read_text() == text

    def test_links_are_not_followed(self, root: Path, disk: Path) -> None:
        Root(root).create(disk_spec(disk), "a/b")
        where = root / "a+b" / names.WHERE
        where.rename(root / "a+b" / "kept")
        where.symlink_to("kept")
        with pytest.raises(FormatMismatchError, match="cannot be opened"):
            Root(root).find("a/b")
        where.unlink()
        (root / "a+b" / "kept").rename(where)
        (disk / "a+b").rename(disk / "moved")
        (disk / "a+b").symlink_to(disk / "moved")
        with pytest.raises(FileSystemError, match="a link"):
            Root(root).find("a/b")

    def test_only_one_owner_or_the_roots_is_trusted(
        self, root: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Root(root).create(disk_spec(disk), "a/b")
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        where = root / "a+b" / names.WHERE
        for owner, house, of_root, trusted in (
            (0, 0, 0, True),
            (1, 1, 0, True),
            (0, 1, 0, True),
            (2, 1, 2, True),
            (2, 1, 0, False),
            (1, 0, 0, False),
        ):
            os.chown(where, owner, 0)
            os.chown(disk / "a+b", house, 0)
            os.chown(root, of_root, 0)
            if trusted:
                assert Root(root).find("a/b").state is State.READY
            else:
                with pytest.raises(PermissionDeniedError, match="not followed"):
                    Root(root).find("a/b")
        os.chown(root, 0, 0)

    def test_a_disk_that_is_not_mounted_is_told_from_a_buffer_that_is_gone(
        self, root: Path, disk: Path
    ) -> None:
        place = Root(root)
        mount = disk / "mount"
        place.create(disk_spec(mount), "a/b")
        mount.rename(disk / "away")
        mount.mkdir()
        with pytest.raises(FileSystemError, match="Mount its disk"):
            place.find("a/b")
        place.reclaim()
        mount.rmdir()
        (disk / "away").rename(mount)
        assert place.find("a/b").state is State.READY
        Root(mount).drop("a/b")
        assert place.find("a/b").state is State.MISSING
        place.create(disk_spec(mount), "a/b")
        assert place.find("a/b").state is State.READY

    def test_two_roots_may_have_a_door_to_one_buffer(self, root: Path, disk: Path) -> None:
        other = root.parent / "other"
        other.mkdir(mode=0o700)
        Root(root).create(disk_spec(disk), "a/b")
        assert not Root(other).create(disk_spec(disk), "a/b").is_new
        with Member.join(str(root), "a/b") as one, Member.join(str(other), "a/b") as two:
            write_uids(one, [7])
            assert read_uids(two, [0])[0] == [7]
        Root(root).drop("a/b")
        assert [item.state for item in Root(other).list()] == []
        Root(other).reclaim()
        assert remains(other) == []


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "overlay", "btrfs", "zfs", "xfs"])
def test_file_systems_are_refused_warned_of_or_taken(
    root: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(filesystem, "file_system", lambda _path: kind)
    if kind == "xfs":
        assert filesystem.check_lasting(disk) == ""
    elif kind in ("btrfs", "zfs"):
        assert kind in filesystem.check_lasting(disk)
    else:
        with pytest.raises(FileSystemError, match=f"got {kind}.*local disk"):
            filesystem.check_lasting(disk)


def test_a_real_overlay_is_refused_and_nothing_is_made(root: Path, in_own_mounts: Any) -> None:
    child = in_own_mounts(create_on_overlay)
    if problem := child.expect("mounted")["problem"]:
        pytest.skip(f"no overlay here: {problem}")
    said = child.expect("refused")
    assert "got overlay" in said["message"]
    assert said["left"] == []
    child.succeed()


def create_on_overlay(root: str) -> None:
    base = Path(root).parent
    for part in ("lower", "upper", "work", "merged"):
        (base / part).mkdir()
    options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
    merged = base / "merged"
    command = ["mount", "-t", "overlay", "overlay", "-o", options, merged]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    emit("mounted", problem=mounted.stderr.strip())
    try:
        Root(root).create(disk_spec(merged / "new"), "ring")
    except FileSystemError as error:
        emit("refused", message=str(error), left=os.listdir(merged))


def test_the_root_is_no_disk(root: Path) -> None:
    for place in (root, root / "below"):
        with pytest.raises(SpecError, match="outside the root"):
            Root(root).create(disk_spec(place), "a/b")


def test_fields_are_compared_with_what_is_on_the_disk(root: Path, disk: Path) -> None:
    Root(root).create(disk_spec(disk), "a/b")
    pull_the_plug(root, disk)
    other = Schema.from_mapping({"x": "int64"})
    with pytest.raises(AlreadyExistsError, match="described otherwise"):
        Root(root).create(disk_spec(disk, schema=other), "a/b")
    with pytest.raises(AlreadyExistsError, match="exists already"):
        Root(root).create(disk_spec(disk), "a/b", exist="error")
    assert remains(root) == []
