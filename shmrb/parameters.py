"""`Parameters`: the way back, from a learner to its collectors (floor F5).

A tree of arrays is one record of a buffer of its own; `trees` says how it is kept whole.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from shmrb import opening
from shmrb.attachment import Attachment
from shmrb.batches import Batch, BatchFormat
from shmrb.core import Status
from shmrb.errors import DeadlineError, LockTimeoutError, SpecError
from shmrb.likeness import is_mapping
from shmrb.opening import HandleOptions
from shmrb.records import RecordReader
from shmrb.schema import Schema, schema_like
from shmrb.spec import PARAMETER_SLOTS, SharedStorage
from shmrb.trees import UNPUBLISHED, Look, TreeSlots
from shmrb.waiting import Call, deadline_of

if TYPE_CHECKING:
    from typing_extensions import Self


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
        self._slots = TreeSlots(attachment, len(self._schema.fields))
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
        deadline = deadline_of(timeout, self._attachment.default_timeout)
        if not self._publishing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise LockTimeoutError(
                f"publish: another thread is publishing through this handle of {self.name}."
            )
        try:
            return self._slots.write(rows, version, deadline)
        finally:
            self._publishing.release()

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
        outcome = self._slots.find(self._attachment.segment or self._attachment.join(), newer_than)
        if outcome[0] == Status.EMPTY and not timeout > 0:
            return newer_than, None
        if outcome[0] != Status.OK:
            try:
                self._attachment.run(
                    lambda segment: self._slots.find(segment, newer_than),
                    Call("latest", until_records=True),
                    timeout,
                )
            except DeadlineError:
                return newer_than, None
        version, batch = self._slots.read(self._form, newer_than)
        return version, self._tree(batch)

    @property
    def version(self) -> int:
        """The newest version there is, -1 before the first."""
        look = self._slots.look(self._attachment.segment or self._attachment.join(), UNPUBLISHED)
        if isinstance(look, Look):
            return look.version
        self._attachment.run(lambda _: look, Call("version"))
        return UNPUBLISHED

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
