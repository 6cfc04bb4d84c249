"""A sign of life on the terminal while something takes longer than a second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

PATIENCE_S = 1.0

Heard = Callable[[int, int], None]


@contextmanager
def progress(
    what: str,
    *,
    of_bytes: bool = False,
    console: Console | None = None,
    patience_s: float = PATIENCE_S,
) -> Iterator[Heard]:
    """Show on stderr that `what` goes on, if that is a terminal; it is gone again at the end.

    Args:
        what: is done.
        of_bytes: what is given will be called with how many bytes of how many are done.
        console: where to show it.
        patience_s: what is over sooner shows nothing.
    """
    console = console or Console(stderr=True, highlight=False, markup=False)
    columns: list[ProgressColumn] = [
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    ]
    columns += [BarColumn(), DownloadColumn()] if of_bytes else []
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(what, total=None)

    def heard(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)

    if not console.is_terminal:
        yield heard
        return
    # Not both: a start that comes too late would never be stopped.
    guard, is_over = threading.Lock(), False

    def start() -> None:
        with guard:
            if not is_over:
                bar.start()

    waiting = threading.Timer(patience_s, start)
    waiting.daemon = True
    waiting.start()
    try:
        yield heard
    finally:
        waiting.cancel()
        with guard:
            is_over = True
            bar.stop()
