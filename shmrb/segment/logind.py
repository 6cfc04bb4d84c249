"""Does logind remove buffers when their owner logs out? floor F3.

`RemoveIPC=` (yes unless configured) deletes what an ordinary user owns below /dev/shm, used or not,
sub-directories too, when the user's last session ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shmrb.segment import names
from shmrb.segment.accounts import user_name


@dataclass(frozen=True)
class Verdict:
    """Whether buffers are in danger, and why or why not."""

    removes: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Logind:
    """Where logind's settings are found.

    Attributes:
        files: configuration, a later one overrides an earlier one; directories hold drop-ins.
        linger: has a file for each user whose services outlive the sessions.
        systemd: is there where systemd runs.
        shared_memory: where logind cleans.
    """

    files: Sequence[str] = (
        "/usr/lib/systemd/logind.conf",
        "/usr/lib/systemd/logind.conf.d",
        "/etc/systemd/logind.conf",
        "/run/systemd/logind.conf.d",
        "/etc/systemd/logind.conf.d",
    )
    linger: str = "/var/lib/systemd/linger"
    systemd: str = "/run/systemd/system"
    shared_memory: str = names.SHARED_MEMORY

    def verdict(self, roots: Sequence[str], uid: int) -> Verdict:
        """What becomes of this user's buffers in these roots at the last logout."""
        below = [root for root in roots if _is_below(root, self.shared_memory)]
        if uid < names.FIRST_PERSON_UID:
            return Verdict(False, f"uid {uid} is a system user's: logind leaves it")
        if not os.path.isdir(self.systemd):
            return Verdict(False, "systemd does not run here")
        if not below:
            return Verdict(False, "no root lies in shared memory")
        if not self._removes_ipc():
            return Verdict(False, "RemoveIPC=no in logind.conf")
        if os.path.exists(os.path.join(self.linger, user_name(uid))):
            return Verdict(False, f"{user_name(uid)} lingers")
        return Verdict(True, f"RemoveIPC=yes: logind removes {below[0]} when the last session ends")

    def _removes_ipc(self) -> bool:
        """The setting as logind reads it."""
        removes = True
        for place in map(Path, self.files):
            for file in sorted(place.glob("*.conf")) if place.is_dir() else [place]:
                try:
                    lines = file.read_text(errors="replace").splitlines()
                except OSError:
                    continue
                for line in lines:
                    key, _, value = line.partition("=")
                    if key.strip() == "RemoveIPC":
                        removes = value.strip().lower() not in ("no", "false", "off", "0", "n", "f")
        return removes


def _is_below(path: str, directory: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(directory) + os.sep)
