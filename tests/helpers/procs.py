"""Child processes of tests: start them, wait for what they report, stop, kill and reap them.

No wait here has a bound of its own. A wait ends when the thing happens, or at once when the child
it waits for is gone; a test that would hang is ended by its watchdog (tests/conftest.py), which
prints the stacks of every process.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import child as child_side

_POLL_S = 0.002


def until(condition: Callable[[], Any]) -> Any:
    """Polls until `condition` returns something true, and returns that.

    For state that nobody announces; where there is an event, wait for the event.
    """
    while not (value := condition()):
        time.sleep(_POLL_S)
    return value


class ChildGone(AssertionError):
    """A child ended before it did what the test waits for."""


class Child:
    """One child process, whose stdout is read line by line."""

    def __init__(self, name: str, process: Any, orders: int, events: int, errors: Path) -> None:
        self.name = name
        self.pid: int = process.pid
        self._process = process
        self._orders = orders
        self._events = events
        self._errors = errors
        self._pidfd = os.pidfd_open(self.pid)
        self._buffer = b""
        self._lines: list[str] = []
        self._ended = False
        self.output: list[str] = []

    # Waiting for what it says

    def expect(self, event: str) -> dict[str, Any]:
        """The values of the next `event` that the child emits; lines before it are passed over."""
        for line in self._read_lines():
            if line.startswith(child_side.EVENT):
                values: dict[str, Any] = json.loads(line.removeprefix(child_side.EVENT))
                if values.pop("event") == event:
                    return values
        raise ChildGone(f"{self} ended before it reported {event!r}\n{self.report()}")

    def expect_line(self, pattern: str) -> re.Match[str]:
        """The first line that matches; for programs that know nothing of events."""
        for line in self._read_lines():
            if match := re.search(pattern, line):
                return match
        raise ChildGone(f"{self} ended before it printed {pattern!r}\n{self.report()}")

    def events(self, event: str) -> list[dict[str, Any]]:
        """All further events of that name until the child closes its stdout."""
        found = []
        for line in self._read_lines():
            if line.startswith(child_side.EVENT):
                values = json.loads(line.removeprefix(child_side.EVENT))
                if values.pop("event") == event:
                    found.append(values)
        return found

    def send(self, line: str = "") -> None:
        """Gives the child one line, which its `receive()` returns."""
        os.write(self._orders, line.encode() + b"\n")

    # Ending and pausing it

    def signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """SIGKILL, and the child is reaped when this returns."""
        if self.exit_code is None:
            self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> None:
        """SIGSTOP, and the child stands still when this returns."""
        self.signal(signal.SIGSTOP)
        self.wait_stopped()

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def wait_stopped(self) -> None:
        """Waits until the child is stopped, by us or by itself at a named stopping point."""
        state = until(lambda: self._state_if("TZX"))
        if state != "T":
            raise ChildGone(f"{self} ended before it stopped\n{self.report()}")

    def wait(self) -> int:
        """Waits for its end, still reading its output, and returns the exit code (−n: signal n)."""
        while True:
            sources = [self._pidfd] if self._ended else [self._pidfd, self._events]
            ready, _, _ = select.select(sources, [], [])
            if self._events in ready:
                self._fill()
            if self._pidfd in ready:
                break
        return int(until(self._exit_code_or_none)[0])

    def succeed(self) -> None:
        """Waits for its end, which must be orderly."""
        code = self.wait()
        assert code == 0, f"{self} ended with {code}, expected 0\n{self.report()}"

    # Looking at it

    @property
    def exit_code(self) -> int | None:
        found = self._exit_code_or_none()
        return found[0] if found else None

    @property
    def stderr(self) -> str:
        return self._errors.read_text(errors="replace") if self._errors.exists() else ""

    def report(self) -> str:
        """What it printed, for a failing test."""
        printed = "\n".join(self.output[-40:])
        return f"--- {self} stdout, last lines\n{printed}\n--- {self} stderr\n{self.stderr[-8000:]}"

    def dump_stacks(self) -> None:
        """Asks for its stacks on stderr and waits a moment for them: it may be stopped or dying."""
        before = len(self.stderr)
        self.signal(signal.SIGUSR1)
        give_up = time.monotonic() + 1.0
        until(lambda: len(self.stderr) > before or time.monotonic() > give_up)

    def close(self) -> None:
        """Kills it if need be and lets go of its descriptors."""
        self.kill()
        for descriptor in (self._orders, self._events, self._pidfd):
            os.close(descriptor)

    def __repr__(self) -> str:
        return f"child {self.name} (pid {self.pid})"

    # Inside

    def _exit_code_or_none(self) -> tuple[int] | None:
        process = self._process
        code = process.poll() if isinstance(process, subprocess.Popen) else process.exitcode
        return None if code is None else (code,)

    def _state_if(self, states: str) -> str:
        """The letter of /proc/pid/stat if it is one of `states`; a reaped process counts as Z."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return "Z"
        letter = stat.rpartition(")")[2].split()[0]
        return letter if letter in states else ""

    def _fill(self) -> None:
        piece = os.read(self._events, 65536)
        if not piece:
            self._ended = True
            piece = b"\n" if self._buffer else b""
        *whole, self._buffer = (self._buffer + piece).split(b"\n")
        new = [line.decode(errors="replace") for line in whole]
        self._lines += new
        self.output += new

    def _read_lines(self) -> Iterator[str]:
        """Lines not read yet, as they come, until the child closes its stdout or is dead."""
        while True:
            while self._lines:
                yield self._lines.pop(0)
            if self._ended:
                return
            ready, _, _ = select.select([self._events, self._pidfd], [], [])
            if self._events in ready:
                self._fill()
            else:
                # Dead, and nothing left in the pipe: a grandchild may still hold the other end.
                self._ended = True


class Children:
    """Starts the children of one test and reaps all of them at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[Child] = []

    def start(
        self,
        function: Callable[..., None],
        *,
        method: str = "interpreter",
        environment: dict[str, str] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Child:
        """Runs a module-level function in a process of its own.

        The child loads the file that defines the function, so what that file imports, the child
        imports: keep the functions of torch-free children in files without torch.

        Args:
            function: reports with `helpers.child.emit`, takes orders with `helpers.child.receive`.
            method: "interpreter" (an unrelated Python; arguments travel as JSON), or a start method
                of multiprocessing: "spawn", "fork", "forkserver" (arguments are pickled).
            environment: variables on top of this process's; for "interpreter" only.
            name: shown in reports; default the function's name.
        """
        name = name or function.__name__
        file = inspect.getsourcefile(function)
        assert file is not None
        file = os.path.abspath(file)
        assert "<locals>" not in function.__qualname__ or method == "fork", (
            f"{name} is not at the top level of its module"
        )
        if method == "interpreter":
            script = str(Path(child_side.__file__).resolve())
            command = [sys.executable, script, file, function.__name__, json.dumps(kwargs)]
            return self._popen(name, command, environment)
        assert environment is None, "only unrelated interpreters take another environment"
        target = function if method == "fork" else (file, function.__name__)
        return self._multiprocess(name, method, target, kwargs)

    def program(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        environment: dict[str, str] | None = None,
        name: str | None = None,
        passed: Sequence[int] = (),
    ) -> Child:
        """Starts any program. Its working directory is the test's folder, never the checkout.

        It inherits the descriptors in `passed`, under their numbers.
        """
        words = [os.fspath(word) for word in command]
        script = str(Path(child_side.__file__).resolve())
        whole = [sys.executable, script, "--program", *words]
        return self._popen(name or os.path.basename(words[0]), whole, environment, passed)

    def __iter__(self) -> Iterator[Child]:
        return iter(list(self._all))

    def close(self) -> None:
        """Kills and reaps every child; the last one started goes first."""
        while self._all:
            self._all.pop().close()

    def _popen(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str] | None,
        passed: Sequence[int] = (),
    ) -> Child:
        errors = self._errors_file(name)
        orders_out, orders = os.pipe()
        events, events_in = os.pipe()
        with errors.open("wb") as sink:
            process = subprocess.Popen(
                command,
                stdin=orders_out,
                stdout=events_in,
                stderr=sink,
                cwd=self._folder,
                pass_fds=passed,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            )
        os.close(orders_out)
        os.close(events_in)
        return self._keep(Child(name, process, orders, events, errors))

    def _multiprocess(self, name: str, method: str, target: Any, kwargs: dict[str, Any]) -> Child:
        errors = self._errors_file(name)
        context: Any = multiprocessing.get_context(method)
        orders_out, orders = context.Pipe(duplex=False)
        events, events_in = context.Pipe(duplex=False)
        process = context.Process(
            target=child_side.run_in_multiprocessing,
            args=(orders_out, events_in, str(errors), dict(os.environ), target, kwargs),
        )
        process.start()
        orders_out.close()
        events_in.close()
        child = Child(name, process, os.dup(orders.fileno()), os.dup(events.fileno()), errors)
        orders.close()
        events.close()
        return self._keep(child)

    def _keep(self, child: Child) -> Child:
        self._all.append(child)
        return child

    def _errors_file(self, name: str) -> Path:
        return self._folder / f"stderr-{len(self._all)}-{re.sub(r'[^A-Za-z0-9]+', '-', name)}.txt"
