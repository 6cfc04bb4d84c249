"""The bench as an instrument: its statistics, and the talk with a contender's process.

The contender here is a fake with known answers; it runs in a real child process, like any other.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import harness, records, report
from bench.__main__ import QUESTIONS, main
from bench.contender import (
    AT_HOME,
    OURS_NUMPY,
    OURS_TENSORDICT,
    PACKAGE,
    Contender,
    ContenderFailed,
    Running,
    Stage,
)
from bench.environments import ENVIRONMENTS
from bench.harness import Answer, Bench, Limit, Series, Target
from helpers.procs import until

FAKE = """
import os
import subprocess
import sys
import time

LABEL, DISTRIBUTIONS, OPTIONS = "Fake", ("numpy",), {"nothing": "it is a fake"}


def work(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Rival:
    def __init__(self, fields, capacity, batch, variant):
        self.variant, self.written, self.cleaned = variant, 0, 0

    def extend(self, rows):
        def call():
            self.written += len(rows["value"])
        return call

    def sample(self):
        return lambda: work(float(self.variant or 1e-4))

    def chatty(self):
        return lambda: print("not a reply", flush=True)

    def cleaned_up(self):
        def after(result):
            assert result == "result"
            self.cleaned += 1
            work(0.002)
        return lambda: "result", after

    def fails(self):
        raise ValueError("expected a buffer, got a fake")

    def dies(self):
        os._exit(7)

    def hangs(self):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        with open(self.variant, "w") as file:
            file.write(str(child.pid) + "\\n")
        child.wait()

    def stored_bytes(self):
        return self.written

    def share(self):
        return "shared"

    def close(self):
        pass


def writer(shared, variant, rows):
    assert shared == "shared"
    return lambda: work(1e-4)
"""

FIELDS: records.Fields = {"value": ("float32", (3,))}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Any]:
    """Starts fakes, opened with a variant; all are stopped at the end."""
    (tmp_path / "fake_rival.py").write_text(FAKE)
    started = []

    def start(variant: str = "", fill: bool = False) -> Running:
        child = Running("fake", "fake_rival", sys.executable, str(tmp_path))
        started.append(child)
        child.about = child.ask(
            "open", fields=FIELDS, capacity=1000, batch=4, variant=variant, fill=fill
        )
        return child

    yield start
    for child in started:
        child.stop()
        assert not child.scratch.exists()


def bench_of(tmp_path: Path, **changes: Any) -> Bench:
    settings = {"quick": True, "only": None, "rivals": frozenset(), "say": lambda line: None}
    return Bench(envs=tmp_path, **(settings | changes))


def row(contender: Contender, values: list[float], less_is_better: bool = True) -> harness.Row:
    return harness.row("work", contender, "µs", values, [], less_is_better)


# Statistics


def test_quantile_is_a_value_that_was_seen() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert harness.quantile(values, 0.50) == 50
    assert harness.quantile(values, 0.99) == 99
    assert harness.quantile(values, 1.0) == 100
    assert harness.quantile([3.0], 0.01) == 3.0
    assert harness.quantile([1.0, 2.0], 0.99) == 2.0


def test_median_and_quartiles_ignore_one_bad_round() -> None:
    series = Series((10.0, 11.0, 9.0, 12.0, 9999.0))
    assert series.median == 11.0
    assert series.spread == (10.0, 12.0)


def test_rounds_are_interleaved() -> None:
    a, b, c = (Contender(name) for name in "abc")
    assert list(harness.interleave([a, b, c], 2)) == [a, b, c, a, b, c]


def test_ratio_is_taken_inside_each_round() -> None:
    # The machine is four times slower in the second round: the ratio does not notice.
    ours, rival = row(Contender("a"), [10.0, 40.0]), row(Contender("b"), [30.0, 120.0])
    assert harness.paired_ratio(ours, rival).values == (3.0, 3.0)


def test_ratio_of_rates_has_more_as_better() -> None:
    ours = row(Contender("a"), [90.0, 80.0], less_is_better=False)
    rival = row(Contender("b"), [30.0, 0.0], less_is_better=False)
    assert harness.paired_ratio(ours, rival).values == (3.0, float("inf"))


def test_goals_are_met_or_short_and_left_out_without_their_rows() -> None:
    a, b, gone = Contender("a"), Contender("b"), Contender("gone")
    answer = Answer("question", "?")
    answer.rows += [row(a, [10.0, 10.0, 10.0]), row(b, [30.0, 50.0, 20.0])]
    goals = [
        Target(a, b, 3.0, "work"),
        Target(a, b, 3.1, "work"),
        Limit(a, 10.0, "work"),
        Limit(a, 9.9, "work"),
        Target(a, gone, 1.0, "work"),
        Target(gone, b, 1.0, "work"),
        Target(a, b, 1.0, "another work"),
    ]
    harness.judge(answer, goals)
    assert [verdict.met for verdict in answer.verdicts] == [True, False, True, False]
    assert [verdict.wanted for verdict in answer.verdicts] == [
        "≥ 3×",
        "≥ 3.1×",
        "≤ 10 µs",
        "≤ 9.9 µs",
    ]


# The talk with a contender


def test_open_tells_label_options_and_versions(fake: Any) -> None:
    about = fake().about
    assert about["label"] == "Fake"
    assert about["options"] == {"nothing": "it is a fake"}
    assert set(about["versions"]) == {"numpy"}


def test_fill_writes_the_capacity_exactly(fake: Any) -> None:
    assert fake(fill=True).ask("memory")["shared"] == 1000


def test_time_counts_what_it_ran(fake: Any) -> None:
    child = fake()
    assert child.ask("prepare", work="extend", rows=5, block_s=0.001) >= 1
    before = child.ask("memory")["shared"]
    timed = child.ask("time", work="extend", count=20, latency=True)
    assert child.ask("memory")["shared"] == before + 100
    assert len(timed["latencies_ns"]) == 20
    assert timed["seconds"] == pytest.approx(sum(timed["latencies_ns"]) / 1e9)


def test_clean_up_is_not_timed(fake: Any) -> None:
    child = fake()
    child.ask("prepare", work="cleaned_up", rows=None, block_s=1e-6)
    timed = child.ask("time", work="cleaned_up", count=50, latency=False)
    # Each clean-up takes 2 ms.
    assert min(timed["latencies_ns"]) < 2_000_000


def test_what_a_contender_prints_is_no_reply(fake: Any) -> None:
    child = fake()
    assert child.ask("prepare", work="chatty", rows=None, block_s=1e-6) >= 1
    assert "not a reply" in child.log.read_text()


def test_an_error_names_its_kind_and_the_child_goes_on(fake: Any) -> None:
    child = fake()
    with pytest.raises(ContenderFailed, match="fake: prepare: ValueError: expected a buffer"):
        child.ask("prepare", work="fails", rows=None, block_s=0.001)
    assert child.ask("memory")["shared"] == 0


def test_a_dead_contender_is_reported_with_its_exit_code(fake: Any) -> None:
    child = fake()
    with pytest.raises(ContenderFailed, match="died with exit code 7"):
        child.ask("prepare", work="dies", rows=None, block_s=0.001)


def test_a_silent_contender_is_ended_with_all_it_spawned(fake: Any, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = fake(variant=str(pid_file))
    with pytest.raises(ContenderFailed, match="no answer within 0 s"):
        child.ask("prepare", timeout_s=0.01, work="hangs", rows=None, block_s=0.001)
    pid = int(until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n")
                    and pid_file.read_text()))  # fmt: skip
    child.stop()
    until(lambda: not alive(pid))


def test_only_the_failed_contender_is_put_aside(fake: Any, tmp_path: Path) -> None:
    good, bad = Contender("good"), Contender("bad")
    answer, bench = Answer("question", "?"), bench_of(tmp_path)
    with Stage(tmp_path, bench.say, answer.failures) as stage:
        stage.running |= {good: fake(), bad: fake(variant="not a number")}
        bench.time(answer, stage, "sample", "sample")
        assert list(stage.running) == [good]
    assert list(answer.failures) == ["bad"]
    assert [found.contender for found in answer.rows] == ["good"]
    assert len(answer.rows[0].series.values) == harness.QUICK_ROUNDS


def test_a_work_that_is_not_asked_for_is_not_run(fake: Any, tmp_path: Path) -> None:
    answer, bench = Answer("question", "?"), bench_of(tmp_path, only="another")
    with Stage(tmp_path, bench.say, answer.failures) as stage:
        stage.running[Contender("good")] = fake()
        bench.time(answer, stage, "sample", "sample")
        assert list(stage.running)
    assert answer.rows == []


# Writers beside a learner


def test_a_window_counts_writers_and_batches(fake: Any) -> None:
    child = fake()
    child.ask("scene", writers=2, rows=64, records_per_s=0.0)
    first = child.ask("window", seconds=0.3, batches_per_s=50.0)
    second = child.ask("window", seconds=0.3, batches_per_s=0.0)
    child.ask("end_scene")
    for window in (first, second):
        assert len(window["records"]) == 2
        assert all(count > 0 and count % 64 == 0 for count in window["records"])
        assert window["seconds"] >= 0.3
    # 50 a second for 0.3 s, and the one that is due at once.
    assert 1 <= len(first["latencies_ns"]) <= 17
    assert len(second["latencies_ns"]) > len(first["latencies_ns"])


def test_paced_writers_do_not_exceed_their_pace(fake: Any) -> None:
    child = fake()
    child.ask("scene", writers=1, rows=10, records_per_s=1000.0)
    window = child.ask("window", seconds=0.5, batches_per_s=20.0)
    child.ask("end_scene")
    # A writer that was held up may catch up on at most a second of debt.
    assert 0 < window["records"][0] <= 1000.0 * (window["seconds"] + 1.0)


def test_a_writer_that_cannot_start_fails_the_scene(fake: Any, tmp_path: Path) -> None:
    child = fake()
    source = tmp_path / "fake_rival.py"
    source.write_text(source.read_text().replace('== "shared"', '== "nothing"'))
    with pytest.raises(ContenderFailed, match="expected 2 writers to attach"):
        child.ask("scene", writers=2, rows=64, records_per_s=0.0)


# shmrb itself as a contender


@pytest.mark.parametrize(
    "contender",
    [
        pytest.param(OURS_NUMPY, id="numpy"),
        pytest.param(OURS_TENSORDICT, id="tensordict", marks=pytest.mark.long),
    ],
)
def test_our_own_adaptor_answers_every_question(contender: Contender, tmp_path: Path) -> None:
    failures: dict[str, str] = {}
    with Stage(tmp_path, lambda line: None, failures) as stage:
        child = stage.enter(contender, records.SMALL, capacity=2048, batch=32, fill=True)
        assert child is not None, failures
        for work, rows in [("extend", 64), ("add", 1), ("sample", None), ("gather", None),
                           ("attach_again", None)]:  # fmt: skip
            assert child.ask("prepare", work=work, rows=rows, block_s=0.001) >= 1
        payload = 2048 * records.record_bytes(records.SMALL)
        assert child.ask("memory")["shared"] >= payload
        child.ask("scene", writers=1, rows=64, records_per_s=0.0)
        window = child.ask("window", seconds=0.1, batches_per_s=0.0)
        assert window["records"][0] > 0
        assert window["latencies_ns"]
    assert failures == {}


# Questions and reports


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_asks_and_its_goals_name_what_it_measures(name: str) -> None:
    question = importlib.import_module(f"bench.{name}")
    assert (question.__doc__ or "").partition("\n")[0].endswith("?")
    for goal in question.GOALS:
        assert any(goal.work.startswith(work) for work in question.WORKS)
        assert goal.ours in question.CONTENDERS
        assert isinstance(goal, Limit) or goal.rival in question.CONTENDERS
    for contender in question.CONTENDERS:
        assert (PACKAGE / "rivals" / f"{contender.rival}.py").exists()
        assert contender.rival in AT_HOME or contender.rival in ENVIRONMENTS


def test_json_holds_each_round_and_is_valid() -> None:
    a, b = Contender("a"), Contender("b", "variant")
    answer = Answer("question", "?", failures={"c": "why"})
    answer.rows += [row(a, [1.0, 2.0, 3.0]), row(b, [2.0, 4.0, 6.0])]
    harness.judge(answer, [Target(a, b, 2.0, "work")])
    said = json.loads(json.dumps(report.as_json({"cpu": "x"}, True, [answer])))
    (question,) = said["questions"]
    assert question["rows"][1]["contender"] == "b variant"
    assert question["rows"][0]["series"] == {
        "median": 2.0, "low": 1.0, "high": 3.0, "values": [1.0, 2.0, 3.0],
    }  # fmt: skip
    assert question["verdicts"][0]["reached"]["values"] == [2.0, 2.0, 2.0]
    assert question["failures"] == {"c": "why"}


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "0.12"), (12.34, "12.3"), (1234567.8, "1,234,568")]
)
def test_numbers_are_printed_with_three_digits(value: float, text: str) -> None:
    assert report.number(value) == text


@pytest.mark.parametrize("arguments", [["nothing"], ["--rivals", "nobody"], ["--unknown"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
