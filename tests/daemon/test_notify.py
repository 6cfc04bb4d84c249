"""What the service manager hears, over real datagram sockets."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmrbd.notify import Notifier

Heard = Callable[[], list[str]]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[str, Heard]]:
    """The address of a manager, and what it has heard since it was last asked."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        sock.setblocking(False)

        def heard() -> list[str]:
            found = []
            while True:
                try:
                    found.append(sock.recv(1000).decode())
                except BlockingIOError:
                    return found

        yield address, heard


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_states_arrive_on_either_kind_of_address(kind: str, tmp_path: Path) -> None:
    name = f"@shmrb-test-{os.getpid()}" if kind == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if kind == "abstract" else name)
        manager.settimeout(10)
        notifier = Notifier(name)
        notifier.ready("serving")
        notifier.status("3 buffers")
        notifier.alive()
        notifier.stopping()
        heard = [manager.recv(1000).decode() for _ in range(4)]
    assert heard == ["READY=1\nSTATUS=serving", "STATUS=3 buffers", "WATCHDOG=1", "STOPPING=1"]


@pytest.mark.parametrize("address", [None, ""])
def test_without_a_manager_nothing_happens(address: str | None) -> None:
    notifier = Notifier(address, watchdog_s=1.0)
    notifier.ready("serving")
    assert notifier.watchdog_s is None


def test_a_manager_that_went_away_does_not_end_the_daemon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Notifier(str(tmp_path / "gone")).ready("serving")
    assert "could not notify" in caplog.text


def test_work_asks_for_time_at_start_and_stop_only_and_once_a_second(
    manager: tuple[str, Heard],
) -> None:
    address, heard = manager
    notifier = Notifier(address)
    for _ in range(3):
        notifier.working("adopting")
    assert heard() == ["EXTEND_TIMEOUT_USEC=30000000\nSTATUS=adopting"]
    notifier.ready("serving")
    notifier.working("adopting")
    assert heard() == ["READY=1\nSTATUS=serving"]
    notifier.stopping()
    notifier.working("leaving")
    assert heard() == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=leaving"]


def test_a_long_request_widens_the_watchdog_for_as_long_as_it_takes(
    manager: tuple[str, Heard],
) -> None:
    address, heard = manager
    with Notifier(address, watchdog_s=2.0).patience(3.0):
        assert heard() == ["WATCHDOG_USEC=5000000"]
    assert heard() == ["WATCHDOG_USEC=2000000"]
    with Notifier(address).patience(3.0):
        pass
    assert heard() == []


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "2000000"}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_for_the_process_that_it_names(
    environment: dict[str, str], expected: float | None
) -> None:
    notifier = Notifier.of_environment({"NOTIFY_SOCKET": "@x", **environment})
    assert notifier.watchdog_s == expected
