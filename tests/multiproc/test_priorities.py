"""One priority tree for many processes: draws while others rewrite, many writers, deaths."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.child import emit, receive
from helpers.draws import allows, numbered
from helpers.procs import Child, Children

# The only thread beside pytest's is the watchdog of faulthandler, which touches no lock of ours.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

NAME = "shared"
RAW = [1.0, 4.0, 9.0, 16.0]
SHARES = [0.1, 0.2, 0.3, 0.4]
# What beta 1 makes of masses 1, 2, 3, 4.
WEIGHTS = [1, 1 / 2, 1 / 3, 1 / 4]
# Others, whose masses are 10, 5, 30, 20.
OTHER_RAW = [100.0, 25.0, 900.0, 400.0]
OTHER_WEIGHTS = [1 / 2, 1, 1 / 6, 1 / 4]
UPDATES = Path(__file__).parents[1] / "oracle" / "updates.json"


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
    info = buffer.statistics().priorities
    raw = buffer.sampler.priorities_of(np.arange(buffer.storage.max_size))
    masses = (raw[~np.isnan(raw)].astype(np.float64) + info.eps) ** info.alpha
    return sums_are_right(buffer) and np.isclose(info.total_mass, masses.sum(), rtol=1e-6)


def sums_are_right(buffer: Any) -> bool:
    """Every node is the sum and the minimum of its children, seen while nobody changes them."""
    segment = buffer._attachment.member.segment
    while (outcome := segment.wrong_nodes())[0] == 1:
        pass
    return bool(outcome[:2] == (0, 0))


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


def rewrite(to: list[list[float]]) -> None:
    rb = attached()
    emit("ready")
    calls = 0
    while rb.stats()["records_sampled"] < 1 or any(c.has_sampled for c in others(rb)):
        raw = to[calls % len(to)]
        rb.update_priority([0, 1, 2, 3], raw)
        rb.update_priority([calls % 4], raw[calls % 4])
        calls += 1
    emit("rewritten", calls=calls)


def draw_of_two_kinds(draws: int) -> None:
    """Each weight must be that of one of the two sets, and never of a mixture."""
    rb = attached()
    kinds = [0, 0, 0]
    for _ in range(draws // 500):
        batch = rb.sample(500)
        index, weight = batch["index"], batch["priority_weight"]
        first, second = (
            np.isclose(weight, np.take(those, index)) for those in (WEIGHTS, OTHER_WEIGHTS)
        )
        for kind, those in enumerate((first, second, ~(first | second))):
            kinds[kind] += int(those.sum())
    emit("drawn", kinds=kinds)


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


def write_what_is_told() -> None:
    rb = attached()
    emit("ready")
    while numbers := receive():
        rb.extend({"x": np.array(json.loads(numbers))})
        emit("written")


def hand_in_late(index: list[int], generation: list[int]) -> None:
    """Has a batch in flight, and gives it as priorities and as patches what it is told."""
    rb = attached()
    emit("ready")
    while numbers := receive():
        values = np.array(json.loads(numbers))
        raised = rb.update_priority(index, values, generation)
        patched = rb.update_if_present(index=index, generation=generation, patch={"x": values})
        emit("updated", priority=raised.updated.tolist(), patch=patched.updated.tolist())


def tell_defaults() -> None:
    rb = attached()
    slot = int(rb.add({"x": 9}))
    emit("entered", slot=slot, raw=rb.sampler.priorities_of(slot).tolist())
    receive()
    emit("seen", raw=rb.sampler.priorities_of(range(4)).tolist(), next=rb.sampler.default_priority)


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
    fifth = children.start(rewrite, to=[RAW])
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


def test_weights_are_those_of_the_moment_of_the_draw(children: Children) -> None:
    rb = prioritized(4)
    rb.extend(numbered(0, 2), priority=RAW[:2])
    rb.extend(numbered(2, 4), priority=RAW[2:])
    # Each set is written at once, and then one of its values again: there is no third state.
    writer = children.start(rewrite, to=[RAW, OTHER_RAW])
    writer.expect("ready")
    drawing = [children.start(draw_of_two_kinds, draws=20_000, name=f"{n}") for n in range(2)]
    kinds = np.sum([child.expect("drawn")["kinds"] for child in drawing], axis=0)
    for child in drawing:
        child.succeed()
    assert writer.expect("rewritten")["calls"] > 10
    assert kinds[0] > 0
    assert kinds[1] > 0
    assert kinds[2] == 0
    rb.close()


@pytest.mark.parametrize("within", [False, True])
def test_what_new_records_enter_with_is_the_same_for_all(children: Children, within: bool) -> None:
    """An outlier that is gone still counts, unless only what is in the buffer shall."""
    rb = prioritized(4, max_priority_within_buffer=within)
    rb.extend(numbered(0, 2), priority=[1e6, 0.25])
    rb.extend(numbered(2, 4), priority=0.25)
    rb.add({"x": 4}, priority=0.5)  # takes the outlier's place
    others = [children.start(tell_defaults, name=f"other {n}") for n in range(2)]
    expected = 0.5 if within else 1e6
    raw = [0.5, 0.25, 0.25, 0.25]
    for child in others:
        entered = child.expect("entered")
        assert entered["raw"] == [expected]
        raw[entered["slot"]] = expected
    for child in others:
        child.send("look")
        assert child.expect("seen") == {"raw": raw, "next": expected}
    assert rb.sampler.priorities_of(range(4)).tolist() == raw
    assert rb.sampler.default_priority == expected
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
    # All the while the sums are those of the leaves.
    while True:
        assert sums_are_right(rb)
        if all(child.exit_code is not None for child in both):
            break
    for child in both:
        child.expect("done")
    assert rb.sampler.priorities_of(5)[0] in (3.0, 8.0)
    assert is_sound(rb)
    rb.close()


def test_batches_in_flight_reach_only_what_is_still_there(children: Children) -> None:
    """TorchRL's recorded script, whose writes and updates come from three processes."""
    (case,) = (
        case
        for case in json.loads(UPDATES.read_text())["cases"]
        if case["name"] == "two batches in flight"
    )
    rb = prioritized(8, alpha=1.0)
    with pytest.warns(UserWarning, match="more records in one call"):
        rb.extend(numbered(0, 12))
    writer = children.start(write_what_is_told)
    writer.expect("ready")
    batches: dict[tuple[int, ...], Child] = {}
    raw = [1.0] * 8
    reached = 0
    for step in case["steps"]:
        told = step["arguments"]
        if step["call"] == "update_if_present" and tuple(told["index"]) not in batches:
            handles = {key: told[key] for key in ("index", "generation")}
            child = children.start(hand_in_late, name=f"batch {len(batches)}", **handles)
            child.expect("ready")
            batches[tuple(told["index"])] = child
    for step in case["steps"]:
        told = step["arguments"]
        if step["call"] == "extend":
            greatest = rb.sampler.default_priority
            writer.send(json.dumps(told["numbers"]))
            writer.expect("written")
            for slot in step["returned"]["values"]:
                raw[slot] = greatest
        else:
            child = batches[tuple(told["index"])]
            child.send(json.dumps(told["patch"]["x"]))
            masks = child.expect("updated")
            updated = step["returned"]["updated"]
            assert masks == {"priority": updated, "patch": updated}
            for slot, value, live in zip(told["index"], told["patch"]["x"], updated, strict=True):
                raw[slot] = value if live else raw[slot]
            reached += sum(updated)
        assert rb["x"].tolist() == step["x"]
        assert rb.generations_of(range(8)).tolist() == step["generations"]
        assert rb.sampler.priorities_of(range(8)).tolist() == raw
    assert len(batches) == 2
    stats = rb.stats()
    assert stats["rows_updated"] == 2 * reached
    assert stats["stale_rows"] == 2 * (12 - reached)
    assert is_sound(rb)
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
    if deed == "empty":
        rb.extend(numbered(50, 52))
    batch = rb.sample(64)
    if deed in ("priority", "alpha"):
        assert (batch["x"] == batch["index"]).all()
    assert sums_are_right(rb)
    # Who counts the records recovers the dead, and what holds none has no mass from then on.
    live = len(rb)
    assert is_sound(rb)
    assert live == np.count_nonzero(~np.isnan(rb.sampler.priorities_of(range(12))))
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
