"""Runs a module so that it cannot outlive the process that started it.

`python -m shmrb.demo.leash PARENT MODULE ARGUMENTS` is `python -m MODULE ARGUMENTS`, killed by the
kernel when PARENT dies, however it dies. The daemon is run like this too: it has no wish of its own
to end with anybody.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie_to(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone.

    Args:
        parent: the pid that started it, which may have died already.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(f"the process that started this one (pid {parent}) is gone.")


def main() -> None:
    """Tie this process to its parent and become the module."""
    parent, module, *arguments = sys.argv[1:]
    tie_to(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
