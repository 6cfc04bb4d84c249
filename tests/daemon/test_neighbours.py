"""Daemons beside other daemons, beside strangers, and in groups with little memory."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np

import shmrb
from helpers.cgroups import memory_cgroup
from helpers.child import emit, receive
from helpers.daemons import Daemons
from helpers.procs import Children, until
from shmrb.segment import doorbell
from shmrb.segment.directory import Root

SCHEMA = {"uid": "int64"}
STORAGE = shmrb.SharedStorage(64)
MIB = 1 << 20


def create_and_die(root: str, socket: str) -> None:
    """A persistent buffer through the daemon, one that ends with this process, one half made."""
    with shmrb.connect(socket, timeout=60) as client:
        client.create("main", storage=STORAGE, schema=SCHEMA, format="numpy")
    bounded = shmrb.ReplayBuffer(
        "bounded", root=root, storage=STORAGE, schema=SCHEMA, lifetime="creator", format="numpy"
    )
    emit("created", records=len(bounded))
    shmrb.core.stop_at("filled", "kill")
    shmrb.ReplayBuffer("half", root=root, storage=STORAGE, schema=SCHEMA, format="numpy")


def test_what_one_daemon_clears_away_is_its_own(
    daemons: Daemons, children: Children, root: Path, tmp_path: Path
) -> None:
    """Both have a buffer called main, and strangers lie beside with similar names."""
    other = root.parent / "other"
    beside = Path(f"{root.parent}.x")
    strangers = [root.parent / "segments-x", root / ".new.mine", beside]
    for stranger in strangers:
        stranger.write_text("precious")
    first = daemons.start()
    daemons.start(f"--root={other}", f"--socket={tmp_path}/other.sock")
    with shmrb.connect(tmp_path / "other.sock") as client:
        neighbour = client.create("main", storage=STORAGE, schema=SCHEMA, format="numpy")
        neighbour.extend({"uid": np.arange(10)})
        dying = children.start(create_and_die, root=str(root), socket=os.environ["SHMRB_SOCKET"])
        dying.expect("created")
        assert dying.wait() == -signal.SIGKILL
        first.kill()
        second = daemons.start()
        until(lambda: "removed path=" in second.stderr)
        assert sorted(path.name for path in root.iterdir() if path.name[0] != ".") == ["main"]
        assert len([path for path in root.iterdir() if path.name.startswith(".new.")]) == 1
        neighbour.extend({"uid": np.arange(10)})
        assert client.stats("main").write_count == 20
        neighbour.close()
        client.drop("main")
    assert [stranger.read_text() for stranger in strangers] == ["precious"] * 3
    beside.unlink()


def test_a_buffer_removed_by_hand_does_not_end_the_daemon(daemons: Daemons, root: Path) -> None:
    daemon = daemons.start("--sweep-interval-s=0.01")
    with shmrb.connect() as client:
        for name in ("gone", "kept"):
            client.create(name, storage=STORAGE, schema=SCHEMA, format="numpy").close()
        entry = Root(root).require("gone")
        shutil.rmtree(entry.path)
        doorbell.unlink_semaphores(entry.uuid or b"")
        until(lambda: "shmrb_daemon_buffers 1.0" in client.metrics())
        assert [summary.name for summary in client.list()] == ["kept"]
        assert client.ping().pid == daemon.pid
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert "Traceback" not in daemon.stderr


# Memory


def fill(buffer: str, group: str) -> None:
    """Writes every slot from a cgroup that is too small for them."""
    handle = shmrb.attach(buffer, format="numpy")
    rows = {"body": np.ones((1024, 1024), np.uint8)}
    handle.extend(rows)
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    for _ in range(handle.statistics().capacity // 1024):
        handle.extend(rows)
    emit("filled", records=len(handle))
    receive()


def test_the_creator_pays_for_the_memory_not_who_writes(
    daemons: Daemons, children: Children
) -> None:
    """32 MiB, written from where 8 are allowed; whoever was charged would be killed."""
    daemons.start()
    with (
        memory_cgroup(8 * MIB) as group,
        shmrb.connect() as client,
    ):
        schema = {"body": ("uint8", (1024,))}
        handle = client.create(
            "large", storage=shmrb.SharedStorage(32 * 1024), schema=schema, format="numpy"
        )
        child = children.start(fill, buffer="large", group=str(group))
        assert child.expect("filled") == {"records": 32 * 1024}
        child.send("end")
        child.succeed()
        handle.close()
