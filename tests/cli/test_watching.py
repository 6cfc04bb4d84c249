"""`top`, `events` and `gc`: what happens, and what was left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.child import emit, receive
from helpers.daemons import Daemons
from helpers.procs import Children, until
from shmrb.cli import exits, top
from shmrb.segment.directory import Root

Shell = Callable[..., Any]

STORAGE = shmrb.SharedStorage(64)
SCHEMA = {"uid": "int64", "policy_version": "int64"}
PROGRAM = "from shmrb.cli import main; main()"


def record(uid: int = 0, version: int = 0) -> dict[str, Any]:
    return {"uid": np.int64(uid), "policy_version": np.int64(version)}


@pytest.fixture
def handle() -> Iterator[shmrb.ReplayBuffer]:
    with shmrb.ReplayBuffer(
        "exp/replay", storage=STORAGE, schema=SCHEMA, format="numpy", client_name="me [bold]"
    ) as made:
        yield made


# top


def wait_for_records(buffer: str) -> None:
    handle = shmrb.attach(buffer, format="numpy", client_name="waiter")
    emit("attached")
    handle.sample(1, timeout=100)


def test_rates_are_what_happened_between_two_looks(
    shmrb_: Shell, handle: shmrb.ReplayBuffer, root: Path, children: Children
) -> None:
    waiting = children.start(wait_for_records, buffer="exp/replay")
    waiting.expect("attached")
    roots = [Root(root)]
    until(lambda: top.compare(top.look(roots), top.look(roots))[0]["blocked"] == 1)
    waiting.kill()
    with shmrb.Parameters("exp/policy", like={"w": np.zeros(3)}, format="numpy") as policy:
        for _ in range(5):
            policy.publish({"w": np.ones(3)})
        before = top.look(roots)
        for uid in range(10):
            handle.add(record(uid, version=1))
        batch = handle.sample(4)
        handle.update_if_present(batch, patch={"uid": np.zeros(4, np.int64)})
        after = top.look(roots)
    passed_s = after.taken_s - before.taken_s
    rows = {row["name"]: row for row in top.compare(before, after)}
    row = rows["exp/replay"]
    assert [row[rate] * passed_s for rate in top.RATES.values()] == pytest.approx([10, 4, 4, 0])
    assert (row["size"], row["capacity"], row["policy_lag"]) == (10, 64, 3)
    [mine] = [client for client in row["clients"] if client["pid"] == os.getpid()]
    assert mine["inserts_per_s"] * passed_s == pytest.approx(10)
    assert rows["exp/policy"]["policy_lag"] is None
    # The same number, for one buffer.
    assert json.loads(shmrb_("stats", "exp/replay", "--json").out)["policy_lag"] == 3
    assert re.search(r"^policy_lag +3$", shmrb_("stats", "exp/replay").out, re.MULTILINE)


def test_a_buffer_that_took_the_name_begins_anew(handle: shmrb.ReplayBuffer, root: Path) -> None:
    handle.extend({"uid": np.arange(9), "policy_version": np.zeros(9, np.int64)})
    before = top.look([Root(root)])
    with shmrb.ReplayBuffer(
        "exp/replay", storage=STORAGE, schema=SCHEMA, format="numpy", exist="replace"
    ) as other:
        for uid in range(20):
            other.add(record(uid))
        [row] = top.compare(before, top.look([Root(root)]))
    assert row["inserts_per_s"] == 0


def test_top_prints_one_round_as_text_and_as_json(
    shmrb_: Shell, handle: shmrb.ReplayBuffer
) -> None:
    handle.add(record())
    ended = shmrb_("top", "--once", "--interval", 0.01)
    assert ended.code == exits.OK
    assert re.search(r"^exp/replay +1 +64 +0 +0 +0 +0 +0 +1 ", ended.out, re.MULTILINE)
    assert re.search(rf"^exp/replay +me \[bold\] +{os.getpid()} +member +alive", ended.out, re.M)
    [row] = json.loads(shmrb_("top", "--json", "--interval", 0.01).out)
    assert (row["name"], row["size"], row["blocked"]) == ("exp/replay", 1, 0)
    assert shmrb_("top", "--interval", 0).code == exits.USAGE


HEAD = r"RECORDS +CAPACITY +IN/s +OUT/s +UPD/s +STALE/s +BLOCKED +CLIENTS +LAG +BYTES"
# Seven records, nothing that happens, nobody blocked, one attached, three versions behind.
IDLE = r"exp/replay +7 +64( +0){5} +1 +3 "


def test_top_in_a_terminal_is_redrawn_and_ends_with_ctrl_c(
    handle: shmrb.ReplayBuffer, children: Children, tmp_path: Path
) -> None:
    if shutil.which("tmux") is None:
        pytest.fail("tmux is missing; install the package tmux (apt-get install)")
    base = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    # readline puts the size of this process's terminal into the environment; the pane's counts.
    program = f"env -u COLUMNS -u LINES {sys.executable} -c '{PROGRAM}' top --interval 0.2"
    command = f"{program}; echo ended with $?; read end"

    def tmux(*words: str) -> str:
        return subprocess.run([*base, *words], capture_output=True, text=True, check=True).stdout

    def screen() -> str:
        return tmux("capture-pane", "-p", "-t", "top")

    try:
        tmux("new-session", "-d", "-s", "top", "-x", "140", "-y", "24", command)
        until(lambda: re.search(r"exp/replay +0 +64", screen()))
        waiting = children.start(wait_for_records, buffer="exp/replay")
        waiting.expect("attached")
        # Rates of nothing, then one blocked, two attached, no lag.
        until(lambda: re.search(r"exp/replay +0 +64( +0){4} +1 +2 ", screen()))
        assert re.search(rf"waiter +{waiting.pid} +member +waits for records", screen())
        with shmrb.Parameters("exp/policy", like={"w": np.zeros(3)}, format="numpy") as policy:
            for _ in range(5):
                policy.publish({"w": np.ones(3)})
            for uid in range(7):
                handle.add(record(uid, version=1))
            waiting.succeed()
            shown = until(lambda: (now := screen()) and re.search(IDLE, now) and now)
        assert re.search(HEAD, shown)
        assert re.search(rf"me \[bold\] +{os.getpid()} +member +alive", shown)
        print(shown.rstrip())
        tmux("send-keys", "-t", "top", "C-c")
        until(lambda: "ended with 0" in screen())
    finally:
        subprocess.run([*base, "kill-server"], check=False, capture_output=True)


# events


def come_and_die(buffer: str) -> None:
    handle = shmrb.attach(buffer, format="numpy", client_name="victim")
    emit("attached", records=len(handle))
    receive()


def test_events_follow_the_daemon_across_its_restart(
    daemons: Daemons, children: Children, handle: shmrb.ReplayBuffer
) -> None:
    first = daemons.start("--sweep-interval-s=0.01")
    words = ["events", "--json"]
    eager = f"from shmrb.cli import care; care._ASK_EVERY_S = 0.02; {PROGRAM}"
    follower = children.program([sys.executable, "-c", eager, *words], name="events")
    assert json.loads(follower.expect_line('"serving"')[0] and follower.output[-1])["pid"]
    victim = children.start(come_and_die, buffer="exp/replay")
    victim.expect("attached")
    follower.expect_line('"kind": "attached".*"client": "victim"')
    victim.kill()
    follower.expect_line('"kind": "died".*"client": "victim"')
    follower.expect_line('"kind": "repaired".*"buffer": "exp/replay"')
    first.kill()
    second = daemons.start()
    follower.expect_line(rf'"kind": "serving".*"pid": {second.pid}')
    follower.signal(signal.SIGINT)
    assert follower.wait() == exits.OK
    assert follower.stderr == ""


def test_events_once_prints_what_is_remembered(shmrb_: Shell, daemons: Daemons) -> None:
    assert shmrb_("events", "--once").code == exits.NO_DAEMON
    daemons.start()
    assert shmrb_("create", "a", "--capacity", 10).code == exits.OK
    told = shmrb_("events", "--once")
    assert told.code == exits.OK
    assert re.search(r"^\d{4}-\d\d-\d\d .* created buffer='a' bytes=0$", told.out, re.MULTILINE)


# gc


def create_and_die(names: list[str]) -> None:
    for name in names:
        handle = shmrb.ReplayBuffer(
            name, storage=STORAGE, schema=SCHEMA, lifetime="creator", format="numpy"
        )
        emit("created", name=handle.name)
    os.kill(os.getpid(), signal.SIGKILL)


def test_gc_removes_what_the_dead_left_and_nothing_else(
    shmrb_: Shell, children: Children, root: Path, handle: shmrb.ReplayBuffer
) -> None:
    child = children.start(create_and_die, names=["exp/one", "other/two"])
    assert child.wait() == -signal.SIGKILL
    (root / "notes").write_text("precious")
    would = json.loads(shmrb_("gc", "--dry-run", "--json").out)
    assert {Path(one["path"]).name for one in would} == {"exp+one", "other+two"}
    assert (root / "exp+one").exists()
    assert [Path(one["path"]).name for one in json.loads(shmrb_("gc", "exp", "--json").out)] == [
        "exp+one"
    ]
    assert not (root / "exp+one").exists()
    assert (root / "other+two").exists()
    assert "other+two" in shmrb_("gc").out
    assert not (root / "other+two").exists()
    assert json.loads(shmrb_("gc", "--json").out) == []
    assert (root / "notes").read_text() == "precious"
    handle.add(record())
