"""Does a buffer keep its own rules? A look at every shared word while others work; floor F3.

Several words cannot be read at one moment, so what looks broken counts only if a second and a third
look find exactly the same. FORMAT.md says what the rules are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from shmrb import core
from shmrb.core import SLICE_NS, Bell
from shmrb.description import Description
from shmrb.segment import names
from shmrb.segment.member import Member

# Looks at what seems broken, and the pause between two: longer than any commit that is not stopped.
LOOKS = 3
PAUSE_S = 0.02
# Findings of one kind: enough to see what is wrong.
MOST = 20
# Slots that are copied at a time.
_CHUNK = 1 << 20

_BUSY, _VOID, _GENERATION_SHIFT = 1, 2, 20
_WAITERS = 0x8000_0000
# The core adds in another order; its sums are float64.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Description):
    """A rule that is broken.

    Attributes:
        where: region and number.
        expected, got: the rule, and what is there.
        mends: whether `repair` puts it right.
    """

    kind: ClassVar[str] = "Finding"

    where: str
    expected: str
    got: str
    mends: bool = True

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, got {self.got}"


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
    """Recover what the dead left, count anew, rebuild the tree if it is wrong; the slots freed.

    REQUIRES: the member may write.
    """
    segment = member.segment
    _, freed, _, _, wake = segment.recover()
    for bell, posts in ((Bell.RECORDS, wake & 0xFFFF_FFFF), (Bell.ROOM, wake >> 32)):
        if posts:
            member.bell(bell).post(posts)
    if any(_tree(member)):
        exponents = segment.priorities()
        # Only another alpha makes the core rebuild the sums from the raw priorities.
        other = float(np.nextafter(exponents["alpha"], np.inf))
        for alpha in (other, exponents["alpha"]):
            segment.set_exponents(alpha, exponents["beta"], SLICE_NS)
    segment.size()
    return int(freed)


def _look(member: Member) -> Iterator[Finding]:
    words = _Words(member)
    yield from _clients(member)
    yield from _locks(member, words)
    for lane in range(member.spec.lanes):
        yield from _lane(member, words, lane)
    yield from _tree(member)


class _Words:
    """Fields of the control file as they are at this moment."""

    def __init__(self, member: Member) -> None:
        self._mapping = member.mapping(names.CONTROL)
        self._abi = core.abi()
        self._regions = member.layout.regions

    def read(self, block: str, path: str, at: int) -> int:
        """A number; `path` leads from the block through those it holds, "control_lock.word"."""
        kinds = {"lock": "LockBlock", "journal": "JournalBlock"}
        *outer, name = path.split(".")
        offset = at
        for part in outer:
            offset += self._abi[block]["fields"][part][0]
            block = kinds[part.rpartition("_")[2]]
        start, size = self._abi[block]["fields"][name]
        return int(self._mapping.view(f"<i{size}", offset + start, size)[0])

    def lane(self, number: int) -> int:
        """Where a lane's block lies."""
        return int(self._regions["lanes"].offset + number * self._abi["LaneBlock"]["size"])


def _clients(member: Member) -> Iterator[Finding]:
    for row in member.segment.clients():
        if not row["alive"]:
            name = row["name"].decode("utf-8", "replace")
            yield Finding(
                where=f"client slot {row['slot']}",
                expected="a living client, or a slot that is free",
                got=f"{name!r} (pid {row['pid']}), dead and not recovered",
            )


def _locks(member: Member, words: _Words) -> Iterator[Finding]:
    places = [("control lock", "ControlBlock", "control_lock", "journal", 0)]
    places.append(("empty lock", "ControlBlock", "empty_lock", "", 0))
    for lane in range(member.spec.lanes):
        places.append((f"lock of lane {lane}", "LaneBlock", "lock", "journal", words.lane(lane)))
    for where, block, lock, journal, at in places:
        # What it guards first: a lock that is free now was free then, or the next look tells.
        dirty = words.read(block, f"{lock}.dirty", at)
        entries = words.read(block, f"{journal}.count", at) if journal else 0
        token = words.read(block, f"{lock}.word", at) & ~_WAITERS
        if token and not member.segment.alive(token):
            yield Finding(where=where, expected="a living owner", got=f"dead client {token:#x}")
        elif not token and (dirty or entries):
            yield Finding(
                where=where,
                expected="nothing half done while it is free",
                got=f"dirty = {dirty}, {entries} entries of its journal",
                mends=False,
            )


def _lane(member: Member, words: _Words, lane: int) -> Iterator[Finding]:
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
    owners, words = _array(member, "owners", "<u4"), _array(member, "words", "<u8")
    chosen = slice(first, first + count)
    # An owner stands before its word is busy, and goes after: so busy words between two looks at
    # their owners have one.
    before, word, after = owners[chosen].copy(), words[chosen].copy(), owners[chosen].copy()
    base = core.abi()["ControlBlock"]["fields"]["generation_base"]
    lowest = int(member.mapping(names.CONTROL).view("<u8", *base)[0])
    generation = word >> np.uint64(_GENERATION_SHIFT)
    is_busy, is_void = word & np.uint64(_BUSY) != 0, word & np.uint64(_VOID) != 0
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


def _tree(member: Member) -> Iterator[Finding]:
    """Nodes of the priority tree that are not what their children say, up to rounding."""
    if member.spec.priorities is None:
        return
    leaves = _array(member, "leaves", "<u8")
    masses = (leaves >> np.uint64(32)).astype("<u4").view("<f4")
    below, least = masses.astype("<f8"), masses
    level = 0
    while f"sums.{level}" in member.layout.regions:
        sums = _array(member, f"sums.{level}", "<f8").copy()
        minima = _array(member, f"minima.{level}", "<f4").copy()
        children = _by_eight(below)
        nodes = len(children)
        total = children.sum(axis=1)
        smallest = np.where(_by_eight(least) > 0, _by_eight(least), np.inf).min(axis=1)
        smallest[np.isinf(smallest)] = 0
        wrong = ~np.isclose(sums[:nodes], total, rtol=_ROUNDING, atol=0) | (
            minima[:nodes] != smallest
        )
        for node in np.flatnonzero(wrong)[:MOST]:
            yield Finding(
                where=f"priority tree, level {level}, node {node}",
                expected=f"sum {total[node]!r} and minimum {smallest[node]!r} of its children",
                got=f"{sums[node]!r} and {minima[node]!r}",
            )
        below, least = sums[:nodes], minima[:nodes]
        level += 1


def _by_eight(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The children of each node, a row a node; missing ones have no mass."""
    rows = np.zeros((-(-len(values) // 8), 8), values.dtype)
    rows.ravel()[: len(values)] = values
    return rows


def _array(member: Member, region: str, dtype: str) -> np.ndarray[Any, Any]:
    place = member.layout.regions[region]
    return member.mapping(place.file).view(dtype, place.offset, place.bytes)
