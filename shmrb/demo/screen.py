"""What the demo shows while it runs: a live table on a terminal, else a line every five seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from shmrb.demo.history import History, Point

LINE_EVERY_S = 5.0
# Shorter and the rates jump about; longer and a kill does not show in them.
_TABLE_WINDOW_S = 2.0


class Screen(Protocol):
    """Where a run shows itself; a context that ends with the run."""

    def __enter__(self) -> Screen: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def show(self, history: History) -> None:
        """The newest point is worth showing."""

    def say(self, text: str) -> None:
        """Something happened."""


def cells(history: History, window_s: float) -> dict[str, str]:
    """The columns of the newest point, rates over the last so many seconds."""
    point: Point = history.points[-1]
    records, batches = history.rates(window_s)
    return {
        "time": f"{point.second:.0f} s",
        "records": f"{point.records:,}",
        "records/s": f"{records:,.0f}",
        "batches/s": f"{batches:,.0f}",
        "return": _number(history.latest_return),
        "training": _number(point.training_return),
        "policy lag": _number(point.lag),
        "stale refused" if history.is_prioritized else "stale": f"{point.stale:,}",
        "blocked": f"{point.blocked}",
        "attached": f"{point.attached}",
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


class Lines:
    """One line every five seconds, and one for each thing that happens."""

    def __init__(self) -> None:
        self._due = time.monotonic() + LINE_EVERY_S

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def show(self, history: History) -> None:
        """A line, if it is time for one."""
        if time.monotonic() < self._due:
            return
        self._due = max(self._due + LINE_EVERY_S, time.monotonic())
        shown = cells(history, LINE_EVERY_S)
        self.say(" · ".join([shown.pop("time"), *(f"{key} {text}" for key, text in shown.items())]))

    def say(self, text: str) -> None:
        """The text, at once also where the output is a pipe."""
        print(text, flush=True)


class LiveTable:
    """A table that is drawn anew with every point; what happens is printed above it."""

    def __init__(self, console: Console) -> None:
        # Drawn when there is something new, not by a thread.
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, history: History) -> None:
        """The newest point."""
        shown = list(cells(history, _TABLE_WINDOW_S).items())
        half = (len(shown) + 1) // 2
        table = Table(show_header=False, expand=False)
        for _ in range(2):
            table.add_column(no_wrap=True)
            table.add_column(no_wrap=True, justify="right", min_width=8)
        # Side by side, so that it fits a terminal of 80 columns.
        for left, right in zip(shown[:half], shown[half:], strict=True):
            table.add_row(*left, *right)
        self._live.update(table, refresh=True)

    def say(self, text: str) -> None:
        """The text, above the table."""
        self._live.console.print(text, markup=False, highlight=False)


def screen() -> Screen:
    """The table if standard output is a terminal, else lines."""
    console = Console()
    return LiveTable(console) if console.is_terminal and sys.stdout.isatty() else Lines()
