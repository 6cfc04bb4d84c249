"""What the demo prints while it runs, its picture, its options, and how it evaluates."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from shmrb.demo import evaluation, plot, recipe, screen
from shmrb.demo.history import Evaluation, History, Kill, Point
from shmrb.demo.options import Options, parse
from shmrb.demo.policy import Policy, random_tree
from shmrb.errors import SpecError

HISTORY = History(
    points=[
        Point(10.0, 8_000, 1_750, None, 0, 3, 6, None),
        Point(15.0, 18_000, 4_250, 4.5, 12, 2, 6, 123.4),
    ],
    evaluations=[Evaluation(14.0, 400, 215.5)],
    kills=[Kill("collector 0", 12.0, 9_000, 1.0, 900)],
)


def test_columns() -> None:
    assert screen.cells(HISTORY, 5.0) == {
        "time": "15 s",
        "records": "18,000",
        "records/s": "2,000",
        "batches/s": "500",
        "return": "215.5",
        "training": "123.4",
        "policy lag": "4.5",
        "stale": "12",
        "blocked": "2",
        "attached": "6",
    }


def test_prioritized_what_is_stale_are_refused_updates() -> None:
    shown = screen.cells(replace(HISTORY, is_prioritized=True), 5.0)
    assert shown["stale refused"] == "12"
    assert "stale" not in shown


def test_a_line_every_five_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    with screen.Lines() as lines:
        shown = []
        for step in range(40):
            now[0] = 100.0 + step / 2
            lines.show(HISTORY)
            if capsys.readouterr().out:
                shown.append(now[0])
    assert shown == [105.0, 110.0, 115.0]


def test_table_fits_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with screen.LiveTable(console) as table:
        table.say("20,000 records: killed collector 0 (pid 7), started another")
        table.show(HISTORY)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    for word in ("killed collector 0", "records/s", "2,000", "policy lag", "215.5", "attached"):
        assert word in text


def test_picture(tmp_path: Path) -> None:
    path = plot.draw(HISTORY, 475.0, str(tmp_path / "made"))
    assert Path(path).name == "demo.png"
    assert Path(path).stat().st_size > 10_000
    assert Path(plot.draw(History(), None, str(tmp_path))).exists()


def test_options() -> None:
    assert parse([]) == Options()
    assert parse(["--quick"]) == Options(quick=True, seconds=10.0, sampler="uniform")
    assert parse(["--sampler=uniform"]) == Options(sampler="uniform")
    words = ["--env=Acrobot-v1", "--collectors=2", "--seconds=9", "--target=-90"]
    asked = Options(env="Acrobot-v1", collectors=2, seconds=9.0, target=-90.0)
    assert parse(words) == asked


@pytest.mark.parametrize(
    "words",
    [
        "--collectors 0",
        "--seconds -1",
        "--seconds nan",
        "--what",
        "--sampler newest",
        "--quick --sampler prioritized",
    ],
)
def test_wrong_options_exit_with_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words.split())
    assert ended.value.code == 2
    assert "shmrb demo" in capsys.readouterr().err


@pytest.mark.parametrize("env", ["Pendulum-v1", "FrozenLake-v1", "NoSuchEnvironment-v0"])
def test_unfit_environments_are_refused(env: str) -> None:
    with pytest.raises(SpecError, match=env):
        recipe.make_env(env)


def test_evaluation_has_no_chance_in_it() -> None:
    policy = Policy(random_tree((4, 64, 2), 1.0, np.random.default_rng(5)))
    envs = evaluation.make_envs(Options().job)
    first, again = evaluation.evaluate(policy, envs), evaluation.evaluate(policy, envs)
    assert len(first) == 20
    assert (first == again).all()
    assert len(set(first)) > 1
