"""Which records of a lane belong together: run numbers, and the bits for first and last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.rawsegment import RawSegment, ok, stamped
from shmrb.core import WriteFlag

FIRST, LAST = 1 << 31, 1 << 30


@pytest.fixture
def ring(root: Path) -> RawSegment:
    RawSegment.create(root / "ring", 12)
    return RawSegment.attached(root / "ring", "one")


def runs(ring: RawSegment, count: int) -> str:
    """One letter a slot: its run's letter, large where it starts one, followed by `.` at an end."""
    text = ""
    for run in ring.runs[:count]:
        letter = "abcdefghij"[int(run) & (LAST - 1)]
        text += letter.upper() if run & FIRST else letter
        text += "." if run & LAST else ""
    return text


def test_a_writer_goes_on_with_its_run(ring: RawSegment) -> None:
    ok(ring.extend(stamped([1, 2])))
    ok(ring.extend(stamped([3])))
    assert runs(ring, 3) == "Aaa"


def test_an_end_closes_the_run_it_is_in(ring: RawSegment) -> None:
    ok(ring.extend(stamped([1, 2, 3], done=[1])))
    ok(ring.extend(stamped([4], done=[0])))
    ok(ring.extend(stamped([5])))
    assert runs(ring, 5) == "Aa.Bb.C"


def test_another_writer_between_makes_three_runs(ring: RawSegment) -> None:
    other = RawSegment.attached(ring.folder, "two")
    ok(ring.extend(stamped([1, 2])))
    ok(other.extend(stamped([3])))
    ok(ring.extend(stamped([4])))
    ok(other.extend(stamped([5])))
    # A number is left out where the writer changes.
    assert runs(ring, 5) == "AaCEG"


def test_a_told_end_closes_the_run(ring: RawSegment) -> None:
    ok(ring.extend(stamped([1, 2]), flags=int(WriteFlag.END_TRAJECTORY)))
    ok(ring.extend(stamped([3])))
    ok(ring.segment.end_trajectory(0, 10**7))
    # Nothing is open any more, or it is somebody else's: nothing happens.
    ok(ring.segment.end_trajectory(0, 10**7))
    other = RawSegment.attached(ring.folder, "two")
    ok(ring.extend(stamped([4])))
    ok(other.segment.end_trajectory(0, 10**7))
    ok(ring.extend(stamped([5])))
    assert runs(ring, 5) == "Aa.B.Cc"


def test_an_empty_cuts_the_run(ring: RawSegment) -> None:
    ok(ring.extend(stamped([1])))
    ok(ring.empty(reset=False))
    ok(ring.segment.end_trajectory(0, 10**7))
    ok(ring.extend(stamped([2])))
    assert runs(ring, 1) == "B"


def test_a_client_that_came_again_starts_a_run(ring: RawSegment) -> None:
    ok(ring.extend(stamped([1])))
    ring.close()
    again = RawSegment.attached(ring.folder, "one")
    assert again.token != ring.token
    ok(again.extend(stamped([2])))
    assert runs(again, 2) == "AC"


def test_a_refilled_slot_is_a_run_of_its_own(ring: RawSegment) -> None:
    ok(ring.extend(stamped([1, 2, 3])))
    ok(ring.write(1, stamped([9])))
    assert ring.runs[1] & FIRST
    assert ring.runs[1] & LAST


def test_run_numbers_wrap_within_their_bits(ring: RawSegment) -> None:
    ring.poke("LaneBlock", "next_run", LAST - 1)
    ok(ring.extend(stamped([1, 2, 3], done=[0, 1])))
    numbers = (ring.runs[:3] & (LAST - 1)).tolist()
    assert numbers == [LAST - 1, 0, 1]
    assert (ring.runs[:3] & FIRST).all()
    assert (ring.runs[:3] & LAST).tolist() == [LAST, LAST, 0]


def test_any_done_field_ends_a_trajectory(root: Path) -> None:
    columns = (("x", "<i8", ()), ("truncated", "|b1", (1,)), ("terminated", "|b1", (1,)))
    RawSegment.create(root / "two", 8, columns=columns, done=("truncated", "terminated"))
    ring = RawSegment.attached(root / "two")
    record = {
        "x": np.arange(4),
        "truncated": np.array([[0], [1], [0], [0]], bool),
        "terminated": np.array([[0], [0], [1], [0]], bool),
    }
    ok(ring.extend(record))
    assert runs(ring, 4) == "Aa.B.C"
