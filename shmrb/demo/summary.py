"""The demo's last words, and the exit code that they stand for."""

from __future__ import annotations

import statistics
from itertools import pairwise

from shmrb.demo.history import History, Kill
from shmrb.demo.ledger import Ledger
from shmrb.demo.options import BROKEN, NOT_REACHED, REACHED, Options
from shmrb.demo.trial import Outcome

_PHASES = ("before the kills", "between them", "after them")


def exit_code(outcome: Outcome, ledger: Ledger, kills: int, options: Options) -> int:
    """What the run ends with.

    Args:
        outcome: how it ended.
        ledger: its accounts.
        kills: how many were made.
        options: what was asked for.
    """
    if outcome.problem or outcome.torn or ledger.lost or ledger.doubled:
        return BROKEN
    if options.quick:
        return REACHED if kills and outcome.checked else BROKEN
    return REACHED if outcome.reached else NOT_REACHED


def lines(outcome: Outcome, ledger: Ledger, history: History, target: float | None) -> list[str]:
    """The summary, one subject a line."""
    found = [_heading(outcome, history, target), _records(outcome, history)]
    found += [_killed(kill) for kill in history.kills]
    records, batches = history.mean_rates()
    found.append(f"rates {records:,.0f} records/s, {batches:,.0f} batches/s on average")
    found.append(
        f"torn {outcome.torn}: of {outcome.checked:,} records drawn and {ledger.audited:,} audited "
        "ones, each against its checksum"
    )
    missed = f"; {ledger.missed:,} were overwritten before an audit" if ledger.missed else ""
    found.append(
        f"lost {ledger.lost}, doubled {ledger.doubled}: of {ledger.written:,} records whose "
        f"writing had returned, each looked for by collector and number{missed}"
    )
    if outcome.problem:
        found.append(f"wrong count: {outcome.problem}")
    if history.lags:
        found.append(
            f"policy lag {statistics.mean(history.lags):.1f} versions on average, "
            f"{max(history.lags):.1f} at most"
        )
    what = (
        "priority updates that were refused, since their records were"
        if history.is_prioritized
        else "drawn records that were"
    )
    found.append(f"stale {outcome.stale:,}: {what} overwritten while the learner worked on them")
    if outcome.refreshed:
        found.append(
            f"refreshed {outcome.refreshed.updated:,} recorded memories; stale "
            f"{outcome.refreshed.stale:,}: their records were overwritten meanwhile; rejected "
            f"{outcome.refreshed.rejected:,}: they were of no newer version"
        )
    return found


def _heading(outcome: Outcome, history: History, target: float | None) -> str:
    took = f"after {outcome.seconds:.1f} s and {outcome.records:,} records"
    if target is None:
        return f"ended {took}"
    latest = history.latest_return
    shown = "no evaluation" if latest is None else f"return {latest:.1f}"
    word = "reached" if outcome.reached else "not reached"
    return f"target {target:g} {word}: {shown} {took}"


def _records(outcome: Outcome, history: History) -> str:
    marks = [0, *(kill.records for kill in history.kills), outcome.records]
    parts = [after - before for before, after in pairwise(marks)]
    names = _PHASES if len(parts) == 3 else ("before the kill", "after it")
    if len(parts) == 1:
        return f"records {parts[0]:,}, no kill"
    shown = (f"{part:,} {name}" for part, name in zip(parts, names, strict=True))
    return f"records {', '.join(shown)}"


def _killed(kill: Kill) -> str:
    text = f"killed {kill.what} at {kill.second:.1f} s and {kill.records:,} records"
    if kill.back_after is None:
        return f"{text}; its successor was not at work before the end"
    return (
        f"{text}; its successor was at work {kill.back_after:.2f} s later, meanwhile "
        f"{kill.meanwhile:,} records were written"
    )
