"""The daemon's and its buffers' numbers in Prometheus' text format.

Labels are names that the operator gave (buffers), or words of this program; never clients or pids,
of which there is no end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shmrb import __version__
from shmrb.errors import ShmrbError
from shmrb.results import BufferStats
from shmrb.segment import lag, snapshot
from shmrb.segment.member import Member
from shmrbd.registry import Registry

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# More series than this make a server slow; the rest is counted, not shown.
MAX_BUFFERS = 500
WAITS = ("records", "room", "lane", "lock")

# Counters of a buffer (native/reports.h) and what they are called outside.
_COUNTERS = {
    "write_calls": ("write_calls", "Calls that wrote records."),
    "records_written": ("records_inserted", "Records written by calls that finished."),
    "sample_calls": ("sample_calls", "Calls that drew records."),
    "records_sampled": ("records_sampled", "Records drawn."),
    "redraws": ("redraws", "Draws that were tried again: overwritten while they were copied."),
    "rows_updated": ("records_updated", "Late writes that reached their record."),
    "stale_rows": ("stale_updates", "Late writes whose record was gone."),
    "versions_rejected": ("rejected_updates", "Late writes older than what was there."),
    "unchecked_updates": ("unchecked_updates", "Late writes without a generation."),
    "refused_priorities": ("refused_priorities", "Priorities that were no finite number >= 0."),
    "take_overs": ("take_overs", "Locks and claims taken over from the dead."),
    "overwritten_in_call": ("overwritten_in_call", "Records overwritten before their batch came."),
    "voided_records": ("voided_records", "Records lost with a process that died over them."),
    "reclaimed_records": ("reclaimed_records", "Of those, records never published."),
    "lock_take_overs": ("lock_take_overs", "Locks taken over from the dead."),
    "clients_recovered": ("clients_recovered", "Dead clients cleaned up after."),
    "slots_freed": ("slots_freed", "Claims freed of the dead."),
}
_NS_PER_S = 1e9


@dataclass(frozen=True)
class _Look:
    """One buffer at the moment of a scrape."""

    name: str
    stats: BufferStats
    bytes: int
    record_bytes: int
    lag: int | None


_Value = Callable[[_Look], "float | None"]

_GAUGES: dict[str, tuple[str, _Value]] = {
    "records": ("Records that may be drawn.", lambda look: look.stats.size),
    "capacity_records": ("Slots.", lambda look: look.stats.capacity),
    "reserved_bytes": ("Memory that is reserved.", lambda look: look.bytes),
    "record_bytes": (
        "What one record takes: inserted and sampled records times this are bytes.",
        lambda look: look.record_bytes,
    ),
    "clients": ("Living clients, the daemon too.", lambda look: _living(look.stats)),
    "leased_lanes": ("Lanes with a writer.", lambda look: _leased(look.stats)),
    "void_slots": (
        "Slots that hold no record.",
        lambda look: sum(lane.holes for lane in look.stats.lanes),
    ),
    "insert_age_seconds": ("How old the newest record is.", lambda look: _age_s(look.stats)),
    "policy_lag_versions": (
        "Versions between the newest record and the newest parameters beside it.",
        lambda look: look.lag,
    ),
    "limiter_difference": (
        "inserts * samples_per_insert - samples, as the rate limiter counts.",
        lambda look: look.stats.limiter.difference if look.stats.limiter else None,
    ),
}


class Collector:
    """Looks at everything anew at each scrape.

    Args:
        registry: the buffers.
        requests: how often each request was asked.
        events: how often each kind of event happened.
        connections: how many there are.
    """

    def __init__(
        self,
        registry: Registry,
        requests: Counter[str],
        events: Counter[str],
        connections: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._requests = requests
        self._events = events
        self._connections = connections
        self._started = time.time()

    def text(self) -> str:
        """What a Prometheus server reads."""
        # Not at the top: its imports take a third of a second and 14 MB, for who is not scraped.
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def describe(self) -> list[Metric]:
        """Nothing: asked once at registration, where a look would be wasted."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric, with one sample a buffer or word."""
        looks, left_out = self._look()
        yield from self._of_daemon(left_out)
        yield from _of_buffers(looks)

    def _look(self) -> tuple[list[_Look], int]:
        members = list(self._registry.members())
        looks = []
        for member in members[:MAX_BUFFERS]:
            try:
                looks.append(_look_at(member, members))
            except ShmrbError:
                # Dropped at this moment; the next scrape does without it.
                continue
        return looks, max(0, len(members) - MAX_BUFFERS)

    def _of_daemon(self, left_out: int) -> Iterator[Metric]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            InfoMetricFamily,
        )

        yield InfoMetricFamily("shmrb_daemon", "The daemon.", value={"version": __version__})
        numbers = {
            "start_time_seconds": ("When the daemon started.", self._started),
            "connections": ("Control connections.", self._connections()),
            "buffers": ("Buffers that the daemon has adopted.", len(self._registry)),
            "buffers_left_out": (f"Buffers beyond {MAX_BUFFERS}, not shown here.", left_out),
        }
        for name, (text, value) in numbers.items():
            yield GaugeMetricFamily(f"shmrb_daemon_{name}", text, value=value)
        for name, label, text, totals in (
            ("requests", "op", "Requests, and under refused those that failed.", self._requests),
            ("events", "kind", "What the daemon saw and did.", self._events),
        ):
            family = CounterMetricFamily(f"shmrb_daemon_{name}", text, labels=[label])
            for word, total in sorted(totals.items()):
                family.add_metric([word], total)
            yield family


def _of_buffers(looks: list[_Look]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for counter, (name, text) in _COUNTERS.items():
        family = CounterMetricFamily(f"shmrb_buffer_{name}", text, labels=["buffer"])
        for look in looks:
            family.add_metric([look.name], look.stats.counters.get(counter, 0))
        yield family
    waited = CounterMetricFamily(
        "shmrb_buffer_blocked_seconds", "Time that calls waited.", labels=["buffer"]
    )
    blocked = GaugeMetricFamily(
        "shmrb_buffer_blocked_clients", "Clients that wait, and for what.", labels=["buffer", "for"]
    )
    for look in looks:
        waited.add_metric([look.name], look.stats.counters.get("blocked_ns", 0) / _NS_PER_S)
        waiting = Counter(client.waiting_for for client in look.stats.blocked)
        for what in WAITS:
            blocked.add_metric([look.name, what], waiting[what])
    yield waited
    yield blocked
    for name, (text, value_of) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"shmrb_buffer_{name}", text, labels=["buffer"])
        for look in looks:
            value = value_of(look)
            if value is not None:
                gauge.add_metric([look.name], value)
        yield gauge


def _look_at(member: Member, members: list[Member]) -> _Look:
    stats = snapshot.stats(member.segment, member.name, member.spec)
    behind = lag.policy_lag(member, members)
    record_bytes = sum(column.row_bytes for column in member.layout.columns)
    return _Look(member.name, stats, member.layout.total_bytes, record_bytes, behind)


def _living(stats: BufferStats) -> int:
    return sum(client.alive for client in stats.clients)


def _leased(stats: BufferStats) -> int:
    return sum(lane.lease != 0 for lane in stats.lanes)


def _age_s(stats: BufferStats) -> float | None:
    newest = max((lane.written_ns for lane in stats.lanes), default=0)
    return max(0.0, time.time() - newest / _NS_PER_S) if newest else None
