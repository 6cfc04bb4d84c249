"""A buffer's rate limits as a handle sees and changes them (floor F5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shmrb.attachment import Attachment
from shmrb.core import SLICE_NS
from shmrb.errors import SpecError
from shmrb.limiters import check_reach
from shmrb.results import LimiterInfo
from shmrb.segment import snapshot
from shmrb.spec import BufferSpec, Limiter
from shmrb.waiting import Call


class Limits:
    """The limiter of one buffer. What is changed here changes for everybody.

    Args:
        attachment: the handle's.
    """

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    @property
    def info(self) -> LimiterInfo:
        """The limits and where they stand.

        Raises:
            SpecError: the buffer was created without a limiter.
        """
        self._require()
        return snapshot.limiter(self._attachment.member.segment)

    def set(self, limiter: Limiter | None, *, timeout: float | None = None) -> None:
        """Other limits from now on; None switches them off. Counts go on.

        Raises:
            SpecError: they must deadlock; the message gives the smallest error buffer that works.
            DeadlineError: the control lock was not to be had.
        """
        spec = self._require()
        if limiter is None:
            info = self.info
            numbers = (info.min_size, info.samples_per_insert, info.min_diff, info.max_diff)
        else:
            batch = spec.batch_size or 0
            check_reach(limiter, spec.capacity, batch * spec.sample_unit.cost)
            limiter = limiter.resolved(batch or 1)
            numbers = (limiter.min_size, limiter.samples_per_insert, *limiter.thresholds())
        enabled = limiter is not None
        self._attachment.run(
            lambda segment: segment.set_limits(enabled, *numbers, SLICE_NS),
            Call("limiter.set"),
            timeout,
        )

    def lift(self, lifted: bool = True, *, timeout: float | None = None) -> None:
        """Lifts the limits, or puts them back.

        While they are lifted nothing is refused and nothing counted: records loaded meanwhile are
        owed no samples afterwards.
        """
        self._require()
        self._attachment.run(
            lambda segment: segment.lift(lifted, SLICE_NS), Call("limiter.lift"), timeout
        )

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """The limits are lifted inside the block, for preloading."""
        self.lift()
        try:
            yield
        finally:
            self.lift(False)

    def _require(self) -> BufferSpec:
        spec = self._attachment.spec
        if spec.limiter is None:
            raise SpecError(
                f"{self._attachment.address.name} has no rate limiter. Create the buffer with "
                "limiter=RateLimiter(...), MinSize(...) or Queue(...)."
            )
        return spec
