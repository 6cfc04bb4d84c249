"""The buffers of a root, as the daemon owns them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

from shmrb.core import Bell
from shmrb.errors import CapacityError, ShmrbError, SpecError
from shmrb.results import BufferStats
from shmrb.segment import boot, names, survey
from shmrb.segment.directory import Exist, Root
from shmrb.segment.entries import State
from shmrb.segment.layout import Layout
from shmrb.segment.member import Member
from shmrb.segment.room import SLOWEST_BYTES_PER_S
from shmrb.segment.survey import BufferSummary
from shmrb.spec import BufferSpec, MemmapStorage
from shmrb.wire import Place
from shmrbd import disks
from shmrbd.config import Settings
from shmrbd.events import EventLog

# A directory's identity and last change: as long as they are the same, so is a ready buffer.
_Signature = tuple[int, int]


@dataclass(frozen=True)
class _Adopted:
    member: Member
    signature: _Signature


class Registry:
    """Every lasting buffer of the root, joined as a client like any other.

    Holding a client slot of its own, the daemon can recover what dead clients left. A buffer that
    ends with its creator is not joined: it ends when the last of its bytes is free.

    Args:
        root: where they lie.
        events: hears of what is adopted, created and dropped.
        settings: how much there may be.
        working: called after each buffer that took time, and before one that will, with how long.
    """

    def __init__(
        self,
        root: Root,
        events: EventLog,
        settings: Settings,
        working: Callable[..., None] = lambda _what, _extra_s=0.0: None,
    ) -> None:
        self._root = root
        self._events = events
        self._settings = settings
        self._working = working
        self._adopted: dict[str, _Adopted] = {}
        self._problems: dict[str, str] = {}

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, adopted in list(self._adopted.items()):
            if isinstance(adopted.member.spec.storage, MemmapStorage):
                size = adopted.member.layout.total_bytes
                self._working(f"writing out {name}", size / SLOWEST_BYTES_PER_S)
            self._let_go(name)
            self._working(f"let go of {name}")

    def __len__(self) -> int:
        return len(self._adopted)

    def members(self) -> Iterator[Member]:
        """The daemon's own attachment to each buffer."""
        for adopted in list(self._adopted.values()):
            yield adopted.member

    def refresh(self) -> None:
        """Let go of buffers that are gone, and adopt those that appeared, whoever made them."""
        found = self._signatures()
        for name, adopted in list(self._adopted.items()):
            if found.get(name) != adopted.signature or not adopted.member.segment.is_ready():
                self._let_go(name)
        self._problems = {name: text for name, text in self._problems.items() if name in found}
        for name, signature in found.items():
            if name not in self._adopted:
                self._adopt(name, signature)
                self._working(f"adopted {name}")

    @property
    def root(self) -> str:
        """The directory of the buffers."""
        return self._root.path

    def create(self, name: str, spec: BufferSpec, exist: Exist) -> None:
        """Create or declare a buffer, and adopt it.

        Raises:
            SpecError: it would end with its creator, or lie where the settings allow none.
            CapacityError: the daemon's limits, or the machine's, leave no room.
            AlreadyExistsError, LockTimeoutError: as `Root.create`.
        """
        if spec.lifetime == "creator":
            raise SpecError(
                f"Buffer {name!r}: lifetime='creator' would end it with the daemon. Create it in "
                "the process that shall bound its life, or leave lifetime out."
            )
        disks.check_directory(spec, self._settings.now.memmap_places)
        self._check_limits(name, spec, exist)
        made = self._root.create(spec, name, exist=exist)
        if made.is_new:
            self._events.record("created", buffer=name, bytes=total_bytes(spec))
        self.refresh()

    def drop(self, name: str, *, force: bool) -> None:
        """Drop a buffer; the daemon's own attachment does not keep it.

        Raises:
            NoSuchBufferError: nothing bears the name.
            AttachError: it has members and `force` is not set; it goes on as before.
        """
        self._let_go(name, settles=False)
        try:
            self._root.drop(name, force=force)
            self._events.record("dropped", buffer=name, forced=force)
        finally:
            self.refresh()

    def list(self, prefix: str) -> list[BufferSummary]:
        """The buffers called `prefix` or below it."""
        return survey.survey(self._root, prefix)

    def stats(self, name: str) -> BufferStats:
        """The counters of one buffer."""
        return survey.stats(self._root, name)

    def place(self, name: str) -> Place:
        """Where a client finds a buffer.

        Raises:
            NoSuchBufferError: nothing bears the name.
        """
        self._root.require(name)
        return Place(root=self._root.path, name=name)

    def _check_limits(self, name: str, spec: BufferSpec, exist: Exist) -> None:
        """Refuse what the operator does not want. What others create themselves is not asked."""
        limits = self._settings.now
        if limits.max_clients and spec.max_clients > limits.max_clients:
            raise SpecError(
                f"max_clients: expected at most {limits.max_clients}, which the daemon's setting "
                f"max_clients allows, got {spec.max_clients}."
            )
        if not (limits.max_bytes or limits.max_buffers):
            return
        if exist != "replace" and self._root.find(name).state is not State.MISSING:
            return
        others = [entry for entry in self._root.list() if entry.spec and entry.name != name]
        if limits.max_buffers and len(others) >= limits.max_buffers:
            raise CapacityError(
                f"No room for buffer {name!r}: {len(others)} buffers are there, and the daemon's "
                f"setting max_buffers allows {limits.max_buffers}. Drop one, or raise the setting "
                "and reload."
            )
        used = sum(entry.meta.layout.total_bytes for entry in others if entry.meta is not None)
        needed, available = total_bytes(spec), max(0, limits.max_bytes - used)
        if limits.max_bytes and needed > available:
            raise CapacityError(
                f"No room for buffer {name!r}: needed {needed} bytes, available {available} of the "
                f"{limits.max_bytes} that the daemon's setting max_bytes allows. Take a smaller "
                "capacity, drop a buffer, or raise the setting and reload.",
                needed_bytes=needed,
                available_bytes=available,
            )

    def _signatures(self) -> dict[str, _Signature]:
        found = {}
        with os.scandir(self._root.path) as items:
            for item in items:
                name = names.buffer_name(item.name)
                if name is not None:
                    status = item.stat(follow_symlinks=False)
                    found[name] = (status.st_ino, status.st_mtime_ns)
        return found

    def _adopt(self, name: str, signature: _Signature) -> None:
        try:
            entry = self._root.find(name)
            if entry.state is State.UNCLEAN:
                raise boot.unclean(entry.path)
            if entry.state is not State.READY or entry.is_bounded:
                return
            member = Member.join(self._root, name, client_name=survey.DAEMON_NAME)
        except ShmrbError as error:
            # Not touched, and tried again: client slots may become free, permissions change.
            if self._problems.get(name) != str(error):
                self._problems[name] = str(error)
                self._events.record(
                    "not_adopted", level=logging.WARNING, buffer=name, reason=str(error)
                )
            return
        _, slots, _, _, wake = member.segment.recover()
        ring(member, wake)
        self._adopted[name] = _Adopted(member, signature)
        self._events.record("adopted", buffer=name, recovered_slots=slots)

    def _let_go(self, name: str, *, settles: bool = True) -> None:
        adopted = self._adopted.pop(name, None)
        if adopted is not None:
            adopted.member.close(settles=settles)


def total_bytes(spec: BufferSpec) -> int:
    """What the files of such a buffer take; 0 while it has no fields."""
    return Layout.of(spec).total_bytes if spec.schema is not None else 0


def ring(member: Member, wake: int) -> None:
    """Post the semaphores that a native call says are owed."""
    for bell, count in ((Bell.RECORDS, wake & 0xFFFF_FFFF), (Bell.ROOM, wake >> 32)):
        if count:
            member.bell(bell).post(count)
