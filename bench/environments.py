"""Virtual environments of the peers, made on demand and kept in a cache directory.

Each peer pins its own torch, TensorFlow or numpy, so none of them can share ours. An environment
counts as made only when its stamp, written last, names exactly the packages asked for; anything
else (an interrupted install, an older pin) is removed and made again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

STAMP = "bench-environment.json"


@dataclass(frozen=True)
class Environment:
    """What a peer needs: its exact packages, and a Python version where it has no choice."""

    requirements: tuple[str, ...]
    python: str | None = None


ENVIRONMENTS: dict[str, Environment] = {
    # TorchRL's compiled part loads only beside the torch minor release that it was built with.
    "torchrl": Environment(("torch==2.14.1", "torchrl==0.14.1", "tensordict==0.14.3", "numpy")),
    "cpprb": Environment(("cpprb==11.0.0", "numpy")),
    # Each Reverb wheel pairs with one TensorFlow release and with the Pythons of its time.
    "reverb": Environment(("dm-reverb[tensorflow]==0.14.0",), python="3.11"),
}


class EnvironmentUnavailable(Exception):
    """A peer's environment could not be made; the message says which step failed and why."""


def default_root() -> Path:
    """The cache directory used without `--envs`."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "shmrb-bench"


def interpreter(
    name: str, root: Path, say: Callable[[str], None], wanted: Environment | None = None
) -> Path:
    """The Python of one peer's environment, made first if it is not there.

    Args:
        name: a key of ENVIRONMENTS, or any name together with `wanted`.
        root: directory that holds the environments; made if missing.
        say: told in one line what takes long.
        wanted: the description to use instead of the one in ENVIRONMENTS.

    Raises:
        EnvironmentUnavailable: no such Python, or the install failed.
    """
    wanted = wanted or ENVIRONMENTS[name]
    root.mkdir(parents=True, exist_ok=True)
    home = root / name
    python = home / "bin" / "python"
    stamp: dict[str, object] = {
        "requirements": list(wanted.requirements),
        "python": wanted.python or _running(),
    }
    with FileLock(root / f"{name}.lock"):
        if _is_made(home, stamp):
            return python
        base = find_python(wanted.python)
        say(f"making the environment of {name} in {home} ({', '.join(wanted.requirements)})")
        shutil.rmtree(home, ignore_errors=True)
        _run(name, [base, "-m", "venv", str(home)])
        _run(name, [str(python), "-m", "pip", "install", "--quiet", "--no-input",
                    "--disable-pip-version-check", *wanted.requirements])  # fmt: skip
        (home / STAMP).write_text(json.dumps(stamp))
    return python


def find_python(version: str | None) -> str:
    """An interpreter of that minor version, the running one when it fits or nothing is asked."""
    if version is None or version == _running():
        return sys.executable
    candidate = shutil.which(f"python{version}")
    # A version manager's shim exists for every version and fails when run.
    if candidate is None or subprocess.run([candidate, "-c", ""], capture_output=True).returncode:
        raise EnvironmentUnavailable(
            f"expected Python {version} as python{version} on PATH, found none that runs; "
            f"install it, or leave this peer out with --rivals"
        )
    return candidate


def _is_made(home: Path, stamp: dict[str, object]) -> bool:
    try:
        return bool(json.loads((home / STAMP).read_text()) == stamp)
    except (OSError, ValueError):
        return False


def _running() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _run(name: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise EnvironmentUnavailable(
            f"the environment of {name}: {' '.join(command)} ended with {done.returncode}:\n{tail}"
        )
