"""One client of one buffer: its mappings, its client slot, its bells; floor F3."""

from __future__ import annotations

import contextlib
import errno
import os
from functools import partial
from typing import Any

from shmrb import core
from shmrb.core import Bell as Which
from shmrb.core import ClientRole, Feature, Status
from shmrb.errors import (
    AttachError,
    FileSystemError,
    FormatMismatchError,
    NoSuchBufferError,
    NotReadyError,
    ShmrbError,
    SpecError,
)
from shmrb.segment import boot, entries, names
from shmrb.segment.directory import Root
from shmrb.segment.doorbell import Bell
from shmrb.segment.entries import Entry, State
from shmrb.segment.filesystem import unproven
from shmrb.segment.layout import CONSUMPTION_WORDS, Layout, start_levels
from shmrb.segment.mapping import Mapping
from shmrb.segment.opening import denied
from shmrb.segment.room import no_addresses
from shmrb.segment.where import open_buffer
from shmrb.spec import BufferSpec

# A buffer can be replaced while a client attaches; more often than this, something is wrong.
_ATTEMPTS = 20

# Which files a role maps for writing; the others it maps for reading only.
_WRITABLE = {
    ClientRole.MEMBER: frozenset(
        {names.CONTROL, names.SLOTS, names.PRIORITIES, names.CONSUMPTION, names.DATA}
    ),
    ClientRole.LEARNER: frozenset(
        {names.CONTROL, names.SLOTS, names.PRIORITIES, names.CONSUMPTION}
    ),
    ClientRole.OBSERVER: frozenset(),
}


class Member:
    """An attached client; `join` makes one.

    Attributes:
        name: of the buffer.
        role: "member", "learner" (cannot write records) or "observer" (cannot write anything, takes
            no client slot).
        segment: the native core's view; every call goes through it.
        layout: this process's own, checked copy of where things lie.
        uuid: the identity of the buffer, whatever bears its name later.
        client_name: what others see of this client.
    """

    def __init__(
        self, root: Root, entry: Entry, directory: int, role: ClientRole, client_name: str
    ) -> None:
        assert entry.meta is not None
        self._process = core.this_process()
        self._is_open = True
        self._root = root
        self._entry = entry
        self._role = role
        self._hold: core.HeldByte | None = None
        # Whether to see, when it leaves, that the disk has everything.
        self._settles = False
        self.name = entry.name
        self.uuid = entry.meta.uuid
        self.layout: Layout = entry.meta.layout
        self.client_name = client_name
        self._maps = self._map(directory)
        self.segment = core.Segment(self._geometry())
        self._bells: dict[Which, Bell] = {}

    @classmethod
    def join(
        cls,
        root: Root | str,
        name: str,
        *,
        role: str = "member",
        client_name: str = "",
        hint: int = 0,
        hold: core.HeldByte | None = None,
    ) -> Member:
        """Attach this process to the buffer that bears `name`.

        Args:
            root: where it lies.
            name: of the buffer.
            role: "member", "learner" or "observer".
            client_name: a label for others, cut to 63 bytes.
            hint: the client slot to try first.
            hold: what the creator of a bounded buffer got; `close` lets go of it.

        Raises:
            NoSuchBufferError: nothing bears the name, or the creator that bounds its life is gone.
            NotReadyError: it is declared only.
            FormatMismatchError: what lies there is not a buffer of this format.
            FileSystemError: nobody could prove there that this client lives.
            PermissionDeniedError: the files are not open to this user in this role.
            UncleanError: it lies on a disk, and its machine stopped while it was open.
            CapacityError: this process has too few addresses for it.
            AttachError: all client slots are taken.
        """
        try:
            wanted = ClientRole[role.upper()]
        except (KeyError, AttributeError):
            raise SpecError(
                f"role must be one of member, learner, observer, got {role!r}."
            ) from None
        root = root if isinstance(root, Root) else Root(root)
        for _ in range(_ATTEMPTS):
            member = cls._try_join(root, name, wanted, client_name, hint)
            if member is not None:
                member._hold = hold
                return member
        raise NotReadyError(
            f"Buffer {name!r} in {root.path} was replaced {_ATTEMPTS} times while this client "
            "attached. Find out who replaces it."
        )

    @classmethod
    def _try_join(
        cls, root: Root, name: str, role: ClientRole, client_name: str, hint: int
    ) -> Member | None:
        """None if the buffer went away meanwhile."""
        with contextlib.ExitStack() as stack:
            try:
                found = stack.enter_context(open_buffer(root.path, name))
            except FileNotFoundError:
                raise root.unknown(name) from None
            path, directory = found.path, found.descriptor
            try:
                entry = entries.read_entry(name, path, directory, found.door)
                if entry.state is State.LEAVING:
                    raise root.unknown(name)
                _check_joinable(entry)
                member = cls(root, entry, directory, role, client_name)
                try:
                    member._take_slot(hint)
                    # The name is looked at after the slot is taken: whoever drops the buffer from
                    # now on finds this client. An open directory keeps its inode to itself.
                    if _is_named(path, directory):
                        return member
                except BaseException:
                    member._detach()
                    raise
                member._detach()
            except FileNotFoundError:
                return None
            except (FormatMismatchError, FileSystemError):
                # Files that are being removed look damaged, and a lock byte in the file of whoever
                # has the name by now proves nothing about this one's.
                if _is_named(path, directory):
                    raise
                return None
            except PermissionError as error:
                raise error if isinstance(error, ShmrbError) else denied(path) from None
        return None

    @property
    def spec(self) -> BufferSpec:
        """The description of the buffer."""
        return self.layout.spec

    @property
    def role(self) -> str:
        """ "member", "learner" or "observer"."""
        return self._role.name.lower()

    @property
    def token(self) -> int:
        """What this client's locks, claims and leases hold; 0 for an observer."""
        return self.segment.token

    def bell(self, which: Which) -> Bell:
        """The bell of one wait class."""
        return self._bells[which]

    def mapping(self, file: str) -> Mapping:
        """One of the mapped files, for whoever reads whole regions."""
        return self._maps[file]

    def close(self, *, settles: bool = True) -> None:
        """Detach: wait for calls under way, give the client slot back, unmap. Again: nothing.

        The last to leave a buffer on a disk has it written out, and the last to leave one whose
        creator is gone removes it.

        Args:
            settles: False: it is about to be dropped, so the disk need not have it.
        """
        if not self._is_open:
            return
        self._settles &= settles
        self._detach()
        self._leave()

    def _leave(self) -> None:
        if self._entry.is_bounded:
            # Not ours to remove, or somebody else is at it: then the next creation does it.
            with contextlib.suppress(ShmrbError, OSError):
                self._root.reclaim_bounded(self.name)
        elif self._settles:
            # Dropped meanwhile, or the disk fails: without the mark it is not served after the next
            # start of the machine, which is right.
            with contextlib.suppress(ShmrbError, OSError):
                self._root.settle(self._entry)

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def abandon(self) -> None:
        """In a forked child: forget what belongs to the parent, touching nothing shared."""
        self._is_open = False
        self.segment.abandon()
        for bell in self._bells.values():
            bell.abandon()
        for mapping in self._maps.values():
            mapping.close()

    def __del__(self) -> None:
        """The native view must not outlive the pages it points into."""
        if getattr(self, "segment", None) is None or not self._is_open:
            return
        if core.this_process() == self._process:
            self._detach()
            if self._settles:
                self._leave()
        else:
            self.abandon()

    def _detach(self) -> None:
        self._is_open = False
        self.segment.close()
        for bell in self._bells.values():
            bell.close()
        for mapping in self._maps.values():
            mapping.close()
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def _map(self, directory: int) -> dict[str, Mapping]:
        try:
            return {
                name: Mapping.open(
                    name,
                    size,
                    directory=directory,
                    writable=name in _WRITABLE[self._role],
                    where=self._entry.path,
                )
                for name, size in self.layout.files.items()
                if name != names.LIVE_LOCK
            }
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise no_addresses(self._entry.path, self.layout.total_bytes) from None

    def _geometry(self) -> dict[str, Any]:
        """What the native core needs to know, all from the private copy."""
        spec, regions = self.layout.spec, self.layout.regions
        assert spec.schema is not None
        priorities = self._maps.get(names.PRIORITIES)
        return {
            "ctl": self._maps[names.CONTROL].address,
            "slots": self._maps[names.SLOTS].address,
            "prio": priorities.address if priorities is not None else 0,
            "data": self._maps[names.DATA].address,
            "capacity": spec.capacity,
            "lanes": spec.lanes,
            "max_clients": spec.max_clients,
            "features": _features(spec),
            "writable": self._role is not ClientRole.OBSERVER,
            "data_writable": self._role is ClientRole.MEMBER,
            "clients": regions["clients"].offset,
            "lane_blocks": regions["lanes"].offset,
            "words": regions["words"].offset,
            "owners": regions["owners"].offset,
            "runs": regions["runs"].offset,
            "versions": regions["versions"].offset,
            "leaves": regions["leaves"].offset if priorities is not None else 0,
            "sums": self._levels("sums"),
            "minima": self._levels("minima"),
            "columns": [(column.offset, column.row_bytes) for column in self.layout.columns],
            "done_columns": [spec.schema.find(path) for path in spec.done_keys],
            "id_column": -1 if spec.traj_key is None else spec.schema.find(spec.traj_key),
            "starts": self._start_levels(),
            **self._consumption(),
        }

    def _consumption(self) -> dict[str, Any]:
        """Where consumption keeps what it keeps, if it does."""
        file = self._maps.get(names.CONSUMPTION)
        if file is None:
            return {}
        return {
            "consumption": file.address,
            "consumption_arrays": [self.layout.regions[n].offset for n in CONSUMPTION_WORDS],
            "consume_after": self.spec.consume_after_n_samples,
        }

    def _levels(self, tree: str) -> list[int]:
        """Where the levels of a tree begin, the root last; empty where there is no such tree."""
        regions = self.layout.regions
        return [region.offset for name, region in regions.items() if name.startswith(f"{tree}.")]

    def _start_levels(self) -> list[tuple[int, int]]:
        """Where the levels of the start counts begin, and how many counts a lane has in each."""
        offsets = self._levels("starts")
        if not offsets:
            return []
        return list(zip(offsets, start_levels(self.spec.lane_capacity), strict=True))

    def _take_slot(self, hint: int) -> None:
        """Become a client.

        Raises:
            FileNotFoundError: the buffer is dead, or its files are gone.
        """
        live_lock = self._entry.live_lock
        status, value, *_ = self.segment.attach(
            live_lock, hint, os.getpid(), int(self._role), self.client_name
        )
        if status == Status.FULL:
            raise AttachError(
                f"Buffer {self.name!r}: all {self.spec.max_clients} client slots are taken. Close "
                "handles that are not needed, or create it with a larger max_clients."
            )
        if status == Status.UNPROVEN:
            raise unproven(live_lock)
        if status == Status.SYSTEM:
            raise OSError(value, os.strerror(value), live_lock)
        if status != Status.OK:
            raise AttachError(f"Buffer {self.name!r}: attaching failed: {Status(status).name}.")
        if not self.segment.is_ready():
            raise FileNotFoundError
        if self._entry.is_lasting and self._role is not ClientRole.OBSERVER:
            boot.take_up(self._entry.path, partial(self._root.lock_of, self._entry.place))
            self._settles = True
        has_bells = self._role is not ClientRole.OBSERVER
        records, room = names.semaphore_names(self.uuid) if has_bells else (None, None)
        self._bells = {
            Which.RECORDS: Bell(self.segment, Which.RECORDS, records),
            Which.ROOM: Bell(self.segment, Which.ROOM, room),
        }


def _is_named(path: str, directory: int) -> bool:
    """Whether the open directory still has that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(directory))
    except FileNotFoundError:
        return False


def _features(spec: BufferSpec) -> int:
    features = 0
    if spec.needs_control_lock:
        features |= Feature.ONE_LOCK
    if spec.priorities is not None:
        features |= Feature.PRIORITIES
    if spec.limiter is not None:
        features |= Feature.LIMITER
    if spec.consume_after_n_samples is not None:
        features |= Feature.CONSUMPTION
    if spec.refills_consumed:
        features |= Feature.REFILLS
    return features


def _check_joinable(entry: Entry) -> None:
    if entry.state is State.DECLARED:
        raise NotReadyError(
            f"Buffer {entry.name!r} is only declared: it has no fields yet. Its first write gives "
            "it some."
        )
    if entry.state is State.UNCLEAN:
        raise boot.unclean(entry.path)
    if entry.is_bounded and not entry.creator_lives:
        raise NoSuchBufferError(
            f"Buffer {entry.name!r} takes no new members: it ends with its creator, who is gone."
        )
