"""Batches of what came next: after one step, or after several (floor F5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmrb import core
from shmrb.batches import GENERATION, INDEX, WEIGHT, Batch, BatchFormat
from shmrb.drawn import Drawn
from shmrb.dtypes import DTYPES
from shmrb.planner.units import Shape, steps_shape
from shmrb.schema import Schema
from shmrb.spec import MultiStep
from shmrb.steps import StepLayout
from shmrb.windowing import Frame

FACTOR = "bootstrap_factor"
STEPS = "steps_to_next_obs"

STORED_ONCE = (
    "The schema has no 'next' fields, so what came next is read from the following record, and "
    "each trajectory closes with one that only holds its final observation, as a producer "
    "writes it."
)


class ReturnUnit:
    """What becomes of a record and those after it: one record with its future in "next".

    The first record of a window gives what was so then, the last one what came next; of those
    between only the rewards are read.

    Args:
        schema: of the records.
        name: "torch" or "numpy".
        unit: None: what followed one step later, as it is.
        by_mass: whether anchors have importance weights.
    """

    hint = ""

    def __init__(self, schema: Schema, name: str, unit: MultiStep | None, by_mass: bool) -> None:
        layout = StepLayout.of(schema)
        self.form = BatchFormat(layout.shown, name)
        self._layout = layout
        self._fields = schema.fields
        self._unit = unit
        self._by_mass = by_mass
        self._shape = steps_shape(unit, layout.is_stored_once)
        if layout.is_stored_once:
            self.hint = STORED_ONCE

    def shape(self, batch_size: int) -> tuple[int, Shape]:
        """A window for each record."""
        return batch_size, self._shape

    def cost(self, windows: int, shape: Shape) -> int:
        """One each."""
        return windows

    def frame(self, windows: int, shape: Shape, out: Any) -> Frame:
        """Memory for the batch, and for the rewards on the way."""
        batch = self.form.allocate(windows) if out is None else self.form.reuse(out, windows)
        layout = self._layout
        columns = len(self._fields)
        leaves: list[list[Any]] = [[None] * columns for _ in range(shape.steps)]
        places = [[0] * columns for _ in range(shape.steps)]
        for place, column in enumerate(layout.now):
            leaves[0][column] = batch.leaves[place]
            places[0][column] = batch.addresses[place]
        for place, column in enumerate(layout.after, start=len(layout.now)):
            leaves[-1][column] = batch.leaves[place]
            places[-1][column] = batch.addresses[place]
        if self._unit is not None:
            self._make_room_for_rewards(leaves, places, windows)
        addresses = [address for plane in places for address in plane]
        frame = Frame.around(shape, windows, leaves, addresses, out=out)
        if self._by_mass:
            frame.weights = np.empty(windows, np.float32)
        return frame

    def _make_room_for_rewards(
        self, leaves: list[list[Any]], places: list[list[int]], windows: int
    ) -> None:
        """The last step's reward lies in the batch, where the sum will be."""
        column = self._layout.reward
        assert column is not None
        field = self._fields[column]
        for step in range(self._first_reward, len(leaves) - 1):
            reward = np.empty((windows, *field.shape), DTYPES[field.dtype].numpy)
            leaves[step][column] = self.form.from_numpy(reward)
            places[step][column] = core.address(reward)

    @property
    def _first_reward(self) -> int:
        """Which record of a window has the reward of its first step."""
        return int(self._layout.is_stored_once)

    def drawn(self, frame: Frame) -> Drawn:
        """One record a window."""
        layout = self._layout
        leaves = [frame.leaves[0][column] for column in layout.now]
        leaves += [frame.leaves[-1][column] for column in layout.after]
        beside = {} if self._unit is None else self._sum_rewards(frame, self._unit)
        if frame.weights is not None:
            beside[WEIGHT] = frame.weights
        from_numpy = self.form.from_numpy
        info = {key: from_numpy(value) for key, value in beside.items()}
        index, generation = (
            from_numpy(np.ascontiguousarray(frame.by_window(array)[:, 0]))
            for array in (frame.index, frame.generation)
        )
        if frame.out is not None:
            self.form.add_info(frame.out, {INDEX: index, GENERATION: generation, **info})
        batch = Batch(leaves, index, generation, [], 0, 0)
        return Drawn(batch, frame.count, frame.out is not None, info, self.form)

    def _sum_rewards(self, frame: Frame, unit: MultiStep) -> dict[str, Any]:
        """Puts the discounted sum into the batch; what to multiply the next value with."""
        layout = self._layout
        column = layout.reward
        assert column is not None
        taken = frame.by_window(frame.valid)[:, self._first_reward :]
        rewards = [np.asarray(leaves[column]) for leaves in frame.leaves[self._first_reward :]]
        ones = (1,) * (rewards[-1].ndim - 1)
        total = np.zeros(rewards[-1].shape, np.float64)
        for step, reward in enumerate(rewards):
            # Repeated records may hold anything, NaN included.
            counts = taken[:, step].reshape(-1, *ones)
            total += np.where(counts, unit.gamma**step * reward.astype(np.float64), 0.0)
        rewards[-1][...] = total
        steps = taken.sum(axis=1)
        ongoing = ~self._ended(frame)
        factor = np.where(ongoing, np.power(unit.gamma, steps), 0.0)
        return {
            FACTOR: factor.astype(np.float32).reshape(-1, *ones),
            STEPS: steps.astype(np.int64).reshape(-1, *ones),
        }

    def _ended(self, frame: Frame) -> Any:
        """Whether the last step led to a terminal state, after which nothing comes."""
        flags = {
            name: np.asarray(frame.leaves[-1][column]).reshape(-1)
            for name, column in self._layout.flags.items()
        }
        if "terminated" in flags:
            return flags["terminated"]
        done = flags["done"]
        return done & ~flags["truncated"] if "truncated" in flags else done
