"""The command line as a function of this process, and daemons for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.daemons import Daemons, daemons_for
from helpers.mounts import InOwnMounts, own_mounts
from helpers.procs import Children
from shmrb.cli import main


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Shell = Callable[..., Result]


@pytest.fixture
def shmrb_(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """Runs `shmrb` with these words, to its exit."""

    def run(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["shmrb", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code or 0
        assert isinstance(code, int)
        return Result(code, *capfd.readouterr())

    return run


@pytest.fixture
def daemons(children: Children, tmp_path: Path) -> Iterator[Daemons]:
    """Starts daemons on this test's root and socket."""
    with daemons_for(children, tmp_path) as started:
        yield started


@pytest.fixture
def in_own_mounts(children: Children, root: Path) -> InOwnMounts:
    """Starts a function of a test file in mount and user namespaces of its own."""
    return own_mounts(children, root)
