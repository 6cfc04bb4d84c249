"""Records by slot: reading them, and changing them in place (floor F5).

Both go in pieces, so that a whole-buffer read costs little memory beside its result and a whole-buffer
write never holds many claims. Each record is whole; no instant is common to all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from shmrb.attachment import Attachment
from shmrb.batches import Batch, BatchFormat
from shmrb.consumer import Drawn, kept, read_batch
from shmrb.core import SLICE_NS
from shmrb.errors import DeadlineError, RecordError
from shmrb.planner.populations import Slots, chronological_slots, live_slots, windows
from shmrb.records import RecordReader, is_tensor
from shmrb.waiting import Call, deadline_of

# A read holds up nobody, a write claims its slots: the one may be long, the other may not.
READ_ROWS = 65_536
WRITE_ROWS = 1_024


class Cells:
    """The records of one attachment, addressed by slot.

    Args:
        attachment: where they are.
    """

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment

    def slots(self, index: Any) -> tuple[Slots, bool]:
        """The slots that an index names, and whether it names a single record.

        An integer or an array names slots; a slice or a boolean mask ranges over the live slots in
        ascending order.

        Raises:
            IndexError: a slot is outside the buffer or holds no live record.
        """
        if isinstance(index, slice):
            return self.live()[index], False
        if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
            return self._checked(np.array([index], dtype=np.int64)), True
        array = as_slots(index)
        if array.dtype == np.bool_:
            live = self.live()
            if array.shape != live.shape:
                raise IndexError(
                    f"mask: expected one entry for each of {len(live)} live records, got shape "
                    f"{list(array.shape)}."
                )
            return live[array], False
        return self._checked(array.reshape(-1)), False

    def live(self) -> Slots:
        """Slots under live tickets, ascending."""
        attachment = self.attachment
        segment = attachment.segment or attachment.join()
        return live_slots(segment, attachment.spec.lane_capacity)

    def in_order(self) -> Slots:
        """Slots under live tickets, oldest first in each lane."""
        attachment = self.attachment
        segment = attachment.segment or attachment.join()
        return chronological_slots(segment, attachment.spec.lane_capacity)

    def read(self, form: BatchFormat, slots: Slots, columns: Iterable[int] | None = None) -> Drawn:
        """The records of these slots; those that died meanwhile are left out.

        Args:
            form: how the batch looks.
            slots: which.
            columns: positions of the fields to read; None: all.
        """
        batch = form.allocate(len(slots))
        np.asarray(batch.index)[:] = slots
        wanted = None if columns is None else set(columns)
        strides = [field.row_bytes for field in form.schema.fields]
        for start in range(0, len(slots), READ_ROWS):
            count = min(READ_ROWS, len(slots) - start)
            places = [
                address + start * stride if wanted is None or i in wanted else 0
                for i, (address, stride) in enumerate(zip(batch.addresses, strides, strict=True))
            ]
            piece = Batch(
                [],
                None,
                None,
                places,
                batch.index_address + 8 * start,
                batch.generation_address + 8 * start,
            )
            read_batch(self.attachment, piece, count, Call("read"), None)
        return kept(form, batch)

    def write(
        self,
        slots: Slots,
        columns: list[int],
        addresses: list[int],
        strides: list[int],
        timeout: float | None,
        name: str,
    ) -> None:
        """Writes new values of some fields over live records, in pieces.

        Raises:
            DeadlineError: `written` says how many records were changed.
        """
        slots = np.ascontiguousarray(slots, dtype=np.int64)
        deadline = deadline_of(timeout, self.attachment.default_timeout)
        verdicts = np.empty(len(slots), np.uint8)
        for start in range(0, len(slots), WRITE_ROWS):
            count = min(WRITE_ROWS, len(slots) - start)
            values = [a + start * s for a, s in zip(addresses, strides, strict=True)]
            index = slots.ctypes.data + 8 * start
            verdict = verdicts.ctypes.data + start
            try:
                self.attachment.run(
                    lambda segment, index=index, count=count, values=values, verdict=verdict: (
                        segment.update(
                            index, count, 0, columns, values, 0, False, verdict, SLICE_NS
                        )
                    ),
                    Call(name),
                    max(0.0, deadline - time.monotonic()),
                )
            except DeadlineError as error:
                error.written = start
                raise

    def write_records(
        self, reader: RecordReader, slots: Slots, data: Any, single: bool, name: str
    ) -> None:
        """Whole records in place: generations, order and counts stay."""
        rows = reader.record(data) if single else reader.batch(data)
        if rows.count != len(slots):
            raise RecordError(
                f"{name}: expected {len(slots)} records, one for each slot addressed, got "
                f"{rows.count}."
            )
        columns = list(range(len(reader.strides)))
        self.write(slots, columns, rows.addresses, reader.strides, None, name)

    def write_fields(
        self, reader: RecordReader, slots: Slots, values: dict[Any, Any], name: str
    ) -> None:
        """Some fields in place; all values are checked before the first is written."""
        checked = [reader.values(key, value, len(slots)) for key, value in values.items()]
        columns = [position for position, _ in checked]
        addresses = [array.ctypes.data for _, array in checked]
        strides = [reader.strides[position] for position in columns]
        self.write(slots, columns, addresses, strides, None, name)

    def generations(self, index: Any, form_like: Callable[[Any], Any]) -> Any:
        """Public stamps of any index, in its shape; -1 where there is no usable stamp."""
        slots = as_slots(index[0] if isinstance(index, tuple) else index)
        if slots.dtype.kind not in "iu":
            raise RecordError(f"generations_of: expected slots, got {slots.dtype}.")
        flat = np.ascontiguousarray(slots.reshape(-1), dtype=np.int64)
        out = np.empty(len(flat), np.int64)
        self.attachment.run(
            lambda segment: segment.generations(flat.ctypes.data, len(flat), out.ctypes.data),
            Call("generations_of"),
        )
        stamps = form_like(out.reshape(slots.shape))
        return stamps.to(index.device) if is_tensor(index) else stamps

    def _checked(self, slots: Slots) -> Slots:
        attachment = self.attachment
        lane_capacity = attachment.spec.lane_capacity
        live = np.asarray(windows(attachment.segment or attachment.join(), lane_capacity))
        outside = (slots < 0) | (slots >= attachment.spec.capacity)
        if not outside.any():
            outside = slots % lane_capacity >= live[slots // lane_capacity]
        if outside.any():
            raise IndexError(
                f"slot {int(slots[outside][0])} holds no live record: expected slots of the "
                f"{int(live.sum())} that do, counted from 0."
            )
        return np.ascontiguousarray(slots, dtype=np.int64)


def as_slots(index: Any) -> Slots:
    """An index as an array: int64 slots or a boolean mask, in its own shape."""
    array = index.detach().cpu().numpy() if is_tensor(index) else np.asarray(index)
    if array.size == 0 and array.dtype.kind == "f":
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in "iub":
        raise RecordError(f"index: expected whole numbers or a mask, got {array.dtype}.")
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise RecordError(f"index: {int(array.max())} is beyond every slot.")
    return array if array.dtype.kind == "b" else array.astype(np.int64, copy=False)
