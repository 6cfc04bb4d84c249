"""The command line of `shmrb demo`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from shmrb.demo.job import DQN, LEARNERS, ONLOOKER, RDQN, SAMPLERS, Job
from shmrb.demo.recipe import recipe_of

REACHED, NOT_REACHED, BROKEN, INTERRUPTED = 0, 1, 2, 130

SECONDS, QUICK_SECONDS = 120.0, 10.0

_EPILOG = f"""Exit codes: {REACHED} the target was reached after both kills (--quick: all records
whole and none lost); {NOT_REACHED} not within --seconds; {BROKEN} something broke, or a wrong
command line; {INTERRUPTED} interrupted."""


@dataclass(frozen=True)
class Options:
    """What a run of the demo is asked for.

    Attributes:
        env: id of a Gymnasium environment.
        collectors: processes that step it.
        seconds: how long it may take.
        learner: the algorithm.
        sampler: how the learner draws; None: as it learns best.
        hide_velocity: the agent sees positions and its last action only.
        memoryless: a recurrent learner that forgets everything at once.
        target: mean return to reach; None: the environment's own threshold.
        out: directory for demo.png; None: a new temporary one.
        quick: no learning, no torch, one kill.
    """

    env: str = "CartPole-v1"
    collectors: int = 3
    seconds: float = SECONDS
    learner: str = DQN
    sampler: str | None = None
    hide_velocity: bool = False
    memoryless: bool = False
    target: float | None = None
    out: str | None = None
    quick: bool = False

    @property
    def job(self) -> Job:
        """What its processes are told."""
        learner = ONLOOKER if self.quick else self.learner
        return Job(
            env=self.env,
            learner=learner,
            sampler=self.sampler or recipe_of(learner).sampler,
            hide_velocity=self.hide_velocity,
            memoryless=self.memoryless,
        )


def parse(arguments: Sequence[str]) -> Options:
    """The options; a wrong command line ends the process with code 2."""
    parser = argparse.ArgumentParser(
        prog="shmrb demo",
        description="Starts a daemon, collectors that step an environment, and a learner; "
        "kills a collector and the daemon on the way; and shows that no record is torn or lost.",
        epilog=_EPILOG,
    )
    parser.add_argument("--env", default=Options.env, help="Gymnasium environment [%(default)s]")
    parser.add_argument(
        "--collectors", type=_at_least_one, default=Options.collectors, help="[%(default)s]"
    )
    parser.add_argument(
        "--seconds",
        type=_positive,
        help=f"give up after so many [{SECONDS:g}, with --quick {QUICK_SECONDS:g}]",
    )
    parser.add_argument("--learner", choices=LEARNERS, help=f"the algorithm [{DQN}]")
    parser.add_argument("--sampler", choices=SAMPLERS, help=f"how it draws [{_samplers()}]")
    parser.add_argument(
        "--hide-velocity",
        action="store_true",
        help=f"of CartPole the agent sees place, angle and last action (--learner {RDQN})",
    )
    parser.add_argument(
        "--memoryless",
        action="store_true",
        help=f"it forgets everything at once, and fails (--learner {RDQN})",
    )
    parser.add_argument("--target", type=float, help="mean return [the environment's threshold]")
    parser.add_argument("--out", help="directory for demo.png [a temporary one]")
    parser.add_argument(
        "--quick", action="store_true", help="no learning and no torch: rates and one kill"
    )
    given = parser.parse_args(arguments)
    if problem := _problem(given):
        parser.error(problem)
    return Options(
        env=given.env,
        collectors=given.collectors,
        seconds=given.seconds or (QUICK_SECONDS if given.quick else SECONDS),
        learner=given.learner or DQN,
        sampler=given.sampler,
        hide_velocity=given.hide_velocity,
        memoryless=given.memoryless,
        target=given.target,
        out=given.out,
        quick=given.quick,
    )


def _samplers() -> str:
    return ", ".join(f"{name}: {recipe_of(name).sampler}" for name in LEARNERS)


def _problem(given: argparse.Namespace) -> str:
    """What options that do not go together are told; "" if all do."""
    words = [
        f"--{word.replace('_', '-')}"
        for word in ("learner", "sampler", "hide_velocity", "memoryless")
        if getattr(given, word)
    ]
    if given.quick and words:
        return f"--quick learns nothing: leave out {', '.join(words)}, or --quick"
    recurrent = [word for word in words if word in ("--hide-velocity", "--memoryless")]
    if recurrent and given.learner != RDQN:
        return (
            f"{' and '.join(recurrent)}: needs a learner with a memory, got --learner "
            f"{given.learner or DQN}; take --learner {RDQN}"
        )
    return ""


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text}")
    return number


def _positive(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text}")
    return seconds
