"""The refresher process: brings what recorded agents remembered up to date.

`python -m shmrb.demo.refresher JOB`; imports no torch. Records hold the memory that the policy of
their time had. The refresher draws sequences, goes through them with the newest policy, and writes
what that one remembers over it, beside the learner and the collectors: only where the record is
still there, and holds the memory of an older policy.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shmrb
from shmrb.batches import GENERATION, INDEX, VALIDITY
from shmrb.demo import recipe
from shmrb.demo.job import Job
from shmrb.demo.policy import Floats
from shmrb.demo.recurrent import Cell
from shmrb.demo.reports import REPORT_EVERY_S, STARTUP_S, StopRequest, report
from shmrb.demo.seals import Checker

# All but the last record carry no loss, so the limiter leaves the draws to the learner.
UNIT = shmrb.Sequence(length=1, burn_in=31)
SEQUENCES = 32
# The learner needs the cores more.
PAUSE_S = 0.02


@dataclass
class Refreshed:
    """What became of the memories that were written back, so far.

    Attributes:
        updated: they are in the records.
        stale: the record was overwritten meanwhile.
        rejected: the record holds the memory of this policy or of a newer one.
    """

    updated: int = 0
    stale: int = 0
    rejected: int = 0

    @property
    def has_met_all(self) -> bool:
        """Whether each of the three has happened."""
        return min(self.updated, self.stale, self.rejected) > 0


class Refresher:
    """Goes through sequences of one buffer, in memory that is used again.

    Args:
        buffer: a handle in numpy format that draws whole sequences of `UNIT`.
        timeout: seconds to wait for the first.
    """

    def __init__(self, buffer: shmrb.ReplayBuffer, timeout: float) -> None:
        assert buffer.schema is not None
        self._buffer = buffer
        self._batch = buffer.sample(timeout=timeout)
        self.checker = Checker(buffer.schema, self._batch)
        self.refreshed = Refreshed()

    def refresh(self, cell: Cell, version: int) -> None:
        """Write the memories of a policy over those of the sequences drawn, and draw others.

        Args:
            cell: of the policy.
            version: of the policy.
        """
        batch = self._batch
        self.checker.check()
        memories, follows = remembered(cell, batch)
        batch[recipe.STATE][:] = memories
        batch[recipe.STATE_VERSION][:] = version
        result = self._buffer.update_if_present(
            index=batch[INDEX][follows],
            generation=batch[GENERATION][follows],
            patch={
                recipe.STATE: memories[follows],
                # A record is patched whole or not at all, or the seal will not fit.
                recipe.SEAL: self.checker.seals()[follows],
            },
            version_key=recipe.STATE_VERSION,
            version=version,
            require_newer=True,
        )
        self.refreshed.updated += result.updated_count
        self.refreshed.stale += result.stale_count
        self.refreshed.rejected += result.version_rejected_count
        self._buffer.sample(out=batch)


def remembered(cell: Cell, batch: Any) -> tuple[Floats, NDArray[np.bool_]]:
    """What is remembered before each record of sequences of `UNIT`.

    Returns:
        float32 [N, size], from the recorded memory of the first record of each sequence on; and
        bool [N], for which records that is news: they follow another one.
    """
    steps = UNIT.window
    is_real = batch[VALIDITY].reshape(-1, steps)
    observations = batch["observation"].reshape(len(is_real), steps, -1)
    memories = batch[recipe.STATE].reshape(len(is_real), steps, -1).copy()
    for step in range(steps - 1):
        # What precedes the first record of an episode is padding.
        before = memories[:, step]
        after = cell(observations[:, step], before)
        memories[:, step + 1] = np.where(is_real[:, step, None], after, before)
    follows = np.zeros_like(is_real)
    follows[:, 1:] = is_real[:, 1:] & is_real[:, :-1]
    return memories.reshape(len(batch[INDEX]), -1), follows.reshape(-1)


def refresh(job: Job, stop: StopRequest) -> None:
    """Refresh until somebody asks for the end."""
    options: dict[str, Any] = {"timeout": STARTUP_S, "format": "numpy", "client_name": "refresher"}
    parameters = shmrb.Parameters(recipe.POLICY, **options)
    version, tree = parameters.latest(timeout=STARTUP_S)
    buffer = shmrb.attach(
        recipe.BUFFER,
        sampler=shmrb.RandomSampler(),
        sample_unit=UNIT,
        batch_size=SEQUENCES,
        **options,
    )
    refresher = Refresher(buffer, STARTUP_S)
    report_at = 0.0
    with stop.deferred():
        while not stop.is_made:
            newer, fresh = parameters.latest(newer_than=version)
            if fresh is not None:
                version, tree = newer, fresh
            refresher.refresh(Cell(tree["cell"]), version)
            if time.monotonic() >= report_at:
                report_at = time.monotonic() + REPORT_EVERY_S
                _report(refresher)
            time.sleep(PAUSE_S)
        _report(refresher)
    buffer.close()
    parameters.close()


def _report(refresher: Refresher) -> None:
    checker, refreshed = refresher.checker, refresher.refreshed
    report("refreshed", checked=checker.checked, torn=checker.broken, **vars(refreshed))


if __name__ == "__main__":
    refresh(Job.from_argument(sys.argv[1]), StopRequest())
