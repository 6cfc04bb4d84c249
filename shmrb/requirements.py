"""What a handle's sampler and sample unit need of the buffer; floor F1."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from shmrb.components import (
    FifoSampler,
    LifoSampler,
    MultiStep,
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    Sequence,
    Transition,
)
from shmrb.description import Description, Path
from shmrb.errors import SpecError, SpecTypeError
from shmrb.fields import show_path
from shmrb.slicing import (
    PrioritizedSliceSampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    marked_fields,
)
from shmrb.steps import StepLayout

if TYPE_CHECKING:
    from shmrb.spec import BufferSpec

SAMPLERS = (
    RandomSampler,
    SamplerWithoutReplacement,
    PrioritizedSampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    PrioritizedSliceSampler,
    FifoSampler,
    LifoSampler,
)
# Those that can take records away.
CONSUMING = (RandomSampler, FifoSampler, LifoSampler)
SAMPLE_UNITS = (Transition, Sequence, MultiStep)

Sampler = (
    RandomSampler
    | SamplerWithoutReplacement
    | PrioritizedSampler
    | SliceSampler
    | FifoSampler
    | LifoSampler
)
SampleUnit = Transition | Sequence | MultiStep


def require(spec: BufferSpec, sampler: Sampler, sample_unit: SampleUnit) -> None:
    """Check that the buffer keeps what a handle's sampler and sample unit need.

    Raises:
        SpecError: it does not; the message names the argument that creates such a buffer.
    """
    check_kind("sampler", sampler, SAMPLERS)
    check_kind("sample_unit", sample_unit, SAMPLE_UNITS)
    if isinstance(sampler, PrioritizedSampler):
        _require_priorities(spec, sampler)
    if spec.consume_after_n_samples is not None and not isinstance(sampler, CONSUMING):
        raise SpecError(
            f"{type(sampler).__name__} cannot draw from a buffer with consume_after_n_samples="
            f"{spec.consume_after_n_samples}: expected RandomSampler, FifoSampler or LifoSampler. "
            "Create the buffer without consume_after_n_samples, or leave the sampler out."
        )
    if spec.schema is None:
        return
    if isinstance(sampler, SliceSampler):
        _require_slices(spec, sampler, sample_unit)
    if isinstance(sample_unit, Sequence):
        _require_done_key(spec, sample_unit)
    if isinstance(sample_unit, MultiStep):
        StepLayout.of(spec.schema).require_returns(spec.schema)


def _require_done_key(spec: BufferSpec, unit: Sequence) -> None:
    done = unit.done_path
    if done is None or done in spec.done_keys:
        return
    if not spec.done_keys and done == Sequence(length=1).done_path:
        return  # the default: such a buffer's trajectories end by their id, or when told
    raise SpecError(
        f"Sequence(done_key={show_path(done)}): the buffer ends trajectories at "
        f"{show_paths(spec.done_keys) or 'no key'}. Give one of those, or create the buffer with "
        f"done_keys=[{show_path(done)}] and a bool field of that name."
    )


def _require_slices(spec: BufferSpec, sampler: SliceSampler, unit: SampleUnit) -> None:
    name = type(sampler).__name__
    if not isinstance(unit, Transition):
        raise SpecError(
            f"{name} draws windows itself: expected sample_unit=Transition(), got {unit}. Take "
            "RandomSampler or PrioritizedSampler with this sample unit."
        )
    if sampler.traj_path is not None and sampler.traj_path != spec.traj_key:
        known = "none" if spec.traj_key is None else show_path(spec.traj_key)
        raise SpecError(
            f"{name}(traj_key={show_path(sampler.traj_path)}): the buffer tells trajectories apart "
            f"by {known} as it writes. Create it with traj_key={show_path(sampler.traj_path)}."
        )
    ends = sampler.end_paths
    if ends and not set(ends) & set(spec.done_keys):
        raise SpecError(
            f"{name}(end_keys={show_paths(ends)}): the buffer ends trajectories at "
            f"{show_paths(spec.done_keys) or 'no key'} as it writes. Create it with "
            f"done_keys=[{show_paths(ends)}]."
        )
    assert spec.schema is not None
    marked_fields(sampler, spec.schema)
    if spec.batch_size is not None:
        sampler.slices_of(spec.batch_size)


def _require_priorities(spec: BufferSpec, sampler: PrioritizedSampler) -> None:
    if spec.priorities is None:
        raise SpecError(
            "PrioritizedSampler needs priorities, which this buffer does not keep. Create it with "
            f"sampler=PrioritizedSampler(alpha={sampler.alpha}, beta={sampler.beta})."
        )
    found = differences("PrioritizedSampler", spec.priorities, sampler.priorities)
    if found:
        raise SpecError(
            f"priorities belong to the buffer: {'; '.join(found)}. Attach with its own, or leave "
            "the sampler out."
        )


def check_kind(name: str, value: Any, kinds: tuple[type[Description], ...]) -> None:
    """Check that an argument is one of the descriptions it may be.

    Raises:
        SpecTypeError: it is not; a callable cannot travel.
    """
    if isinstance(value, kinds):
        return
    names = " or ".join(kind.__name__ for kind in kinds)
    got = "a callable" if callable(value) else repr(value)
    raise SpecTypeError(f"{name} must be {names}, got {got}; only descriptions can travel.")


def differences(name: str, mine: Description | None, theirs: Description | None) -> list[str]:
    """What is otherwise in two descriptions of the same setting, one sentence each."""
    if mine is None or theirs is None or type(mine) is not type(theirs):
        return [] if mine == theirs else [difference(name, mine, theirs)]
    found = []
    for field in dataclasses.fields(mine):  # type: ignore[arg-type]
        one, other = getattr(mine, field.name), getattr(theirs, field.name)
        is_open = field.name == "error_buffer" and (one is None or other is None)
        if one != other and not is_open:
            found.append(difference(f"{name} {field.name}", one, other))
    return found


def difference(name: str, mine: object, theirs: object) -> str:
    """The sentence for one difference."""
    return f"{name}: existing {mine}, asked for {theirs}"


def show_paths(paths: tuple[Path, ...]) -> str:
    """Keys as a user would write them."""
    return ", ".join(map(show_path, paths))
