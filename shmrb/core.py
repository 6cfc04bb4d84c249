"""The native core: the only importer of the compiled module (floor F2).

Algorithms, atomics, locks and copies lie in ``shmrb/native``; this module names them for Python.
Calls of :class:`Segment` return ``(status, value, what, who, wake)``:

status
    A :class:`Status`. ``AGAIN`` means that a time slice is over and nothing is held or changed:
    look at the deadline and at signals, then call again.
value
    The call's own result.
what, who
    After ``AGAIN``: a :class:`Waited` and the token of the client in the way, 0 if unknown.
wake
    Semaphore posts owed to waiters: records bell in the low 32 bits, room bell in the high 32 bits.
"""

from __future__ import annotations

import os
from enum import IntEnum
from typing import TypeAlias

try:
    from shmrb._native import (
        CONTROL_MAGIC,
        FORMAT_NUMBER,
        HeldByte,
        Rng,
        Segment,
        Tensors,
        abi,
        address,
        byte_held,
        highest_word,
        monotonic_ns,
        stop_at,
        stopping_point,
        stopping_points,
        this_process,
    )
except ImportError as error:
    raise ImportError(
        "shmrb's native module cannot be loaded: expected shmrb/_native built for this Python, got "
        f"{error}. Build and install it with: pip install ."
    ) from error

__all__ = [
    "CONTROL_MAGIC",
    "FORMAT_NUMBER",
    "SLICE_NS",
    "Bell",
    "ClientRole",
    "Counter",
    "Feature",
    "HeldByte",
    "Outcome",
    "Rng",
    "Segment",
    "Status",
    "TakeKind",
    "Tensors",
    "VersionKind",
    "WaitLabel",
    "Waited",
    "WriteFlag",
    "abi",
    "address",
    "byte_held",
    "highest_word",
    "monotonic_ns",
    "new_rng",
    "stop_at",
    "stopping_point",
    "stopping_points",
    "this_process",
]

Outcome: TypeAlias = tuple[int, int, int, int, int]

# A native wait ends after this long so that Python can look at signals and deadlines: short enough
# for Ctrl-C to feel immediate, long enough to cost nothing.
SLICE_NS = 50_000_000


class Status(IntEnum):
    """Result of a native call (``native/status.h``)."""

    OK = 0
    AGAIN = 1
    EMPTY = 2
    LIMITED = 3
    CLOSED = 4
    DEAD = 5
    CORRUPT = 6
    FULL = 7
    UNPROVEN = 8
    BUSY = 9
    READ_ONLY = 10
    SYSTEM = 11
    REFUSED = 12
    NO_MASS = 13
    NO_WINDOW = 14


class Waited(IntEnum):
    """What a call that returned ``AGAIN`` waited for."""

    NOTHING = 0
    LANE_LOCK = 1
    CONTROL_LOCK = 2
    EMPTY_LOCK = 3
    SLOT_OWNER = 4


class WaitLabel(IntEnum):
    """What a client's entry says it waits for."""

    NOTHING = 0
    RECORDS = 1
    ROOM = 2
    LANE = 3
    LOCK = 4


class Bell(IntEnum):
    """The two wait classes."""

    RECORDS = 0
    ROOM = 1


class ClientRole(IntEnum):
    """What a client may map for writing; an observer takes no client slot."""

    OBSERVER = 0
    MEMBER = 1
    LEARNER = 2


class Feature(IntEnum):
    """Bits of a buffer's geometry."""

    ONE_LOCK = 1
    PRIORITIES = 2
    LIMITER = 4
    CONSUMPTION = 8
    REFILLS = 16


class TakeKind(IntEnum):
    """The order in which records are taken."""

    UNIFORM = 0
    OLDEST_FIRST = 1
    NEWEST_FIRST = 2


class WriteFlag(IntEnum):
    """Bits of :meth:`Segment.extend`."""

    ADMITTED = 1
    END_TRAJECTORY = 2


class VersionKind(IntEnum):
    """How the versions of a column are ordered; of 1, 2, 4 or 8 bytes (``native/versions.h``)."""

    SIGNED = 0
    UNSIGNED = 1
    FLOAT = 2
    BFLOAT = 3


class Boundary(IntEnum):
    """What a window does where a trajectory ends (``native/windows.h``)."""

    PAD = 0
    STOP = 1
    INCLUDE_RESET = 2
    STOP_AT_CUT = 3


class Demand(IntEnum):
    """What must be there for an anchor to be legal (``native/windows.h``)."""

    ANYTHING = 0
    FULL = 1
    RETURN = 2
    FULL_OR_WHOLE = 3


class AnchorKind(IntEnum):
    """Where anchors come from (``native/sequences.h``)."""

    GIVEN = -1
    UNIFORM = 0
    BY_MASS = 1
    BY_TRAJECTORY = 2
    BY_TRAJECTORY_STRICT = 3


class Counter(IntEnum):
    """Per-client counters that Python adds to (``native/abi.h`` lists them all)."""

    REFUSED_PRIORITIES = 9
    OVERWRITTEN_IN_CALL = 12


def new_rng(seed: int | None = None) -> Rng:
    """A random stream: repeatable for a seed, else from the operating system's entropy."""
    if seed is None:
        seed = int.from_bytes(os.urandom(8), "little")
    return Rng(seed & 0xFFFF_FFFF_FFFF_FFFF)


def arm_stopping_point(wish: str) -> None:
    """Arms ``point:action[:passes[:pause_ms]]``, as ``SHMRB_STOP_AT`` holds it for tests."""
    point, action, *numbers = wish.split(":")
    stop_at(point, action, *(int(number) for number in numbers))


if "SHMRB_STOP_AT" in os.environ:
    arm_stopping_point(os.environ["SHMRB_STOP_AT"])
