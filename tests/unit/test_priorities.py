"""Prioritised sampling through the handle: draws, weights, and what records enter with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.draws import allows, assert_drawn_by_mass, counts, numbered, prioritized
from shmrb.core import SLICE_NS
from shmrb.segment import snapshot

New = Callable[..., Any]


def total(buffer: Any) -> float:
    info = buffer.statistics().priorities
    assert info is not None
    return float(info.total_mass)


def sound(buffer: Any) -> bool:
    """Every node of the tree is what its children say."""
    status, wrong, *_ = buffer._attachment.member.segment.wrong_nodes()
    return bool(status == 0 and wrong == 0)


class TestDraws:
    def test_in_proportion_to_the_masses(self, new: New) -> None:
        rb = prioritized(new, 4, alpha=0.5)
        rb.extend(numbered(0, 4), priority=[1, 4, 9, 16])
        assert_drawn_by_mass(rb, [1, 2, 3, 4], 100_000)

    def test_a_mass_of_zero_is_never_drawn(self, new: New) -> None:
        rb = prioritized(new, 8)
        rb.extend(numbered(0, 4), priority=[0, 1, 0, 1])
        assert_drawn_by_mass(rb, [0, 1, 0, 1], 100_000)

    def test_three_slots(self, new: New) -> None:
        rb = prioritized(new, 3)
        rb.extend(numbered(0, 3), priority=[1, 2, 4])
        assert_drawn_by_mass(rb, [1, 2, 4], 70_000)

    @pytest.mark.parametrize("capacity", [1, 2, 3, 5, 6, 7, 1000])
    def test_every_slot_of_any_capacity_is_within_reach(self, new: New, capacity: int) -> None:
        rb = prioritized(new, capacity)
        rb.add({"x": 0}, priority=0)
        for u in range(1, capacity):
            rb.add({"x": u}, priority=0)
        slots = np.arange(capacity)
        for slot in range(capacity):
            raw = np.zeros(capacity)
            raw[slot] = 0.125
            rb.update_priority(slots, raw)
            assert (rb.sample(100)["index"] == slot).all()
        rb.update_priority(slots, 1.0)
        assert_drawn_by_mass(rb, [1.0] * capacity, 200 * capacity)

    def test_the_newest_record_is_drawn(self, new: New) -> None:
        rb = prioritized(new, 8)
        rb.add({"x": 0}, priority=1)
        assert (rb.sample(100)["index"] == 0).all()
        rb.add({"x": 1}, priority=9)
        assert_drawn_by_mass(rb, [1, 9], 10_000)

    def test_alpha_zero_draws_all_alike(self, new: New) -> None:
        rb = prioritized(new, 2, alpha=0.0)
        rb.extend(numbered(0, 2), priority=[1, 1000])
        assert_drawn_by_mass(rb, [1, 1], 10_000)
        assert (rb.sample(100)["priority_weight"] == 1).all()
        # 0 to the power of 0 is 1: a priority of zero makes no difference either.
        rb.update_priority([0, 1], [0, 1])
        assert_drawn_by_mass(rb, [1, 1], 10_000)

    def test_lanes_share_one_tree(self, new: New) -> None:
        rb = prioritized(new, 8, name="shared", storage=shmrb.SharedStorage(8, lanes=2))
        rb.extend(numbered(0, 3), priority=[1, 2, 3])
        assert total(rb) == 6
        other = shmrb.attach("shared", format="numpy")
        slots = other.extend(numbered(3, 5), priority=[4, 5])
        masses = [0.0] * 8
        for slot, mass in zip(range(3), (1, 2, 3), strict=True):
            masses[(0 if slots[0] >= 4 else 4) + slot] = mass
        for slot, mass in zip(slots.tolist(), (4, 5), strict=True):
            masses[slot] = mass
        assert_drawn_by_mass(rb, masses, 20_000)
        other.close()

    def test_independent_of_each_other_and_in_no_order(self, new: New) -> None:
        rb = prioritized(new, 1000)
        rb.extend(numbered(0, 400))
        rb.extend(numbered(400, 800))
        batch = rb.sample(1000)
        steps = np.diff(batch["index"])
        assert allows(int((steps > 0).sum()), 999, 0.5)
        assert (batch["x"] == batch["index"]).all()

    def test_seed_repeats_them(self, new: New) -> None:
        drawn = []
        for _ in range(2):
            rb = prioritized(new, 100, seed=3)
            rb.extend(numbered(0, 50), priority=np.arange(50))
            drawn.append([rb.sample(20)["index"].tolist() for _ in range(3)])
        assert drawn[0] == drawn[1]


class TestNothingToDraw:
    def test_an_empty_buffer(self, new: New) -> None:
        # At once: it would wait an hour else.
        rb = prioritized(new, 8, default_timeout=3600)
        with pytest.raises(shmrb.EmptyBufferError, match="Cannot sample from an empty storage"):
            rb.sample(4)
        rb.extend(numbered(0, 4))
        rb.empty()
        with pytest.raises(shmrb.EmptyBufferError, match="Cannot sample from an empty storage"):
            rb.sample(4)

    def test_priorities_that_are_all_zero(self, new: New) -> None:
        rb = prioritized(new, 8)
        rb.extend(numbered(0, 4))
        rb.update_priority(range(4), 0.0)
        assert total(rb) == 0
        # There is nothing to wait for: records are there.
        with pytest.raises(shmrb.EmptyBufferError, match=r"all priorities .* are zero"):
            rb.sample(4, timeout=30)
        rb.update_priority([2], 1.0)
        assert (rb.sample(10)["index"] == 2).all()


class TestWeights:
    @pytest.mark.parametrize(
        ("beta", "expected"),
        [
            (1.0, [1, 0.5, 1 / 3, 0.25]),
            (0.5, [1, 0.707107, 0.577350, 0.5]),
            (0.0, [1, 1, 1, 1]),
        ],
    )
    def test_relative_to_the_least_mass_of_the_buffer(
        self, new: New, beta: float, expected: list[float]
    ) -> None:
        rb = prioritized(new, 4, alpha=0.5, beta=beta)
        rb.extend(numbered(0, 4), priority=[1, 4, 9, 16])
        batch = rb.sample(200)
        assert batch["priority_weight"].dtype == np.float32
        np.testing.assert_allclose(
            batch["priority_weight"], np.array(expected)[batch["index"]], atol=1e-6
        )

    def test_of_a_batch_without_the_least_record(self, new: New) -> None:
        rb = prioritized(new, 4, alpha=0.5)
        rb.extend(numbered(0, 4), priority=[1e-3, 4, 9, 16])
        batch = rb.sample(1, return_info=True)[1]
        while batch["index"][0] != 3:
            batch = rb.sample(1, return_info=True)[1]
        assert batch["priority_weight"][0] == pytest.approx(math.sqrt(1e-3) / 4, rel=1e-6)

    def test_a_record_without_mass_is_not_the_least(self, new: New) -> None:
        rb = prioritized(new, 4)
        rb.extend(numbered(0, 3), priority=[0, 2, 4])
        batch = rb.sample(50)
        np.testing.assert_array_equal(
            batch["priority_weight"], np.where(batch["index"] == 1, 1, 0.5)
        )

    def test_are_never_above_one(self, new: New) -> None:
        rb = prioritized(new, 3, alpha=0.7, beta=0.6, eps=1e-8)
        rb.extend(numbered(0, 3))
        random = np.random.default_rng(13)
        least_drawn = 0
        out = rb.sample(8)
        for sigma in (0.1, 1, 6):
            for raw in random.lognormal(sigma=sigma, size=(3_334, 3)):
                rb.update_priority([0, 1, 2], raw)
                batch = rb.sample(8, out=out)
                weights = batch["priority_weight"]
                assert ((weights > 0) & (weights <= 1)).all()
                least = batch["index"] == raw.argmin()
                assert (weights[least] == 1).all(), "exactly"
                least_drawn += int(least.any())
        assert least_drawn > 5_000
        rb.update_priority([0, 1, 2], 0.3)
        assert (rb.sample(64)["priority_weight"] == 1).all()

    def test_in_memory_that_is_used_again(self, new: New) -> None:
        rb = prioritized(new, 4)
        rb.extend(numbered(0, 2), priority=[1, 3])
        batch = rb.sample(6)
        weights = batch["priority_weight"]
        again = rb.sample(6, out=batch)
        assert again is batch
        assert again["priority_weight"] is weights
        np.testing.assert_allclose(weights, np.where(again["index"] == 0, 1, 1 / 3))
        del batch["priority_weight"]
        with pytest.raises(shmrb.RecordError, match="priority_weight"):
            rb.sample(6, out=batch)


class TestWhatRecordsEnterWith:
    def test_the_greatest_priority_so_far_and_one_at_first(self, new: New) -> None:
        rb = prioritized(new, 4)
        rb.extend(numbered(0, 2))
        assert rb.sampler.priorities_of([0, 1, 2]).tolist()[:2] == [1, 1]
        rb.update_priority([0], 0.25)
        rb.add({"x": 2})
        assert rb.sampler.priorities_of(2)[0] == 1
        rb.update_priority([1], 5)
        rb.add({"x": 3})
        assert rb.sampler.priorities_of([0, 1, 2, 3]).tolist() == [0.25, 5, 1, 5]
        rb.empty()
        rb.add({"x": 4})
        assert rb.sampler.priorities_of(0)[0] == 1

    def test_the_exponent_counts_once(self, new: New) -> None:
        rb = prioritized(new, 8, alpha=0.5)
        rb.add({"x": 0})
        rb.update_priority([0], 16)
        rb.add({"x": 1})
        assert_drawn_by_mass(rb, [4, 4], 10_000)

    @pytest.mark.parametrize("within", [False, True])
    def test_an_outlier_that_is_gone(self, new: New, within: bool) -> None:
        rb = prioritized(new, 4, name="shared", within_buffer=within)
        rb.extend(numbered(0, 2))
        rb.extend(numbered(2, 4))
        rb.update_priority(range(4), [1e6, 0.01, 0.01, 0.01])
        for u in range(4, 8):
            slot = rb.add({"x": u})
            rb.update_priority([slot], 0.01)
        slot = rb.add({"x": 8})
        other = shmrb.attach("shared", format="numpy")
        expected = np.float32(0.01) if within else np.float32(1e6)
        assert rb.sampler.priorities_of(slot)[0] == expected
        assert other.sampler.priorities_of(slot)[0] == expected
        assert other.sampler.default_priority == pytest.approx(float(expected))
        other.close()

    def test_within_the_buffer_what_is_replaced_counts_no_more(self, new: New) -> None:
        rb = prioritized(new, 4, within_buffer=True)
        rb.extend(numbered(0, 2), priority=[8, 2])
        rb.extend(numbered(2, 4), priority=[3, 1])
        rb.add({"x": 4})
        assert rb.sampler.priorities_of(range(4)).tolist() == [3, 2, 3, 1]
        rb.update_priority([0, 2], [1, 1])
        assert rb.sampler.default_priority == 2

    def test_what_their_writer_gives(self, new: New) -> None:
        rb = prioritized(new, 8)
        rb.extend(numbered(0, 3), priority=np.array([3, 1, 2]))
        rb.add({"x": 3}, priority=7)
        rb.extend(numbered(4, 6), priority=0.5)
        assert rb.sampler.priorities_of(range(6)).tolist() == [3, 1, 2, 7, 0.5, 0.5]
        assert rb.sampler.default_priority == 7

    def test_a_call_longer_than_half_the_ring(self, new: New) -> None:
        rb = prioritized(new, 8)
        with pytest.warns(UserWarning, match="more records in one call"):
            rb.extend(numbered(0, 12), priority=np.arange(12))
        assert rb.sampler.priorities_of(range(8)).tolist() == [8, 9, 10, 11, 4, 5, 6, 7]
        assert total(rb) == 60
        assert sound(rb)

    def test_of_writers_that_know_nothing_of_priorities(self, new: New) -> None:
        rb = prioritized(new, 16, name="shared")
        writer = shmrb.attach("shared", sampler=shmrb.RandomSampler(), format="numpy")
        writer.extend(numbered(0, 4))
        assert len(rb) == 4
        assert total(rb) == 4
        assert set(rb.sample(100)["index"].tolist()) == {0, 1, 2, 3}
        assert "priority_weight" not in writer.sample(3)
        writer.close()

    def test_overwriting_and_emptying_take_the_mass_along(self, new: New) -> None:
        rb = prioritized(new, 4)
        rb.extend(numbered(0, 2), priority=[5, 6])
        rb.extend(numbered(2, 4), priority=[7, 8])
        rb.extend(numbered(4, 6), priority=[1, 2])
        assert total(rb) == 1 + 2 + 7 + 8
        assert sound(rb)
        rb.empty()
        assert total(rb) == 0
        assert np.isnan(rb.sampler.priorities_of(range(4))).all()


class TestPriorityKey:
    def test_is_taken_out_unless_it_is_a_field(self, new: New) -> None:
        rb = prioritized(new, 8)
        data = {**numbered(0, 2), "td_error": np.array([3.0, 4.0])}
        rb.extend(data)
        assert set(data) == {"x", "td_error"}
        rb.add({"x": 2, "td_error": 5})
        assert rb.sampler.priorities_of(range(3)).tolist() == [3, 4, 5]
        assert set(rb[:]) == {"x"}

    def test_is_stored_if_it_is_a_field(self, new: New) -> None:
        sampler = shmrb.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
        rb = new(schema={"x": "int64", "td_error": ("float32", (2,))}, sampler=sampler)
        errors = np.array([[1, 3], [5, 2]], np.float32)
        rb.extend({**numbered(0, 2), "td_error": errors})
        assert rb.sampler.priorities_of(range(2)).tolist() == [3, 5]
        np.testing.assert_array_equal(rb["td_error"], errors)
        rb.extend({**numbered(2, 4), "td_error": errors}, update_priority=False)
        assert rb.sampler.priorities_of(range(4)).tolist() == [3, 5, 5, 5]
        rb.extend({**numbered(4, 6), "td_error": errors}, priority=1)
        assert rb.sampler.priorities_of([4, 5]).tolist() == [1, 1]

    def test_first_write_makes_it_a_field(self, new: New) -> None:
        rb = new(sampler=shmrb.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0))
        rb.extend({"x": np.arange(2), "td_error": np.array([2.0, 3.0])})
        assert rb.schema.paths == (("x",), ("td_error",))
        assert rb.sampler.priorities_of(range(2)).tolist() == [2, 3]

    def test_of_another_name_and_below_others(self, new: New) -> None:
        rb = prioritized(new, 8, priority_key=("loss", "error"))
        rb.extend({"x": np.arange(2), ("loss", "error"): [2, 3]})
        with pytest.raises(shmrb.RecordError, match="loss"):
            rb.extend({"x": np.arange(2), "loss": {"error": [4, 5], "other": [0, 0]}})
        rb.extend([{"x": 2, ("loss", "error"): 6}, {"x": 3, ("loss", "error"): 7}])
        assert rb.sampler.priorities_of(range(4)).tolist() == [2, 3, 6, 7]

    def test_means_nothing_to_a_buffer_without_priorities(self, new: New) -> None:
        rb = new(schema={"x": "int64"})
        with pytest.raises(shmrb.RecordError, match="unknown 'td_error'"):
            rb.extend({**numbered(0, 2), "td_error": np.ones(2)})
        with pytest.raises(shmrb.SpecError, match="keeps no priorities"):
            rb.extend(numbered(0, 2), priority=1)
        assert rb.write_count == 0


class TestExponents:
    def test_belong_to_the_buffer(self, new: New) -> None:
        rb = prioritized(new, 4, name="shared", alpha=1.0, beta=0.4)
        rb.extend(numbered(0, 2), priority=[1, 4])
        other = shmrb.attach("shared", format="numpy")
        other.sampler.alpha = 0.5
        assert (rb.sampler.alpha, rb.sampler.beta) == (0.5, 0.4)
        assert total(rb) == 3
        rb.sampler.beta = 1.0
        assert (other.sampler.alpha, other.sampler.beta) == (0.5, 1.0)
        assert set(other.sample(50)["priority_weight"].tolist()) == {1.0, 0.5}
        other.sampler.alpha = 0.0
        assert total(rb) == 2
        rb.sampler.alpha = 2.0
        assert total(other) == 17
        assert sound(rb)
        other.close()

    def test_that_cannot_be_are_refused(self, new: New) -> None:
        rb = prioritized(new, 4, alpha=1.0)
        rb.extend(numbered(0, 2), priority=[1e30, 1])
        for value in (-0.1, math.nan, math.inf, 2.0):
            with pytest.raises(shmrb.SpecError, match="alpha"):
                rb.sampler.alpha = value
        with pytest.raises(shmrb.SpecError, match="beta"):
            rb.sampler.beta = -1
        assert rb.sampler.alpha == 1
        assert total(rb) == float(np.float32(1e30)) + 1

    def test_of_a_buffer_without_priorities(self, new: New) -> None:
        rb = new(schema={"x": "int64"})
        assert not hasattr(rb.sampler, "alpha")
        with pytest.raises(shmrb.SpecError, match="PrioritizedSampler"):
            rb.sampler.beta = 1.0

    def test_of_a_declared_buffer_are_those_described(self, new: New) -> None:
        rb = new(sampler=shmrb.PrioritizedSampler(alpha=0.6, beta=0.4))
        assert (rb.sampler.alpha, rb.sampler.beta) == (0.6, 0.4)
        with pytest.raises(shmrb.EmptyBufferError, match="no record yet"):
            rb.sampler.beta = 1.0


class TestSums:
    def test_are_exact_after_many_updates(self, new: New) -> None:
        _update_many(new, 50_000)

    @pytest.mark.long
    @pytest.mark.watchdog(600)
    def test_are_exact_after_two_million_updates(self, new: New) -> None:
        _update_many(new, 2_000_000)

    def test_zero_leaves_zero(self, new: New) -> None:
        rb = prioritized(new, 1000, alpha=0.6, eps=1e-8)
        random = np.random.default_rng(2)
        for start in range(0, 1000, 500):
            rb.extend(numbered(start, start + 500), priority=random.exponential(size=500))
        rb.sampler.alpha = 1.0
        assert total(rb) > 0
        rb2 = prioritized(new, 1000)
        for start in range(0, 1000, 500):
            rb2.extend(numbered(start, start + 500), priority=random.lognormal(0, 9, 500))
        rb2.update_priority(range(1000), 0.0)
        assert total(rb2) == 0
        assert snapshot.priorities(rb2._attachment.member.segment).least_mass == 0


def _update_many(new: New, updates: int) -> None:
    """One record after the other, from a million to a millionth and back."""
    capacity = 1024
    rb = prioritized(new, capacity)
    for start in (0, 512):
        rb.extend(numbered(start, start + 512))
    random = np.random.default_rng(8)
    slots = random.integers(0, capacity, updates)
    values = np.where(np.arange(updates) % 2, 1e6, 1e-6).astype(np.float32)
    stored = np.ones(capacity, np.float32)
    slowest = 0.0
    segment, verdict = rb._attachment.member.segment, np.zeros(1, np.uint8)
    index, raw, out = (array.ctypes.data for array in (slots, values, verdict))
    for i in range(updates):
        begun = time.thread_time()
        while segment.update_priority(index + 8 * i, 1, 0, raw + 4 * i, out, SLICE_NS)[0]:
            pass
        slowest = max(slowest, time.thread_time() - begun)
    for slot, value in zip(slots, values, strict=True):
        stored[slot] = value
    exact = sum(map(Fraction, stored.tolist()))
    assert abs(Fraction(total(rb)) - exact) <= exact / 10**9
    last = np.full(capacity, 1e-6, np.float32)
    last[7] = 0
    rb.update_priority(np.arange(capacity), last)
    exact = sum(map(Fraction, last.tolist()))
    assert abs(Fraction(total(rb)) - exact) <= exact / 10**9
    assert counts(rb, 100_000)[7] == 0
    assert slowest < 0.05


@pytest.mark.long
@pytest.mark.watchdog(900)
def test_thirty_million_slots_are_drawn_evenly(new: New) -> None:
    capacity = 1 << 25
    rb = new(
        capacity=capacity,
        schema={"x": "uint8"},
        sampler=shmrb.PrioritizedSampler(alpha=0.6, beta=0.4),
        seed=17,
    )
    for _ in range(2):
        rb.extend({"x": np.zeros(capacity // 2, np.uint8)})
    for sampler in (shmrb.RandomSampler(), shmrb.PrioritizedSampler(alpha=0.6, beta=0.4)):
        rb.set_sampler(sampler)
        index = np.concatenate([rb.sample(1000)["index"] for _ in range(100)])
        assert index.max() < capacity
        for share in ((index % 2).mean(), (index >= capacity // 2).mean()):
            assert 0.492 <= share <= 0.508
    rb.sampler.alpha = 1.0
    places = [0, 1 << 24, (1 << 24) + 1, capacity - 1]
    for slot in places:
        rb.update_priority([slot], 1e30)
        assert (rb.sample(100)["index"] == slot).all()
        rb.update_priority([slot], 1.0)
    # As much as all others together, twice as much, and so on.
    rb.update_priority(places, capacity * np.arange(1.0, 5.0))
    found = counts(rb, 100_000)
    for number, slot in enumerate(places):
        assert allows(int(found[slot]), 100_000, (number + 1) / 11)
