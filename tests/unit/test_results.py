"""What calls give back: masks that add up, and snapshots that travel."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shmrb.results import BufferStats, ClientInfo, ConditionalUpdateResult, LaneInfo, LimiterInfo


class TestConditionalUpdateResult:
    @pytest.mark.parametrize("mask", [np.array, torch.tensor], ids=["numpy", "torch"])
    def test_every_row_is_in_exactly_one_part(self, mask: Any) -> None:
        result = ConditionalUpdateResult(
            mask([True, False, False, True]), mask([False, True, False, False])
        )
        assert result.stale.tolist() == [False, False, True, False]
        counts = result.updated_count, result.version_rejected_count, result.stale_count
        assert counts == (2, 1, 1)
        assert [type(count) for count in counts] == [int, int, int]

    @pytest.mark.parametrize("mask", [np.array, torch.tensor], ids=["numpy", "torch"])
    def test_without_a_version_nothing_is_rejected(self, mask: Any) -> None:
        result = ConditionalUpdateResult(mask([True, False]))
        assert result.version_rejected is None
        assert result.stale.tolist() == [False, True]
        assert (result.version_rejected_count, result.stale_count, len(result)) == (0, 1, 2)

    def test_no_rows(self) -> None:
        result = ConditionalUpdateResult(np.zeros(0, bool), np.zeros(0, bool))
        assert (len(result), result.updated_count, result.stale_count) == (0, 0, 0)


def client(**changes: Any) -> ClientInfo:
    defaults = {"token": 65537, "name": "learner", "pid": 12, "role": "member", "alive": True}
    return ClientInfo(**(defaults | changes))


def limiter(**changes: Any) -> LimiterInfo:
    defaults = {
        "inserts": 100,
        "samples": 700,
        "size": 90,
        "min_size": 50,
        "samples_per_insert": 8.0,
        "min_diff": 20.0,
        "max_diff": 200.0,
    }
    return LimiterInfo(**(defaults | changes))


class TestLimiterInfo:
    def test_explanations_hold_every_number(self) -> None:
        info = limiter()
        assert (info.deletes, info.difference) == (10, 100.0)
        assert info.explain_sample(90) == (
            "inserts 100 * samples_per_insert 8.0 - samples 700 - 90 = 10.0, "
            "at least min_diff 20.0 is needed"
        )
        assert info.explain_insert(64) == (
            "(inserts 100 + 64) * samples_per_insert 8.0 - samples 700 = 612.0, "
            "at most max_diff 200.0 is allowed"
        )
        assert limiter(size=3).explain_sample(1) == "3 of 50 records are there (min_size)"


class TestBufferStats:
    def test_who_is_there(self) -> None:
        writer = client(name="collector", counters={"write_calls": 3})
        blocked_writer = client(waiting_for="room")
        reader = client(waiting_for="records")
        dead = client(alive=False, waiting_for="records", counters={"write_calls": 1})
        stats = BufferStats(
            name="a/b",
            size=5,
            capacity=10,
            write_count=7,
            initialized=True,
            clients=(writer, blocked_writer, reader, dead),
        )
        assert stats.producers == (writer, blocked_writer)
        assert stats.consumers == (reader,)
        assert stats.blocked == (blocked_writer, reader)
        assert str(writer) == "'collector' (pid 12)"

    def test_torchrl_keys(self) -> None:
        stats = BufferStats(
            name="",
            size=5,
            capacity=10,
            write_count=7,
            initialized=True,
            counters={"stale_rows": 2},
            limiter=limiter(),
        )
        found = stats.as_dict()
        torchrl = {
            "size": 5,
            "write_count": 7,
            "prefetch_queue_size": 0,
            "initialized": True,
            "capacity": 10,
            "utilization": 0.5,
        }
        assert found.items() >= torchrl.items()
        assert found["stale_rows"] == 2
        assert found["limiter"] == limiter()


counts = st.integers(0, 2**63 - 1)
counters = st.dictionaries(st.text(max_size=8), counts, max_size=3)
clients = st.builds(
    ClientInfo,
    token=st.integers(0, 2**31 - 1),
    name=st.text(max_size=20),
    pid=counts,
    role=st.sampled_from(["member", "learner", "observer"]),
    alive=st.booleans(),
    attached_ns=counts,
    waiting_for=st.sampled_from(["nothing", "records", "room"]),
    counters=counters,
)
lanes = st.builds(LaneInfo, lane=counts, head=counts, floor=counts, written=counts, lease=counts)
limits = st.none() | st.builds(
    limiter, inserts=counts, min_diff=st.floats(allow_nan=False, allow_infinity=False)
)
snapshots = st.builds(
    BufferStats,
    name=st.text(max_size=20),
    size=counts,
    capacity=st.integers(1, 2**40),
    write_count=counts,
    initialized=st.booleans(),
    lanes=st.lists(lanes, max_size=3).map(tuple),
    clients=st.lists(clients, max_size=3).map(tuple),
    limiter=limits,
    counters=counters,
)


@settings(deadline=None, max_examples=50)
@given(snapshots)
def test_snapshots_survive_json(stats: BufferStats) -> None:
    assert BufferStats.from_json(json.loads(json.dumps(stats.to_json(), allow_nan=False))) == stats
