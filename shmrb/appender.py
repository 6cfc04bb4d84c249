"""Appending records: checked rows, one native call a chunk (floor F5)."""

from __future__ import annotations

import time
import warnings
from typing import Any, cast

import numpy as np

from shmrb import core
from shmrb.attachment import Attachment
from shmrb.core import SLICE_NS, Bell, Counter, Outcome, Segment, Status, WriteFlag
from shmrb.errors import DeadlineError, LaneBusyError, ReadOnlyError, RecordError
from shmrb.planner.populations import Slots
from shmrb.priorities import Floats, PriorityDesk
from shmrb.records import RecordReader, Rows
from shmrb.schema import Schema, schema_like
from shmrb.segment import snapshot
from shmrb.spec import ImmutableWriter
from shmrb.waiting import Call, deadline_of

# Somebody's lane is free when its owner gave it back or is proven dead; nothing rings for that.
LOOK_FOR_LANE_EVERY_S = 0.02


class Appender:
    """The writing half of a handle.

    Args:
        attachment: where the records go.
        cast: what happens to arrays of another dtype, as in `RecordReader`.
        desk: takes the priorities that come with records.
    """

    def __init__(self, attachment: Attachment, cast: str, desk: PriorityDesk) -> None:
        self.attachment = attachment
        self.cast = cast
        self.desk = desk
        self._reader: RecordReader | None = None
        self._lane: int | None = None
        self._leased_in: Segment | None = None
        self._warned = False

    def reader(self) -> RecordReader:
        """What checks records; exists once the schema is known."""
        if self._reader is None:
            if not self.attachment.is_joined:
                self.attachment.join()
            self._reader = RecordReader(cast(Schema, self.attachment.spec.schema), self.cast)
        return self._reader

    def append(
        self,
        data: Any,
        batched: bool,
        timeout: float | None,
        end: bool = False,
        priority: Any = None,
        by_key: bool = True,
    ) -> Slots:
        """Writes records; their slots, in the order of the input.

        Args:
            data, batched: records along the first dimension, or a single one without it.
            timeout: seconds to wait.
            end: the last row ends its trajectory, whatever its done fields say.
            priority: one number for all or one each; None: what the data has under the priority
                key, else the buffer's default.
            by_key: whether the key is looked at.

        Raises:
            RecordError: nothing is written.
            DeadlineError: nothing is written, unless the call was longer than half a lane; then
                `written` says how many rows are in.
        """
        raw = None
        if self.desk.is_kept and by_key:
            data, raw = self.desk.split(data, batched)
        rows = self._checked(data, batched)
        if priority is not None:
            self.desk.require("extend")
            raw = self.desk.given(priority, rows.count, "extend")
        elif raw is not None and len(raw) != rows.count:
            raise self.desk.miscounted(raw, rows.count)
        spec = self.attachment.spec
        lane = 0
        if spec.lanes > 1:
            deadline = deadline_of(timeout, self.attachment.default_timeout)
            lane = self._leased_lane(deadline)
            timeout = max(0.0, deadline - time.monotonic())
        capacity = spec.lane_capacity
        if rows.count > max(1, capacity // 2):
            return self._append_long(lane, rows, raw, timeout, end)
        flags = WriteFlag.END_TRAJECTORY if end else 0
        return self._write(lane, rows.addresses, raw, flags, timeout, (0, rows.count, rows.count))

    def end_trajectory(self, timeout: float | None) -> None:
        """The next record of this handle starts another trajectory."""
        deadline = deadline_of(timeout, self.attachment.default_timeout)
        lane = self._leased_lane(deadline) if self.attachment.spec.lanes > 1 else 0
        self.attachment.run(
            lambda segment: segment.end_trajectory(lane, SLICE_NS),
            Call("end_trajectory"),
            max(0.0, deadline - time.monotonic()),
        )

    # ---- what is written -------------------------------------------------------------------------

    def _checked(self, data: Any, batched: bool) -> Rows:
        if isinstance(self.attachment.spec.writer, ImmutableWriter):
            raise ReadOnlyError("This dataset doesn't allow writing.")
        if self._reader is None and not self.attachment.is_joined:
            self._publish(data, batched)
        reader = self._reader or self.reader()
        rows = reader.batch(data) if batched else reader.record(data)
        if rows.count == 0:
            raise _nothing(data)
        return rows

    def _publish(self, data: Any, batched: bool) -> None:
        """The first write decides the schema; whoever loses that race is checked against it."""
        attachment = self.attachment
        if attachment.spec.schema is not None or attachment.is_closed:
            return
        if isinstance(data, list) and not data:
            raise _nothing(data)
        schema = schema_like(data, batched=batched)
        reader = RecordReader(schema, self.cast)
        if (reader.batch(data) if batched else reader.record(data)).count == 0:
            raise _nothing(data)
        attachment.publish(schema)

    # ---- where it goes ---------------------------------------------------------------------------

    def _leased_lane(self, deadline: float) -> int:
        """The lane that this handle writes: it leases one at its first use and keeps it."""
        attachment = self.attachment
        while True:
            segment = attachment.segment or attachment.join()
            with attachment.guard:
                if self._lane is not None and segment is self._leased_in:
                    return self._lane
                outcome = segment.lease(-1)
                if outcome[0] == Status.OK:
                    self._lane, self._leased_in = int(outcome[1]), segment
                    return self._lane
            if outcome[0] != Status.BUSY:
                self._refuse(outcome)
            if time.monotonic() >= deadline:
                raise LaneBusyError(self._lanes_taken())
            time.sleep(LOOK_FOR_LANE_EVERY_S)

    def _refuse(self, outcome: Outcome) -> None:
        self.attachment.run(lambda _: outcome, Call("extend"), 0.0)

    def _lanes_taken(self) -> str:
        segment = self.attachment.segment or self.attachment.join()
        owners = (snapshot.client(segment, lane.lease) for lane in snapshot.lanes(segment))
        named = ", ".join(sorted({str(owner) for owner in owners if owner is not None}))
        return (
            f"extend: all {self.attachment.spec.lanes} lanes of {self.attachment.address.name} are "
            f"leased, by {named}. Create the buffer with more lanes, or close a handle that writes."
        )

    # ---- writing ---------------------------------------------------------------------------------

    def _write(
        self,
        lane: int,
        addresses: list[int],
        raw: Floats | None,
        flags: int,
        timeout: float | None,
        piece: tuple[int, int, int],
    ) -> Slots:
        """Writes up to half a lane; the slots of its rows.

        `piece`: its first row, how many it has, and those of the whole call; `raw` is the call's.
        """
        start, count, whole = piece
        call = Call("extend", whole, Bell.ROOM)
        spec = self.attachment.spec
        if raw is None and not spec.refills_consumed:
            ticket = self.attachment.run(
                lambda segment: segment.extend(lane, count, addresses, 0, flags, SLICE_NS),
                call,
                timeout,
            )
            return _slots(lane, spec.lane_capacity, ticket, count)
        priorities = 0 if raw is None else core.address(raw) + start * raw.itemsize
        slots = np.empty(count, np.int64)
        where = core.address(slots)

        def extend(segment: Segment) -> Outcome:
            outcome = segment.extend(lane, count, addresses, 0, flags, SLICE_NS, priorities, where)
            if outcome[0] == Status.REFUSED:
                assert raw is not None
                self.desk.count_refusal()
                raise self.desk.impossible(raw, start + outcome[1], "extend")
            return outcome

        self.attachment.run(extend, call, timeout)
        return slots

    def _append_long(
        self, lane: int, rows: Rows, raw: Floats | None, timeout: float | None, end: bool
    ) -> Slots:
        """More than half a lane goes in pieces, each whole for itself."""
        attachment = self.attachment
        deadline = deadline_of(timeout, attachment.default_timeout)
        capacity = attachment.spec.lane_capacity
        longest = max(1, capacity // 2)
        if rows.count > capacity:
            self._warn_of_overwriting(rows.count - capacity, capacity)
        if raw is not None:
            self.desk.check(raw, "extend")
        if attachment.spec.limiter is not None:
            attachment.run(
                lambda segment: segment.admit(rows.count, SLICE_NS),
                Call("extend", rows.count, Bell.ROOM),
                max(0.0, deadline - time.monotonic()),
            )
        slots = np.empty(rows.count, np.int64)
        strides = self.reader().strides
        for start in range(0, rows.count, longest):
            count = min(longest, rows.count - start)
            flags = int(WriteFlag.ADMITTED)
            if end and start + count == rows.count:
                flags |= WriteFlag.END_TRAJECTORY
            left = max(0.0, deadline - time.monotonic())
            try:
                addresses = rows.tail(start, strides)
                piece = start, count, rows.count
                part = self._write(lane, addresses, raw, flags, left, piece)
            except DeadlineError as error:
                error.written = start
                raise
            slots[start : start + count] = part
        if rows.count > capacity:
            segment = attachment.segment or attachment.join()
            segment.count(Counter.OVERWRITTEN_IN_CALL, rows.count - capacity)
        return slots

    def _warn_of_overwriting(self, count: int, capacity: int) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"extend: more records in one call than a lane of {capacity} holds: the first "
                f"{count} of them are overwritten by the last before anybody can draw them.",
                stacklevel=6,
            )


def _slots(lane: int, capacity: int, ticket: int, count: int) -> Slots:
    """The slots of `count` tickets of a lane."""
    first = ticket % capacity
    slots = np.arange(first, first + count)
    if first + count > capacity:
        slots %= capacity
    if lane:
        slots += lane * capacity
    return slots


def _nothing(data: Any) -> RecordError:
    return RecordError(f"Expected at least one element in extend. Got data={data}")
