"""How long does a uniform draw of 256 small records out of a million take?"""

from __future__ import annotations

from bench import contender as who
from bench.harness import Answer, Bench, Target, judge, open_all
from bench.records import SMALL

CAPACITY, BATCH = 1_000_000, 256
WORK = "sample 256"
WORKS = (WORK,)
GOALS = (
    Target(who.OURS_TENSORDICT, who.TORCHRL_GENERATIONS, 10.0, WORK),
    Target(who.OURS_TENSORDICT, who.TORCHRL_PLAIN, 5.0, WORK),
    Target(who.OURS_NUMPY, who.CPPRB, 2.0, WORK),
)
CONTENDERS = (
    who.OURS_TENSORDICT,
    who.TORCHRL_GENERATIONS,
    who.TORCHRL_PLAIN,
    who.OURS_NUMPY,
    who.CPPRB,
)


def measure(bench: Bench, answer: Answer) -> None:
    """One call after the other in one thread; ours always returns index and generation."""
    with bench.stage(answer) as stage:
        open_all(stage, bench.chosen(CONTENDERS), SMALL, CAPACITY, BATCH)
        bench.time(answer, stage, WORK, "sample", latency=True)
    judge(answer, GOALS)
