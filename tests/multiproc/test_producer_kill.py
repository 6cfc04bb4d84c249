"""A producer that dies loses its unwritten chunk and nothing else; a fork doubles nothing."""

from __future__ import annotations

import signal
import sys
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.child import emit, receive
from helpers.procs import Children
from shmrb import core

NAME = "kills/replay"
CHUNK = 8
CAPACITY = 16_384
EPISODE = 5
BODY = 64

# Every point that the write of a chunk passes.
POINTS = (
    "holding_lock",
    "claimed",
    "mid_mark",
    "reserved",
    "head_moved",
    "mid_payload",
    "before_commit",
    "mid_commit",
    "committed",
)

SCHEMA = {
    "observation": {"uid": "int64", "body": ("float32", BODY)},
    "action": "int64",
    "next": {
        "observation": {"uid": "int64", "body": ("float32", BODY)},
        "reward": ("float32", (1,)),
        "terminated": (bool, (1,)),
        "truncated": (bool, (1,)),
        "done": (bool, (1,)),
    },
    "writer": "int32",
}


def observation(uid: int) -> dict[str, Any]:
    return {"uid": uid, "body": np.full(BODY, uid % 1000, np.float32)}


def step(out: Any, uid: int, writer: int) -> None:
    end = uid % EPISODE == EPISODE - 1
    out.step(observation(uid), uid, float(uid % 7), observation(uid + 1), end, False, writer=writer)


def created() -> shmrb.ReplayBuffer:
    storage = shmrb.SharedStorage(CAPACITY)
    return shmrb.ReplayBuffer(NAME, storage=storage, schema=SCHEMA, format="numpy")


def torn(records: dict[str, Any]) -> int:
    """Records whose parts do not belong to one uid."""
    uid = records["observation"]["uid"]
    after = records["next"]
    whole = (records["action"] == uid) & (after["observation"]["uid"] == uid + 1)
    whole &= (records["observation"]["body"] == (uid % 1000)[:, None]).all(1)
    whole &= (after["observation"]["body"] == ((uid + 1) % 1000)[:, None]).all(1)
    whole &= after["reward"][:, 0] == uid % 7
    ends = uid % EPISODE == EPISODE - 1
    whole &= (after["terminated"][:, 0] == ends) & (after["done"][:, 0] == ends)
    return int((~whole).sum())


# ---- children ------------------------------------------------------------------------------------


def produce(steps: int, writer: int, point: str = "", passes: int = 1) -> None:
    buffer = shmrb.attach(NAME, timeout=60, format="numpy")
    if point:
        core.stop_at(point, "kill", passes)
    with buffer.producer(chunk=CHUNK, autoreset="disabled") as out:
        for uid in range(steps):
            step(out, uid, writer)
            emit("taken", uid=uid)
        emit("gathered", torch="torch" in sys.modules)
        receive()
    emit("closed")


def produce_on(out: Any) -> None:
    """What a forked child makes of its parent's producer."""
    for uid in range(100, 103):
        step(out, uid, 2)
    out.close()
    emit("closed")


# ---- tests ---------------------------------------------------------------------------------------


def test_killed_between_chunks(children: Children) -> None:
    with created() as buffer:
        child = children.start(produce, steps=3 * CHUNK + 5, writer=1)
        assert child.expect("gathered") == {"torch": False}
        child.kill()
        records = buffer[:]
        assert records["observation"]["uid"].tolist() == list(range(3 * CHUNK))
        assert torn(records) == 0


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_it_writes_a_chunk(children: Children, point: str) -> None:
    with created() as buffer:
        child = children.start(produce, steps=10 * CHUNK, writer=1, point=point, passes=3)
        assert child.wait() == -signal.SIGKILL, child.report()
        taken = [event["uid"] for event in child.events("taken")]
        # Steps whose call returned: those of the last, unwritten chunk are lost with it.
        sure = (len(taken) // CHUNK) * CHUNK
        records = buffer[:]
        uids = records["observation"]["uid"].tolist()
        assert torn(records) == 0
        assert uids[:sure] == list(range(sure))
        # Of the chunk it died in, what was published is whole, and a prefix.
        assert uids == list(range(len(uids)))
        assert len(uids) <= sure + CHUNK

        successor = children.start(produce, steps=CHUNK + 3, writer=2)
        successor.expect("gathered")
        successor.send()
        successor.expect("closed")
        successor.succeed()
        records = buffer[:]
        mine = records["writer"] == 2
        assert records["observation"]["uid"][mine].tolist() == list(range(CHUNK + 3))
        assert records["observation"]["uid"][~mine].tolist() == uids
        assert torn(records) == 0


def test_killed_at_any_moment(children: Children) -> None:
    with created() as buffer:
        written = 0
        for writer in range(8):
            child = children.start(produce, steps=100_000, writer=writer)
            for _ in range(20 + 13 * writer):
                last = child.expect("taken")["uid"]
            child.kill()
            records = buffer[:]
            uids = records["observation"]["uid"][records["writer"] == writer].tolist()
            if len(buffer) < CAPACITY:
                assert uids == list(range(len(uids)))
                assert len(uids) >= (last + 1) // CHUNK * CHUNK
            assert torn(records) == 0
            assert buffer.write_count >= written
            written = buffer.write_count


def test_trajectories_of_a_dead_producer_and_its_successor_are_apart(children: Children) -> None:
    """The dead one's episode was open: it and the next one's are two runs."""
    with created() as buffer:
        for writer in (1, 2):
            child = children.start(produce, steps=CHUNK, writer=writer)
            child.expect("gathered")
            child.kill()
        member = buffer._attachment.member
        region = member.layout.regions["runs"]
        words = member.mapping(region.file).view("<u4", region.offset, region.bytes)
        numbers = (words[: 2 * CHUNK] & 0x3FFF_FFFF).tolist()
        firsts = [bool(word >> 31) for word in words[: 2 * CHUNK].tolist()]
        assert firsts[CHUNK] is True
        assert numbers[CHUNK] != numbers[CHUNK - 1]


def test_forked_child_does_not_write_what_its_parent_gathered(children: Children) -> None:
    with created() as buffer:
        out = buffer.producer(chunk=CHUNK, autoreset="disabled")
        for uid in range(3):
            step(out, uid, 1)
        child = children.start(produce_on, method="fork", out=out)
        child.expect("closed")
        child.succeed()
        assert buffer[:]["observation"]["uid"].tolist() == [100, 101, 102]
        step(out, 3, 1)
        out.close()
        records = buffer[:]
        mine = records["writer"] == 1
        assert records["observation"]["uid"][mine].tolist() == [0, 1, 2, 3]
