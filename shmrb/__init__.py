"""Replay buffers in shared memory: any local process attaches by name.

Names are loaded when they are used: importing shmrb loads neither torch nor tensordict.
"""

from __future__ import annotations

import importlib
import typing

import shmrb.core  # noqa: F401  # not built? Fail at once, with the build command

__version__ = "0.1.0"

if typing.TYPE_CHECKING:
    from shmrb.buffer import ReplayBuffer, attach
    from shmrb.client import Client, connect
    from shmrb.errors import (
        AlreadyExistsError,
        AttachError,
        CapacityError,
        ClosedError,
        CorruptionError,
        DaemonError,
        DeadlineError,
        EmptyBufferError,
        FileSystemError,
        FormatMismatchError,
        LaneBusyError,
        LimiterTimeoutError,
        LockTimeoutError,
        NoSuchBufferError,
        NoTrajectoryError,
        NotReadyError,
        NoWindowError,
        PermissionDeniedError,
        ReadOnlyError,
        RecordError,
        ShmrbError,
        SpecError,
        StaleAttachmentError,
    )
    from shmrb.lanes import Lane
    from shmrb.parameters import Parameters
    from shmrb.predicates import TrajectoryPredicate, traj
    from shmrb.producer import Producer
    from shmrb.results import (
        BufferStats,
        ClientInfo,
        ConditionalUpdateResult,
        LaneInfo,
        LimiterInfo,
        PriorityInfo,
    )
    from shmrb.schedules import LambdaScheduler, LinearScheduler, SchedulerList, StepScheduler
    from shmrb.schema import Schema, schema_from_env, schema_like
    from shmrb.segment.survey import BufferSummary
    from shmrb.spec import (
        BufferSpec,
        FifoSampler,
        ImmutableWriter,
        LifoSampler,
        MemmapStorage,
        MinSize,
        MultiStep,
        PrioritizedSampler,
        PrioritizedSliceSampler,
        Queue,
        RandomSampler,
        RateLimiter,
        RoundRobinWriter,
        SamplerWithoutReplacement,
        Sequence,
        SharedStorage,
        SliceSampler,
        SliceSamplerWithoutReplacement,
        Transition,
    )
    from shmrb.trajectories import (
        Trajectory,
        filter_trajectories,
        find_start_stop_traj,
        iter_trajectories,
    )
    from shmrb.vector import VectorProducer
    from shmrb.wire import DaemonInfo, Event, EventPage

# Where each name lives.
_HOMES = {
    "buffer": "ReplayBuffer attach",
    "client": "Client connect",
    "errors": (
        "AlreadyExistsError AttachError CapacityError ClosedError CorruptionError DaemonError "
        "DeadlineError EmptyBufferError FileSystemError FormatMismatchError LaneBusyError "
        "LimiterTimeoutError LockTimeoutError NoSuchBufferError NoTrajectoryError "
        "NoWindowError NotReadyError PermissionDeniedError ReadOnlyError RecordError ShmrbError "
        "SpecError StaleAttachmentError"
    ),
    "lanes": "Lane",
    "parameters": "Parameters",
    "predicates": "TrajectoryPredicate traj",
    "producer": "Producer",
    "results": ("BufferStats ClientInfo ConditionalUpdateResult LaneInfo LimiterInfo PriorityInfo"),
    "schedules": "LambdaScheduler LinearScheduler SchedulerList StepScheduler",
    "schema": "Schema schema_from_env schema_like",
    "segment.survey": "BufferSummary",
    "spec": (
        "BufferSpec FifoSampler ImmutableWriter LifoSampler MemmapStorage MinSize MultiStep "
        "PrioritizedSampler PrioritizedSliceSampler Queue RandomSampler RateLimiter "
        "RoundRobinWriter SamplerWithoutReplacement Sequence SharedStorage SliceSampler "
        "SliceSamplerWithoutReplacement Transition"
    ),
    "trajectories": "Trajectory filter_trajectories find_start_stop_traj iter_trajectories",
    "vector": "VectorProducer",
    "wire": "DaemonInfo Event EventPage",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "AlreadyExistsError",
    "AttachError",
    "BufferSpec",
    "BufferStats",
    "BufferSummary",
    "CapacityError",
    "Client",
    "ClientInfo",
    "ClosedError",
    "ConditionalUpdateResult",
    "CorruptionError",
    "DaemonError",
    "DaemonInfo",
    "DeadlineError",
    "EmptyBufferError",
    "Event",
    "EventPage",
    "FifoSampler",
    "FileSystemError",
    "FormatMismatchError",
    "ImmutableWriter",
    "LambdaScheduler",
    "Lane",
    "LaneBusyError",
    "LaneInfo",
    "LifoSampler",
    "LimiterInfo",
    "LimiterTimeoutError",
    "LinearScheduler",
    "LockTimeoutError",
    "MemmapStorage",
    "MinSize",
    "MultiStep",
    "NoSuchBufferError",
    "NoTrajectoryError",
    "NoWindowError",
    "NotReadyError",
    "Parameters",
    "PermissionDeniedError",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "PriorityInfo",
    "Producer",
    "Queue",
    "RandomSampler",
    "RateLimiter",
    "ReadOnlyError",
    "RecordError",
    "ReplayBuffer",
    "RoundRobinWriter",
    "SamplerWithoutReplacement",
    "SchedulerList",
    "Schema",
    "Sequence",
    "SharedStorage",
    "ShmrbError",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "SpecError",
    "StaleAttachmentError",
    "StepScheduler",
    "Trajectory",
    "TrajectoryPredicate",
    "Transition",
    "VectorProducer",
    "__version__",
    "attach",
    "connect",
    "filter_trajectories",
    "find_start_stop_traj",
    "iter_trajectories",
    "schema_from_env",
    "schema_like",
    "traj",
]


def __getattr__(name: str) -> typing.Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'shmrb' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"shmrb.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
