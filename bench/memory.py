"""How much memory does a slot take beside its payload?"""

from __future__ import annotations

from bench import contender as who
from bench.harness import Answer, Bench, Limit, attempt, judge, row
from bench.records import SMALL, record_bytes

CAPACITY, BATCH = 1_000_000, 256
# Makes a contender import and allocate what it needs once, before the first reading.
TINY = 1_024
WORK = "memory beside the payload"
WORKS = (WORK,)
GOALS = tuple(Limit(ours, 36.0, WORK) for ours in (who.OURS_TENSORDICT, who.OURS_NUMPY))
CONTENDERS = (who.OURS_TENSORDICT, who.OURS_NUMPY, who.TORCHRL_GENERATIONS, who.CPPRB)


def measure(bench: Bench, answer: Answer) -> None:
    """Growth of a process from a tiny buffer to a full one, files included, less the payload."""
    with bench.stage(answer) as stage:
        for contender in bench.chosen(CONTENDERS):
            value = _beside(bench, stage, contender)
            if value is not None:
                answer.rows.append(row(WORK, contender, "B a slot", [value], [], True))
            stage.leave(contender)
    judge(answer, GOALS)


def _beside(bench: Bench, stage: who.Stage, contender: who.Contender) -> float | None:
    child = stage.enter(contender, SMALL, TINY, BATCH, fill=True)
    if child is None:
        return None
    bench.say(f"{contender.name}: {CAPACITY:,} records")

    def grow(_: who.Contender) -> float:
        assert child is not None
        child.ask("prepare", work="sample", rows=None, block_s=0.01)
        before = child.ask("memory")
        child.ask("close")
        variant = contender.variant
        child.ask("open", fields=SMALL, capacity=CAPACITY, batch=BATCH, variant=variant, fill=True)
        after = child.ask("memory")
        small, large = (sum(held.values()) for held in (before, after))
        payload = (CAPACITY - TINY) * record_bytes(SMALL)
        return float(large - small - payload) / (CAPACITY - TINY)

    return attempt(stage, contender, grow)
