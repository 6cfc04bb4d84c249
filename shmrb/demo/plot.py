"""`demo.png`: return and rates over time, with the kills."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

from shmrb.demo.history import History, rates_between

FILE = "demo.png"


def draw(history: History, target: float | None, directory: str) -> str:
    """Draw a run.

    Args:
        history: of the run.
        target: the return that was to be reached; None: there was none.
        directory: made if need be.

    Returns:
        The path of the picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    os.makedirs(directory, exist_ok=True)
    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    returns, rates = figure.subplots(2, 1, sharex=True)
    _draw_returns(returns, history, target)
    _draw_rates(rates, history)
    for kill in history.kills:
        for axes in (returns, rates):
            axes.axvline(kill.second, color="tab:red", linestyle="--", linewidth=1)
        returns.text(
            kill.second,
            1.01,
            f"{kill.what} killed",
            transform=returns.get_xaxis_transform(),
            color="tab:red",
            fontsize=8,
        )
    path = os.path.join(directory, FILE)
    figure.savefig(path, dpi=120)
    return path


def _draw_returns(axes: Any, history: History, target: float | None) -> None:
    points = [point for point in history.points if point.training_return is not None]
    axes.plot(
        [point.second for point in points],
        [point.training_return for point in points],
        color="tab:gray",
        linewidth=1,
        label="collectors",
    )
    if history.evaluations:
        axes.plot(
            [evaluation.second for evaluation in history.evaluations],
            [evaluation.mean for evaluation in history.evaluations],
            marker="o",
            label="evaluation without chance",
        )
    if target is not None:
        axes.axhline(target, color="tab:green", linewidth=1, label=f"target {target:g}")
    axes.set_ylabel("return")
    axes.legend(loc="upper left")


def _draw_rates(axes: Any, history: History) -> None:
    between = list(pairwise(history.points))
    seconds = [other.second for _, other in between]
    rates = [rates_between(one, other) for one, other in between]
    axes.plot(seconds, [records for records, _ in rates], label="records/s")
    axes.plot(seconds, [batches for _, batches in rates], label="batches/s")
    axes.set_xlabel("seconds")
    axes.set_ylabel("rate")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")
