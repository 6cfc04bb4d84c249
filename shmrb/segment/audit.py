"""Does a buffer keep its own rules? A look at every shared word while others work; floor F3.

Several words cannot be read at one moment, so what looks broken counts only if a second and a third
look find exactly the same. FORMAT.md says what the rules are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from shmrb import core
from shmrb.core import SLICE_NS, Bell, Status
from shmrb.errors import LockTimeoutError
from shmrb.segment import derived, names, snapshot
from shmrb.segment.findings import BUSY, GENERATION_SHIFT, MOST, VOID, Finding, Words, array
from shmrb.segment.member import Member

# Looks at what seems broken, and the pause between two: longer than any commit that is not stopped.
LOOKS = 3
PAUSE_S = 0.02
# How long a repair waits for whoever has a lock.
WAIT_S = 10.0
# Slots that are copied at a time.
_CHUNK = 1 << 20


def audit(member: Member) -> list[Finding]:
    """The rules of a buffer that are broken, none if all is well. Any role may ask."""
    found = list(_look(member))
    for _ in range(LOOKS - 1):
        if not found:
            break
        time.sleep(PAUSE_S)
        again = set(_look(member))
        found = [finding for finding in found if finding in again]
    return found


def repair(member: Member) -> int:
    """Recover what the dead left, and make anew what follows from other words; the slots freed.

    REQUIRES: the member may write.

    Raises:
        LockTimeoutError: a stopped client has a lock, with its name.
    """
    segment = member.segment
    _, freed, _, _, wake = segment.recover()
    for bell, posts in ((Bell.RECORDS, wake & 0xFFFF_FFFF), (Bell.ROOM, wake >> 32)):
        if posts:
            member.bell(bell).post(posts)
    deadline = time.monotonic() + WAIT_S
    while (outcome := segment.rebuild(SLICE_NS))[0] == Status.AGAIN:
        if time.monotonic() > deadline:
            owner = snapshot.client(segment, outcome[3])
            raise LockTimeoutError(
                f"Waited {WAIT_S:g} s for a lock of {member.name}, held by {owner}. Continue that "
                "process, or end it."
            )
    segment.size()
    return int(freed)


def _look(member: Member) -> Iterator[Finding]:
    words = Words(member)
    yield from _clients(member)
    yield from _locks(member, words)
    for lane in range(member.spec.lanes):
        yield from _lane(member, words, lane)
    yield from derived.starts(member, words)
    yield from derived.tree(member)
    yield from derived.consumption(member, words)


def _clients(member: Member) -> Iterator[Finding]:
    for row in member.segment.clients():
        if not row["alive"]:
            name = row["name"].decode("utf-8", "replace")
            yield Finding(
                where=f"client slot {row['slot']}",
                expected="a living client, or a slot that is free",
                got=f"{name!r} (pid {row['pid']}), dead and not recovered",
            )


def _locks(member: Member, words: Words) -> Iterator[Finding]:
    places = [("control lock", "ControlBlock", "control_lock", "journal", 0)]
    places.append(("empty lock", "ControlBlock", "empty_lock", "", 0))
    for lane in range(member.spec.lanes):
        places.append((f"lock of lane {lane}", "LaneBlock", "lock", "journal", words.lane(lane)))
    for where, block, lock, journal, at in places:
        # What it guards first: a lock that is free now was free then, or the next look tells.
        dirty = words.read(block, f"{lock}.dirty", at)
        entries = words.read(block, f"{journal}.count", at) if journal else 0
        token = words.owner(block, lock, at)
        if token and not member.segment.alive(token):
            yield Finding(where=where, expected="a living owner", got=f"dead client {token:#x}")
        elif not token and (dirty or entries):
            yield Finding(
                where=where,
                expected="nothing half done while it is free",
                got=f"dirty = {dirty}, {entries} entries of its journal",
                mends=bool(journal) and entries == 0,
            )


def _lane(member: Member, words: Words, lane: int) -> Iterator[Finding]:
    at, capacity = words.lane(lane), member.spec.lane_capacity
    where = f"lane {lane}"
    lease = words.read("LaneBlock", "lease", at)
    if lease and not member.segment.alive(lease):
        yield Finding(where=where, expected="a living leaseholder", got=f"dead client {lease:#x}")
    head = words.read("LaneBlock", "head", at)
    floor = words.read("LaneBlock", "floor", at)
    if not 0 <= floor <= head or floor % capacity:
        yield Finding(
            where=where,
            expected=f"0 <= floor <= head, floor a multiple of {capacity}",
            got=f"floor {floor}, head {head}",
            mends=False,
        )
        return
    live = min(head - floor, capacity)
    voids = 0
    for start in range(0, capacity, _CHUNK):
        count = min(_CHUNK, capacity - start)
        found, holes = _slots(member, lane * capacity + start, count, live - start)
        yield from found
        voids += holes
    holes = words.read("LaneBlock", "holes", at)
    is_quiet = not words.read("LaneBlock", "holes_stale", at) and not any(
        row["in_flight"] or row.get("changing", 0) for row in member.segment.clients()
    )
    is_same = (head, floor) == tuple(
        words.read("LaneBlock", name, at) for name in ("head", "floor")
    )
    if holes != voids and is_quiet and is_same:
        yield Finding(
            where=where, expected=f"{voids} holes, as many as there are void slots", got=str(holes)
        )


def _slots(member: Member, first: int, count: int, live: int) -> tuple[list[Finding], int]:
    """What is wrong with some slots, and how many of the first `live` are void."""
    owners, words = array(member, "owners", "<u4"), array(member, "words", "<u8")
    chosen = slice(first, first + count)
    # An owner stands before its word is busy, and goes after: so busy words between two looks at
    # their owners have one.
    before, word, after = owners[chosen].copy(), words[chosen].copy(), owners[chosen].copy()
    base = core.abi()["ControlBlock"]["fields"]["generation_base"]
    lowest = int(member.mapping(names.CONTROL).view("<u8", *base)[0])
    generation = word >> np.uint64(GENERATION_SHIFT)
    is_busy, is_void = word & np.uint64(BUSY) != 0, word & np.uint64(VOID) != 0
    is_live = np.arange(count) < live
    unowned = is_busy & (before == 0) & (after == 0)
    foreign = (generation > 0) & (generation < lowest)
    absent = is_live & (generation == 0) & ~is_busy & ~is_void & (before == 0)
    found = []
    for wrong, expected in (
        (unowned, "an owner of a busy slot"),
        (foreign, f"no generation below {lowest}"),
        (absent, "a record under a live ticket"),
    ):
        for slot in np.flatnonzero(wrong)[:MOST]:
            got = f"word {int(word[slot]):#x}, owner {int(after[slot]):#x}"
            found.append(
                Finding(where=f"slot {first + slot}", expected=expected, got=got, mends=False)
            )
    for token in np.unique(after[after != 0])[:MOST]:
        if not member.segment.alive(int(token)):
            slots = np.flatnonzero(after == token)
            found.append(
                Finding(
                    where=f"slot {first + int(slots[0])}",
                    expected="a living owner",
                    got=f"dead client {int(token):#x}, which has {len(slots)} slots",
                )
            )
    return found, int((is_void & is_live).sum())
