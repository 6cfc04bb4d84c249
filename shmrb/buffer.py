"""`ReplayBuffer`: one handle on a shared buffer (floor F5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shmrb import opening
from shmrb.appender import Appender
from shmrb.attachment import Attachment
from shmrb.batches import BatchFormat
from shmrb.cells import Cells
from shmrb.consumer import Consumer
from shmrb.core import SLICE_NS
from shmrb.errors import ClosedError, EmptyBufferError, RecordError, SpecError
from shmrb.limits import Limits
from shmrb.opening import HandleOptions
from shmrb.records import RecordReader
from shmrb.results import BufferStats
from shmrb.schema import Schema
from shmrb.segment import snapshot
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
from shmrb.views import SamplerView, StorageView, WriterView
from shmrb.waiting import Call

if TYPE_CHECKING:
    from typing_extensions import Self

    from shmrb.producer import Producer


class ReplayBuffer:
    """A replay buffer that many processes share.

    The constructor creates the buffer, or attaches to one of the same description under that name.
    `shmrb.attach(name)` attaches to whatever is there. A pickled handle attaches wherever it lands;
    after a fork the child's handle attaches by itself.

    Args:
        name: what others attach by, 1 to 4 parts joined by "/"; None: a private buffer that ends with
            its creator.
        storage: where the records lie and how many. Records.
        schema: the fields of a record (`schema_like`, `schema_from_env`, or nested dictionaries of
            (dtype, shape)); None: the first write decides, until then nothing is reserved.
        sampler, sample_unit, batch_size: this handle's, and the defaults of those that attach.
        limiter: who waits for whom.
        writer: how slots are taken.
        consume_after_n_samples: a record is gone after so many draws.
        done_keys: fields that end a trajectory; None: those called done, truncated, terminated.
        transform: the first of this handle's transforms.
        seed: makes this handle's draws repeatable; None: every process draws its own stream.
        format: "torch" gives TensorDicts, "numpy" dictionaries of arrays, without importing torch.
        cast: "same_kind" lets arrays of another dtype of the same kind in; "no" refuses them.
        exist: what to do when the name is taken: "attach" if the description is equal, "error", or
            "replace" what is there.
        lifetime: "persistent" until dropped, or "creator": ends with this process.
        max_clients: how many handles may be attached at a time.
        default_timeout: seconds for waiting calls that give none.
        root: directory of the segments; None: as DESIGN: $SHMRB_ROOT, the service's, the user's own.
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
        transform: Transform | None = None,
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
            lifetime=lifetime,
            max_clients=max_clients,
        )
        options = HandleOptions(
            format=format,
            cast=cast,
            seed=seed,
            default_timeout=default_timeout,
            client_name=client_name,
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
        self._appender = Appender(attachment, options.cast)
        self._consumer = Consumer(attachment, spec.sampler, spec.sample_unit, spec.batch_size)
        self._cells = Cells(attachment)
        self._transforms = Transforms()
        self._form_made: BatchFormat | None = None

    # ---- writing ---------------------------------------------------------------------------------

    def extend(self, data: Any, *, timeout: float | None = None) -> Any:
        """Appends records; the oldest make room.

        Args:
            data: records along the first dimension of every field: a TensorDict, nested
                dictionaries of arrays or tensors, or a list of records.
            timeout: seconds to wait for the limiter, a lane or a stopped client.

        Returns:
            int64 [N], the slots in input order; with more records than slots the later ones win.

        Raises:
            RecordError: keys, shapes or dtypes do not fit. Nothing is written.
            DeadlineError: nothing is written, unless the call was longer than half a lane; then its
                `written` says how many records are in.

        Concurrency: any number of processes. Cost: one copy of the data, one native call.
        """
        return self._append(data, batched=True, timeout=timeout)

    def add(self, data: Any, *, timeout: float | None = None) -> Any:
        """Appends one record, without the first dimension; its slot as an int.

        Raises as `extend`.
        """
        slots = self._append(data, batched=False, timeout=timeout)
        return int(slots[0]) if len(slots) == 1 else slots

    def _append(self, data: Any, batched: bool, timeout: float | None) -> Any:
        if self._transforms:
            data = self._transforms.before_writing(data)
            if data is None:
                return self._int64(np.empty(0, np.int64))
        return self._int64(self._appender.append(data, batched, timeout))

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

    def empty(self, empty_write_count: bool = True, *, timeout: float | None = None) -> None:
        """Takes all records away at once. Stamps move on, so every earlier handle is stale.

        Args:
            empty_write_count: start counting writes from 0 again, the limiter's too.
            timeout: seconds to wait for the locks.

        Cost: O(lanes); no record is touched.
        """
        if not self.initialized:
            return
        self._attachment.run(
            lambda segment: segment.empty(empty_write_count, SLICE_NS), Call("empty"), timeout
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
            out: an earlier batch of this size and form; its memory is used again.

        Returns:
            B records as a TensorDict (or nested dictionaries of arrays), in memory of the caller's:
            every field [B, *shape], "index" int64 [B] and "index_generation" int64 [B]. Exactly B,
            except for the last batch without replacement.

        Raises:
            EmptyBufferError: there is no record.
            DeadlineError: the limiter let nothing through, or too few records stayed whole.

        Concurrency: any number of processes; a record overwritten while it is copied is drawn again.
        Cost: one gather; no system call unless waiting.
        """
        count = self._consumer.resolve_batch_size(batch_size)
        form = self._form
        memory = None if out is None else form.reuse(out, count)
        drawn = self._consumer.draw(form, count, timeout, memory)
        info = drawn.info()
        if out is not None and not self._transforms and drawn.count == count:
            data = out
        elif self._transforms:
            data = form.assemble(drawn.batch.leaves, drawn.count, {})
            data = form.add_info(self._transforms.after_reading(data), info)
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
        if self._consumer.ran_out:
            self._consumer.ran_out = False
            return None
        return self.sample()

    @property
    def batch_size(self) -> int | None:
        """The handle's batch size."""
        return self._consumer.batch_size

    # ---- records by slot -------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """A copy of records, or of one field.

        An integer gives one record, an array of slots, a slice or a mask several; a key gives that
        field of all records. Transforms run on whole records.
        """
        form = self._form
        if isinstance(index, str) or (isinstance(index, tuple) and _is_key(index)):
            if self._transforms:
                return self[:][index]
            position = form.schema.find(index)
            return self._cells.read(form, self._cells.live(), [position]).batch.leaves[position]
        slots, single = self._cells.slots(index)
        drawn = self._cells.read(form, slots)
        leaves = drawn.batch.leaves
        if single and drawn.count == 0:
            raise IndexError(f"slot {int(slots[0])} holds no live record.")
        if single:
            data = form.assemble([leaf[0] for leaf in leaves], None, {})
        else:
            data = form.assemble(leaves, drawn.count, {})
        return self._transforms.after_reading(data)

    def __setitem__(self, index: Any, data: Any) -> None:
        """Writes over live records in place: stamps, order and counts stay."""
        if isinstance(index, str) or (isinstance(index, tuple) and _is_key(index)):
            self.set_(index, data)
            return
        slots, single = self._cells.slots(index)
        data = self._transforms.before_writing(data)
        self._cells.write_records(self._reader, slots, data, single, "__setitem__")

    def read_all_in_order(self, end: int | None = None) -> Any:
        """All records by slot, or those of the first `end` slots; a copy."""
        return self[:end]

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Writes over all records in place; a buffer that is not full takes the first len(data)."""
        if end is None and len(self) < self._attachment.spec.capacity:
            end = len(data) if hasattr(data, "batch_size") else _rows_of(data)
        self[:end] = data

    def set_at_(self, key: Any, value: Any, index: Any) -> Self:
        """Writes one field of some records in place, bypassing transforms; the handle itself."""
        slots, single = self._cells.slots(index)
        if single:
            value = _with_first_dimension(value)
        self._cells.write_fields(self._reader, slots, {key: value}, "set_at_")
        return self

    def set_(self, key: Any, value: Any) -> Self:
        """Writes one field of all records in place, bypassing transforms; the handle itself."""
        self._cells.write_fields(self._reader, self._cells.live(), {key: value}, "set_")
        return self

    def update_(self, data: Any, clone: bool = False, *, keys_to_update: Any = None) -> Self:
        """Writes the given fields of all records in place, bypassing transforms.

        `clone` is accepted for TorchRL's sake: values are always copied.
        """
        values = _flat(data)
        if keys_to_update is not None:
            wanted = {(key,) if isinstance(key, str) else tuple(key) for key in keys_to_update}
            values = {key: value for key, value in values.items() if key in wanted}
        self._cells.write_fields(self._reader, self._cells.live(), values, "update_")
        return self

    def generations_of(self, index: Any) -> Any:
        """The stamps of slots: int64 in the shape of `index`, -1 where there is no usable stamp.

        A stamp counts the writes into its slot: 0 for the first. Stamps are never given twice, not
        after `empty`, a restart or re-creation of the name.
        """
        if not self.initialized:
            shape = np.asarray(index).shape
            return self._int64(np.full(shape, -1, np.int64))
        return self._cells.generations(index, self._int64)

    # ---- what there is ---------------------------------------------------------------------------

    def __len__(self) -> int:
        """Records that may be drawn now."""
        if not self.initialized:
            return 0
        return self._attachment.run(lambda segment: segment.size(), Call("len"))

    @property
    def write_count(self) -> int:
        """Records ever written, since `empty(empty_write_count=True)`."""
        if not self.initialized:
            return 0
        return self._attachment.run(lambda segment: segment.write_count(), Call("write_count"))

    @property
    def initialized(self) -> bool:
        """Whether the schema is known and memory reserved."""
        if self._attachment.is_closed:
            raise ClosedError(f"this handle of {self.name or 'a private buffer'} was closed.")
        if self._attachment.segment is not None:
            return True
        try:
            self._attachment.join()
        except EmptyBufferError:
            return False
        return True

    @property
    def schema(self) -> Schema | None:
        """The fields of a record, None before the first write decides."""
        return self._attachment.spec.schema if self.initialized else None

    @property
    def name(self) -> str:
        """What others attach by; a generated one for a private buffer."""
        return self._attachment.address.name

    def statistics(self) -> BufferStats:
        """The whole buffer at one moment, as a `BufferStats`."""
        spec = self._attachment.spec
        if not self.initialized:
            return BufferStats(
                name=self.name, size=0, capacity=spec.capacity, write_count=0, initialized=False
            )
        return snapshot.stats(self._attachment.member.segment, self.name, self._attachment.spec)

    def stats(self) -> dict[str, Any]:
        """TorchRL's keys (size, write_count, capacity, utilization, ...), and lanes, clients, limiter
        and counters."""
        return self.statistics().as_dict()

    @property
    def storage(self) -> StorageView:
        """Where the records lie."""
        return StorageView(self)

    @property
    def writer(self) -> WriterView:
        """How slots are taken."""
        return WriterView(self)

    @property
    def sampler(self) -> SamplerView:
        """How this handle chooses."""
        return SamplerView(self._consumer)

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Gives this handle another sampler; the former one."""
        former = self._consumer.sampler
        spec = self._attachment.spec.for_handle(
            sampler=sampler, batch_size=self._consumer.batch_size
        )
        self._consumer.sampler = spec.sampler
        return former

    @property
    def limiter(self) -> Limits:
        """The rate limits: look at them, change them, lift them for preloading."""
        return Limits(self._attachment)

    # ---- transforms ------------------------------------------------------------------------------

    @property
    def transform(self) -> Transforms:
        """This handle's transforms."""
        return self._transforms

    def append_transform(self, transform: Transform, *, invert: bool = False) -> Self:
        """Runs a callable on each batch this handle reads; with `invert`, before each write."""
        return self.insert_transform(len(self._transforms), transform, invert=invert)

    def insert_transform(
        self, index: int, transform: Transform, *, invert: bool = False
    ) -> Self:
        """The same, at a place in the chain."""
        self._transforms.insert(index, transform, invert)
        return self

    # ---- life ------------------------------------------------------------------------------------

    def client(self) -> Self:
        """The handle itself: it is as good as any other."""
        return self

    def start(self) -> Self:
        """The handle itself: there is nothing to start."""
        return self

    @property
    def is_alive(self) -> bool:
        """Whether the handle may be used."""
        return not self._attachment.is_closed

    def shutdown(self, timeout: float | None = None) -> None:
        """The same as `close`."""
        self.close()

    def close(self) -> None:
        """Gives the client slot back. The buffer stays, unless it ends with this creator."""
        self._attachment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        spec = self._attachment.spec
        state = "closed" if self._attachment.is_closed else f"{self.name!r}"
        return f"ReplayBuffer({state}, capacity={spec.capacity}, lanes={spec.lanes})"

    def __reduce__(self) -> Any:
        """A handle travels as a name; it attaches where it lands."""
        if self._transforms:
            raise TypeError(
                "a handle with transforms cannot be pickled: they are code of this process. Pickle "
                "the handle without them and append them after attaching."
            )
        options = self._options.with_components(
            self._consumer.sampler, self._consumer.sample_unit, self._consumer.batch_size
        )
        return _unpickle, (self._attachment.address, options)

    # ---- inside ----------------------------------------------------------------------------------

    @property
    def _form(self) -> BatchFormat:
        if self._form_made is None:
            if self._attachment.segment is None:
                self._attachment.join()
            schema = cast(Schema, self._attachment.spec.schema)
            self._form_made = BatchFormat(schema, self._options.format)
        return self._form_made

    @property
    def _reader(self) -> RecordReader:
        return self._appender.reader()

    def _int64(self, array: Any) -> Any:
        if self._options.format == "numpy":
            return array
        import torch

        return torch.from_numpy(array)


def _unpickle(address: opening.Address, options: HandleOptions) -> ReplayBuffer:
    return ReplayBuffer._attached(opening.reattach(address, options), options)


def attach(
    name: str,
    *,
    timeout: float = 0.0,
    sampler: Sampler | None = None,
    sample_unit: SampleUnit | None = None,
    batch_size: int | None = None,
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
        format, cast, seed, default_timeout, client_name: as for `ReplayBuffer`.
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
        sampler=sampler,
        sample_unit=sample_unit,
        batch_size=batch_size,
    )
    return ReplayBuffer._attached(opening.attach(name, timeout, root, options), options)


def _is_key(index: tuple[Any, ...]) -> bool:
    return bool(index) and all(isinstance(part, str) for part in index)


def _rows_of(data: Any) -> int:
    leaf = data
    while hasattr(leaf, "items"):
        leaf = next(iter(leaf.values()))
    return len(leaf)


def _with_first_dimension(value: Any) -> Any:
    return value[None] if hasattr(value, "shape") and hasattr(value, "dtype") else [value]


def _flat(data: Any, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not hasattr(data, "items"):
        raise RecordError(f"update_: expected fields by name, got {type(data).__name__}.")
    values: dict[tuple[str, ...], Any] = {}
    for key, value in data.items():
        path = (*above, *((key,) if isinstance(key, str) else tuple(key)))
        if hasattr(value, "items"):
            values |= _flat(value, path)
        else:
            values[path] = value
    return values
