"""Buffers of one int64 field, made and written by the segment floor alone."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from shmrb.core import SLICE_NS, Status
from shmrb.schema import Schema
from shmrb.segment import names
from shmrb.segment.member import Member
from shmrb.spec import BufferSpec, SharedStorage

SCHEMA = Schema.from_mapping({"uid": "int64"})


def uid_spec(capacity: int = 64, **options: object) -> BufferSpec:
    """The description of such a buffer."""
    return BufferSpec(storage=SharedStorage(capacity), schema=SCHEMA, **options)


def declared_spec(capacity: int = 64, **options: object) -> BufferSpec:
    """The same without a schema."""
    return BufferSpec(storage=SharedStorage(capacity), **options)


def sized_spec(mebibytes: int, **options: object) -> BufferSpec:
    """A description whose data alone takes so many MiB."""
    schema = Schema.from_mapping({"body": ("uint8", (1024,))})
    options.setdefault("storage", SharedStorage(mebibytes * 1024))
    return BufferSpec(schema=schema, **options)


def write_uids(member: Member, uids: list[int]) -> int:
    """Append one record an uid; the native status."""
    rows = np.asarray(uids, dtype=np.int64)
    status, *_ = member.segment.extend(
        lane=0, count=len(uids), columns=[rows.ctypes.data], versions=0, flags=0, slice_ns=SLICE_NS
    )
    return status


def read_uids(member: Member, slots: list[int]) -> tuple[list[int], list[int]]:
    """The uids in these slots, and their public generations."""
    index = np.asarray(slots, dtype=np.int64)
    uids, generations = np.zeros_like(index), np.zeros_like(index)
    status, *_ = member.segment.read(
        index=index.ctypes.data,
        count=len(slots),
        outputs=[uids.ctypes.data],
        generation=generations.ctypes.data,
        version=0,
        cost=0,
        slice_ns=SLICE_NS,
    )
    assert status == Status.OK
    return uids.tolist(), generations.tolist()


def semaphore_files(uuid: bytes) -> list[str]:
    """Those of a buffer's semaphores that exist."""
    files = [names.semaphore_file(name) for name in names.semaphore_names(uuid)]
    return [file for file in files if os.path.exists(file)]


def remains(root: Path) -> list[str]:
    """What is in a root beside its bookkeeping."""
    return sorted(
        {item.name for item in root.iterdir()} - {names.ADMINISTRATION_LOCK, names.STAMPS}
    )
