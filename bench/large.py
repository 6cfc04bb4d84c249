"""How close do records of 28 KB come to one core's memcpy of the same bytes?"""

from __future__ import annotations

from bench import contender as who
from bench.harness import Answer, Bench, Target, judge, open_all
from bench.records import IMAGE

# About 450 MB a contender, far more than a cache holds.
CAPACITY, BATCH = 16_384, 256
WORKS = EXTEND, GATHER = "extend 64 of 28 KB", "gather 256 of 28 KB"
GOALS = tuple(
    Target(ours, who.MEMCPY, 0.85, work)
    for work in WORKS
    for ours in (who.OURS_TENSORDICT, who.OURS_NUMPY)
)
CONTENDERS = (who.OURS_TENSORDICT, who.OURS_NUMPY, who.MEMCPY)


def measure(bench: Bench, answer: Answer) -> None:
    """A gather goes into memory that the caller hands in again and again."""
    with bench.stage(answer) as stage:
        open_all(stage, bench.chosen(CONTENDERS), IMAGE, CAPACITY, BATCH)
        bench.time(answer, stage, EXTEND, "extend", rows=64)
        bench.time(answer, stage, GATHER, "gather")
    judge(answer, GOALS)
