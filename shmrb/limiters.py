"""Descriptions of rate limiters and the arithmetic of their thresholds; floor F1.

The rules are Reverb's (`reverb/rate_limiters.py`, `reverb/cc/rate_limiter.cc`), so that its
settings can be taken over. With inserts, samples and deletes counted since creation, a sample of n
may go ahead if

    inserts - deletes >= min_size   and   inserts * samples_per_insert - samples - n >= min_diff

and an insert of n if

    inserts + n - deletes <= min_size   or   (inserts + n) * samples_per_insert - samples <=
    max_diff
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from shmrb.components import MAX_CAPACITY
from shmrb.description import Description, real, whole
from shmrb.errors import SpecError

# Like Reverb: a bound that no count reaches, and that JSON can hold, unlike infinity.
UNBOUNDED = sys.float_info.max

# Records that a producer writes in one call unless it is told otherwise.
DEFAULT_INSERT_COST = 64

# Keeps every threshold finite; no learner draws a record so often.
MAX_RATIO = 1e9

# Multiples of 1 / 1024 are exact in every count; a part in 1024 is more than counts of up to 2^40
# are rounded by.
_EXACT = 1024

ErrorBuffer = float | tuple[float, float]


def smallest_error_buffer(
    samples_per_insert: float, batch_cost: float, insert_cost: float = DEFAULT_INSERT_COST
) -> float:
    """The smallest error buffer with which samplers and writers cannot block each other.

    Args:
        samples_per_insert: as in `RateLimiter`.
        batch_cost: loss-bearing records of the largest sample.
        insert_cost: records of the largest insert.
    """
    # Both are blocked only if max_diff - insert_cost * spi < difference < min_diff + batch_cost.
    both_ways = batch_cost + insert_cost * samples_per_insert
    smallest = max(both_ways, _least_span(samples_per_insert)) / 2
    if (samples_per_insert * _EXACT).is_integer():
        return smallest
    # Then inserts * spi is rounded, and what is exactly on a bound may come out beyond it.
    return smallest * (1 + 1 / _EXACT)


def thresholds(
    min_size: int, samples_per_insert: float, error_buffer: ErrorBuffer
) -> tuple[float, float]:
    """`min_diff` and `max_diff` of these settings; a pair is taken as it is, without an offset."""
    if isinstance(error_buffer, tuple):
        return error_buffer
    offset = samples_per_insert * min_size
    return offset - error_buffer, offset + error_buffer


def _least_span(samples_per_insert: float) -> float:
    return 2 * max(1.0, samples_per_insert)


@dataclass(frozen=True, slots=True)
class RateLimiter(Description):
    """Holds the ratio of samples to inserts; the first `min_size` inserts are free.

    Args:
        min_size: records that must be there before the first sample, >= 1.
        samples_per_insert: how often a record is drawn on average, > 0. Samples are loss-bearing
            records: a sequence of length 32 counts 32.
        error_buffer: how far the difference may stray from `min_size * samples_per_insert` before
            one side waits; or the pair (min_diff, max_diff) itself. None: the smallest with which
            the buffer's batch size and chunks of 64 cannot block each other.
    """

    kind: ClassVar[str] = "RateLimiter"

    min_size: int = field(kw_only=True)
    samples_per_insert: float = field(kw_only=True)
    error_buffer: ErrorBuffer | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        min_size = whole("min_size", self.min_size, least=1, most=MAX_CAPACITY)
        ratio = real("samples_per_insert", self.samples_per_insert)
        if not 0 < ratio <= MAX_RATIO:
            raise SpecError(
                f"samples_per_insert must be above 0 and at most {MAX_RATIO:g}, got {ratio}."
            )
        object.__setattr__(self, "min_size", min_size)
        object.__setattr__(self, "samples_per_insert", ratio)
        if self.error_buffer is not None:
            object.__setattr__(self, "error_buffer", _read_error_buffer(self.error_buffer))
            self._check_span()

    def _check_span(self) -> None:
        start = self.min_size * self.samples_per_insert
        if _span(self) < _least_span(self.samples_per_insert):
            raise SpecError(
                f"error_buffer={self.error_buffer} spans {_span(self)}; expected at least "
                f"2 * max(1, samples_per_insert) = {_least_span(self.samples_per_insert)}, since "
                "less could block every call. Take error_buffer >= "
                f"{max(1.0, self.samples_per_insert)}."
            )
        if self.thresholds()[0] > start:
            raise SpecError(
                f"error_buffer={self.error_buffer} begins above min_size * samples_per_insert = "
                f"{start}: nothing could be drawn once min_size records are there. "
                f"Take min_diff <= {start}."
            )

    def thresholds(self) -> tuple[float, float]:
        """`min_diff` and `max_diff`.

        Raises:
            SpecError: `error_buffer` is None; `resolved` chooses it.
        """
        if self.error_buffer is None:
            raise SpecError("error_buffer is not chosen yet; `resolved(batch_cost)` chooses it.")
        return thresholds(self.min_size, self.samples_per_insert, self.error_buffer)

    def resolved(self, batch_cost: float, insert_cost: float = DEFAULT_INSERT_COST) -> RateLimiter:
        """This limiter with an error buffer: its own, or the smallest for these costs."""
        if self.error_buffer is not None:
            return self
        smallest = smallest_error_buffer(self.samples_per_insert, batch_cost, insert_cost)
        return replace(self, error_buffer=smallest)

    @classmethod
    def _values(cls, known: dict[str, Any]) -> dict[str, Any]:
        pair = known.get("error_buffer")
        return known | {"error_buffer": tuple(pair)} if isinstance(pair, list) else known


@dataclass(frozen=True, slots=True)
class MinSize(Description):
    """Samples wait until the buffer holds `min_size` records; inserts never wait.

    Args:
        min_size: records, >= 1.
    """

    kind: ClassVar[str] = "MinSize"

    min_size: int

    def __post_init__(self) -> None:
        min_size = whole("min_size", self.min_size, least=1, most=MAX_CAPACITY)
        object.__setattr__(self, "min_size", min_size)

    @property
    def samples_per_insert(self) -> float:
        """1, though no difference is ever too large."""
        return 1.0

    def thresholds(self) -> tuple[float, float]:
        """`min_diff` and `max_diff`: no bounds."""
        return -UNBOUNDED, UNBOUNDED

    def resolved(self, batch_cost: float, insert_cost: float = DEFAULT_INSERT_COST) -> MinSize:
        """The limiter itself; it has nothing to choose."""
        return self


@dataclass(frozen=True, slots=True)
class Queue(Description):
    """As many samples as inserts, and writers at most `size` records ahead.

    Args:
        size: records, >= 1.
    """

    kind: ClassVar[str] = "Queue"

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole("size", self.size, least=1, most=MAX_CAPACITY))

    @property
    def min_size(self) -> int:
        """1: a queue gives what it has."""
        return 1

    @property
    def samples_per_insert(self) -> float:
        """1: what goes in comes out once."""
        return 1.0

    def thresholds(self) -> tuple[float, float]:
        """`min_diff` and `max_diff`."""
        return 0.0, float(self.size)

    def resolved(self, batch_cost: float, insert_cost: float = DEFAULT_INSERT_COST) -> Queue:
        """The limiter itself; it has nothing to choose."""
        return self


def check_reach(limiter: RateLimiter | MinSize | Queue, capacity: int, batch_cost: int) -> None:
    """Check that the limiter can ever let a sample of this cost through.

    Args:
        limiter: with or without an error buffer.
        capacity: of the buffer, records.
        batch_cost: loss-bearing records of a sample; 0 if the batch size is not known.

    Raises:
        SpecError: it must deadlock; the message gives the smallest setting that works.
    """
    name = "size" if isinstance(limiter, Queue) else "min_size"
    needed = getattr(limiter, name)
    if needed > capacity:
        raise SpecError(
            f"{limiter.kind}({name}={needed}) is more than the capacity {capacity}: the buffer "
            f"never holds so many. Take {name} <= {capacity}."
        )
    span = _span(limiter.resolved(batch_cost))
    if span < batch_cost:
        cure = f"size >= {batch_cost}"
        if isinstance(limiter, RateLimiter):
            smallest = smallest_error_buffer(limiter.samples_per_insert, batch_cost)
            cure = f"error_buffer >= {smallest}, enough for inserts of 64, or leave it out"
        raise SpecError(
            f"{limiter} can never let a batch through: it costs {batch_cost} samples, and the "
            f"limiter spans {span}. Take {cure}."
        )


def _span(limiter: RateLimiter | MinSize | Queue) -> float:
    if isinstance(limiter, RateLimiter) and isinstance(limiter.error_buffer, float):
        return 2 * limiter.error_buffer  # exact, unlike the difference of two rounded thresholds
    least, most = limiter.thresholds()
    return most - least


def _read_error_buffer(value: Any) -> ErrorBuffer:
    if not isinstance(value, (tuple, list)):
        return real("error_buffer", value)
    if len(value) != 2:
        raise SpecError(f"error_buffer must be a number or (min_diff, max_diff), got {value!r}.")
    return real("error_buffer's min_diff", value[0]), real("error_buffer's max_diff", value[1])
