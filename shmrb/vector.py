"""`VectorProducer`: the steps of a vector of environments, each in a lane of its own (floor F5)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from shmrb.description import whole
from shmrb.errors import ClosedError, RecordError, ShmrbError
from shmrb.lanes import Lane
from shmrb.likeness import is_mapping
from shmrb.producer import LAST_FLUSH_S, Producer

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from shmrb.buffer import ReplayBuffer


class VectorProducer:
    """Gathers the transitions of `envs` environments, environment i in a lane of its own.

    `ReplayBuffer.producer(envs=k)` makes it. Each environment ends and begins its episodes at its
    own time, as in `Producer`; its lane may change where one has ended.

    Args:
        buffer: the handle that writes.
        envs: environments; the buffer must have that many lanes.
        chunk, autoreset, timeout: as for `Producer`, for each environment.

    Raises:
        SpecError: the buffer has fewer lanes, or as for `Producer`.
        LaneBusyError: too few lanes were free in time.

    Concurrency: belongs to one thread.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        *,
        envs: int,
        chunk: int = 64,
        autoreset: str = "next_step",
        timeout: float | None = None,
    ) -> None:
        self.envs = whole("envs", envs, least=1)
        self._name = buffer.name
        self._lane = Lane(buffer, count=self.envs, rotate=True, timeout=timeout)
        try:
            self._producers = [
                Producer(
                    buffer,
                    chunk=chunk,
                    autoreset=autoreset,
                    timeout=timeout,
                    sink=self._lane.column(place),
                )
                for place in range(self.envs)
            ]
        except BaseException:
            self._lane.close()
            raise
        self._is_closed = False
        # The environment whose turn it is when a step that failed is made again.
        self._turn = 0

    @property
    def lanes(self) -> tuple[int, ...]:
        """The lane of each environment now."""
        return self._lane.lanes

    def step(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any,
        info: Any = None,
        **extra: Any,
    ) -> None:
        """Takes in one step of every environment.

        Args:
            obs, action, reward, next_obs, terminated, truncated: as of the vector environment, with
                a first dimension of `envs`.
            info: what `env.step` returned.
            **extra: the further fields of the schema, each with that first dimension.

        Raises:
            RecordError, DeadlineError, ClosedError: as for `Producer.step`. The environments before
                the one that failed have been taken in; when the step is made again, it goes on with
                that one.
        """
        if self._is_closed:
            raise ClosedError(f"step: this producer of {self._name} was closed.")
        rewards, terminations, truncations = (
            self._each(name, value)
            for name, value in (
                ("reward", reward),
                ("terminated", terminated),
                ("truncated", truncated),
            )
        )
        finals = info.get("final_obs") if is_mapping(info) else None
        for place in range(self._turn, self.envs):
            final = None if finals is None else {"final_obs": _at(finals, place)}
            self._turn = place
            self._producers[place].step(
                _at(obs, place),
                _at(action, place),
                rewards[place],
                _at(next_obs, place),
                terminations[place],
                truncations[place],
                final,
                **{key: _at(value, place) for key, value in extra.items()},
            )
        self._turn = 0

    def _each(self, name: str, value: Any) -> list[Any]:
        """One plain number an environment."""
        array = np.asarray(value)
        if array.shape != (self.envs,):
            raise RecordError(
                f"{name}: expected one entry for each of {self.envs} environments, got shape "
                f"{list(array.shape)}."
            )
        values: list[Any] = array.tolist()
        return values

    def flush(self, *, timeout: float | None = None) -> None:
        """Writes what is gathered.

        Raises:
            DeadlineError: some of it could not be written in time, and is still gathered.
        """
        for producer in self._producers:
            producer.flush(timeout=timeout)

    def end_trajectory(self, *, timeout: float | None = None) -> None:
        """Writes what is gathered; the next step of each environment starts another trajectory.

        Raises:
            DeadlineError: some of it could not be written in time, and is still gathered.
        """
        for producer in self._producers:
            producer.end_trajectory(timeout=timeout)

    def close(self, *, timeout: float | None = None) -> None:
        """Ends the trajectories, writes what is gathered, gives the lanes back. Again: nothing.

        Raises:
            DeadlineError: some of it could not be written in time; the producer is still open.
        """
        if self._is_closed:
            return
        for producer in self._producers:
            producer.close(timeout=timeout)
        self._give_up()

    def _give_up(self) -> None:
        self._is_closed = True
        for producer in self._producers:
            producer._give_up()
        self._lane.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        # The block's own error is the one to see.
        with contextlib.suppress(ShmrbError):
            self.close(timeout=LAST_FLUSH_S)
        self._give_up()


def _at(value: Any, place: int) -> Any:
    """The part of one environment of nested values."""
    if is_mapping(value):
        return {key: _at(part, place) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_at(part, place) for part in value)
    return value[place]
