"""`ReplayBuffer`: one handle on a shared buffer (floor F5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from shmrb import opening
from shmrb.appender import Appender
from shmrb.attachment import Attachment
from shmrb.cells import Cells
from shmrb.consumer import Consumer
from shmrb.core import SLICE_NS
from shmrb.description import whole
from shmrb.errors import SpecError, SpecTypeError
from shmrb.nesting import with_first_dimension
from shmrb.opening import HandleOptions
from shmrb.parts import Parts
from shmrb.priorities import PriorityDesk, reduction_of
from shmrb.schema import Schema
from shmrb.segment.directory import Exist
from shmrb.spec import (
    BufferSpec,
    Limiter,
    Sampler,
    SampleUnit,
    Storage,
    Writer,
)
from shmrb.transforms import Transform, Transforms
from shmrb.updates import ConditionalUpdates
from shmrb.waiting import Call
from shmrb.writeback import WriteBack

if TYPE_CHECKING:
    from shmrb.lanes import Lane
    from shmrb.producer import Producer


class ReplayBuffer(Parts, WriteBack):
    """A replay buffer that many processes share.

    The constructor creates the buffer, or attaches to one of the same description under that name.
    `shmrb.attach(name)` attaches to whatever is there. A pickled handle attaches wherever it lands;
    after a fork the child's handle attaches by itself.

    Args:
        name: what others attach by, 1 to 4 parts joined by "/"; None: a private buffer that ends
            with its creator.
        storage: where the records lie and how many. Records.
        schema: the fields of a record (`schema_like`, `schema_from_env`, or nested dictionaries of
            (dtype, shape)); None: the first write decides, until then nothing is reserved.
        sampler, sample_unit, batch_size: this handle's, and the defaults of those that attach.
        limiter: who waits for whom.
        writer: how slots are taken.
        consume_after_n_samples: a record is gone after so many draws.
        done_keys: fields that end a trajectory; None: those called done, truncated, terminated.
        traj_key: the field that holds a trajectory's id; None: ("collector", "traj_ids"),
            "traj_ids" or "episode", if there is one.
        transform: the first of this handle's transforms.
        priority_key: where records that are written, and batches given to
            `update_tensordict_priority`, may carry a priority. If it is no field it is not stored.
        seed: makes this handle's draws repeatable; None: every process draws its own stream.
        format: "torch" gives TensorDicts, "numpy" dictionaries of arrays, without importing torch.
        cast: "same_kind" lets arrays of another dtype of the same kind in; "no" refuses them.
        exist: what to do when the name is taken: "attach" if the description is equal, "error", or
            "replace" what is there.
        lifetime: "persistent" until dropped, or "creator": ends with this process.
        max_clients: how many handles may be attached at a time.
        default_timeout: seconds for waiting calls that give none.
        root: directory of the segments; None: $SHMRB_ROOT, else the service's, else the user's own.
        client_name: a label in listings and errors.
        track_generations: only True: stamps are always on.

    Raises:
        SpecError: the description is impossible.
        AlreadyExistsError: the name is taken by another description; the message lists differences.
        CapacityError: there is no room; nothing is left behind.

    Concurrency: threads may share a handle; any number of processes may attach.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        storage: Storage,
        schema: Schema | dict[Any, Any] | None = None,
        sampler: Sampler | None = None,
        sample_unit: SampleUnit | None = None,
        batch_size: int | None = None,
        limiter: Limiter | None = None,
        writer: Writer | None = None,
        consume_after_n_samples: int | None = None,
        done_keys: tuple[Any, ...] | None = None,
        traj_key: str | tuple[str, ...] | None = None,
        transform: Transform | None = None,
        priority_key: str | tuple[str, ...] = opening.DEFAULT_PRIORITY_KEY,
        seed: int | None = None,
        format: str = "torch",
        cast: str = "no",
        exist: Exist = "attach",
        lifetime: str = "persistent",
        max_clients: int = 1024,
        default_timeout: float = opening.DEFAULT_TIMEOUT_S,
        root: str | None = None,
        client_name: str | None = None,
        track_generations: bool = True,
    ) -> None:
        if track_generations is not True:
            raise SpecError("track_generations: only True is possible, stamps are always on.")
        spec = opening.describe(
            storage=storage,
            schema=schema,
            sampler=sampler,
            sample_unit=sample_unit,
            batch_size=batch_size,
            limiter=limiter,
            writer=writer,
            consume_after_n_samples=consume_after_n_samples,
            done_keys=done_keys,
            traj_key=traj_key,
            lifetime=lifetime,
            max_clients=max_clients,
        )
        options = HandleOptions(
            format=format,
            cast=cast,
            seed=seed,
            default_timeout=default_timeout,
            client_name=client_name,
            priority_key=priority_key,
        )
        self._open(opening.create(spec, name, exist, root, options), spec, options)
        if transform is not None:
            self.append_transform(transform)

    @classmethod
    def _attached(cls, attachment: Attachment, options: HandleOptions) -> ReplayBuffer:
        handle = cls.__new__(cls)
        spec = attachment.spec.for_handle(
            sampler=options.sampler,
            sample_unit=options.sample_unit,
            batch_size=options.batch_size,
        )
        handle._open(attachment, spec, options)
        return handle

    def _open(self, attachment: Attachment, spec: BufferSpec, options: HandleOptions) -> None:
        opening.refuse_unbuilt(spec)
        self._attachment = attachment
        self._options = options
        self._transforms = Transforms()
        self._desk = PriorityDesk(attachment, options.priority_key, reduction_of(spec.sampler))
        self._appender = Appender(attachment, options.cast, self._desk)
        self._updates = ConditionalUpdates(attachment, self._appender.reader)
        self._worker = None
        self._consumer = Consumer(
            attachment, options.format, spec.sampler, spec.sample_unit, spec.batch_size
        )
        self._cells = Cells(self._appender, self._consumer, self._transforms)
        self._is_within_pass = False

    # ---- writing ---------------------------------------------------------------------------------

    def extend(
        self,
        data: Any,
        *,
        update_priority: bool | None = None,
        priority: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Appends records; the oldest make room.

        Args:
            data: records along the first dimension of every field: a TensorDict, nested
                dictionaries of arrays or tensors, or a list of records. If it holds the priority
                key, the records enter with those priorities, reduced as the sampler says.
            update_priority: False: the priority key is data like any other.
            priority: one finite number >= 0 for all records, or one each. Without any, records
                enter with the greatest priority so far.
            timeout: seconds to wait for the limiter, a lane or a stopped client.

        Returns:
            int64 [N], the slots in input order; with more records than slots the later ones win.

        Raises:
            RecordError: keys, shapes or dtypes do not fit. Nothing is written.
            DeadlineError: nothing is written, unless the call was longer than half a lane; then its
                `written` says how many records are in.

        Concurrency: any number of processes. Cost: one copy of the data, one native call.
        """
        by_key = update_priority is not False
        return self._append(data, True, timeout, priority, by_key)

    def add(self, data: Any, *, priority: Any = None, timeout: float | None = None) -> Any:
        """Appends one record, without the first dimension; its slot as an int.

        Transforms see it as a batch of one; if they make no record or several of it, the slots are
        returned as `extend` does.

        Raises as `extend`.
        """
        if self._transforms.change_writes:
            slots = self._append(with_first_dimension(data), True, timeout, priority)
            return int(slots[0]) if len(slots) == 1 else slots
        return int(self._appender.append(data, False, timeout, priority=priority)[0])

    def _append(
        self,
        data: Any,
        batched: bool,
        timeout: float | None,
        priority: Any,
        by_key: bool = True,
    ) -> Any:
        if self._transforms:
            data = self._transforms.before_writing(data)
            if data is None:
                return self._consumer.int64(np.empty(0, np.int64))
        slots = self._appender.append(data, batched, timeout, False, priority, by_key)
        return self._consumer.int64(slots)

    def producer(
        self,
        *,
        envs: int = 1,
        chunk: int = 64,
        autoreset: str = "next_step",
        timeout: float | None = None,
    ) -> Producer:
        """A `Producer` that gathers the steps of a Gymnasium loop into chunks.

        Args and errors as there.
        """
        from shmrb.producer import Producer

        return Producer(self, envs=envs, chunk=chunk, autoreset=autoreset, timeout=timeout)

    def end_trajectory(self, *, timeout: float | None = None) -> None:
        """The next record of this handle starts another trajectory."""
        self._appender.end_trajectory(timeout)

    def lane(self, count: int = 1, *, rotate: bool = True, timeout: float | None = None) -> Lane:
        """Lanes of the buffer for this handle alone, for use in a `with` block.

        Args and errors as for `Lane`.
        """
        from shmrb.lanes import Lane

        return Lane(self, count=count, rotate=rotate, timeout=timeout)

    def empty(
        self,
        empty_write_count: bool = True,
        *,
        lanes: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Takes records away at once. Stamps move on, so every earlier handle of them is stale.

        Args:
            empty_write_count: start counting writes from 0 again, the limiter's too.
            lanes: only those; then all writes still count. None: all.
            timeout: seconds to wait for the locks.

        Cost: O(lanes); no record is touched. With priorities also one pass over them.
        """
        if not self.initialized:
            return
        if lanes is None:
            self._attachment.run(
                lambda segment: segment.empty(empty_write_count, SLICE_NS), Call("empty"), timeout
            )
        else:
            self._empty_lanes(lanes, timeout)
        self._consumer.restart()

    def _empty_lanes(self, lanes: Iterable[int], timeout: float | None) -> None:
        spec = self._attachment.spec
        some = sorted({whole("lanes", lane, least=0, most=spec.lanes - 1) for lane in lanes})
        if spec.consume_after_n_samples is not None:
            raise SpecError("empty: a buffer whose records are consumed is emptied as a whole.")
        self._attachment.run(
            lambda segment: segment.empty_lanes(some, SLICE_NS), Call("empty"), timeout
        )

    # ---- sampling --------------------------------------------------------------------------------

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        *,
        timeout: float | None = None,
        out: Any = None,
    ) -> Any:
        """Draws a batch.

        Args:
            batch_size: records, >= 1; None: the handle's.
            return_info: also return a dictionary of what goes beside the fields.
            timeout: seconds to wait for the limiter; given and above 0, an empty buffer is waited
                for too, else it is refused at once. None: the handle's default.
            out: an earlier batch of this size and form; its memory is used again, and it is what
                is returned, unless transforms or a short last batch make another.

        Returns:
            B records as a TensorDict (or nested dictionaries of arrays), in memory of the caller's:
            every field [B, *shape], "index" int64 [B] and "index_generation" int64 [B]; from a
            `PrioritizedSampler` also "priority_weight" float32 [B]. Exactly B, except for the last
            batch without replacement.

        Raises:
            EmptyBufferError: there is no record, or none with a priority above zero.
            DeadlineError: the limiter let nothing through, or too few records stayed whole.

        Concurrency: any number of processes; a record overwritten while it is copied is drawn
        again.
        Cost: one gather; no system call unless waiting.
        """
        drawn = self._consumer.draw(batch_size, timeout, out)
        form = drawn.form or self._consumer.form
        info = drawn.info()
        if self._transforms:
            data = form.assemble(drawn.batch.leaves, drawn.count, {})
            data = form.add_info(self._transforms.after_reading(data), info)
        elif drawn.reuses_out:
            data = out
        else:
            data = form.assemble(drawn.batch.leaves, drawn.count, info)
        return (data, info) if return_info else data

    def __iter__(self) -> Iterator[Any]:
        """Batches: one pass without replacement, for ever with it."""
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

    # ---- life ------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        spec = self._attachment.spec
        state = "closed" if self._attachment.is_closed else f"{self.name!r}"
        return f"ReplayBuffer({state}, capacity={spec.capacity}, lanes={spec.lanes})"

    def __reduce__(self) -> Any:
        """A handle travels as a name; it attaches where it lands."""
        if self._transforms:
            raise SpecTypeError(
                "a handle with transforms cannot be pickled: they are code of this process. Pickle "
                "the handle without them and append them after attaching."
            )
        address, options = self._state_to_travel()
        return _unpickle, (
            address,
            options.with_components(
                self._consumer.sampler, self._consumer.sample_unit, self._consumer.batch_size
            ),
        )


def _unpickle(address: opening.Address, options: HandleOptions) -> ReplayBuffer:
    return ReplayBuffer._attached(opening.reattach(address, options), options)


def attach(
    name: str,
    *,
    timeout: float = 0.0,
    sampler: Sampler | None = None,
    sample_unit: SampleUnit | None = None,
    batch_size: int | None = None,
    priority_key: str | tuple[str, ...] = opening.DEFAULT_PRIORITY_KEY,
    format: str = "torch",
    cast: str = "no",
    seed: int | None = None,
    role: str = "member",
    default_timeout: float = opening.DEFAULT_TIMEOUT_S,
    root: str | None = None,
    client_name: str | None = None,
) -> ReplayBuffer:
    """Attaches to a buffer by its name, whoever created it.

    Args:
        name: the buffer.
        timeout: seconds to wait for it to appear.
        sampler, sample_unit, batch_size: this handle's; None: what the creator gave.
        priority_key, format, cast, seed, default_timeout, client_name: as for `ReplayBuffer`.
        role: "member"; "learner": data mapped read-only; "observer": everything read-only.
        root: where to look; None: $SHMRB_ROOT, the daemon's root, the user's own, in that order.

    Raises:
        NoSuchBufferError: it did not appear; the message names what was searched.
        SpecError: the sampler needs what the buffer does not keep.
    """
    options = HandleOptions(
        format=format,
        cast=cast,
        seed=seed,
        default_timeout=default_timeout,
        client_name=client_name,
        role=role,
        priority_key=priority_key,
        sampler=sampler,
        sample_unit=sample_unit,
        batch_size=batch_size,
    )
    return ReplayBuffer._attached(opening.attach(name, timeout, root, options), options)
