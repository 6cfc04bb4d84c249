"""What calls give back about a buffer; floor F1.

Plain frozen values: a snapshot of counters that go on changing, taken without a lock, so that
numbers of one snapshot need not agree to the last record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from shmrb.description import Description


@dataclass(frozen=True, slots=True, eq=False)
class ConditionalUpdateResult:
    """Which records a late write reached; the rest were stale.

    Attributes:
        updated: bool [N], True where the record was changed, in the order of the call.
        version_rejected: bool [N], True where the handle was current but the version was not newer;
            None if no version was given.
    """

    updated: Any
    version_rejected: Any | None = None

    @property
    def stale(self) -> Any:
        """bool [N], True where another record has taken the slot."""
        if self.version_rejected is None:
            return ~self.updated
        return ~(self.updated | self.version_rejected)

    @property
    def updated_count(self) -> int:
        """Records changed."""
        return int(self.updated.sum())

    @property
    def version_rejected_count(self) -> int:
        """Records that already had this version or a newer one."""
        return 0 if self.version_rejected is None else int(self.version_rejected.sum())

    @property
    def stale_count(self) -> int:
        """Handles whose record is gone."""
        return len(self) - self.updated_count - self.version_rejected_count

    def __len__(self) -> int:
        return len(self.updated)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInfo(Description):
    """One attached client.

    Attributes:
        token: what its locks, claims and leases hold.
        name, pid: labels for people; a pid may belong to another namespace.
        role: "member", "learner" or "observer".
        alive: whether its byte is locked, which proves that it lives.
        attached_ns: when it attached, nanoseconds of the realtime clock.
        waiting_for: "nothing", "records", "room", "lane" or "lock".
        waiting_since_ns: nanoseconds of the monotonic clock; 0 if it does not wait.
        counters: what it has done so far.
    """

    kind: ClassVar[str] = "ClientInfo"

    token: int
    name: str
    pid: int
    role: str
    alive: bool
    attached_ns: int = 0
    waiting_for: str = "nothing"
    waiting_since_ns: int = 0
    counters: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name!r} (pid {self.pid})"

    @property
    def has_written(self) -> bool:
        """Whether it has written or is waiting to."""
        return self.waiting_for == "room" or self.counters.get("write_calls", 0) > 0

    @property
    def has_sampled(self) -> bool:
        """Whether it has drawn or is waiting to."""
        return self.waiting_for == "records" or self.counters.get("sample_calls", 0) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneInfo(Description):
    """One lane.

    Attributes:
        lane: its number.
        head, floor: the next ticket, and the lowest that `empty` left alive.
        written: rows ever reserved in it.
        holes: slots in its window that hold no record.
        lease: token of its writer, 0 if it is free.
        written_ns: when it was last written, nanoseconds of the realtime clock; 0 = never.
    """

    kind: ClassVar[str] = "LaneInfo"

    lane: int
    head: int
    floor: int
    written: int
    holes: int = 0
    lease: int = 0
    written_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterInfo(Description):
    """A rate limiter and where it stands.

    Attributes:
        enabled, lifted: whether limits are set, and whether they are lifted for the moment.
        inserts, samples: counted since creation or the last `empty`.
        size: records that may be drawn.
        min_size, samples_per_insert, min_diff, max_diff: the limits.
        opened_by: token of a consumer that has nothing to draw, for want of records or because none
            is legal: one insert may pass the limits; 0 = shut.
        opened_times: inserts that went ahead only because of that.
        pending: samples of records that are held: inserts have no room for others yet.
    """

    kind: ClassVar[str] = "LimiterInfo"

    inserts: int
    samples: int
    size: int
    min_size: int
    samples_per_insert: float
    min_diff: float
    max_diff: float
    enabled: bool = True
    lifted: bool = False
    opened_by: int = 0
    opened_times: int = 0
    pending: int = 0

    @property
    def deletes(self) -> int:
        """Records inserted that are there no more."""
        return self.inserts - self.size

    @property
    def difference(self) -> float:
        """Samples that the inserts so far allow, less those drawn."""
        return self.inserts * self.samples_per_insert - self.samples

    def explain_sample(self, records: int) -> str:
        """By which number a sample of so many loss-bearing records is held up."""
        if self.size < self.min_size:
            return f"{self.size} of {self.min_size} records are there (min_size)"
        return (
            f"inserts {self.inserts} * samples_per_insert {self.samples_per_insert} - samples "
            f"{self.samples} - {records} = {self.difference - records}, at least min_diff "
            f"{self.min_diff} is needed"
        )

    def explain_insert(self, records: int) -> str:
        """By which number an insert of so many records is held up."""
        after = self.difference + self.pending + records * self.samples_per_insert
        samples = f"samples {self.samples}"
        if self.pending:
            samples = f"({samples} - held {self.pending})"
        return (
            f"(inserts {self.inserts} + {records}) * samples_per_insert "
            f"{self.samples_per_insert} - {samples} = {after}, at most max_diff "
            f"{self.max_diff} is allowed"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityInfo(Description):
    """The priorities of a buffer.

    Attributes:
        alpha, beta, eps: mass = (priority + eps) ** alpha, weight = (mass / least mass) ** -beta.
        max_priority: the greatest priority seen, 0 before there is one.
        total_mass: the sum over all records.
        least_mass: of the records with any, 0 if there is none.
    """

    kind: ClassVar[str] = "PriorityInfo"

    alpha: float
    beta: float
    eps: float
    max_priority: float
    total_mass: float
    least_mass: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferStats(Description):
    """A buffer at one moment.

    Attributes:
        name: "" if it has none.
        size: records that may be drawn.
        capacity: slots.
        write_count: records ever written.
        initialized: whether the schema is known and memory reserved.
        prefetch_queue_size: batches that the asking handle holds ready.
        lanes, clients, limiter, priorities: their states; None for what the buffer has not.
        counters: sums over all clients, those that left included.
    """

    kind: ClassVar[str] = "BufferStats"

    name: str
    size: int
    capacity: int
    write_count: int
    initialized: bool
    prefetch_queue_size: int = 0
    lanes: tuple[LaneInfo, ...] = ()
    clients: tuple[ClientInfo, ...] = ()
    limiter: LimiterInfo | None = None
    priorities: PriorityInfo | None = None
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def utilization(self) -> float:
        """Size over capacity."""
        return self.size / self.capacity

    @property
    def producers(self) -> tuple[ClientInfo, ...]:
        """Living clients that write."""
        return tuple(client for client in self.clients if client.alive and client.has_written)

    @property
    def consumers(self) -> tuple[ClientInfo, ...]:
        """Living clients that draw."""
        return tuple(client for client in self.clients if client.alive and client.has_sampled)

    @property
    def blocked(self) -> tuple[ClientInfo, ...]:
        """Living clients that wait for something."""
        waiting = (client for client in self.clients if client.waiting_for != "nothing")
        return tuple(client for client in waiting if client.alive)

    def as_dict(self) -> dict[str, Any]:
        """What `ReplayBuffer.stats()` returns: TorchRL's keys, the counters, the states."""
        torchrl = {
            "size": self.size,
            "write_count": self.write_count,
            "prefetch_queue_size": self.prefetch_queue_size,
            "initialized": self.initialized,
            "capacity": self.capacity,
            "utilization": self.utilization,
        }
        names = ("lanes", "clients", "limiter", "priorities")
        states = {name: getattr(self, name) for name in names}
        return torchrl | self.counters | states

    @classmethod
    def _values(cls, known: dict[str, Any]) -> dict[str, Any]:
        values = dict(known)
        for name, kind in (("lanes", LaneInfo), ("clients", ClientInfo)):
            values[name] = tuple(kind.from_json(part) for part in known.get(name, ()))
        for name, state in (("limiter", LimiterInfo), ("priorities", PriorityInfo)):
            if known.get(name) is not None:
                values[name] = state.from_json(known[name])
        return values
