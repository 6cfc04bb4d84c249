"""Removes a demo's buffers and files when all of its processes are gone.

`python -m shmrb.demo.sweeper BASE` reads its standard input to the end. The write end of that pipe
is held by the orchestrator and by every process that it started, so the end comes when the last of
them is dead, killed ones too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys

from shmrb.errors import ShmrbError
from shmrb.segment.directory import Root

# Inside the base directory of a demo.
SEGMENTS = "segments"


def sweep(base: str) -> None:
    """Drop every buffer of the demo in `base`, then remove the directory."""
    root = Root(os.path.join(base, SEGMENTS))
    if os.path.isdir(root.path):
        for entry in root.list():
            # What is damaged has no semaphores that could be found; its files go with the rest.
            with contextlib.suppress(ShmrbError, OSError):
                root.drop(entry.name, force=True)
        root.reclaim()
    shutil.rmtree(base, ignore_errors=True)


def main() -> None:
    """Wait for the end of everybody else."""
    # Whoever ends the demo from a terminal or with its session means the others.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    sweep(sys.argv[1])


if __name__ == "__main__":
    main()
