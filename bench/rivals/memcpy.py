"""No buffer at all: one core copying the same bytes between ordinary memory. The floor."""

from functools import partial

import numpy as np

LABEL = "memcpy"
DISTRIBUTIONS = ("numpy",)
OPTIONS = {
    "one contiguous copy a call": "nothing is drawn, gathered or checked",
    "a window that moves": "the ring side is as cold as a buffer's, the other side as warm",
    "private anonymous memory": "may get huge pages, which shared memory may not",
}


class Rival:
    def __init__(self, fields, capacity, batch, variant):
        ((dtype, shape),) = fields.values()
        # Written once, so that the first pass does not pay for page faults.
        self.ring = np.full((capacity, *shape), 1, dtype=dtype)
        self.reused = np.zeros((batch, *shape), dtype=dtype)

    def extend(self, rows):
        (source,) = rows.values()
        return partial(next, self._copies(len(source), lambda ring: np.copyto(ring, source)))

    def gather(self):
        size = len(self.reused)
        return partial(next, self._copies(size, lambda ring: np.copyto(self.reused, ring)))

    def _copies(self, size, copy):
        starts = np.arange(0, len(self.ring) - size + 1, size)
        np.random.default_rng(0).shuffle(starts)
        while True:
            for start in starts.tolist():
                yield copy(self.ring[start : start + size])

    def close(self):
        del self.ring
