"""`shmrb demo --quick` for real: a daemon, collectors, a kill, and nothing is left over."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from helpers.demos import StartDemo

PNG = b"\x89PNG"


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """An environment for programs in which torch and tensordict cannot be imported."""
    for name in ("torch", "tensordict"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} was imported')\n")
    path = [str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(entry for entry in path if entry)}


def test_records_stay_whole_through_a_kill(
    start_demo: StartDemo, without_torch: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "new" / "folder"
    demo = start_demo("--quick", f"--out={out}", environment=without_torch)
    demo.wait_until_at_work()
    shown = demo.child.expect_line(r"killed collector 0 \(pid (\d+)\)")
    before, after = map(
        _number, demo.child.expect_line(r"records ([\d,]+) before the kill, ([\d,]+)").groups()
    )
    assert before > 0
    assert after > 0
    drawn, audited = map(
        _number, demo.child.expect_line(r"torn 0: of ([\d,]+) \w+ \w+ and ([\d,]+)").groups()
    )
    assert drawn > 0
    assert audited >= 0.9 * (before + after)
    assert demo.child.expect_line(r"lost 0, doubled 0: of ([\d,]+)")
    picture = demo.child.expect_line(r"demo\.png$").string
    assert demo.child.wait() == 0, demo.child.report()
    assert Path(picture) == out / "demo.png"
    assert Path(picture).read_bytes().startswith(PNG)
    assert int(shown[1]) in {process.pid for process in demo.processes}
    demo.wait_until_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(start_demo: StartDemo, number: signal.Signals) -> None:
    demo = start_demo("--quick", "--seconds=60", collectors=2)
    demo.wait_until_at_work()
    demo.child.signal(number)
    assert demo.child.wait() == 130, demo.child.report()
    assert "interrupted" in demo.child.stderr
    demo.wait_until_nothing_is_left()


def test_killed_it_leaves_nothing(start_demo: StartDemo) -> None:
    demo = start_demo("--quick", "--seconds=60", collectors=2)
    demo.wait_until_at_work()
    # A stopped process notices nothing; the kernel must end it.
    demo.named("collector")[0].suspend()
    demo.child.kill()
    demo.wait_until_nothing_is_left()


@pytest.mark.parametrize("name", ["collector", "learner", "shmrbd"])
def test_unexpected_death_is_reported(start_demo: StartDemo, name: str) -> None:
    demo = start_demo("--quick", "--seconds=60", collectors=1)
    demo.wait_until_at_work()
    demo.named(name)[0].kill()
    assert demo.child.wait() == 2, demo.child.report()
    assert re.search(r"\(pid \d+\) ended by itself, exit code -9", demo.child.stderr)
    demo.wait_until_nothing_is_left()


def test_wrong_environment_is_refused(start_demo: StartDemo) -> None:
    demo = start_demo("--env=Pendulum-v1")
    assert demo.child.wait() == 2
    assert "Discrete" in demo.child.stderr


def _number(text: str) -> int:
    return int(text.replace(",", ""))
