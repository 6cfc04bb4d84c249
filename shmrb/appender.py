"""Appending records: checked rows, one native call a chunk (floor F5)."""

from __future__ import annotations

import time
import warnings
from typing import Any, cast

import numpy as np

from shmrb import core
from shmrb.attachment import Attachment
from shmrb.core import SLICE_NS, Bell, Counter, Outcome, Segment, Status, WriteFlag
from shmrb.errors import DeadlineError, ReadOnlyError, RecordError
from shmrb.leases import Leases
from shmrb.planner.populations import Slots
from shmrb.priorities import Floats, PriorityDesk
from shmrb.records import RecordReader, Rows
from shmrb.schema import Schema, schema_like
from shmrb.spec import ImmutableWriter
from shmrb.waiting import Call, deadline_of


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
        self._lane_capacity = attachment.spec.lane_capacity
        self._leases = Leases(attachment, 1, True, "extend")
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
        rows = self.checked(data, batched)
        if priority is not None:
            self.desk.require("extend")
            raw = self.desk.given(priority, rows.count, "extend")
        elif raw is not None and len(raw) != rows.count:
            raise self.desk.miscounted(raw, rows.count)
        if self.attachment.spec.lanes == 1:
            return self.put(0, rows, raw, timeout, end)
        deadline = deadline_of(timeout, self.attachment.default_timeout)
        lane = self._leases.turn(0, deadline)
        try:
            return self.put(lane, rows, raw, max(0.0, deadline - time.monotonic()), end)
        finally:
            self._leases.rest()

    def put(
        self,
        lane: int,
        rows: Rows,
        raw: Floats | None,
        timeout: float | None,
        end: bool = False,
        admitted: bool = False,
    ) -> Slots:
        """Writes checked rows into a lane; their slots.

        Args:
            lane: which; if there are several, one that this handle leases.
            rows, raw: the records, and their priorities if they have any.
            timeout, end: as for `append`.
            admitted: the limiter has let them in already.
        """
        if rows.count > max(1, self._lane_capacity // 2):
            return self._append_long(lane, rows, raw, timeout, end, admitted)
        flags = (WriteFlag.END_TRAJECTORY if end else 0) | (WriteFlag.ADMITTED if admitted else 0)
        return self._write(lane, rows.addresses, raw, flags, timeout, (0, rows.count, rows.count))

    def admit(self, count: int, timeout: float | None) -> bool:
        """Has the limiter let in so many rows that are written in several calls; False: no need."""
        if self.attachment.spec.limiter is None:
            return False
        self.attachment.run(
            lambda segment: segment.admit(count, SLICE_NS),
            Call("extend", count, Bell.ROOM),
            timeout,
        )
        return True

    def end_trajectory(self, timeout: float | None) -> None:
        """The next record of this handle starts another trajectory."""
        if self.attachment.spec.lanes == 1:
            self.end(0, timeout)
            return
        deadline = deadline_of(timeout, self.attachment.default_timeout)
        (lane,) = self._leases.take(deadline)
        self.end(lane, max(0.0, deadline - time.monotonic()))

    def end(self, lane: int, timeout: float | None) -> None:
        """Ends the trajectory that this handle has open in a lane."""
        self.attachment.run(
            lambda segment: segment.end_trajectory(lane, SLICE_NS), Call("end_trajectory"), timeout
        )

    # ---- what is written -------------------------------------------------------------------------

    def checked(self, data: Any, batched: bool) -> Rows:
        """Records as rows; the first write of a declared buffer decides its fields."""
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
        if raw is None and not self.attachment.spec.refills_consumed:
            ticket = self.attachment.run(
                lambda segment: segment.extend(lane, count, addresses, 0, flags, SLICE_NS),
                call,
                timeout,
            )
            return _slots(lane, self._lane_capacity, ticket, count)
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
        self,
        lane: int,
        rows: Rows,
        raw: Floats | None,
        timeout: float | None,
        end: bool,
        admitted: bool,
    ) -> Slots:
        """More than half a lane goes in pieces, each whole for itself."""
        attachment = self.attachment
        deadline = deadline_of(timeout, attachment.default_timeout)
        capacity = self._lane_capacity
        longest = max(1, capacity // 2)
        if rows.count > capacity:
            self._warn_of_overwriting(rows.count - capacity, capacity)
        if raw is not None:
            self.desk.check(raw, "extend")
        if not admitted:
            self.admit(rows.count, max(0.0, deadline - time.monotonic()))
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
