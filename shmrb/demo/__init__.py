"""The main job, end to end: `shmrb demo`; floor F6.

Collectors step a real environment into a buffer that a daemon owns, a learner draws from it and
publishes its policy back, and some of them are killed on the way. One file a learner: `dqn`, `sac`
and `rdqn`; they and `training` load torch, nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run the demo with these arguments of the command line; its exit code."""
    from shmrb.demo.options import parse
    from shmrb.demo.orchestrator import run

    return run(parse(arguments))
