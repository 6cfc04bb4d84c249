"""A handle's link to its buffer: joins, again after a fork, and makes waiting calls (floor F5)."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from shmrb.core import HeldByte, Outcome, Rng, Segment, Status, new_rng
from shmrb.errors import (
    AttachError,
    ClosedError,
    DeadlineError,
    EmptyBufferError,
    NoSuchBufferError,
    NotReadyError,
    ShmrbError,
    StaleAttachmentError,
)
from shmrb.schema import Schema
from shmrb.segment import boot
from shmrb.segment.directory import Root
from shmrb.segment.entries import State
from shmrb.segment.member import Member
from shmrb.spec import BufferSpec, MemmapStorage
from shmrb.waiting import DEFAULT_TIMEOUT_S, Call, Wait, check_timeout, deadline_of, post

# How often an attacher looks whether the name has appeared: a name that is not there has no bell.
LOOK_EVERY_S = 0.02
# Names that an error lists.
SHOWN_NAMES = 8


@dataclass(frozen=True, slots=True)
class Address:
    """Where a buffer is found again, by whoever was handed this.

    Attributes:
        root: directory of the segments.
        name: the buffer's name.
        uuid: its identity; another buffer under the name is not it.
    """

    root: str
    name: str
    uuid: bytes


class Attachment:
    """One handle's client slot and mappings; threads may share it.

    Args:
        address: which buffer.
        spec: its description, without schema as long as it is only declared.
        role: "member", "learner" or "observer".
        client_name: a label for messages and listings.
        default_timeout: seconds for calls that give none.
        seed: of this handle's random stream; None: entropy.
        hold: the byte of a creator whose buffer ends with it; the member that joins holds it on.

    Attributes:
        guard: for what the threads that share a handle must agree on; a forked child has its own.
        segment: None whenever the next call has more to do than to use it: not joined, forked,
            closed.
    """

    def __init__(
        self,
        address: Address,
        spec: BufferSpec,
        *,
        role: str,
        client_name: str,
        default_timeout: float,
        seed: int | None,
        hold: HeldByte | None = None,
    ) -> None:
        self.address = address
        self.spec = spec
        self.role = role
        self.client_name = client_name
        self.default_timeout = default_timeout
        self.rng: Rng = new_rng(seed)
        self.guard = threading.RLock()
        self.segment: Segment | None = None
        self._hold = hold
        self._member: Member | None = None
        self._closed = False
        _attachments.add(self)
        if hold is not None:
            _bounded.add(address)

    @property
    def is_joined(self) -> bool:
        """Whether memory is mapped; a declared buffer has none."""
        return self._member is not None

    @property
    def is_closed(self) -> bool:
        """Whether the handle was closed."""
        return self._closed

    @property
    def member(self) -> Member:
        """The joined member.

        Raises:
            EmptyBufferError: the buffer is declared and nobody has written to it.
            ClosedError, StaleAttachmentError, NotReadyError.
        """
        if self.segment is None:
            self.join()
        assert self._member is not None
        return self._member

    def join(self) -> Segment:
        """Takes a client slot, or finds out why there is nothing to join."""
        with self.guard:
            if self.segment is not None:
                return self.segment
            if self._closed:
                raise ClosedError(f"this handle of {self.address.name} was closed.")
            root = Root(self.address.root)
            entry = root.find(self.address.name)
            if entry.state is State.DECLARED and entry.uuid == self.address.uuid:
                raise EmptyBufferError(
                    f"{self.address.name}: no record yet. The buffer is declared without a schema; "
                    "its first write decides the fields and reserves the memory."
                )
            if entry.state is not State.READY or entry.uuid != self.address.uuid:
                raise self._gone()
            member = Member.join(
                root,
                self.address.name,
                role=self.role,
                client_name=self.client_name,
                hold=self._hold,
            )
            # The member's from now on; a join that fails leaves the creator alive.
            self._hold = None
            if member.uuid != self.address.uuid:
                member.close()
                raise self._gone()
            self._member = member
            self.spec = member.spec
            self.segment = member.segment
            return member.segment

    def try_join(self) -> Segment | None:
        """Joins, unless the buffer is declared and nobody has written to it."""
        try:
            return self.segment or self.join()
        except EmptyBufferError:
            return None

    def await_join(self, call: Call, timeout: float | None) -> Segment:
        """Joins as soon as somebody's first write has reserved the memory.

        Raises:
            DeadlineError: nobody wrote in time.
        """
        started = time.monotonic()
        deadline = deadline_of(timeout, self.default_timeout)
        while True:
            try:
                return self.join()
            except EmptyBufferError:
                if time.monotonic() >= deadline:
                    raise DeadlineError(
                        f"{call.name}: waited {time.monotonic() - started:.1f} s for a first "
                        f"record; {self.address.name} is declared and nobody has written to it."
                    ) from None
            time.sleep(LOOK_EVERY_S)

    def publish(self, schema: Schema) -> None:
        """First write into a declared buffer: reserves its memory, unless somebody was faster."""
        if self.segment is None and not self._closed:
            Root(self.address.root).publish_declared(self.address.name, schema, self.address.uuid)
        self.join()

    def run(
        self,
        op: Callable[[Segment], Outcome],
        call: Call,
        timeout: float | None = None,
    ) -> int:
        """Makes a native call and waits as long as it may. Its value.

        Raises:
            DeadlineError: `timeout` seconds (None: the handle's default) passed.
            ClosedError, StaleAttachmentError, EmptyBufferError, ReadOnlyError, CorruptionError.
        """
        if timeout is not None:
            check_timeout(timeout)
        outcome = op(self.segment or self.join())
        if outcome[0] == 0 and not outcome[4]:
            return outcome[1]
        if outcome[0] == Status.OK:
            member = self._member  # None if another thread closed the handle: the call is done
            if member is not None:
                post(member, outcome[4])
            return outcome[1]
        deadline = deadline_of(timeout, self.default_timeout)
        return Wait(self.member, call, deadline).until(op, outcome)

    def _gone(self) -> StaleAttachmentError:
        return StaleAttachmentError(
            f"the buffer {self.address.name} that this handle belongs to is gone from "
            f"{self.address.root}. Attach again if there is a new one."
        )

    def close(self) -> None:
        """Gives the client slot back; calls of other threads end first. Again: nothing."""
        self._closed = True
        with self.guard:
            member, self._member, self.segment = self._member, None, None
        if member is not None:
            member.close()
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()
            # Not ours to remove, or somebody else is at it: then the next creation does it.
            with contextlib.suppress(ShmrbError, OSError):
                Root(self.address.root).reclaim_bounded(self.address.name)
        _bounded.discard(self.address)

    def after_fork(self) -> None:
        """In the child: the client slot is the parent's, the random stream must not be."""
        self.guard = threading.RLock()
        member, self._member, self.segment = self._member, None, None
        self._hold = None
        self.rng = new_rng()
        if member is not None:
            member.abandon()


_attachments: weakref.WeakSet[Attachment] = weakref.WeakSet()
# Buffers that end with this process, which made them.
_bounded: set[Address] = set()


def _after_fork() -> None:
    _bounded.clear()
    for attachment in list(_attachments):
        attachment.after_fork()


def _end_orderly() -> None:
    """At exit: end buffers that go with this process, and leave those on a disk as one should.

    The former would lie there until the next creation in that root; the latter would not be served
    after the next start of the machine.
    """
    for attachment in list(_attachments):
        if attachment.address in _bounded or isinstance(attachment.spec.storage, MemmapStorage):
            attachment.close()
    for address in _bounded:
        with contextlib.suppress(ShmrbError, OSError):
            Root(address.root).reclaim_bounded(address.name)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_end_orderly)


def find(roots: list[str], name: str, timeout: float | None) -> tuple[str, BufferSpec, bytes]:
    """Looks for a buffer until it is there: its root, description and identity.

    Raises:
        AttachError: it did not appear in time; the message names the roots that were searched.
        UncleanError: it lies on a disk, and its machine stopped while it was open.
    """
    deadline = deadline_of(timeout, DEFAULT_TIMEOUT_S)
    while True:
        problem: AttachError | None = None
        for root in roots:
            try:
                entry = Root(root).find(name)
            except NotReadyError as error:
                problem = error
                continue
            if entry.state is State.UNCLEAN:
                raise boot.unclean(entry.path)
            if entry.state in (State.READY, State.DECLARED) and entry.spec and entry.uuid:
                return root, entry.spec, entry.uuid
        if time.monotonic() >= deadline:
            raise problem or _not_found(name, roots)
        time.sleep(LOOK_EVERY_S)


def _not_found(name: str, roots: list[str]) -> NoSuchBufferError:
    known = sorted({entry.name for root in roots for entry in Root(root).list()})
    listed = ", ".join(known[:SHOWN_NAMES]) + (", ..." if len(known) > SHOWN_NAMES else "")
    return NoSuchBufferError(
        f"no buffer called {name!r}: searched {', '.join(roots)}, which hold "
        f"{listed or 'none'}. Create it first, or wait for it with timeout=."
    )
