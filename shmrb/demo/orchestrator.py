"""`shmrb demo` as one process sees it: what is missing, the run, the summary, the exit code."""

from __future__ import annotations

import importlib.util
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from shmrb.demo import plot, recipe, summary
from shmrb.demo.options import BROKEN, INTERRUPTED, Options
from shmrb.demo.screen import screen
from shmrb.demo.stage import Stage
from shmrb.demo.trial import Trial
from shmrb.errors import ShmrbError

# Where an environment has no threshold of its own: that of Pendulum-v1 in the literature.
DEFAULT_TARGET = -200.0


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
        with _ends_as_interrupt():
            return _run(options)
    except KeyboardInterrupt:
        print("shmrb demo: interrupted; everything is ended and removed.", file=sys.stderr)
        return INTERRUPTED
    except (ShmrbError, OSError) as error:
        print(f"shmrb demo: {error}", file=sys.stderr)
        return BROKEN


def _run(options: Options) -> int:
    env = recipe.make_env(options.env)
    schema = recipe.record_schema(env)
    threshold = env.spec.reward_threshold
    env.close()
    target = options.target if options.target is not None else threshold
    if target is None:
        target = DEFAULT_TARGET
    if options.quick:
        target = None
    with Stage() as stage, screen() as shown:
        trial = Trial(options, target, schema, stage, shown)
        outcome = trial.run()
    for line in summary.lines(outcome, trial.ledger, trial.history, target):
        print(line)
    directory = options.out or tempfile.mkdtemp(prefix="shmrb-demo-")
    print(plot.draw(trial.history, target, directory))
    return summary.exit_code(outcome, trial.ledger, len(trial.history.kills), options)


@contextmanager
def _ends_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run as Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
