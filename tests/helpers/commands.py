"""`shmrb` as a function, for children that have no capture of their own."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any

from shmrb.cli import main


def run_here(*words: str) -> dict[str, Any]:
    """How a command ended, and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["shmrb", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code: Any = 0
        except SystemExit as end:
            code = end.code or 0
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}
