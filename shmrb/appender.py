"""Appending records: checked rows, one native call a chunk (floor F5)."""

from __future__ import annotations

import threading
import time
import warnings
from typing import Any

import numpy as np

from shmrb.attachment import Attachment
from shmrb.core import SLICE_NS, Bell, Counter, Segment, Status, WriteFlag
from shmrb.errors import DeadlineError, LaneBusyError, ReadOnlyError, RecordError
from shmrb.planner.populations import Slots
from shmrb.records import RecordReader, Rows
from shmrb.schema import schema_like
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
    """

    def __init__(self, attachment: Attachment, cast: str) -> None:
        self.attachment = attachment
        self.cast = cast
        self._reader: RecordReader | None = None
        self._lane: int | None = None
        self._leased_in: Segment | None = None
        self._leasing = threading.Lock()
        self._warned = False

    def reader(self) -> RecordReader:
        """What checks records; exists once the schema is known."""
        if self._reader is None:
            if not self.attachment.is_joined:
                self.attachment.join()
            schema = self.attachment.spec.schema
            assert schema is not None
            self._reader = RecordReader(schema, self.cast)
        return self._reader

    def append(self, data: Any, batched: bool, timeout: float | None, end: bool = False) -> Slots:
        """Writes records; their slots, in the order of the input.

        `end` says that the last row ends its trajectory, whatever its done fields say.

        Raises:
            RecordError: nothing is written.
            DeadlineError: nothing is written, unless the call was longer than half a lane; then
                `written` says how many rows are in.
        """
        self._check_writer()
        rows = self._rows(data, batched)
        if rows.count == 0:
            raise RecordError(f"Expected at least one element in extend. Got data={data}")
        deadline = deadline_of(timeout, self.attachment.default_timeout)
        lane = self.lane(deadline)
        capacity = self.attachment.spec.lane_capacity
        longest = max(1, capacity // 2)
        if rows.count <= longest:
            flags = WriteFlag.END_TRAJECTORY if end else 0
            ticket = self._chunk(lane, rows.count, rows.addresses, flags, deadline, rows.count)
            return lane * capacity + (ticket + np.arange(rows.count)) % capacity
        return self._append_long(lane, rows, longest, deadline, end)

    def lane(self, deadline: float) -> int:
        """The lane this handle writes: the only one, or one it leases at first use and keeps."""
        attachment = self.attachment
        if attachment.spec.lanes == 1:
            return 0
        with self._leasing:
            segment = attachment.segment or attachment.join()
            if self._lane is not None and segment is self._leased_in:
                return self._lane
            while True:
                status, lane, _, _, _ = segment.lease(-1)
                if status == Status.OK:
                    self._lane, self._leased_in = lane, segment
                    return lane
                if time.monotonic() >= deadline:
                    raise LaneBusyError(self._lanes_taken())
                time.sleep(LOOK_FOR_LANE_EVERY_S)

    def end_trajectory(self, timeout: float | None) -> None:
        """The next record of this handle starts another trajectory."""
        lane = self.lane(deadline_of(timeout, self.attachment.default_timeout))
        self.attachment.run(
            lambda segment: segment.end_trajectory(lane, SLICE_NS), Call("end_trajectory"), timeout
        )

    def _check_writer(self) -> None:
        if isinstance(self.attachment.spec.writer, ImmutableWriter):
            raise ReadOnlyError("This dataset doesn't allow writing.")

    def _rows(self, data: Any, batched: bool) -> Rows:
        if self._reader is None and not self.attachment.is_joined:
            self._publish(data, batched)
        reader = self.reader()
        return reader.batch(data) if batched else reader.record(data)

    def _publish(self, data: Any, batched: bool) -> None:
        """The first write decides the schema; whoever loses that race is checked against it."""
        if self.attachment.spec.schema is not None or self.attachment.is_closed:
            return
        if batched and isinstance(data, list):
            if not data:
                raise RecordError(f"Expected at least one element in extend. Got data={data}")
            data, batched = data[0], False
        self.attachment.publish(schema_like(data, batched=batched))

    def _append_long(
        self, lane: int, rows: Rows, longest: int, deadline: float, end: bool
    ) -> Slots:
        capacity = self.attachment.spec.lane_capacity
        if rows.count > capacity:
            self._note_overwritten(rows.count - capacity, capacity)
        if self.attachment.spec.limiter is not None:
            self._admit(rows.count, deadline)
        slots = np.empty(rows.count, np.int64)
        strides = self.reader().strides
        for start in range(0, rows.count, longest):
            count = min(longest, rows.count - start)
            addresses = rows.tail(start, strides)
            flags = int(WriteFlag.ADMITTED)
            if end and start + count == rows.count:
                flags |= WriteFlag.END_TRAJECTORY
            try:
                ticket = self._chunk(lane, count, addresses, flags, deadline, rows.count)
            except DeadlineError as error:
                error.written = start
                raise
            slots[start : start + count] = lane * capacity + (ticket + np.arange(count)) % capacity
        return slots

    def _chunk(
        self, lane: int, count: int, addresses: list[int], flags: int, deadline: float, of: int
    ) -> int:
        return self.attachment.run(
            lambda segment: segment.extend(lane, count, addresses, 0, flags, SLICE_NS),
            Call("extend", of, Bell.ROOM),
            max(0.0, deadline - time.monotonic()),
        )

    def _admit(self, count: int, deadline: float) -> None:
        self.attachment.run(
            lambda segment: segment.admit(count, SLICE_NS),
            Call("extend", count, Bell.ROOM),
            max(0.0, deadline - time.monotonic()),
        )

    def _note_overwritten(self, count: int, capacity: int) -> None:
        segment = self.attachment.segment or self.attachment.join()
        segment.count(Counter.OVERWRITTEN_IN_CALL, count)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"extend: more records in one call than a lane of {capacity} holds: the first "
                f"{count} of them are overwritten by the last before anybody can draw them.",
                stacklevel=5,
            )

    def _lanes_taken(self) -> str:
        segment = self.attachment.segment or self.attachment.join()
        owners = (snapshot.client(segment, lane.lease) for lane in snapshot.lanes(segment))
        named = ", ".join(sorted({str(owner) for owner in owners if owner is not None}))
        return (
            f"extend: all {self.attachment.spec.lanes} lanes of {self.attachment.address.name} are "
            f"leased, by {named}. Create the buffer with more lanes, or close a handle that writes."
        )

