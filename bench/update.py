"""How long does it take to write one field of 256 records that are still there?"""

from __future__ import annotations

from bench import contender as who
from bench.harness import Answer, Bench, Target, judge, open_all
from bench.records import SMALL

CAPACITY, BATCH = 1_000_000, 256
WORK = "update_if_present 256"
WORKS = (WORK,)
GOALS = (Target(who.OURS_TENSORDICT, who.TORCHRL_GENERATIONS, 10.0, WORK),)
CONTENDERS = (who.OURS_TENSORDICT, who.TORCHRL_GENERATIONS)


def measure(bench: Bench, answer: Answer) -> None:
    """The action of drawn batches, by the handles that came with them."""
    with bench.stage(answer) as stage:
        open_all(stage, bench.chosen(CONTENDERS), SMALL, CAPACITY, BATCH)
        bench.time(answer, stage, WORK, "patch", latency=True)
    judge(answer, GOALS)
