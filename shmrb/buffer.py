"""`ReplayBuffer`: one handle on a shared buffer (floor F5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from shmrb import opening
from shmrb.appender import Appender
from shmrb.attachment import Attachment
from shmrb.cells import Cells
from shmrb.consumer import Consumer
from shmrb.core import SLICE_NS
from shmrb.description import whole
from shmrb.errors import ReadOnlyError, SpecError, SpecTypeError
from shmrb.nesting import with_first_dimension
from shmrb.opening import HandleOptions
from shmrb.prefetching import Prefetcher, check_prefetch
from shmrb.priorities import PriorityDesk, reduction_of
from shmrb.sampling import Sampling
from shmrb.schema import Schema
from shmrb.segment.building import Progress
from shmrb.segment.directory import Exist
from shmrb.spec import (
    BufferSpec,
    ImmutableWriter,
    Limiter,
    Sampler,
    SampleUnit,
    Storage,
    Writer,
)
from shmrb.transforms import Transform, Transforms, check_transform
from shmrb.updates import ConditionalUpdates
from shmrb.waiting import Call
from shmrb.writeback import WriteBack

if TYPE_CHECKING:
    from shmrb.lanes import Lane
    from shmrb.producer import Producer
    from shmrb.vector import VectorProducer


class ReplayBuffer(Sampling, WriteBack):
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
        consume_after_n_samples: a record is gone after so many draws, whoever makes them. A batch
            has no record twice, and is short if there are fewer. At most so often: what a consumer
            had drawn and not yet used when it died is lost, unless it drew with `hold=True`. New
            records fill the slots of consumed ones first, the longest free first, with one lane and
            single records; then they go on in the ring.
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
        prefetch: batches that a thread of this handle draws ahead, of the handle's batch size;
            None or 0: none. They are checked when they are handed out: records that are gone by
            then are drawn again.
        progress: called from time to time while memory is reserved, with the bytes that have their
            place and the bytes of all. What it raises breaks the creation off; nothing is left.
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
        prefetch: int | None = None,
        progress: Progress | None = None,
        track_generations: bool = True,
    ) -> None:
        if track_generations is not True:
            raise SpecError("track_generations: only True is possible, stamps are always on.")
        if transform is not None:
            check_transform(transform)
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
            prefetch=check_prefetch(prefetch, spec),
        )
        self._open(opening.create(spec, name, exist, root, options, progress), spec, options)
        if transform is not None:
            self.append_transform(transform)

    @classmethod
    def _attached(cls, attachment: Attachment, options: HandleOptions) -> ReplayBuffer:
        handle = cls.__new__(cls)
        try:
            spec = attachment.spec.for_handle(
                sampler=options.sampler,
                sample_unit=options.sample_unit,
                batch_size=options.batch_size,
            )
            handle._open(attachment, spec, options)
        except BaseException:
            attachment.close()
            raise
        return handle

    def _open(self, attachment: Attachment, spec: BufferSpec, options: HandleOptions) -> None:
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
        prefetch = check_prefetch(options.prefetch, spec)
        self._prefetcher = Prefetcher(self._consumer, prefetch) if prefetch else None

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
    ) -> Producer | VectorProducer:
        """What gathers the steps of a Gymnasium loop into chunks, for use in a `with` block.

        Args:
            envs: 1: a `Producer` of one environment; more: a `VectorProducer`, environment i in a
                lane of its own.
            chunk, autoreset, timeout: as for `Producer`.

        Errors as there.
        """
        if envs != 1:
            from shmrb.vector import VectorProducer

            return VectorProducer(
                self, envs=envs, chunk=chunk, autoreset=autoreset, timeout=timeout
            )
        from shmrb.producer import Producer

        return Producer(self, chunk=chunk, autoreset=autoreset, timeout=timeout)

    def end_trajectory(self, *, timeout: float | None = None) -> None:
        """The next record of this handle starts another trajectory, whatever its flags say.

        Raises:
            LockTimeoutError: a stopped client holds the lane's lock.
        """
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

        The stamp of a slot moves once, however often the buffer is emptied until the slot is
        written again; TorchRL counts each time. Either way no stamp comes twice.

        Args:
            empty_write_count: start counting writes from 0 again, the limiter's too.
            lanes: only those; then all writes still count. None: all.
            timeout: seconds to wait for the locks.

        Raises:
            ReadOnlyError: the buffer's writer is an `ImmutableWriter`.
            LockTimeoutError: a stopped client holds a lock; nothing is taken away.

        Concurrency: any number of processes; a record that is being written meanwhile counts as
        before it. Cost: O(lanes); no record is touched. With priorities or consumption also one
        pass over what they keep.
        """
        if isinstance(self._attachment.spec.writer, ImmutableWriter):
            raise ReadOnlyError("This dataset doesn't allow writing.")
        if not self.initialized:
            return
        if lanes is None:
            self._attachment.run(
                lambda segment: segment.empty(empty_write_count, SLICE_NS), Call("empty"), timeout
            )
        else:
            self._empty_lanes(lanes, timeout)
        self._consumer.restart()
        self._forget()

    def _empty_lanes(self, lanes: Iterable[int], timeout: float | None) -> None:
        spec = self._attachment.spec
        some = sorted({whole("lanes", lane, least=0, most=spec.lanes - 1) for lane in lanes})
        if spec.consume_after_n_samples is not None:
            raise SpecError("empty: a buffer whose records are consumed is emptied as a whole.")
        self._attachment.run(
            lambda segment: segment.empty_lanes(some, SLICE_NS), Call("empty"), timeout
        )

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
    timeout: float | None = 0.0,
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
    prefetch: int | None = None,
) -> ReplayBuffer:
    """Attaches to a buffer by its name, whoever created it.

    Args:
        name: the buffer.
        timeout: seconds to wait for it to appear; None: 60.
        sampler, sample_unit, batch_size: this handle's; None: what the creator gave.
        priority_key, format, cast, seed, default_timeout, client_name, prefetch: as for
            `ReplayBuffer`.
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
        prefetch=prefetch,
    )
    return ReplayBuffer._attached(opening.attach(name, timeout, root, options), options)
