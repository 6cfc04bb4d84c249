"""What a buffer is put together from: storages, samplers, sample units, writers; floor F1.

These objects only describe. They are small, frozen, compare by value and travel as JSON; what they
stand for is built on higher floors, by whoever attaches. Arguments are keyword-only after the
first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence as Parts
from dataclasses import dataclass, field
from typing import Any, ClassVar

from shmrb.description import Description, Path, flag, real, whole
from shmrb.errors import SpecError, SpecTypeError
from shmrb.fields import key_path

# Slots are int64 and columns are addressed in bytes: 2^40 records leave room for both.
MAX_CAPACITY = 1 << 40
MAX_LANES = 1 << 16
# A window is one gather; a longer one is a mistake in units.
MAX_WINDOW = 1 << 24

REDUCTIONS = ("max", "min", "median", "mean", "sum")
EPISODE_BOUNDARIES = ("pad", "stop", "include_reset")


def _set(description: Description, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(description, name, value)


def _check_lanes(storage: SharedStorage | MemmapStorage) -> None:
    capacity = whole("capacity", storage.capacity, least=1, most=MAX_CAPACITY)
    lanes = whole("lanes", storage.lanes, least=1, most=MAX_LANES)
    if capacity % lanes:
        less = capacity - capacity % lanes
        near = f"{less} or {less + lanes}" if less else f"{lanes}"
        raise SpecError(
            f"capacity must be a multiple of lanes, since every lane has as many slots: got "
            f"capacity {capacity} and {lanes} lanes; take {near}."
        )
    _set(storage, capacity=capacity, lanes=lanes)


@dataclass(frozen=True, slots=True)
class SharedStorage(Description):
    """Records in shared memory (tmpfs).

    Args:
        capacity: slots of the whole buffer, >= 1 and a multiple of `lanes`.
        lanes: independent streams, each with one writer at a time.
    """

    kind: ClassVar[str] = "SharedStorage"

    capacity: int
    lanes: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        _check_lanes(self)


@dataclass(frozen=True, slots=True)
class MemmapStorage(Description):
    """Records in files on a disk: more than memory holds, and there again after a restart.

    Args:
        capacity: slots of the whole buffer, >= 1 and a multiple of `lanes`.
        directory: in which the buffer's own directory will lie, made if it is not there; kept as an
            absolute path. On ext4, xfs or tmpfs; NFS, FUSE and overlay are refused.
        lanes: independent streams, each with one writer at a time.
    """

    kind: ClassVar[str] = "MemmapStorage"

    capacity: int
    directory: str
    lanes: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        _check_lanes(self)
        try:
            directory = os.fspath(self.directory)
        except TypeError:
            raise SpecTypeError(f"directory must be a path, got {self.directory!r}.") from None
        if not isinstance(directory, str) or not directory or "\0" in directory:
            raise SpecError(f"directory must be a path of characters, got {directory!r}.")
        _set(self, directory=os.path.abspath(directory))


@dataclass(frozen=True, slots=True)
class RandomSampler(Description):
    """Every live record alike, with replacement."""

    kind: ClassVar[str] = "RandomSampler"


@dataclass(frozen=True, slots=True)
class SamplerWithoutReplacement(Description):
    """Every live record once a pass.

    A pass is one handle's own: of two handles each goes through all records, and threads that share
    a handle share them out. It begins anew when the number of records changes, as TorchRL's does.

    Args:
        drop_last: leave out the short batch at the end of a pass; needs a batch size.
        shuffle: draw in random order; else by slot.
    """

    kind: ClassVar[str] = "SamplerWithoutReplacement"

    drop_last: bool = field(default=False, kw_only=True)
    shuffle: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        _set(
            self, drop_last=flag("drop_last", self.drop_last), shuffle=flag("shuffle", self.shuffle)
        )


@dataclass(frozen=True, slots=True)
class FifoSampler(Description):
    """The oldest records first; for queues, and for data that is used in the order it came.

    With consumption each draw takes the oldest records that nobody has taken. Without it a draw
    takes nothing away: it sees the oldest records of the buffer, until they are overwritten or
    `empty` is called. Fewer records than asked for give a short batch.
    """

    kind: ClassVar[str] = "FifoSampler"


@dataclass(frozen=True, slots=True)
class LifoSampler(Description):
    """The newest records first; for on-policy use. Otherwise as `FifoSampler`."""

    kind: ClassVar[str] = "LifoSampler"


def _check_priorities(description: Priorities | PrioritizedSampler) -> None:
    alpha, beta, eps = (real(name, getattr(description, name)) for name in ("alpha", "beta", "eps"))
    if alpha < 0:
        raise SpecError(f"alpha must be greater or equal than 0, got alpha={alpha}")
    if beta < 0:
        raise SpecError(f"beta must be greater or equal to 0, got beta={beta}")
    if eps < 0:
        raise SpecError(f"eps must be greater or equal to 0, got eps={eps}")
    flag("max_priority_within_buffer", description.max_priority_within_buffer)
    _set(description, alpha=alpha, beta=beta, eps=eps)


@dataclass(frozen=True, slots=True)
class Priorities(Description):
    """The priorities that a buffer keeps, for all who sample from it.

    Args:
        alpha: mass = (priority + eps) ** alpha, >= 0; 0 draws uniformly.
        beta: importance weight = (mass / least mass) ** -beta, >= 0.
        eps: >= 0; above 0 no record is out of reach.
        max_priority_within_buffer: new records enter with the greatest priority now stored, instead
            of the greatest ever seen.

    Source: Schaul et al. 2016 (arXiv:1511.05952).
    """

    kind: ClassVar[str] = "Priorities"

    alpha: float = field(kw_only=True)
    beta: float = field(kw_only=True)
    eps: float = field(default=1e-8, kw_only=True)
    max_priority_within_buffer: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_priorities(self)


@dataclass(frozen=True, slots=True)
class PrioritizedSampler(Description):
    """Records in proportion to their mass, with importance weights.

    Draws are independent of each other, with replacement; a record without mass is never drawn.
    Batches have "priority_weight", float32 [B], at most 1: relative to the least mass of the buffer
    at the moment of the draw. The masses are the buffer's, one tree for all processes.

    Args:
        alpha, beta, eps, max_priority_within_buffer: as in `Priorities`.
        reduction: how priorities of several elements or of a window become one:
            "max", "min", "median", "mean" or "sum".

    Source: Schaul et al. 2016 (arXiv:1511.05952).
    """

    kind: ClassVar[str] = "PrioritizedSampler"

    alpha: float = field(kw_only=True)
    beta: float = field(kw_only=True)
    eps: float = field(default=1e-8, kw_only=True)
    reduction: str = field(default="max", kw_only=True)
    max_priority_within_buffer: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_priorities(self)
        if self.reduction not in REDUCTIONS:
            raise SpecError(
                f"reduction must be one of {', '.join(REDUCTIONS)}, got {self.reduction!r}."
            )

    @property
    def priorities(self) -> Priorities:
        """What the buffer must keep for this sampler."""
        return Priorities(
            alpha=self.alpha,
            beta=self.beta,
            eps=self.eps,
            max_priority_within_buffer=self.max_priority_within_buffer,
        )


@dataclass(frozen=True, slots=True)
class Transition(Description):
    """The sample unit of one record.

    Where records are stored once (`shmrb.steps`), the "next" fields of a batch are read from the
    record after it, and a record without one is not drawn.
    """

    kind: ClassVar[str] = "Transition"

    @property
    def window(self) -> int:
        """Records gathered an anchor."""
        return 1

    @property
    def cost(self) -> int:
        """Loss-bearing records an anchor, which a rate limiter counts as samples."""
        return 1


@dataclass(frozen=True, slots=True)
class Sequence(Description):
    """The sample unit of a window of records around an anchor.

    A batch of B anchors holds B * W records one window after the other, W = burn_in + length +
    bootstrap. Beside them lie, [B * W] each: int64 "index", "index_generation", "anchor_index" (the
    slot that was drawn, also where the window moved back), "anchor_generation", "sequence_id" (0 to
    B - 1) and "step_in_sequence", bool "learning_mask" (false for burn-in and bootstrap) and
    "validity_mask" (false where the last or first record is repeated). No window joins two writers
    or the newest record and the oldest; each is whole as of one moment.

    Args:
        length: records that carry loss, >= 1.
        burn_in: records before them that warm a recurrent state, >= 0.
        bootstrap: records after them, for targets only, >= 0.
        dilation: step between the records of a window, >= 1.
        episode_boundary: at the end of an episode repeat the last record ("pad"), move the window
            back ("stop"), or go on into the next episode ("include_reset").
        done_key: the field that ends an episode, one of the buffer's done keys, which all end it.
            None: go on over every end, up to where a lane was interrupted.
    """

    kind: ClassVar[str] = "Sequence"

    length: int = field(kw_only=True)
    burn_in: int = field(default=0, kw_only=True)
    bootstrap: int = field(default=0, kw_only=True)
    dilation: int = field(default=1, kw_only=True)
    episode_boundary: str = field(default="pad", kw_only=True)
    done_key: str | Parts[str] | None = field(default=("next", "done"), kw_only=True)

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("burn_in", 0), ("bootstrap", 0), ("dilation", 1)):
            number = whole(name, getattr(self, name), least=-MAX_WINDOW, most=MAX_WINDOW)
            if number < least:
                rule = "strictly positive" if least else "non-negative"
                raise SpecError(f"{name} must be {rule}, got {number}.")
            _set(self, **{name: number})
        if self.episode_boundary not in EPISODE_BOUNDARIES:
            raise SpecError(
                f"Unknown episode_boundary {self.episode_boundary}; expected one of "
                f"{', '.join(EPISODE_BOUNDARIES)}."
            )
        if self.dilation * self.window > MAX_WINDOW:
            raise SpecError(
                f"a window may span {MAX_WINDOW} records, got {self.window} records of dilation "
                f"{self.dilation}."
            )
        if self.done_key is not None:
            _set(self, done_key=key_path(self.done_key))

    @property
    def done_path(self) -> Path | None:
        """The path of `done_key`."""
        return None if self.done_key is None else key_path(self.done_key)

    @property
    def window(self) -> int:
        """Records gathered an anchor."""
        return self.burn_in + self.length + self.bootstrap

    @property
    def cost(self) -> int:
        """Loss-bearing records an anchor, padding included, which a limiter counts as samples."""
        return self.length


@dataclass(frozen=True, slots=True)
class MultiStep(Description):
    """The sample unit of one record and what followed it in `n` steps.

    ("next", "reward") is the discounted sum of rewards, the other "next" fields are those of the
    last of the steps, and "bootstrap_factor", float32 in the shape of the reward, is what to
    multiply their value with: gamma to the power of the steps, 0 after a terminal;
    "steps_to_next_obs", int64 in the same shape, counts them. Fewer than `n` steps are taken where
    the trajectory ended or was cut; an anchor whose future is still to be written is not drawn.

    Args:
        n: steps, >= 1.
        gamma: discount of one step, 0 to 1.
    """

    kind: ClassVar[str] = "MultiStep"

    n: int
    gamma: float

    def __post_init__(self) -> None:
        gamma = real("gamma", self.gamma)
        if not 0 <= gamma <= 1:
            raise SpecError(f"gamma must be between 0 and 1, got {gamma}.")
        _set(self, n=whole("n", self.n, least=1, most=MAX_WINDOW - 1), gamma=gamma)

    @property
    def window(self) -> int:
        """Records of a batch an anchor."""
        return 1

    @property
    def cost(self) -> int:
        """Loss-bearing records an anchor, which a rate limiter counts as samples."""
        return 1


@dataclass(frozen=True, slots=True)
class RoundRobinWriter(Description):
    """New records take the place of the oldest.

    Args:
        track_generations: accepted for TorchRL's sake; generations are always tracked.
    """

    kind: ClassVar[str] = "RoundRobinWriter"

    track_generations: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        if self.track_generations is not True:
            raise SpecError(
                "track_generations=False is not possible: generations are what proves that a "
                "record is whole. Leave the argument out."
            )


@dataclass(frozen=True, slots=True)
class ImmutableWriter(Description):
    """Nothing may be written."""

    kind: ClassVar[str] = "ImmutableWriter"
