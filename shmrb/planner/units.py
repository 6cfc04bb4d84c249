"""The shapes of windows: sample units and slices in the words of the native core (floor F4)."""

from __future__ import annotations

from typing import NamedTuple

from shmrb.core import AnchorKind, Boundary, Demand
from shmrb.spec import (
    MultiStep,
    PrioritizedSampler,
    Sampler,
    Sequence,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)

BOUNDARIES = {
    "pad": Boundary.PAD,
    "stop": Boundary.STOP,
    "include_reset": Boundary.INCLUDE_RESET,
}


class Shape(NamedTuple):
    """What `core.Segment.windows` asks: how far a window reaches, and which anchors are legal.

    Attributes:
        length, burn_in, bootstrap, dilation: as in `Sequence`.
        boundary: a `Boundary`.
        demand: a `Demand`.
        least: records that must follow an anchor in its trajectory.
        by_step: 1: a batch holds all windows' first records, then all second ones.
    """

    length: int
    burn_in: int = 0
    bootstrap: int = 0
    dilation: int = 1
    boundary: int = Boundary.PAD
    demand: int = Demand.ANYTHING
    least: int = 0
    by_step: int = 0

    @property
    def steps(self) -> int:
        """Records of one window."""
        return self.burn_in + self.length + self.bootstrap

    @property
    def required(self) -> int:
        """Records that a trajectory must have for a window to fit, if nothing else is amiss."""
        if self.demand in (Demand.FULL, Demand.RETURN):
            return self.steps
        return 1 + self.least


def sequence_shape(unit: Sequence, stored_once: bool) -> Shape:
    """The windows of a `Sequence`.

    Where records are stored once, the one that only holds a final observation is no anchor.
    """
    boundary = BOUNDARIES[unit.episode_boundary]
    if unit.done_path is None:
        crossing = {Boundary.PAD: Boundary.INCLUDE_RESET, Boundary.STOP: Boundary.STOP_AT_CUT}
        boundary = crossing.get(boundary, boundary)
    return Shape(
        unit.length,
        unit.burn_in,
        unit.bootstrap,
        unit.dilation,
        boundary,
        least=int(stored_once),
    )


def steps_shape(unit: MultiStep | None, stored_once: bool) -> Shape:
    """The windows behind one record and what came next of it; None: after one step."""
    length = 1 if unit is None else unit.n
    demand = Demand.FULL if unit is None else Demand.RETURN
    following = int(stored_once)
    return Shape(length, bootstrap=following, demand=demand, least=following, by_step=1)


def slice_shape(sampler: SliceSampler, length: int) -> Shape:
    """Slices of that many records."""
    demand = Demand.FULL if sampler.strict_length else Demand.FULL_OR_WHOLE
    return Shape(length, demand=demand)


def anchor_kind(sampler: Sampler) -> AnchorKind:
    """Where a sampler's anchors come from; those without replacement are given."""
    if isinstance(sampler, SliceSamplerWithoutReplacement):
        return AnchorKind.GIVEN
    if isinstance(sampler, PrioritizedSampler):
        return AnchorKind.BY_MASS
    if isinstance(sampler, SliceSampler) and sampler.weight == "trajectories":
        strict = sampler.strict_length
        return AnchorKind.BY_TRAJECTORY_STRICT if strict else AnchorKind.BY_TRAJECTORY
    return AnchorKind.UNIFORM
