"""What commands print for people; everything else is `--json`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shmrb.fields import show_path
from shmrb.results import BufferStats, ClientInfo
from shmrb.segment.removal import Leftover
from shmrb.segment.survey import BufferSummary
from shmrb.spec import BufferSpec

# Output that goes into a file or a pipe is not cut to the width of a terminal nobody looks at.
_UNBOUNDED_COLUMNS = 1000


def show(*parts: Table | str) -> None:
    """Print tables and lines."""
    is_terminal = sys.stdout.isatty()
    width = None if is_terminal else _UNBOUNDED_COLUMNS
    # Names are what their owners chose, and no markup.
    console = Console(width=width, highlight=False, markup=False)
    for part in parts:
        console.print(Text(part) if isinstance(part, str) else part)


def listing(summaries: Iterable[BufferSummary]) -> Table:
    """One line a buffer."""
    table = _table(
        "NAME",
        "STATE",
        "PURPOSE",
        "<RECORDS",
        "<CAPACITY",
        "<LANES",
        "<CLIENTS",
        "<BYTES",
        "ROOT",
    )
    for summary in summaries:
        state = summary.state
        if summary.lifetime == "creator":
            state += ", ends with its creator"
        if summary.problem:
            state += f": {summary.problem}"
        table.add_row(
            summary.name,
            state,
            summary.purpose,
            _count(summary.size),
            _count(summary.capacity),
            str(summary.lanes),
            str(summary.clients),
            _count(summary.bytes),
            summary.root,
        )
    return table


def totals(found: Iterable[BufferStats]) -> Table:
    """One line of counters a buffer."""
    table = _table(
        "NAME", "<RECORDS", "<WRITTEN", "<SAMPLED", "<UPDATED", "<STALE", "<BLOCKED", "<CLIENTS"
    )
    for stats in found:
        counters = stats.counters
        table.add_row(
            stats.name,
            _count(stats.size),
            _count(stats.write_count),
            _count(counters.get("records_sampled", 0)),
            _count(counters.get("rows_updated", 0)),
            _count(counters.get("stale_rows", 0)),
            str(len(stats.blocked)),
            str(sum(client.alive for client in stats.clients)),
        )
    return table


def description(spec: BufferSpec) -> Table:
    """The fields of a record."""
    table = _table("FIELD", "DTYPE", "SHAPE", "<BYTES")
    for field in spec.schema.fields if spec.schema is not None else ():
        table.add_row(
            show_path(field.path), field.dtype, str(list(field.shape)), _count(field.row_bytes)
        )
    return table


def lanes(stats: BufferStats) -> Table:
    """One line a lane."""
    table = _table("<LANE", "<HEAD", "<FLOOR", "<WRITTEN", "<HOLES", "LEASE")
    holders = {client.token: str(client) for client in stats.clients}
    for lane in stats.lanes:
        lease = holders.get(lane.lease, f"client {lane.lease:#x}") if lane.lease else "free"
        numbers = (lane.lane, lane.head, lane.floor, lane.written, lane.holes)
        table.add_row(*map(_count, numbers), lease)
    return table


def clients(stats: BufferStats) -> Table:
    """One line an attached client."""
    table = _table("CLIENT", "<PID", "ROLE", "STATE", "<WRITTEN", "<SAMPLED")
    for client in stats.clients:
        counters = client.counters
        table.add_row(
            client.name,
            str(client.pid),
            client.role,
            client_state(client),
            _count(counters.get("records_written", 0)),
            _count(counters.get("records_sampled", 0)),
        )
    return table


def activity(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line a buffer, as `top` counts: records in by writes, out by draws, updated late."""
    table = _table(
        "NAME",
        "<RECORDS",
        "<CAPACITY",
        "<IN/s",
        "<OUT/s",
        "<UPD/s",
        "<STALE/s",
        "<BLOCKED",
        "<CLIENTS",
        "<LAG",
        "<BYTES",
    )
    for row in rows:
        rates = (row[f"{what}_per_s"] for what in ("inserts", "samples", "updates", "stale"))
        table.add_row(
            row["name"],
            _count(row["size"]),
            _count(row["capacity"]),
            *(_count(round(rate)) for rate in rates),
            str(row["blocked"]),
            str(sum(client["alive"] for client in row["clients"])),
            "" if row["policy_lag"] is None else _count(row["policy_lag"]),
            _count(row["bytes"]),
        )
    # In a narrow terminal numbers are cut before the names that say whose they are.
    table.columns[0].min_width = max((len(row["name"]) for row in rows), default=0)
    return table


def attached(rows: Iterable[Mapping[str, Any]]) -> Table:
    """One line an attached client, as `top` counts."""
    table = _table("BUFFER", "CLIENT", "<PID", "ROLE", "STATE", "<IN/s", "<OUT/s")
    for row in rows:
        for client in row["clients"]:
            table.add_row(
                row["name"],
                client["client"],
                str(client["pid"]),
                client["role"],
                client["state"],
                _count(round(client["inserts_per_s"])),
                _count(round(client["samples_per_s"])),
            )
    return table


def leftovers(found: Iterable[Leftover]) -> Table:
    """One line a leftover."""
    table = _table("LEFTOVER", "REASON")
    for leftover in found:
        table.add_row(leftover.path, leftover.reason)
    return table


def numbers(values: Mapping[str, Any]) -> Table:
    """One line a number."""
    table = _table("COUNTER", "<VALUE")
    for key, value in values.items():
        is_count = isinstance(value, int) and not isinstance(value, bool)
        table.add_row(key, _count(value) if is_count else str(value))
    return table


def record(slot: int, generation: int, fields: Mapping[str, Any]) -> Table:
    """One record, a line a field."""
    table = _table(f"SLOT {slot}", f"GENERATION {generation}")
    for key, value in fields.items():
        text = np.array2string(np.asarray(value), precision=4, threshold=8, separator=", ")
        table.add_row(key, " ".join(text.split()))
    return table


def _table(*headings: str) -> Table:
    """A plain table; a heading that begins with < belongs to a column of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        justify = "right" if heading[0] == "<" else "left"
        table.add_column(heading.lstrip("<"), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    return table


def client_state(client: ClientInfo) -> str:
    """Alive or dead, and what it waits for."""
    if not client.alive:
        return "dead, not recovered yet"
    if client.waiting_for == "nothing":
        return "alive"
    waited_s = (time.monotonic_ns() - client.waiting_since_ns) / 1e9
    return f"waits for {client.waiting_for}, {waited_s:.1f} s"


def _count(number: int) -> str:
    return f"{number:,}"
