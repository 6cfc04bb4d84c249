"""How far the newest records lie behind the policy that is published; floor F3.

Records carry the version they were made with in a field `policy_version`; the policy is the one set
of parameters whose name has the same parent: "exp42/policy" for "exp42/replay".
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable

from shmrb.core import Status
from shmrb.dtypes import DTYPES
from shmrb.errors import ShmrbError
from shmrb.segment.directory import Root
from shmrb.segment.entries import State
from shmrb.segment.member import Member
from shmrb.spec import PARAMETER_SLOTS

POLICY_VERSION = ("policy_version",)
PARAMETERS = "parameters"


def policy_lag(member: Member, others: Iterable[Member]) -> int | None:
    """Versions between the newest record and the newest parameters; None if either has none."""
    if member.spec.purpose == PARAMETERS:
        return None
    used = newest_policy_version(member)
    if used is None:
        return None
    published = [
        newest_version(other)
        for other in others
        if other.spec.purpose == PARAMETERS and _parent(other.name) == _parent(member.name)
    ]
    # With two policies beside it, nobody can say whose the records are.
    return published[0] - used if len(published) == 1 and published[0] >= 0 else None


def lag_in(root: Root, name: str) -> int | None:
    """The same for a buffer that nobody has open here; None also if it cannot be looked into."""
    with contextlib.ExitStack() as stack:
        members: dict[str, Member] = {}
        for entry in root.list(_parent(name)):
            if entry.state is State.READY and _parent(entry.name) == _parent(name):
                with contextlib.suppress(ShmrbError):
                    member = Member.join(root, entry.name, role="observer")
                    members[entry.name] = stack.enter_context(member)
        return policy_lag(members[name], members.values()) if name in members else None


def newest_version(parameters: Member) -> int:
    """The version of the newest whole tree, -1 if there is none."""
    versions = (_read(parameters, slot, {}) for slot in range(PARAMETER_SLOTS))
    return max((version for version in versions if version is not None), default=-1)


def newest_policy_version(member: Member) -> int | None:
    """What the newest record of the lane that was written last says; None if nothing is there."""
    schema = member.spec.schema
    assert schema is not None
    fields = {field.path: number for number, field in enumerate(schema.fields)}
    column = fields.get(POLICY_VERSION)
    if column is None or member.spec.capacity == 0:
        return None
    field = schema.fields[column]
    is_signed = field.dtype.startswith("int")
    is_number = is_signed or field.dtype.startswith("uint")
    if not is_number or field.row_bytes != DTYPES[field.dtype].itemsize:
        return None
    lanes = member.segment.lanes()
    number, lane = max(enumerate(lanes), key=lambda pair: pair[1]["written_ns"])
    if lane["head"] <= lane["floor"]:
        return None
    position = (lane["head"] - 1) % member.spec.lane_capacity
    value = (ctypes.c_ubyte * field.row_bytes)()
    slot = number * member.spec.lane_capacity + position
    found = _read(member, slot, {column: ctypes.addressof(value)})
    return None if found is None else int.from_bytes(value, "little", signed=is_signed)


def _read(member: Member, slot: int, outputs: dict[int, int]) -> int | None:
    """The version of a whole record, whose columns are copied to these addresses.

    Without patience: a slot that is being written holds up nobody.
    """
    index, generation, version = ctypes.c_int64(slot), ctypes.c_int64(-1), ctypes.c_int64(-1)
    addresses = [outputs.get(column, 0) for column in range(len(member.layout.columns))]
    places = (addresses, ctypes.addressof(generation), ctypes.addressof(version))
    status, *_ = member.segment.read(ctypes.addressof(index), 1, *places, 0, 0)
    return version.value if status == Status.OK and generation.value >= 0 else None


def _parent(name: str) -> str:
    return name.rpartition("/")[0]
