"""Records that say of themselves whether they are whole, and what a buffer is made of.

uid = writer * 10^9 + seq, and the body follows from the uid. A row is torn if its body belongs to
another uid, or its writer and seq to another record. Imports neither torch nor tensordict.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shmrb import ReplayBuffer
from shmrb.segment.names import directory_name

PERIOD = 251
WRITER = 10**9

Array = npt.NDArray[Any]


def schema(body: int = 4096) -> dict[str, Any]:
    """The fields of a stamped record."""
    return {
        "uid": "int64",
        "writer": "int32",
        "seq": "int64",
        "traj": "int64",
        "step": "int64",
        "body": ("uint8", body),
    }


def bodies(uids: Array, size: int) -> Array:
    """uint8 [N, size]."""
    pattern = (np.arange(size + PERIOD) % PERIOD).astype(np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(pattern, size)
    return windows[(uids * 31 + uids // PERIOD) % PERIOD]


def records(writer: int, first: int, count: int, body: int = 4096) -> dict[str, Array]:
    """`count` records of one writer from `first` on."""
    seq = np.arange(first, first + count)
    uids = writer * WRITER + seq
    return {
        "uid": uids,
        "writer": np.full(count, writer, np.int32),
        "seq": seq,
        "traj": np.zeros(count, np.int64),
        "step": seq.copy(),
        "body": bodies(uids, body),
    }


def record(writer: int, seq: int, body: int = 4096) -> dict[str, Array]:
    """One record, without the first dimension."""
    return {key: value[0] for key, value in records(writer, seq, 1, body).items()}


def torn(batch: Any) -> list[str]:
    """What is wrong with the rows of a batch; empty if each is whole."""
    uids, body = np.asarray(batch["uid"]), np.asarray(batch["body"])
    writers, seqs = np.asarray(batch["writer"]), np.asarray(batch["seq"])
    wrong = (body != bodies(uids, body.shape[1])).any(axis=1)
    wrong |= (uids != writers.astype(np.int64) * WRITER + seqs) | (
        np.asarray(batch["step"]) != seqs
    )
    return [
        f"slot {batch['index'][row]}: uid {uids[row]}, writer {writers[row]}, seq {seqs[row]}"
        for row in np.flatnonzero(wrong)
    ]


def contents(buffer: ReplayBuffer, root: Path | str) -> dict[str, Any]:
    """What a refused call leaves as it is: the bytes of records, slots and priorities, and counts.

    Statistics and wait words may change.
    """
    folder = Path(root) / directory_name(buffer.name)
    files = [file for file in ("data", "slots", "prio") if (folder / file).exists()]
    found: dict[str, Any] = {
        file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in files
    }
    stats = buffer.statistics()
    found["lanes"] = [(lane.head, lane.floor, lane.written, lane.holes) for lane in stats.lanes]
    found["limiter"] = stats.limiter
    found["counts"] = len(buffer), buffer.write_count
    slots = np.arange(stats.capacity)
    found["generations"] = np.asarray(buffer.generations_of(slots)).tolist()
    return found
