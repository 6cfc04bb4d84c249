"""What an audit finds, and how it looks at shared words; floor F3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from shmrb import core
from shmrb.description import Description
from shmrb.segment import names
from shmrb.segment.member import Member

# Findings of one kind: enough to see what is wrong.
MOST = 20
BUSY, VOID, GENERATION_SHIFT = 1, 2, 20
RUN_FIRST = 1 << 31
_TOKEN = 0x7FFF_FFFF

_BLOCKS = {"lock": "LockBlock", "journal": "JournalBlock", "consumption": "ConsumptionBlock"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Description):
    """A rule that is broken.

    Attributes:
        where: region and number.
        expected, got: the rule, and what is there.
        mends: whether `repair` puts it right.
    """

    kind: ClassVar[str] = "Finding"

    where: str
    expected: str
    got: str
    mends: bool = True

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, got {self.got}"


class Words:
    """Fields of the control file as they are at this moment."""

    def __init__(self, member: Member) -> None:
        self._mapping = member.mapping(names.CONTROL)
        self._abi = core.abi()
        self._regions = member.layout.regions

    def read(self, block: str, path: str, at: int = 0) -> int:
        """A number; `path` leads from the block through those it holds, "control_lock.word"."""
        *outer, name = path.split(".")
        offset = at
        for part in outer:
            offset += self._abi[block]["fields"][part][0]
            block = _BLOCKS[part.rpartition("_")[2]]
        start, size = self._abi[block]["fields"][name]
        return int(self._mapping.view(f"<i{size}", offset + start, size)[0])

    def owner(self, block: str, lock: str, at: int = 0) -> int:
        """The token of who has a lock, 0 if it is free."""
        return self.read(block, f"{lock}.word", at) & _TOKEN

    def lane(self, number: int) -> int:
        """Where a lane's block lies."""
        return int(self._regions["lanes"].offset + number * self._abi["LaneBlock"]["size"])

    def live(self, member: Member, number: int) -> tuple[int, int]:
        """Head and floor of a lane; its live positions are the first of them."""
        at = self.lane(number)
        return self.read("LaneBlock", "head", at), self.read("LaneBlock", "floor", at)


def array(member: Member, region: str, dtype: str) -> np.ndarray[Any, Any]:
    """A whole region as it is at this moment and at every later one."""
    place = member.layout.regions[region]
    return member.mapping(place.file).view(dtype, place.offset, place.bytes)
