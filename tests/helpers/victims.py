"""What the processes do that tests of the native core kill or stop: attach, arm, do one deed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from helpers.child import emit, receive
from helpers.rawsegment import RawSegment, changed, finish, ok, stamped
from shmrb import core
from shmrb.core import Bell, TakeKind

# The uids that a victim writes begin here.
VICTIMS_UIDS = 900
WRITTEN_AT_ONCE = 5
TAKEN_AT_ONCE = 3
UPDATED_SLOTS = (2, 5, 8)
MARK = 44
COST = 6
# Minimal size, samples an insert, least and greatest difference: they refuse nothing here.
NEW_LIMITS = (2, 3.0, -1e6, 1e6)


def write(member: RawSegment) -> None:
    uids = np.arange(VICTIMS_UIDS, VICTIMS_UIDS + WRITTEN_AT_ONCE)
    ok(finish(lambda: member.extend(stamped(uids))))


def update(member: RawSegment) -> None:
    slots = list(UPDATED_SLOTS)
    uids = member.columns["uid"][slots]
    stamps = member.generations(slots)
    patch = changed(uids, [MARK] * len(slots))
    ok(finish(lambda: member.update(slots, stamps, patch)[0]))


def update_priority(member: RawSegment) -> None:
    slots = np.array(UPDATED_SLOTS, np.int64)
    stamps = member.generations(slots)
    raw = np.full(len(slots), 2.0, np.float32)
    verdicts = np.zeros(len(slots), np.uint8)
    where = [array.ctypes.data for array in (slots, stamps, raw, verdicts)]
    count = len(slots)
    segment = member.segment
    ok(finish(lambda: segment.update_priority(where[0], count, *where[1:], core.SLICE_NS)))


def refill(member: RawSegment) -> None:
    ok(finish(lambda: member.write(UPDATED_SLOTS[0], stamped([VICTIMS_UIDS]))))


def empty(member: RawSegment) -> None:
    ok(finish(lambda: member.empty(reset=True)))


def sample(member: RawSegment) -> None:
    ok(finish(lambda: member.sample(COST)[0]))


def sample_once(member: RawSegment) -> None:
    """In a single call, whose time is over when it begins."""
    ok(member.sample(COST, slice_ns=0)[0])


def sample_at_a_cost(member: RawSegment) -> None:
    ok(finish(lambda: member.sample(COST, cost=COST)[0]))


def change_limits(member: RawSegment) -> None:
    ok(finish(lambda: member.segment.set_limits(True, *NEW_LIMITS, core.SLICE_NS)))


def wait(member: RawSegment) -> None:
    ok(member.segment.bell_enter(Bell.RECORDS, True))


def lease(member: RawSegment) -> None:
    ok(member.segment.lease(0))


def reap(member: RawSegment) -> None:
    ok(finish(member.segment.reap))


def recover(member: RawSegment) -> None:
    ok(finish(member.segment.recover))


def take(member: RawSegment) -> tuple[np.ndarray, np.ndarray]:
    while True:
        outcome, *taken = member.take(TAKEN_AT_ONCE, TakeKind.OLDEST_FIRST, cost=1)
        if outcome[0] != core.Status.AGAIN:
            ok(outcome)
            return taken[0], taken[1]


def consume(member: RawSegment) -> None:
    slots, generations = take(member)
    ok(finish(lambda: member.read(slots)[0]))
    assert member.end_takes(slots, generations).all()


def give_back(member: RawSegment) -> None:
    assert member.end_takes(*take(member), back=True).all()


def nothing(_: RawSegment) -> None:
    """Only attaches."""


DEEDS: dict[str, Callable[[RawSegment], object]] = {
    deed.__name__: deed
    for deed in (
        write,
        update,
        update_priority,
        refill,
        empty,
        sample,
        sample_once,
        sample_at_a_cost,
        change_limits,
        wait,
        lease,
        reap,
        recover,
        take,
        consume,
        give_back,
        nothing,
    )
}


def victim(
    folder: str, deed: str, point: str, action: str = "kill", passes: int = 1, hint: int = 1
) -> None:
    """Attaches, arms the stopping point, and does the deed.

    With `deed` "nothing" the point is armed before it attaches. Who was stopped and went on stays
    attached until told to leave.
    """
    if deed == "nothing":
        core.stop_at(point, action, passes)
    member = RawSegment.attached(folder, "victim", hint=hint)
    emit("attached", token=member.token)
    if point and deed != "nothing":
        core.stop_at(point, action, passes)
    DEEDS[deed](member)
    emit("done")
    if action == "stop":
        receive()
        member.close()


# Rounds without end, for kills at random moments: `progress` counts the calls that returned.

# Makes a copy last, so that a random moment often falls into one.
BULK = ("bulk", "|u1", (1 << 18,))


def bulky(uids: np.ndarray) -> dict[str, np.ndarray]:
    """Stamped records with a long field, whose bytes all follow from the uid."""
    bulk = np.empty((len(uids), *BULK[2]), np.uint8)
    bulk[:] = (uids % 251).astype(np.uint8)[:, None]
    return {**stamped(uids), "bulk": bulk}


def write_on(member: RawSegment, progress: np.ndarray) -> None:
    uid = int(progress[1])
    while True:
        records = bulky(np.arange(uid, uid + 3))
        ok(finish(partial(member.extend, records)))
        uid += 3
        progress[1] = uid
        progress[0] += 1


def update_on(member: RawSegment, progress: np.ndarray) -> None:
    while True:
        outcome, batch = member.sample(4)
        if outcome[0] == core.Status.OK:
            patch = changed(batch["uid"], [int(progress[0])] * 4) | {"bulk": batch["bulk"]}
            while (call := member.update(batch.index, batch.generation, patch)[0])[0]:
                assert call[0] == core.Status.AGAIN
        progress[0] += 1


def empty_on(member: RawSegment, progress: np.ndarray) -> None:
    while True:
        ok(finish(lambda: member.extend(bulky(np.arange(1, 3)))))
        ok(finish(lambda: member.empty(reset=bool(progress[0] % 2))))
        progress[0] += 1


def sample_on(member: RawSegment, progress: np.ndarray) -> None:
    while True:
        assert finish(lambda: member.sample(4)[0])[0] in (core.Status.OK, core.Status.EMPTY)
        progress[0] += 1


def attach_on(member: RawSegment, progress: np.ndarray) -> None:
    while True:
        RawSegment.attached(member.folder, "again", hint=2).close()
        ok(finish(member.segment.reap))
        progress[0] += 1


ENDLESS: dict[str, Callable[[RawSegment, np.ndarray], None]] = {
    deed.__name__: deed for deed in (write_on, update_on, empty_on, sample_on, attach_on)
}


def endless(folder: str, deed: str) -> None:
    """Does the deed again and again, counting in the file `progress`."""
    member = RawSegment.attached(folder, "victim", hint=1)
    progress = np.memmap(Path(folder) / "progress", np.int64, "r+")
    emit("attached", token=member.token)
    ENDLESS[deed](member, progress)


def wait_for_record(folder: str, written: int) -> None:
    """Sleeps on the records bell until that many records were written, 100 ms at a time."""
    member = RawSegment.attached(folder, "waiter", hint=3)
    emit("attached", token=member.token)
    while True:
        event = ok(member.segment.bell_enter(Bell.RECORDS, True))[1]
        if member.write_count() >= written:
            break
        emit("waiting")
        ok(member.segment.bell_sleep(Bell.RECORDS, event, core.SLICE_NS))
        ok(member.segment.bell_leave(Bell.RECORDS, True, event))
        ok(finish(member.segment.reap))
    emit("woken")
    receive()


def fork_a_child(folder: str) -> None:
    """Attaches and forks a child that outlives it and holds nothing of its."""
    member = RawSegment.attached(folder, "parent", hint=1)
    token = member.token
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        # Drops what it inherited, as the garbage collector of a long-lived child would.
        del member
        os.write(tell, b".")
        receive()
        os._exit(0)
    os.read(told, 1)
    emit("attached", token=token, child=child)
    os.waitpid(child, 0)


def become_another_program(folder: str) -> None:
    """Attaches and executes another program in its place."""
    member = RawSegment.attached(folder, "runner", hint=1)
    emit("attached", token=member.token)
    receive()
    program = "import os; os.write(1, b'executed\\n'); os.read(0, 1)"
    os.execv(sys.executable, [sys.executable, "-S", "-c", program])
