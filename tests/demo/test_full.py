"""The main job: `shmrb demo` until CartPole-v1 is learned, through both kills."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers.demos import StartDemo


@pytest.mark.long
@pytest.mark.watchdog(400)
def test_learns_through_both_kills(start_demo: StartDemo, tmp_path: Path) -> None:
    # Three times the demo's own limit: a test run shares its machine.
    demo = start_demo("--seconds=360", f"--out={tmp_path}")
    demo.wait_until_at_work()
    assert demo.child.wait() == 0, demo.child.report()
    text = "\n".join(demo.child.output)
    assert "target 475 reached" in text
    assert "killed collector 0" in text
    assert "killed daemon" in text
    assert "torn 0:" in text
    refused = re.search(r"stale ([\d,]+): priority updates that were refused", text)
    assert refused
    assert refused[1] != "0"
    assert "lost 0, doubled 0:" in text
    assert (tmp_path / "demo.png").exists()
    demo.wait_until_nothing_is_left()
