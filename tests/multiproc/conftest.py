"""Fixtures of tests with many processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.mounts import InOwnMounts, own_mounts
from helpers.procs import Children


@pytest.fixture
def in_own_mounts(children: Children, root: Path) -> InOwnMounts:
    """Starts a function of a test file in mount and user namespaces of its own."""
    return own_mounts(children, root)
