"""Cgroups with little memory, below one that somebody delegated to these tests.

A test makes none anywhere else: what is above is not ours, and whoever moves a process out of the
group that it was put into takes it away from the limits there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.procs import until

# Its `memory` controller serves the groups below it.
DELEGATED = "SHMRB_TEST_CGROUP"


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A new group with that limit, entered by writing a PID into its `cgroup.procs`.

    Its processes are to end before the block does.
    """
    delegated = os.environ.get(DELEGATED)
    if delegated is None:
        pytest.skip(f"{DELEGATED} names no cgroup in which this test may make another")
    group = Path(delegated, f"shmrb-test-{uuid.uuid4().hex[:8]}")
    group.mkdir()
    try:
        names = ("memory.max", "memory.limit_in_bytes")
        limit = next(group / name for name in names if (group / name).exists())
        limit.write_text(str(limit_bytes))
        yield group
    finally:
        # Processes leave their cgroup a moment after they are reaped.
        until(lambda: _removed(group))


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True
