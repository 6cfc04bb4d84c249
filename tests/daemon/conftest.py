"""Daemons for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.daemons import Daemons, daemons_for
from helpers.procs import Children


@pytest.fixture
def daemons(children: Children, tmp_path: Path) -> Iterator[Daemons]:
    """Starts daemons on this test's root and socket."""
    with daemons_for(children, tmp_path) as started:
        yield started
