"""Queries: the trajectories of a buffer that a condition holds for, each whole (floor F5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from shmrb.batches import Batch
from shmrb.cells import Cells
from shmrb.description import Path
from shmrb.errors import SpecTypeError
from shmrb.fields import key_path
from shmrb.predicates import Elementwise
from shmrb.trajectories import Trajectory

# Records looked at together: enough that a call costs little, few enough to cost little memory.
LOOK_AT = 16_384

Predicate = Callable[[Trajectory], bool]


class _Span(NamedTuple):
    """Records of one trajectory: their lane and tickets."""

    lane: int
    first: int
    records: int


class Query:
    """One question to one buffer.

    Args:
        cells: the records of the handle that asks.
        predicate: says whether a trajectory is wanted; None: all are.
        trajectory_key: a field that parts trajectories further, where its value changes.
    """

    def __init__(self, cells: Cells, predicate: Predicate | None, trajectory_key: Any) -> None:
        if isinstance(predicate, Elementwise):
            predicate.refuse()
        if predicate is not None and not callable(predicate):
            raise SpecTypeError(
                f"query: expected a predicate, got {type(predicate).__name__}. Write one with "
                "shmrb.traj, or give a function of a Trajectory."
            )
        self._cells = cells
        self._attachment = cells.attachment
        self._predicate = predicate
        self._form = cells.form
        if self._form.schema.root != "dict":
            raise SpecTypeError("query: the records of this buffer have no named fields.")
        self._transforms = cells.transforms
        self._ids = None if trajectory_key is None else self._form.schema.find(trajectory_key)
        self._needed = self._columns(predicate)

    def run(self) -> Iterator[Trajectory]:
        """The trajectories, lane by lane, the oldest of each lane first."""
        for lane in range(self._attachment.spec.lanes):
            segment = self._attachment.segment or self._attachment.join()
            spans = [_Span(lane, first, records) for first, records, _, _ in segment.runs(lane)]
            for group in _grouped(spans):
                yield from self._wanted(group)

    def _columns(self, predicate: Predicate | None) -> list[int] | None:
        """Positions of the fields that decide; None: all of them are needed, or none decides."""
        keys = getattr(predicate, "required_keys", lambda: None)()
        if predicate is None or keys is None or self._transforms:
            return None
        paths: set[Path] = set()
        for key in keys:
            path = key_path(key)
            paths |= {path, ("next", *path)}
        fields = enumerate(self._form.schema.fields)
        return [i for i, field in fields if any(_lies_in(field.path, path) for path in paths)]

    def _wanted(self, spans: list[_Span]) -> Iterator[Trajectory]:
        """Those of a group that are wanted, read in full."""
        if self._ids is not None:
            spans = list(self._parted(spans))
        if self._needed is None or self._predicate is None:
            for span, data in self._read(spans, None):
                yield from self._full(span, data)
            return
        matching = [
            span
            for span, data in self._read(spans, self._needed)
            if self._predicate(_Lengthened(data, span.records))
        ]
        for group in _grouped(matching):
            for span, data in self._read(group, None):
                yield from self._full(span, data)

    def _full(self, span: _Span, data: Any) -> Iterator[Trajectory]:
        """A trajectory read in full, if it is wanted as it was read."""
        trajectory = Trajectory(self._transforms.after_reading(data) if self._transforms else data)
        if self._predicate is None or self._predicate(trajectory):
            yield trajectory

    def _parted(self, spans: list[_Span]) -> Iterator[_Span]:
        assert self._ids is not None
        path = self._form.schema.fields[self._ids].path
        for span, data in self._read(spans, [self._ids]):
            ids = np.asarray(Trajectory(data).get(path)).reshape(span.records, -1)
            cuts = np.flatnonzero((ids[1:] != ids[:-1]).any(axis=1)) + 1
            for start, end in pairwise([0, *cuts.tolist(), span.records]):
                yield _Span(span.lane, span.first + start, end - start)

    def _read(self, spans: list[_Span], columns: list[int] | None) -> Iterator[tuple[_Span, Any]]:
        """What is left of trajectories, and their fields.

        Records that were overwritten meanwhile are left out at the front; where one died in
        between, it parts what is before it from what is behind.
        """
        if not spans:
            return
        attachment = self._attachment
        capacity = attachment.spec.lane_capacity
        tickets = np.concatenate([np.arange(s.first, s.first + s.records) for s in spans])
        lanes = np.repeat([s.lane for s in spans], [s.records for s in spans])
        batch = self._cells.read_as_is(lanes * capacity + tickets % capacity, columns)
        # Heads move before anything is published, so a ticket that is still live now was read.
        segment = attachment.segment or attachment.join()
        bounds = [max(lane["floor"], lane["head"] - capacity) for lane in segment.lanes()]
        whole = (np.asarray(batch.generation) >= 0) & (tickets >= np.asarray(bounds)[lanes])
        start = 0
        for span in spans:
            for first, end in _stretches(whole[start : start + span.records]):
                rows = slice(start + first, start + end)
                yield _Span(span.lane, span.first + first, end - first), self._part(batch, rows)
            start += span.records

    def _part(self, batch: Batch, rows: slice) -> Any:
        leaves = [None if leaf is None else leaf[rows] for leaf in batch.leaves]
        return self._form.assemble(leaves, rows.stop - rows.start, {})


class _Lengthened(Trajectory):
    """A trajectory of which only some fields were read, perhaps none."""

    def __init__(self, data: Any, length: int) -> None:
        self.data = data
        self.length = length


def _lies_in(path: Path, above: Path) -> bool:
    return path[: len(above)] == above


def _stretches(whole: Any) -> list[tuple[int, int]]:
    """Where unbroken rows of True begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], whole, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _grouped(spans: list[_Span]) -> Iterator[list[_Span]]:
    """Groups of about as many records as are looked at together."""
    group: list[_Span] = []
    records = 0
    for span in spans:
        if group and records + span.records > LOOK_AT:
            yield group
            group, records = [], 0
        group.append(span)
        records += span.records
    if group:
        yield group
