"""How a question is measured: interleaved rounds, medians with their spread, paired ratios.

All contenders of a question run at the same time and take turns, A B A B, so that a machine that
slows down slows all of them. A ratio is taken inside each round and only then summed up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench.contender import AT_HOME, Contender, ContenderFailed, Stage
from bench.records import Fields

T = TypeVar("T")
ROUNDS, BLOCK_S, WINDOW_S = 15, 0.2, 5.0
QUICK_ROUNDS, QUICK_BLOCK_S, QUICK_WINDOW_S = 5, 0.05, 1.0


@dataclass(frozen=True)
class Series:
    """One number a round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of the rounds were lower."""
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """Lower and upper quartile."""
        return quantile(self.values, 0.25), quantile(self.values, 0.75)


@dataclass(frozen=True)
class Row:
    """What one contender reached at one work."""

    work: str
    contender: str
    unit: str
    series: Series
    less_is_better: bool
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Target:
    """How many times better than a rival one of ours is meant to be."""

    ours: Contender
    rival: Contender
    at_least: float
    work: str


@dataclass(frozen=True)
class Limit:
    """What one of ours is meant to stay within, in the unit of its row."""

    ours: Contender
    at_most: float
    work: str


@dataclass(frozen=True)
class Verdict:
    """A target or a limit beside what was reached. `reached` is a ratio, or a plain value."""

    work: str
    ours: str
    against: str
    wanted: str
    reached: Series
    met: bool


@dataclass
class Answer:
    """All that one question brought to light."""

    question: str
    asks: str
    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    contenders: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """What the command line decided, and the ways of measuring that questions share."""

    envs: Path
    rivals: frozenset[str]
    quick: bool
    only: str | None
    say: Callable[[str], None]

    @property
    def rounds(self) -> int:
        """Turns that each contender has."""
        return QUICK_ROUNDS if self.quick else ROUNDS

    @property
    def block_s(self) -> float:
        """How long a contender works in one turn."""
        return QUICK_BLOCK_S if self.quick else BLOCK_S

    @property
    def window_s(self) -> float:
        """How long writers and a learner work together in one turn."""
        return QUICK_WINDOW_S if self.quick else WINDOW_S

    def wants(self, work: str) -> bool:
        """Whether `--only` lets this work through."""
        return self.only is None or self.only in work

    def chosen(self, contenders: Sequence[Contender]) -> list[Contender]:
        """Those of the contenders that `--rivals` lets through."""
        return [c for c in contenders if c.rival in AT_HOME or c.rival in self.rivals]

    def stage(self, answer: Answer) -> Stage:
        """Where contenders run, a `with` block; failures go into the answer."""
        stage = Stage(self.envs, self.say, answer.failures)
        answer.contenders = stage.about
        return stage

    def time(
        self, answer: Answer, stage: Stage, work: str, method: str, *, rows: int | None = None,
        unit: str = "µs", latency: bool = False,
    ) -> None:  # fmt: skip
        """Time one call of every contender on the stage; a row each goes into the answer.

        Args:
            answer: gets the rows.
            stage: the contenders, buffers made.
            work: what the table calls it.
            method: the adaptor's method that returns the call.
            rows: records handed to that method, None for none.
            unit: "µs" or "ms".
            latency: time each call alone, for p50 and p99.
        """
        if not self.wants(work):
            return
        scale = {"µs": 1e6, "ms": 1e3}[unit]

        def prepare(contender: Contender) -> int:
            child = stage.running[contender]
            count: int = child.ask("prepare", work=method, rows=rows, block_s=self.block_s)
            return count

        counts = {c: n for c in list(stage.running) if (n := attempt(stage, c, prepare))}
        if not counts:
            return
        self.say(f"{work}: {self.rounds} rounds of {', '.join(c.name for c in counts)}")
        means: dict[Contender, list[float]] = {c: [] for c in counts}
        calls: dict[Contender, list[float]] = {c: [] for c in counts}

        def turn(contender: Contender) -> dict[str, Any]:
            child = stage.running[contender]
            done: dict[str, Any] = child.ask(
                "time", work=method, count=counts[contender], latency=latency
            )
            return done

        for contender in interleave(list(counts), self.rounds):
            done = attempt(stage, contender, turn)
            if done is not None:
                means[contender].append(done["seconds"] / counts[contender] * scale)
                calls[contender] += [ns / 1e9 * scale for ns in done.get("latencies_ns", ())]
        for contender in stage.running:
            if means.get(contender):
                answer.rows.append(
                    row(work, contender, unit, means[contender], calls[contender], True)
                )


def row(
    work: str, contender: Contender, unit: str, values: Sequence[float],
    calls: Sequence[float], less_is_better: bool,
) -> Row:  # fmt: skip
    """A row with percentiles where single calls were timed."""
    p50, p99 = (quantile(calls, q) if calls else None for q in (0.50, 0.99))
    return Row(work, contender.name, unit, Series(tuple(values)), less_is_better, p50, p99)


def attempt(stage: Stage, contender: Contender, act: Callable[[Contender], T]) -> T | None:
    """Let a contender act if it still runs; its failure puts it aside and is None."""
    if contender not in stage.running:
        return None
    try:
        return act(contender)
    except ContenderFailed as error:
        stage.fail(contender, error)
        return None


def interleave(contenders: Sequence[Contender], rounds: int) -> Iterator[Contender]:
    """A B A B: every contender once a round, always in the same order."""
    for _ in range(rounds):
        yield from contenders


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least the share `q` of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def paired_ratio(ours: Row, rival: Row) -> Series:
    """How many times better ours was, round by round."""
    pairs = zip(ours.series.values, rival.series.values, strict=False)
    if ours.less_is_better:
        return Series(tuple(theirs / own for own, theirs in pairs))
    return Series(tuple(own / theirs if theirs else math.inf for own, theirs in pairs))


def judge(answer: Answer, goals: Sequence[Target | Limit]) -> None:
    """Set each goal beside what was reached; goals whose rows are missing are left out."""
    rows = {(row.work, row.contender): row for row in answer.rows}
    for goal in goals:
        ours = rows.get((goal.work, goal.ours.name))
        if ours is None:
            continue
        if isinstance(goal, Limit):
            wanted, against, reached = f"≤ {goal.at_most:g} {ours.unit}", "itself", ours.series
            met = reached.median <= goal.at_most
        else:
            theirs = rows.get((goal.work, goal.rival.name))
            if theirs is None:
                continue
            wanted, against = f"≥ {goal.at_least:g}×", goal.rival.name
            reached = paired_ratio(ours, theirs)
            met = reached.median >= goal.at_least
        answer.verdicts.append(Verdict(goal.work, goal.ours.name, against, wanted, reached, met))


def open_all(
    stage: Stage, contenders: Sequence[Contender], fields: Fields, capacity: int, batch: int
) -> None:
    """Start all contenders and fill their buffers."""
    for contender in contenders:
        stage.enter(contender, fields, capacity, batch, fill=True)
