"""How long does a running process take to attach to a buffer of a million records by its name?

No peer has anything like it: their processes must descend from the one that made the buffer, or
talk to a server.
"""

from __future__ import annotations

from bench import contender as who
from bench.harness import Answer, Bench, Limit, judge, open_all
from bench.records import SMALL

CAPACITY, BATCH = 1_000_000, 256
WORK = "attach"
WORKS = (WORK,)
CONTENDERS = (who.OURS_NUMPY,)
GOALS = (Limit(who.OURS_NUMPY, 2.0, WORK),)


def measure(bench: Bench, answer: Answer) -> None:
    """Finding the name, mapping, taking a client slot; closing again is not timed."""
    with bench.stage(answer) as stage:
        open_all(stage, bench.chosen(CONTENDERS), SMALL, CAPACITY, BATCH)
        bench.time(answer, stage, WORK, "attach_again", unit="ms", latency=True)
    judge(answer, GOALS)
