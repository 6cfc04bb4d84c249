"""shmrb itself, embedded: no daemon is on the data path, so none runs here."""

import os
from functools import partial
from itertools import cycle
from pathlib import Path

import shmrb
from bench.records import first, nested, priorities, rows, tensordict

LABEL = "shmrb"
DISTRIBUTIONS = ("shmrb", "tensordict", "torch", "numpy")
NAME = "bench/records"
FORMATS = {
    "tensordict": "torch",
    "numpy": "numpy",
    "prioritized tensordict": "torch",
    "prioritized numpy": "numpy",
    "slices": "torch",
    "slices of 10k": "torch",
    "slices of 10M": "torch",
}
SLICE = 32
# Batches whose handles are used in turn, so that no row stays in the nearest cache.
HANDLES = 64
OPTIONS = {
    "tensordict": "TensorDicts in and out, one thread",
    "numpy": "format='numpy': dicts of arrays in and out, torch is not used",
    "generations": "always on, and so are all checks; late writes compare them",
    "prioritized": "PrioritizedSampler(alpha=0.6, beta=0.4)",
    "slices": "SliceSampler(slice_len=32), ends marked, index and generation beside each record",
    "lanes=1": "the default: all writers share one ring",
}


class Rival:
    def __init__(self, fields, capacity, batch, variant):
        self.variant, self.batch = variant, batch
        sampler = None
        if variant.startswith("prioritized"):
            sampler = shmrb.PrioritizedSampler(alpha=0.6, beta=0.4)
        elif variant.startswith("slices"):
            sampler = shmrb.SliceSampler(slice_len=SLICE)
        self.buffer = shmrb.ReplayBuffer(
            NAME,
            storage=shmrb.SharedStorage(capacity),
            schema=nested(fields),
            batch_size=batch,
            format=FORMATS[variant],
            lifetime="creator",
            sampler=sampler,
        )

    def extend(self, rows):
        return partial(self.buffer.extend, _data(self.variant, rows))

    def add(self, row):
        one = nested(first(row)) if FORMATS[self.variant] == "numpy" else tensordict(row)[0]
        return partial(self.buffer.add, one)

    def sample(self):
        return self.buffer.sample

    def learn(self):
        sample, update = self.buffer.sample, self.buffer.update_priority
        values = cycle(_values(self.variant, priorities(self.batch)))
        return lambda: update(sample(), next(values))

    def patch(self):
        field = "action"
        new = rows({field: ("float32", (6,))}, self.batch)[field]
        patch = {field: _values(self.variant, [new])[0]}
        batches = cycle([self.buffer.sample() for _ in range(HANDLES)])
        update = self.buffer.update_if_present
        return lambda: update(next(batches), patch=patch)

    def gather(self):
        return partial(self.buffer.sample, out=self.buffer.sample())

    def attach_again(self):
        return partial(
            shmrb.attach, NAME, format=FORMATS[self.variant]
        ), lambda member: member.close()

    def share(self):
        return NAME

    def stored_bytes(self):
        files = [file.stat() for file in Path(os.environ["SHMRB_ROOT"]).rglob("*")]
        return sum(file.st_blocks * 512 for file in files)

    def close(self):
        self.buffer.close()


def writer(shared, variant, rows):
    return partial(shmrb.attach(shared, format=FORMATS[variant]).extend, _data(variant, rows))


def _data(variant, rows):
    return nested(rows) if FORMATS[variant] == "numpy" else tensordict(rows)


def _values(variant, arrays):
    if FORMATS[variant] == "numpy":
        return arrays
    import torch

    return [torch.from_numpy(array) for array in arrays]
