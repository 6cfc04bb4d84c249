"""Batches of slices: pieces of trajectories, with their ends marked (floor F5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmrb.batches import SEQUENCE, VALIDITY, WEIGHT, BatchFormat
from shmrb.description import Path
from shmrb.drawn import Drawn
from shmrb.fields import Field
from shmrb.planner.units import Shape, slice_shape
from shmrb.schema import Schema
from shmrb.sequences import finished
from shmrb.slicing import marked_fields
from shmrb.spec import PrioritizedSampler, SliceSampler
from shmrb.windowing import Frame, as_array

MASK: Path = ("collector", "mask")


class SliceUnit:
    """What becomes of slices: their records, and marks at their ends and starts.

    Args:
        schema: of the records.
        name: "torch" or "numpy".
        sampler: the handle's.
    """

    hint = ""

    def __init__(self, schema: Schema, name: str, sampler: SliceSampler) -> None:
        self.sampler = sampler
        self._stored = BatchFormat(schema, name)
        self._flags = marked_fields(sampler, schema)
        more = [
            Field(path, "bool", (1,)) for path in self._flags.values() if path not in schema.paths
        ]
        shown = Schema((*schema.fields, *more), schema.root) if more else schema
        self.form = BatchFormat(shown, name) if more else self._stored
        self._places = {name: shown.find(path) for name, path in self._flags.items()}
        self._own = len(schema.fields)
        self._name = name
        # Of the last batch, since loops draw one of the same size again.
        self._known: tuple[tuple[int, int], tuple[Any, Any, Any]] = (0, 0), (None, None, None)
        init = sampler.init_path
        self._init = schema.find(init) if init in schema.paths else None

    def shape(self, batch_size: int) -> tuple[int, Shape]:
        """How many slices a batch of so many records holds, and their shape."""
        count, length = self.sampler.slices_of(batch_size)
        return count, slice_shape(self.sampler, length)

    def cost(self, windows: int, shape: Shape) -> int:
        """All records count, padding included."""
        return windows * shape.length

    def frame(self, windows: int, shape: Shape, out: Any) -> Frame:
        """Memory for so many slices."""
        rows = windows * shape.length
        batch = self.form.allocate(rows) if out is None else self.form.reuse(out, rows)
        frame = Frame.around(
            shape,
            windows,
            [batch.leaves],
            batch.addresses[: self._own],
            batch=batch,
            out=out,
        )
        if isinstance(self.sampler, PrioritizedSampler):
            frame.weights = np.empty(windows, np.float32)
        return frame

    def drawn(self, frame: Frame) -> Drawn:
        """The slices one after the other; short ones padded, or the batch shorter."""
        length = frame.shape.length
        firsts, lasts, numbers = self._places_of(frame.count, length)
        is_whole = bool(frame.valid.all())
        if not is_whole:
            lasts = firsts + frame.valid.reshape(-1, length).sum(axis=1) - 1
        self._mark(frame.leaves[0], firsts, lasts)
        beside: dict[str, Any] = {SEQUENCE: numbers.copy()}
        if frame.weights is not None:
            beside[WEIGHT] = frame.weights.repeat(length)
        if is_whole:
            return finished(self.form, frame, frame.leaves[0], beside)
        if self.sampler.pad_output:
            return self._masked(frame, beside)
        return self._shortened(frame, beside)

    def _places_of(self, count: int, length: int) -> tuple[Any, Any, Any]:
        """Rows of the first and last records of whole slices, and the slice of every row."""
        size, places = self._known
        if size != (count, length):
            firsts = np.arange(count) * length
            places = firsts, firsts + length - 1, np.arange(count).repeat(length)
            self._known = (count, length), places
        return places

    def _mark(self, leaves: list[Any], firsts: Any, lasts: Any) -> None:
        for name, place in self._places.items():
            flags = as_array(leaves[place]).reshape(-1)
            if name == "truncated" or place >= self._own:
                flags[:] = False
            if name != "terminated":
                flags[lasts] = True
        if self._init is not None:
            as_array(leaves[self._init]).reshape(-1)[firsts] = True

    def _masked(self, frame: Frame, beside: dict[str, Any]) -> Drawn:
        """With ("collector", "mask"), which only batches with a short slice have."""
        beside[VALIDITY] = frame.valid
        if self.form.schema.root != "dict" or MASK in self.form.schema.paths:
            return finished(self.form, frame, frame.leaves[0], beside)
        schema = Schema((*self.form.schema.fields, Field(MASK, "bool", ())))
        frame.out = None
        leaves = [*frame.leaves[0], self.form.from_numpy(frame.valid)]
        return finished(BatchFormat(schema, self._name), frame, leaves, beside)

    def _shortened(self, frame: Frame, beside: dict[str, Any]) -> Drawn:
        rows = np.flatnonzero(frame.valid)
        some = self.form.from_numpy(rows)
        frame.index, frame.generation = frame.index[rows], frame.generation[rows]
        frame.out = frame.stamps = None
        leaves = [leaf[some] for leaf in frame.leaves[0]]
        return finished(self.form, frame, leaves, {k: v[rows] for k, v in beside.items()})
