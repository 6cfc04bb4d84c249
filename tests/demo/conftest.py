"""Whole demos as programs."""

from __future__ import annotations

import sys

import pytest

from helpers.demos import RunningDemo, StartDemo
from helpers.procs import Children


@pytest.fixture
def start_demo(children: Children) -> StartDemo:
    """Starts `shmrb demo` with these options."""

    def start(
        *options: str, collectors: int = 3, environment: dict[str, str] | None = None
    ) -> RunningDemo:
        code = "from shmrb.cli import main; main()"
        count = f"--collectors={collectors}"
        command = [sys.executable, "-c", code, "demo", count, *options]
        child = children.program(command, environment=environment, name="demo")
        return RunningDemo(child, collectors)

    return start
