"""`shmrb demo` as one process sees it: what is missing, the run, the summary, the exit code."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from typing import Any

from shmrb.demo import plot, recipe, summary
from shmrb.demo.interrupts import Interrupts
from shmrb.demo.options import BROKEN, INTERRUPTED, Options
from shmrb.demo.screen import screen
from shmrb.demo.stage import Stage
from shmrb.demo.trial import Trial
from shmrb.errors import ShmrbError

# Where an environment has no threshold of its own: that of Pendulum-v1 in the literature.
DEFAULT_TARGET = -200.0
# With hidden velocities: the threshold of CartPole-v0.
HIDDEN_TARGET = 195.0


def run(options: Options) -> int:
    """Run the demo and print what it showed.

    Returns:
        A code of `options`: the target was reached, was not, something broke, or it was
        interrupted. Whichever, no process and no file but demo.png is left.
    """
    missing = [name for name in ("gymnasium", "matplotlib") if not importlib.util.find_spec(name)]
    if missing:
        print(
            f"shmrb demo: {' and '.join(missing)} missing. Install: pip install 'shmrb[demo]'",
            file=sys.stderr,
        )
        return BROKEN
    try:
        with Interrupts() as interrupts:
            return _run(options, interrupts)
    except KeyboardInterrupt:
        print("shmrb demo: interrupted; everything is ended and removed.", file=sys.stderr)
        return INTERRUPTED
    except (ShmrbError, OSError) as error:
        print(f"shmrb demo: {error}", file=sys.stderr)
        return BROKEN


def _run(options: Options, interrupts: Interrupts) -> int:
    env = recipe.make_env(options.job)
    settings = recipe.buffer_settings(options.job, env, options.collectors)
    target = _own_target(options, env) if options.target is None else options.target
    env.close()
    with Stage(interrupts) as stage, screen() as shown:
        trial = Trial(options, target, settings, stage, shown)
        outcome = trial.run()
    history = trial.history
    aim = None if options.quick else target
    for line in summary.lines(outcome, trial.ledger, history, aim):
        print(line)
    directory = options.out or tempfile.mkdtemp(prefix="shmrb-demo-")
    print(plot.draw(history, aim, directory))
    return summary.exit_code(outcome, trial.ledger, len(history.kills), options)


def _own_target(options: Options, env: Any) -> float:
    """The return to reach unless another is asked for."""
    if options.hide_velocity:
        return HIDDEN_TARGET
    threshold = env.spec.reward_threshold
    return DEFAULT_TARGET if threshold is None else float(threshold)
