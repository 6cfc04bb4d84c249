"""Fixtures of tests with many processes."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import child as child_side
from helpers.procs import Child, Children

InOwnMounts = Callable[[Callable[..., None]], Child]


@pytest.fixture
def in_own_mounts(children: Children, root: Path) -> InOwnMounts:
    """Starts a function of a test file in mount and user namespaces of its own."""
    probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no namespaces for this user: {probe.stderr.strip()}")

    def start(function: Callable[..., None]) -> Child:
        script = str(Path(child_side.__file__).resolve())
        arguments = json.dumps({"root": str(root)})
        command = [
            sys.executable,
            script,
            inspect.getsourcefile(function),
            function.__name__,
            arguments,
        ]
        return children.program(["unshare", "-rm", *command], name=function.__name__)

    return start
