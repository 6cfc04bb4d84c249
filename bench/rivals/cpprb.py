"""cpprb's ReplayBuffer and MPReplayBuffer, dicts of numpy arrays in and out."""

import multiprocessing
from functools import partial
from itertools import cycle

import numpy as np
from cpprb import MPReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer

from bench.records import first, priorities

LABEL = "cpprb"
DISTRIBUTIONS = ("cpprb", "numpy")
OPTIONS = {
    "explicit next observation": "the same bytes a record as everybody; next_of would store less",
    "add() of 64 rows": "it takes a batch in one call",
    "prioritized: PrioritizedReplayBuffer(alpha=0.6), beta 0.4": "its default eps",
    "mp: MPReplayBuffer, backend SharedMemory": "writes faster than the other, sharedctypes",
    "mp: spawn": "as everybody here",
}


class Rival:
    def __init__(self, fields, capacity, batch, variant):
        layout = {
            path: {"shape": shape, "dtype": np.dtype(dtype)}
            for path, (dtype, shape) in fields.items()
        }
        self.batch = batch
        if variant == "mp":
            context = multiprocessing.get_context("spawn")
            self.buffer = MPReplayBuffer(capacity, layout, ctx=context, backend="SharedMemory")
        elif variant == "prioritized":
            self.buffer = PrioritizedReplayBuffer(capacity, layout, alpha=0.6)
        else:
            self.buffer = ReplayBuffer(capacity, layout)

    def extend(self, rows):
        return partial(self.buffer.add, **rows)

    def add(self, row):
        return partial(self.buffer.add, **first(row))

    def sample(self):
        return partial(self.buffer.sample, self.batch)

    def learn(self):
        sample, update = self.buffer.sample, self.buffer.update_priorities
        values = cycle(priorities(self.batch))

        def learn():
            batch = sample(self.batch, beta=0.4)
            update(batch["indexes"], next(values))

        return learn

    def share(self):
        return self.buffer

    def close(self):
        del self.buffer


def writer(shared, variant, rows):
    return partial(shared.add, **rows)
