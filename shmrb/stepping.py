"""Where the parts of a step go in rows that wait to be written: both layouts (floor F5).

A step is taken in whole: what is refused leaves the rows that count as they were.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shmrb.description import Path
from shmrb.errors import RecordError, SpecError
from shmrb.fields import Field, show_path
from shmrb.gathering import Chunk, Place
from shmrb.schema import Schema
from shmrb.steps import is_stored_once

OBSERVATION: Path = ("observation",)
ACTION: Path = ("action",)

# The parameters of `Producer.step`: a further field of one of these names could not be given to it.
_TAKEN = frozenset(
    {"self", "obs", "action", "reward", "next_obs", "terminated", "truncated", "info"}
)


class StoredTwice:
    """One row a step, which holds what came next.

    Attributes:
        above: where reward and flags lie.

    Args:
        schema: of the records.
        size: rows.
        cast: as in `RecordReader`.
    """

    above: Path = ("next",)

    def __init__(self, schema: Schema, size: int, cast: str) -> None:
        self.chunk = Chunk(schema, size, cast)
        self.size = size
        next_observation = (*self.above, *OBSERVATION)
        parts = _Parts(schema, self.chunk, self.above, (OBSERVATION, ACTION, next_observation))
        observation, action, self._next = (place for place in parts.places)
        self._put_observation = observation.put
        self._put_action = action.put
        self._put_next = self._next.put
        self._put_reward = parts.reward.put
        self._terminated, self._truncated, self._done = parts.flags
        self._extra = parts.extra
        self._has_extra = parts.has_extra

    def take(
        self,
        row: int,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminated: bool,
        truncated: bool,
        extra: dict[str, Any],
        goes_on: bool,
    ) -> int:
        """Puts a step into a row; how many rows that took."""
        self._put_observation(row, obs)
        self._put_action(row, action)
        self._put_next(row, next_obs)
        self._put_reward(row, reward)
        self._terminated[row] = terminated
        self._truncated[row] = truncated
        self._done[row] = terminated or truncated
        if extra or self._has_extra:
            self._extra.put(row, extra)
        return 1

    def led_to(self, row: int, obs: Any) -> bool:
        """Whether the step that ended in the row before this one led to that observation."""
        return self._next.holds(row - 1, obs)

    def close(self, row: int) -> int:
        """Closes a trajectory whose end was told; how many rows that took."""
        return 0

    def carry(self, row: int) -> None:
        """The rows before this one were written; the next step goes into row 0."""


class StoredOnce:
    """A row holds what was seen, and the reward and flags of the step that led there.

    A step fills in the row it starts from and writes what it led to into the next one, so the last
    row of a trajectory is its final observation. There is one row more than steps.

    Attributes and args as for `StoredTwice`.
    """

    above: Path = ()

    def __init__(self, schema: Schema, size: int, cast: str) -> None:
        self.chunk = Chunk(schema, size + 1, cast)
        self.size = size
        parts = _Parts(schema, self.chunk, self.above, (OBSERVATION, ACTION))
        self._observation, self._action = parts.places
        self._reward = parts.reward
        self._terminated, self._truncated, self._done = parts.flags
        self._extra = parts.extra
        self._has_extra = parts.has_extra
        # What the newest row was filled in from: loops pass it on as the next step's observation.
        self._newest: Any = None
        self._last_extra: dict[str, Any] = {}
        self._values_of_now = [
            field.path for field in schema.fields if field.path[:1] != OBSERVATION
        ]
        self._actions = [field.path for field in schema.fields if field.path[:1] == ACTION]

    def take(
        self,
        row: int,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminated: bool,
        truncated: bool,
        extra: dict[str, Any],
        goes_on: bool,
    ) -> int:
        """Puts a step into a row and the one after it; how many rows are done with."""
        if not goes_on:
            self._observation.put(row, obs)
            self.chunk.clear(row, self._values_of_now)
        elif obs is not self._newest and not self._observation.holds(row, obs):
            raise RecordError(
                "step: obs is not the next_obs of the step before, from which records without "
                "'next' fields take what came next. Call end_trajectory() where the loop resets "
                "the environment before an episode ends."
            )
        self._action.put(row, action)
        if extra or self._has_extra:
            self._extra.put(row, extra)
        after = row + 1
        self._observation.put(after, next_obs)
        self._reward.put(after, reward)
        ended = terminated or truncated
        self._terminated[after] = terminated
        self._truncated[after] = truncated
        self._done[after] = ended
        self._newest = next_obs
        self._last_extra = extra
        return 1 + self.close(after) if ended else 1

    def led_to(self, row: int, obs: Any) -> bool:
        """Whether the step that ended in the row before this one led to that observation."""
        return self._observation.holds(row - 1, obs)

    def close(self, row: int) -> int:
        """Makes the row a final observation: there is no action in it."""
        self.chunk.clear(row, self._actions)
        if self._last_extra or self._has_extra:
            self._extra.put(row, self._last_extra)
        return 1

    def carry(self, row: int) -> None:
        """The rows before this one were written; what it holds goes on in row 0."""
        if row < len(self.chunk):
            self.chunk.move(row, 0)


def rows_for(schema: Schema, size: int, cast: str) -> StoredTwice | StoredOnce:
    """Room for so many steps, in the layout of the schema.

    Raises:
        SpecError: the schema lacks what a step has.
    """
    kind = StoredOnce if is_stored_once(schema) else StoredTwice
    return kind(schema, size, cast)


class _Parts:
    """The places of a chunk by what they mean.

    Args:
        schema, chunk: the fields and their rows.
        above: where reward and flags lie.
        places: paths of what is an observation or an action.
    """

    def __init__(self, schema: Schema, chunk: Chunk, above: Path, places: tuple[Path, ...]) -> None:
        reward, terminated, truncated, done = (
            (*above, key) for key in ("reward", "terminated", "truncated", "done")
        )
        fields = {path: below(schema, path) for path in places}
        missing = [path for path, found in fields.items() if not found]
        missing += [path for path in (reward, terminated) if not below(schema, path)]
        if not below(schema, truncated) and not below(schema, done):
            missing.append(truncated)
        if schema.root != "dict" or missing:
            raise SpecError(
                f"producer: the schema has no {', '.join(map(show_path, missing))}. Use the fields "
                "of shmrb.schema_from_env(env), or write with extend."
            )
        self.places = [chunk.place(found, path) for path, found in fields.items()]
        self.reward: Place = chunk.reals(below(schema, reward), reward)
        self.flags = [_flags(schema, chunk, path) for path in (terminated, truncated, done)]
        known = {*fields, reward, terminated, truncated, done}
        extra = [f for f in schema.fields if not any(f.path[: len(p)] == p for p in known)]
        taken = sorted({field.path[0] for field in extra} & _TAKEN)
        if taken:
            raise SpecError(
                f"producer: the field {taken[0]!r} bears the name of one of step's own arguments. "
                "Rename it, or write with extend."
            )
        self.extra: Place = chunk.place(extra)
        self.has_extra = bool(extra)


def _flags(schema: Schema, chunk: Chunk, path: Path) -> Any:
    """The bools of a field, or room that nobody reads where the schema does not have it."""
    fields = below(schema, path)
    if not fields:
        return np.empty(len(chunk), np.bool_)
    if fields[0].path != path or fields[0].dtype != "bool" or fields[0].row_bytes != 1:
        raise SpecError(
            f"producer: expected a bool of one element in {show_path(path)}, the schema has "
            f"{fields[0]}. Use the fields of shmrb.schema_from_env(env), or write with extend."
        )
    return chunk.numbers(path)


def below(schema: Schema, path: Path) -> list[Field]:
    """The fields of a name: the field itself, or those below it."""
    return [field for field in schema.fields if field.path[: len(path)] == path]
