"""The part of a handle that draws batches (floor F5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shmrb.drawn import Drawn
from shmrb.errors import SpecError
from shmrb.parts import Parts
from shmrb.placing import Placing
from shmrb.prefetching import Prefetcher, check_prefetch
from shmrb.results import BufferStats
from shmrb.spec import Sampler


class Sampling(Parts):
    """Batches of `ReplayBuffer`, one by one or in turn, and their end."""

    _prefetcher: Prefetcher | None
    _is_within_pass: bool

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        *,
        timeout: float | None = None,
        out: Any = None,
        hold: bool = False,
        device: Any = None,
        pin_memory: bool = False,
    ) -> Any:
        """Draws a batch.

        Args:
            batch_size: records, >= 1; None: the handle's.
            return_info: also return a dictionary of what goes beside the fields.
            timeout: seconds to wait for the limiter; given and above 0, an empty buffer is waited
                for too, else it is refused at once. None: the handle's default.
            out: an earlier batch of this size and form; its memory is used again, and it is what
                is returned, unless transforms or a short last batch make another.
            hold: with consumption, keep the records taken until `ack(batch)`; should this client
                end before, others get them. Without it they count as drawn when this call returns.
            device: where a TensorDict's tensors go; None: they stay on the CPU.
            pin_memory: copy them into page-locked memory first, from which a device copies while
                the program goes on.

        Returns:
            B records as a TensorDict (or nested dictionaries of arrays), in memory of the caller's:
            every field [B, *shape], "index" int64 [B] and "index_generation" int64 [B]; from a
            `PrioritizedSampler` also "priority_weight" float32 [B]. Exactly B, except for the last
            batch without replacement, and fewer if a consuming, FIFO or LIFO draw finds fewer.

        Raises:
            EmptyBufferError: there is no record, or none with a priority above zero.
            DeadlineError: the limiter let nothing through, or too few records stayed whole.
            SpecError: `hold` without consumption, or a device for numpy arrays.

        Concurrency: any number of processes; a record overwritten while it is copied is drawn
        again. With consumption no record is given out more than `consume_after_n_samples` times.
        Cost: one gather; no system call unless waiting.
        """
        placing = (
            Placing.of(device, pin_memory, self._consumer.format)
            if (device is not None or pin_memory)
            else None
        )
        drawn = self._drawn(batch_size, timeout, out, hold)
        form = drawn.form or self._consumer.form
        info = drawn.info()
        if self._transforms:
            data = form.assemble(drawn.batch.leaves, drawn.count, {})
            data = form.add_info(self._transforms.after_reading(data), info)
        elif drawn.reuses_out:
            data = out
        else:
            data = form.assemble(drawn.batch.leaves, drawn.count, info)
        if placing is not None:
            data, info = placing.moved(data), placing.moved(info)
        return (data, info) if return_info else data

    def _drawn(self, batch_size: int | None, timeout: float | None, out: Any, hold: bool) -> Drawn:
        ahead = self._prefetcher
        if ahead is None or out is not None or hold:
            return self._consumer.draw(batch_size, timeout, out, hold)
        if batch_size is not None and self._consumer.resolve_batch_size(batch_size) != (
            self._consumer.batch_size
        ):
            return self._consumer.draw(batch_size, timeout, out)
        return ahead.next(timeout)

    def ack(self, batch: Any, *, timeout: float | None = None) -> Any:
        """Ends what `sample(hold=True)` took: the records count as drawn.

        Args:
            batch: what `sample` gave, whole or a part of it.
            timeout: seconds to wait for a stopped client.

        Returns:
            bool [N], which rows this call ended. Rows that were acknowledged before, that the ring
            has overwritten meanwhile, or that another handle took are left alone.

        Raises:
            SpecError: the buffer takes no records away.
            RecordError: the batch has lost its stamps.

        Concurrency: a client that dies before this call loses nothing: others draw its records
        again. One that dies after it has processed them and before this call leaves them to be
        processed twice: what is held is delivered at least once.
        """
        mask = self._consumer.consuming.acknowledge(batch, timeout)
        return self._consumer.form.from_numpy(mask)

    def __iter__(self) -> Iterator[Any]:
        """Batches: one pass without replacement, for ever with it; with consumption until no record
        is left."""
        if self._consumer.batch_size is None:
            raise SpecError(
                "Cannot iterate over the replay buffer. Batch_size was not specified during "
                "construction of the replay buffer."
            )
        self._consumer.ran_out = False
        while not self._consumer.ran_out:
            yield self.sample()

    def next(self) -> Any:
        """The next batch, None when a pass without replacement is over; then a new one starts."""
        if self._is_within_pass and self._consumer.ran_out:
            self._is_within_pass = False
            return None
        self._is_within_pass = True
        self._consumer.ran_out = False
        return self.sample()

    @property
    def batch_size(self) -> int | None:
        """The handle's batch size."""
        return self._consumer.batch_size

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Gives this handle another sampler; the former one. What was drawn ahead is dropped."""
        if self._prefetcher is not None:
            spec = self._attachment.spec.for_handle(sampler=sampler, batch_size=self.batch_size)
            check_prefetch(self._prefetcher.count, spec)
        former = super().set_sampler(sampler)
        self._forget()
        return former

    def _forget(self) -> None:
        """Drops what was drawn ahead."""
        if self._prefetcher is not None:
            self._prefetcher.forget()

    def statistics(self) -> BufferStats:
        """The whole buffer at one moment, as a `BufferStats`."""
        stats = super().statistics()
        ready = self._prefetcher.ready if self._prefetcher is not None else 0
        return replace(stats, prefetch_queue_size=ready)

    def close(self) -> None:
        """Gives the client slot back; again: nothing.

        Calls of other threads end first, those that wait with `ClosedError`. What this handle holds
        of a consuming buffer is given back. The buffer stays, unless it ends with this creator.
        """
        if self._prefetcher is not None:
            self._prefetcher.close()
        super().close()
