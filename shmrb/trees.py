"""Three slots of which one always holds the newest whole tree of arrays (floor F5).

All slots are under live tickets for good. A publisher writes into any slot but that of the newest
whole tree, and the largest version among whole words is the newest. So whatever moment a publisher
dies at, a reader finds a whole tree, and so does the next publisher.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from shmrb import core
from shmrb.attachment import Attachment
from shmrb.batches import Batch, BatchFormat
from shmrb.core import SLICE_NS, Outcome, Segment, Status
from shmrb.errors import LaneBusyError, SpecError
from shmrb.records import Rows
from shmrb.segment import snapshot
from shmrb.spec import PARAMETER_SLOTS
from shmrb.waiting import Call, describe

# Nothing was published.
UNPUBLISHED = -1
HIGHEST_VERSION = (1 << 63) - 1

OVERTAKEN: Outcome = (int(Status.AGAIN), 0, 0, 0, 0)

_SLOTS = np.arange(PARAMETER_SLOTS, dtype=np.int64)
_SLOTS_ADDRESS = core.address(_SLOTS)


class Look(NamedTuple):
    """The newest whole tree as somebody saw it.

    Attributes:
        slot: where it lies.
        version: -1 when there is none.
        stamps: of all slots at that moment.
    """

    slot: int
    version: int
    stamps: list[int]


class TreeSlots:
    """The slots of one attachment.

    Args:
        attachment: to a buffer whose purpose is "parameters".
        columns: how many arrays a tree has.
    """

    def __init__(self, attachment: Attachment, columns: int) -> None:
        self.attachment = attachment
        self._no_columns = [0] * columns
        # Versions only grow, also for a reader that is slower than the publisher.
        self._seen = UNPUBLISHED
        self._last_look = Look(0, UNPUBLISHED, [])

    # ---- writing ---------------------------------------------------------------------------------

    def write(self, rows: Rows, version: int | None, deadline: float) -> int:
        """Writes a tree beside the newest one; its version.

        Args:
            rows: one record.
            version: larger than the newest; None: the next.
            deadline: monotonic.

        Raises:
            SpecError: the version is not larger.
            LaneBusyError: another living client publishes.
        """
        segment = self.attachment.segment or self.attachment.join()
        self._take_place(segment)
        versions = self._versions(segment)
        slots = sorted(range(PARAMETER_SLOTS), key=versions.__getitem__)
        newest = versions[slots[-1]]
        stamp = np.array([_next_version(version, newest)], np.int64)
        # The newest stays until this one is whole. A slot may be held by who was stopped while
        # freeing it of a dead publisher, so both others are tried before either is waited for.
        others = slots if newest == UNPUBLISHED else slots[:-1]

        def write(segment: Segment) -> Outcome:
            for slot in others:
                outcome = segment.write(slot, rows.addresses, core.address(stamp), 0)
                if outcome[0] != Status.AGAIN:
                    return outcome
            return segment.write(others[0], rows.addresses, core.address(stamp), SLICE_NS)

        self.attachment.run(write, Call("publish"), max(0.0, deadline - time.monotonic()))
        return int(stamp[0])

    def _take_place(self, segment: Segment) -> None:
        """Only the holder of the lane's lease publishes; the place of a dead one is free."""
        status, _, _, who, _ = segment.lease(0)
        if status != Status.BUSY:
            return
        owner = snapshot.client(segment, who)
        named = f"client {who:#x}" if owner is None else describe(owner)
        raise LaneBusyError(
            f"publish: {self.attachment.address.name} is published by {named}, and has one "
            "publisher at a time. Publish from that process, or end it: the place of a dead one is "
            "free."
        )

    # ---- reading ---------------------------------------------------------------------------------

    def find(self, segment: Segment, newer_than: int) -> Outcome:
        """value: the slot of the newest tree. EMPTY when it is not newer than that."""
        look = self.look(segment, newer_than)
        if not isinstance(look, Look):
            return look
        status = Status.OK if look.version > newer_than else Status.EMPTY
        return int(status), look.slot, 0, 0, 0

    def read(self, form: BatchFormat, newer_than: int) -> tuple[int, Batch]:
        """Copies the newest tree; one that is overwritten meanwhile is looked for again.

        REQUIRES: there is one newer than that.
        """
        batch = form.allocate(1)
        index, version = np.asarray(batch.index), np.empty(1, np.int64)
        places = (batch.addresses, batch.generation_address, core.address(version))

        def read(segment: Segment) -> Outcome:
            found = self.find(segment, newer_than)
            if found[0] != Status.OK:
                return found
            index[0] = found[1]
            outcome = segment.read(batch.index_address, 1, *places, 0, 0)
            if outcome[0] != Status.OK:
                return outcome
            is_whole = int(batch.generation[0]) >= 0 and version[0] >= self._wanted(newer_than)
            return outcome if is_whole else OVERTAKEN

        self.attachment.run(read, Call("latest"))
        self._seen = max(self._seen, int(version[0]))
        return int(version[0]), batch

    def _wanted(self, newer_than: int) -> int:
        return max(newer_than + 1, self._seen, 0)

    def look(self, segment: Segment, newer_than: int) -> Look | Outcome:
        """Looks for the newest whole tree; an outcome when the segment refuses.

        Looking at three slots takes longer than publishing may. So what is found counts if it is as
        new as the caller wants, else only if no slot's stamp moved meanwhile: they move when
        something is published, and when what a dead publisher left is voided.
        """
        nothing_read = segment.read(_SLOTS_ADDRESS, 0, self._no_columns, 0, 0, 0, 0)
        if nothing_read[0] != Status.OK:
            return nothing_read
        while True:
            stamps = self._stamps(segment)
            if stamps == self._last_look.stamps:
                return self._last_look
            versions = self._versions(segment)
            slot = max(range(PARAMETER_SLOTS), key=versions.__getitem__)
            look = Look(slot, versions[slot], stamps)
            if stamps == self._stamps(segment):
                self._last_look = look
                return look
            if look.version >= self._wanted(newer_than):
                return look

    def _versions(self, segment: Segment) -> list[int]:
        """The version of each slot that is whole, -1 for the others."""
        found = np.full((2, PARAMETER_SLOTS), UNPUBLISHED, np.int64)
        generations = core.address(found)
        versions = generations + found.strides[0]
        for slot in range(PARAMETER_SLOTS):
            at = 8 * slot
            # One by one and without patience: a slot that is being written holds up nobody.
            status, *_ = segment.read(
                _SLOTS_ADDRESS + at, 1, self._no_columns, generations + at, versions + at, 0, 0
            )
            if status != Status.OK:
                found[1, slot] = UNPUBLISHED
        return [int(version) for version in found[1]]

    def _stamps(self, segment: Segment) -> list[int]:
        stamps = np.empty(PARAMETER_SLOTS, np.int64)
        segment.generations(_SLOTS_ADDRESS, PARAMETER_SLOTS, core.address(stamps))
        return [int(stamp) for stamp in stamps]


def _next_version(asked: int | None, newest: int) -> int:
    if asked is None:
        return newest + 1
    if not newest < asked <= HIGHEST_VERSION:
        raise SpecError(
            f"publish: versions only grow: expected one above {newest}, got {asked}. Leave it out "
            "to get the next."
        )
    return int(asked)
