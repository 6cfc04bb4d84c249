"""Records by slot: reading them, and changing them in place (floor F5).

Both go in pieces, so that a read of the whole buffer costs little memory beside its result, and a
write of it never holds many claims. Each record is whole; no instant is common to all of them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from shmrb import core
from shmrb.appender import Appender
from shmrb.batches import Batch, BatchFormat
from shmrb.consumer import Consumer
from shmrb.copies import kept, read_batch
from shmrb.core import SLICE_NS
from shmrb.drawn import Drawn
from shmrb.errors import DeadlineError, RecordError, UnknownKeyError
from shmrb.fields import show_path
from shmrb.handles import whole_numbers
from shmrb.nesting import rows_of, with_first_dimension
from shmrb.planner.populations import Slots, live_slots
from shmrb.records import is_tensor
from shmrb.transforms import Transforms
from shmrb.waiting import Call, deadline_of

# A read holds up nobody, a write claims its slots: the one may be long, the other may not.
READ_ROWS = 65_536
WRITE_ROWS = 1_024


class _Slots(NamedTuple):
    """What an index stands for.

    Attributes:
        slots: int64, one-dimensional.
        are_named: each of them must hold a record; else those that do not are left out.
        shape: of the index, () for a single record.
    """

    slots: Slots
    are_named: bool
    shape: tuple[int, ...]


class Cells:
    """The records of one handle, addressed by slot.

    An integer or an array names slots; a slice or a boolean mask ranges over those that hold live
    records, in ascending order; a key names a field, or the fields below it, of all records.

    Args:
        appender, consumer: the halves of the handle, which know what its data looks like.
        transforms: the handle's.
    """

    def __init__(self, appender: Appender, consumer: Consumer, transforms: Transforms) -> None:
        self.attachment = consumer.attachment
        self._appender = appender
        self._consumer = consumer
        self.transforms = transforms

    @property
    def form(self) -> BatchFormat:
        """How records look to this handle."""
        return self._consumer.form

    # ---- reading ---------------------------------------------------------------------------------

    def get(self, index: Any) -> Any:
        """A copy of the records or of the field that the index stands for.

        Raises:
            IndexError: a named slot holds no live record.
            UnknownKeyError: there is no such field.
        """
        if is_key(index):
            return self._field(index)
        form = self._consumer.form
        wanted = self._wanted(index)
        drawn = self._read(wanted.slots)
        if wanted.are_named and drawn.count < len(wanted.slots):
            raise self._no_record(wanted.slots)
        leaves = drawn.batch.leaves
        if wanted.shape == ():
            data = form.assemble([leaf[0] for leaf in leaves], None, {})
        elif len(wanted.shape) == 1:
            data = form.assemble(leaves, drawn.count, {})
        else:
            raise IndexError(
                f"index: expected at most one dimension, got shape {list(wanted.shape)}. Flatten "
                "it: records are numbered by their slot alone."
            )
        return self.transforms.after_reading(data)

    def _field(self, key: Any) -> Any:
        path = (key,) if isinstance(key, str) else tuple(key)
        if self.transforms:
            data = self.get(slice(None))
        else:
            form = self._consumer.form
            columns = [i for i, p in enumerate(form.schema.paths) if p[: len(path)] == path]
            if form.schema.root != "dict":
                raise UnknownKeyError(f"no field {show_path(path)}: records have no named fields.")
            if not columns:
                form.schema.find(path)  # raises, and lists those that there are
            drawn = self._read(self._live(), columns)
            data = form.assemble(drawn.batch.leaves, drawn.count, {})
        for part in path:
            data = data[part]
        return data

    def _read(self, slots: Slots, columns: Collection[int] | None = None) -> Drawn:
        """The records of these slots; those that died meanwhile are left out."""
        return kept(self._consumer.form, self.read_as_is(slots, columns))

    def read_as_is(self, slots: Slots, columns: Collection[int] | None = None) -> Batch:
        """The records of these slots; where there is none, generation −1 and nothing in its row."""
        form = self._consumer.form
        batch = form.allocate(len(slots), columns)
        np.asarray(batch.index)[:] = slots
        for start in range(0, len(slots), READ_ROWS):
            places = [
                place + start * stride if place else 0
                for place, stride in zip(batch.addresses, form.strides, strict=True)
            ]
            self._read_piece(batch, places, start, min(READ_ROWS, len(slots) - start))
        return batch

    def _read_piece(self, batch: Batch, places: list[int], start: int, count: int) -> None:
        piece = batch._replace(
            addresses=places,
            index_address=batch.index_address + 8 * start,
            generation_address=batch.generation_address + 8 * start,
        )
        self.attachment.run(lambda segment: read_batch(segment, piece, count), Call("read"))

    # ---- changing in place -----------------------------------------------------------------------

    def set(self, index: Any, data: Any, name: str) -> None:
        """Writes over whole records: stamps, order and counts stay."""
        if is_key(index):
            self.set_fields({index: data}, slice(None), name)
            return
        wanted = self._wanted(index)
        data = self.transforms.before_writing(data)
        if data is None:
            return
        slots = self._slots_to_change(wanted)
        reader = self._appender.reader()
        rows = reader.record(data) if wanted.shape == () else reader.batch(data)
        if rows.count != len(slots):
            raise RecordError(
                f"{name}: expected {len(slots)} records, one for each slot that the index stands "
                f"for, got {rows.count}."
            )
        columns = list(range(len(reader.strides)))
        self._write(slots, columns, rows.addresses, reader.strides, name)

    def set_first(self, data: Any, name: str) -> None:
        """Writes over the records in the first slots, as many as `data` has."""
        self.set(slice(rows_of(data)), data, name)

    def set_fields(self, values: Mapping[Any, Any], index: Any, name: str) -> None:
        """Some fields of the records; all values are checked before the first is written."""
        reader = self._appender.reader()
        for key in values:
            reader.schema.find(key)
        wanted = self._wanted(index)
        slots = self._slots_to_change(wanted)
        if wanted.shape == ():
            values = {key: with_first_dimension(value) for key, value in values.items()}
        checked = [reader.values(key, value, len(slots)) for key, value in values.items()]
        columns = [position for position, _ in checked]
        places = [core.address(array) for _, array in checked]
        self._write(slots, columns, places, [reader.strides[i] for i in columns], name)

    def _slots_to_change(self, wanted: _Slots) -> Slots:
        """Those that hold a record now.

        Raises:
            IndexError: a named one does not.
        """
        stamps = np.asarray(self._read(wanted.slots, ()).batch.index)
        if wanted.are_named and len(stamps) < len(wanted.slots):
            raise self._no_record(wanted.slots)
        return np.ascontiguousarray(stamps, dtype=np.int64)

    def _write(
        self,
        slots: Slots,
        columns: list[int],
        addresses: list[int],
        strides: list[int],
        name: str,
    ) -> None:
        """Writes new values over live records, in pieces.

        Raises:
            DeadlineError: `written` says how many records were changed.
        """
        deadline = deadline_of(None, self.attachment.default_timeout)
        verdicts = np.empty(len(slots), np.uint8)
        for start in range(0, len(slots), WRITE_ROWS):
            count = min(WRITE_ROWS, len(slots) - start)
            index = core.address(slots) + 8 * start
            values = [a + start * s for a, s in zip(addresses, strides, strict=True)]
            verdict = core.address(verdicts) + start
            try:
                self._write_piece(index, count, columns, values, verdict, deadline, name)
            except DeadlineError as error:
                error.written = start
                raise

    def _write_piece(
        self,
        index: int,
        count: int,
        columns: list[int],
        values: list[int],
        verdicts: int,
        deadline: float,
        name: str,
    ) -> None:
        self.attachment.run(
            lambda segment: segment.update(
                index, count, 0, columns, values, 0, False, verdicts, SLICE_NS
            ),
            Call(name),
            max(0.0, deadline - time.monotonic()),
        )

    # ---- which slots -----------------------------------------------------------------------------

    def _live(self) -> Slots:
        """Slots under live tickets, ascending; some may hold no record."""
        attachment = self.attachment
        attachment.run(lambda segment: segment.size(), Call("read"))
        return live_slots(attachment.segment or attachment.join(), attachment.spec.lane_capacity)

    def _wanted(self, index: Any) -> _Slots:
        if index is Ellipsis:
            index = slice(None)
        if isinstance(index, slice):
            slots = self._live()[index]
            return _Slots(slots, False, slots.shape)
        if isinstance(index, tuple) and len(index) == 1:  # coordinates of one dimension
            index = index[0]
        array = as_slots(index)
        if array.dtype != np.bool_:
            return _Slots(self._in_range(array.reshape(-1)), True, array.shape)
        live = self._live()
        if array.shape != live.shape:
            raise IndexError(
                f"mask: expected one entry for each of {len(live)} live slots, got shape "
                f"{list(array.shape)}."
            )
        return _Slots(live[array], False, (int(array.sum()),))

    def _in_range(self, slots: Slots) -> Slots:
        outside = (slots < 0) | (slots >= self.attachment.spec.capacity)
        if outside.any():
            raise IndexError(
                f"slot {int(slots[outside][0])} is not one of {self.attachment.spec.capacity}; "
                "slots are counted from 0, and negative ones stand for nothing."
            )
        return slots

    def _no_record(self, slots: Slots) -> IndexError:
        alive = set(np.asarray(self._read(slots, ()).batch.index).tolist())
        dead = [slot for slot in slots.tolist() if slot not in alive]
        return IndexError(f"slot {dead[0] if dead else int(slots[0])} holds no live record.")

    # ---- counts ----------------------------------------------------------------------------------

    def count(self, what: Literal["size", "write_count"]) -> int:
        """Records that may be drawn now, or that were ever written; 0 before the first write."""
        if self.attachment.try_join() is None:
            return 0
        return self.attachment.run(lambda segment: getattr(segment, what)(), Call(what))

    # ---- stamps ----------------------------------------------------------------------------------

    def generations(self, index: Any) -> Any:
        """Public stamps of any index, in its shape; -1 where there is no usable stamp."""
        slots = as_slots(index[0] if isinstance(index, tuple) else index)
        if slots.dtype == np.bool_:
            raise RecordError("generations_of: expected slots, got a mask.")
        out = np.full(slots.shape, -1, np.int64)
        if self.attachment.try_join() is not None:
            flat = np.ascontiguousarray(slots, dtype=np.int64)
            self.attachment.run(
                lambda segment: segment.generations(
                    core.address(flat), flat.size, core.address(out)
                ),
                Call("generations_of"),
            )
        stamps = self._consumer.int64(out)
        return stamps.to(index.device) if is_tensor(index) and is_tensor(stamps) else stamps

    def coordinates(self, index: Any) -> Any:
        """Position in the lane and lane of each slot, [N, 2]."""
        slots = whole_numbers(index, "coordinates")
        spec = self.attachment.spec
        outside = np.flatnonzero((slots < 0) | (slots >= spec.capacity))
        if len(outside):
            row = int(outside[0])
            raise RecordError(
                f"coordinates: row {row} is {int(slots[row])}: expected slots of 0 to "
                f"{spec.capacity - 1}."
            )
        lanes, positions = np.divmod(slots, spec.lane_capacity)
        return self._consumer.int64(np.stack([positions, lanes], axis=1))


def is_key(index: Any) -> bool:
    """Whether an index names a field instead of slots."""
    if isinstance(index, tuple):
        return bool(index) and all(isinstance(part, str) for part in index)
    return isinstance(index, str)


def as_slots(index: Any) -> Slots:
    """An index as an array: int64 slots or a boolean mask, in its own shape.

    Raises:
        RecordError: it holds something else.
    """
    array = index.detach().cpu().numpy() if is_tensor(index) else np.asarray(index)
    if array.size == 0 and array.dtype.kind == "f":  # an empty list
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in "iub":
        raise RecordError(f"index: expected whole numbers or a mask, got {array.dtype}.")
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise RecordError(f"index: {int(array.max())} is beyond every slot.")
    return array if array.dtype.kind == "b" else array.astype(np.int64, copy=False)
