"""Rules for what follows from other words: start counts, the priority tree, consumption; floor F3.

All of it can be made anew from what it follows from, so whatever is wrong here can be mended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shmrb.segment.findings import (
    BUSY,
    GENERATION_SHIFT,
    MOST,
    RUN_FIRST,
    VOID,
    Finding,
    Words,
    array,
)
from shmrb.segment.layout import CONSUMPTION_WORDS, START_BLOCK, START_FAN_OUT
from shmrb.segment.member import Member

Array = np.ndarray[Any, Any]

# The core adds in another order; its sums are float64.
_ROUNDING = 1e-12
_MOVING_BIT = 1 << 31
# What changes whenever consumption does.
_NUMBERS = (
    "members",
    "held",
    "first",
    "last",
    "freed_head",
    "freed_tail",
    "arrivals",
    "moving",
    "pending",
)
# What a finding tells of a slot.
_TOLD = ("counts", "holders", "places", "next", "previous")
# What a finding tells of a slot.
_TOLD = ("counts", "holders", "places", "next", "previous")


def starts(member: Member, words: Words) -> Iterator[Finding]:
    """Counts of trajectory starts that are not what the run words, or the counts below, say."""
    if "starts.0" not in member.layout.regions:
        return
    lanes = member.spec.lanes
    is_start = (array(member, "runs", "<u4") & np.uint32(RUN_FIRST)) != 0
    below, fan_out, level = is_start.reshape(lanes, -1).astype("<u4"), START_BLOCK, 0
    while f"starts.{level}" in member.layout.regions:
        found = array(member, f"starts.{level}", "<u4").reshape(lanes, -1).copy()
        expected = np.zeros_like(found)
        sums = _groups(below, fan_out).sum(axis=2, dtype="<u4")
        expected[:, : sums.shape[1]] = sums
        for lane, node in np.argwhere(found != expected)[:MOST]:
            if not _lock_of(member, words, int(lane)):  # whoever has it may be counting
                yield Finding(
                    where=f"starts of lane {lane}, level {level}, count {node}",
                    expected=str(expected[lane, node]),
                    got=str(found[lane, node]),
                )
        below, fan_out, level = found, START_FAN_OUT, level + 1


def tree(member: Member) -> Iterator[Finding]:
    """Nodes of the priority tree that are not what their children say, up to rounding."""
    if member.spec.priorities is None:
        return
    leaves = array(member, "leaves", "<u8")
    masses = (leaves >> np.uint64(32)).astype("<u4").view("<f4")
    below, least = masses.astype("<f8"), masses
    level = 0
    while f"sums.{level}" in member.layout.regions:
        sums = array(member, f"sums.{level}", "<f8").copy()
        minima = array(member, f"minima.{level}", "<f4").copy()
        children = _groups(below[None], 8)[0]
        nodes = len(children)
        total = children.sum(axis=1)
        masses_below = _groups(least[None], 8)[0]
        smallest = np.where(masses_below > 0, masses_below, np.inf).min(axis=1)
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


def consumption(member: Member, words: Words) -> Iterator[Finding]:
    """What the lists of consumption say that the words, holders and counts do not.

    Looked at only while nobody changes it: the lock is free, and no number moves meanwhile.
    """
    if member.spec.consume_after_n_samples is None:
        return
    before = _numbers(words)
    arrays = {
        name: array(member, name, f"<{'u4' if width == 4 else 'i8'}").copy()
        for name, width in CONSUMPTION_WORDS.items()
    }
    whole = _whole(member, words)
    if _lock_of(member, words, 0) or _numbers(words) != before:
        return
    lists = _Lists(member, before, arrays, whole)
    for where, slots in lists.wrong_slots():
        for slot in slots[:MOST]:
            told = ", ".join(f"{name} {arrays[name][slot]}" for name in _TOLD)
            yield Finding(where=f"consumption, slot {slot}", expected=where, got=told)
    for name, expected in lists.numbers().items():
        if before[name] != expected:
            where, got = f"consumption, {name}", str(before[name])
            yield Finding(where=where, expected=str(expected), got=got)


class _Lists:
    """The lists of one moment, and what they must be.

    A record that is not consumed is a member, or has a holder; such records are linked by arrival.
    Slots for writes to fill wait in a queue.
    """

    def __init__(
        self, member: Member, told: dict[str, int], arrays: dict[str, Array], whole: Array
    ) -> None:
        self._told = told
        self._arrays = arrays
        self._capacity = member.spec.capacity
        assert member.spec.consume_after_n_samples is not None
        self._is_held = arrays["holders"] != 0
        self._is_member = arrays["places"] > 0
        self._is_lost = (
            whole
            & (arrays["counts"] < member.spec.consume_after_n_samples)
            & ~self._is_held
            & ~self._is_member
        )
        linked = np.flatnonzero(self._is_held | self._is_member)
        self._linked = linked[np.argsort(arrays["arrivals"][linked], kind="stable")]

    def wrong_slots(self) -> Iterator[tuple[str, Array]]:
        """What is expected of slots, and which of them break it."""
        yield "a record that may be drawn to be a member", np.flatnonzero(self._is_lost)
        yield "one place: a holder's or a member's", np.flatnonzero(self._is_held & self._is_member)
        yield "its place among the members", self._misplaced()
        yield "links to its neighbours by arrival", self._wrongly_linked()
        yield "its place in the queue for writes", self._wrongly_queued()
        is_moving = (self._arrays["costs"] & np.uint32(_MOVING_BIT)) != 0
        yield "no cost that is on its way", np.flatnonzero(is_moving)

    def numbers(self) -> dict[str, int]:
        """What the block must say."""
        first, last = (int(self._linked[end]) + 1 if len(self._linked) else 0 for end in (0, -1))
        costs = self._arrays["costs"][self._is_held] & np.uint32(_MOVING_BIT - 1)
        return {
            "members": int(self._is_member.sum()),
            "held": int(self._is_held.sum()),
            "first": first,
            "last": last,
            "moving": 0,
            "pending": int(costs.sum()),
        }

    def _misplaced(self) -> Array:
        slots = np.flatnonzero(self._is_member)
        places = self._arrays["places"][slots] - 1
        inside = (places < min(self._told["members"], self._capacity)) & (places >= 0)
        back = self._arrays["members"][np.where(inside, places, 0)]
        wrong: Array = slots[~inside | (back != slots)]
        return wrong

    def _wrongly_linked(self) -> Array:
        order = self._linked
        if not len(order):
            return order
        following = np.append(order[1:] + 1, 0)
        preceding = np.append(0, order[:-1] + 1)
        wrong = (self._arrays["next"][order] != following) | (
            self._arrays["previous"][order] != preceding
        )
        found: Array = order[wrong]
        return found

    def _wrongly_queued(self) -> Array:
        head, tail = self._told["freed_head"], self._told["freed_tail"]
        if not 0 <= tail - head <= self._capacity:
            return np.arange(self._capacity)
        tickets = np.arange(head, tail)
        slots = self._arrays["freed"][tickets % self._capacity]
        inside = (slots >= 0) & (slots < self._capacity)
        there = np.where(inside, slots, 0)
        right = inside & (self._arrays["places"][there] == -1 - tickets)
        right &= ~self._is_held[there]
        return np.unique(slots[~right & inside]) if inside.all() else np.arange(self._capacity)


def _whole(member: Member, words: Words) -> Array:
    """Slots whose record is live and whole."""
    word = array(member, "words", "<u8").copy()
    lane_capacity = member.spec.lane_capacity
    live = np.zeros(member.spec.capacity, np.bool_)
    for lane in range(member.spec.lanes):
        head, floor = words.live(member, lane)
        first = lane * lane_capacity
        live[first : first + max(0, min(head - floor, lane_capacity))] = True
    is_written = word >> np.uint64(GENERATION_SHIFT) != 0
    found: Array = live & is_written & (word & np.uint64(BUSY | VOID) == 0)
    return found


def _numbers(words: Words) -> dict[str, int]:
    read = words.read
    return {name: read("ControlBlock", f"consumption.{name}") for name in _NUMBERS}


def _lock_of(member: Member, words: Words, lane: int) -> int:
    """Who has the lock under which a lane changes."""
    if member.spec.needs_control_lock:
        return words.owner("ControlBlock", "control_lock")
    return words.owner("LaneBlock", "lock", words.lane(lane))


def _groups(rows: Array, size: int) -> Array:
    """The children of each node, `size` a node; missing ones count nothing."""
    lanes, count = rows.shape
    padded = np.zeros((lanes, -(-count // size) * size), rows.dtype)
    padded[:, :count] = rows
    return padded.reshape(lanes, -1, size)
