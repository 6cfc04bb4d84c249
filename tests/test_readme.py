"""The README's collector and learner are run as they stand there, started in either order."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from helpers.paths import CHECKOUT
from helpers.procs import Children


def _programs() -> dict[str, str]:
    blocks = re.findall(r"^```python\n(.*?)^```", (CHECKOUT / "README.md").read_text(), re.M | re.S)
    named = {"collector": "rb.producer(", "learner": "optimizer.step()"}
    found = {name: [block for block in blocks if sign in block] for name, sign in named.items()}
    assert all(len(blocks) == 1 for blocks in found.values()), "one program each"
    return {name: blocks[0] for name, blocks in found.items()}


@pytest.mark.parametrize("order", [("collector", "learner"), ("learner", "collector")])
def test_collector_and_learner_start_in_either_order(
    children: Children, tmp_path: Path, order: tuple[str, str]
) -> None:
    programs = _programs()
    started = []
    for name in order:
        script = tmp_path / f"{name}.py"
        script.write_text(programs[name])
        started.append(children.program([sys.executable, str(script)], name=name))
    for program in started:
        program.succeed()
