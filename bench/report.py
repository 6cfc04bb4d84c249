"""Answers as tables for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.harness import Answer, Row, Series

JSON_FORMAT = 1


def as_json(machine: dict[str, Any], quick: bool, answers: list[Answer]) -> dict[str, Any]:
    """Everything measured, with the single values of each round."""
    questions = [dataclasses.asdict(answer) for answer in answers]
    for question, answer in zip(questions, answers, strict=True):
        for said, row in zip(question["rows"], answer.rows, strict=True):
            said["series"] = _series(row.series)
        for said, verdict in zip(question["verdicts"], answer.verdicts, strict=True):
            said["reached"] = _series(verdict.reached)
    return {"format": JSON_FORMAT, "quick": quick, "machine": machine, "questions": questions}


def show(console: Console, answer: Answer) -> None:
    """The tables of one question."""
    console.print(f"\n[bold]{answer.question}[/]: {answer.asks}")
    if answer.rows:
        console.print(_rows_table(answer.rows))
    if answer.verdicts:
        console.print(_verdicts_table(answer))
    for reason in answer.failures.values():
        console.print(f"[red]failed[/] {escape(reason)}", highlight=False, soft_wrap=True)


def show_machine(console: Console, machine: dict[str, Any]) -> None:
    """The machine, as the line below all tables."""
    changed = " with uncommitted changes" if machine["uncommitted_changes"] else ""
    console.print(
        f"\n{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"kernel {machine['kernel']}, {machine['libc']}, Python {machine['python']}, "
        f"load {machine['load_average_before']:.1f} before and "
        f"{machine['load_average_after']:.1f} after, commit {machine['commit'][:12]}{changed}",
        highlight=False,
        soft_wrap=True,
    )


def show_contenders(console: Console, answers: list[Answer]) -> None:
    """The versions that ran; options and their reasons are in the JSON and in the adaptors."""
    about = {name: facts for answer in answers for name, facts in answer.contenders.items()}
    for name, facts in sorted(about.items()):
        versions = ", ".join(f"{which} {number}" for which, number in facts["versions"].items())
        console.print(
            f"{name}: Python {facts['python']}, {versions}", highlight=False, soft_wrap=True
        )


def number(value: float) -> str:
    """Three significant digits, thousands separated."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def _rows_table(rows: list[Row]) -> Table:
    table = Table("work", "contender")
    for heading in ("median", "quartiles", "p50", "p99"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    previous = None
    for row in rows:
        if previous not in (None, row.work):
            table.add_section()
        low, high = row.series.spread
        percentiles = ("" if value is None else number(value) for value in (row.p50, row.p99))
        table.add_row(
            row.work if row.work != previous else "",
            row.contender,
            number(row.series.median),
            f"{number(low)} – {number(high)}",
            *percentiles,
            row.unit,
        )
        previous = row.work
    return table


def _verdicts_table(answer: Answer) -> Table:
    table = Table("work", "ours", "against")
    for heading in ("reached", "quartiles", "wanted"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for verdict in answer.verdicts:
        sign = "×" if verdict.wanted.endswith("×") else ""
        low, high = verdict.reached.spread
        table.add_row(
            verdict.work,
            verdict.ours,
            verdict.against,
            number(verdict.reached.median) + sign,
            f"{number(low)} – {number(high)}",
            verdict.wanted,
            "[green]met[/]" if verdict.met else "[yellow]short[/]",
        )
    return table


def _series(series: Series) -> dict[str, Any]:
    low, high = series.spread
    return {"median": series.median, "low": low, "high": high, "values": list(series.values)}
