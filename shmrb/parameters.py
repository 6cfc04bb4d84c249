"""`Parameters`: the way back, from a learner to its collectors (floor F5).

A tree of arrays is one record of a buffer with three slots, all under live tickets for good. A
publisher writes whole trees into any slot but that of the newest whole one, and the largest version
among whole words is the newest; so a reader always finds a whole tree, whatever moment a publisher
dies at, and so does the next publisher.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shmrb import core, opening
from shmrb.attachment import Attachment
from shmrb.batches import Batch, BatchFormat
from shmrb.core import SLICE_NS, Outcome, Segment, Status
from shmrb.errors import DeadlineError, LaneBusyError, SpecError
from shmrb.likeness import is_mapping
from shmrb.opening import HandleOptions
from shmrb.records import RecordReader, Rows
from shmrb.schema import Schema, schema_like
from shmrb.segment import snapshot
from shmrb.spec import PARAMETER_SLOTS, SharedStorage
from shmrb.waiting import Call, describe

if TYPE_CHECKING:
    from typing_extensions import Self

# Nothing was published, or nothing is known.
UNPUBLISHED = -1
HIGHEST_VERSION = (1 << 63) - 1

NOTHING_YET: Outcome = (int(Status.EMPTY), 0, 0, 0, 0)


class _Newest(NamedTuple):
    slot: int
    version: int


class Parameters:
    """Named arrays that one process publishes whole and any number of processes read.

    Args:
        name: what others open it by, 1 to 4 parts joined by "/".
        like: a tree of the arrays to come, such as `net.state_dict()`: nested dictionaries of
            arrays, tensors or numbers. Creates the memory, or uses what is there if its arrays are
            the same. None: waits for somebody to create it.
        timeout: seconds to wait for the name without `like`, and for calls that give none.
            None: the configured default.
        format: "torch" gives tensors, "numpy" arrays, without importing torch.
        root: directory of the segments; None: as for `ReplayBuffer`.
        client_name: a label in listings and errors.

    Raises:
        SpecError: `like` has leaves that no column can hold.
        NoSuchBufferError: it did not appear in time.
        AlreadyExistsError: the name is taken by arrays of other names, dtypes or shapes, or by a
            replay buffer; the message lists the differences.
        AttachError: the name is that of a replay buffer.

    Concurrency: one living process publishes at a time, any number read; threads may share a
    handle. A pickled handle opens the same parameters where it lands, and after a fork the child's
    handle opens them anew.
    """

    def __init__(
        self,
        name: str,
        *,
        like: Any = None,
        timeout: float | None = None,
        format: str = "torch",
        root: str | None = None,
        client_name: str | None = None,
    ) -> None:
        seconds = opening.DEFAULT_TIMEOUT_S if timeout is None else timeout
        options = HandleOptions(format=format, default_timeout=seconds, client_name=client_name)
        if like is None:
            attachment = opening.attach(name, seconds, root, options, purpose="parameters")
        else:
            spec = opening.describe(
                storage=SharedStorage(PARAMETER_SLOTS),
                schema=_schema_of(like),
                purpose="parameters",
            )
            attachment = opening.create(spec, name, "attach", root, options)
        self._open(attachment, options)

    @classmethod
    def _attached(cls, attachment: Attachment, options: HandleOptions) -> Parameters:
        handle = cls.__new__(cls)
        handle._open(attachment, options)
        return handle

    def _open(self, attachment: Attachment, options: HandleOptions) -> None:
        assert attachment.spec.schema is not None
        self._attachment = attachment
        self._options = options
        self._schema: Schema = attachment.spec.schema
        self._reader = RecordReader(self._schema)
        self._form = BatchFormat(self._schema, options.format)
        self._skip_columns = [0] * len(self._schema.fields)
        # Versions only grow, also for a reader that is slower than the publisher.
        self._seen = UNPUBLISHED
        self._publishing = threading.Lock()
        _handles.add(self)

    # ---- publishing ------------------------------------------------------------------------------

    def publish(
        self, tree: Any, version: int | None = None, *, timeout: float | None = None
    ) -> int:
        """Makes a whole tree the newest one.

        Args:
            tree: exactly the names, dtypes and shapes of `like`.
            version: larger than every one published before; None: the next one, 0 at first.
            timeout: seconds to wait for a slot that a stopped client holds.

        Returns:
            The version. It survives this process.

        Raises:
            RecordError: the tree has other leaves; nothing is published.
            SpecError: the version is not larger than the newest.
            LaneBusyError: another living client publishes; the message names it.

        Cost: one copy of the tree into shared memory.
        """
        rows = self._reader.record(tree)
        with self._publishing:
            segment = self._attachment.segment or self._attachment.join()
            self._take_place(segment)
            newest, others = self._places(segment)
            stamp = np.array([_next_version(version, newest.version)], np.int64)
            self._write(others, rows, core.address(stamp), timeout)
            return int(stamp[0])

    def _take_place(self, segment: Segment) -> None:
        """Only the holder of the lane's lease publishes; the place of a dead one is free."""
        status, _, _, who, _ = segment.lease(0)
        if status != Status.BUSY:
            return
        owner = snapshot.client(segment, who)
        named = f"client {who:#x}" if owner is None else describe(owner)
        raise LaneBusyError(
            f"publish: {self.name} is published by {named}, and has one publisher at a time. "
            "Publish from that process, or end it: the place of a dead one is free."
        )

    def _places(self, segment: Segment) -> tuple[_Newest, list[int]]:
        """The newest tree, and the other slots, the one to write first."""
        versions = self._versions(segment)
        slots = sorted(range(PARAMETER_SLOTS), key=versions.__getitem__)
        newest = slots.pop()
        if versions[newest] == UNPUBLISHED:
            return _Newest(newest, UNPUBLISHED), [newest, *slots]
        return _Newest(newest, versions[newest]), slots

    def _write(self, slots: list[int], rows: Rows, stamp: int, timeout: float | None) -> None:
        turn = 0

        def write(segment: Segment) -> Outcome:
            # Who recovers a dead publisher's slot may be stopped while it holds it: there is
            # another one.
            nonlocal turn
            slot = slots[turn % len(slots)]
            turn += 1
            return segment.write(slot, rows.addresses, stamp, SLICE_NS)

        self._attachment.run(write, Call("publish"), timeout)

    # ---- reading ---------------------------------------------------------------------------------

    def latest(self, newer_than: int = UNPUBLISHED, timeout: float = 0.0) -> tuple[int, Any]:
        """The newest tree, if it is newer than what the caller has.

        Args:
            newer_than: the version that the caller has; -1: any will do.
            timeout: seconds to wait for a newer one; 0: do not wait.

        Returns:
            Its version and the tree: nested dictionaries as they were published, in memory of the
            caller's. (newer_than, None) when none came in time.

        Raises:
            LockTimeoutError: the publisher overtook every copy until the handle's timeout.

        Cost: one copy when there is a newer one, else a look at three words.
        """
        outcome = self._find(self._attachment.segment or self._attachment.join(), newer_than)
        if outcome[0] == Status.EMPTY:
            if not timeout > 0:
                return newer_than, None
            try:
                self._attachment.run(
                    lambda segment: self._find(segment, newer_than),
                    Call("latest", until_records=True),
                    timeout,
                )
            except DeadlineError:
                return newer_than, None
        return self._read(newer_than)

    @property
    def version(self) -> int:
        """The newest version there is, -1 before the first."""
        segment = self._attachment.segment or self._attachment.join()
        return self._newest(segment, UNPUBLISHED).version

    def _find(self, segment: Segment, newer_than: int) -> Outcome:
        newest = self._newest(segment, newer_than)
        if newest.version <= newer_than:
            return NOTHING_YET
        return int(Status.OK), newest.slot, 0, 0, 0

    def _read(self, newer_than: int) -> tuple[int, Any]:
        """Copies the newest tree; one that is overwritten meanwhile is looked for again."""
        batch = self._form.allocate(1)
        version = np.empty(1, np.int64)
        index = np.asarray(batch.index)

        def read(segment: Segment) -> Outcome:
            index[0] = self._newest(segment, newer_than).slot
            outcome = segment.read(
                batch.index_address,
                1,
                batch.addresses,
                batch.generation_address,
                core.address(version),
                0,
                0,
            )
            if outcome[0] != Status.OK:
                return outcome
            whole = batch.generation[0] >= 0 and version[0] > newer_than
            return outcome if whole and version[0] >= self._seen else _OVERTAKEN

        self._attachment.run(read, Call("latest"))
        self._seen = max(self._seen, int(version[0]))
        return int(version[0]), self._tree(batch)

    def _newest(self, segment: Segment, newer_than: int) -> _Newest:
        """The newest whole tree; its version is -1 when there is none.

        Looking at three slots takes longer than publishing into one of them may. So what is found
        counts when it is as new as the caller wants, else only if nothing was published meanwhile.
        """
        enough = max(newer_than + 1, self._seen)
        while True:
            before = self._stamps(segment)
            versions = self._versions(segment)
            newest = max(range(PARAMETER_SLOTS), key=versions.__getitem__)
            if versions[newest] >= max(enough, 0) or before == self._stamps(segment):
                return _Newest(newest, versions[newest])

    def _versions(self, segment: Segment) -> list[int]:
        """The version of each whole slot, -1 for others."""
        found = np.empty((2, PARAMETER_SLOTS), np.int64)
        generation, version = core.address(found), core.address(found) + found.strides[0]
        places = _SLOTS_ADDRESS
        for slot in range(PARAMETER_SLOTS):
            at = 8 * slot
            # One by one and without patience: a slot that is being written holds up nobody.
            status, *_ = segment.read(
                places + at, 1, self._skip_columns, generation + at, version + at, 0, 0
            )
            if status != Status.OK:
                found[1, slot] = UNPUBLISHED
        return [int(number) for number in found[1]]

    def _stamps(self, segment: Segment) -> list[int]:
        stamps = np.empty(PARAMETER_SLOTS, np.int64)
        segment.generations(_SLOTS_ADDRESS, PARAMETER_SLOTS, core.address(stamps))
        return [int(stamp) for stamp in stamps]

    def _tree(self, batch: Batch) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for field, leaf in zip(self._schema.fields, batch.leaves, strict=True):
            node = tree
            for part in field.path[:-1]:
                node = node.setdefault(part, {})
            node[field.path[-1]] = leaf.reshape(field.shape)
        return tree

    # ---- life ------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What others open it by."""
        return self._attachment.address.name

    @property
    def schema(self) -> Schema:
        """The names, dtypes and shapes of the tree."""
        return self._schema

    def close(self) -> None:
        """Gives the client slot and the publisher's place back; what is published stays."""
        self._attachment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._attachment.is_closed else repr(self.name)
        return f"Parameters({state}, {len(self._schema.fields)} arrays)"

    def __reduce__(self) -> Any:
        """A handle travels as a name."""
        return _unpickle, (self._attachment.address, self._options)


_OVERTAKEN: Outcome = (int(Status.AGAIN), 0, 0, 0, 0)
_SLOTS = np.arange(PARAMETER_SLOTS, dtype=np.int64)
_SLOTS_ADDRESS = core.address(_SLOTS)

_handles: weakref.WeakSet[Parameters] = weakref.WeakSet()


def _after_fork() -> None:
    for handle in list(_handles):
        handle._publishing = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _unpickle(address: opening.Address, options: HandleOptions) -> Parameters:
    return Parameters._attached(opening.reattach(address, options), options)


def _schema_of(like: Any) -> Schema:
    if not is_mapping(like):
        raise SpecError(
            f"like: expected a tree of named arrays, such as net.state_dict(), got "
            f"{type(like).__name__}. Give its parts names in a dictionary."
        )
    return schema_like(like)


def _next_version(asked: int | None, newest: int) -> int:
    if asked is None:
        return newest + 1
    if not newest < asked <= HIGHEST_VERSION:
        raise SpecError(
            f"publish: versions only grow: expected one above {newest}, got {asked}. Leave it out "
            "to get the next."
        )
    return int(asked)
