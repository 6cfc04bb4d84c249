"""TorchRL's windows, boundaries and slices on small rings; part of `record.py`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.data.replay_buffers.sample_units import Sequence
from torchrl.data.replay_buffers.utils import find_start_stop_traj

# Rings that trajectories are cut from: rows written, capacity 10, slots that hold a done flag.
RINGS = (
    ("full, two episodes", 10, (4, 9)),
    ("partly full", 7, (2,)),
    ("partly full, no end", 7, ()),
    ("wrapped, no end", 13, ()),
    ("wrapped, an end before the seam", 13, (0, 6)),
    ("wrapped, an end on the seam", 13, (2, 5)),
    ("wrapped, an end in the last slot", 13, (9,)),
)


def stepped(written: int, done: tuple[int, ...]) -> TensorDictReplayBuffer:
    """A ring of 10 after `written` adds; `done` are slots as they are at the end."""
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    for ticket in range(written):
        is_last = ticket >= written - 10
        flag = torch.tensor([is_last and ticket % 10 in done])
        rb.add(TensorDict({"t": torch.tensor(ticket), "next": {"done": flag}}, []))
    return rb


UNITS = (
    {"length": 4, "episode_boundary": "pad"},
    {"length": 4, "episode_boundary": "stop"},
    {"length": 7, "episode_boundary": "stop"},
    {"length": 4, "episode_boundary": "include_reset"},
    {"length": 2, "burn_in": 2, "bootstrap": 2, "episode_boundary": "pad"},
    {"length": 2, "burn_in": 2, "bootstrap": 2, "episode_boundary": "stop"},
    {"length": 1, "burn_in": 3, "episode_boundary": "include_reset"},
    {"length": 3, "dilation": 2, "episode_boundary": "pad"},
    {"length": 3, "dilation": 2, "episode_boundary": "stop"},
    {"length": 2, "burn_in": 1, "bootstrap": 1, "dilation": 3, "episode_boundary": "stop"},
    {"length": 6, "episode_boundary": "pad"},
    {"length": 4, "episode_boundary": "stop", "done_key": None},
)


def sequences() -> list[Any]:
    found = []
    for name, written, done in RINGS:
        rb = stepped(written, done)
        anchors = torch.arange(len(rb))
        for unit in UNITS:
            index, info = Sequence(**unit).expand(anchors, {}, rb.storage)
            wide = (len(rb), -1)
            keys = ("validity_mask", "learning_mask", "step_in_sequence", "anchor_index")
            row = {"ring": name, "written": written, "done": done, "unit": unit}
            row["index"] = index.reshape(wide).tolist()
            row |= {key: info[key].reshape(wide).int().tolist() for key in keys}
            found.append(row)
    return found


def boundaries() -> list[Any]:
    draws = np.random.default_rng(11)
    found = []
    for number in range(60):
        size = int(draws.integers(1, 11))
        full = bool(number % 2)
        cursor = int(draws.integers(size)) if full else None
        if number % 4 < 2:
            given = {"end": (draws.random(size) < 0.3).tolist()}
        else:
            given = {"trajectory": np.cumsum(draws.random(size) < 0.3).tolist()}
        start, stop, lengths = find_start_stop_traj(
            **{key: torch.tensor(value) for key, value in given.items()},
            at_capacity=full,
            cursor=cursor,
        )
        found.append(
            given
            | {"at_capacity": full, "cursor": cursor}
            | {"start": start[:, 0].tolist(), "stop": stop[:, 0].tolist()}
            | {"lengths": lengths.tolist()}
        )
    return found


SLICES = (
    {"slice_len": 3},
    {"slice_len": 2},
    {"slice_len": 4, "strict_length": False},
    {"slice_len": 4, "strict_length": False, "pad_output": True},
    {"slice_len": 10},
    {"slice_len": 2, "truncated_key": None},
)


def slices() -> list[Any]:
    """Which slices come out, what is beside them, and how often: `draws` batches of 4 slices."""
    draws = 250
    found = []
    for name, written, done in RINGS:
        for settings in SLICES:
            torch.manual_seed(5)
            rb = stepped(written, done)
            sampler = SliceSampler(end_key=("next", "done"), **settings)
            rb.set_sampler(sampler)
            row = {"ring": name, "written": written, "done": done, "sampler": settings}
            seen: Counter[str] = Counter()
            try:
                for _ in range(draws):
                    batch, info = rb.sample(4 * settings["slice_len"], return_info=True)
                    for slots in _split(batch, settings["slice_len"]):
                        seen[json.dumps(slots)] += 1
                row["keys"] = sorted(map(str, info))
                row["slices"] = [[json.loads(slots), seen[slots]] for slots in sorted(seen)]
            except RuntimeError as error:
                row["error"] = [type(error).__name__, str(error)]
            found.append(row)
    return found


def _split(batch: TensorDict, length: int) -> list[list[int]]:
    """The slices of one batch; without padding they may be short, and end at `truncated`."""
    slots = batch["index"].flatten().tolist()
    ends = batch.get(("next", "truncated"), None)
    if ends is None or ("collector", "mask") in batch.keys(True):
        return [slots[i : i + length] for i in range(0, len(slots), length)]
    parts, start = [], 0
    for place, ended in enumerate(ends.flatten().tolist()):
        if ended:
            parts.append(slots[start : place + 1])
            start = place + 1
    return parts
