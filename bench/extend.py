"""How long does it take to write 64 small records at once, and a single one?"""

from __future__ import annotations

from bench import contender as who
from bench.harness import Answer, Bench, Target, judge, open_all
from bench.records import SMALL

CAPACITY, BATCH = 1_000_000, 256
WORKS = MANY, ONE = "extend 64", "add 1"
GOALS = tuple(
    goal
    for work in WORKS
    for goal in (
        Target(who.OURS_TENSORDICT, who.TORCHRL_PLAIN, 12.0, work),
        Target(who.OURS_NUMPY, who.CPPRB, 1.5, work),
    )
)
CONTENDERS = (who.OURS_TENSORDICT, who.TORCHRL_PLAIN, who.OURS_NUMPY, who.CPPRB)


def measure(bench: Bench, answer: Answer) -> None:
    """Into a full ring, so that each write replaces a record."""
    with bench.stage(answer) as stage:
        open_all(stage, bench.chosen(CONTENDERS), SMALL, CAPACITY, BATCH)
        bench.time(answer, stage, MANY, "extend", rows=64)
        bench.time(answer, stage, ONE, "add", rows=1)
    judge(answer, GOALS)
