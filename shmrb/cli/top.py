"""`shmrb top`: how fast buffers are written and drawn from, who is attached, blocked, behind."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from shmrb.cli import tables
from shmrb.cli.buffers import Json, Socket
from shmrb.cli.target import target_of
from shmrb.errors import ShmrbError, SpecError
from shmrb.results import BufferStats
from shmrb.segment import lag, snapshot
from shmrb.segment.directory import Root
from shmrb.segment.entries import State
from shmrb.segment.member import Member

# Counters whose growth is shown, and what each is called.
RATES = {
    "records_written": "inserts_per_s",
    "records_sampled": "samples_per_s",
    "rows_updated": "updates_per_s",
    "stale_rows": "stale_per_s",
}
_OF_CLIENT = ("records_written", "records_sampled")


@dataclass(frozen=True)
class Seen:
    """One buffer at one moment."""

    stats: BufferStats
    root: str
    uuid: bytes
    bytes: int
    lag: int | None


@dataclass(frozen=True)
class Look:
    """Every buffer at one moment."""

    taken_s: float
    seen: Mapping[tuple[str, str], Seen] = field(default_factory=dict)


def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one round and end.")] = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Watch buffers: rates, sizes, who is attached, blocked, behind. Ctrl-C ends it.

    Looks as an observer: nobody is slowed down, and no daemon is needed. The lag is the versions
    between the newest record's `policy_version` and the parameters beside it.
    """
    if not interval > 0:
        raise SpecError(f"--interval: expected seconds above 0, got {interval}.")
    with target_of(socket) as target:
        roots = list(map(Root, target.roots))
    before = look(roots)
    if once or as_json:
        time.sleep(interval)
        rows = compare(before, look(roots))
        if as_json:
            print(json.dumps(rows))
        else:
            tables.show(tables.activity(rows), "", tables.attached(rows))
        return
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(
            _picture([], roots), console=Console(highlight=False, markup=False), screen=True
        ) as live,
    ):
        while True:
            time.sleep(interval)
            now = look(roots)
            live.update(_picture(compare(before, now), roots), refresh=True)
            before = now


def look(roots: Iterable[Root]) -> Look:
    """Every buffer that can be looked into."""
    seen: dict[tuple[str, str], Seen] = {}
    with contextlib.ExitStack() as stack:
        for root in roots:
            members = []
            for entry in root.list():
                # One that goes meanwhile, or is not open to us, is not shown.
                if entry.state is State.READY:
                    with contextlib.suppress(ShmrbError):
                        member = Member.join(root, entry.name, role="observer")
                        members.append(stack.enter_context(member))
            for member in members:
                stats = snapshot.stats(member.segment, member.name, member.spec)
                behind = lag.policy_lag(member, members)
                total = member.layout.total_bytes
                seen[root.path, member.name] = Seen(stats, root.path, member.uuid, total, behind)
    return Look(time.monotonic(), seen)


def compare(before: Look, after: Look) -> list[dict[str, Any]]:
    """What happened between two looks, a row a buffer; rates are 0 for one that just appeared."""
    passed_s = max(after.taken_s - before.taken_s, 1e-9)
    rows = []
    for key, now in after.seen.items():
        then = before.seen.get(key)
        # Another buffer of the same name begins anew.
        old = then.stats if then is not None and then.uuid == now.uuid else now.stats
        was = {client.token: client.counters for client in old.clients}
        rates = {
            rate: _growth(old.counters, now.stats.counters, counter) / passed_s
            for counter, rate in RATES.items()
        }
        clients = [
            {
                "client": client.name,
                "pid": client.pid,
                "role": client.role,
                "alive": client.alive,
                "state": tables.client_state(client),
            }
            | {
                RATES[counter]: _growth(
                    was.get(client.token, client.counters), client.counters, counter
                )
                / passed_s
                for counter in _OF_CLIENT
            }
            for client in now.stats.clients
        ]
        row = {
            "name": now.stats.name,
            "root": now.root,
            "size": now.stats.size,
            "capacity": now.stats.capacity,
            "bytes": now.bytes,
            **rates,
            "blocked": len(now.stats.blocked),
            "policy_lag": now.lag,
            "clients": clients,
        }
        rows.append(row)
    return rows


def _growth(before: Mapping[str, int], after: Mapping[str, int], counter: str) -> int:
    return max(0, after.get(counter, 0) - before.get(counter, 0))


def _picture(rows: list[dict[str, Any]], roots: list[Root]) -> Group:
    head = f"shmrb top  {time.strftime('%H:%M:%S')}  {', '.join(root.path for root in roots)}"
    return Group(Text(head), Text(), tables.activity(rows), Text(), tables.attached(rows))
