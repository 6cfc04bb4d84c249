"""Copying given records, and leaving out those that are not there (floor F5)."""

from __future__ import annotations

import numpy as np

from shmrb.batches import Batch, BatchFormat
from shmrb.core import SLICE_NS, Outcome, Segment
from shmrb.drawn import Drawn


def read_batch(segment: Segment, batch: Batch, count: int, cost: int = 0) -> Outcome:
    """Reads the slots in `batch.index`; rows that hold no live record get generation -1."""
    return segment.read(
        batch.index_address,
        count,
        batch.addresses,
        batch.generation_address,
        0,
        cost,
        SLICE_NS,
    )


def kept(form: BatchFormat, batch: Batch) -> Drawn:
    """The batch without the rows that held no record."""
    whole = np.asarray(batch.generation) >= 0
    if whole.all():
        return Drawn(batch, len(whole))
    rows = form.from_numpy(np.flatnonzero(whole))
    leaves = [None if leaf is None else leaf[rows] for leaf in batch.leaves]
    index, generation = batch.index[rows], batch.generation[rows]
    return Drawn(Batch(leaves, index, generation, [], 0, 0), len(rows))


def first_rows(drawn: Drawn, count: int) -> Drawn:
    """The first `count` records of a batch, or all if there are no more."""
    if drawn.count <= count:
        return drawn
    batch = drawn.batch
    leaves = [None if leaf is None else leaf[:count] for leaf in batch.leaves]
    return Drawn(Batch(leaves, batch.index[:count], batch.generation[:count], [], 0, 0), count)


def joined_batches(form: BatchFormat, parts: list[Drawn]) -> Drawn:
    """The records of several batches, one after the other."""
    if len(parts) == 1:
        return parts[0]
    total = sum(part.count for part in parts)
    joined = form.allocate(total)
    start = 0
    for part in parts:
        rows = slice(start, start + part.count)
        for target, source in zip(joined.leaves, part.batch.leaves, strict=True):
            target[rows] = source
        joined.index[rows] = part.batch.index
        joined.generation[rows] = part.batch.generation
        start += part.count
    return Drawn(joined, total)
