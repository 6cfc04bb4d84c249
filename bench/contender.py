"""A contender seen from the bench: which adaptor, in which environment, and the talk with it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import environments
from bench.records import Fields

PACKAGE = Path(__file__).resolve().parent

# One thread each, and no accelerator: what is compared is a buffer on the processor.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

# The longest answer is a large buffer being filled while the machine is busy.
ANSWER_S = 600.0
# A child that was asked to close has only memory and processes to give back.
CLOSE_S = 20.0


@dataclass(frozen=True, order=True)
class Contender:
    """An adaptor and one of the ways to use it."""

    rival: str
    variant: str = ""

    @property
    def name(self) -> str:
        """As tables print it."""
        return f"{self.rival} {self.variant}".rstrip()


OURS_TENSORDICT = Contender("ours", "tensordict")
OURS_NUMPY = Contender("ours", "numpy")
OURS_PRIORITIZED = Contender("ours", "prioritized tensordict")
OURS_PRIORITIZED_NUMPY = Contender("ours", "prioritized numpy")
OURS_SLICES = Contender("ours", "slices")
OURS_SLICES_OF_FEW = Contender("ours", "slices of 10k")
OURS_SLICES_OF_MANY = Contender("ours", "slices of 10M")
TORCHRL_GENERATIONS = Contender("torchrl", "generations")
TORCHRL_PLAIN = Contender("torchrl", "plain")
TORCHRL_PRIORITIZED = Contender("torchrl", "prioritized")
TORCHRL_SLICES = Contender("torchrl", "slices")
TORCHRL_SHARED = Contender("torchrl", "shared")
CPPRB = Contender("cpprb")
CPPRB_PRIORITIZED = Contender("cpprb", "prioritized")
CPPRB_MP = Contender("cpprb", "mp")
REVERB = Contender("reverb")
MEMCPY = Contender("memcpy")

# These run in the bench's own environment and cannot be left out.
AT_HOME = ("ours", "memcpy")


class ContenderFailed(Exception):
    """A contender could not do what it was asked; the message ends with its last words."""


class Running:
    """The child process of one contender, in a session of its own with all it spawns."""

    def __init__(self, name: str, adaptor: str, python: str | Path, python_path: str = "") -> None:
        self.name = name
        self.scratch = Path(tempfile.mkdtemp(prefix="shmrb-bench-", dir="/dev/shm"))
        self.unread = b""
        self.answers = True
        # The child sees the package `bench` and nothing else of this checkout: an installed shmrb
        # must not be hidden by sources without their native part.
        imports, segments = self.scratch / "imports", self.scratch / "segments"
        imports.mkdir()
        segments.mkdir(mode=0o700)
        (imports / "bench").symlink_to(PACKAGE, target_is_directory=True)
        self.log = self.scratch / "stderr"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(python), "-m", "bench.child", adaptor],
                cwd=imports,
                env=os.environ
                | ONE_THREAD
                | {"PYTHONPATH": python_path, "SHMRB_ROOT": str(segments)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def ask(self, do: str, timeout_s: float = ANSWER_S, **arguments: Any) -> Any:
        """Send one request and wait for its answer.

        Raises:
            ContenderFailed: it answered with an error, died, or did not answer in time.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._failed(f"{do}: it died before") from None
        reply = json.loads(self._line(do, timeout_s))
        if "error" in reply:
            raise self._failed(f"{do}: {reply['error']}")
        return reply["ok"]

    def stop(self) -> None:
        """Ask it to close, unless it is stuck; then end it and everything that it spawned."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.process.stdout.closed:
            return
        if self.answers:
            with contextlib.suppress(ContenderFailed, subprocess.TimeoutExpired):
                self.ask("close", CLOSE_S)
                self.process.stdin.close()
                self.process.wait(CLOSE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        # A dead child may have left words unread, which closing tells once more.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _line(self, do: str, timeout_s: float) -> bytes:
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
        while b"\n" not in self.unread:
            if not select.select([output], [], [], timeout_s)[0]:
                self.answers = False
                raise self._failed(f"{do}: no answer within {timeout_s:.0f} s")
            piece = os.read(output, 1 << 16)
            if not piece:
                raise self._failed(f"{do}: it died with exit code {self.process.wait()}")
            self.unread += piece
        line, _, self.unread = self.unread.partition(b"\n")
        return line

    def _failed(self, what: str) -> ContenderFailed:
        words = self.log.read_text(errors="replace").strip().splitlines()[-6:]
        return ContenderFailed("\n".join([f"{self.name}: {what}", *words]))


class Stage:
    """Contenders that run at the same time, each with its own buffer of the same records.

    A contender that fails is put aside with its reason, the others go on.
    """

    def __init__(self, envs: Path, say: Callable[[str], None], failures: dict[str, str]) -> None:
        self.envs, self.say, self.failures = envs, say, failures
        self.running: dict[Contender, Running] = {}
        self.about: dict[str, Any] = {}

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exception: object) -> None:
        for contender in list(self.running):
            self.leave(contender)

    def enter(
        self, contender: Contender, fields: Fields, capacity: int, batch: int, fill: bool
    ) -> Running | None:
        """Start a contender and let it make its buffer; None when it cannot."""
        self.say(f"{contender.name}: starting, {capacity:,} records")
        try:
            adaptor = f"bench.rivals.{contender.rival}"
            if contender.rival in AT_HOME:
                child = Running(contender.name, adaptor, sys.executable, _python_path())
            else:
                python = environments.interpreter(contender.rival, self.envs, self.say)
                child = Running(contender.name, adaptor, python)
            self.running[contender] = child
            self.about[contender.name] = child.ask(
                "open", fields=fields, capacity=capacity, batch=batch,
                variant=contender.variant, fill=fill,
            )  # fmt: skip
            return child
        except (ContenderFailed, environments.EnvironmentUnavailable) as error:
            self.fail(contender, error)
            return None

    def fail(self, contender: Contender, error: Exception) -> None:
        """Put a contender aside."""
        self.failures[contender.name] = str(error)
        self.say("failed: " + str(error).partition("\n")[0])
        self.leave(contender)

    def leave(self, contender: Contender) -> None:
        """Stop a contender, if it runs."""
        child = self.running.pop(contender, None)
        if child is not None:
            child.stop()


def _python_path() -> str:
    entries = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(str(Path(entry).resolve()) for entry in entries)
