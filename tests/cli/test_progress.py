"""What a terminal shows of commands that take longer than a second."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest
from rich.console import Console

import shmrb
from helpers.daemons import Daemons
from helpers.procs import until
from shmrb.cli.progress import progress

PROGRAM = "from shmrb.cli import main; main()"


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_takes_long_is_shown_with_what_is_done_of_it() -> None:
    console = terminal()
    with progress("creating a [b]", of_bytes=True, console=console, patience_s=0) as heard:
        heard(1_000_000, 4_000_000)
        until(lambda: "1.0/4.0 MB" in shown(console))
    assert "creating a [b]" in shown(console)


def test_what_is_over_at_once_shows_nothing() -> None:
    console = terminal()
    with progress("creating a", console=console):
        pass
    assert shown(console) == ""


def test_no_terminal_is_written_to() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with progress("creating a", of_bytes=True, console=console, patience_s=0) as heard:
        heard(1, 4)
    assert shown(console) == ""


def test_a_failure_takes_the_sign_of_life_away() -> None:
    console = terminal()

    def fail() -> None:
        with progress("creating a", console=console, patience_s=0):
            until(lambda: "creating a" in shown(console))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    # The line is erased, and the cursor is shown again.
    said = shown(console)
    assert said.rindex("\x1b[2K") > said.rindex("creating a")
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")


def test_who_waits_for_a_busy_daemon_sees_it(daemons: Daemons) -> None:
    """The daemon stands still while it creates, for as long as it takes the command to say so."""
    daemon = daemons.start(environment={"SHMRB_STOP_AT": "declared:stop"})
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", PROGRAM, "create", "a", "--capacity", "10"]
    with subprocess.Popen(
        words, stderr=theirs, stdout=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"}
    ) as command:
        os.close(theirs)
        said = b""
        while b"creating a" not in said:
            said += os.read(ours, 1024)
        daemon.wait_stopped()
        daemon.resume()
        assert command.wait() == 0
    os.close(ours)
    with shmrb.connect() as asking:
        assert asking.list()[0].name == "a"
