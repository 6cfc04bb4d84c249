"""Trajectories in arrays: where they begin and end, and one as an object (floor F5).

Works on what is there, a batch in time order or a ring laid out by slot. What a buffer knows of its
own trajectories is more than ids and flags can say: `query` asks the buffer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from shmrb.boundaries import DONE_KEYS, TRAJ_KEYS
from shmrb.description import Path
from shmrb.errors import NoTrajectoryError, SpecTypeError, UnknownKeyError
from shmrb.fields import key_path, show_path
from shmrb.likeness import is_mapping
from shmrb.nesting import found, rows_of
from shmrb.records import is_tensor

# End flags of one place are one signal, those under "next" before those at the root.
_FLAG_GROUPS: tuple[tuple[Path, ...], ...] = (
    tuple(("next", key) for key in DONE_KEYS),
    tuple((key,) for key in DONE_KEYS),
)


class Trajectory:
    """The records of one trajectory, in order.

    A field is an attribute: `trajectory.observation`; what is not at the root is looked for under
    "next". A slice of a trajectory is a trajectory.

    Args:
        data: a TensorDict or nested dictionaries of arrays, with time along the first dimension.
    """

    def __init__(self, data: Any) -> None:
        if not is_mapping(data):
            raise SpecTypeError(f"Trajectory: expected named fields, got {type(data).__name__}.")
        self.data = data
        self.length = rows_of(data)

    @property
    def total_reward(self) -> Any:
        """The sum of the rewards."""
        return self._require("reward").sum()

    def get(self, key: Any, default: Any = None) -> Any:
        """A field of the root, else of "next", else `default`."""
        path = key_path(key)
        value = found(self.data, path)
        if value is None and len(path) == 1:
            value = found(self.data, ("next", *path))
        return default if value is None else value

    def keys(self) -> Any:
        """The keys of the root."""
        return self.data.keys()

    def _require(self, key: Any) -> Any:
        value = self.get(key)
        if value is None:
            raise UnknownKeyError(
                f"Key {key!r} not found in trajectory (looked up root and ('next', ...))."
            )
        return value

    def __getattr__(self, name: str) -> Any:
        value = None if name.startswith("_") else self.get(name)
        if value is None:
            raise AttributeError(
                f"Trajectory has no entry {name!r}; its keys are {sorted(map(str, self.keys()))}."
            )
        return value

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (str, tuple)):
            return self._require(index)
        return Trajectory(_rows(self.data, index))

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"Trajectory(length={self.length}, keys={sorted(map(str, self.keys()))})"


def find_start_stop_traj(
    *,
    trajectory: Any = None,
    end: Any = None,
    at_capacity: bool,
    cursor: Any = None,
    device: Any = None,
) -> tuple[Any, Any, Any]:
    """Where trajectories begin and end in a storage laid out by slot, as TorchRL's function does.

    Args:
        trajectory: ids [T, *B], time first; a trajectory ends where the id changes.
        end: or flags [T, *B], set at the last record of each.
        at_capacity: the ring is full, so that slot 0 follows the last one. Else the last one is an
            end.
        cursor: the slot that was written last, an end in a full ring; of an array or a range its
            last element.
        device: accepted for TorchRL's sake; results are on the device of the input.

    Returns:
        (start, stop, lengths), all int64: slots [N, 1 + len(B)] of the first and the last record,
        with their columns, and how many records [N]; by column, then by stop. `start` > `stop`:
        over the seam.

    Raises:
        SpecTypeError: both or neither of ids and flags.
        NoTrajectoryError: there is no time dimension, or nothing in it, or in the cursor.
    """
    if (trajectory is None) == (end is None):
        raise SpecTypeError("find_start_stop_traj: expected exactly one of trajectory and end.")
    given = end if trajectory is None else trajectory
    array = np.asarray(given.detach().cpu() if is_tensor(given) else given)
    if array.ndim == 0 or len(array) == 0:
        raise NoTrajectoryError(
            f"find_start_stop_traj: expected records along the first dimension, got shape "
            f"{list(array.shape)}."
        )
    if trajectory is None:
        ends = array.astype(np.bool_)
        last = ends[-1]
    else:
        ends = np.ones(array.shape, np.bool_)
        ends[:-1] = array[1:] != array[:-1]
        last = array[-1] != array[0]
    ends[-1] = last if at_capacity else True
    if at_capacity and cursor is not None:
        ends[_last_of(cursor)] = True
    ends[-1] |= ~ends.any(axis=0)
    results = _spans(ends)
    if is_tensor(given):
        import torch

        return tuple(torch.from_numpy(part).to(given.device) for part in results)  # type: ignore[return-value]
    return results


def _spans(ends: Any) -> tuple[Any, Any, Any]:
    """First and last places and lengths; every column has an end."""
    stops = np.argwhere(ends.swapaxes(0, -1))
    stops[:, [0, -1]] = stops[:, [-1, 0]]
    starts = stops.copy()
    is_first = np.ones(len(stops), np.bool_)
    is_first[1:] = (stops[1:, 1:] != stops[:-1, 1:]).any(axis=1)
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(stops)) - 1
    before = np.roll(stops[:, 0], 1)
    before[firsts] = stops[lasts, 0]
    starts[:, 0] = (before + 1) % len(ends)
    lengths = stops[:, 0] - starts[:, 0] + 1
    lengths[lengths <= 0] += len(ends)
    return starts, stops, lengths


def _last_of(cursor: Any) -> int:
    if is_tensor(cursor):
        cursor = cursor.cpu().numpy()
    if isinstance(cursor, range):
        cursor = np.array(cursor)
    flat = np.asarray(cursor).reshape(-1)
    if len(flat) == 0:
        raise NoTrajectoryError("find_start_stop_traj: the cursor holds no slot.")
    return int(flat[-1])


def iter_trajectories(data: Any, trajectory_key: Any = None) -> Iterator[Trajectory]:
    """The trajectories of a batch whose records are in order.

    They are told apart by `trajectory_key`, else by ("collector", "traj_ids"), "traj_ids" or
    "episode", else by end flags, which cannot part two trajectories without an end between them: a
    warning says so.

    Args:
        data: a TensorDict of one batch dimension, or nested dictionaries of arrays.
        trajectory_key: the field of the ids.

    Raises:
        UnknownKeyError: there is no such field, or nothing that tells trajectories apart.
    """
    if not is_mapping(data):
        raise SpecTypeError(f"iter_trajectories: expected named fields, got {type(data).__name__}.")
    count = rows_of(data)
    if count == 0:
        return
    start, stop, _ = find_start_stop_traj(**_signal(data, count, trajectory_key), at_capacity=False)
    for first, last in zip(start[:, 0].tolist(), stop[:, 0].tolist(), strict=True):
        yield Trajectory(_rows(data, slice(first, last + 1)))


def filter_trajectories(
    data: Any,
    predicate: Callable[[Trajectory], bool] | None = None,
    *,
    trajectory_key: Any = None,
) -> list[Trajectory]:
    """The trajectories of a batch that a predicate holds for; None: all.

    Args and errors as for `iter_trajectories`.

    Example:
        >>> data = {"reward": np.array([1.0, 2.0, 5.0]), "traj_ids": np.array([0, 0, 1])}
        >>> [t.length for t in filter_trajectories(data, lambda t: t.total_reward > 4)]
        [1]
    """
    trajectories = iter_trajectories(data, trajectory_key)
    return [t for t in trajectories if predicate is None or predicate(t)]


def _signal(data: Any, count: int, trajectory_key: Any) -> dict[str, Any]:
    keys = TRAJ_KEYS if trajectory_key is None else (key_path(trajectory_key),)
    for path in keys:
        ids = found(data, path)
        if ids is not None:
            return {"trajectory": ids.reshape(count)}
    if trajectory_key is not None:
        raise UnknownKeyError(f"trajectory_key {trajectory_key!r} not found in data.")
    for group in _FLAG_GROUPS:
        flags = {path: found(data, path) for path in group}
        known = {path: flag.reshape(count) for path, flag in flags.items() if flag is not None}
        if known:
            warnings.warn(
                "trajectories are told apart by "
                f"{', '.join(map(show_path, known))} alone, so that two without an end between "
                "them are joined. Store trajectory ids, or query the buffer, which knows.",
                stacklevel=3,
            )
            first, *others = known.values()
            for other in others:
                first = first | other
            return {"end": first}
    raise UnknownKeyError(
        "Cannot split data into trajectories: no field "
        f"{', '.join(map(show_path, TRAJ_KEYS))}, and no end flag. Give trajectory_key."
    )


def _rows(data: Any, index: Any) -> Any:
    """Rows of nested fields."""
    if is_mapping(data) and not hasattr(data, "batch_size"):
        return {key: _rows(value, index) for key, value in data.items()}
    return data[index]
