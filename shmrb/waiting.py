"""Deadlines: a native call's outcome becomes a value, more waiting, or an error (floor F5).

Native calls never wait longer than one time slice and hold nothing when they return, so between two
slices Python looks at signals and at the deadline. Who waits for records or for room sleeps on a
doorbell; each time such a sleep ends for nothing, it looks for clients that died.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from shmrb.core import Bell, Outcome, Segment, Status, Waited, WaitLabel
from shmrb.errors import (
    ClosedError,
    CorruptionError,
    DeadlineError,
    EmptyBufferError,
    LimiterTimeoutError,
    LockTimeoutError,
    NoWindowError,
    ReadOnlyError,
    SpecError,
    StaleAttachmentError,
)
from shmrb.limiters import DEFAULT_INSERT_COST, Queue, smallest_error_buffer
from shmrb.results import ClientInfo
from shmrb.segment import snapshot
from shmrb.segment.member import Member

log = logging.getLogger("shmrb")

DEFAULT_TIMEOUT_S = 60.0
# A call that is held up says so in the log this often.
REPORT_EVERY_S = 5.0

OK, AGAIN, LIMITED, EMPTY = Status.OK, Status.AGAIN, Status.LIMITED, Status.EMPTY
NO_WINDOW = Status.NO_WINDOW
# What a change that rings a bell may end.
WAITED_OUT = (LIMITED, EMPTY, NO_WINDOW)
WAITED_FOR = {
    Waited.NOTHING: "records that stay whole while they are copied",
    Waited.LANE_LOCK: "the lane's lock",
    Waited.CONTROL_LOCK: "the control lock",
    Waited.EMPTY_LOCK: "the lock of empty()",
    Waited.SLOT_OWNER: "a slot that another client is changing",
}


class Call(NamedTuple):
    """What a waiting call is called in messages, and what it waits for.

    Attributes:
        name: the method.
        records: how many it asks the limiter for: rows to insert, or loss-bearing records to draw.
        bell: what wakes it when the limiter refuses.
        until_records: whether an empty buffer is waited for instead of refused.
        window: records that a window needs.
        hint: what else to say when no window fits.
    """

    name: str
    records: int = 0
    bell: Bell = Bell.RECORDS
    until_records: bool = False
    window: int = 1
    hint: str = ""


def deadline_of(timeout: float | None, default: float) -> float:
    """The monotonic instant when a call gives up. None: the configured default."""
    if timeout is not None:
        check_timeout(timeout)
    return time.monotonic() + (default if timeout is None else timeout)


def check_timeout(timeout: float) -> None:
    """Refuses what is no number of seconds.

    Raises:
        SpecError: it is negative or not a number.
    """
    try:
        if timeout >= 0:
            return
    except TypeError:
        pass
    raise SpecError(f"timeout: expected seconds >= 0 or None, got {timeout!r}.")


def post(member: Member, wake: int) -> None:
    """Wakes the waiters a native call says are owed."""
    if wake & 0xFFFF_FFFF:
        member.bell(Bell.RECORDS).post(wake & 0xFFFF_FFFF)
    if wake >> 32:
        member.bell(Bell.ROOM).post(wake >> 32)


class Wait:
    """One call that did not go through at once."""

    def __init__(self, member: Member, call: Call, deadline: float) -> None:
        self.member = member
        self.call = call
        self.started = time.monotonic()
        self.deadline = deadline
        self._report_at = self.started + REPORT_EVERY_S

    def until(self, op: Callable[[Segment], Outcome], outcome: Outcome) -> int:
        """Repeats `op` until it goes through.

        Raises:
            DeadlineError: the deadline passed; the message says what was waited for and who is in
                the way.
            SpecError: the rate limiter can never let this call through.
            ClosedError, StaleAttachmentError, EmptyBufferError, ReadOnlyError, CorruptionError.
        """
        segment = self.member.segment
        if outcome[0] == LIMITED:
            self._check_reach()
        try:
            while True:
                status, value, what, who, wake = outcome
                if wake:
                    post(self.member, wake)
                if status == OK:
                    return value
                self._refuse(status, value)
                if time.monotonic() >= self.deadline:
                    raise self._too_late(status, what, who)
                if status == AGAIN:
                    segment.label_wait(WaitLabel.LOCK)
                    outcome = op(segment)
                else:
                    outcome = self._sleep(op, outcome)
        finally:
            segment.label_wait(WaitLabel.NOTHING)

    def _sleep(self, op: Callable[[Segment], Outcome], outcome: Outcome) -> Outcome:
        """Waits on the bell; the second look, once counted as waiting, is the call itself."""
        segment = self.member.segment
        bell = self.call.bell if outcome[0] == LIMITED else Bell.RECORDS
        segment.label_wait(WaitLabel.ROOM if bell == Bell.ROOM else WaitLabel.RECORDS)
        latest = outcome

        def is_over() -> bool:
            nonlocal latest
            latest = op(segment)
            if latest[0] not in WAITED_OUT:
                return True
            post(self.member, latest[4])  # a refused draw may have opened the insert side
            return False

        if self.member.bell(bell).wait(is_over, self.deadline - time.monotonic()):
            return latest if latest[0] not in WAITED_OUT else op(segment)
        _, _, _, _, wake = segment.reap()
        if wake:
            post(self.member, wake)
        if time.monotonic() >= self._report_at:
            self._report_at += REPORT_EVERY_S
            log.warning("%s", self._held_up(latest[0]))
        return op(segment)

    def _check_reach(self) -> None:
        """Refuses a call of more records than the limiter can owe, instead of waiting for it."""
        limiter = snapshot.limiter(self.member.segment)
        records, ratio = self.call.records, limiter.samples_per_insert
        inserting = self.call.bell == Bell.ROOM
        # The warm-up is free: it may end above max_diff.
        most = limiter.max_diff if inserting else max(limiter.max_diff, limiter.min_size * ratio)
        span = most - limiter.min_diff
        cost = records * ratio if inserting else records
        if cost <= span:
            return
        largest = max(1, int(span / ratio if inserting else span))
        if isinstance(self.member.spec.limiter, Queue):
            cure = f"size >= {records}"
        else:
            batch, chunk = (0, records) if inserting else (records, DEFAULT_INSERT_COST)
            cure = f"error_buffer >= {smallest_error_buffer(ratio, batch, chunk)}"
        raise SpecError(
            f"{self.call.name}: {records} records at a time can never pass the rate limiter, whose "
            f"limits are {span} apart. Take at most {largest}, or {cure}."
        )

    def _refuse(self, status: int, value: int) -> None:
        name = self.member.name or "the private buffer"
        if status == EMPTY and not self.call.until_records:
            raise EmptyBufferError(f"Cannot sample from an empty storage. ({name} has no record.)")
        if status == NO_WINDOW and not self.call.until_records:
            raise NoWindowError(f"{self.call.name}: {self._no_window()}")
        if status == Status.NO_MASS:
            raise EmptyBufferError(
                f"{self.call.name}: all priorities of the records in {name} are zero, so none can "
                "be drawn. Give some a priority with update_priority, or create the buffer with "
                "eps > 0."
            )
        if status == Status.CLOSED:
            raise ClosedError(f"{self.call.name}: this handle of {name} was closed.")
        if status == Status.DEAD:
            raise StaleAttachmentError(
                f"{self.call.name}: the buffer {name} that this handle is attached to was dropped. "
                "Attach again if there is a new one."
            )
        if status == Status.READ_ONLY:
            raise ReadOnlyError(
                f"{self.call.name}: this handle of {name} is attached as {self.member.role}, which "
                "may not do that. Attach as a member."
            )
        if status == Status.BUSY:
            return
        if status != AGAIN and status not in WAITED_OUT:
            raise CorruptionError(
                f"{self.call.name}: the segment of {name} refused the call with status "
                f"{Status(status).name} (value {value}). Verify it with: shmrb doctor."
            )

    def _too_late(self, status: int, what: int, who: int) -> DeadlineError:
        waited = f"{self.call.name}: waited {time.monotonic() - self.started:.1f} s for"
        if status == LIMITED:
            return LimiterTimeoutError(self._held_up(status))
        if status == EMPTY:
            return DeadlineError(f"{waited} a first record; {self._parties()}.")
        if status == NO_WINDOW:
            return DeadlineError(f"{waited} a trajectory; {self._no_window()} {self._parties()}.")
        if who == 0:
            return LockTimeoutError(f"{waited} {WAITED_FOR[Waited(what)]}.")
        holder = snapshot.client(self.member.segment, who)
        named = f"client {who:#x}" if holder is None else describe(holder)
        return LockTimeoutError(
            f"{waited} {WAITED_FOR[Waited(what)]}, held by {named}. It lives but does not run: "
            "continue it or end it."
        )

    def _held_up(self, status: int) -> str:
        waited = f"{self.call.name}: waited {time.monotonic() - self.started:.1f} s"
        if status == NO_WINDOW:
            return f"{waited} for a trajectory; {self._no_window()} {self._parties()}"
        if status != LIMITED:
            return f"{waited} for a first record; {self._parties()}"
        limiter = snapshot.limiter(self.member.segment)
        inserting = self.call.bell == Bell.ROOM
        explain = limiter.explain_insert if inserting else limiter.explain_sample
        return f"{waited} for the rate limiter: {explain(self.call.records)}; {self._parties()}"

    def _no_window(self) -> str:
        """Why no window fits anywhere, and what to do about it."""
        runs, shortest, longest, cut = self.member.segment.run_summary()
        text = (
            "Did not find a single trajectory with sufficient length (length range: "
            f"{shortest} - {longest} / required={self.call.window}))."
        )
        if 2 * cut > runs:
            return (
                f"{text} {cut} of {runs} pieces do not end but are cut, since the records of "
                "several environments or collectors were written in turn into one lane. Give each "
                "a lane of its own: storage=SharedStorage(capacity, lanes=N), then "
                "rb.producer(envs=N), or rb.lane() in each collector."
            )
        cure = self.call.hint or "Take shorter windows."
        return f"{text} {cure} Or wait for longer trajectories with timeout=."

    def _parties(self) -> str:
        """Who could change that: living writers and samplers beside this client."""
        clients = [c for c in snapshot.clients(self.member.segment) if c.alive]
        writers = sum(client.has_written for client in clients)
        samplers = sum(client.has_sampled for client in clients)
        return f"{writers} live writers, {samplers} live samplers"


def describe(client: ClientInfo) -> str:
    """A client for a message."""
    return f"{client} {'alive' if client.alive else 'dead'}"
