"""A root: creating, declaring, publishing, finding, listing and dropping buffers; floor F3.

One lock a root guards its names. It is held for moments: memory is reserved and filled in a
directory that bears no buffer's name yet, and files are removed from one that bears none any more.
Since every name is given under the lock, an ordinary rename onto a missing name is enough; nobody
needs renameat2's NOREPLACE, which not every file system has.
"""

from __future__ import annotations

import contextlib
import os
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, get_args

from shmrb import core
from shmrb.errors import (
    AlreadyExistsError,
    NoSuchBufferError,
    RecordError,
    ShmrbError,
    SpecError,
    StaleAttachmentError,
)
from shmrb.schema import Schema
from shmrb.segment import building, doorbell, entries, names, removal, stamps
from shmrb.segment.administration import TIMEOUT_S, administration_lock
from shmrb.segment.building import Building, Progress
from shmrb.segment.entries import Entry, State
from shmrb.segment.filesystem import check_file_system
from shmrb.segment.layout import Declaration, Layout, Meta
from shmrb.segment.removal import Leftover
from shmrb.spec import BufferSpec, MemmapStorage

Exist = Literal["attach", "error", "replace"]

# Seconds that closing a handle may wait for the administration lock.
CLOSE_WAIT_S = 1.0
# Names that an error lists.
SHOWN_NAMES = 8


@dataclass
class Created:
    """What `create` and `publish_declared` give.

    Attributes:
        entry: the buffer.
        is_new: whether this call made it, or found it.
        hold: for the creator of a bounded buffer: as long as it is held, the creator lives. Whoever
            joins hands it to the member.
    """

    entry: Entry
    is_new: bool
    hold: core.HeldByte | None = None


class Root:
    """A directory of buffers.

    Args:
        path: of the root; made at the first creation.
        mode: permissions of new files, 0o600 or 0o660 for a group; directories get the matching
            search bits. Set whatever the umask. None: 0o660 in a root that its group may write and
            nobody else, 0o600 in any other.
        lock_timeout: seconds to wait for the administration lock.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: int | None = None,
        lock_timeout: float = TIMEOUT_S,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._mode = mode
        self.lock_timeout = lock_timeout

    @property
    def mode(self) -> int:
        """The mode of files."""
        if self._mode is not None:
            return self._mode
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.path).st_mode & 0o022 == 0o020:
                return 0o660
        return 0o600

    @property
    def directory_mode(self) -> int:
        """The mode of directories: whoever may read a file may pass through to it."""
        return self.mode | (self.mode & 0o444) >> 2

    @property
    def _modes(self) -> tuple[int, int]:
        return self.directory_mode, self.mode

    def path_of(self, name: str) -> str:
        """The directory of a buffer.

        Raises:
            SpecError: no buffer may bear the name.
        """
        return os.path.join(self.path, names.directory_name(name))

    def make(self) -> None:
        """Make the directory if it is not there.

        Raises:
            FileSystemError: nobody could prove there that a client lives.
            PermissionDeniedError: it is not ours to use.
        """
        names.make_root(self.path, self.directory_mode)
        check_file_system(self.path)

    def find(self, name: str) -> Entry:
        """What bears the name: missing, declared or ready.

        Raises:
            FormatMismatchError, FileSystemError: something else lies there.
            PermissionDeniedError: it is not open to this user.
        """
        found = entries.look(self.path, name)
        return replace(found, state=State.MISSING) if found.state is State.LEAVING else found

    def require(self, name: str) -> Entry:
        """What `find` gives, but a missing name is an error.

        Raises:
            NoSuchBufferError: nothing bears the name; the message lists known names.
        """
        found = self.find(name)
        if found.state is State.MISSING:
            raise self.unknown(name)
        return found

    def list(self, prefix: str = "") -> tuple[Entry, ...]:
        """Every buffer called `prefix` or below it; with the empty prefix also what is foreign."""
        return tuple(
            entry
            for entry in entries.list_entries(self.path)
            if entry.state is not State.LEAVING and names.is_below(entry.name, prefix)
        )

    def create(
        self,
        spec: BufferSpec,
        name: str | None = None,
        *,
        exist: Exist = "attach",
        progress: Progress | None = None,
    ) -> Created:
        """Reserve a buffer, or declare one that has no schema yet.

        Args:
            spec: its description.
            name: None makes a private buffer that ends with its creator.
            exist: what to do when the name is taken. "attach": use what is there if its description
                is equal; "error"; "replace": drop it, members or not, once the new one is built.
            progress: hears from time to time how many bytes of how many have their place.

        Raises:
            AlreadyExistsError: the name is taken, and what it bears is described otherwise, or
                `exist="error"`.
            CapacityError: there is no room; nothing is left.
            LockTimeoutError: somebody holds the administration lock.
        """
        layout = _checked_layout(spec, name, exist)
        self.make()
        self.reclaim()
        while True:
            if name is not None and exist != "replace":
                found = self.find(name)
                if found.state is not State.MISSING:
                    return self._use(found, spec, exist)
            created = self._build(
                spec, layout, name, replaces=exist == "replace", progress=progress
            )
            if created is not None:
                return created

    def publish_declared(self, name: str, schema: Schema) -> Created:
        """Reserve the memory of a declared buffer, now that its first record has come.

        Of two who do so at a time one wins. The files get their names one by one and `meta` last:
        until then the buffer is still only declared, for whoever looks and after a kill.

        Raises:
            RecordError: another writer was first, with other fields.
            CapacityError: there is no room; the declaration stays.
            NoSuchBufferError: the name is gone.
        """
        found = self.require(name)
        if found.state is State.READY:
            return self._lost(found, schema)
        assert found.declaration is not None
        spec = found.declaration.spec.with_schema(schema)
        meta = Meta(Layout.of(spec), found.declaration.uuid, found.declaration.created_ns)
        with self._lock():
            made = Building.start(self.path, 1, self._modes)
        try:
            made.reserve_and_fill(meta, self.mode)
            with self._lock():
                now = self.require(name)
                if now.uuid != found.uuid:
                    raise StaleAttachmentError(
                        f"Another buffer bears the name {name!r} now: it was dropped and created "
                        "anew since this handle found it. Attach again."
                    )
                if now.state is State.READY:
                    return self._lost(now, schema)
                self._publish(made, now, meta)
        finally:
            made.close()
            made.discard()
        return Created(self.require(name), True)

    def drop(self, name: str, *, force: bool = False) -> None:
        """Take the name away and free the memory.

        Args:
            name: of the buffer.
            force: also when it has members. They keep their mapping until their next call.

        Raises:
            NoSuchBufferError: nothing bears the name.
            AttachError: it has members, named in the message, and `force` is not set.
        """
        self.require(name)
        with self._lock():
            found = entries.look(self.path, name)
            if found.state is State.MISSING:
                raise self.unknown(name)
            if found.state is not State.LEAVING and not force:
                removal.refuse_if_in_use(found)
            gone = removal.take_down(self.path, found)
        removal.remove_tree(gone)

    def leftovers(self) -> tuple[Leftover, ...]:
        """What dead creators and interrupted drops left, without touching it."""
        if not os.path.isdir(self.path):
            return ()
        with self._lock():
            return tuple(removal.find_leftovers(self.path))

    def reclaim(self) -> tuple[Leftover, ...]:
        """Remove the leftovers; those that are not ours to remove stay.

        Returns:
            What was removed.
        """
        if not os.path.isdir(self.path):
            return ()
        taken: dict[Leftover, str] = {}
        with self._lock():
            for leftover in tuple(removal.find_leftovers(self.path)):
                with contextlib.suppress(OSError, ShmrbError):
                    taken[leftover] = removal.clear(self.path, leftover)
        for path in taken.values():
            removal.remove_tree(path)
        return tuple(taken)

    def reclaim_bounded(self, name: str) -> None:
        """Remove this buffer if it was bounded and nobody is left.

        Who closes a handle is not made to wait long for it: the next creation tries again. A root
        that was removed meanwhile stays away: taking its lock would make it anew.
        """
        if not os.path.isdir(self.path):
            return
        with administration_lock(self.path, self.mode, min(self.lock_timeout, CLOSE_WAIT_S)):
            found = entries.look(self.path, name)
            if found.state is State.MISSING or not removal.is_abandoned(found):
                return
            gone = removal.take_down(self.path, found)
        removal.remove_tree(gone)

    def _use(self, found: Entry, spec: BufferSpec, exist: Exist) -> Created:
        """The buffer that is there already, if it is the one that is asked for."""
        assert found.spec is not None
        if exist == "error":
            raise AlreadyExistsError(
                f"Buffer {found.name!r} exists already in {self.path}. Attach to it, drop it, or "
                "take another name."
            )
        differences = found.spec.differences(spec)
        if differences:
            raise AlreadyExistsError(
                f"Buffer {found.name!r} exists already in {self.path}, described otherwise: "
                f"{'; '.join(differences)}. Ask for the same, drop it, or take another name."
            )
        if found.state is State.DECLARED and spec.schema is not None:
            return self.publish_declared(found.name, spec.schema)
        return Created(found, False)

    def _build(
        self,
        spec: BufferSpec,
        layout: Layout | None,
        name: str | None,
        *,
        replaces: bool,
        progress: Progress | None,
    ) -> Created | None:
        """A new buffer under this name, or None if somebody else took the name meanwhile."""
        with self._lock():
            made = Building.start(self.path, spec.max_clients + 1, self._modes)
        own_name = names.private_name(made.build) if name is None else name
        uuid = bytes.fromhex(made.build)
        try:
            if layout is None:
                made.write_declaration(Declaration(spec, uuid, time.time_ns()), self.mode)
            else:
                made.reserve_and_fill(Meta(layout, uuid, time.time_ns()), self.mode, progress)
            with self._lock():
                there = entries.look(self.path, own_name)
                gone = None
                if there.state not in (State.MISSING, State.LEAVING) and not replaces:
                    made.discard()
                    return None
                if there.state is not State.MISSING:
                    gone = removal.take_down(self.path, there)
                hold = None
                if entries.is_bounded(own_name, spec):
                    hold = building.take_hold(made.live_lock, spec.max_clients)
                if layout is not None:
                    self._open_for_use(made, own_name, uuid)
                os.rename(made.path, there.path)
        except BaseException:
            made.discard()
            raise
        finally:
            made.close()
        if gone is not None:
            removal.remove_tree(gone)
        if layout is None:
            core.stopping_point("declared")
        return Created(self.require(own_name), True, hold)

    def _open_for_use(self, made: Building, name: str, uuid: bytes) -> None:
        """What can be done only when the name is sure: identity, and what lies outside the root."""
        made.set_generation_base(stamps.reserve_stamp(self.path, name, self._modes) + 1)
        doorbell.create_semaphores(uuid, self.mode)

    def _publish(self, made: Building, declared: Entry, meta: Meta) -> None:
        self._open_for_use(made, declared.name, meta.uuid)
        for file in (*meta.layout.files, names.META):
            if file != names.LIVE_LOCK:
                os.rename(os.path.join(made.path, file), os.path.join(declared.path, file))
        os.unlink(os.path.join(declared.path, names.DECLARATION))

    def _lost(self, winner: Entry, schema: Schema) -> Created:
        assert winner.spec is not None
        assert winner.spec.schema is not None
        differences = winner.spec.schema.differences(schema)
        if differences:
            raise RecordError(
                f"Buffer {winner.name!r} got its fields from another writer's first record: "
                f"{'; '.join(differences)}."
            )
        return Created(winner, False)

    def unknown(self, name: str) -> NoSuchBufferError:
        """The error for a name that nothing bears; it lists known ones."""
        known = [entry.name for entry in self.list() if entry.state is not State.FOREIGN]
        shown = ", ".join(known[:SHOWN_NAMES]) or "none"
        more = f" and {len(known) - SHOWN_NAMES} more" if len(known) > SHOWN_NAMES else ""
        return NoSuchBufferError(
            f"No buffer {name!r} in {self.path}; known there: {shown}{more}. Create it, or name "
            f"another root ({names.ROOT_VARIABLE})."
        )

    def _lock(self) -> AbstractContextManager[None]:
        return administration_lock(self.path, self.mode, self.lock_timeout)


def _checked_layout(spec: BufferSpec, name: str | None, exist: str) -> Layout | None:
    if exist not in get_args(Exist):
        raise SpecError(f"exist must be one of {', '.join(get_args(Exist))}, got {exist!r}.")
    if name is not None:
        names.check_name(name)
    if isinstance(spec.storage, MemmapStorage):
        raise SpecError("storage: memory-mapped files are not served yet; use SharedStorage.")
    return None if spec.schema is None else Layout.of(spec)
