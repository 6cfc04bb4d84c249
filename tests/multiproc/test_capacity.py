"""Little room: what does not fit is refused with numbers, what was reserved stays usable."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from helpers.child import emit
from helpers.mounts import InOwnMounts
from helpers.segments import declared_spec, remains, semaphore_files, sized_spec
from shmrb.core import SLICE_NS, Status
from shmrb.errors import CapacityError
from shmrb.schema import Schema
from shmrb.segment import names
from shmrb.segment.directory import Root
from shmrb.segment.member import Member

MIB = 1024 * 1024


def _mount(root: str, mebibytes: int) -> Root:
    size = f"size={mebibytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", root], check=True)
    return Root(root)


def refuse(root: str) -> None:
    place = _mount(root, 16)
    for name, mebibytes in (("large", 64), ("first", 12), ("second", 12)):
        try:
            place.create(sized_spec(mebibytes), name)
        except CapacityError as error:
            emit(
                "refused",
                name=name,
                message=str(error),
                needed=error.needed_bytes,
                available=error.available_bytes,
            )
    emit("left", names=remains(Path(root)))
    place.drop("first")


def fill_up(root: str) -> None:
    """Writes and reads every slot while the file system has no byte left."""
    place = _mount(root, 16)
    spec = sized_spec(8)
    place.create(spec, "ring")
    with open(os.path.join(root, "other"), "wb", buffering=0) as other:
        try:
            while other.write(bytes(MIB)):
                pass
        except OSError as error:
            emit("full", code=error.errno)
    with Member.join(place, "ring") as member:
        import numpy as np

        rows = np.arange(1024, dtype=np.uint8).repeat(1024).reshape(1024, 1024)
        statuses = {
            member.segment.extend(
                lane=0,
                count=1024,
                columns=[rows.ctypes.data],
                versions=0,
                flags=0,
                slice_ns=SLICE_NS,
            )[0]
            for _ in range(spec.capacity // 1024 * 2)
        }
    emit("written", statuses=sorted(statuses))
    place.drop("ring")


def publish_without_room(root: str) -> None:
    place = _mount(root, 4)
    declared = place.create(declared_spec(8192), "ring").entry
    schema = Schema.from_mapping({"body": ("uint8", (1024,))})
    try:
        place.publish_declared("ring", schema, place.require("ring").uuid or b"")
    except CapacityError as error:
        emit("refused", needed=error.needed_bytes)
    place.reclaim()
    found = place.find("ring")
    emit("found", state=found.state.value, same=found.uuid == declared.uuid)
    emit("left", names=remains(Path(root)), files=sorted(os.listdir(found.path)))
    emit("semaphores", files=semaphore_files(declared.uuid or b""))


def test_what_does_not_fit_is_refused_with_numbers(
    in_own_mounts: InOwnMounts,
) -> None:
    child = in_own_mounts(refuse)
    large = child.expect("refused")
    assert large["name"] == "large"
    assert large["needed"] > 64 * MIB
    assert 15 * MIB < large["available"] <= 16 * MIB
    assert f"needed {large['needed']} bytes" in large["message"]
    assert f"available {large['available']} bytes" in large["message"]
    assert "--shm-size" in large["message"]
    second = child.expect("refused")
    assert second["name"] == "second"
    assert second["available"] < 4 * MIB
    assert child.expect("left")["names"] == ["first"]
    child.succeed()


def test_what_was_reserved_outlives_a_full_file_system(
    in_own_mounts: InOwnMounts,
) -> None:
    child = in_own_mounts(fill_up)
    child.expect("full")
    assert child.expect("written")["statuses"] == [Status.OK]
    child.succeed()


def test_a_first_write_without_room_leaves_the_declaration(
    in_own_mounts: InOwnMounts,
) -> None:
    child = in_own_mounts(publish_without_room)
    assert child.expect("refused")["needed"] > 8 * MIB
    assert child.expect("found") == {"state": "declared", "same": True}
    left = child.expect("left")
    assert left == {"names": ["ring"], "files": [names.DECLARATION, names.LIVE_LOCK]}
    assert child.expect("semaphores")["files"] == []
    child.succeed()
