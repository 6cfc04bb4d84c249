"""`traj`: conditions on whole trajectories, written as expressions (floor F5).

    (traj.reward.sum() > 100) & (traj.length < 200) | (traj.observation > 3).any()

An expression knows which fields it reads, so a query reads no others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from shmrb.description import Path
from shmrb.errors import SpecTypeError
from shmrb.fields import key_path
from shmrb.trajectories import Trajectory

Value = Callable[[Trajectory], Any]
Result = TypeVar("Result")
_OPERATORS = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


class TrajectoryPredicate:
    """A condition on a trajectory; `&`, `|` and `~` make others of it.

    Args:
        holds: says whether it does.
        text: how it is written.
        keys: the fields that it reads, None if nobody knows.
    """

    def __init__(self, holds: Value, text: str, keys: frozenset[Any] | None) -> None:
        self._holds = holds
        self._text = text
        self._keys = keys

    def required_keys(self) -> frozenset[Any] | None:
        """The fields that it reads, None if nobody knows."""
        return self._keys

    def __call__(self, trajectory: Trajectory) -> bool:
        return bool(self._holds(trajectory))

    def __and__(self, other: TrajectoryPredicate) -> TrajectoryPredicate:
        text = f"({self._text} & {other._text})"
        return TrajectoryPredicate(lambda t: self(t) and other(t), text, self._with(other))

    def __or__(self, other: TrajectoryPredicate) -> TrajectoryPredicate:
        text = f"({self._text} | {other._text})"
        return TrajectoryPredicate(lambda t: self(t) or other(t), text, self._with(other))

    def __invert__(self) -> TrajectoryPredicate:
        return TrajectoryPredicate(lambda t: not self(t), f"~{self._text}", self._keys)

    def _with(self, other: TrajectoryPredicate) -> frozenset[Any] | None:
        if self._keys is None or other._keys is None:
            return None
        return self._keys | other._keys

    def __bool__(self) -> bool:
        raise SpecTypeError(f"{self._text} is no bool: join conditions by &, | and ~.")

    def __repr__(self) -> str:
        return f"TrajectoryPredicate({self._text})"


class Elementwise:
    """A comparison of every record, which `any` or `all` makes a condition of."""

    def __init__(self, values: Value, text: str, keys: frozenset[Any]) -> None:
        self._values = values
        self._text = text
        self._keys = keys

    def any(self) -> TrajectoryPredicate:
        """It holds for a record."""
        return TrajectoryPredicate(
            lambda t: self._values(t).any(), f"{self._text}.any()", self._keys
        )

    def all(self) -> TrajectoryPredicate:
        """It holds for every record."""
        return TrajectoryPredicate(
            lambda t: self._values(t).all(), f"{self._text}.all()", self._keys
        )

    def refuse(self, *_: Any) -> Any:
        """Says what is missing."""
        raise SpecTypeError(
            f"{self._text} compares per-transition values and is ambiguous as a trajectory filter. "
            "Call .any() or .all() to reduce it to a single boolean."
        )

    __call__ = __bool__ = __and__ = __or__ = __invert__ = refuse


class _Comparable(Generic[Result]):
    """An expression that can be compared with a number."""

    _makes: Callable[[Value, str, frozenset[Any]], Result]

    def __init__(self, value: Value, text: str, keys: frozenset[Any]) -> None:
        self._value = value
        self._text = text
        self._keys = keys

    def _compared(self, symbol: str, other: Any) -> Result:
        compare, value = _OPERATORS[symbol], self._value
        text = f"({self._text} {symbol} {other!r})"
        return type(self)._makes(lambda t: compare(value(t), other), text, self._keys)

    def __gt__(self, other: Any) -> Result:
        return self._compared(">", other)

    def __ge__(self, other: Any) -> Result:
        return self._compared(">=", other)

    def __lt__(self, other: Any) -> Result:
        return self._compared("<", other)

    def __le__(self, other: Any) -> Result:
        return self._compared("<=", other)

    def __eq__(self, other: Any) -> Result:  # type: ignore[override]
        return self._compared("==", other)

    def __ne__(self, other: Any) -> Result:  # type: ignore[override]
        return self._compared("!=", other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return self._text


class Scalar(_Comparable[TrajectoryPredicate]):
    """One number of a trajectory."""

    _makes = TrajectoryPredicate


class FieldValues(_Comparable[Elementwise]):
    """A field of a trajectory: one value or more a record."""

    _makes = Elementwise

    def _reduced(self, reduce: Callable[[Any], Any], name: str) -> Scalar:
        value = self._value
        return Scalar(lambda t: reduce(value(t)), f"{self._text}.{name}()", self._keys)

    def sum(self) -> Scalar:
        """The sum over the trajectory."""
        return self._reduced(lambda x: x.sum(), "sum")

    def mean(self) -> Scalar:
        """The mean over the trajectory, in floating point."""
        return self._reduced(lambda x: (x * 1.0).mean(), "mean")

    def max(self) -> Scalar:
        """The greatest value."""
        return self._reduced(lambda x: x.max(), "max")

    def min(self) -> Scalar:
        """The least value."""
        return self._reduced(lambda x: x.min(), "min")

    def first(self) -> Scalar:
        """The value of the first record."""
        return self._reduced(lambda x: x[0], "first")

    def last(self) -> Scalar:
        """The value of the last record."""
        return self._reduced(lambda x: x[-1], "last")


class TrajectoryExpression:
    """The beginning of every expression: `traj`."""

    @property
    def length(self) -> Scalar:
        """How many records it has."""
        return Scalar(lambda t: t.length, "traj.length", frozenset())

    @property
    def total_reward(self) -> Scalar:
        """The sum of its rewards."""
        return Scalar(lambda t: t.total_reward, "traj.total_reward", frozenset({"reward"}))

    def __getattr__(self, name: str) -> FieldValues:
        if name.startswith("_"):
            raise AttributeError(name)
        return _field((name,), f"traj.{name}")

    def __getitem__(self, key: Any) -> FieldValues:
        return _field(key_path(key), f"traj[{key!r}]")

    def __repr__(self) -> str:
        return "traj"


def _field(path: Path, text: str) -> FieldValues:
    key = path[0] if len(path) == 1 else path
    return FieldValues(lambda t: t._require(key), text, frozenset({key}))


traj = TrajectoryExpression()
