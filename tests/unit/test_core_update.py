"""Changes in place: which handles are live, which versions win, and what is left alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.rawsegment import RawSegment, changed, ok, stamped, torn
from helpers.reference import STALE, UPDATED, VERSION_REJECTED, Reference
from shmrb.core import Status

CAPACITY = 5
REVISION_STEP = 1 << 2


@pytest.fixture
def ring(root: Path) -> Iterator[RawSegment]:
    RawSegment.create(root / "ring", CAPACITY)
    member = RawSegment.attached(root / "ring")
    yield member
    assert not member.owners.any()
    member.close()


def write(ring: RawSegment, uids: list[int], **options: object) -> None:
    for uid in uids:
        ok(ring.extend(stamped([uid]), **options))  # type: ignore[arg-type]


@given(
    written=st.integers(0, 12),
    emptied=st.booleans(),
    versions=st.lists(st.integers(-2, 4), min_size=12, max_size=12),
    calls=st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.integers(-2, CAPACITY + 1), st.integers(-2, 4), st.integers(-3, 4)),
                max_size=9,
            ),
            st.sampled_from(["plain", "set", "newer", "newer_or_equal"]),
        ),
        max_size=4,
    ),
)
@settings(max_examples=300, deadline=None)
def test_verdicts_and_contents_are_the_models(
    written: int,
    emptied: bool,
    versions: list[int],
    calls: list[tuple[list[tuple[int, int, int]], str]],
) -> None:
    with tempfile.TemporaryDirectory(prefix="shmrb-update-", dir="/dev/shm") as folder:
        RawSegment.create(folder, CAPACITY)
        ring = RawSegment.attached(folder)
        model = Reference(CAPACITY)
        for uid in range(written):
            ok(ring.extend(stamped([uid]), versions=np.array([versions[uid]], np.int64)))
            model.extend("a", [uid], versions=[versions[uid]])
        if emptied:
            ok(ring.empty())
            model.empty()
            ok(ring.extend(stamped([99])))
            model.extend("a", [99])
        uids = {slot: int(uid) for slot, uid in enumerate(ring.columns["uid"])}
        for number, (handles, kind) in enumerate(calls):
            index = [slot for slot, _, _ in handles]
            generation = None if kind == "set" else [stamp for _, stamp, _ in handles]
            dates = [version for _, _, version in handles] if kind.startswith("newer") else None
            marks = [100 * (number + 1) + i for i in range(len(handles))]
            outcome, verdicts = ring.update(
                index,
                generation,
                changed([uids.get(slot, 0) for slot in index], marks),
                versions=dates,
                require_newer=kind == "newer",
            )
            expected = model.update(
                index, generation, marks, versions=dates, require_newer=kind == "newer"
            )
            assert verdicts.tolist() == expected
            assert ok(outcome)[1] == expected.count(UPDATED)
        _, batch = ring.read()
        live = [slot for slot, record in enumerate(model.records()) if record is not None]
        assert not torn({name: column[live] for name, column in batch.columns.items()})
        for slot in live:
            record = model.record(slot)
            assert record is not None
            got = (batch["mark"][slot], batch.version[slot], batch.generation[slot])
            assert got == (record.mark, record.version, record.generation)
        assert ring.size() == model.size()
        assert ring.write_count() == model.write_count()
        assert ring.generations().tolist() == model.generations()
        ring.close()


def test_an_unset_stamp_names_no_record(ring: RawSegment) -> None:
    write(ring, [1, 2, 3])
    before = {name: column.copy() for name, column in ring.columns.items()}
    for stamp in (-1, 0, -2, 2**63 - 1, -(2**63)):
        _, verdicts = ring.update([4], [stamp], {"mark": np.array([99])})
        assert verdicts.tolist() == [STALE]
    assert ring.size() == 3
    for name, column in ring.columns.items():
        assert (column == before[name]).all()


def test_handles_of_overwritten_records_are_stale(root: Path) -> None:
    RawSegment.create(root / "four", 4)
    ring = RawSegment.attached(root / "four")
    handles = []
    for uid in range(10):
        ok(ring.extend(stamped([uid])))
        slot = uid % 4
        handles.append((slot, int(ring.generations([slot])[0])))
    assert len(set(handles)) == 10
    slots, stamps = zip(*handles, strict=True)
    outcome, verdicts = ring.update(slots, stamps, {"mark": np.arange(10)})
    assert verdicts.tolist() == [STALE] * 6 + [UPDATED] * 4
    assert ok(outcome)[1] == 4


def test_handles_from_before_an_empty_are_stale(ring: RawSegment) -> None:
    write(ring, [0, 1, 2, 3, 4])
    handles = ring.generations()
    ok(ring.empty())
    slots = list(range(CAPACITY))
    assert ring.update(slots, handles, {"mark": handles})[1].tolist() == [STALE] * CAPACITY
    # What `generations` says of an emptied slot names no record either.
    now = ring.generations()
    assert ring.update(slots, now, {"mark": handles})[1].tolist() == [STALE] * CAPACITY
    write(ring, [5, 6, 7, 8])
    for stamps in (handles, now):
        assert ring.update(slots, stamps, {"mark": handles})[1].tolist() == [STALE] * CAPACITY
    assert not ring.columns["mark"][:4].any()


def test_of_several_handles_of_one_record_the_highest_version_wins(ring: RawSegment) -> None:
    write(ring, [7])
    marks = {"mark": np.array([1, 2, 3, 4])}
    versions = [3, 9, 9, 4]
    _, verdicts = ring.update([0] * 4, [0, 0, 0, 5], marks, versions=versions)
    assert verdicts.tolist() == [VERSION_REJECTED, VERSION_REJECTED, UPDATED, STALE]
    assert (ring.columns["mark"][0], ring.versions[0]) == (3, 9)
    again = ring.update([0], [0], {"mark": np.array([8])}, versions=[9], require_newer=True)
    assert again[1].tolist() == [VERSION_REJECTED]
    again = ring.update([0], [0], {"mark": np.array([8])}, versions=[9])
    assert again[1].tolist() == [UPDATED]


def test_a_change_moves_the_revision_and_nothing_else(ring: RawSegment) -> None:
    write(ring, [1, 2])
    words = ring.words.copy()
    ok(ring.update([1], [0], {"mark": np.array([4])})[0])
    assert ring.words[0] == words[0]
    assert ring.words[1] == words[1] + REVISION_STEP
    assert ring.generations().tolist() == [0, 0, -1, -1, -1]
    ok(ring.update([1], [3], {"mark": np.array([5])})[0])
    assert ring.words[1] == words[1] + REVISION_STEP


def test_revisions_wrap_past_the_value_of_a_first_write(ring: RawSegment) -> None:
    write(ring, [1])
    first = int(ring.words[0])
    ring.words[0] = first + REVISION_STEP * (2**18 - 1)
    ok(ring.update([0], [0], {"mark": np.array([4])})[0])
    assert ring.words[0] == first + REVISION_STEP
    assert ring.generations([0]).tolist() == [0]


def test_a_version_alone_can_be_changed(ring: RawSegment) -> None:
    write(ring, [1, 2])
    outcome, verdicts = ring.update([0, 1], [0, 0], {}, versions=[5, -7])
    assert ok(outcome)[1] == 1
    assert verdicts.tolist() == [UPDATED, VERSION_REJECTED]
    assert ring.versions[:2].tolist() == [5, -1]


def test_unknown_columns_are_refused_before_anything_changes(ring: RawSegment) -> None:
    write(ring, [1])
    index = np.zeros(1, np.int64)
    verdicts = np.full(1, 9, np.uint8)
    where = [array.ctypes.data for array in (index, verdicts)]
    call = ring.segment.update(where[0], 1, 0, [0, 99], [where[0], where[0]], 0, False, where[1], 0)
    assert call[0] == Status.CORRUPT
    assert ring.columns["uid"][0] == 1


def test_counters_tell_what_became_of_the_handles(ring: RawSegment) -> None:
    write(ring, [1, 2, 3])
    ring.update([0, 1, 4], [0, 5, 0], {"mark": np.array([1, 2, 3])})
    ring.update([0, 1], [0, 0], {"mark": np.array([1, 2])}, versions=[4, -9])
    ring.update([2], None, {"mark": np.array([1])})
    counters = ring.segment.counters()
    assert counters["rows_updated"] == 2
    assert counters["stale_rows"] == 2
    assert counters["versions_rejected"] == 1
