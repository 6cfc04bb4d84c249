"""The helpers that start, stop and kill children do what the other tests believe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.child import emit, receive
from helpers.procs import Child, ChildGone, Children

METHODS = ["interpreter", "spawn", "fork", "forkserver"]


def echo(greeting: str) -> None:
    emit("ready", greeting=greeting, pid=os.getpid())
    while line := receive():
        print("noise on stdout", flush=True)
        emit("heard", line=line)
    emit("done")


def fail() -> None:
    raise RuntimeError("on purpose")


@pytest.mark.parametrize("method", METHODS)
def test_child_reports_and_obeys(children: Children, method: str) -> None:
    child = children.start(echo, method=method, greeting="hello")
    assert child.expect("ready") == {"greeting": "hello", "pid": child.pid}
    child.send("one")
    assert child.expect("heard") == {"line": "one"}
    child.send()
    child.succeed()
    assert "noise on stdout" in child.output


@pytest.mark.parametrize("method", METHODS)
def test_child_is_stopped_and_killed(children: Children, method: str) -> None:
    child = children.start(echo, method=method, greeting="")
    child.expect("ready")
    child.stop()
    child.send("while stopped")
    child.resume()
    assert child.expect("heard") == {"line": "while stopped"}
    child.kill()
    # A forkserver's child has another parent: multiprocessing cannot tell which signal it was.
    assert child.exit_code in ({-9} if method != "forkserver" else {-9, 255})
    assert not Path(f"/proc/{child.pid}").exists()


@pytest.mark.parametrize("method", METHODS)
def test_waiting_for_a_child_that_died_fails_at_once(children: Children, method: str) -> None:
    child = children.start(fail, method=method)
    with pytest.raises(ChildGone, match="on purpose"):
        child.expect("never")
    with pytest.raises(AssertionError, match="ended with 1, expected 0"):
        child.succeed()


def test_program_lines_and_exit_code(children: Children) -> None:
    program = "import sys; print('port 7', flush=True); sys.stdin.readline(); sys.exit(3)"
    child = children.program([sys.executable, "-c", program])
    match = child.expect_line(r"port (\d+)")
    assert match.group(1) == "7"
    child.send()
    assert child.wait() == 3
    with pytest.raises(ChildGone, match="before it stopped"):
        child.wait_stopped()


def test_nothing_survives_the_fixture(tmp_path: Path) -> None:
    started = Children(tmp_path)
    family: list[Child] = [started.start(echo, method=method, greeting="") for method in METHODS]
    started.close()
    assert [child for child in family if Path(f"/proc/{child.pid}").exists()] == []


def test_watchdog_ends_a_hanging_test(tmp_path: Path) -> None:
    (tmp_path / "test_hang.py").write_text(
        "import signal, pytest\n"
        "from helpers.child import emit, receive\n"
        "def wait_forever():\n"
        "    emit('ready')\n"
        "    receive()\n"
        "@pytest.mark.watchdog(60)\n"
        "def test_hang(children):\n"
        "    child = children.start(wait_forever)\n"
        "    child.expect('ready')\n"
        # The time is up at once, but not before the child can be asked for its stacks.
        "    signal.setitimer(signal.ITIMER_REAL, 0.1)\n"
        "    child.expect('never')\n"
    )
    tests = Path(__file__).parent
    (tmp_path / "conftest.py").write_text((tests / "conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-c", str(tests.parent / "pyproject.toml"), "."]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-o", f"pythonpath={tests}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "watchdog: the test still ran after 60 s" in done.stdout
    # The stacks of both processes: the test's own on stderr, the child's in the report.
    assert "in test_hang" in done.stderr
    assert "in wait_forever" in done.stdout
