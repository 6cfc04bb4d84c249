"""What a number means nothing without: the machine, the load on it, versions and the commit."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from typing import Any

from bench.contender import PACKAGE


def stamp() -> dict[str, Any]:
    """The machine and the sources as they are now."""
    return {
        "taken": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def load_average() -> float:
    """Processes that wanted a core during the last minute."""
    return os.getloadavg()[0]


def busy_warning(load: float) -> str | None:
    """A sentence to print beside numbers taken on a machine that others use."""
    cores = len(os.sched_getaffinity(0))
    if load < 0.5 * cores:
        return None
    return (
        f"load average {load:.1f} on {cores} cores before the start: "
        "ratios are usable with care, absolutes are not"
    )


def _cpu() -> str:
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
