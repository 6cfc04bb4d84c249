"""Batches drawn ahead: which of their records are gone by now, and others for them (floor F5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shmrb import core
from shmrb.attachment import Attachment
from shmrb.consumer import Consumer
from shmrb.copies import kept
from shmrb.drawn import Ahead, Drawn
from shmrb.errors import EmptyBufferError
from shmrb.waiting import Call
from shmrb.windowing import Frame

Flags = npt.NDArray[np.bool_]


def refreshed(consumer: Consumer, ahead: Ahead, timeout: float) -> Drawn | None:
    """The batch as it may be handed out now: stale records are drawn again, at no cost.

    A pass goes over slots: there the record that has taken the place of a stale one is read, and a
    window that has lost a record is passed over.

    Returns:
        None: nothing is left of it.
    """
    if ahead.frame is not None:
        return _refreshed_windows(consumer, ahead, ahead.frame, timeout)
    drawn = ahead.drawn
    assert drawn is not None
    stale = stale_rows(consumer.attachment, drawn.batch.index, drawn.batch.generation)
    if not stale.any():
        return drawn
    form = consumer.form
    rows = np.flatnonzero(stale)
    batch = drawn.batch
    try:
        again = consumer.again(np.asarray(batch.index)[rows], timeout)
    except EmptyBufferError:
        np.asarray(batch.generation)[rows] = -1
    else:
        place = form.from_numpy(rows)
        targets = [*batch.leaves, batch.index, batch.generation, *drawn.beside.values()]
        fresh = again.batch
        sources = [*fresh.leaves, fresh.index, fresh.generation, *again.beside.values()]
        for target, source in zip(targets, sources, strict=True):
            target[place] = source
    left = kept(form, batch)
    if left.count == len(stale):
        return drawn
    if left.count == 0:
        return None
    whole = form.from_numpy(np.flatnonzero(np.asarray(batch.generation) >= 0))
    left.beside = {key: value[whole] for key, value in drawn.beside.items()}
    left.ends_pass = drawn.ends_pass
    return left


def _refreshed_windows(
    consumer: Consumer, ahead: Ahead, frame: Frame, timeout: float
) -> Drawn | None:
    windows = consumer.windows
    assert windows is not None
    stale_records = stale_rows(consumer.attachment, frame.index, frame.generation)
    stale = frame.by_window(stale_records).any(axis=1)
    left: Frame | None = frame
    if stale.any():
        try:
            left = windows.refreshed(frame, stale, timeout)
        except EmptyBufferError:
            left = None if stale.all() else frame.kept(~stale, windows.unit.form)
    if left is None:
        return None
    drawn = windows.unit.drawn(left)
    drawn.ends_pass = ahead.ends_pass
    return drawn


def stale_rows(attachment: Attachment, index: Any, generation: Any) -> Flags:
    """Which slots no longer hold the records of these generations."""
    slots = np.ascontiguousarray(index, np.int64)
    now = np.empty(len(slots), np.int64)
    attachment.run(
        lambda segment: segment.generations(core.address(slots), len(slots), core.address(now)),
        Call("sample"),
    )
    stale: Flags = now != np.asarray(generation)
    return stale
