"""The demo's private place, a root and a socket, and processes that cannot be left over."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from shmrb.demo import sweeper
from shmrb.demo.interrupts import Interrupts
from shmrb.errors import ShmrbError
from shmrb.segment import names

# What a process is told in its environment; one thread each, since the demo has more processes than
# small machines have cores.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Lines of a failed child's log that the demo prints.
_LOG_LINES = 20
_SWEEP_S = 30.0
# A child has no bell: its end and its log are looked at this often.
_LOOK_EVERY_S = 0.02


class Broken(ShmrbError):
    """Something ended or answered as it must not."""


class Child:
    """A process that the orchestrator started.

    Args:
        name: for people.
        process: with its standard output as a pipe.
        log: the file that has its standard error.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: str) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log = log
        self._unread = b""
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)

    def fileno(self) -> int:
        """What becomes readable when there are reports."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self) -> None:
        """Take what it has written out of the pipe."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.fileno(), 65_536):
                self._unread += part

    def reports(self) -> list[dict[str, Any]]:
        """What it has reported since the last call."""
        self.read()
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -n after signal n."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL; it is reaped when this returns."""
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        """The end of what it wrote to its standard error, to be put after a message."""
        with open(self._log, errors="replace") as file:
            return "".join(["\n", *file.readlines()[-_LOG_LINES:]]).rstrip()

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


class Stage:
    """A directory on tmpfs with a root of segments and a daemon's socket, and its processes.

    Used as a context: at its end every child is killed and everything is removed. If this process
    dies before, the kernel kills the children (`leash`) and the sweeper removes the rest.

    Args:
        interrupts: looked at wherever there is something to wait for.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self.running: list[Child] = []
        self._interrupts = interrupts

    def __enter__(self) -> Stage:
        self.base = tempfile.mkdtemp(prefix="shmrb-demo-", dir=names.SHARED_MEMORY)
        self.root = os.path.join(self.base, sweeper.SEGMENTS)
        self.socket = os.path.join(self.base, "daemon.sock")
        self._environment = _environment(self.root, self.socket)
        end, self._alive = os.pipe()
        self._sweeper = subprocess.Popen(
            [sys.executable, "-m", "shmrb.demo.sweeper", self.base],
            stdin=end,
            stdout=subprocess.DEVNULL,
            cwd=self.base,
            env=self._environment,
            start_new_session=True,
        )
        os.close(end)
        return self

    def __exit__(self, *exc: object) -> None:
        self._interrupts.ignore()
        for child in self.running:
            child.kill()
        os.close(self._alive)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._sweeper.wait(_SWEEP_S)
        if os.path.exists(self.base):
            sweeper.sweep(self.base)

    def start(self, name: str, module: str, *arguments: str) -> Child:
        """A child that runs a module, away from the terminal's signals and from any checkout.

        Args:
            name: for people; also that of its log.
            module: what `python -m` is to run.
            arguments: of the module.
        """
        log = os.path.join(self.base, name.replace(" ", "-") + ".log")
        command = [sys.executable, "-m", "shmrb.demo.leash", str(os.getpid()), module, *arguments]
        with open(log, "ab") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.base,
                env=self._environment,
                pass_fds=[self._alive],
                start_new_session=True,
            )
        child = Child(name, process, log)
        self.running.append(child)
        return child

    def pause(self, seconds: float) -> None:
        """Wait so long, or until somebody reports something.

        Raises:
            Broken: a process has ended by itself.
            KeyboardInterrupt.
        """
        select.select(self.running, [], [], seconds)
        self._interrupts.check()
        for child in self.running:
            if child.exit_code is not None:
                raise Broken(f"{child} ended by itself, exit code {child.exit_code}.{child.log()}")

    def kill(self, child: Child) -> None:
        """SIGKILL; its last reports can still be read."""
        child.kill()
        self.running.remove(child)

    def finish(self, children: list[Child], timeout: float) -> None:
        """Ask children to end and wait until all have; their last reports can still be read.

        Raises:
            Broken: one did not end in so many seconds, or not in order.
            KeyboardInterrupt.
        """
        for child in children:
            child.ask_to_end()
        deadline = time.monotonic() + timeout
        for child in children:
            while child.exit_code is None:
                if time.monotonic() > deadline:
                    raise Broken(f"{child} did not end in {timeout:g} s.{child.log()}")
                self._interrupts.check()
                # A full pipe would keep it from ending.
                child.read()
                time.sleep(_LOOK_EVERY_S)
            self.running.remove(child)
            # Asked before it could say what SIGTERM means to it, it dies of it.
            if child.exit_code not in (0, -signal.SIGTERM):
                raise Broken(f"{child} ended with {child.exit_code}, expected 0.{child.log()}")


def _environment(root: str, socket: str) -> dict[str, str]:
    environment = dict(os.environ)
    # Somebody else's service manager must not take the demo's daemon for its own.
    environment.pop("NOTIFY_SOCKET", None)
    environment |= {names.ROOT_VARIABLE: root, names.SOCKET_VARIABLE: socket}
    environment |= dict.fromkeys(_THREADS, "1")
    # Children run elsewhere, so relative entries would mean something else to them.
    path = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if path:
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path))
    return environment
