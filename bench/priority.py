"""How long does a learner's turn take: a prioritised draw of 256 of a million, and their update?"""

from __future__ import annotations

from bench import contender as who
from bench.harness import Answer, Bench, Target, judge, open_all
from bench.records import SMALL

CAPACITY, BATCH = 1_000_000, 256
WORK = "prioritised sample 256 + update 256"
WORKS = (WORK,)
GOALS = (
    Target(who.OURS_PRIORITIZED, who.TORCHRL_PRIORITIZED, 6.0, WORK),
    Target(who.OURS_PRIORITIZED_NUMPY, who.CPPRB_PRIORITIZED, 4.0, WORK),
)
CONTENDERS = (
    who.OURS_PRIORITIZED,
    who.TORCHRL_PRIORITIZED,
    who.OURS_PRIORITIZED_NUMPY,
    who.CPPRB_PRIORITIZED,
)


def measure(bench: Bench, answer: Answer) -> None:
    """One turn after the other in one thread; ours compares generations at each update."""
    with bench.stage(answer) as stage:
        open_all(stage, bench.chosen(CONTENDERS), SMALL, CAPACITY, BATCH)
        bench.time(answer, stage, WORK, "learn", latency=True)
    judge(answer, GOALS)
