"""Drawing the oldest or the newest records, where nothing is taken away (floor F5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmrb.attachment import Attachment
from shmrb.batches import BatchFormat
from shmrb.copies import first_rows, kept, read_batch
from shmrb.core import Outcome, Segment, Status
from shmrb.drawn import Drawn
from shmrb.errors import EmptyBufferError
from shmrb.planner.ends import End, end_of
from shmrb.planner.populations import Slots
from shmrb.waiting import Call
from shmrb.windowing import Flags

# The ring overwrites the oldest records first, also while they are copied: then a draw looks again.
LOOKS = 8


class EndOrder:
    """Anchors from one end of the buffer, for each draw anew.

    Args:
        attachment: the handle's.
        newest: which end.
    """

    ran_out = True  # a draw that finds windows for some of the anchors only is short

    def __init__(self, attachment: Attachment, newest: bool) -> None:
        self._attachment = attachment
        self._newest = newest
        self._chosen: End | None = None

    def choose(self, segment: Segment, count: int, length: int) -> Slots | None:
        """The slots at that end; None when there is no record."""
        end = self.end(segment, count)
        self._chosen = end
        return end.slots if len(end.slots) else None

    def end(self, segment: Segment, count: int) -> End:
        """The records at that end."""
        return end_of(segment, self.lane_capacity, count, self._newest)

    @property
    def lane_capacity(self) -> int:
        """Slots of a lane."""
        return self._attachment.spec.lane_capacity

    def give_back(self) -> None:
        """There is nothing to undo."""

    def restart(self) -> None:
        """There is nothing to begin anew."""

    def hold(self, segment: Segment, anchors: Slots) -> Flags:
        """Which anchors the ring has not overwritten meanwhile."""
        assert self._chosen is not None
        return self._chosen.still_there(segment, self.lane_capacity)

    def draw(
        self, form: BatchFormat, count: int, cost: int, call: Call, timeout: float | None
    ) -> Drawn:
        """The records at that end; a limiter is charged `cost` for each.

        Raises:
            EmptyBufferError: there is none.
        """
        wanted = count
        for look in range(LOOKS):
            read = _Read(self, form, wanted, cost if look == 0 else 0)
            self._attachment.run(read, call, timeout)
            drawn = kept(form, read.batch)
            if drawn.count >= count or len(read.end.slots) < wanted:
                break
            wanted += count - drawn.count
        if drawn.count == 0:
            name = self._attachment.address.name
            raise EmptyBufferError(f"Cannot sample from an empty storage. ({name} has no record.)")
        return first_rows(drawn, count)


class _Read:
    """One native read of the slots at an end, chosen anew each time it is tried."""

    end: End
    batch: Any

    def __init__(self, order: EndOrder, form: BatchFormat, count: int, cost: int) -> None:
        self.order = order
        self.form = form
        self.count = count
        self.cost = cost

    def __call__(self, segment: Segment) -> Outcome:
        self.end = end = self.order.end(segment, self.count)
        count = len(end.slots)
        if count == 0:
            return nothing_there(segment)
        self.batch = self.form.allocate(count)
        np.asarray(self.batch.index)[:] = end.slots
        outcome: Outcome = read_batch(segment, self.batch, count, self.cost * count)
        kept_there = end.still_there(segment, self.order.lane_capacity)
        np.asarray(self.batch.generation)[~kept_there] = -1
        return outcome


def nothing_there(segment: Segment) -> Outcome:
    """The outcome of a choice from nothing: under limits one insert may pass them."""
    if not segment.lanes():
        return int(Status.CLOSED), 0, 0, 0, 0
    outcome: Outcome = segment.open_inserts()
    return outcome
