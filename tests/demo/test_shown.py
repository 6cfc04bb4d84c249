"""What the demo prints while it runs, its picture, its options, and how it evaluates."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from shmrb.demo import evaluation, plot, recipe, screen
from shmrb.demo.history import Evaluation, History, Kill, Point
from shmrb.demo.job import LEARNERS, Job
from shmrb.demo.options import Options, parse
from shmrb.demo.policy import Greedy, random_net
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
    assert parse(["--quick"]) == Options(quick=True, seconds=10.0)
    assert parse(["--sampler=uniform"]) == Options(sampler="uniform")
    words = ["--learner=rdqn", "--hide-velocity", "--memoryless"]
    assert parse(words) == Options(learner="rdqn", hide_velocity=True, memoryless=True)
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
        "--learner ppo",
    ],
)
def test_wrong_options_exit_with_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words.split())
    assert ended.value.code == 2
    assert "shmrb demo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("--quick --sampler prioritized", "--quick learns nothing: leave out --sampler"),
        ("--quick --learner sac", "leave out --learner"),
        ("--quick --hide-velocity", "leave out --hide-velocity"),
        ("--hide-velocity", "got --learner dqn; take --learner rdqn"),
        ("--learner sac --memoryless", "--memoryless: needs a learner with a memory"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    words: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words.split())
    assert ended.value.code == 2
    assert advice in capsys.readouterr().err


def test_each_learner_has_a_sampler_of_its_own() -> None:
    samplers = {name: Options(learner=name).job.sampler for name in LEARNERS}
    assert samplers == {"dqn": "prioritized", "sac": "uniform", "rdqn": "uniform"}
    assert all(
        Options(learner=name, sampler="uniform").job.sampler == "uniform" for name in LEARNERS
    )
    assert Options(quick=True).job == Job("CartPole-v1", "onlooker")


@pytest.mark.parametrize(
    ("learner", "env", "advice"),
    [
        ("dqn", "Pendulum-v1", "Take CartPole-v1"),
        ("rdqn", "Pendulum-v1", "Take CartPole-v1"),
        ("sac", "CartPole-v1", "Take Pendulum-v1"),
        ("dqn", "FrozenLake-v1", "needs a Box as its observation space"),
        ("dqn", "NoSuchEnvironment-v0", "NoSuchEnvironment"),
    ],
)
def test_unfit_environments_are_refused(learner: str, env: str, advice: str) -> None:
    with pytest.raises(SpecError, match=rf"--env {env}.*{advice}"):
        recipe.make_env(Job(env, learner))


def test_only_cartpole_has_velocities_to_hide() -> None:
    with pytest.raises(SpecError, match=r"--hide-velocity knows .* --env Acrobot-v1"):
        recipe.make_env(Job("Acrobot-v1", "rdqn", hide_velocity=True))


def test_hidden_are_the_velocities_alone() -> None:
    shown = recipe.make_env(Job("CartPole-v1", "rdqn", hide_velocity=True))
    whole = recipe.make_env(Job("CartPole-v1", "rdqn"))
    limits = whole.unwrapped.x_threshold, whole.unwrapped.theta_threshold_radians

    def expected(place: float, _: float, angle: float, __: float, action: float) -> Any:
        return pytest.approx([place / limits[0], angle / limits[1], action], rel=1e-5)

    assert shown.reset(seed=3)[0] == expected(*whole.reset(seed=3)[0], 0.0)
    for action in (1, 0, 1):
        seen = shown.step(action)[0]
        assert seen == expected(*whole.step(action)[0], 2.0 * action - 1.0)
        assert shown.observation_space.contains(seen)
    assert shown.reset(seed=3)[0][2] == 0.0


def test_evaluation_has_no_chance_in_it() -> None:
    net = random_net((4, 64, 2), np.random.default_rng(5))
    policy = Greedy({"net": net, "epsilon": 1.0})
    envs = evaluation.make_envs(Options().job)
    first, again = evaluation.evaluate(policy, envs), evaluation.evaluate(policy, envs)
    assert len(first) == 20
    assert (first == again).all()
    assert len(set(first)) > 1
