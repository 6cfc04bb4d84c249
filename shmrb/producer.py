"""`Producer`: the steps of a Gymnasium loop, written in chunks (floor F5)."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from shmrb.description import Path, whole
from shmrb.errors import ClosedError, ReadOnlyError, RecordError, ShmrbError, SpecError
from shmrb.fields import Field, show_path
from shmrb.gathering import Chunk, Place
from shmrb.likeness import is_mapping
from shmrb.schema import Schema
from shmrb.segment import snapshot

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from shmrb.appender import Appender
    from shmrb.attachment import Attachment
    from shmrb.buffer import ReplayBuffer

AUTORESETS = ("next_step", "same_step", "disabled")

OBSERVATION: Path = ("observation",)
ACTION: Path = ("action",)
NEXT_OBSERVATION: Path = ("next", "observation")
REWARD: Path = ("next", "reward")
TERMINATED: Path = ("next", "terminated")
TRUNCATED: Path = ("next", "truncated")
DONE: Path = ("next", "done")

# The parameters of `step`: a further field of one of these names could not be given to it.
_TAKEN = frozenset(
    {"self", "obs", "action", "reward", "next_obs", "terminated", "truncated", "info"}
)
# A block that ends by an exception does not wait long for its last rows to be let in.
LAST_FLUSH_S = 1.0


class Producer:
    """Gathers the transitions of one environment and writes them a chunk at a time.

    `ReplayBuffer.producer` makes it. Records have the fields of `schema_from_env`; those that the
    schema has beyond them are given to each `step` by name.

    Args:
        buffer: the handle that writes.
        envs: environments; 1.
        chunk: steps that are gathered, at most; fewer where half a lane or what the limiter lets in
            at a time is less. A producer that is killed loses those that are not written, and
            nothing else.
        autoreset: what the environment does when an episode ends, as Gymnasium 1.0 names it.
            "next_step": the next step resets it and ignores the action; that row is left out.
            "same_step": it is reset at once; the true last observation is `info["final_obs"]`.
            "disabled": the loop calls `reset` itself.
        timeout: seconds that writing a chunk may wait; None: the handle's default.

    Raises:
        SpecError: the schema lacks what a step has, or nothing is known of it yet.

    Concurrency: belongs to one thread. A forked child begins with nothing gathered.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        *,
        envs: int = 1,
        chunk: int = 64,
        autoreset: str = "next_step",
        timeout: float | None = None,
    ) -> None:
        if whole("envs", envs, least=1) != 1:
            raise SpecError(
                f"producer: envs must be 1, got {envs}. Make one producer for each environment, "
                "each on a handle of its own: shmrb.attach(name)."
            )
        autoreset = getattr(autoreset, "name", autoreset).lower()  # Gymnasium's AutoresetMode
        if autoreset not in AUTORESETS:
            raise SpecError(f"autoreset must be one of {', '.join(AUTORESETS)}, got {autoreset!r}.")
        attachment = buffer._attachment
        if attachment.role != "member":
            raise ReadOnlyError(
                f"producer: this handle is attached as {attachment.role}, which may not write. "
                "Attach as a member."
            )
        schema = buffer.schema
        if schema is None:
            raise SpecError(
                f"producer: the fields of {buffer.name} are not known yet. Create it with "
                "schema=shmrb.schema_from_env(env)."
            )
        self._appender: Appender = buffer._appender
        if any(other._appender is self._appender for other in _open):
            raise SpecError(
                "producer: this handle has a producer that is not closed, and the trajectories of "
                "two would be joined. Close it, or give each a handle: shmrb.attach(name)."
            )
        spec = attachment.spec
        size = min(whole("chunk", chunk, least=1), _largest_chunk(attachment))
        self._transforms = buffer._transforms
        self._name = buffer.name
        self._timeout = timeout
        self._same_step = autoreset == "same_step"
        self._next_step = autoreset == "next_step"
        self._lay_out(schema, Chunk(schema, size, self._appender.cast))
        self._shows_ends = DONE in spec.done_keys or {TERMINATED, TRUNCATED} <= set(spec.done_keys)
        self._count = 0
        self._is_closed = False
        # A row of a trajectory is gathered or written, and its end is not.
        self._is_open = False
        # The row that ended an episode; the next one to come is that of the reset.
        self._ended_at: int | None = None
        _open.add(self)

    def _lay_out(self, schema: Schema, chunk: Chunk) -> None:
        fields = {path: _below(schema, path) for path in (OBSERVATION, ACTION, NEXT_OBSERVATION)}
        missing = [path for path, found in fields.items() if not found]
        missing += [path for path in (REWARD, TERMINATED) if not _below(schema, path)]
        if not _below(schema, TRUNCATED) and not _below(schema, DONE):
            missing.append(TRUNCATED)
        if schema.root != "dict" or missing:
            raise SpecError(
                f"producer: the schema has no {', '.join(map(show_path, missing))}. Use the fields "
                "of shmrb.schema_from_env(env), or write with extend."
            )
        self._chunk = chunk
        self._size = chunk.size
        self._observation, self._action, self._next_observation = (
            chunk.place(found, path) for path, found in fields.items()
        )
        self._put_observation = self._observation.put
        self._put_action = self._action.put
        self._put_next = self._next_observation.put
        self._put_reward = chunk.reals(_below(schema, REWARD), REWARD).put
        self._terminated, self._truncated, self._done = (
            _flags(schema, chunk, path) for path in (TERMINATED, TRUNCATED, DONE)
        )
        known = {*fields, REWARD, TERMINATED, TRUNCATED, DONE}
        extra = [f for f in schema.fields if not any(f.path[: len(p)] == p for p in known)]
        taken = sorted({field.path[0] for field in extra} & _TAKEN)
        if taken:
            raise SpecError(
                f"producer: the field {taken[0]!r} bears the name of one of step's own arguments. "
                "Rename it, or write with extend."
            )
        self._extra: Place = chunk.place(extra)
        self._has_extra = bool(extra)

    # ---- a step ----------------------------------------------------------------------------------

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
        """Takes in one transition; when the chunk is full, writes it.

        Args:
            obs: what the action was chosen by.
            action: what was given to `env.step`.
            reward, next_obs, terminated, truncated, info: what `env.step` returned.
            **extra: the further fields of the schema, each by its name.

        Raises:
            RecordError: a value does not fit its field, or a field is missing or unknown.
            DeadlineError: the chunk could not be written in time.
            ClosedError.
            In each case this step is not taken in and may be made again; what was gathered stays.

        Cost: a copy of the arrays; every `chunk` steps one native call.
        """
        if self._is_closed:
            raise ClosedError(f"step: this producer of {self._name} was closed.")
        if self._ended_at is not None and self._next_step:
            self._leave_out(obs)
            return
        if terminated is not True and terminated is not False:
            terminated = _flag("terminated", terminated)
        if truncated is not True and truncated is not False:
            truncated = _flag("truncated", truncated)
        ended = terminated or truncated
        if ended and self._same_step:
            next_obs = _final_observation(info)
        row = self._count
        self._put_observation(row, obs)
        self._put_action(row, action)
        self._put_next(row, next_obs)
        self._put_reward(row, reward)
        self._terminated[row] = terminated
        self._truncated[row] = truncated
        self._done[row] = ended
        if extra or self._has_extra:
            self._extra.put(row, extra)
        if row + 1 == self._size or (ended and not self._shows_ends):
            self._write(row + 1, ended, self._timeout)
        else:
            self._count = row + 1
        self._is_open = not ended
        self._ended_at = row if ended else None

    def _leave_out(self, obs: Any) -> None:
        """The row after an end: its action was ignored, it leads from one episode to the next."""
        assert self._ended_at is not None
        if not self._next_observation.holds(self._ended_at, obs):
            raise RecordError(
                "step: with autoreset='next_step' the first row after an end comes from the step "
                "that resets the environment, and its obs is the next_obs of the end; this one "
                "is another. If the loop calls reset itself, make the producer with "
                "autoreset='disabled'."
            )
        self._ended_at = None

    def _write(self, count: int, end: bool, timeout: float | None) -> None:
        data: Any = self._chunk.rows(count)
        if self._transforms:
            data = self._transforms.before_writing(data)
        if data is not None:
            self._appender.append(data, True, timeout, end)
        self._count = 0

    # ---- between steps ---------------------------------------------------------------------------

    def flush(self, *, timeout: float | None = None) -> None:
        """Writes what is gathered.

        Raises:
            DeadlineError: it could not be written in time, and is still gathered.
        """
        if self._count:
            self._write(self._count, False, self._timeout if timeout is None else timeout)

    def end_trajectory(self, *, timeout: float | None = None) -> None:
        """Writes what is gathered; the next step starts another trajectory.

        For a loop that resets the environment before an episode ends.

        Raises:
            DeadlineError: nothing is changed.
        """
        timeout = self._timeout if timeout is None else timeout
        if self._count:
            self._write(self._count, True, timeout)
        elif self._is_open and not self._appender.attachment.is_closed:
            self._appender.end_trajectory(timeout)
        self._is_open = False
        self._ended_at = None

    def close(self, *, timeout: float | None = None) -> None:
        """Ends the trajectory and writes what is gathered. Again: nothing.

        Raises:
            DeadlineError: it could not be written in time; the producer is still open.
        """
        if self._is_closed:
            return
        self.end_trajectory(timeout=timeout)
        self._give_up()

    def _give_up(self) -> None:
        self._is_closed = True
        _open.discard(self)

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

    def _after_fork(self) -> None:
        self._count = 0
        self._is_open = False


_open: weakref.WeakSet[Producer] = weakref.WeakSet()


def _after_fork() -> None:
    """In the child: what is gathered is the parent's, which writes it."""
    for producer in list(_open):
        producer._after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _largest_chunk(attachment: Attachment) -> int:
    """The longest insert that is one call, and after which writers and samplers can both go on."""
    spec = attachment.spec
    largest = max(1, spec.lane_capacity // 2)
    if spec.limiter is None:
        return largest
    limits = snapshot.limiter(attachment.member.segment)
    batch_cost = (spec.batch_size or 1) * spec.sample_unit.cost
    room = (limits.max_diff - limits.min_diff - batch_cost) / limits.samples_per_insert
    return largest if room >= largest else max(1, int(room))


def _flags(schema: Schema, chunk: Chunk, path: Path) -> Any:
    """The bools of a field, or room that nobody reads where the schema does not have it."""
    fields = _below(schema, path)
    if not fields:
        return np.empty(chunk.size, np.bool_)
    if fields[0].path != path or fields[0].dtype != "bool" or fields[0].row_bytes != 1:
        raise SpecError(
            f"producer: expected a bool of one element in {show_path(path)}, the schema has "
            f"{fields[0]}. Use the fields of shmrb.schema_from_env(env), or write with extend."
        )
    return chunk.numbers(path)


def _below(schema: Schema, path: Path) -> list[Field]:
    return [field for field in schema.fields if field.path[: len(path)] == path]


def _flag(name: str, value: Any) -> bool:
    array = np.asarray(value)
    if array.size == 1 and array.dtype.kind == "b":
        return bool(array.reshape(()))
    raise RecordError(f"{name}: expected True or False, got {value!r}.")


def _final_observation(info: Any) -> Any:
    if is_mapping(info) and "final_obs" in info:
        return info["final_obs"]
    raise RecordError(
        "step: an episode ended, and with autoreset='same_step' its last observation is "
        f"info['final_obs']; got {'no info' if info is None else 'info without it'}. Pass the info "
        "of env.step, or make the producer with the environment's own autoreset mode."
    )
