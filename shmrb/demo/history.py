"""What a run of the demo has shown so far: plain values for the table, the summary and the plot."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Point:
    """One moment.

    Attributes:
        second: since the start.
        records: written so far.
        batches: drawn so far.
        lag: versions between the newest policy and that of the newest records, on average; None
            before there are any.
        stale: records that were overwritten while the learner worked on them, so far.
        blocked, attached: clients that wait, and that there are.
        training_return: mean of the latest episodes of the collectors; None before the first.
    """

    second: float
    records: int
    batches: int
    lag: float | None
    stale: int
    blocked: int
    attached: int
    training_return: float | None


@dataclass(frozen=True)
class Evaluation:
    """One evaluation without chance.

    Attributes:
        second: when it began.
        version: of the policy.
        mean: return over its episodes.
    """

    second: float
    version: int
    mean: float


@dataclass
class Kill:
    """A process that was killed, and how things went on.

    Attributes:
        what: the process.
        second, records: when, since the start and in records written.
        back_after: seconds until its successor did its work; None: not yet.
        meanwhile: records that the others wrote until then.
    """

    what: str
    second: float
    records: int
    back_after: float | None = None
    meanwhile: int = 0

    def is_over_at(self, second: float) -> bool:
        """Whether its successor was at work by then."""
        return self.back_after is not None and self.second + self.back_after <= second


@dataclass
class History:
    """Everything that was noted, in order of time.

    Attributes:
        is_prioritized: what is stale are priority updates, which the buffer refused.
    """

    is_prioritized: bool = False
    points: list[Point] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    @property
    def latest_return(self) -> float | None:
        """Of the newest evaluation."""
        return self.evaluations[-1].mean if self.evaluations else None

    @property
    def lags(self) -> list[float]:
        """Every lag that was seen."""
        return [point.lag for point in self.points if point.lag is not None]

    def rates(self, window_s: float) -> tuple[float, float]:
        """Records and batches a second over at least so many last seconds."""
        return rates_between(self._back(window_s), self.points[-1]) if self.points else (0.0, 0.0)

    def mean_rates(self) -> tuple[float, float]:
        """The same since the learner drew its first batch."""
        drawn = [point for point in self.points if point.batches]
        return rates_between(drawn[0], drawn[-1]) if drawn else (0.0, 0.0)

    def _back(self, window_s: float) -> Point:
        start = self.points[-1].second - window_s
        earlier = (point for point in reversed(self.points) if point.second <= start)
        return next(earlier, self.points[0])


def rates_between(one: Point, other: Point) -> tuple[float, float]:
    """Records and batches a second between two moments."""
    seconds = other.second - one.second
    if seconds <= 0:
        return 0.0, 0.0
    return (other.records - one.records) / seconds, (other.batches - one.batches) / seconds
