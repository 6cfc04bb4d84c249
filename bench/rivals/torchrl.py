"""TorchRL's ReplayBuffer, TensorDicts in and out."""

from functools import partial
from itertools import cycle

import torch
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers import (
    PrioritizedSampler,
    RandomSampler,
    RoundRobinWriter,
    SliceSampler,
)

from bench.records import priorities, rows, tensordict

# Batches whose handles are used in turn, so that no row stays in the nearest cache.
HANDLES = 64
SLICE = 32
LABEL = "TorchRL"
DISTRIBUTIONS = ("torchrl", "tensordict", "torch")
OPTIONS = {
    "LazyTensorStorage": "its fastest storage in memory; tensors are allocated once",
    "ReplayBuffer": "TensorDictReplayBuffer also writes an index into each record: slower",
    "generations: track_generations=True, return_info=True": "index and generation come beside "
    "the batch, which is cheaper than having them set in it",
    "plain: neither": "its fastest sample; the batch does not say where it came from",
    "prioritized: PrioritizedSampler(alpha=0.6, beta=0.4), return_info=True": "updates go to "
    "the index that came beside the batch; its stamps are not asked for",
    "slices: SliceSampler(slice_len=32, cache_values=True), return_info=True": "boundaries are "
    "looked for once, as nothing is written; marks come beside the batch",
    "shared: shared=True, spawn": "its way to several processes; a fork does not share the data",
    "torch.set_num_threads(1)": "one thread, as everybody here",
}


class Rival:
    def __init__(self, fields, capacity, batch, variant):
        torch.set_num_threads(1)
        self.batch = batch
        generations, prioritized = variant == "generations", variant == "prioritized"
        self.with_info = generations or prioritized or variant == "slices"
        self.buffer = ReplayBuffer(
            storage=LazyTensorStorage(capacity),
            sampler=_sampler(variant, capacity),
            writer=RoundRobinWriter(track_generations=generations),
            batch_size=batch,
            shared=variant == "shared",
        )

    def extend(self, rows):
        return partial(self.buffer.extend, tensordict(rows))

    def add(self, row):
        return partial(self.buffer.add, tensordict(row)[0])

    def sample(self):
        return partial(self.buffer.sample, return_info=self.with_info)

    def learn(self):
        sample, update = self.sample(), self.buffer.update_priority
        values = cycle(map(torch.from_numpy, priorities(self.batch)))

        def learn():
            _, info = sample()
            update(info["index"], next(values))

        return learn

    def patch(self):
        field = "action"
        new = torch.from_numpy(rows({field: ("float32", (6,))}, self.batch)[field])
        handles = cycle([self.sample()()[1] for _ in range(HANDLES)])
        update = self.buffer.update_if_present

        def patch():
            info = next(handles)
            update(index=info["index"], generation=info["index_generation"], patch={field: new})

        return patch

    def share(self):
        return self.buffer

    def close(self):
        self.buffer.shutdown()


def _sampler(variant, capacity):
    if variant == "prioritized":
        return PrioritizedSampler(capacity, 0.6, 0.4)
    if variant == "slices":
        return SliceSampler(slice_len=SLICE, end_key=("next", "done"), cache_values=True)
    return RandomSampler()


def writer(shared, variant, rows):
    torch.set_num_threads(1)
    return partial(shared.extend, tensordict(rows))
