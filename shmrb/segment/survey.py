"""What lies in a root and how it fares, seen from outside as an observer; floor F3.

For people and for the daemon's answers. Nothing is held and nothing is changed: a buffer is mapped
read-only for the moment of the look.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from shmrb.description import Description
from shmrb.errors import ShmrbError
from shmrb.results import BufferStats
from shmrb.segment import snapshot
from shmrb.segment.directory import Root
from shmrb.segment.entries import Entry, State
from shmrb.segment.member import Member

# How the daemon calls itself as a client. Only a label: nothing is decided by it.
DAEMON_NAME = "shmrbd"


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSummary(Description):
    """One line of a listing.

    Attributes:
        name: of the buffer; of the directory, if what is there is no buffer.
        root: where it lies.
        state: "ready", "declared" (no schema yet, so no memory), "unclean" (on a disk, and open
            when the machine stopped), or "foreign".
        purpose: "buffer", or "parameters" for what `Parameters` publishes; "" if it is not known.
        storage: "SharedStorage" or "MemmapStorage", "" if it is not known.
        lifetime: "persistent" or "creator", "" if it is not known.
        capacity, lanes: slots and streams.
        size: records that may be drawn; of parameters, trees that are whole.
        write_count: records ever written; 0 for parameters, which are published in place.
        bytes: what its files take.
        clients: living members, without the daemon.
        problem: why it is foreign or unclean, or could not be looked into.
    """

    kind: ClassVar[str] = "BufferSummary"

    name: str
    root: str
    state: str
    purpose: str = ""
    storage: str = ""
    lifetime: str = ""
    capacity: int = 0
    lanes: int = 0
    size: int = 0
    write_count: int = 0
    bytes: int = 0
    clients: int = 0
    problem: str = ""


def survey(root: Root, prefix: str = "") -> list[BufferSummary]:
    """The buffers called `prefix` or below it; with the empty prefix also what is foreign."""
    return [_summary(root, entry) for entry in root.list(prefix)]


def stats(root: Root, name: str) -> BufferStats:
    """The counters, lanes and clients of one buffer.

    Raises:
        NoSuchBufferError: nothing bears the name.
        FormatMismatchError, FileSystemError, PermissionDeniedError: it cannot be looked into.
    """
    return _stats_of(root, root.require(name))


@contextmanager
def observer(root: Root, name: str) -> Iterator[Member]:
    """A look into a buffer that nobody else notices."""
    member = Member.join(root, name, role="observer")
    try:
        yield member
    finally:
        member.close()


def _stats_of(root: Root, entry: Entry) -> BufferStats:
    if entry.state is State.READY:
        with observer(root, entry.name) as member:
            return snapshot.stats(member.segment, entry.name, member.spec)
    assert entry.spec is not None
    capacity = entry.spec.capacity
    return BufferStats(name=entry.name, size=0, capacity=capacity, write_count=0, initialized=False)


def _summary(root: Root, entry: Entry) -> BufferSummary:
    summary = BufferSummary(
        name=entry.name, root=root.path, state=entry.state.value, problem=entry.problem
    )
    spec = entry.spec
    if spec is None:
        return summary
    described = replace(
        summary,
        purpose=spec.purpose,
        storage=spec.storage.kind,
        lifetime="creator" if entry.is_bounded else spec.lifetime,
        capacity=spec.capacity,
        lanes=spec.lanes,
    )
    if entry.meta is None:
        return described
    try:
        found = _stats_of(root, entry)
    except ShmrbError as error:
        # Dropped since it was listed, or its creator just ended.
        return replace(described, problem=str(error))
    return replace(
        described,
        size=found.size,
        write_count=found.write_count,
        bytes=entry.meta.layout.total_bytes,
        clients=sum(client.alive and client.name != DAEMON_NAME for client in found.clients),
    )
