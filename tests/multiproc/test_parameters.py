"""Parameters under kills: never torn, versions only grow, the last whole tree stays."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.child import emit, receive
from helpers.procs import Children, until
from shmrb import core
from shmrb.errors import LaneBusyError, LockTimeoutError

NAME = "demo/policy"
# Large enough that a copy is interrupted now and then, and in several columns.
WIDTHS = {"0.weight": (64, 48), "0.bias": (64,), "more": (1000,)}

# Every point that a publish passes, the first that a publisher passes included.
POINTS = (
    "leased",
    "claimed",
    "reserved",
    "mid_payload",
    "before_commit",
    "committed",
    "notifying",
)


def tree(version: int) -> dict[str, Any]:
    """Every number says which version it belongs to."""
    return {
        name: (version + np.arange(np.prod(shape)).reshape(shape) / 1024).astype(np.float64)
        for name, shape in WIDTHS.items()
    }


LIKE = tree(0)


def is_whole(version: int, got: dict[str, Any]) -> bool:
    wanted = tree(version)
    return all(np.array_equal(got[name], wanted[name]) for name in WIDTHS)


def opened(**options: Any) -> shmrb.Parameters:
    return shmrb.Parameters(NAME, format="numpy", **options)


# ---- children ------------------------------------------------------------------------------------


def publish_at_full_speed(point: str = "", passes: int = 1) -> None:
    """Publishes until it dies at its stopping point, or is told to end."""
    theta = opened(timeout=60)
    base = tree(0)
    if point:
        core.stop_at(point, "kill", passes)
    version = theta.version
    emit("publishing", version=version)
    while True:
        version += 1
        theta.publish({name: array + version for name, array in base.items()}, version)


def read_at_full_speed(waits: bool) -> None:
    theta = opened(timeout=60)
    torn, backwards, seen, version = 0, 0, 0, -1
    emit("reading")
    os.set_blocking(0, False)
    while not _told():
        if waits:
            found, got = theta.latest(version, timeout=0.05)
        else:
            found, got = theta.latest()
        if got is None:
            continue
        torn += not is_whole(found, got)
        backwards += found < version
        seen += 1
        version = found
    emit("read", torn=torn, backwards=backwards, seen=seen, version=version)
    emit("modules", torch="torch" in sys.modules)


def _told() -> bool:
    try:
        return bool(os.read(0, 1))
    except BlockingIOError:
        return False


def publish_some(count: int, point: str = "", passes: int = 1, action: str = "kill") -> None:
    if point:
        core.stop_at(point, action, passes)
    theta = opened(timeout=60)
    for _ in range(count):
        version = theta.version + 1
        theta.publish(tree(version))
        emit("published", version=version)
    emit("done")
    receive()


def use_handle(theta: shmrb.Parameters) -> None:
    """What a handle does that came along with a fork or a pickle."""
    version, got = theta.latest()
    emit("latest", version=version, whole=is_whole(version, got))
    try:
        theta.publish(tree(version + 1))
    except LaneBusyError as error:
        emit("refused", message=str(error))
    receive()
    emit("published", version=theta.publish(tree(2)))


# ---- tests ---------------------------------------------------------------------------------------


def test_kills_at_every_point_under_full_speed(children: Children) -> None:
    readers = [
        children.start(read_at_full_speed, name=f"reader {i}", waits=i % 2 == 0) for i in range(4)
    ]
    with opened(like=LIKE) as watcher:
        watcher.publish(tree(0))
    watcher = opened()
    for reader in readers:
        reader.expect("reading")
    last = watcher.version
    for point in POINTS:
        publisher = children.start(
            publish_at_full_speed, name=point, point=point, passes=1 if point == "leased" else 8
        )
        assert publisher.wait() == -signal.SIGKILL, publisher.report()
        version, got = watcher.latest()
        assert version >= last
        assert is_whole(version, got), f"torn after {point}"
        last = version
    assert watcher.publish(tree(last + 1)) == last + 1
    watcher.close()
    for reader in readers:
        reader.send()
        report = reader.expect("read")
        assert report["torn"] == 0, reader.report()
        assert report["backwards"] == 0, reader.report()
        assert report["seen"] > 0
        assert report["version"] <= last + 1
        assert reader.expect("modules") == {"torch": False}
        reader.succeed()


def test_publishers_that_die_one_after_another_leave_the_last_whole_tree(
    children: Children,
) -> None:
    """Each dies at its first publish, at another point, over what the one before it left."""
    with opened(like=LIKE) as first:
        first.publish(tree(0), 0)
    # With nobody else about, it is the successor that recovers what the dead one held.
    points = ["before_commit", "recovering", "mid_payload", "recovering", "reserved", "recovering"]
    points += ["claimed", "reserved", "reserved", "mid_payload", "before_commit", "leased"]
    for point in points:
        publisher = children.start(publish_some, name=point, count=1, point=point)
        assert publisher.wait() == -signal.SIGKILL, publisher.report()
    with opened() as survivor:
        assert survivor.version == 0
        version, got = survivor.latest()
        assert (version, is_whole(0, got)) == (0, True)
        for number in range(1, 7):
            assert survivor.publish(tree(number)) == number
            version, got = survivor.latest()
            assert (version, is_whole(number, got)) == (number, True)


def test_tree_that_was_whole_before_the_kill_is_the_newest(children: Children) -> None:
    opened(like=LIKE).close()
    publisher = children.start(publish_some, count=5, point="committed", passes=3)
    assert publisher.wait() == -signal.SIGKILL
    with opened() as theta:
        version, got = theta.latest()
        assert (version, is_whole(2, got)) == (2, True)


def test_first_publisher_killed_before_anything_was_whole(children: Children) -> None:
    opened(like=LIKE).close()
    for point in ("before_commit", "mid_payload", "reserved"):
        publisher = children.start(publish_some, count=1, point=point)
        assert publisher.wait() == -signal.SIGKILL
        with opened() as theta:
            assert theta.latest(timeout=0.01) == (-1, None)
    with opened() as theta:
        assert theta.publish(tree(0)) == 0
        assert is_whole(*theta.latest())


def test_stopped_publisher_holds_up_no_reader_and_keeps_its_place(children: Children) -> None:
    opened(like=LIKE).close()
    publisher = children.start(publish_some, count=4, point="mid_payload", passes=3, action="stop")
    publisher.wait_stopped()
    with opened() as other:
        version, got = other.latest()
        assert (version, is_whole(1, got)) == (1, True)
        assert other.latest(1, timeout=0.05) == (1, None)
        with pytest.raises(LaneBusyError, match=rf"pid {publisher.pid}.*alive"):
            other.publish(tree(2))
        publisher.resume()
        publisher.expect("done")
        version, got = other.latest()
        assert (version, is_whole(3, got)) == (3, True)
        publisher.kill()
        assert other.publish(tree(4)) == 4


def test_client_that_is_stopped_while_it_recovers_a_slot_holds_up_nobody(
    children: Children,
) -> None:
    with opened(like=LIKE) as first:
        first.publish(tree(0))
    stuck = children.start(look_when_told, point="recovering", action="stop")
    stuck.expect("ready")
    dead = children.start(publish_some, count=1, point="before_commit")
    assert dead.wait() == -signal.SIGKILL
    stuck.send()
    stuck.wait_stopped()
    with opened() as other:
        assert is_whole(*other.latest())
        for number in range(1, 5):
            assert other.publish(tree(number), timeout=0) == number
            assert is_whole(*other.latest())
        stuck.resume()
        # Its look began before, so any version that was the newest meanwhile is right.
        assert stuck.expect("looked")["version"] in range(5)
        stuck.succeed()
        assert other.publish(tree(5)) == 5


def look_when_told(point: str, action: str) -> None:
    theta = opened(timeout=60)
    core.stop_at(point, action)
    emit("ready")
    receive()
    emit("looked", version=theta.version)


def test_waiting_reader_is_woken(children: Children) -> None:
    opened(like=LIKE).close()
    publisher = children.start(publish_at_full_speed)
    publisher.expect("publishing")
    with opened() as theta:
        version = -1
        for _ in range(50):
            newer, got = theta.latest(version, timeout=30)
            assert newer > version
            assert is_whole(newer, got)
            version = newer


def test_waiting_reader_outlives_the_death_of_its_publisher(children: Children) -> None:
    """Killed between the tree and the bell: the reader looks again by itself."""
    theta = opened(like=LIKE)
    theta.publish(tree(0))
    theta.close()
    reader = children.start(wait_for_one, newer_than=0)
    reader.expect("waiting")
    with opened() as watcher:
        until(lambda: _waiters(watcher))
        publisher = children.start(publish_some, count=1, point="committed")
        assert publisher.wait() == -signal.SIGKILL
    assert reader.expect("found") == {"version": 1, "whole": True}
    reader.succeed()


def wait_for_one(newer_than: int) -> None:
    theta = opened(timeout=60)
    emit("waiting")
    version, got = theta.latest(newer_than, timeout=60)
    emit("found", version=version, whole=is_whole(version, got))


def _waiters(theta: shmrb.Parameters) -> bool:
    from shmrb.segment import snapshot

    clients = snapshot.clients(theta._attachment.member.segment)
    return any(client.waiting_for == "records" for client in clients)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_handles_travel(children: Children, method: str) -> None:
    theta = opened(like=LIKE)
    theta.publish(tree(0))
    child = children.start(use_handle, method=method, theta=theta)
    assert child.expect("latest") == {"version": 0, "whole": True}
    assert f"pid {os.getpid()}" in child.expect("refused")["message"]
    assert theta.publish(tree(1)) == 1
    theta.close()
    child.send()
    assert child.expect("published") == {"version": 2}
    child.succeed()


def test_fork_while_another_thread_publishes(children: Children) -> None:
    theta = opened(like=LIKE)
    theta.publish(tree(0))
    stop = threading.Event()

    def keep_publishing() -> None:
        while not stop.is_set():
            theta.publish(tree(theta.version + 1))

    thread = threading.Thread(target=keep_publishing)
    thread.start()
    try:
        for _ in range(10):
            child = children.start(look_once, method="fork", theta=theta)
            assert child.expect("looked") == {"whole": True}
            child.succeed()
    finally:
        stop.set()
        thread.join()
    theta.close()


def look_once(theta: shmrb.Parameters) -> None:
    looked = is_whole(*theta.latest())
    try:
        theta.publish(tree(10**9))
    except (LaneBusyError, LockTimeoutError) as error:
        emit("looked", whole=looked and isinstance(error, LaneBusyError))
