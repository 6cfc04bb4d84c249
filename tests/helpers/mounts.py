"""Functions of tests in mount and user namespaces of their own, where they may mount."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from . import child as child_side
from .procs import Child, Children

InOwnMounts = Callable[[Callable[..., None]], Child]


def own_mounts(children: Children, root: Path, flags: str = "-rm") -> InOwnMounts:
    """What starts a function, with the root as its argument, in such namespaces.

    Args:
        children: starts it.
        root: its argument.
        flags: of unshare. "-m" leaves root what it is, who may mount disks too.
    """
    probe = subprocess.run(["unshare", flags, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no namespaces for this user: {probe.stderr.strip()}")

    def start(function: Callable[..., None]) -> Child:
        script = str(Path(child_side.__file__).resolve())
        arguments = json.dumps({"root": str(root)})
        file = inspect.getsourcefile(function)
        assert file is not None
        command = [sys.executable, script, file, function.__name__, arguments]
        return children.program(["unshare", flags, *command], name=function.__name__)

    return start
