"""Windows on their way out: their memory, and the native call that fills it (floor F5).

What a batch is made of in the end, `sequences`, `slices` and `returns` say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shmrb import core
from shmrb.batches import Batch, BatchFormat
from shmrb.core import SLICE_NS, Outcome, Rng, Segment
from shmrb.drawn import Drawn
from shmrb.planner.populations import Slots
from shmrb.planner.units import Shape

Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Frame:
    """The memory of a number of windows.

    Attributes:
        shape: of each.
        count: windows.
        leaves: by step a list for each step, else one list; one leaf a field, None where the field
            is left out.
        addresses: where all of them lie, 0 where left out.
        index, generation: of every record, in the rows that the shape says.
        anchors: slots [0] and generations [1], one a window; the latter −1 where none fits.
        valid: whether a record is real, in the same rows.
        weights: float32, one a window; None where not asked for.
        out: the batch of the caller whose leaves these are, None if they are new.
        stamps: index and generation as the handle's format has them, if they were made with the
            leaves.
    """

    shape: Shape
    count: int
    leaves: list[list[Any]]
    addresses: list[int]
    index: Slots
    generation: Slots
    anchors: Slots
    valid: Flags
    weights: npt.NDArray[np.float32] | None = None
    out: Any = None
    stamps: tuple[Any, Any] | None = None

    @classmethod
    def around(
        cls,
        shape: Shape,
        count: int,
        leaves: list[list[Any]],
        addresses: list[int],
        *,
        batch: Batch | None = None,
        out: Any = None,
    ) -> Frame:
        """A frame for leaves that are there, with arrays of its own for the rest.

        Index and generation are those of `batch`, if it has a row for each record.
        """
        rows = count * shape.steps
        if batch is None:
            stamps, index, generation = None, np.empty(rows, np.int64), np.empty(rows, np.int64)
        else:
            stamps = batch.index, batch.generation
            index, generation = as_array(batch.index), as_array(batch.generation)
        return cls(
            shape,
            count,
            leaves,
            addresses,
            index,
            generation,
            np.empty((2, count), np.int64),
            np.empty(rows, np.bool_),
            out=out,
            stamps=stamps,
        )

    def by_window(self, array: Any) -> Any:
        """An array over all records as [windows, steps]."""
        if self.shape.by_step:
            return array.reshape(self.shape.steps, self.count).T
        return array.reshape(self.count, self.shape.steps)

    def draw(self, segment: Segment, rng: Rng, kind: int, cost: int) -> Outcome:
        """Fills the memory with windows around drawn anchors, or around `anchors[0]`."""
        return segment.windows(
            rng,
            int(kind),
            self.count,
            [int(number) for number in self.shape],
            self.addresses,
            core.address(self.anchors),
            core.address(self.index),
            core.address(self.generation),
            core.address(self.valid),
            0 if self.weights is None else core.address(self.weights),
            cost,
            SLICE_NS,
        )

    def kept(self, keep: Flags, form: BatchFormat) -> Frame:
        """The windows that are to be kept, in memory of their own unless they are all."""
        if keep.all():
            return self
        return _picked([self], [np.flatnonzero(keep)], form)


def joined(frames: list[Frame], form: BatchFormat) -> Frame:
    """The windows of several frames."""
    if len(frames) == 1:
        return frames[0]
    return _picked(frames, [np.arange(frame.count) for frame in frames], form)


def _picked(frames: list[Frame], windows: list[Slots], form: BatchFormat) -> Frame:
    """Windows of frames of one shape, one frame after the other."""
    shape = frames[0].shape
    steps = np.arange(shape.steps)
    leaves: list[list[Any]] = []
    for plane in range(len(frames[0].leaves)):
        rows = (
            windows
            if shape.by_step
            else [(picked[:, None] * shape.steps + steps).reshape(-1) for picked in windows]
        )
        leaves.append(
            [
                None
                if column[0] is None
                else form.concatenated(
                    [leaf[form.from_numpy(some)] for leaf, some in zip(column, rows, strict=True)]
                )
                for column in zip(*(frame.leaves[plane] for frame in frames), strict=True)
            ]
        )

    def over_records(name: str) -> Any:
        parts = [
            frame.by_window(getattr(frame, name))[some]
            for frame, some in zip(frames, windows, strict=True)
        ]
        together = np.concatenate(parts)
        return np.ascontiguousarray(together.T if shape.by_step else together).reshape(-1)

    weights = [
        frame.weights[some]
        for frame, some in zip(frames, windows, strict=True)
        if frame.weights is not None
    ]
    anchors = [frame.anchors[:, some] for frame, some in zip(frames, windows, strict=True)]
    return Frame(
        shape,
        sum(len(some) for some in windows),
        leaves,
        [],
        over_records("index"),
        over_records("generation"),
        np.concatenate(anchors, axis=1),
        over_records("valid"),
        np.concatenate(weights) if weights else None,
    )


def as_array(leaf: Any) -> Any:
    """A leaf of either format as an array over its memory."""
    return leaf if type(leaf) is np.ndarray else leaf.numpy()


class Unit(Protocol):
    """What becomes of windows: one of `sequences`, `slices` and `returns`."""

    form: BatchFormat
    hint: str

    def shape(self, batch_size: int) -> tuple[int, Shape]:
        """How many windows a batch of that size takes, and of what shape."""

    def cost(self, windows: int, shape: Shape) -> int:
        """What a limiter is charged for so many of them."""

    def frame(self, windows: int, shape: Shape, out: Any) -> Frame:
        """Memory for them, that of an earlier batch if there is one."""

    def drawn(self, frame: Frame) -> Drawn:
        """The batch that whole windows make."""
