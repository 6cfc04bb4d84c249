"""Counters are 64-bit: nothing happens at 2^31 or 2^32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shmrb
from shmrb import core

New = Callable[..., shmrb.ReplayBuffer]
CAPACITY = 8


def lane_words(rb: shmrb.ReplayBuffer, name: str) -> Any:
    """An 8-byte field of the first lane, as it lies in shared memory."""
    member = rb._attachment.member
    offset, size = core.abi()["LaneBlock"]["fields"][name]
    assert size == 8
    begin = member.layout.regions["lanes"].offset + offset
    return member.mapping("ctl").view("i8", begin, 8)


def slot_words(rb: shmrb.ReplayBuffer) -> Any:
    return rb._attachment.member.mapping("slots").view("u8", 0, 8 * CAPACITY)


def set_generation(rb: shmrb.ReplayBuffer, slot: int, public: int) -> None:
    words = slot_words(rb)
    words[slot] = ((public + 1) << 20) | (int(words[slot]) & 0xFFFFF)


@pytest.mark.parametrize("border", [1 << 31, 1 << 32])
@pytest.mark.parametrize("limited", [False, True])
def test_totals_and_stamps_pass_the_border(new: New, border: int, limited: bool) -> None:
    """Head, totals and one slot's generation stand two before the border."""
    limiter = shmrb.MinSize(1) if limited else None
    rb = new(capacity=CAPACITY, schema={"uid": "int64"}, limiter=limiter)
    rb.extend({"uid": np.arange(CAPACITY)})
    lane_words(rb, "head")[0] = border - 2
    following = (border - 2) % CAPACITY
    set_generation(rb, following, border - 3)

    index = rb.extend({"uid": border - 2 + np.arange(4)})
    index = np.append(index, rb.add({"uid": border + 2}))

    assert index.tolist() == [(following + i) % CAPACITY for i in range(5)]
    assert rb["uid"][index].tolist() == (border - 2 + np.arange(5)).tolist()
    assert (len(rb), rb.write_count) == (CAPACITY, border + 3)
    assert rb.generations_of(index).tolist() == [border - 2, 1, 1, 1, 1]
    for _ in range(3):
        rb.extend({"uid": np.arange(CAPACITY)})
    assert rb.generations_of(following) == border + 1
    batch = rb.sample(64)
    assert batch["index_generation"].min() >= 0
    assert set(batch["index"].tolist()) <= set(range(CAPACITY))
    stats = rb.statistics()
    assert stats.lanes[0].head == stats.write_count == border + 3 + 3 * CAPACITY
    assert all(number >= 0 for number in stats.counters.values())
    if limited:
        assert stats.limiter is not None
        assert stats.limiter.inserts == stats.write_count
        assert stats.limiter.deletes == stats.write_count - CAPACITY


@pytest.mark.parametrize("border", [1 << 31, 1 << 32])
def test_emptying_past_the_border(new: New, border: int) -> None:
    rb = new(capacity=CAPACITY, schema={"uid": "int64"})
    rb.extend({"uid": np.arange(CAPACITY)})
    lane_words(rb, "head")[0] = border - 2
    rb.empty(empty_write_count=False)
    assert (len(rb), rb.write_count) == (0, border - 2)
    assert rb.extend({"uid": np.arange(3)}).tolist() == [0, 1, 2]
    assert (len(rb), rb.write_count) == (3, border + 1)
    rb.empty()
    assert rb.write_count == 0


def test_in_place_changes_go_on_when_the_revision_is_full(new: New) -> None:
    """A revision has 18 bits and passes over 0, which says that a record is freshly written."""
    rb = new(capacity=CAPACITY, schema={"uid": "int64"})
    rb.extend({"uid": np.arange(3)})
    words = slot_words(rb)
    words[1] |= np.uint64(((1 << 18) - 2) << 2)
    for value in range(5):
        rb.set_at_("uid", value, 1)
        assert rb[1]["uid"] == value
        assert (int(words[1]) >> 2) & ((1 << 18) - 1) != 0
    assert rb.generations_of(1) == 0
