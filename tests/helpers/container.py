"""A process in namespaces of its own, as in a container that is given two directories.

`python container.py ROOT SOCKETS FILE FUNCTION ARGUMENTS`, started by `unshare`: of the host's
shared memory it sees ROOT and SOCKETS, under the paths that they have outside, and nothing else.
"""

from __future__ import annotations

import ctypes
import os
import sys

SHARED_MEMORY = "/dev/shm"
# What `unshare` shall give it. A user of its own lets anybody mount.
NAMESPACES = ("--user", "--map-root-user", "--mount", "--pid", "--ipc", "--fork", "--kill-child")
# Shells report a signal like this.
SIGNALLED = 128

_MS_BIND = 0x1000


def show_only(*directories: str) -> None:
    """Hides the shared memory of the host, but for these directories below it."""
    kept = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in directories}
    _mount("tmpfs", SHARED_MEMORY, "tmpfs", 0, "size=64m")
    for path, descriptor in kept.items():
        os.makedirs(path)
        # What the descriptor means, now that its path means something else.
        _mount(f"/proc/self/fd/{descriptor}", path, "", _MS_BIND, "")
        os.close(descriptor)


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    """mount(2): the program of that name looks up what a link in /proc reads, not what it means."""
    words = [word.encode() for word in (source, target, kind)]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(*words, ctypes.c_ulong(flags), options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount of {source}", target)


def main() -> None:
    root, sockets, *words = sys.argv[1:]
    _mount("proc", "/proc", "proc", 0, "")
    show_only(root, sockets)
    # The first process of a namespace is immune to signals from inside; what is tested is not.
    worker = os.fork()
    if worker == 0:
        import child

        sys.argv[1:] = words
        child.main()
        return
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    sys.exit(code if code >= 0 else SIGNALLED - code)


if __name__ == "__main__":
    main()
