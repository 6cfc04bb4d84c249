"""TorchRL's ReplayBuffer, TensorDicts in and out."""

from functools import partial

import torch
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers import RandomSampler, RoundRobinWriter

from bench.records import tensordict

LABEL = "TorchRL"
DISTRIBUTIONS = ("torchrl", "tensordict", "torch")
OPTIONS = {
    "LazyTensorStorage": "its fastest storage in memory; tensors are allocated once",
    "ReplayBuffer": "TensorDictReplayBuffer also writes an index into each record: slower",
    "generations: track_generations=True, return_info=True": "index and generation come beside "
    "the batch, which is cheaper than having them set in it",
    "plain: neither": "its fastest sample; the batch does not say where it came from",
    "shared: shared=True, spawn": "its way to several processes; a fork does not share the data",
    "torch.set_num_threads(1)": "one thread, as everybody here",
}


class Rival:
    def __init__(self, fields, capacity, batch, variant):
        torch.set_num_threads(1)
        self.with_info = variant == "generations"
        self.buffer = ReplayBuffer(
            storage=LazyTensorStorage(capacity),
            sampler=RandomSampler(),
            writer=RoundRobinWriter(track_generations=self.with_info),
            batch_size=batch,
            shared=variant == "shared",
        )

    def extend(self, rows):
        return partial(self.buffer.extend, tensordict(rows))

    def add(self, row):
        return partial(self.buffer.add, tensordict(row)[0])

    def sample(self):
        return partial(self.buffer.sample, return_info=self.with_info)

    def share(self):
        return self.buffer

    def close(self):
        self.buffer.shutdown()


def writer(shared, variant, rows):
    torch.set_num_threads(1)
    return partial(shared.extend, tensordict(rows))
