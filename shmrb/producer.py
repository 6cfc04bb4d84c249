"""`Producer`: the steps of a Gymnasium loop, written in chunks (floor F5)."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shmrb.description import whole
from shmrb.errors import ClosedError, ReadOnlyError, RecordError, ShmrbError, SpecError
from shmrb.likeness import is_mapping
from shmrb.segment import snapshot
from shmrb.stepping import rows_for

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from shmrb.attachment import Attachment
    from shmrb.buffer import ReplayBuffer

AUTORESETS = ("next_step", "same_step", "disabled")

# A block that ends by an exception does not wait long for its last rows to be let in.
LAST_FLUSH_S = 1.0


class Sink(Protocol):
    """Where a producer's rows go."""

    def append(self, data: Any, batched: bool, timeout: float | None, end: bool = False) -> Any:
        """Writes rows; `end`: the last one ends its trajectory, whatever it says itself."""

    def end_trajectory(self, timeout: float | None) -> None:
        """The next row starts another trajectory."""


class Producer:
    """Gathers the transitions of one environment and writes them a chunk at a time.

    `ReplayBuffer.producer` makes it. Records have the fields of `schema_from_env`, stored twice or
    once; those that the schema has beyond them are given to each `step` by name. Stored once, each
    trajectory closes with one record more, which only holds its final observation.

    Args:
        buffer: the handle that writes.
        chunk: steps that are gathered, at most; fewer where half a lane or what the limiter lets in
            at a time is less. A producer that is killed loses those that are not written, and
            nothing else.
        autoreset: what the environment does when an episode ends, as Gymnasium 1.0 names it.
            "next_step": the next step resets it and ignores the action; that row is left out.
            "same_step": it is reset at once; the true last observation is `info["final_obs"]`.
            "disabled": the loop calls `reset` itself.
        timeout: seconds that writing a chunk may wait; None: the handle's default.
        sink: where rows go, if not where `ReplayBuffer.extend` puts them.

    Raises:
        SpecError: the schema lacks what a step has, or nothing is known of it yet.

    Concurrency: belongs to one thread. A forked child begins with nothing gathered.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        *,
        chunk: int = 64,
        autoreset: str = "next_step",
        timeout: float | None = None,
        sink: Sink | None = None,
    ) -> None:
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
        self._sink: Sink = sink or buffer._appender
        if any(other._sink is self._sink for other in _open):
            raise SpecError(
                "producer: this handle has a producer that is not closed, and the trajectories of "
                "two would be joined. Close it, or give each a handle: shmrb.attach(name)."
            )
        size = min(whole("chunk", chunk, least=1), _largest_chunk(attachment))
        self._attachment = attachment
        self._transforms = buffer._transforms
        self._name = buffer.name
        self._timeout = timeout
        self._same_step = autoreset == "same_step"
        self._next_step = autoreset == "next_step"
        self._rows = rows_for(schema, size, buffer._appender.cast)
        self._take = self._rows.take
        self._size = self._rows.size
        above = self._rows.above
        shown = {path[-1] for path in attachment.spec.done_keys if path[:-1] == above}
        self._shows_ends = "done" in shown or {"terminated", "truncated"} <= shown
        self._count = 0
        self._is_closed = False
        # A row of a trajectory is gathered or written, and its end is not.
        self._is_open = False
        # The row behind that of an end; the next step to come is that of the reset.
        self._ended_at: int | None = None
        _open.add(self)

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
        end = row + self._take(
            row, obs, action, reward, next_obs, terminated, truncated, extra, self._is_open
        )
        if end >= self._size or (ended and not self._shows_ends):
            self._write(end, ended, self._timeout)
            if not ended:
                self._rows.carry(end)
        else:
            self._count = end
        self._is_open = not ended
        self._ended_at = end if ended else None

    def _leave_out(self, obs: Any) -> None:
        """The row after an end: its action was ignored, it leads from one episode to the next."""
        assert self._ended_at is not None
        if not self._rows.led_to(self._ended_at, obs):
            raise RecordError(
                "step: with autoreset='next_step' the first row after an end comes from the step "
                "that resets the environment, and its obs is the next_obs of the end; this one "
                "is another. If the loop calls reset itself, make the producer with "
                "autoreset='disabled'."
            )
        self._ended_at = None

    def _write(self, count: int, end: bool, timeout: float | None) -> None:
        data: Any = self._rows.chunk.rows(count)
        if self._transforms:
            data = self._transforms.before_writing(data)
        if data is not None:
            self._sink.append(data, True, timeout, end)
        self._count = 0

    # ---- between steps ---------------------------------------------------------------------------

    def flush(self, *, timeout: float | None = None) -> None:
        """Writes what is gathered.

        Raises:
            DeadlineError: it could not be written in time, and is still gathered.
        """
        if self._count:
            count = self._count
            self._write(count, False, self._timeout if timeout is None else timeout)
            if self._is_open:
                self._rows.carry(count)

    def end_trajectory(self, *, timeout: float | None = None) -> None:
        """Writes what is gathered; the next step starts another trajectory.

        For a loop that resets the environment before an episode ends.

        Raises:
            DeadlineError: nothing is changed.
        """
        timeout = self._timeout if timeout is None else timeout
        count = self._count
        if self._is_open and not self._attachment.is_closed:
            count += self._rows.close(count)
        if count:
            self._write(count, True, timeout)
        elif self._is_open and not self._attachment.is_closed:
            self._sink.end_trajectory(timeout)
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
