"""Real daemons for tests: started as a service manager starts them, ready when they say so."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .procs import Child, ChildGone, Children

# As a service manager does before it executes the program: descriptors from 3 on, and their count.
_PASSED = """
import os
passed = {passed!r}
for number, descriptor in enumerate(passed, 3):
    os.dup2(descriptor, number)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(passed)))
"""

# A meta path finder at the front: what the named packages hold cannot be imported.
_BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numpy", "torch", "tensordict"}:
            raise ImportError(f"{name} is blocked by the test")
sys.meta_path.insert(0, Blocked())
sys.argv = ["shmrbd", *sys.argv[1:]]
from shmrbd.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class Manager:
    """A service manager's end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self._sock.settimeout(0.05)

    def hear(self, state: str, child: Child) -> list[str]:
        """Everything up to and with `state`, line by line; the child must live until it comes."""
        heard: list[str] = []
        while state not in heard:
            try:
                heard += self._sock.recv(4096).decode().splitlines()
            except TimeoutError:
                if child.exit_code is not None:
                    raise ChildGone(f"no {state!r} came\n{child.report()}") from None
        return heard

    def hear_next(self, child: Child) -> list[str]:
        """The lines of the next datagram; the child must live until it comes."""
        while True:
            try:
                return self._sock.recv(4096).decode().splitlines()
            except TimeoutError:
                if child.exit_code is not None:
                    raise ChildGone(f"nothing more came\n{child.report()}") from None

    def is_silent(self) -> bool:
        """Whether nothing waits to be heard, nor comes at once."""
        try:
            self._sock.recv(4096)
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        self._sock.close()


class Daemons:
    """Starts daemons on the root and socket of the test, one after another."""

    def __init__(self, children: Children, folder: Path) -> None:
        self._children = children
        self._folder = folder
        self._managers: list[Manager] = []

    def start(self, *flags: str, **options: Any) -> Child:
        """A daemon that has said READY=1; options as for `launch`."""
        child, manager = self.launch(*flags, **options)
        manager.hear("READY=1", child)
        return child

    def launch(
        self,
        *flags: str,
        abstract: bool = False,
        torch_blocked: bool = True,
        environment: dict[str, str] | None = None,
        passed: Sequence[int] = (),
    ) -> tuple[Child, Manager]:
        """A daemon that has just been started, and what hears its states.

        Args:
            flags: of its command line.
            abstract: hear on a socket of the abstract namespace.
            torch_blocked: make sure that it imports neither torch nor numpy.
            environment: variables on top of this process's.
            passed: listening sockets, given as a service manager gives them.
        """
        number = len(self._managers)
        plain = str(self._folder / f"notify-{number}")
        manager = Manager(f"@shmrb-test-{os.getpid()}-{number}" if abstract else plain)
        self._managers.append(manager)
        program = ["-m", "shmrbd"]
        if torch_blocked:
            program = ["-c", (_PASSED.format(passed=list(passed)) if passed else "") + _BLOCKED]
        child = self._children.program(
            [sys.executable, *program, *flags],
            environment={"NOTIFY_SOCKET": manager.address, **(environment or {})},
            name="shmrbd",
            passed=passed,
        )
        return child, manager

    def close(self) -> None:
        for manager in self._managers:
            manager.close()


@contextmanager
def daemons_for(children: Children, folder: Path) -> Iterator[Daemons]:
    """Daemons of one test."""
    started = Daemons(children, folder)
    try:
        yield started
    finally:
        started.close()
