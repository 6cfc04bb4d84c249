"""Waiting on bells: who rings is heard, who dies is not waited for, signals get through."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from helpers.child import emit
from helpers.mounts import InOwnMounts
from helpers.procs import Children
from helpers.segments import read_uids, uid_spec, write_uids
from shmrb.core import Bell, Status
from shmrb.segment import doorbell
from shmrb.segment.directory import Root
from shmrb.segment.member import Member


def wait_for_record(root: str, semaphores: bool = True) -> None:
    if not semaphores:
        doorbell.open_semaphore = lambda name: None
    member = Member.join(root, "ring")
    bell = member.bell(Bell.RECORDS)

    def is_over() -> bool:
        emit("counted")
        return False

    # A slice that ends by itself is no reason to stop.
    while not bell.wait(is_over):
        pass
    emit("woken")
    member.close()


def raise_in_handler(root: str, semaphores: bool) -> None:
    """What a signal's handler raises ends the wait, whatever it is."""
    if not semaphores:
        doorbell.open_semaphore = lambda name: None
    member = Member.join(root, "ring")
    bell = member.bell(Bell.RECORDS)

    def handler(number: int, frame: object) -> None:
        raise SystemExit(5)

    signal.signal(signal.SIGTERM, handler)
    emit("waiting")
    while True:
        bell.wait(lambda: False)


def live_without_semaphores(root: str) -> None:
    """As in a container whose /dev/shm is closed to it."""
    segments = os.path.abspath("segments")
    os.mkdir(segments)
    for where, options in ((segments, "size=4m"), ("/dev/shm", "ro")):
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", where], check=True)
    place = Root(segments)
    place.create(uid_spec(), "ring")
    with Member.join(place, "ring") as member:
        written = write_uids(member, [1])
        rung = member.bell(Bell.RECORDS).wait(lambda: False)
        uids, _ = read_uids(member, [0])
    place.drop("ring")
    emit("used", written=written, rung=rung, uids=uids)


@pytest.fixture
def member(root: Path) -> Member:
    place = Root(root)
    place.create(uid_spec(), "ring")
    return Member.join(place, "ring")


def _post(member: Member, wake: int) -> None:
    member.bell(Bell.RECORDS).post(wake & 0xFFFF_FFFF)


def _extend(member: Member) -> int:
    """Write one record and say how many posts of the records bell are owed."""
    import numpy as np

    row = np.zeros(1, dtype=np.int64)
    status, _, _, _, wake = member.segment.extend(
        lane=0, count=1, columns=[row.ctypes.data], versions=0, flags=0, slice_ns=50_000_000
    )
    assert status == Status.OK
    return wake


@pytest.mark.parametrize("semaphores", [True, False])
def test_a_waiter_in_another_process_hears_the_bell(
    children: Children, root: Path, member: Member, semaphores: bool
) -> None:
    child = children.start(wait_for_record, root=str(root), semaphores=semaphores)
    while child.expect_line('"event": "(counted|woken)"')[1] == "counted":
        _post(member, _extend(member))
    child.succeed()
    member.close()


def test_every_waiter_is_owed_one_post(member: Member, root: Path) -> None:
    others = [Member.join(root.as_posix(), "ring") for _ in range(3)]
    counted = threading.Barrier(4)
    woken = []

    def wait(one: Member) -> None:
        is_first = True

        def look() -> bool:
            nonlocal is_first
            if is_first:
                is_first = False
                counted.wait()
            return False

        woken.append(one.bell(Bell.RECORDS).wait(look))

    threads = [threading.Thread(target=wait, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    counted.wait()
    wake = _extend(member)
    assert wake & 0xFFFF_FFFF == 3
    _post(member, wake)
    for thread in threads:
        thread.join()
    assert woken == [True, True, True]
    for one in (*others, member):
        one.close()


def test_nobody_waiting_owes_nobody_anything(member: Member) -> None:
    assert _extend(member) == 0
    assert member.bell(Bell.RECORDS).wait(lambda: True)
    assert not member.bell(Bell.RECORDS).wait(lambda: False, 0.0)
    assert _extend(member) == 0
    member.close()


def test_a_killed_waiter_only_leaves_a_wake_up_for_nothing(
    children: Children, root: Path, member: Member
) -> None:
    stopped = {"SHMRB_STOP_AT": "waiting:kill"}
    child = children.start(wait_for_record, root=str(root), environment=stopped)
    assert child.wait() == -signal.SIGKILL
    assert _extend(member) & 0xFFFF_FFFF == 1
    assert _extend(member) == 0
    member.close()


@pytest.mark.parametrize("semaphores", [True, False])
def test_what_a_signal_handler_raises_ends_the_wait(
    children: Children, root: Path, member: Member, semaphores: bool
) -> None:
    child = children.start(raise_in_handler, root=str(root), semaphores=semaphores)
    child.expect("waiting")
    child.signal(signal.SIGTERM)
    assert child.wait() == 5
    assert child.stderr == ""
    member.close()


def test_closing_waits_for_a_thread_that_sleeps(member: Member) -> None:
    entered = threading.Event()
    heard = []

    def look() -> bool:
        entered.set()
        return False

    sleeper = threading.Thread(target=lambda: heard.append(member.bell(Bell.RECORDS).wait(look)))
    sleeper.start()
    entered.wait()
    member.close()
    sleeper.join()
    assert heard in ([True], [False])
    assert member.bell(Bell.RECORDS).wait(lambda: False)
    assert write_uids(member, [1]) == Status.CLOSED


def test_an_observer_looks_again_without_being_counted(member: Member, root: Path) -> None:
    with Member.join(root.as_posix(), "ring", role="observer") as observer:
        assert not observer.bell(Bell.RECORDS).wait(lambda: False)
        assert _extend(member) == 0
    member.close()


def test_without_semaphores_a_buffer_works_all_the_same(
    in_own_mounts: InOwnMounts,
) -> None:
    child = in_own_mounts(live_without_semaphores)
    assert child.expect("used") == {"written": Status.OK, "rung": False, "uids": [1]}
    child.succeed()


def test_semaphores_cost_nothing_that_stays(root: Path, member: Member) -> None:
    def maps() -> int:
        return Path("/proc/self/maps").read_text().count("sem.shmrb")

    member.close()
    before = maps()
    for _ in range(50):
        Member.join(root.as_posix(), "ring").close()
    assert maps() == before
