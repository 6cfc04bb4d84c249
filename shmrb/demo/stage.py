"""The demo's private place and its processes: a root, a socket, children that cannot be left over."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

from shmrb.demo import sweeper
from shmrb.errors import ShmrbError
from shmrb.segment import names

# What a process is told in its environment; one thread each, since the demo has more processes than
# small machines have cores.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Lines of a failed child's log that the demo prints.
_LOG_LINES = 20
_SWEEP_S = 30.0


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
        self._half_line = b""
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)

    def fileno(self) -> int:
        """What becomes readable when there are reports."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def reports(self) -> list[dict[str, Any]]:
        """What it has reported since the last call."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.fileno(), 65_536):
                self._half_line += part
        *lines, self._half_line = self._half_line.split(b"\n")
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

    def wait(self, timeout: float) -> int:
        """Its exit code.

        Raises:
            Broken: it still runs after so many seconds.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Broken(f"{self.name} (pid {self.pid}) did not end in {timeout:g} s.") from None

    def log(self) -> str:
        """The end of what it wrote to its standard error."""
        with open(self._log, errors="replace") as file:
            return "".join(file.readlines()[-_LOG_LINES:]).rstrip()


class Stage:
    """A directory on tmpfs with a root of segments and a daemon's socket, and processes that use it.

    Used as a context: at its end every child is killed and everything is removed. If this process
    dies before, the kernel kills the children (`leash`) and the sweeper removes the rest.
    """

    def __init__(self) -> None:
        self.children: list[Child] = []
        self.base = ""

    def __enter__(self) -> Stage:
        self.base = tempfile.mkdtemp(prefix="shmrb-demo-", dir=names.SHARED_MEMORY)
        self.root = os.path.join(self.base, sweeper.SEGMENTS)
        self.socket = os.path.join(self.base, "daemon.sock")
        self._environment = _environment(self.root, self.socket)
        end, self._alive = os.pipe()
        os.set_inheritable(self._alive, False)
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
        # Cleaning up takes moments; a second Ctrl-C must not leave it half done.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for child in self.children:
            if child.exit_code is None:
                child.kill()
        os.close(self._alive)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._sweeper.wait(_SWEEP_S)
        if os.path.exists(self.base):
            sweeper.sweep(self.base)
        signal.signal(signal.SIGINT, before)

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
        self.children.append(child)
        return child


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
