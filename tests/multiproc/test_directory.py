"""Buffers in a root: born, found, shared, dropped, by processes that may die at any point."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from helpers.child import emit, receive
from helpers.procs import Children
from helpers.segments import (
    SCHEMA,
    declared_spec,
    read_uids,
    remains,
    semaphore_files,
    sized_spec,
    uid_spec,
    write_uids,
)
from shmrb import core
from shmrb.errors import (
    AlreadyExistsError,
    AttachError,
    CorruptionError,
    LockTimeoutError,
    NoSuchBufferError,
    NotReadyError,
    RecordError,
    ShmrbError,
    StaleAttachmentError,
)
from shmrb.schema import Schema
from shmrb.segment import names
from shmrb.segment.administration import administration_lock
from shmrb.segment.directory import Root
from shmrb.segment.doorbell import unlink_semaphores
from shmrb.segment.entries import State
from shmrb.segment.member import Member

KILLED = -signal.SIGKILL


def create(root: str, buffer: str = "ring", mebibytes: int = 0) -> None:
    spec = sized_spec(mebibytes) if mebibytes else uid_spec()
    made = Root(root).create(spec, buffer)
    emit("created", is_new=made.is_new, uuid=(made.entry.uuid or b"").hex())


def create_when_told(root: str) -> None:
    emit("ready")
    receive()
    create(root, "a/b")


def publish(root: str, field: str = "uid") -> None:
    place = Root(root)
    uuid = place.require("ring").uuid or b""
    emit("ready")
    receive()
    try:
        made = place.publish_declared("ring", Schema.from_mapping({field: "int64"}), uuid)
    except RecordError as error:
        emit("refused", message=str(error))
        return
    emit("published", is_new=made.is_new)


def drop(root: str, force: bool = False, buffer: str = "ring") -> None:
    Root(root).drop(buffer, force=force)
    emit("dropped")


def attach(root: str, client_name: str = "child") -> None:
    member = Member.join(root, "ring", client_name=client_name)
    emit("attached", token=member.token, uuid=member.uuid.hex())
    receive()
    emit("looked", ready=member.segment.is_ready(), status=write_uids(member, [7]))
    member.close()


def attach_until_there(root: str) -> None:
    emit("ready")
    while True:
        try:
            member = Member.join(root, "ring")
        except NoSuchBufferError:
            continue
        emit("attached", status=write_uids(member, [os.getpid()]))
        member.close()
        return


def create_private(root: str) -> None:
    made = Root(root).create(uid_spec())
    member = Member.join(root, made.entry.name, hold=made.hold)
    emit("created", name=made.entry.name)
    receive()
    member.close()
    emit("closed")
    receive()


def hold_lock(root: str) -> None:
    with administration_lock(root, 0o600, 10):
        emit("locked")
        receive()


def become_stranger(root: str, uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    try:
        Member.join(root, "ring")
    except ShmrbError as error:
        emit("refused", kind=type(error).__name__, message=str(error))


def fork_beside(root: str) -> None:
    """A forked child closes its copy of the handle and attaches anew; the parent's slot stays."""
    member = Member.join(root, "ring")
    pid = os.fork()
    if pid == 0:
        member.abandon()
        own = Member.join(root, "ring")
        emit("forked", token=own.token, status=write_uids(own, [2]))
        own.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    emit("parent", token=member.token, status=write_uids(member, [1]))
    receive()


def _stamp(root: Path, name: str = "ring") -> int:
    path = root / names.STAMPS / names.directory_name(name)
    return int(path.read_text()) if path.exists() else 0


# Birth


def test_many_creators_of_one_name_make_one_buffer(children: Children, root: Path) -> None:
    creators = [children.start(create_when_told, root=str(root)) for _ in range(4)]
    for child in creators:
        child.expect("ready")
    for child in creators:
        child.send()
    seen = [child.expect("created") for child in creators]
    assert sum(values["is_new"] for values in seen) == 1
    assert len({values["uuid"] for values in seen}) == 1
    assert remains(root) == ["a+b"]


def test_nobody_sees_a_buffer_that_is_not_ready(children: Children, root: Path) -> None:
    stopped = {"SHMRB_STOP_AT": "sized:stop"}
    creator = children.start(create, root=str(root), environment=stopped)
    creator.wait_stopped()
    place = Root(root)
    assert place.find("ring").state is State.MISSING
    assert place.list() == ()
    assert place.leftovers() == (), "a builder that is only stopped has lost nothing"
    attachers = [children.start(attach_until_there, root=str(root)) for _ in range(3)]
    for child in attachers:
        child.expect("ready")
    with pytest.raises(NoSuchBufferError, match="known there: none"):
        Member.join(place, "ring")
    creator.resume()
    assert creator.expect("created")["is_new"]
    for child in attachers:
        assert child.expect("attached")["status"] == core.Status.OK
        child.succeed()


@pytest.mark.parametrize("point", ["sized", "filled"])
def test_a_dead_creator_blocks_nobody(children: Children, root: Path, point: str) -> None:
    for _ in range(3):
        killed = {"SHMRB_STOP_AT": f"{point}:kill"}
        creator = children.start(create, root=str(root), mebibytes=4, environment=killed)
        assert creator.wait() == KILLED
    before = Root(root).leftovers()
    assert [leftover.reason for leftover in before] == ["its builder died"]
    assert Root(root).create(sized_spec(4), "ring").is_new
    assert Root(root).leftovers() == ()
    assert remains(root) == ["ring"]
    used = sum(item.stat().st_blocks * 512 for item in (root / "ring").iterdir())
    assert used < 6 * 1024 * 1024


def test_what_exists_is_used_refused_or_replaced(root: Path) -> None:
    place = Root(root)
    first = place.create(uid_spec(), "ring")
    assert first.is_new
    again = place.create(uid_spec(), "ring")
    assert not again.is_new
    assert again.entry.uuid == first.entry.uuid
    with pytest.raises(AlreadyExistsError, match="exists already"):
        place.create(uid_spec(), "ring", exist="error")
    with pytest.raises(AlreadyExistsError, match="capacity: existing 64, asked for 65"):
        place.create(uid_spec(65), "ring")
    with Member.join(place, "ring") as member:
        replaced = place.create(uid_spec(65), "ring", exist="replace")
        assert replaced.entry.uuid != first.entry.uuid
        assert write_uids(member, [1]) == core.Status.DEAD
    assert semaphore_files(first.entry.uuid or b"") == []
    assert remains(root) == ["ring"]


def test_modes_are_as_asked_under_any_umask(children: Children, root: Path) -> None:
    for umask in (0o077, 0o000):
        before = os.umask(umask)
        try:
            place = Root(root / f"group{umask:o}", mode=0o660)
            entry = place.create(uid_spec(), "ring").entry
            place.create(declared_spec(), "declared")
        finally:
            os.umask(before)
        modes = {
            item: stat.S_IMODE(os.stat(os.path.join(entry.path, item)).st_mode)
            for item in os.listdir(entry.path)
        }
        assert modes.pop(names.META) == 0o440
        assert set(modes.values()) == {0o660}
        assert stat.S_IMODE(os.stat(entry.path).st_mode) == 0o770
        assert stat.S_IMODE(os.stat(place.path).st_mode) == 0o770
        for file in semaphore_files(entry.uuid or b""):
            assert stat.S_IMODE(os.stat(file).st_mode) == 0o660
        # Whoever creates in the root of a group does so for the group.
        assert Root(place.path).mode == 0o660
        place.drop("ring")


def test_a_stranger_is_told_whose_it_is(children: Children, root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    os.chmod(root.parent, 0o755)
    Root(root).create(uid_spec(), "ring")
    os.chmod(root, 0o755)
    child = children.start(become_stranger, root=str(root), uid=65534)
    refused = child.expect("refused")
    assert refused["kind"] == "PermissionDeniedError"
    assert "belongs to user root and group root with mode 0700" in refused["message"]
    child.succeed()


# Declared


def test_a_declared_buffer_has_no_memory_until_it_is_published(root: Path) -> None:
    place = Root(root)
    declared = place.create(declared_spec(), "ring")
    assert declared.entry.state is State.DECLARED
    assert sorted(os.listdir(declared.entry.path)) == [names.DECLARATION, names.LIVE_LOCK]
    with pytest.raises(NotReadyError, match="only declared"):
        Member.join(place, "ring")
    uuid = declared.entry.uuid or b""
    published = place.publish_declared("ring", SCHEMA, uuid)
    assert published.is_new
    assert published.entry.uuid == uuid
    with Member.join(place, "ring") as member:
        assert write_uids(member, [5]) == core.Status.OK
    assert not place.publish_declared("ring", SCHEMA, uuid).is_new
    assert not place.create(declared_spec(), "ring").is_new
    with pytest.raises(StaleAttachmentError, match="'other' is gone"):
        place.publish_declared("other", SCHEMA, uuid)


@pytest.mark.parametrize("point", ["sized", "filled"])
def test_a_publisher_that_dies_leaves_the_declaration(
    children: Children, root: Path, point: str
) -> None:
    place = Root(root)
    uuid = place.create(declared_spec(), "ring").entry.uuid or b""
    child = children.start(publish, root=str(root), environment={"SHMRB_STOP_AT": f"{point}:kill"})
    child.expect("ready")
    child.send()
    assert child.wait() == KILLED
    assert place.find("ring").state is State.DECLARED
    assert place.publish_declared("ring", SCHEMA, uuid).is_new
    place.reclaim()
    assert remains(root) == ["ring"]


def test_files_renamed_by_a_dead_publisher_are_replaced(root: Path) -> None:
    place = Root(root)
    entry = place.create(declared_spec(), "ring").entry
    for name in (names.CONTROL, names.SLOTS):
        (Path(entry.path) / name).write_bytes(b"half-way")
    assert place.find("ring").state is State.DECLARED
    place.publish_declared("ring", SCHEMA, entry.uuid or b"")
    with Member.join(place, "ring") as member:
        assert write_uids(member, [5]) == core.Status.OK


def test_of_two_publishers_one_wins_and_the_other_is_checked(
    children: Children, root: Path
) -> None:
    place = Root(root)
    place.create(declared_spec(), "ring")
    pair = [children.start(publish, root=str(root)) for _ in range(2)]
    other = children.start(publish, root=str(root), field="other")
    for child in [*pair, other]:
        child.expect("ready")
    for child in pair:
        child.send()
    assert sorted(child.expect("published")["is_new"] for child in pair) == [False, True]
    other.send()
    assert "other" in other.expect("refused")["message"]
    assert remains(root) == ["ring"]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_publishing_into_another_buffer_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    place = Root(root)
    uuid = place.create(declared_spec(), "ring").entry.uuid or b""

    def replace_meanwhile(point: str) -> None:
        monkeypatch.undo()
        Root(root).create(declared_spec(), "ring", exist="replace")

    if when == "before":
        replace_meanwhile("")
    else:
        monkeypatch.setattr(core, "stopping_point", replace_meanwhile)
    with pytest.raises(StaleAttachmentError, match="Another buffer"):
        place.publish_declared("ring", SCHEMA, uuid)
    assert place.find("ring").state is State.DECLARED
    assert remains(root) == ["ring"]


# Members


def test_a_fork_leaves_the_parents_slot_alone(children: Children, root: Path) -> None:
    Root(root).create(uid_spec(), "ring")
    child = children.start(fork_beside, root=str(root))
    forked = child.expect("forked")
    parent = child.expect("parent")
    assert forked["status"] == parent["status"] == core.Status.OK
    assert forked["token"] != parent["token"]
    assert len(list(Root(root).find("ring").held_slots())) == 1
    child.send()
    child.succeed()


def test_roles_decide_what_may_be_written(root: Path) -> None:
    place = Root(root)
    place.create(uid_spec(), "ring")
    with Member.join(place, "ring") as member:
        write_uids(member, [1])
        for role in ("learner", "observer"):
            with Member.join(place, "ring", role=role) as other:
                assert write_uids(other, [2]) == core.Status.READ_ONLY
                assert read_uids(other, [0]) == ([1], [0])
                expected = 1 if role == "observer" else 2
                assert len(list(place.find("ring").held_slots())) == expected


def test_attaching_and_leaving_costs_nothing_that_stays(root: Path) -> None:
    place = Root(root)
    place.create(uid_spec(), "ring")

    def costs() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count(str(root))
        return len(os.listdir("/proc/self/fd")), maps

    Member.join(place, "ring").close()
    before = costs()
    with Member.join(place, "ring"):
        descriptors, maps = costs()
        assert descriptors - before[0] <= 1
        assert maps - before[1] <= 4
    for _ in range(300):
        Member.join(place, "ring").close()
    assert costs() == before
    assert list(place.find("ring").held_slots()) == []


def test_a_buffer_with_all_client_slots_taken_says_so(root: Path) -> None:
    place = Root(root)
    place.create(uid_spec(max_clients=2), "ring")
    with Member.join(place, "ring"), Member.join(place, "ring"):
        with pytest.raises(AttachError, match="all 2 client slots are taken"):
            Member.join(place, "ring")
        Member.join(place, "ring", role="observer").close()


def test_files_removed_by_hand_hurt_nobody(root: Path) -> None:
    place = Root(root)
    entry = place.create(uid_spec(), "ring").entry
    member = Member.join(place, "ring")
    for item in os.listdir(entry.path):
        os.unlink(os.path.join(entry.path, item))
    os.rmdir(entry.path)
    assert write_uids(member, [1]) == core.Status.OK
    assert read_uids(member, [0]) == ([1], [0])
    member.close()
    unlink_semaphores(entry.uuid or b"")


# End


def test_a_buffer_in_use_is_dropped_only_by_force(children: Children, root: Path) -> None:
    place = Root(root)
    entry = place.create(uid_spec(), "ring").entry
    child = children.start(attach, root=str(root), client_name="collector-3")
    child.expect("attached")
    with pytest.raises(AttachError, match=rf"collector-3 \(pid {child.pid}\)"):
        place.drop("ring")
    assert place.find("ring").state is State.READY
    place.drop("ring", force=True)
    assert place.find("ring").state is State.MISSING
    child.send()
    assert child.expect("looked") == {"ready": False, "status": core.Status.DEAD}
    child.succeed()
    assert remains(root) == []
    assert semaphore_files(entry.uuid or b"") == []
    with pytest.raises(NoSuchBufferError):
        place.drop("ring")


def test_a_dead_member_keeps_nothing(children: Children, root: Path) -> None:
    place = Root(root)
    place.create(uid_spec(), "ring")
    child = children.start(attach, root=str(root))
    child.expect("attached")
    child.kill()
    place.drop("ring")
    assert remains(root) == []


def test_a_drop_that_dies_is_finished_by_the_next_caller(children: Children, root: Path) -> None:
    place = Root(root)
    entry = place.create(uid_spec(), "ring").entry
    with Member.join(place, "ring") as member:
        write_uids(member, [1])
    child = children.start(drop, root=str(root), environment={"SHMRB_STOP_AT": "dropping:kill"})
    assert child.wait() == KILLED
    assert place.find("ring").state is State.MISSING
    with pytest.raises(NoSuchBufferError):
        Member.join(place, "ring")
    assert [leftover.reason for leftover in place.leftovers()] == ["its drop was interrupted"]
    assert place.create(uid_spec(), "ring").is_new
    assert remains(root) == ["ring"]
    assert semaphore_files(entry.uuid or b"") == []
    assert _stamp(root) >= 1


def test_leftovers_of_some_names_are_theirs_and_what_bears_no_name(
    children: Children, root: Path
) -> None:
    place = Root(root)
    buffers = ("exp/ring", "other/ring")
    for name in buffers:
        place.create(uid_spec(), name)
    # Creations clear up what they find, so the one that dies comes first.
    deaths = [(create, "sized", "ring"), *((drop, "dropping", name) for name in buffers)]
    for deed, point, name in deaths:
        environment = {"SHMRB_STOP_AT": f"{point}:kill"}
        child = children.start(deed, root=str(root), buffer=name, environment=environment)
        assert child.wait() == KILLED
    (building,) = (name for name in os.listdir(root) if names.unfinished_build(name))
    found = place.leftovers("exp")
    assert [os.path.basename(leftover.path) for leftover in found] == [building, "exp+ring"]
    assert place.reclaim("exp") == found
    assert remains(root) == ["other+ring"]
    assert len(place.reclaim()) == 1
    assert remains(root) == []


def test_no_handle_outlives_its_buffer(root: Path) -> None:
    place = Root(root)
    seen = -1
    for life in range(4):
        place.create(uid_spec(4), "a/ring")
        with Member.join(place, "a/ring") as member:
            for lap in range(3):
                write_uids(member, [life, lap])
                write_uids(member, [life, lap])
            _, generations = read_uids(member, [0, 1, 2, 3])
            if life == 0:
                assert generations == [2, 2, 2, 2]
            assert min(generations) > seen
            seen = max(generations)
            if life == 2:
                member.segment.empty(True, core.SLICE_NS)
                seen += 1  # what an emptied slot shows
            if life == 1:
                place.drop("a/ring", force=True)
        if life != 1:
            place.drop("a/ring")
    assert remains(root) == []
    (root / names.STAMPS / "a+ring").write_text("many")
    with pytest.raises(CorruptionError, match="expected a generation"):
        place.create(uid_spec(4), "a/ring")
    assert remains(root) == []


def test_a_private_buffer_ends_with_its_creator(children: Children, root: Path) -> None:
    place = Root(root)
    creator = children.start(create_private, root=str(root))
    name = creator.expect("created")["name"]
    member = Member.join(place, name)
    assert place.reclaim() == ()
    creator.kill()
    assert write_uids(member, [1]) == core.Status.OK
    assert place.reclaim() == (), "a member may go on with what it has"
    with pytest.raises(NoSuchBufferError, match="takes no new members"):
        Member.join(place, name)
    member.close()
    assert remains(root) == []


def test_a_private_buffer_goes_when_its_creator_closes(children: Children, root: Path) -> None:
    creator = children.start(create_private, root=str(root))
    creator.expect("created")
    creator.send()
    creator.expect("closed")
    assert remains(root) == []
    assert not (root / names.STAMPS).exists()


def test_closing_after_the_root_was_removed_leaves_it_removed(root: Path) -> None:
    place = Root(root)
    created = place.create(uid_spec())
    member = Member.join(place, created.entry.name, hold=created.hold)
    shutil.rmtree(root)
    member.close()
    assert not root.exists()
    unlink_semaphores(created.entry.uuid or b"")


def test_a_private_buffer_whose_creator_was_killed_is_reclaimed(
    children: Children, root: Path
) -> None:
    creator = children.start(create_private, root=str(root))
    name = creator.expect("created")["name"]
    assert remains(root) == [name]
    creator.kill()
    assert Root(root).create(uid_spec(), "other").is_new
    assert remains(root) == ["other"]


def test_a_declared_buffer_that_its_creator_bounds_needs_no_memory_to_be_reclaimed(
    root: Path,
) -> None:
    place = Root(root)
    made = place.create(declared_spec(lifetime="creator"), "ring")
    assert made.hold is not None
    assert place.reclaim() == ()
    with pytest.raises(AttachError, match="its creator"):
        place.drop("ring")
    made.hold.release()
    assert [Path(leftover.path).name for leftover in place.reclaim()] == ["ring"]


# What is not ours


def test_a_stopped_administrator_is_named(children: Children, root: Path) -> None:
    child = children.start(hold_lock, root=str(root))
    child.expect("locked")
    child.stop()
    with pytest.raises(LockTimeoutError, match=f"held by process {child.pid}"):
        Root(root, lock_timeout=0.05).create(uid_spec(), "ring")
    child.resume()
    child.send()
    child.succeed()
    assert Root(root).create(uid_spec(), "ring").is_new


def test_who_waits_for_the_administrator_can_be_interrupted(children: Children, root: Path) -> None:
    with administration_lock(str(root), 0o600, 10):
        child = children.start(create_when_told, root=str(root))
        child.expect("ready")
        child.send()
        child.signal(signal.SIGINT)
        assert child.wait() == -signal.SIGINT
        assert "KeyboardInterrupt" in child.stderr
