"""What do three writers and one learner get out of two cores, at once?

unpaced: writers go as fast as they can, 64 records a call, while the learner takes 100 batches/s.
paced: each writer writes 30,000 records/s, the learner takes batches as fast as it can.
"""

from __future__ import annotations

from typing import Any

from bench import contender as who
from bench.harness import Answer, Bench, Target, attempt, interleave, judge, open_all, quantile, row
from bench.records import SMALL

CAPACITY, BATCH = 1_000_000, 256
WRITERS, ROWS = 3, 64
# Windows are long and each is a number of its own: fewer rounds than for single calls.
ROUNDS, QUICK_ROUNDS = 5, 2

WORKS = UNPACED, PACED = "unpaced", "paced"
# name: (records/s of each writer, batches/s of the learner), 0 = as fast as it goes.
SCENES = {UNPACED: (0.0, 100.0), PACED: (30_000.0, 0.0)}

PAIRS = (
    (who.OURS_TENSORDICT, who.TORCHRL_SHARED, (20.0, 20.0)),
    (who.OURS_NUMPY, who.CPPRB_MP, (2.0, 2.0)),
    (who.OURS_NUMPY, who.REVERB, (100.0, 50.0)),
)
GOALS = tuple(
    Target(ours, rival, factor, f"{scene}: {what}")
    for ours, rival, (unpaced, paced) in PAIRS
    for scene, what, factor in (
        (UNPACED, "records", unpaced),
        (PACED, "batches", paced),
        (PACED, "p99", paced),
    )
)
CONTENDERS = (
    who.OURS_TENSORDICT,
    who.TORCHRL_SHARED,
    who.OURS_NUMPY,
    who.CPPRB_MP,
    who.REVERB,
)


def measure(bench: Bench, answer: Answer) -> None:
    """Writers are processes of their own; those of the contenders not at work wait."""
    with bench.stage(answer) as stage:
        open_all(stage, bench.chosen(CONTENDERS), SMALL, CAPACITY, BATCH)
        for scene in filter(bench.wants, SCENES):
            records_per_s, batches_per_s = SCENES[scene]
            _play(bench, stage, answer, scene, records_per_s, batches_per_s)
    judge(answer, GOALS)


def _play(
    bench: Bench, stage: who.Stage, answer: Answer, scene: str, records_per_s: float,
    batches_per_s: float,
) -> None:  # fmt: skip
    def start(contender: who.Contender) -> None:
        child = stage.running[contender]
        child.ask("scene", writers=WRITERS, rows=ROWS, records_per_s=records_per_s)

    def window(contender: who.Contender) -> dict[str, Any]:
        child = stage.running[contender]
        seen: dict[str, Any] = child.ask(
            "window", seconds=bench.window_s, batches_per_s=batches_per_s
        )
        return seen

    rounds = QUICK_ROUNDS if bench.quick else ROUNDS
    bench.say(f"{scene}: {rounds} rounds")
    for contender in list(stage.running):
        attempt(stage, contender, start)
    seen: dict[who.Contender, list[dict[str, Any]]] = {c: [] for c in stage.running}
    for contender in interleave(list(stage.running), rounds):
        done = attempt(stage, contender, window)
        if done is not None:
            seen[contender].append(done)
    for contender in list(stage.running):
        attempt(stage, contender, lambda c: stage.running[c].ask("end_scene"))
    for what, unit, less_is_better, of in (
        ("records", "records/s", False, _records_per_s),
        ("batches", "batches/s", False, _batches_per_s),
        ("p99", "ms", True, _p99_ms),
    ):
        for contender, windows in seen.items():
            if contender in stage.running and windows:
                values = [of(one) for one in windows]
                calls = [ns / 1e6 for one in windows for ns in one["latencies_ns"]]
                answer.rows.append(
                    row(f"{scene}: {what}", contender, unit, values,
                        calls if what == "p99" else [], less_is_better)
                )  # fmt: skip


def _records_per_s(window: dict[str, Any]) -> float:
    return float(sum(window["records"]) / window["seconds"])


def _batches_per_s(window: dict[str, Any]) -> float:
    return float(len(window["latencies_ns"]) / window["seconds"])


def _p99_ms(window: dict[str, Any]) -> float:
    return quantile(window["latencies_ns"], 0.99) / 1e6
