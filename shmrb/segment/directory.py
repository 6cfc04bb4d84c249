"""A root: creating, declaring, publishing, adopting and dropping buffers; floor F3.

Since every name is given under the root's lock, an ordinary rename onto a missing name is enough;
nobody needs renameat2's NOREPLACE, which not every file system has.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid as uuids
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from shmrb import core
from shmrb.errors import (
    AlreadyExistsError,
    RecordError,
    ShmrbError,
    SpecError,
    StaleAttachmentError,
)
from shmrb.schema import Schema
from shmrb.segment import boot, building, doorbell, entries, names, removal, stamps, where
from shmrb.segment.building import Building, Progress
from shmrb.segment.entries import Entry, State
from shmrb.segment.layout import PAGE_BYTES, Declaration, Layout, Meta
from shmrb.segment.place import Place
from shmrb.segment.removal import Leftover
from shmrb.segment.room import NO_ROOM, no_room
from shmrb.spec import BufferSpec, MemmapStorage

Exist = Literal["attach", "error", "replace"]

# Seconds that closing a handle may wait for the administration lock.
CLOSE_WAIT_S = 1.0


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


class Root(Place):
    """A directory of buffers, for those that make, find and drop them."""

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
                if found.state is State.MISSING and isinstance(spec.storage, MemmapStorage):
                    # Its door is on tmpfs, and goes with the machine's memory.
                    found = Root(spec.storage.directory).find(name)
                if found.state is not State.MISSING:
                    try:
                        return self._use(found, spec, exist)
                    except StaleAttachmentError:
                        continue  # replaced or dropped meanwhile: what is there now?
            created = self._build(
                spec, layout, name, replaces=exist == "replace", progress=progress
            )
            if created is not None:
                return created

    def adopt(self, place: str, name: str) -> Entry:
        """Give a buffer in a directory on a disk its name in this root.

        Raises:
            AlreadyExistsError: handles of another buffer of this name could meet its records.
            NoSuchBufferError: it is gone.
        """
        with self.holding(name, place) as now:
            there = entries.look(place, name)
            if there.state in (State.MISSING, State.LEAVING):
                raise self.unknown(name)
            assert there.uuid is not None
            if now.state is State.LEAVING:
                for gone in removal.take_down(self.path, now):
                    removal.remove_tree(gone)
            if now.state in (State.MISSING, State.LEAVING):
                if stamps.read_stamp(self.path, name) > stamps.read_stamp(place, name):
                    raise AlreadyExistsError(
                        f"{there.path} holds a buffer {name!r} from before another one of this "
                        f"name was dropped in {self.path}, whose handles would match its records. "
                        "Take another name, or replace it (exist='replace')."
                    )
                with self._room_for_name(name, place, uuids.uuid4().hex) as door:
                    assert door is not None
                    doorbell.create_semaphores(there.uuid, self.mode)
                    os.rename(door, self.path_of(name))
        return self.require(name)

    def publish_declared(self, name: str, schema: Schema, uuid: bytes) -> Created:
        """Reserve the memory of a declared buffer, now that its first record has come.

        Of two who do so at a time one wins. The files get their names one by one and `meta` last:
        until then the buffer is still only declared, for whoever looks and after a kill.

        Args:
            name: of the buffer.
            schema: its fields.
            uuid: its identity: another buffer under the name is left as it is.

        Raises:
            RecordError: another writer was first, with other fields.
            CapacityError: there is no room; the declaration stays.
            StaleAttachmentError: the buffer is gone, and another may bear its name.
        """
        found = self._same(self.find(name), name, uuid)
        if found.state is State.READY:
            return self._lost(found, schema)
        assert found.declaration is not None
        spec = found.declaration.spec.with_schema(schema)
        meta = Meta(Layout.of(spec), found.declaration.uuid, found.declaration.created_ns)
        with self.lock_of(found.place):
            made = Building.start(found.place, 1, self.modes)
        try:
            made.reserve_and_fill(meta, self.mode)
            with self.holding(name) as there:
                now = self._same(there, name, uuid)
                if now.state is State.READY:
                    return self._lost(now, schema)
                self._publish(made, now, meta)
        finally:
            made.close()
            made.discard()
        return Created(self.require(name), True)

    def _same(self, found: Entry, name: str, uuid: bytes) -> Entry:
        """What was found, if it is the buffer of that identity.

        Raises:
            StaleAttachmentError: it is not.
        """
        is_gone = found.state in (State.MISSING, State.LEAVING)
        if found.uuid == uuid and not is_gone:
            return found
        if is_gone:
            what = f"Buffer {name!r} is gone from {self.path}: it was dropped"
        else:
            what = f"Another buffer bears the name {name!r} now: it was dropped and created anew"
        raise StaleAttachmentError(f"{what} since this handle found it. Attach again.")

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
        with self.holding(name) as found:
            if found.state is State.MISSING:
                raise self.unknown(name)
            if found.state is not State.LEAVING and not force:
                removal.refuse_if_in_use(found)
            gone = removal.take_down(self.path, found)
        removal.remove_trees(gone)

    def leftovers(self, prefix: str = "") -> tuple[Leftover, ...]:
        """What dead creators and interrupted drops left, without touching it.

        Args:
            prefix: only buffers called so and what lies below it, and what bears no name yet or
                no more, which is nobody's.
        """
        if not os.path.isdir(self.path):
            return ()
        with self.lock_of(self.path):
            return tuple(removal.find_leftovers(self.path, prefix))

    def reclaim(self, prefix: str = "") -> tuple[Leftover, ...]:
        """Remove the leftovers that `leftovers` finds; those that are not ours to remove stay.

        Returns:
            What was removed.
        """
        if not os.path.isdir(self.path):
            return ()
        taken: dict[Leftover, list[str]] = {}
        with self.lock_of(self.path):
            for leftover in tuple(removal.find_leftovers(self.path, prefix)):
                with contextlib.suppress(OSError, ShmrbError), self.inner_locks(leftover.place):
                    taken[leftover] = removal.clear(self.path, leftover)
        for paths in taken.values():
            removal.remove_trees(paths)
        return tuple(taken)

    def reclaim_bounded(self, name: str) -> None:
        """Remove this buffer if it was bounded and nobody is left.

        Who closes a handle is not made to wait long for it: the next creation tries again. A root
        that was removed meanwhile stays away: taking its lock would make it anew.
        """
        if not os.path.isdir(self.path):
            return
        with self._for_closing().holding(name) as found:
            if found.state is State.MISSING or not removal.is_abandoned(found):
                return
            gone = removal.take_down(self.path, found)
        removal.remove_trees(gone)

    def settle(self, entry: Entry) -> None:
        """Have a buffer on a disk written out and marked so, if nobody has it any more."""
        lock = partial(self._for_closing().lock_of, entry.place)
        boot.settle(entry.path, lambda: any(True for _ in entry.held_slots()), lock)

    def _for_closing(self) -> Root:
        """This root for somebody who shall not wait long."""
        return Root(self.path, mode=self._mode, lock_timeout=min(self.lock_timeout, CLOSE_WAIT_S))

    def _use(self, found: Entry, spec: BufferSpec, exist: Exist) -> Created:
        """The buffer that is there already, if it is the one that is asked for."""
        assert found.spec is not None
        if exist == "error":
            raise AlreadyExistsError(
                f"Buffer {found.name!r} exists already in {found.place}. Attach to it, drop it, or "
                "take another name."
            )
        differences = found.spec.differences(spec)
        if differences:
            raise AlreadyExistsError(
                f"Buffer {found.name!r} exists already in {found.place}, described otherwise: "
                f"{'; '.join(differences)}. Ask for the same, drop it, or take another name."
            )
        if found.state is State.UNCLEAN:
            raise boot.unclean(found.path)
        if found.door is None and found.place != self.path:
            found = self.adopt(found.place, found.name)
        if found.state is State.DECLARED and spec.schema is not None:
            assert found.uuid is not None
            return self.publish_declared(found.name, spec.schema, found.uuid)
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
        place = self._prepared_place(spec, layout)
        with self.lock_of(place):
            made = Building.start(place, spec.max_clients + 1, self.modes)
        own_name = names.private_name(made.build) if name is None else name
        uuid = bytes.fromhex(made.build)
        try:
            if layout is None:
                made.write_declaration(Declaration(spec, uuid, time.time_ns()), self.mode)
            else:
                made.reserve_and_fill(Meta(layout, uuid, time.time_ns()), self.mode, progress)
            with self.holding(own_name, place) as there:
                taken = self._taken(there, place)
                if not replaces and any(one.state is not State.LEAVING for one in taken):
                    made.discard()
                    return None
                with self._room_for_name(own_name, place, made.build) as door:
                    gone = [path for one in taken for path in removal.take_down(self.path, one)]
                    hold = None
                    if entries.is_bounded(own_name, spec):
                        hold = building.take_hold(made.live_lock, spec.max_clients)
                    if layout is not None:
                        self._open_for_use(made, own_name, uuid, place)
                    os.rename(made.path, os.path.join(place, names.directory_name(own_name)))
                    if door is not None:
                        boot.keep_names(place)
                        os.rename(door, self.path_of(own_name))
        except BaseException:
            made.discard()
            raise
        finally:
            made.close()
        removal.remove_trees(gone)
        if layout is None:
            core.stopping_point("declared")
        return Created(self.require(own_name), True, hold)

    def _prepared_place(self, spec: BufferSpec, layout: Layout | None) -> str:
        """The directory in which the buffer will lie; on a disk, made if it is not there."""
        if not isinstance(spec.storage, MemmapStorage):
            return self.path
        place = spec.storage.directory
        beside = Root(place, mode=self.mode, lock_timeout=self.lock_timeout)
        if os.path.exists(os.path.join(place, names.ADMINISTRATION_LOCK)):
            beside.reclaim()
        files = layout.all_files if layout is not None else {}
        where.prepare_place(place, self.path, self.directory_mode, files)
        return place

    def _taken(self, there: Entry, place: str) -> list[Entry]:
        """What stands where a new buffer shall be: under its name here, and on its disk."""
        found = [] if there.state is State.MISSING else [there]
        if place not in (self.path, there.place):
            beside = entries.look(place, there.name)
            found += [] if beside.state is State.MISSING else [beside]
        return found

    @contextlib.contextmanager
    def _room_for_name(self, name: str, place: str, build: str) -> Iterator[str | None]:
        """Take all the room that a name needs before anything is changed: its stamps, its door.

        Gives the door, under no buffer's name yet; None for a buffer that lies in the root.
        """
        door = None
        try:
            for each in {self.path, place}:
                stamps.reserve_stamp(each, name, self.modes)
            if place != self.path:
                target = os.path.join(place, names.directory_name(name))
                door = where.prepare_door(self.path, build, target, self.modes)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise no_room(self.path, {names.WHERE: PAGE_BYTES}, error.errno) from None
        try:
            yield door
        finally:
            if door is not None:
                # Nothing is there any more if it got its name.
                removal.remove_tree(door)

    def _open_for_use(self, made: Building, name: str, uuid: bytes, place: str) -> None:
        """What can be done only when the name is sure: identity, and what lies outside the root."""
        places = {self.path, place}
        highest = max(stamps.reserve_stamp(each, name, self.modes) for each in places)
        for each in places:
            stamps.raise_stamp(each, name, highest)
        made.set_generation_base(highest + 1)
        doorbell.create_semaphores(uuid, self.mode)

    def _publish(self, made: Building, declared: Entry, meta: Meta) -> None:
        self._open_for_use(made, declared.name, meta.uuid, declared.place)
        mark = (names.BOOT,) if declared.is_lasting else ()
        for file in (*meta.layout.files, *mark, names.META):
            if file != names.LIVE_LOCK:
                os.rename(os.path.join(made.path, file), os.path.join(declared.path, file))
        os.unlink(os.path.join(declared.path, names.DECLARATION))
        if declared.is_lasting:
            boot.keep_names(declared.path)

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


def _checked_layout(spec: BufferSpec, name: str | None, exist: str) -> Layout | None:
    if exist not in get_args(Exist):
        raise SpecError(f"exist must be one of {', '.join(get_args(Exist))}, got {exist!r}.")
    if name is not None:
        names.check_name(name)
    return None if spec.schema is None else Layout.of(spec)
