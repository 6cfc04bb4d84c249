"""Buffers on disks that the daemon owns: where it makes them, and how it finds them again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import uuid
from pathlib import Path

import numpy as np
import pytest

import shmrb
from helpers.daemons import Daemons
from helpers.procs import Child
from shmrb.cli import main
from shmrb.errors import SpecError, UncleanError
from shmrb.segment import boot, names
from shmrb.segment.directory import Root
from shmrb.segment.doorbell import unlink_semaphores
from shmrbd.disks import check_directory

SCHEMA = {"uid": "int64"}


@pytest.fixture
def disk(root: Path) -> Path:
    """On tmpfs too, where writing out costs nothing."""
    folder = root.parent / "disk"
    folder.mkdir()
    return folder


def storage(directory: Path, capacity: int = 64) -> shmrb.MemmapStorage:
    return shmrb.MemmapStorage(capacity, str(directory))


def fill(disk: Path, name: str = "a/b") -> None:
    with shmrb.connect(timeout=30) as client:
        rb = client.create(name, storage=storage(disk), schema=SCHEMA, format="numpy")
        rb.extend({"uid": np.arange(8)})
        rb.close()


def machine_starts_anew(root: Path, disk: Path) -> None:
    """Another boot, and tmpfs is empty."""
    for mark in disk.rglob(names.BOOT):
        _, word = mark.read_text().split()
        mark.write_text(f"{uuid.UUID(int=7)} {word}".ljust(63) + "\n")
    for item in root.iterdir():
        if item.is_dir():
            shutil.rmtree(item)


def logged(daemon: Child, kind: str) -> list[str]:
    return re.findall(rf"^shmrbd: {kind} (.*)$", daemon.stderr, re.MULTILINE)


def test_what_it_wrote_out_is_there_after_the_machine_started_anew(
    daemons: Daemons, root: Path, disk: Path
) -> None:
    allowed = f"--memmap-directories={disk}"
    daemon = daemons.start(allowed)
    fill(disk / "deep" / "below")
    fill(disk, "c")
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    machine_starts_anew(root, disk)
    daemon = daemons.start(allowed)
    found = f"buffer=a/b directory={disk}/deep/below"
    assert set(logged(daemon, "found_again")) == {found, f"buffer=c directory={disk}"}
    with shmrb.connect() as client:
        assert [(row.name, row.storage, row.size) for row in client.list()] == [
            ("a/b", "MemmapStorage", 8),
            ("c", "MemmapStorage", 8),
        ]
        with client.attach("a/b", format="numpy") as rb:
            assert sorted(rb["uid"]) == list(range(8))
        client.drop("a/b")
    assert list((disk / "deep" / "below").glob("[!.]*")) == []


def test_what_was_open_when_the_machine_stopped_is_listed_and_not_served(
    daemons: Daemons, root: Path, disk: Path
) -> None:
    allowed = f"--memmap-directories={disk}"
    daemon = daemons.start(allowed)
    fill(disk)
    daemon.kill()
    machine_starts_anew(root, disk)
    daemon = daemons.start(allowed)
    assert "newest checkpoint" in logged(daemon, "not_adopted")[0]
    with shmrb.connect() as client:
        (row,) = client.list()
        assert (row.name, row.state, row.size) == ("a/b", "unclean", 0)
        assert "newest checkpoint" in row.problem
        with pytest.raises(UncleanError):
            client.attach("a/b")
        with pytest.raises(UncleanError):
            client.create("a/b", storage=storage(disk), schema=SCHEMA)
        client.drop("a/b")
        assert client.list() == []
    assert list(disk.glob("[!.]*")) == []


def test_a_killed_daemon_is_followed_by_one_that_serves_on(
    daemons: Daemons, root: Path, disk: Path
) -> None:
    allowed = f"--memmap-directories={disk}"
    daemon = daemons.start(allowed)
    fill(disk)
    with shmrb.attach("a/b", format="numpy") as rb:
        daemon.kill()
        rb.extend({"uid": np.arange(1)})
        daemon = daemons.start(allowed)
        assert len(rb) == 9
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert (disk / "a+b" / names.BOOT).read_text().split()[1] == boot.CLEAN


def test_a_stop_asks_for_the_time_that_the_disk_needs(daemons: Daemons, disk: Path) -> None:
    daemon, manager = daemons.launch(f"--memmap-directories={disk}")
    manager.hear("READY=1", daemon)
    fill(disk)
    daemon.signal(signal.SIGTERM)
    manager.hear("STOPPING=1", daemon)
    heard = manager.hear("STATUS=writing out a/b", daemon)
    assert int(heard[-2].removeprefix("EXTEND_TIMEOUT_USEC=")) > 30_000_000
    assert daemon.wait() == 0


def test_it_makes_buffers_only_where_it_may(daemons: Daemons, disk: Path) -> None:
    allowed, outside = disk / "allowed", disk / "outside"
    allowed.mkdir()
    outside.mkdir()
    (allowed / "link").symlink_to(outside)
    daemons.start(f"--memmap-directories={allowed}")
    with shmrb.connect() as client:
        for place in (outside, allowed / "link", allowed / "link" / "x", allowed / ".." / "x"):
            with pytest.raises(SpecError, match="below one of the daemon's memmap_directories"):
                client.create("a", storage=storage(place), schema=SCHEMA)
        assert client.list() == []
        client.create("a", storage=storage(allowed / "x" / "y"), schema=SCHEMA, format="numpy")
    assert sorted(os.listdir(disk)) == ["allowed", "outside"]
    assert os.listdir(outside) == []
    assert (allowed / "x" / "y" / "a" / "data").exists()


def test_without_the_setting_it_makes_none(disk: Path) -> None:
    check_directory(shmrb.BufferSpec(storage=shmrb.SharedStorage(8)), ())
    spec = shmrb.BufferSpec(storage=storage(disk))
    with pytest.raises(SpecError, match="none is set"):
        check_directory(spec, ())
    check_directory(spec, ("/",))


def test_what_is_not_its_own_or_no_buffer_stays_as_it_is(
    daemons: Daemons, root: Path, disk: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    place = Root(root)
    for name in ("theirs", "newer", "taken"):
        spec = shmrb.BufferSpec(storage=storage(disk), schema=shmrb.Schema.from_mapping(SCHEMA))
        uuid_ = place.create(spec, name).entry.uuid
        assert uuid_ is not None
        # Nobody will be able to tell whose they are.
        unlink_semaphores(uuid_)
        if name == "theirs":
            os.chown(disk / name, 1, 1)
    meta = disk / "newer" / "meta"
    meta.chmod(0o600)
    raw = bytearray(meta.read_bytes())
    raw[8] += 1
    meta.write_bytes(raw)
    (disk / "notes").mkdir()
    (disk / "notes" / "text").write_text("mine")
    before = sorted(str(path) for path in disk.rglob("*"))
    machine_starts_anew(root, disk)
    place.create(
        shmrb.BufferSpec(storage=shmrb.SharedStorage(8), schema=shmrb.Schema.from_mapping(SCHEMA)),
        "taken",
    )
    daemon = daemons.start(f"--memmap-directories={disk}")
    (said,) = logged(daemon, "not_found_again")
    assert "buffer=taken" in said
    assert "another buffer of this name" in said
    with shmrb.connect() as client:
        assert [row.name for row in client.list()] == ["taken"]
    assert sorted(str(path) for path in disk.rglob("*")) == before


def test_the_command_line_makes_and_lists_them(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: object) -> str:
        monkeypatch.setattr("sys.argv", ["shmrb", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    (row,) = json.loads(run("create", "a", "--capacity", 8, "--memmap", disk, "--json"))
    assert (row["storage"], row["state"]) == ("MemmapStorage", "declared")
    assert (disk / "a" / "declaration").exists()
    run("drop", "a")
    assert list(disk.glob("[!.]*")) == []
