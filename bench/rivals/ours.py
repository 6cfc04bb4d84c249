"""shmrb itself, embedded: no daemon is on the data path, so none runs here."""

import os
from functools import partial
from pathlib import Path

import shmrb
from bench.records import first, nested, tensordict

LABEL = "shmrb"
DISTRIBUTIONS = ("shmrb", "tensordict", "torch", "numpy")
NAME = "bench/records"
FORMATS = {"tensordict": "torch", "numpy": "numpy"}
OPTIONS = {
    "tensordict": "TensorDicts in and out, one thread",
    "numpy": "format='numpy': dicts of arrays in and out, torch is not used",
    "generations": "always on, and so are all checks",
    "lanes=1": "the default: all writers share one ring",
}


class Rival:
    def __init__(self, fields, capacity, batch, variant):
        self.variant = variant
        self.buffer = shmrb.ReplayBuffer(
            NAME,
            storage=shmrb.SharedStorage(capacity),
            schema=nested(fields),
            batch_size=batch,
            format=FORMATS[variant],
            lifetime="creator",
        )

    def extend(self, rows):
        return partial(self.buffer.extend, _data(self.variant, rows))

    def add(self, row):
        one = nested(first(row)) if self.variant == "numpy" else tensordict(row)[0]
        return partial(self.buffer.add, one)

    def sample(self):
        return self.buffer.sample

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
    return nested(rows) if variant == "numpy" else tensordict(rows)
