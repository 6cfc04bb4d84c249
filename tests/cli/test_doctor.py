"""`shmrb doctor`: each bad surrounding that it knows, and buffers that break their own rules."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.child import emit, receive
from helpers.daemons import Daemons
from helpers.procs import Children
from shmrb import core
from shmrb.cli import exits, surroundings
from shmrb.cli.surroundings import Advice, Surroundings, examine
from shmrb.segment import audit, layout
from shmrb.segment.findings import Finding
from shmrb.segment.logind import Logind
from shmrb.segment.member import Member

Shell = Callable[..., Any]

SCHEMA = {"uid": "int64"}
LIMITS = (resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_NOFILE)
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@pytest.fixture
def around(root: Path, tmp_path: Path) -> Surroundings:
    """Surroundings in which nothing is wrong, of files that a test may change."""
    groups = tmp_path / "cgroups"
    (groups / "a" / "b").mkdir(parents=True)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/a/b\n")
    mounted = f"9 1 0:9 / {groups} rw - cgroup2 none rw\n"
    (tmp_path / "proc" / "self" / "mountinfo").write_text(mounted)
    (tmp_path / "systemd").mkdir()
    (tmp_path / "linger").mkdir()
    return Surroundings(
        roots=[str(root)],
        sockets=[os.environ["SHMRB_SOCKET"]],
        uid=1234,
        shared_memory=str(root.parent),
        logind=Logind(
            files=[str(tmp_path / "logind.conf"), str(tmp_path / "logind.conf.d")],
            linger=str(tmp_path / "linger"),
            systemd=str(tmp_path / "systemd"),
            shared_memory=str(root.parent),
        ),
        proc=str(tmp_path / "proc"),
        limits=dict.fromkeys(LIMITS, UNLIMITED),
        path=str(tmp_path),
        kernel="6.1.0-18-amd64",
    )


def of(found: list[Advice], check: str) -> Advice:
    """The one thing that a check had to say beside what is well."""
    [advice] = [one for one in found if one.check == check and one.level != "ok"]
    return advice


def is_well(found: list[Advice], check: str) -> bool:
    return [one.level for one in found if one.check == check] == ["ok"]


def test_good_surroundings_have_no_problem(around: Surroundings) -> None:
    (Path(around.path or "") / "ffmpeg").touch(mode=0o755)
    found = examine(replace(around, uid=10))
    assert {one.level for one in found if one.check != "daemon"} == {"ok"}
    assert {one.check for one in found} >= {"shared memory", "root", "limits", "versions", "video"}
    assert of(found, "daemon").level == "note"


def test_a_missing_or_closed_shared_memory_is_a_problem(around: Surroundings, root: Path) -> None:
    missing = of(examine(replace(around, shared_memory="/nonexistent")), "shared memory")
    assert (missing.level, "tmpfs" in missing.advice) == ("problem", True)


def test_a_small_shared_memory_is_warned_of(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "SMALL_BYTES", 1 << 60)
    small = of(examine(around), "shared memory")
    assert small.level == "warning"
    assert "--shm-size" in small.advice


def test_each_bad_root_is_a_problem_with_advice(around: Surroundings, root: Path) -> None:
    plain = root.parent / "plain"
    plain.write_text("x")
    everybody = root.parent / "everybody"
    everybody.mkdir()
    everybody.chmod(0o777)
    for bad, complaint, advice in (
        (str(plain), "is no directory", "Remove it"),
        (str(everybody), "is open to everybody", "chmod o-rwx"),
        ("/proc/self/nothing", "is not there yet", "first buffer makes it"),
    ):
        one = of(examine(replace(around, roots=[bad])), "root")
        assert re.search(complaint, one.found), one
        assert re.search(advice, one.advice), one


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_what_is_closed_to_this_user_is_a_problem_that_names_the_group(
    root: Path, children: Children, daemons: Daemons
) -> None:
    daemons.start()
    root.parent.chmod(0o755)
    os.chown(root, -1, 60)
    closed = root.parent / "closed"
    closed.mkdir(mode=0o700)
    roots = [str(root), str(closed / "root")]
    child = children.start(look_as_nobody, roots=roots, sockets=[os.environ["SHMRB_SOCKET"]])
    for check, found, advice in (
        ("root", "not open to this user", "usermod -aG games nobody"),
        ("root", f"{closed}/root cannot be reached", "Open its parents"),
        ("daemon", "Permission denied", "join the socket's group"),
    ):
        said = child.expect("said")
        assert (said["check"], said["level"]) == (check, "problem")
        assert found in said["found"]
        assert advice in said["advice"]


def look_as_nobody(roots: list[str], sockets: list[str]) -> None:
    around = Surroundings(roots=roots, sockets=sockets, uid=65534)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    for check in (surroundings.check_roots, surroundings.check_daemon):
        for one in check(around):
            emit("said", check=one.check, level=one.level, found=one.found, advice=one.advice)


def test_a_file_system_without_such_locks_is_a_problem(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "byte_held", lambda _path, _slot: False)
    one = of(examine(around), "root")
    assert one.level == "problem"
    assert "does not keep the locks" in one.found


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "yes"),
        ({"logind.conf": "[Login]\n#RemoveIPC=no\n"}, "yes"),
        ({"logind.conf": "[Login]\nRemoveIPC=no\n"}, "no"),
        ({"logind.conf": "RemoveIPC=no\n", "logind.conf.d/9.conf": "RemoveIPC = yes\n"}, "yes"),
        ({"logind.conf": "RemoveIPC=yes\n", "logind.conf.d/9.conf": "RemoveIPC=off\n"}, "no"),
    ],
)
def test_remove_ipc_is_read_as_logind_reads_it(
    around: Surroundings, tmp_path: Path, files: dict[str, str], expected: str
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = examine(around)
    if expected == "no":
        assert is_well(found, "RemoveIPC")
        return
    one = of(found, "RemoveIPC")
    assert one.level == "warning"
    assert "RemoveIPC=yes" in one.found
    assert around.roots[0] in one.found
    assert "enable-linger" in one.advice


def test_remove_ipc_concerns_nobody_else(around: Surroundings, tmp_path: Path) -> None:
    assert is_well(examine(replace(around, uid=999)), "RemoveIPC")
    elsewhere = replace(around.logind, systemd="/nonexistent")
    assert is_well(examine(replace(around, logind=elsewhere)), "RemoveIPC")
    assert is_well(examine(replace(around, roots=[str(tmp_path)])), "RemoveIPC")
    (tmp_path / "linger" / "1234").touch()
    assert is_well(examine(around), "RemoveIPC")


@pytest.mark.parametrize(
    ("number", "limit", "said"),
    [
        (resource.RLIMIT_FSIZE, 1 << 20, "size of a file at most 1.0 MiB"),
        (resource.RLIMIT_AS, 1 << 33, "address space at most 8.0 GiB"),
        (resource.RLIMIT_NOFILE, 64, "64 descriptors"),
    ],
)
def test_limits_of_the_process_are_warned_of(
    around: Surroundings, number: int, limit: int, said: str
) -> None:
    limits = {**around.limits, number: (limit, limit)}
    one = of(examine(replace(around, limits=limits)), "limits")
    assert (one.level, one.found) == ("warning", said)
    assert "ulimit" in one.advice


def test_the_least_memory_limit_of_the_cgroups_above_counts(
    around: Surroundings, tmp_path: Path
) -> None:
    above = tmp_path / "cgroups" / "a"
    for group, limit in ((above, 64 << 20), (above / "b", 96 << 20)):
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text("4096\n")
    one = of(examine(around), "limits")
    assert (one.level, one.found) == ("warning", f"cgroup {above}: at most 64.0 MiB of memory")
    assert "memory.max" in one.advice


def test_a_daemon_that_does_not_fit_is_told(
    around: Surroundings, daemons: Daemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = daemons.start()
    assert is_well(examine(around), "daemon")
    elsewhere = of(examine(replace(around, roots=["/dev/shm/other"])), "daemon")
    assert (elsewhere.level, "SHMRB_ROOT" in elsewhere.advice) == ("warning", True)
    monkeypatch.setattr(surroundings, "__version__", "9.9")
    assert "This is 9.9: restart the daemon" in of(examine(around), "daemon").advice
    daemon.kill()
    stale = of(examine(around), "daemon")
    assert (stale.level, "shmrb serve" in stale.advice) == ("problem", True)


def test_an_old_kernel_and_a_missing_ffmpeg_are_noted(around: Surroundings) -> None:
    found = examine(replace(around, kernel="5.10.0-28-amd64"))
    old = next(one for one in found if one.check == "versions")
    assert (old.level, old.found) == ("note", "Linux 5.10.0-28-amd64")
    assert of(found, "video").level == "note"


def test_the_command_ends_with_1_only_if_there_is_a_problem(shmrb_: Shell, root: Path) -> None:
    well = shmrb_("doctor")
    assert well.code == exits.OK, well.out
    assert re.search(rf"^ok +root: {root}", well.out, re.MULTILINE)
    root.chmod(0o777)
    ill = shmrb_("doctor", "--json")
    assert ill.code == exits.FAILED
    assert "problem" in {one["level"] for one in json.loads(ill.out)}
    assert shmrb_("doctor", "--repair").code == exits.USAGE


# One buffer


def new(name: str = "a", **options: Any) -> shmrb.ReplayBuffer:
    handle = shmrb.ReplayBuffer(
        name, storage=shmrb.SharedStorage(64), schema=SCHEMA, format="numpy", **options
    )
    handle.extend({"uid": np.arange(40)})
    return handle


def consume_for_ever(buffer: str, hold: bool) -> None:
    handle = shmrb.attach(buffer, format="numpy", batch_size=4)
    emit("attached")
    while True:
        batch = handle.sample(timeout=60, hold=hold)
        if hold:
            handle.ack(batch)


def write_until_told(buffer: str) -> None:
    handle = shmrb.attach(buffer, format="numpy")
    emit("attached")
    handle.extend({"uid": np.arange(8)})
    while handle.write_count < 30_000:
        handle.extend({"uid": np.arange(8)})
        handle.update_if_present(handle.sample(4), patch={"uid": np.zeros(4, np.int64)})
    emit("written")
    receive()
    handle.close()


def die_at(buffer: str, point: str) -> None:
    handle = shmrb.attach(buffer, format="numpy", client_name="victim")
    core.stop_at(point, "kill")
    handle.extend({"uid": np.arange(8)})


@pytest.mark.parametrize("use", ["replay", "consumption"])
def test_a_buffer_in_full_use_keeps_its_rules(shmrb_: Shell, children: Children, use: str) -> None:
    options: dict[str, Any] = {"sampler": shmrb.PrioritizedSampler(alpha=0.6, beta=0.4)}
    if use == "consumption":
        options = {"consume_after_n_samples": 2, "limiter": shmrb.Queue(64)}
    with new(**options):
        writers = [children.start(write_until_told, buffer="a") for _ in range(2)]
        if use == "consumption":
            for hold in (False, True):
                writers.append(children.start(consume_for_ever, buffer="a", hold=hold))
        for writer in writers:
            writer.expect("attached")
        for _ in range(3):
            ended = shmrb_("doctor", "a")
            assert ended.code == exits.OK, ended.out
            assert "keeps its rules" in ended.out
        for writer in writers:
            writer.kill()


@pytest.mark.parametrize("point", ["holding_lock", "mid_payload", "claimed", "head_moved"])
def test_what_the_dead_left_is_found_and_mended(
    shmrb_: Shell, children: Children, point: str
) -> None:
    with new() as handle:
        victim = children.start(die_at, buffer="a", point=point)
        assert victim.wait() == -signal.SIGKILL
        found = json.loads(shmrb_("doctor", "a", "--json").out)["broken"]
        assert any("victim" in one["got"] for one in found)
        ended = shmrb_("doctor", "a")
        assert ended.code == exits.FAILED
        assert "shmrb doctor a --repair" in ended.out
        mended = shmrb_("doctor", "a", "--repair")
        assert mended.code == exits.OK, mended.out
        assert "mended" in mended.out
        assert shmrb_("doctor", "a").code == exits.OK
        handle.extend({"uid": np.arange(8)})
        assert len(handle) >= 40


def poke(root: Path, name: str, file: str, offset: int, value: int, size: int) -> None:
    with open(root / name / file, "r+b") as written:
        written.seek(offset)
        written.write(value.to_bytes(size, "little"))


def lane_field(name: str, of: layout.Layout) -> tuple[int, int]:
    offset, size = core.abi()["LaneBlock"]["fields"][name]
    return of.regions["lanes"].offset + offset, size


@pytest.mark.parametrize(
    ("region", "value", "where", "mends"),
    [
        ("words", (5 << 20) | 1, "slot 0: expected an owner of a busy slot", False),
        ("words", 0, "slot 0: expected a record under a live ticket", False),
        ("owners", 0x0003_0005, "slot 0: expected a living owner", True),
        ("sums.0", 1, "priority tree, level 0, node 0: expected sum", True),
        ("holes", 7, "lane 0: expected 0 holes", True),
        ("floor", 3, "lane 0: expected 0 <= floor", False),
        ("lease", 0x0003_0005, "lane 0: expected a living leaseholder", True),
        ("dirty", 1, "control lock: expected nothing half done", True),
        ("journal", 3, "control lock: expected nothing half done", False),
        ("starts.0", 9, "starts of lane 0, level 0, count 0: expected 1, got 9", True),
    ],
)
def test_what_no_shmrb_wrote_is_found(
    shmrb_: Shell, root: Path, region: str, value: int, where: str, mends: bool
) -> None:
    with new(sampler=shmrb.PrioritizedSampler(alpha=0.6, beta=0.4)):
        of = layout.parse_meta((root / "a" / "meta").read_bytes(), "meta").layout
        if region in of.regions:
            place = of.regions[region]
            size = {"owners": 4, "starts.0": 4}.get(region, 8)
            poke(root, "a", place.file, place.offset, value, size)
        elif region == "dirty":
            lock = core.abi()["ControlBlock"]["fields"]["control_lock"][0]
            poke(root, "a", "ctl", lock + core.abi()["LockBlock"]["fields"]["dirty"][0], value, 4)
        elif region == "journal":
            poke(root, "a", "ctl", core.abi()["ControlBlock"]["fields"]["journal"][0], value, 8)
        else:
            offset, size = lane_field(region, of)
            poke(root, "a", "ctl", offset, value, size)
        ended = shmrb_("doctor", "a")
        assert ended.code == exits.FAILED
        assert where in ended.out
        repaired = shmrb_("doctor", "a", "--repair")
        assert repaired.code == (exits.OK if mends else exits.FAILED), repaired.out
        assert ("drop the buffer" in repaired.out) != mends


def audited(root: Path) -> list[Finding]:
    with Member.join(str(root), "a", role="observer") as observer:
        return audit.audit(observer)


# Slots 0 to 3 are consumed, 4 and 5 are held, 6 to 39 may be drawn.
@pytest.mark.parametrize(
    ("array", "place", "value", "where"),
    [
        ("counts", 0, 0, "slot 0: expected a record that may be drawn to be a member"),
        ("holders", 4, 0, "slot 4: expected a record that may be drawn to be a member"),
        ("holders", 7, 0x0003_0005, "slot 7: expected one place"),
        ("places", 8, 3, "slot 8: expected its place among the members"),
        ("members", 0, 1 << 40, "expected its place among the members"),
        ("next", 9, 1, "slot 9: expected links to its neighbours"),
        ("previous", 9, 1, "slot 9: expected links to its neighbours"),
        ("freed", 0, 30, "slot 30: expected its place in the queue"),
        ("costs", 4, 1 << 31, "slot 4: expected no cost that is on its way"),
        ("block", "members", 3, "consumption, members: expected 34, got 3"),
        ("block", "held", 7, "consumption, held: expected 2, got 7"),
        ("block", "first", 0, "consumption, first: expected 5, got 0"),
        ("block", "freed_tail", 999, "expected its place in the queue"),
        ("block", "pending", 1, "consumption, pending: expected 0, got 1"),
    ],
)
def test_lists_of_consumption_that_no_shmrb_wrote_are_found_and_mended(
    root: Path, array: str, place: Any, value: int, where: str
) -> None:
    with new(consume_after_n_samples=1, sampler=shmrb.FifoSampler()) as handle:
        handle.sample(4)
        held = handle.sample(2, hold=True)
        assert audited(root) == []
        of = layout.parse_meta((root / "a" / "meta").read_bytes(), "meta").layout
        if array == "block":
            outer = core.abi()["ControlBlock"]["fields"]["consumption"][0]
            offset, size = core.abi()["ConsumptionBlock"]["fields"][place]
            poke(root, "a", "ctl", outer + offset, value, size)
        else:
            region, width = of.regions[array], layout.CONSUMPTION_WORDS[array]
            poke(root, "a", region.file, region.offset + width * place, value, width)
        found = audited(root)
        assert any(where in str(finding) for finding in found), found
        assert all(finding.mends for finding in found)
        with Member.join(str(root), "a") as member:
            audit.repair(member)
        assert audited(root) == []
        drawn = held["uid"][handle.ack(held)].tolist()
        while len(handle):
            drawn += handle.sample(8)["uid"].tolist()
        assert len(set(drawn)) == len(drawn)
        assert set(drawn) >= set(range(6, 40)) - {7 if array == "holders" else -1}


def test_what_cannot_be_verified_has_its_exit_code(shmrb_: Shell, root: Path) -> None:
    assert shmrb_("doctor", "nope").code == exits.NO_SUCH_BUFFER
    assert shmrb_("create", "later", "--capacity", 10).code == exits.OK
    assert shmrb_("doctor", "later").code == exits.OK
    with new():
        meta = root / "a" / "meta"
        whole = meta.read_bytes()
        meta.chmod(0o600)
        meta.write_bytes(b"x" * 8192)
        assert shmrb_("doctor", "a").code == exits.UNREADABLE
        meta.write_bytes(whole)
