"""The main job: `shmrb demo` until an environment is learned, through both kills."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers.demos import StartDemo

# Three times the demo's own limit: a test run shares its machine.
SECONDS = 360


def number(pattern: str, text: str) -> int:
    """What the summary says there."""
    found = re.search(pattern.replace("N", r"([\d,]+)"), text)
    assert found, text
    return int(found[1].replace(",", ""))


@pytest.mark.long
@pytest.mark.watchdog(SECONDS + 40)
@pytest.mark.parametrize(
    ("options", "target"),
    [
        ("", 475),
        ("--sampler=uniform", 475),
        ("--learner=sac --env=Pendulum-v1", -200),
        ("--learner=rdqn --hide-velocity", 195),
    ],
)
def test_learns_through_both_kills(
    start_demo: StartDemo, tmp_path: Path, options: str, target: int
) -> None:
    demo = start_demo(f"--seconds={SECONDS}", f"--out={tmp_path}", *options.split())
    demo.wait_until_at_work()
    assert demo.child.wait() == 0, demo.child.report()
    text = "\n".join(demo.child.output)
    assert f"target {target} reached" in text
    assert "killed collector 0" in text
    assert "killed daemon" in text
    assert "torn 0:" in text
    assert "lost 0, doubled 0:" in text
    if not options:
        assert number("stale N: priority updates that were refused", text) > 0
    if "rdqn" in options:
        assert number("refreshed N recorded memories; stale", text) > 0
        assert number("memories; stale N:", text) > 0
        assert number("meanwhile; rejected N:", text) > 0
    assert (tmp_path / "demo.png").exists()
    demo.wait_until_nothing_is_left()


@pytest.mark.long
@pytest.mark.watchdog(200)
def test_without_a_memory_it_does_not_learn_what_is_hidden(start_demo: StartDemo) -> None:
    demo = start_demo("--learner=rdqn", "--hide-velocity", "--memoryless")
    demo.wait_until_at_work()
    assert demo.child.wait() == 1, demo.child.report()
    shown = re.findall(r"· return ([\d.]+)", "\n".join(demo.child.output))
    returns = [float(text) for text in shown]
    assert returns
    assert max(returns) < 120
    demo.wait_until_nothing_is_left()
