"""How long do 32 slices of 32 records take, and does it matter how many trajectories there are?"""

from __future__ import annotations

from bench import contender as who
from bench.harness import Answer, Bench, Target, judge
from bench.records import SMALL

LENGTH, SLICES = 32, 32
WORK = "32 slices of 32"
WORKS = (WORK,)
# Episodes end after a hundred records on average.
CAPACITIES = {
    who.OURS_SLICES: 1_000_000,
    who.TORCHRL_SLICES: 1_000_000,
    who.OURS_SLICES_OF_FEW: 10_000,
    who.OURS_SLICES_OF_MANY: 10_000_000,
}
GOALS = (
    Target(who.OURS_SLICES, who.TORCHRL_SLICES, 10.0, WORK),
    Target(who.OURS_SLICES_OF_MANY, who.OURS_SLICES_OF_FEW, 0.333, WORK),
)
CONTENDERS = tuple(CAPACITIES)


def measure(bench: Bench, answer: Answer) -> None:
    """Nothing is written meanwhile, so TorchRL looks for the trajectories only once."""
    with bench.stage(answer) as stage:
        for contender in bench.chosen(CONTENDERS):
            stage.enter(contender, SMALL, CAPACITIES[contender], LENGTH * SLICES, fill=True)
        bench.time(answer, stage, WORK, "sample", latency=True)
    judge(answer, GOALS)
