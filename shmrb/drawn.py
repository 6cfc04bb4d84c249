"""One batch before it gets its form (floor F5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shmrb.batches import GENERATION, INDEX, Batch, BatchFormat


@dataclass(slots=True)
class Drawn:
    """Records, and what is known of them.

    Attributes:
        batch: their memory.
        count: how many there are.
        reuses_out: whether that memory is the batch that the caller gave.
        beside: what the sampler and the sample unit say of each record.
        form: how the batch looks, where it is not the form of the records as they are stored.
    """

    batch: Batch
    count: int
    reuses_out: bool = False
    beside: dict[str, Any] = field(default_factory=dict)
    form: BatchFormat | None = None

    def info(self) -> dict[str, Any]:
        """What goes beside the fields."""
        return {INDEX: self.batch.index, GENERATION: self.batch.generation, **self.beside}
