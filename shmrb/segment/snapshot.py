"""What a segment says about itself, as results: a look without a lock (floor F3)."""

from __future__ import annotations

from typing import Any

from shmrb import core
from shmrb.results import BufferStats, ClientInfo, LaneInfo, LimiterInfo, PriorityInfo
from shmrb.spec import BufferSpec

ROLES = {role.value: role.name.lower() for role in core.ClientRole}
WAITS = {label.value: label.name.lower() for label in core.WaitLabel}


def clients(segment: core.Segment) -> tuple[ClientInfo, ...]:
    """Clients whose entry is in use; the dead among them are not recovered yet."""
    rows: list[dict[str, Any]] = segment.clients()
    return tuple(map(_client, rows))


def client(segment: core.Segment, token: int) -> ClientInfo | None:
    """Whoever holds the token, None if no client can."""
    row: Any = segment.client(token)
    return None if row is None else _client(row)


def lanes(segment: core.Segment) -> tuple[LaneInfo, ...]:
    """The lanes in order."""
    names = ("head", "floor", "written", "holes", "lease", "written_ns")
    return tuple(
        LaneInfo(lane=number, **{name: row[name] for name in names})
        for number, row in enumerate(segment.lanes())
    )


def limiter(segment: core.Segment) -> LimiterInfo:
    """The rate limiter and where it stands."""
    return LimiterInfo(**segment.limiter())


def priorities(segment: core.Segment) -> PriorityInfo:
    """The priorities and where they stand."""
    row = segment.priorities()
    return PriorityInfo(
        alpha=row["alpha"],
        beta=row["beta"],
        eps=row["eps"],
        max_priority=row["max_priority"],
        total_mass=row["total"],
        least_mass=row["least"] if row["total"] > 0 else 0.0,
    )


def stats(segment: core.Segment, name: str, spec: BufferSpec) -> BufferStats:
    """The whole buffer at one moment."""
    return BufferStats(
        name=name,
        size=segment.size()[1],
        capacity=spec.capacity,
        write_count=segment.write_count()[1],
        initialized=True,
        lanes=lanes(segment),
        clients=clients(segment),
        limiter=limiter(segment) if spec.limiter is not None else None,
        priorities=priorities(segment) if spec.priorities is not None else None,
        counters=segment.counters(),
    )


def _client(row: dict[str, Any]) -> ClientInfo:
    return ClientInfo(
        token=row["token"],
        name=row["name"].decode("utf-8", "replace"),
        pid=row["pid"],
        role=ROLES.get(row["role"], "unknown"),
        alive=row["alive"],
        attached_ns=row["attached_ns"],
        waiting_for=WAITS.get(row["waiting_for"], "unknown"),
        waiting_since_ns=row["waiting_since_ns"] if row["waiting_for"] else 0,
        counters=row["counters"],
    )
