"""One batch before it gets its form (floor F5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shmrb.batches import GENERATION, INDEX, Batch, BatchFormat

if TYPE_CHECKING:
    from shmrb.windowing import Frame


@dataclass(slots=True)
class Drawn:
    """Records, and what is known of them.

    Attributes:
        batch: their memory.
        count: how many there are.
        reuses_out: whether that memory is the batch that the caller gave.
        beside: what the sampler and the sample unit say of each record.
        form: how the batch looks, where it is not the form of the records as they are stored.
        ends_pass: whether nothing is left to be drawn after them, for now or in this pass.
    """

    batch: Batch
    count: int
    reuses_out: bool = False
    beside: dict[str, Any] = field(default_factory=dict)
    form: BatchFormat | None = None
    ends_pass: bool = False

    def info(self) -> dict[str, Any]:
        """What goes beside the fields."""
        return {INDEX: self.batch.index, GENERATION: self.batch.generation, **self.beside}


@dataclass(slots=True)
class Ahead:
    """A batch that was drawn before anybody asked for it: records, or windows before the sample
    unit makes a batch of them.

    Attributes:
        ends_pass: as of `Drawn`.
        drawn, frame: one of the two.
    """

    ends_pass: bool
    drawn: Drawn | None = None
    frame: Frame | None = None
