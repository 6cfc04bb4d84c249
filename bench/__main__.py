"""The command line: `python -m bench [QUESTION...]`."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType

from rich.console import Console

from bench import machine, report
from bench.environments import ENVIRONMENTS, default_root
from bench.harness import Answer, Bench

QUESTIONS = (
    "sample",
    "extend",
    "priority",
    "update",
    "slices",
    "attach",
    "memory",
    "writers",
    "large",
)
FILE_WIDTH = 120
EXIT_OK, EXIT_CONTENDER_FAILED = 0, 1


def main(arguments: list[str] | None = None) -> int:
    """Answer the questions asked, all of them by default."""
    asked = _parser().parse_args(arguments)
    console, progress = _console(stderr=False), _console(stderr=True)

    def say(line: str) -> None:
        progress.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)

    bench = Bench(envs=asked.envs, rivals=asked.rivals, quick=asked.quick, only=asked.only, say=say)
    stamp = machine.stamp() | {"load_average_before": machine.load_average()}
    warning = machine.busy_warning(stamp["load_average_before"])
    if warning:
        say(warning)
    answers = []
    for name in asked.questions or QUESTIONS:
        question = importlib.import_module(f"bench.{name}")
        if any(map(bench.wants, question.WORKS)):
            answers.append(_answer(bench, name, question, console))
    stamp["load_average_after"] = machine.load_average()
    report.show_machine(console, stamp)
    report.show_contenders(console, answers)
    if asked.json:
        said = report.as_json(stamp, asked.quick, answers)
        asked.json.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")
    return EXIT_CONTENDER_FAILED if any(a.failures for a in answers) else EXIT_OK


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr)
    # A file has no width of its own; 80 columns would fold the tables.
    return console if console.is_terminal else Console(stderr=stderr, width=FILE_WIDTH)


def _answer(bench: Bench, name: str, question: ModuleType, console: Console) -> Answer:
    answer = Answer(name, inspect.cleandoc(question.__doc__ or ""))
    question.measure(bench, answer)
    report.show(console, answer)
    return answer


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure shmrb and its peers side by side, interleaved, and print ratios.",
        epilog="exit codes: 0 all ran, 1 a contender failed (the others are still printed), "
        "2 wrong usage. Whether a goal is met does not change the exit code.",
    )
    add = parser.add_argument
    add("questions", nargs="*", metavar="QUESTION", type=_question,
        help=f"{', '.join(QUESTIONS)}; all by default")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="also write every value measured to FILE")
    add("--quick", action="store_true", help="fewer and shorter rounds: shows that it works")
    add("--only", metavar="NAME", help="only the works whose name contains NAME, as 'add 1'")
    add("--rivals", type=_rivals, default=frozenset(ENVIRONMENTS), metavar="LIST",
        help=f"of {','.join(ENVIRONMENTS)}, or none; all by default")  # fmt: skip
    add("--envs", type=Path, default=default_root(), metavar="DIR",
        help="where the peers' environments are made and kept (default %(default)s)")  # fmt: skip
    return parser


def _question(name: str) -> str:
    if name not in QUESTIONS:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(QUESTIONS)}, got {name!r}")
    return name


def _rivals(text: str) -> frozenset[str]:
    chosen = frozenset() if text == "none" else frozenset(text.split(","))
    if unknown := sorted(chosen - set(ENVIRONMENTS)):
        raise argparse.ArgumentTypeError(
            f"expected some of {', '.join(ENVIRONMENTS)}, or none, got {', '.join(unknown)}"
        )
    return chosen


if __name__ == "__main__":
    sys.exit(main())
