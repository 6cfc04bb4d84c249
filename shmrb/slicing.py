"""Samplers of slices: pieces of trajectories, a fixed number of records each; floor F1.

They describe only, as `components` does. A batch of B records holds B / slice_len slices one after
another.
"""

from __future__ import annotations

from collections.abc import Sequence as Parts
from dataclasses import dataclass
from typing import ClassVar

from shmrb.boundaries import is_end_flag
from shmrb.components import MAX_WINDOW, PrioritizedSampler, SamplerWithoutReplacement
from shmrb.description import Description, Path, flag, whole
from shmrb.errors import SpecError, SpecTypeError
from shmrb.fields import key_path, show_path
from shmrb.schema import Schema

WEIGHTS = ("trajectories", "records")


@dataclass(frozen=True, kw_only=True)
class SliceSampler(Description):
    """Slices of trajectories: a trajectory, then a start in it, each with equal chances.

    Batches also have "sequence_id", int64 [B]: the slice of each record, 0 on; padded ones
    "validity_mask", bool [B]. The cost of a slice does not grow with the buffer.

    Args:
        num_slices, slice_len: exactly one of them; the batch size gives the other.
        end_key, end_keys: fields that end a trajectory; they must be among the buffer's done keys.
        traj_key: the field that holds the trajectory's id; it must be the buffer's.
        truncated_key: where each slice's last record is marked; beside it "done" and "terminated"
            are given. None: none of the three.
        init_key: a bool field that is set at each slice's first record, if records have it.
        strict_length: leave out trajectories that are too short; else their slices are shorter, and
            the batch with them.
        pad_output: repeat the last record of short slices; ("collector", "mask") tells.
        weight: "trajectories", or "records": every start with equal chances.
    """

    kind: ClassVar[str] = "SliceSampler"

    num_slices: int | None = None
    slice_len: int | None = None
    end_key: str | Parts[str] | None = None
    end_keys: Parts[str | Parts[str]] | None = None
    traj_key: str | Parts[str] | None = None
    truncated_key: str | Parts[str] | None = ("next", "truncated")
    init_key: str | Parts[str] | None = "is_init"
    strict_length: bool = True
    pad_output: bool = False
    weight: str = "trajectories"

    def __post_init__(self) -> None:
        if (self.num_slices is None) == (self.slice_len is None):
            raise SpecTypeError(
                "Either num_slices or slice_len must be not None, and not both. Got "
                f"num_slices={self.num_slices} and slice_len={self.slice_len}."
            )
        for name in ("num_slices", "slice_len"):
            if getattr(self, name) is not None:
                number = whole(name, getattr(self, name), least=1, most=MAX_WINDOW)
                object.__setattr__(self, name, number)
        if self.end_key is not None and self.end_keys is not None:
            raise SpecError("end_key and end_keys say the same: give one of them.")
        for name in ("end_key", "traj_key", "truncated_key", "init_key"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, key_path(getattr(self, name)))
        if self.end_keys is not None:
            object.__setattr__(self, "end_keys", tuple(key_path(key) for key in self.end_keys))
        flag("strict_length", self.strict_length)
        if flag("pad_output", self.pad_output) and self.strict_length:
            raise SpecError("pad_output=True needs strict_length=False: else no slice is short.")
        if self.weight not in WEIGHTS:
            raise SpecError(f"weight must be {' or '.join(WEIGHTS)}, got {self.weight!r}.")

    @property
    def end_paths(self) -> tuple[Path, ...]:
        """The paths of `end_key` or `end_keys`."""
        if self.end_key is not None:
            return (key_path(self.end_key),)
        return tuple(key_path(key) for key in self.end_keys or ())

    @property
    def traj_path(self) -> Path | None:
        """The path of `traj_key`."""
        return None if self.traj_key is None else key_path(self.traj_key)

    @property
    def init_path(self) -> Path | None:
        """The path of `init_key`."""
        return None if self.init_key is None else key_path(self.init_key)

    def slices_of(self, batch_size: int) -> tuple[int, int]:
        """How many slices a batch of that many records holds, and how long they are.

        Raises:
            SpecError: it cannot be divided.
        """
        what, part = ("slice length", self.slice_len)
        if part is None:
            what, part = ("number of slices", self.num_slices)
        assert part is not None
        if batch_size % part:
            raise SpecError(
                f"The batch-size must be divisible by the {what}, got batch_size={batch_size} and "
                f"{'slice_len' if self.slice_len else 'num_slices'}={part}."
            )
        other = batch_size // part
        return (other, part) if self.slice_len else (part, other)


@dataclass(frozen=True, kw_only=True)
class SliceSamplerWithoutReplacement(SliceSampler, SamplerWithoutReplacement):
    """One slice of every trajectory a pass.

    A pass goes through the trajectories that are there when it starts; those that are gone when
    their turn comes are left out, and its last batch may hold fewer slices.

    Args:
        drop_last: leave that short batch out.
        shuffle: go through the trajectories in random order; else in the order of the ring.
        others: as in `SliceSampler`.
    """

    kind: ClassVar[str] = "SliceSamplerWithoutReplacement"

    drop_last: bool = False
    shuffle: bool = True

    def __post_init__(self) -> None:
        SliceSampler.__post_init__(self)
        SamplerWithoutReplacement.__post_init__(self)
        if self.weight != "trajectories":
            raise SpecError("weight: without replacement every trajectory is drawn once a pass.")


@dataclass(frozen=True, kw_only=True)
class PrioritizedSliceSampler(SliceSampler, PrioritizedSampler):
    """Slices that start at a record in proportion to its mass, with its importance weight.

    A start from which no slice fits is not drawn, and keeps its priority.

    Args:
        alpha, beta, eps, max_priority_within_buffer, reduction: as in `PrioritizedSampler`.
        others: as in `SliceSampler`, without `weight`.
    """

    kind: ClassVar[str] = "PrioritizedSliceSampler"

    def __post_init__(self) -> None:
        SliceSampler.__post_init__(self)
        PrioritizedSampler.__post_init__(self)
        if self.weight != "trajectories":
            raise SpecError("weight: prioritized slices start by their record's mass.")


def marked_fields(sampler: SliceSampler, schema: Schema) -> dict[str, Path]:
    """Where "truncated", "done" and "terminated" of a slice go; empty: nowhere.

    Raises:
        SpecError: the schema holds something else there, or under `init_key`.
    """
    fields = {field.path: field for field in schema.fields}
    init = sampler.init_path
    if init in fields and not is_end_flag(fields[init]):
        raise SpecError(
            f"init_key: expected a bool of one element, {show_path(init)} is {fields[init]}."
        )
    if sampler.truncated_key is None or schema.root != "dict":
        return {}
    path = key_path(sampler.truncated_key)
    found = {"truncated": path} | {key: (*path[:-1], key) for key in ("done", "terminated")}
    for name, place in found.items():
        if place in fields and not is_end_flag(fields[place]):
            raise SpecError(
                f"truncated_key: expected a bool of one element in {show_path(place)} for "
                f"{name!r}, the schema has {fields[place]}. Give another truncated_key, or None."
            )
    return found
