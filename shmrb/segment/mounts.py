"""The mounted file systems, as /proc/self/mountinfo lists them; floor F3."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = "/proc"


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo.

    Attributes:
        root: the directory of the file system that is mounted.
        point: where.
        kind: the type of the file system.
        options: of the file system, not of this mount.
    """

    root: str
    point: str
    kind: str
    options: tuple[str, ...]


def mounts(proc: str = PROC) -> Iterator[Mount]:
    """All that this process sees, in order; none where the kernel does not tell."""
    try:
        lines = Path(proc, "self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        mount, _, source = line.partition(" - ")
        before, after = mount.split(" "), source.split(" ")
        options = tuple(after[2].split(",")) if len(after) > 2 else ()
        yield Mount(_unescape(before[3]), _unescape(before[4]), after[0], options)


def _unescape(field: str) -> str:
    """mountinfo writes space, tab, newline and backslash in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)
