"""One priority tree for many processes: draws while others rewrite, many writers, deaths."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.child import emit, receive
from helpers.draws import allows, numbered
from helpers.procs import Children

# The only thread beside pytest's is the watchdog of faulthandler, which touches no lock of ours.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

NAME = "shared"
RAW = [1.0, 4.0, 9.0, 16.0]
SHARES = [0.1, 0.2, 0.3, 0.4]
# What beta 1 makes of masses 1, 2, 3, 4.
WEIGHTS = [1, 1 / 2, 1 / 3, 1 / 4]


def prioritized(capacity: int, **options: Any) -> Any:
    exponents = {"alpha": 0.5, "beta": 1.0, "eps": 0.0} | options
    return shmrb.ReplayBuffer(
        NAME,
        storage=shmrb.SharedStorage(capacity),
        schema={"x": "int64"},
        sampler=shmrb.PrioritizedSampler(**exponents),
        format="numpy",
    )


def attached(**options: Any) -> Any:
    return shmrb.attach(NAME, format="numpy", **options)


def is_sound(buffer: Any) -> bool:
    """The tree is what its leaves say, and no slot without a record has mass."""
    segment = buffer._attachment.member.segment
    while (outcome := segment.wrong_nodes())[0] == 1:
        pass
    info = buffer.statistics().priorities
    raw = buffer.sampler.priorities_of(np.arange(buffer.storage.max_size))
    masses = (raw[~np.isnan(raw)].astype(np.float64) + info.eps) ** info.alpha
    return outcome[:2] == (0, 0) and np.isclose(info.total_mass, masses.sum(), rtol=1e-6)


# What the processes do


def draw(draws: int) -> None:
    rb = attached()
    counts = np.zeros(4, np.int64)
    wrong = 0
    for _ in range(draws // 500):
        batch = rb.sample(500)
        counts += np.bincount(batch["index"], minlength=4)
        wrong += int(
            (~np.isclose(batch["priority_weight"], np.take(WEIGHTS, batch["index"]))).sum()
        )
    emit("drawn", counts=counts.tolist(), wrong=wrong)


def rewrite() -> None:
    rb = attached()
    emit("ready")
    calls = 0
    while rb.stats()["records_sampled"] < 1 or any(c.has_sampled for c in others(rb)):
        rb.update_priority([0, 1, 2, 3], RAW)
        rb.update_priority([calls % 4], RAW[calls % 4])
        calls += 1
    emit("rewritten", calls=calls)


def others(buffer: Any) -> Iterator[Any]:
    return (client for client in buffer.statistics().clients if client.alive)


def write(writer: int, count: int) -> None:
    rb = attached(sampler=shmrb.RandomSampler())
    for start in range(0, count, 50):
        rb.extend(numbered(writer * count + start, writer * count + start + 50))
    emit("written")
    receive()
    emit("seen", size=len(rb), mass=rb.statistics().priorities.total_mass)


def set_one_slot(value: float, calls: int) -> None:
    rb = attached()
    emit("ready")
    receive()
    for _ in range(calls):
        rb.update_priority([5, 5, 5], [100.0, 200.0, value])
    emit("done")


def overwrite_and_update(first: int) -> None:
    rb = attached()
    batch = {
        key: np.array(value)
        for key, value in zip(("index", "index_generation"), _told(), strict=True)
    }
    rb.extend(numbered(first, first + 2))
    emit("written")
    receive()
    result = rb.update_priority(batch, 50.0)
    patched = rb.update_if_present(batch, patch={"x": np.full(len(batch["index"]), -first)})
    emit("updated", priority=result.updated.tolist(), patch=patched.updated.tolist())


def _told() -> list[Any]:
    return [[int(part) for part in receive().split()] for _ in range(2)]


def turn(deed: str, point: str) -> None:
    """Attaches, arms the stopping point, and does the deed."""
    from shmrb import core

    rb = attached()
    batch = rb.sample(8)
    core.stop_at(point, "kill", 1)
    if deed == "write":
        rb.extend(numbered(100, 105), priority=[3, 5, 7, 9, 11])
    elif deed == "priority":
        rb.update_priority(batch, np.arange(2.0, 10.0))
    elif deed == "alpha":
        rb.sampler.alpha = 2.0
    elif deed == "empty":
        rb.empty()
    else:
        rb.update_if_present(batch, patch={"x": -batch["x"]}, version=1)


# The tests


@pytest.mark.parametrize(
    "draws", [20_000, pytest.param(2_000_000, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_four_draw_while_a_fifth_rewrites_the_same_values(children: Children, draws: int) -> None:
    rb = prioritized(4)
    rb.extend(numbered(0, 2), priority=RAW[:2])
    rb.extend(numbered(2, 4), priority=RAW[2:])
    fifth = children.start(rewrite)
    fifth.expect("ready")
    found = [children.start(draw, draws=draws, name=f"draw {n}") for n in range(4)]
    for child in found:
        said = child.expect("drawn")
        assert said["wrong"] == 0
        for count, share in zip(said["counts"], SHARES, strict=True):
            assert allows(count, sum(said["counts"]), share)
        child.succeed()
    assert fifth.expect("rewritten")["calls"] > 10
    assert is_sound(rb)
    rb.close()


def test_what_four_writers_brought_is_everybodys(children: Children) -> None:
    rb = prioritized(16_384)
    writers = [children.start(write, writer=n, count=2_500, name=f"writer {n}") for n in range(4)]
    for writer in writers:
        writer.expect("written")
    for writer in writers:
        writer.send()
        assert writer.expect("seen") == {"size": 10_000, "mass": 10_000.0}
    assert sorted(rb["x"].tolist()) == list(range(10_000))
    assert len(rb) == 10_000
    assert set(rb.sample(1000)["priority_weight"].tolist()) == {1.0}
    assert is_sound(rb)
    rb.close()


def test_two_set_the_same_record_at_once(children: Children) -> None:
    rb = prioritized(8, alpha=1.0)
    rb.extend(numbered(0, 4))
    rb.extend(numbered(4, 8))
    both = [children.start(set_one_slot, value=value, calls=1_000) for value in (3.0, 8.0)]
    for child in both:
        child.expect("ready")
    for child in both:
        child.send()
    for child in both:
        child.expect("done")
    assert rb.sampler.priorities_of(5)[0] in (3.0, 8.0)
    assert is_sound(rb)
    rb.close()


def test_batches_in_flight_reach_only_what_is_still_there(children: Children) -> None:
    rb = prioritized(4, alpha=1.0)
    index = np.concatenate([rb.extend(numbered(0, 2)), rb.extend(numbered(2, 4))])
    stamps = rb.generations_of(index)
    first, second = (
        children.start(overwrite_and_update, first=first, name=f"from {first}")
        for first in (10, 20)
    )
    results = []
    for child, live in ((first, [False, False, True, True]), (second, [False] * 4)):
        for numbers in (index, stamps):
            child.send(" ".join(map(str, numbers.tolist())))
        child.expect("written")
        child.send()
        said = child.expect("updated")
        assert said["priority"] == said["patch"] == live
        results.append(sum(live))
    assert rb["x"].tolist() == [10, 11, 20, 21]
    assert (rb.sampler.priorities_of(range(4)) == [1, 1, 50, 50]).all()
    stats = rb.stats()
    assert stats["rows_updated"] == 2 * sum(results)
    assert stats["stale_rows"] == 2 * (8 - sum(results))
    rb.close()


POINTS = {
    "write": ["mid_mark", "mid_leaves", "mid_tree", "reserved", "head_moved", "before_commit"],
    "priority": ["holding_lock", "mid_leaves", "mid_tree"],
    "alpha": ["holding_lock", "mid_tree"],
    "empty": ["empty_journalled", "empty_mid_apply", "mid_tree"],
    "patch": ["update_claimed", "update_marked", "update_mid_payload", "update_before_commit"],
}


@pytest.mark.parametrize(
    ("deed", "point"), [(deed, point) for deed, points in POINTS.items() for point in points]
)
def test_a_death_leaves_a_tree_that_equals_its_leaves(
    children: Children, deed: str, point: str
) -> None:
    rb = prioritized(12, alpha=1.0, eps=0.5)
    for start in range(0, 12, 4):
        rb.extend(numbered(start, start + 4), priority=np.arange(start, start + 4))
    victim = children.start(turn, method="fork", deed=deed, point=point)
    assert victim.wait() == -signal.SIGKILL, victim.report()
    started = time.monotonic()
    if deed == "empty":
        rb.extend(numbered(50, 52))
    batch = rb.sample(64)
    assert time.monotonic() - started < 2
    if deed in ("priority", "alpha"):
        assert (batch["x"] == batch["index"]).all()
    # Whoever looks at every record frees what the dead one left.
    rb.extend(numbered(200, 206))
    rb.extend(numbered(206, 212))
    assert len(rb) == 12
    assert is_sound(rb)
    assert sorted(rb["x"].tolist()) == list(range(200, 212))
    drawn = set(np.concatenate([rb.sample(256)["index"] for _ in range(4)]).tolist())
    assert drawn == set(range(12))
    rb.close()


def test_a_record_that_died_in_place_is_never_drawn_again(children: Children) -> None:
    rb = prioritized(12, alpha=1.0, eps=0.5)
    for start in range(0, 12, 4):
        rb.extend(numbered(start, start + 4))
    victim = children.start(turn, method="fork", deed="patch", point="update_marked")
    assert victim.wait() == -signal.SIGKILL
    drawn = set(np.concatenate([rb.sample(256)["index"] for _ in range(8)]).tolist())
    assert len(drawn) == len(rb) == 11
    (gone,) = set(range(12)) - drawn
    assert np.isnan(rb.sampler.priorities_of(gone)[0])
    assert is_sound(rb)
    assert rb.stats()["voided_records"] == 1
    rb.close()
