"""Seals find every broken record, the ledger every missing one, and the exit code says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.demos import SCHEMA, demo_records
from shmrb.demo import recipe, summary
from shmrb.demo.history import Evaluation, History, Kill, Point
from shmrb.demo.ledger import Ledger
from shmrb.demo.options import BROKEN, NOT_REACHED, REACHED, Options
from shmrb.demo.refresher import Refreshed
from shmrb.demo.seals import Checker
from shmrb.demo.trial import Outcome


def leaves(records: dict[str, Any]) -> Iterator[np.ndarray]:
    for leaf in records.values():
        yield from leaves(leaf) if isinstance(leaf, dict) else (leaf,)


def from_zero(collector: int, end: int, start: int = 0) -> list[tuple[int, int]]:
    return [(collector, number) for number in range(start, end)]


def test_sealed_records_pass_in_both_formats() -> None:
    records = demo_records(from_zero(1, 50))
    assert Checker(SCHEMA, records).check() == 0
    with shmrb.ReplayBuffer(storage=shmrb.SharedStorage(64), schema=SCHEMA, batch_size=32) as rb:
        rb.extend(records)
        batch = rb.sample()
        checker = Checker(SCHEMA, batch)
        for _ in range(5):
            assert checker.check() == 0
            rb.sample(out=batch)
        assert checker.checked == 5 * 32


def test_every_changed_byte_is_found() -> None:
    records = demo_records(from_zero(2, 3))
    checker = Checker(SCHEMA, records)
    for leaf in leaves(records):
        memory = leaf.reshape(3, -1).view(np.uint8)
        for place in range(memory.shape[1]):
            memory[1, place] ^= 1
            assert checker.check() == 1
            memory[1, place] ^= 1
    assert checker.check() == 0


def test_a_record_made_of_two_is_found() -> None:
    records, others = demo_records(from_zero(0, 40)), demo_records(from_zero(1, 40), seed=9)
    count = len(list(leaves(records)))
    for cut in range(1, count):
        for place, (leaf, other) in enumerate(zip(leaves(records), leaves(others), strict=True)):
            if place < cut:
                leaf[cut] = other[cut]
    assert Checker(SCHEMA, records).check() == count - 1


class TestLedger:
    def test_what_is_there_once_is_neither_lost_nor_doubled(self) -> None:
        ledger = Ledger(SCHEMA, 1_000)
        ledger.note(0, 40)
        ledger.note(1, 20)
        ledger.audit(60, demo_records(from_zero(0, 40) + from_zero(1, 30)), 70)
        ledger.note(0, 90)
        # The oldest are overwritten, and were met by the audit before.
        ledger.audit(110, demo_records(from_zero(0, 90, 35) + from_zero(1, 30, 10)), 110)
        assert (ledger.lost, ledger.doubled, ledger.torn, ledger.missed) == (0, 0, 0, 0)
        assert ledger.audited == 110
        assert ledger.written == 110
        assert ledger.check_count(110, killed=0) == ""

    def test_a_gap_is_lost(self) -> None:
        ledger = Ledger(SCHEMA, 1_000)
        ledger.note(0, 40)
        ledger.audit(40, demo_records(from_zero(0, 10) + from_zero(0, 40, 13)), 40)
        assert ledger.lost == 3
        # Once is enough.
        ledger.audit(40, demo_records(from_zero(0, 10) + from_zero(0, 40, 13)), 40)
        assert ledger.lost == 3

    def test_a_record_in_two_slots_is_doubled(self) -> None:
        ledger = Ledger(SCHEMA, 1_000)
        ledger.note(0, 40)
        ledger.audit(40, demo_records([*from_zero(0, 40), (0, 7)]), 41)
        assert (ledger.lost, ledger.doubled) == (0, 1)

    def test_a_broken_seal_is_torn(self) -> None:
        ledger = Ledger(SCHEMA, 1_000)
        records = demo_records(from_zero(0, 40))
        records["observation"][5, 0] += 1
        ledger.note(0, 40)
        ledger.audit(40, records, 40)
        assert ledger.torn == 1

    def test_what_may_have_been_overwritten_is_missed(self) -> None:
        ledger = Ledger(SCHEMA, 1_000)
        ledger.note(0, 2_000)
        assert ledger.is_due(2_000)
        ledger.audit(2_000, demo_records(from_zero(0, 2_000, 1_000)), 2_000)
        assert (ledger.lost, ledger.missed) == (0, 1_000)
        assert not ledger.is_due(2_000)

    def test_the_buffer_must_count_what_was_reported(self) -> None:
        ledger = Ledger(SCHEMA, 1_000)
        ledger.note(0, 128)
        assert ledger.check_count(128 + recipe.CHUNK, killed=1) == ""
        assert "expected 128 to 192" in ledger.check_count(127, killed=1)
        assert "counts 129" in ledger.check_count(129, killed=0)


class TestSummary:
    OUTCOME = Outcome(
        reached=True, seconds=61.5, records=56_128, checked=10, torn=0, stale=3, problem=""
    )

    def test_exit_codes(self) -> None:
        clean = Ledger(SCHEMA, 1_000)
        lossy, doubling = Ledger(SCHEMA, 1_000), Ledger(SCHEMA, 1_000)
        lossy.lost = doubling.doubled = 1
        late = replace(self.OUTCOME, reached=False)
        full, quick = Options(), Options(quick=True)
        cases = [
            (self.OUTCOME, clean, 2, full, REACHED),
            (late, clean, 2, full, NOT_REACHED),
            (late, clean, 1, quick, REACHED),
            (late, clean, 0, quick, BROKEN),
            (replace(late, checked=0), clean, 1, quick, BROKEN),
            (replace(self.OUTCOME, torn=1), clean, 2, full, BROKEN),
            (replace(self.OUTCOME, problem="too few"), clean, 2, full, BROKEN),
            (self.OUTCOME, lossy, 2, full, BROKEN),
            (self.OUTCOME, doubling, 2, full, BROKEN),
        ]
        for outcome, ledger, kills, options, code in cases:
            assert summary.exit_code(outcome, ledger, kills, options) == code

    def test_it_names_what_happened_between_the_kills(self) -> None:
        history = History(
            points=[_point(1.0, 0, 0, None), _point(3.0, 2_000, 500, 4.0)],
            evaluations=[Evaluation(60.0, 900, 500.0)],
            kills=[Kill("collector 0", 18.0, 20_032, 1.5, 800), Kill("daemon", 40.0, 40_000)],
        )
        text = "\n".join(summary.lines(self.OUTCOME, Ledger(SCHEMA, 1_000), history, 475.0))
        assert "target 475 reached: return 500.0 after 61.5 s and 56,128 records" in text
        assert "records 20,032 before the kills, 19,968 between them, 16,128 after them" in text
        assert "its successor was at work 1.50 s later, meanwhile 800 records" in text
        assert "killed daemon at 40.0 s and 40,000 records; its successor was not at work" in text
        assert "policy lag 4.0 versions on average" in text
        assert "missed" not in text
        assert "stale 3: drawn records that were overwritten" in text

    def test_it_tells_what_became_of_memories(self) -> None:
        outcome = replace(self.OUTCOME, refreshed=Refreshed(1_000, 20, 3))
        lines = summary.lines(outcome, Ledger(SCHEMA, 1_000), History(), 195.0)
        assert lines[-1].startswith("refreshed 1,000 recorded memories; stale 20: ")
        assert "rejected 3: " in lines[-1]

    def test_it_tells_of_refused_priority_updates(self) -> None:
        history = History(is_prioritized=True)
        lines = summary.lines(self.OUTCOME, Ledger(SCHEMA, 1_000), history, 475.0)
        assert lines[-1].startswith("stale 3: priority updates that were refused")


def test_rates_are_those_of_the_window() -> None:
    history = History(points=[_point(float(t), 10 * t * t, t, 0.0) for t in range(6)])
    assert history.rates(1.0) == (90.0, 1.0)
    assert history.rates(100.0) == (50.0, 1.0)
    assert History().rates(5.0) == (0.0, 0.0)


@pytest.mark.parametrize(("second", "is_over"), [(18.5, False), (19.5, True)])
def test_a_kill_is_over_when_the_successor_works(second: float, is_over: bool) -> None:
    assert Kill("daemon", 18.0, 40_000, 1.5).is_over_at(second) == is_over
    assert not Kill("daemon", 18.0, 40_000).is_over_at(second)


def _point(second: float, records: int, batches: int, lag: float | None) -> Point:
    return Point(second, records, batches, lag, 0, 0, 5, None)
