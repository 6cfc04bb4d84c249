"""Client slots, tokens, leases, bells and closing, as one process sees them."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from helpers.rawsegment import CLIENT, CONTROL, LANE, RawSegment, finish, ok, stamped
from shmrb import core
from shmrb.core import Bell, ClientRole, Status, Waited

SLICE = 10**7
ROOM_SHIFT = 32


@pytest.fixture
def ring(root: Path) -> RawSegment:
    RawSegment.create(root / "ring", 6, lanes=3, max_clients=4)
    return RawSegment.attached(root / "ring", "first")


def dead_token(ring: RawSegment) -> int:
    """The token of a client that has left."""
    gone = RawSegment.attached(ring.folder, "gone")
    token = gone.token
    gone.close()
    return token


# Who is who


def test_each_handle_has_a_client_slot_and_a_token(ring: RawSegment) -> None:
    second = RawSegment.attached(ring.folder, "second", hint=2)
    assert [token & 0xFFFF for token in (ring.token, second.token)] == [1, 3]
    clients = {row["name"]: row for row in ring.segment.clients()}
    assert set(clients) == {b"first", b"second"}
    assert clients[b"second"]["token"] == second.token
    assert clients[b"second"]["pid"] == os.getpid()
    assert all(row["alive"] for row in clients.values())
    assert ring.segment.alive(second.token)
    assert ring.segment.client(second.token)["name"] == b"second"
    token = second.token
    second.close()
    assert not ring.segment.alive(token)
    assert not core.byte_held(ring.live_lock, 2)
    assert [row["name"] for row in ring.segment.clients()] == [b"first"]


def test_the_next_tenant_of_a_client_slot_has_another_token(ring: RawSegment) -> None:
    tokens = {dead_token(ring) for _ in range(5)}
    assert len(tokens) == 5
    assert len({token & 0xFFFF for token in tokens}) == 1


def test_an_epoch_never_makes_the_token_of_nobody(ring: RawSegment) -> None:
    ring.poke(CLIENT, "epoch", 0x7FFF, 1)
    assert dead_token(ring) == 1 << 16 | 2


def test_a_full_house_takes_no_more_clients(ring: RawSegment) -> None:
    others = [RawSegment.attached(ring.folder) for _ in range(3)]
    late = RawSegment(ring.folder)
    role = ClientRole.MEMBER
    assert late.segment.attach(late.live_lock, 0, 1, role, "late")[:2] == (Status.FULL, 4)
    others[1].close()
    assert late.attach("late") & 0xFFFF == 3
    assert late.segment.alive(late.token)


def test_a_missing_lock_file_is_told_by_its_error(root: Path) -> None:
    ring = RawSegment.create(root / "ring", 4)
    os.unlink(ring.live_lock)
    outcome = ring.segment.attach(ring.live_lock, 0, 1, ClientRole.MEMBER, "x")
    assert outcome[:2] == (Status.SYSTEM, errno.ENOENT)


def test_tokens_that_nobody_was_given_count_as_alive(ring: RawSegment) -> None:
    # Out of range: never taken over; the audit names it.
    assert ring.segment.alive(1 << 16 | 5)
    assert ring.segment.alive(0)
    # A slot in range whose byte is free, or of another epoch: dead.
    assert not ring.segment.alive(7 << 16 | 2)
    assert not ring.segment.alive(7 << 16 | 1)


def test_an_observer_looks_without_a_client_slot(ring: RawSegment) -> None:
    ok(ring.extend(stamped([1])))
    eye = RawSegment(ring.folder, writable=False)
    ok(eye.segment.attach(eye.live_lock, 0, 1, ClientRole.OBSERVER, "eye"))
    assert eye.token == 0
    assert (eye.size(), eye.write_count()) == (1, 1)
    assert ok(eye.sample(4)[0])
    assert eye.sample(4)[1]["uid"].tolist() == [1] * 4
    assert eye.read([0])[1]["uid"].tolist() == [1]
    calls = (
        eye.extend(stamped([2])),
        eye.write(0, stamped([2])),
        eye.update([0], [0], {"mark": np.array([1])})[0],
        eye.empty(),
        eye.segment.reap(),
        eye.segment.bell_enter(Bell.RECORDS, False),
        eye.segment.lease(0),
        eye.segment.attach(eye.live_lock, 0, 1, ClientRole.MEMBER, "eye"),
    )
    assert [call[0] for call in calls] == [Status.READ_ONLY] * len(calls)
    assert ring.segment.alive(ring.token)


def test_who_has_not_attached_changes_nothing(ring: RawSegment) -> None:
    nobody = RawSegment(ring.folder)
    assert nobody.extend(stamped([2]))[0] == Status.READ_ONLY
    # As if a client were counting holes: its lock is not ours to give back.
    ring.poke(LANE, "lock", ring.token)
    ring.poke(LANE, "holes_stale", 1)
    nobody.size()
    assert ring.peek(LANE, "lock") == ring.token
    ring.poke(LANE, "lock", 0)


@pytest.mark.parametrize("lanes", [2, 7])
def test_a_capacity_that_does_not_divide_into_lanes_is_refused(root: Path, lanes: int) -> None:
    with pytest.raises(ValueError, match="multiple of lanes"):
        RawSegment.create(root / "ring", 9, lanes=lanes)


# What the dead held


def test_a_dead_clients_locks_claims_and_leases_are_anybodys(ring: RawSegment) -> None:
    dead = dead_token(ring)
    ring.poke(LANE, "lock", dead)
    ring.owners[0] = dead
    ring.poke(LANE, "lease", dead, 2)
    ring.poke(CONTROL, "empty_lock", dead)
    assert finish(lambda: ring.extend(stamped([1])))[0] == Status.OK
    assert finish(ring.empty)[0] == Status.OK
    assert ok(ring.segment.lease(2))[1] == 2
    counters = ring.segment.counters()
    assert (counters["lock_take_overs"], counters["slots_freed"]) == (2, 1)


def test_a_living_clients_lock_is_waited_for(ring: RawSegment) -> None:
    other = RawSegment.attached(ring.folder, "other")
    ring.poke(LANE, "lock", other.token)
    expected = (Status.AGAIN, 0, Waited.LANE_LOCK, other.token)
    assert ring.extend(stamped([1]), slice_ns=0)[:4] == expected
    assert ring.empty(slice_ns=0)[:4] == expected
    assert ring.segment.end_trajectory(0, 0)[:4] == expected
    # Other lanes are free.
    ok(ring.extend(stamped([1]), lane=1))
    ring.poke(LANE, "lock", 0)
    ring.poke(CONTROL, "empty_lock", other.token)
    expected = (Status.AGAIN, 0, Waited.EMPTY_LOCK, other.token)
    assert ring.empty(slice_ns=0)[:4] == expected
    assert ring.size() == 1


def test_a_living_clients_claim_is_waited_for(ring: RawSegment) -> None:
    other = RawSegment.attached(ring.folder, "other")
    ring.owners[0] = other.token
    expected = (Status.AGAIN, 0, Waited.SLOT_OWNER, other.token)
    assert ring.extend(stamped([1]), slice_ns=0)[:4] == expected
    assert ring.write(0, stamped([1]), slice_ns=0)[:4] == expected
    outcome, verdicts = ring.update([1, 0], [0, 0], {"mark": np.array([1, 2])}, slice_ns=0)
    assert outcome[:4] == expected
    assert verdicts.tolist() == [0, 0]
    # Nothing is held meanwhile.
    assert ring.owners.tolist() == [other.token, 0, 0, 0, 0, 0]
    assert ring.segment.lanes()[0]["lock"] == 0


def test_reaping_gives_back_everything_of_the_dead(ring: RawSegment) -> None:
    token = dead_token(ring)
    entry = (token & 0xFFFF) - 1
    ring.poke(CLIENT, "role", ClientRole.MEMBER, entry)
    ring.poke(CLIENT, "in_flight", 1, entry)
    # It had claimed one record and not marked it, and was writing another.
    ok(ring.extend(stamped([1])))
    ring.owners[:2] = token
    ring.words[1] = 1 << 20 | 1
    ring.poke(LANE, "head", 2)
    ring.poke(LANE, "lock", token, 1)
    ring.poke(LANE, "lease", token, 2)
    assert [row["alive"] for row in ring.segment.clients()] == [True, False]
    assert ring.size() == 1
    assert ok(ring.segment.reap())[1] == 0, "size recovered it"
    assert [row["slot"] for row in ring.segment.clients()] == [0]
    assert not ring.owners.any()
    assert ring.segment.lanes()[1]["lock"] == ring.segment.lanes()[2]["lease"] == 0
    counters = ring.segment.counters()
    assert counters["voided_records"] == counters["reclaimed_records"] == 1
    assert (counters["slots_freed"], counters["clients_recovered"]) == (1, 1)
    assert ring.write_count() == 2


def test_recovering_a_buffer_frees_what_unknown_dead_tokens_hold(ring: RawSegment) -> None:
    for uid in range(2):
        ok(ring.extend(stamped([uid])))
    ring.owners[:] = [9 << 16 | 2, 9 << 16 | 4, 0, 0, 0, ring.token]
    ring.words[1] |= np.uint64(1)
    ring.poke(LANE, "holes", 2)
    assert ok(ring.segment.recover())[1] == 2
    assert ring.owners.tolist() == [0] * 5 + [ring.token]
    assert ring.size() == 1
    assert ring.segment.lanes()[0]["holes"] == 1
    ring.owners[5] = 0


# Leases


def test_a_lane_is_leased_to_one_client_at_a_time(ring: RawSegment) -> None:
    other = RawSegment.attached(ring.folder, "other")
    assert ok(ring.segment.lease(1))[1] == 1
    assert ok(ring.segment.lease(1))[1] == 1
    assert other.segment.lease(1)[:4] == (Status.BUSY, 1, 0, ring.token)
    taken = {ok(other.segment.lease(-1))[1] for _ in range(2)}
    assert taken == {0, 2}
    assert other.segment.lease(-1)[0] == Status.BUSY
    # Only the holder gives it back.
    ok(other.segment.release_lease(1))
    assert ring.segment.lanes()[1]["lease"] == ring.token
    ok(ring.segment.release_lease(1))
    assert ok(other.segment.lease(-1))[1] == 1
    assert ring.segment.lease(3)[0] == ring.segment.release_lease(3)[0] == Status.CORRUPT


def test_the_free_lane_written_longest_ago_comes_first(ring: RawSegment) -> None:
    for lane, when in enumerate((5, 3, 4)):
        ring.poke(LANE, "written_ns", when, lane)
    assert [ok(ring.segment.lease(-1))[1] for _ in range(3)] == [1, 2, 0]


def test_leaving_gives_the_leases_back(ring: RawSegment) -> None:
    other = RawSegment.attached(ring.folder, "other")
    ok(other.segment.lease(2))
    other.close()
    assert ring.segment.lanes()[2]["lease"] == 0


# Closing


def test_a_closed_segment_refuses_every_call(ring: RawSegment) -> None:
    ring.close()
    ring.close()
    calls = (
        ring.extend(stamped([1])),
        ring.sample(1)[0],
        ring.read([0])[0],
        ring.empty(),
        ring.segment.size(),
        ring.segment.reap(),
        ring.segment.attach(ring.live_lock, 0, 1, ClientRole.MEMBER, "x"),
    )
    assert [call[0] for call in calls] == [Status.CLOSED] * len(calls)
    assert ring.segment.lanes() == []
    assert ring.token == 0


def test_closing_waits_for_the_calls_of_other_threads(ring: RawSegment) -> None:
    ok(ring.extend(stamped([1])))
    other = RawSegment.attached(ring.folder, "other")
    ring.owners[0] = other.token
    ended: list[int] = []
    started = threading.Event()

    def wait_for_the_slot() -> None:
        started.set()
        ended.append(ring.write(0, stamped([2]), slice_ns=core.SLICE_NS)[0])

    thread = threading.Thread(target=wait_for_the_slot)
    thread.start()
    started.wait()
    ring.close()
    thread.join()
    # Either it was in time and waited out its slice, or it came too late.
    assert ended in ([Status.AGAIN], [Status.CLOSED])
    assert not other.segment.alive(1 << 16 | 1)


# Bells


@pytest.mark.parametrize("on_futex", [False, True])
def test_a_ring_takes_the_waiters_off_and_moves_the_event(ring: RawSegment, on_futex: bool) -> None:
    bell = ring.word_of(CONTROL, "records_bell").view(np.uint32)
    event, waiting = (2, 3) if on_futex else (0, 1)
    for _ in range(3):
        assert ok(ring.segment.bell_enter(Bell.RECORDS, on_futex))[1] == 0
    ok(ring.segment.bell_leave(Bell.RECORDS, on_futex, 0))
    assert (bell[event], bell[waiting]) == (0, 2)
    outcome = ok(ring.extend(stamped([1])))
    # Posts are owed to those on the semaphore; those on the futex were woken.
    assert outcome[4] == (0 if on_futex else 2)
    assert (bell[event], bell[waiting]) == (1, 0)
    # Nobody waits: nothing is rung, and who leaves late takes nothing back.
    assert ok(ring.extend(stamped([1])))[4] == 0
    ok(ring.segment.bell_leave(Bell.RECORDS, on_futex, 0))
    assert (bell[event], bell[waiting]) == (1, 0)


def test_the_two_bells_are_told_apart(ring: RawSegment) -> None:
    ok(ring.segment.bell_enter(Bell.RECORDS, False))
    ok(ring.segment.bell_enter(Bell.ROOM, False))
    ok(ring.segment.bell_enter(Bell.ROOM, False))
    assert ok(ring.segment.ring())[4] == 1 | 2 << ROOM_SHIFT


def test_a_sleeper_on_the_futex_wakes_when_a_record_comes(ring: RawSegment) -> None:
    event = ok(ring.segment.bell_enter(Bell.RECORDS, True))[1]
    assert ok(ring.segment.bell_sleep(Bell.RECORDS, event, 1000))[1] == 0
    slept: list[int] = []

    def wait_for_ring() -> None:
        while not (woken := ok(ring.segment.bell_sleep(Bell.RECORDS, event, SLICE))[1]):
            pass
        slept.append(woken)

    thread = threading.Thread(target=wait_for_ring)
    thread.start()
    ok(ring.extend(stamped([1])))
    thread.join()
    assert slept == [1]


def test_waiting_is_labelled_and_its_time_counted(ring: RawSegment) -> None:
    ring.segment.label_wait(core.WaitLabel.ROOM)
    assert ring.segment.client(ring.token)["waiting_for"] == core.WaitLabel.ROOM
    ring.segment.label_wait(core.WaitLabel.NOTHING)
    assert ring.segment.client(ring.token)["waiting_for"] == 0
    assert ring.segment.counters()["blocked_ns"] > 0
