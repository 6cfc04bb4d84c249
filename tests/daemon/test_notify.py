"""What the service manager hears, over real datagram sockets."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest

from shmrbd.notify import Notifier


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_states_arrive_on_either_kind_of_address(kind: str, tmp_path: Path) -> None:
    name = f"@shmrb-test-{os.getpid()}" if kind == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if kind == "abstract" else name)
        manager.settimeout(10)
        notifier = Notifier(name)
        notifier.ready("serving")
        notifier.status("3 buffers")
        notifier.stopping()
        heard = [manager.recv(1000).decode() for _ in range(3)]
    assert heard == ["READY=1\nSTATUS=serving", "STATUS=3 buffers", "STOPPING=1"]


@pytest.mark.parametrize("address", [None, ""])
def test_without_a_manager_nothing_happens(address: str | None) -> None:
    Notifier(address).ready("serving")


def test_a_manager_that_went_away_does_not_end_the_daemon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Notifier(str(tmp_path / "gone")).ready("serving")
    assert "could not notify" in caplog.text
