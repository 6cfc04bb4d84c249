"""The part of a handle that addresses records by slot, and changes them in place (floor F5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shmrb.attached import Attached
from shmrb.cells import Cells
from shmrb.nesting import flat_fields

if TYPE_CHECKING:
    from typing_extensions import Self

    from shmrb.query import Predicate
    from shmrb.trajectories import Trajectory


class Slotwise(Attached):
    """Indexing, setters and stamps of `ReplayBuffer`.

    Nothing here changes generations, counts or the order of records. A record is read and changed
    as a whole, several one after the other.
    """

    _cells: Cells

    def __getitem__(self, index: Any) -> Any:
        """A copy of records, or of one field.

        An integer gives one record, an array of slots several; a slice or a mask ranges over the
        live records by slot; a key gives that field of all of them. Transforms run on what is read.

        Raises:
            IndexError: a slot that is named holds no live record.
            UnknownKeyError: no field bears the key.
        """
        return self._cells.get(index)

    def __setitem__(self, index: Any, data: Any) -> None:
        """Writes over live records in place; inverse transforms run on what is written.

        Raises:
            RecordError: keys, shapes or dtypes do not fit.
            IndexError: a slot that is named holds no live record. In both cases nothing is written.
            DeadlineError: a stopped client holds some record; earlier ones may be written.

        Concurrency: a reader sees each record as it was or as it is, never a part of both; a
        process that dies in the middle costs the one record it was changing.
        """
        self._cells.set(index, data, "__setitem__")

    def read_all_in_order(self, end: int | None = None) -> Any:
        """All records by slot, or the first `end` of them; a copy."""
        return self._cells.get(slice(end))

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Writes over all records in place, or the first `end` of them.

        None: all of a full buffer, else as many as `data` has. Errors as for `rb[index] = data`.
        """
        if end is None and len(self) < self._attachment.spec.capacity:
            self._cells.set_first(data, "write_all")
        else:
            self._cells.set(slice(end), data, "write_all")

    def set_at_(self, key: Any, value: Any, index: Any) -> Self:
        """Writes one field of some records in place, bypassing transforms; the handle itself.

        Args:
            key: the field.
            value: [N, *shape], of its dtype.
            index: as for reading: slots, a slice, or a mask.

        Raises as `rb[index] = data`; UnknownKeyError where no field bears the key.
        """
        self._cells.set_fields({key: value}, index, "set_at_")
        return self

    def set_(self, key: Any, value: Any) -> Self:
        """Writes one field of all records in place, [N, *shape]; otherwise as `set_at_`."""
        self._cells.set_fields({key: value}, slice(None), "set_")
        return self

    def update_(self, data: Any, clone: bool = False, *, keys_to_update: Any = None) -> Self:
        """Writes the given fields of all records in place, bypassing transforms.

        All are checked before the first is written; a record gets all of them in one step.

        Args:
            data: nested fields, [N, *shape] each.
            clone: accepted for TorchRL's sake: values are always copied.
            keys_to_update: only these; None: all of `data`.

        Raises as `set_at_`.
        """
        values = flat_fields(data)
        if keys_to_update is not None:
            wanted = {(key,) if isinstance(key, str) else tuple(key) for key in keys_to_update}
            values = {key: value for key, value in values.items() if key in wanted}
        self._cells.set_fields(values, slice(None), "update_")
        return self

    def query(
        self, predicate: Predicate | None = None, *, trajectory_key: Any = None
    ) -> list[Trajectory]:
        """The trajectories that a condition holds for.

        Trajectories are those the buffer knows: pieces of one episode by one writer, ended or
        open. Each is whole as far as it is still stored, while others write: the oldest may have
        lost its front, and what is returned is what the condition was asked of.

        Args:
            predicate: made with `shmrb.traj`, then only the fields it names are read to decide; or
                a function of a `Trajectory`, which sees all fields, transformed. None: all.
            trajectory_key: a field that parts them further, where its value changes.

        Returns:
            Lane by lane, the oldest first, in memory of the caller's.

        Raises:
            UnknownKeyError: a field that the predicate or `trajectory_key` names is not there.
            SpecTypeError: what is no condition, or compares records without `any()` or `all()`.

        Concurrency: any number of processes may write. Cost: one read of the fields that decide,
        and one of the trajectories that are wanted.
        """
        if not self.initialized:
            return []
        from shmrb.query import Query

        return list(Query(self._cells, predicate, trajectory_key).run())

    def coordinates(self, index: Any) -> Any:
        """Where slots [N] lie in their lanes: int64 [N, 2], position in the lane, and lane.

        Raises:
            RecordError: an index that is no slot.
        """
        return self._cells.coordinates(index)

    def generations_of(self, index: Any) -> Any:
        """The stamps of slots: int64 in the shape of `index`, -1 where there is no usable stamp.

        A stamp counts the writes into its slot: 0 for the first. Stamps are never given twice, not
        after `empty`, a restart or re-creation of the name.
        """
        return self._cells.generations(index)

    def __len__(self) -> int:
        """Records that may be drawn now."""
        return self._cells.count("size")

    @property
    def write_count(self) -> int:
        """Records ever written, since `empty(empty_write_count=True)`."""
        return self._cells.count("write_count")
