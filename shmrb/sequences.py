"""Batches of sequences: windows of records around anchors (floor F5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmrb.batches import (
    ANCHOR,
    ANCHOR_GENERATION,
    LEARNING,
    SEQUENCE,
    STEP,
    VALIDITY,
    WEIGHT,
    Batch,
    BatchFormat,
)
from shmrb.drawn import Drawn
from shmrb.planner.units import Shape
from shmrb.windowing import Frame


class SequenceUnit:
    """What becomes of the windows of a `Sequence`: its records, and masks beside them.

    Args:
        form: of the records.
        shape: of the windows.
        by_mass: whether anchors have importance weights.
    """

    hint = ""

    def __init__(self, form: BatchFormat, shape: Shape, by_mass: bool) -> None:
        self.form = form
        self._shape = shape
        self._by_mass = by_mass
        steps = np.arange(shape.steps)
        self._steps = steps
        self._learning = (steps >= shape.burn_in) & (steps < shape.burn_in + shape.length)

    def shape(self, batch_size: int) -> tuple[int, Shape]:
        """A window for each anchor."""
        return batch_size, self._shape

    def cost(self, windows: int, shape: Shape) -> int:
        """The loss-bearing records, padding included."""
        return windows * shape.length

    def frame(self, windows: int, shape: Shape, out: Any) -> Frame:
        """Memory for so many windows."""
        rows = windows * shape.steps
        batch = self.form.allocate(rows) if out is None else self.form.reuse(out, rows)
        frame = Frame.around(
            shape,
            windows,
            [batch.leaves],
            batch.addresses,
            batch=batch,
            out=out,
        )
        if self._by_mass:
            frame.weights = np.empty(windows, np.float32)
        return frame

    def drawn(self, frame: Frame) -> Drawn:
        """Records window by window, with what says where each belongs."""
        windows, steps = frame.count, frame.shape.steps
        anchors, generations = frame.anchors
        beside = {
            ANCHOR: anchors.repeat(steps),
            ANCHOR_GENERATION: generations.repeat(steps),
            SEQUENCE: np.arange(windows).repeat(steps),
            STEP: np.tile(self._steps, windows),
            LEARNING: np.tile(self._learning, windows),
            VALIDITY: frame.valid,
        }
        if frame.weights is not None:
            beside[WEIGHT] = frame.weights.repeat(steps)
        return finished(self.form, frame, frame.leaves[0], beside)


def finished(form: BatchFormat, frame: Frame, leaves: list[Any], beside: dict[str, Any]) -> Drawn:
    """A drawn batch of all records of a frame, with arrays beside them."""
    from_numpy = form.from_numpy
    info = {key: from_numpy(value) for key, value in beside.items()}
    stamps = frame.stamps or (from_numpy(frame.index), from_numpy(frame.generation))
    batch = Batch(leaves, *stamps, [], 0, 0)
    if frame.out is not None:
        form.add_info(frame.out, info)
    return Drawn(batch, len(frame.index), frame.out is not None, info, form)
