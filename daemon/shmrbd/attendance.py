"""Who is attached to which buffer, as one look after the other shows it.

A client that comes and leaves between two looks is not seen. Who lives is said by the lock byte
alone, through the native core.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from shmrb.core import Status
from shmrb.segment import snapshot
from shmrb.segment.member import Member
from shmrbd.events import EventLog
from shmrbd.registry import ring

# Counters of a buffer that say what a repair cost or changed.
_REPAIRS = ("voided_records", "reclaimed_records", "lock_take_overs", "slots_freed")

_Facts = dict[str, Any]


@dataclass
class _Seen:
    """What the last look at a buffer showed."""

    present: dict[int, _Facts] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    recovered: int | None = None


class Attendance:
    """Notes who came, left and died, and recovers the dead."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._seen: dict[bytes, _Seen] = {}

    def keep_only(self, members: list[Member]) -> None:
        """Forget buffers that are not among these."""
        uuids = {member.uuid for member in members}
        self._seen = {uuid: seen for uuid, seen in self._seen.items() if uuid in uuids}

    def look(self, member: Member) -> None:
        """See who is there, and recover who is dead."""
        seen = self._seen.setdefault(member.uuid, _Seen())
        before = member.segment.counters()
        recovered_by_others = (
            0 if seen.recovered is None else (before.get("clients_recovered", 0) - seen.recovered)
        )
        self._compare(member, seen, recovered_by_others)
        self._recover(member, before)
        seen.recovered = member.segment.counters().get("clients_recovered", 0)

    def _compare(self, member: Member, seen: _Seen, recovered_by_others: int) -> None:
        rows = {row["token"]: row for row in member.segment.clients()}
        rows.pop(member.token, None)
        for token in list(seen.present):
            if token not in rows:
                facts = seen.present.pop(token)
                # Gone without having been seen dead: a survivor was quicker than the daemon.
                is_dead = recovered_by_others > 0
                recovered_by_others -= is_dead
                self._events.record("died" if is_dead else "left", **facts)
        seen.dead &= rows.keys()
        for token, row in rows.items():
            if token in seen.dead:
                continue
            if row["alive"]:
                if token not in seen.present:
                    seen.present[token] = _facts(member, row)
                    self._events.record("attached", **seen.present[token])
                continue
            self._events.record("died", **(seen.present.pop(token, None) or _facts(member, row)))
            seen.dead.add(token)

    def _recover(self, member: Member, before: dict[str, int]) -> None:
        status, dead, _, _, wake = member.segment.reap()
        ring(member, wake)
        # Counts anew where records died; an observer that looks later may not.
        member.segment.size()
        if dead:
            after = member.segment.counters()
            changes = {name: after.get(name, 0) - before.get(name, 0) for name in _REPAIRS}
            self._events.record("repaired", buffer=member.name, clients=dead, **changes)
        if status == Status.CORRUPT:
            self._events.record(
                "damaged",
                level=logging.ERROR,
                buffer=member.name,
                advice=f"shmrb doctor {member.name}",
            )


def _facts(member: Member, row: dict[str, Any]) -> _Facts:
    return {
        "buffer": member.name,
        "client": row["name"].decode("utf-8", "replace"),
        "pid": row["pid"],
        "role": snapshot.ROLES.get(row["role"], "unknown"),
    }
