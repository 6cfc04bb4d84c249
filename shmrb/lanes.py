"""`Lane`: one stream of a buffer, or several side by side, held by one writer (floor F5)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from shmrb import core
from shmrb.core import SLICE_NS
from shmrb.description import Path, whole
from shmrb.errors import ClosedError, DeadlineError, ReadOnlyError, RecordError, SpecError
from shmrb.fields import show_path
from shmrb.handles import Handles
from shmrb.leases import Leases
from shmrb.likeness import is_mapping
from shmrb.planner.populations import Slots
from shmrb.records import Rows, is_tensor
from shmrb.waiting import Call, deadline_of

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from shmrb.buffer import ReplayBuffer


class Lane:
    """Lanes of a buffer that this handle alone writes, until it gives them back or dies.

    `ReplayBuffer.lane` makes it. What is written through it stays in order: no other writer's
    record comes between. With `count` lanes the data are blocks [T, count, ...], time first, and
    column i goes to the i-th of them, as the environments of a vector do.

    Args:
        buffer: the handle that writes.
        count: lanes.
        rotate: go on in the free lane that was written least recently when a trajectory has ended,
            so that no lane keeps old records for ever.
        timeout: seconds to wait for free lanes; None: the handle's default.

    Raises:
        LaneBusyError: too few were free in time; the message names the owners.

    Concurrency: belongs to one thread. Writers in different lanes take no common lock, unless the
    buffer has priorities, a limiter or consumption.
    """

    def __init__(
        self, buffer: ReplayBuffer, *, count: int, rotate: bool, timeout: float | None
    ) -> None:
        attachment = buffer._attachment
        if attachment.role != "member":
            raise ReadOnlyError(
                f"lane: this handle is attached as {attachment.role}, which may not write. Attach "
                "as a member."
            )
        lanes = attachment.spec.lanes
        count = whole("count", count, least=1)
        if count > lanes:
            raise SpecError(
                f"lane: {count} lanes are wanted and {buffer.name} has {lanes}. Create it with "
                f"storage=SharedStorage(capacity, lanes={count}) or more."
            )
        self._buffer = buffer
        self._appender = buffer._appender
        self._leases = Leases(attachment, count, rotate, "lane")
        self._count = count
        self._is_closed = False
        if buffer.initialized:  # else there is nothing to lease yet
            self._take(deadline_of(timeout, attachment.default_timeout))

    @property
    def lanes(self) -> tuple[int, ...]:
        """The numbers of the lanes, in the order of the columns."""
        if self._buffer._attachment.spec.lanes == 1:
            return (0,)
        return tuple(self._leases.lanes)

    # ---- writing ---------------------------------------------------------------------------------

    def extend(self, data: Any, *, timeout: float | None = None) -> Any:
        """Appends records.

        Args:
            data: as for `ReplayBuffer.extend`; with several lanes, [T, count, *shape] a field.
            timeout: seconds to wait for the limiter or a stopped client.

        Returns:
            int64 [T * count], the slots in the order of the block, time first.

        Raises:
            RecordError: keys, shapes or dtypes do not fit. Nothing is written.
            DeadlineError: its `written` says how many records are in, lane after lane.
        """
        return self._append(data, True, timeout)

    def add(self, data: Any, *, timeout: float | None = None) -> Any:
        """Appends one record a lane, without the first dimension: [count, *shape] a field.

        With a single lane it is one record, and the slot an int.

        Raises as `extend`.
        """
        if self._count == 1:
            return int(self._append(data, False, timeout)[0])
        return self._append(data, False, timeout)

    def end_trajectory(
        self,
        *,
        truncated: bool = False,
        lanes: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """The next record of a lane starts another trajectory.

        Args:
            truncated: also set the done and truncated fields of the newest record, in place: the
                episode was cut short, and may be bootstrapped from. False leaves the record as it
                is.
            lanes: places in `lanes`, that is columns; None: all.
            timeout: seconds to wait for a stopped client.
        """
        self._require_open("end_trajectory")
        deadline = deadline_of(timeout, self._buffer._attachment.default_timeout)
        places = range(self._count) if lanes is None else [self._place(place) for place in lanes]
        for place in places:
            lane = self.lanes[place]
            if truncated:
                self._mark_truncated(lane, deadline)
            self._appender.end(lane, _left(deadline))

    def _append(self, data: Any, batched: bool, timeout: float | None) -> Any:
        self._require_open("extend" if batched else "add")
        buffer, count = self._buffer, self._count
        deadline = deadline_of(timeout, buffer._attachment.default_timeout)
        if buffer._transforms:
            data = buffer._transforms.before_writing(data)
            if data is None:
                return buffer._consumer.int64(np.empty(0, np.int64))
        if count > 1:
            data = lane_first(data, count, batched)
        is_batch = batched or count > 1
        appender = self._appender
        rows, raw = self._rows(data, is_batch)
        self._take(deadline)
        admitted = count > 1 and appender.admit(rows.count, _left(deadline))
        each = rows.count // count
        slots = np.empty((each, count), np.int64)
        strides = appender.reader().strides
        for place in range(count):
            start = place * each
            part = Rows(each, rows.tail(start, strides), rows.owners)
            some = None if raw is None else raw[start : start + each]
            try:
                slots[:, place] = self._put(place, part, some, deadline, admitted)
            except DeadlineError as error:
                error.written += start
                raise
        return buffer._consumer.int64(slots.reshape(-1))

    def _rows(self, data: Any, batched: bool) -> tuple[Rows, Any]:
        """Checked records and the priorities that came with them."""
        appender, raw = self._appender, None
        if appender.desk.is_kept:
            data, raw = appender.desk.split(data, batched)
        rows = appender.checked(data, batched)
        if raw is not None and len(raw) != rows.count:
            raise appender.desk.miscounted(raw, rows.count)
        return rows, raw

    def _put(
        self,
        place: int,
        rows: Rows,
        raw: Any,
        deadline: float,
        admitted: bool = False,
        end: bool = False,
    ) -> Slots:
        if self._buffer._attachment.spec.lanes == 1:
            return self._appender.put(0, rows, raw, _left(deadline), end, admitted)
        lane = self._leases.turn(place, deadline)
        try:
            return self._appender.put(lane, rows, raw, _left(deadline), end, admitted)
        finally:
            self._leases.rest()

    def column(self, place: int) -> Column:
        """One of the lanes by itself."""
        return Column(self, self._place(place))

    def _mark_truncated(self, lane: int, deadline: float) -> None:
        """Sets the flags of the lane's newest record, unless somebody else wrote it."""
        attachment = self._buffer._attachment
        paths = [path for path in attachment.spec.done_keys if path[-1] in ("done", "truncated")]
        if not paths:
            return
        stamp = np.empty(1, np.int64)
        slot = attachment.run(
            lambda segment: segment.newest(lane, core.address(stamp), SLICE_NS),
            Call("end_trajectory"),
            _left(deadline),
        )
        schema = self._appender.reader().schema
        shapes = {path: schema.fields[schema.find(path)].shape for path in paths}
        patch = {path: np.ones((1, *shape), np.bool_) for path, shape in shapes.items()}
        newest = Handles(np.array([slot]), stamp)
        self._buffer._updates.update(newest, patch, None, None, False, _left(deadline))

    # ---- whose they are --------------------------------------------------------------------------

    def _take(self, deadline: float) -> None:
        if self._buffer._attachment.spec.lanes > 1:
            self._leases.take(deadline)

    def _place(self, place: Any) -> int:
        return whole("lanes", place, least=0, most=self._count - 1)

    def _require_open(self, name: str) -> None:
        if self._is_closed:
            raise ClosedError(f"{name}: this lane of {self._buffer.name} was given back.")

    def close(self) -> None:
        """Gives the lanes back; what is open in them is cut there. Again: nothing."""
        self._is_closed = True
        self._leases.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else ", ".join(map(str, self.lanes))
        return f"Lane({self._buffer.name!r}, {state})"


class Column:
    """One lane of several, for who writes each at its own pace; without transforms.

    `Lane.column` makes it.
    """

    def __init__(self, lane: Lane, place: int) -> None:
        self._lane = lane
        self._place = place

    def append(self, data: Any, batched: bool, timeout: float | None, end: bool = False) -> Slots:
        """Writes records; their slots.

        Args and errors as for `Appender.append`.
        """
        lane = self._lane
        lane._require_open("extend")
        deadline = deadline_of(timeout, lane._buffer._attachment.default_timeout)
        rows, raw = lane._rows(data, batched)
        return lane._put(self._place, rows, raw, deadline, end=end)

    def end_trajectory(self, timeout: float | None) -> None:
        """The next record of this lane starts another trajectory."""
        self._lane.end_trajectory(lanes=(self._place,), timeout=timeout)


def lane_first(data: Any, lanes: int, batched: bool, path: Path = ()) -> Any:
    """Blocks [T, lanes, *shape], or [lanes, *shape], as records: the first lane's, then the next's.

    Raises:
        RecordError: a field has another number of lanes.
    """
    if is_mapping(data):
        return {
            key: lane_first(value, lanes, batched, (*path, *_parts(key)))
            for key, value in data.items()
        }
    if isinstance(data, tuple):
        return tuple(
            lane_first(part, lanes, batched, (*path, str(place))) for place, part in enumerate(data)
        )
    where = f"field {show_path(path)}" if path else "the record"
    if is_tensor(data):
        block = data
    else:
        try:
            block = np.asarray(data)
        except ValueError as error:
            raise RecordError(f"{where}: ragged values ({error}).") from None
    axis = int(batched)
    shape = tuple(block.shape)
    if len(shape) <= axis or shape[axis] != lanes:
        expected = f"[T, {lanes}, ...]" if batched else f"[{lanes}, ...]"
        raise RecordError(
            f"{where}: expected {expected}, one column a lane, got shape {list(shape)}."
        )
    if not batched:
        return data
    turned = block.transpose(0, 1) if is_tensor(block) else block.swapaxes(0, 1)
    turned = turned.reshape((lanes * shape[0], *shape[2:]))
    # Plain numbers take their column's dtype, arrays must have it.
    return turned if hasattr(data, "dtype") else turned.tolist()


def _parts(key: Any) -> Path:
    return (key,) if isinstance(key, str) else tuple(map(str, key))


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
