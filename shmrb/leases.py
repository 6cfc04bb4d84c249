"""Which lanes a handle writes: leases, given back or freed by proof of death (floor F5)."""

from __future__ import annotations

import time

from shmrb.attachment import Attachment
from shmrb.core import Outcome, Segment, Status
from shmrb.errors import LaneBusyError
from shmrb.segment import snapshot
from shmrb.waiting import Call

# Somebody's lane is free when its owner gave it back or is proven dead; nothing rings for that.
LOOK_EVERY_S = 0.02


class Leases:
    """Some lanes of one handle, all of them or none.

    Args:
        attachment: the handle's.
        count: how many lanes.
        rotate: whether a lane is changed for one that was written less recently, where there is a
            free one, when its trajectory has ended.
        name: the call, in messages.
    """

    def __init__(self, attachment: Attachment, count: int, rotate: bool, name: str) -> None:
        self.attachment = attachment
        self.count = count
        self.rotate = rotate
        self._name = name
        self._lanes: list[int] = []
        self._leased_in: Segment | None = None
        self._writing = 0

    @property
    def lanes(self) -> list[int]:
        """Those that are leased now."""
        with self.attachment.guard:
            return list(self._lanes)

    def take(self, deadline: float) -> list[int]:
        """The lanes: leased at the first use, again after a fork, and kept.

        Raises:
            LaneBusyError: there are not enough free ones in time; the message names the owners.
        """
        attachment = self.attachment
        while True:
            segment = attachment.segment or attachment.join()
            with attachment.guard:
                if segment is self._leased_in:
                    return list(self._lanes)
                lanes, outcome = _leased(segment, self.count)
                if len(lanes) == self.count:
                    self._lanes, self._leased_in = lanes, segment
                    return list(lanes)
            if outcome[0] != Status.BUSY:
                self._refuse(outcome)
            if time.monotonic() >= deadline:
                raise LaneBusyError(self._owners(segment))
            time.sleep(LOOK_EVERY_S)

    def _refuse(self, outcome: Outcome) -> None:
        self.attachment.run(lambda _: outcome, Call(self._name), 0.0)

    def turn(self, place: int, deadline: float) -> int:
        """The lane to write next in this place, until `rest`.

        It is another one than before if a trajectory has ended and no thread of this handle is
        writing.
        """
        while True:
            self.take(deadline)
            with self.attachment.guard:
                segment = self._leased_in
                if segment is None:
                    continue  # given back meanwhile by another thread
                if self.rotate and not self._writing:
                    outcome = segment.rotate(self._lanes[place])
                    if outcome[0] == Status.OK:
                        self._lanes[place] = int(outcome[1])
                self._writing += 1
                return self._lanes[place]

    def rest(self) -> None:
        """The call that `turn` gave a lane to is over."""
        with self.attachment.guard:
            self._writing -= 1

    def give_back(self) -> None:
        """Lets go of the lanes. Again, or after the handle was closed: nothing."""
        with self.attachment.guard:
            segment, self._leased_in = self._leased_in, None
            lanes, self._lanes = self._lanes, []
            if segment is not None and segment is self.attachment.segment:
                for lane in lanes:
                    segment.release_lease(lane)

    def _owners(self, segment: Segment) -> str:
        lanes = snapshot.lanes(segment)
        owners = [snapshot.client(segment, lane.lease) for lane in lanes]
        free = sum(owner is None or not owner.alive for owner in owners)
        named = ", ".join(sorted({str(owner) for owner in owners if owner is not None}))
        spec = self.attachment.spec
        have = (
            f"all {spec.lanes} lanes" if not free else f"{spec.lanes - free} of {spec.lanes} lanes"
        )
        wanted = "" if self.count == 1 else f", {self.count} are wanted"
        return (
            f"{self._name}: {have} of {self.attachment.address.name} are leased, by {named}"
            f"{wanted}. Create the buffer with more lanes, or close a handle that writes."
        )


def _leased(segment: Segment, count: int) -> tuple[list[int], Outcome]:
    """So many lanes, or none and why there are not enough."""
    lanes: list[int] = []
    while True:
        outcome: Outcome = segment.lease(-1)
        if outcome[0] != Status.OK:
            for lane in lanes:
                segment.release_lease(lane)
            return [], outcome
        lanes.append(int(outcome[1]))
        if len(lanes) == count:
            return lanes, outcome
