"""`shmrb` as a program: version, help, serve, selftest."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shmrb
import shmrbd
from helpers.procs import Child, Children
from shmrb.cli import exits, selftest

Shell = Callable[..., Any]

PROGRAM = "from shmrb.cli import main; main()"
# Where the start of interpreters is not what is tested.
FORKING = "import shmrb.cli.selftest as s; s.START_METHOD = 'fork'"


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """An environment in which nobody can import torch or tensordict, grandchildren included."""
    for name in ("torch", "tensordict"):
        text = f"raise ImportError('{name} is blocked by the test')"
        (tmp_path / f"{name}.py").write_text(text)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def start(children: Children, *words: str, program: str = PROGRAM, **options: Any) -> Child:
    return children.program([sys.executable, "-c", program, *words], name="shmrb", **options)


def test_version(shmrb_: Shell) -> None:
    assert shmrb_("--version") == (0, f"shmrb {shmrb.__version__}\n", "")


def test_help_names_every_exit_code(shmrb_: Shell) -> None:
    text = " ".join(shmrb_("--help").out.split())
    for code, meaning in exits.MEANINGS.items():
        assert f"{code} {meaning}" in text


def test_the_shell_completes_commands_and_names(
    shmrb_: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("exp/one", "exp/two", "other"):
        assert shmrb_("create", name, "--capacity", 10).code == exits.OK
    assert "_SHMRB_COMPLETE" in shmrb_("--show-completion", "bash").out
    monkeypatch.setenv("_SHMRB_COMPLETE", "complete_bash")
    for words, expected in (("shmrb sh", ["show"]), ("shmrb show exp/", ["exp/one", "exp/two"])):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert shmrb_().out.split() == expected


def test_every_error_has_an_exit_code_of_the_table() -> None:
    kinds = [kind for kind in vars(shmrb.errors).values() if isinstance(kind, type)]
    codes = {kind.__name__: exits.code_of(kind("x")) for kind in kinds}
    assert set(codes.values()) <= exits.MEANINGS.keys() - {exits.OK}
    assert codes["CapacityError"] == exits.NO_ROOM
    assert codes["RecordError"] == exits.USAGE
    assert codes["LimiterTimeoutError"] == exits.TIMED_OUT


def test_the_daemons_codes_mean_the_same_here() -> None:
    assert shmrbd.EXIT_STOPPED == exits.OK
    assert shmrbd.EXIT_FAILED == exits.FAILED
    assert shmrbd.EXIT_USAGE == exits.USAGE
    assert shmrbd.EXIT_TAKEN == exits.TAKEN


def test_serve_is_the_daemon(children: Children, without_torch: dict[str, str]) -> None:
    first = start(children, "serve", environment=without_torch)
    with shmrb.connect(timeout=60) as client:
        assert client.ping().pid == first.pid
        second = start(children, "serve")
        assert second.wait() == exits.TAKEN
        first.signal(signal.SIGTERM)
        assert first.wait() == exits.OK


def test_serve_takes_a_root_and_a_socket(children: Children, tmp_path: Path, root: Path) -> None:
    flags = ["--root", str(root.parent / "r"), "--socket", str(tmp_path / "s")]
    start(children, "serve", *flags)
    with shmrb.connect(tmp_path / "s", timeout=60) as client:
        assert client.ping().root == str(root.parent / "r")


def test_demo_gets_its_words_and_gives_its_exit_code(
    shmrb_: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        seen.append(list(arguments))
        return 7

    monkeypatch.setattr("shmrb.demo.main", main)
    assert shmrb_("demo", "--quick", "--collectors", 2, "--help").code == 7
    assert seen == [["--quick", "--collectors", "2", "--help"]]


def test_selftest_passes_without_torch(
    children: Children, root: Path, without_torch: dict[str, str]
) -> None:
    child = start(children, "selftest", environment=without_torch)
    child.succeed()
    lines = child.output
    assert len(lines) == 7
    assert all(line.startswith("ok    ") for line in lines[1:])
    assert [path.name for path in root.iterdir()] == [".lock"]


def test_selftest_has_json_too(shmrb_: Shell, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    ends = [selftest.Outcome(True, "one", "fine"), selftest.Outcome(False, "two", "expected more")]
    monkeypatch.setattr(selftest, "_outcomes", lambda _root: iter(ends))
    ended = shmrb_("selftest", "--json")
    assert ended.code == exits.FAILED
    document = json.loads(ended.out)
    assert (document["root"], document["checks"][1]["detail"]) == (str(root), "expected more")


def test_selftest_fails_loudly_where_nobody_dies_at_the_named_point(children: Children) -> None:
    harmless = f"import shmrb.cli.selftest as s; s.ENDING = 'pause'; {FORKING}; {PROGRAM}"
    child = start(children, "selftest", program=harmless)
    assert child.wait() == exits.FAILED
    failed = [line for line in child.output if line.startswith("FAIL")]
    assert len(failed) == 2
    assert all("expected exit code -9" in line for line in failed)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_selftest_fails_loudly_where_the_dead_are_not_recognised(
    shmrb_: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a build that takes every owner for alive: nobody takes a lock over, and it stays shut.
    monkeypatch.setattr(selftest, "_expect", _let_it_stop)
    monkeypatch.setattr(selftest, "ENDING", "stop")
    monkeypatch.setattr(selftest, "START_METHOD", "fork")
    monkeypatch.setattr(selftest, "_outlive_writer", lambda _handle: "left out")
    ended = shmrb_("selftest")
    assert ended.code == exits.FAILED
    assert "FAIL  the lock of a dead owner is taken over" in ended.out
    assert "the lane's lock, held by" in ended.out


def _let_it_stop(child: Any, code: int) -> None:
    if code == 0:
        child.join()
        return
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    stopped.append(child)


stopped: list[Any] = []


@pytest.fixture(autouse=True)
def _end_the_stopped() -> Any:
    yield
    while stopped:
        child = stopped.pop()
        child.kill()
        child.join()
