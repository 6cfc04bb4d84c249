"""`BufferSpec`: everything that is fixed when a buffer is created; floor F1.

Two kinds of settings meet here. Storage, schema, done keys, writer, priorities, limiter and
consumption are the buffer's: who attaches must agree with them. Sampler, sample unit and batch size
are each handle's; creation gives their defaults, and `require` says whether the buffer keeps what
they need.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from shmrb.boundaries import checked_done_keys, checked_traj_key
from shmrb.components import (
    FifoSampler,
    ImmutableWriter,
    LifoSampler,
    MemmapStorage,
    MultiStep,
    Priorities,
    PrioritizedSampler,
    RandomSampler,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    Sequence,
    SharedStorage,
    Transition,
)
from shmrb.description import Description, Path, read_one_of, whole
from shmrb.errors import SpecError, SpecTypeError
from shmrb.fields import show_path
from shmrb.limiters import (
    MinSize,
    Queue,
    RateLimiter,
    check_reach,
    smallest_error_buffer,
    thresholds,
)
from shmrb.requirements import (
    SAMPLE_UNITS,
    SAMPLERS,
    Sampler,
    SampleUnit,
    check_kind,
    difference,
    differences,
    require,
    show_paths,
)
from shmrb.schema import Schema
from shmrb.slicing import (
    PrioritizedSliceSampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from shmrb.steps import is_stored_once

__all__ = [
    "BufferSpec",
    "FifoSampler",
    "ImmutableWriter",
    "LifoSampler",
    "Limiter",
    "MemmapStorage",
    "MinSize",
    "MultiStep",
    "Priorities",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "Queue",
    "RandomSampler",
    "RateLimiter",
    "RoundRobinWriter",
    "SampleUnit",
    "Sampler",
    "SamplerWithoutReplacement",
    "Sequence",
    "SharedStorage",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "Storage",
    "Transition",
    "Writer",
    "require",
    "smallest_error_buffer",
    "thresholds",
]

Storage = SharedStorage | MemmapStorage
Writer = RoundRobinWriter | ImmutableWriter
Limiter = RateLimiter | MinSize | Queue

# Which descriptions each setting may hold, by the name of the argument.
KINDS: dict[str, tuple[type[Description], ...]] = {
    "storage": (SharedStorage, MemmapStorage),
    "schema": (Schema,),
    "writer": (RoundRobinWriter, ImmutableWriter),
    "priorities": (Priorities,),
    "limiter": (RateLimiter, MinSize, Queue),
    "sampler": SAMPLERS,
    "sample_unit": SAMPLE_UNITS,
}
OPTIONAL = ("schema", "priorities", "limiter")

LIFETIMES = ("persistent", "creator")
# What a buffer's slots hold: records of a ring, or whole trees of parameters, of which the newest
# counts.
PURPOSES = ("buffer", "parameters")
# The newest tree, the one before it for readers that are still copying, and the one being written.
PARAMETER_SLOTS = 3

# A token has 16 bits for the client slot plus one, and 0 means nobody.
MAX_CLIENTS = (1 << 16) - 1
# Draws of a record are counted in 32 bits.
MAX_DRAWS = (1 << 32) - 1
# Offsets into a column are int64.
MAX_COLUMN_BYTES = 1 << 62


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BufferSpec(Description):
    """The description of a buffer.

    Args:
        storage: where the records lie, how many, in how many lanes.
        schema: the fields of a record, or a dictionary for `Schema.from_mapping`; None: the first
            write decides.
        done_keys: bool fields of one element that end a trajectory. Empty: those called done,
            truncated or terminated, at the root or under "next", as soon as the schema is known.
        traj_key: the field that says which trajectory a record belongs to: another value starts
            another. None: the first of ("collector", "traj_ids"), "traj_ids" and "episode" that the
            schema has.
        writer: how slots are taken.
        priorities: what the buffer keeps for prioritized sampling. Follows from a
        `PrioritizedSampler`.
        limiter: who waits for whom.
        consume_after_n_samples: a record is gone after so many draws; None: never.
        sampler, sample_unit, batch_size: what a handle has unless it asks for something else.
        lifetime: "persistent" until it is dropped, "creator" as long as its creator lives.
        max_clients: how many handles may be attached at a time.
        purpose: "buffer", or "parameters" for what `Parameters` publishes.
    """

    kind: ClassVar[str] = "BufferSpec"

    storage: Storage
    schema: Schema | None = None
    done_keys: tuple[Path, ...] = ()
    traj_key: Path | None = None
    writer: Writer = dataclasses.field(default_factory=RoundRobinWriter)
    priorities: Priorities | None = None
    limiter: Limiter | None = None
    consume_after_n_samples: int | None = None
    sampler: Sampler = dataclasses.field(default_factory=RandomSampler)
    sample_unit: SampleUnit = dataclasses.field(default_factory=Transition)
    batch_size: int | None = None
    lifetime: str = "persistent"
    max_clients: int = 1024
    purpose: str = "buffer"

    def __post_init__(self) -> None:
        if isinstance(self.schema, Mapping):
            self._set(schema=Schema.from_mapping(self.schema))
        for name, kinds in KINDS.items():
            if getattr(self, name) is not None or name not in OPTIONAL:
                check_kind(name, getattr(self, name), kinds)
        if self.priorities is None and isinstance(self.sampler, PrioritizedSampler):
            self._set(priorities=self.sampler.priorities)
        self._check_numbers()
        if isinstance(self.sampler, SliceSampler):
            self._adopt_ends(self.sampler)
        self._set(done_keys=checked_done_keys(self.done_keys, self.schema))
        self._set(traj_key=checked_traj_key(self.traj_key, self.schema))
        if self.schema is not None:
            _check_columns(self.schema, self.capacity)
        if self.limiter is not None:
            cost = 0 if self.batch_size is None else self.batch_size * self.sample_unit.cost
            check_reach(self.limiter, self.capacity, cost)
        require(self, self.sampler, self.sample_unit)
        _check_purpose(self)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        count = self.consume_after_n_samples
        if count is not None:
            self._set(consume_after_n_samples=_checked_count(count))
        if self.batch_size is not None:
            self._set(batch_size=whole("batch_size", self.batch_size, least=1))
        elif isinstance(self.sampler, SamplerWithoutReplacement) and self.sampler.drop_last:
            raise SpecError(
                "Samplers with drop_last=True must work with a predictable batch-size. "
                "Give batch_size= beside the sampler."
            )
        if self.lifetime not in LIFETIMES:
            raise SpecError(f"lifetime must be {' or '.join(LIFETIMES)}, got {self.lifetime!r}.")
        self._set(max_clients=whole("max_clients", self.max_clients, least=1, most=MAX_CLIENTS))

    def _adopt_ends(self, sampler: SliceSampler) -> None:
        """What the first sampler says of trajectories holds where nothing else is said."""
        if self.traj_key is None and sampler.traj_path is not None:
            self._set(traj_key=sampler.traj_path)
        if not self.done_keys and self.schema is not None:
            found = checked_done_keys((), self.schema)
            more = [path for path in sampler.end_paths if path in self.schema.paths]
            self._set(done_keys=tuple(dict.fromkeys((*found, *more))))

    @property
    def capacity(self) -> int:
        """Slots of the whole buffer."""
        return self.storage.capacity

    @property
    def lanes(self) -> int:
        """Independent streams."""
        return self.storage.lanes

    @property
    def lane_capacity(self) -> int:
        """Slots of one lane."""
        return self.capacity // self.lanes

    @property
    def needs_control_lock(self) -> bool:
        """Whether reserving must agree with priorities, a limiter or consumption."""
        shared = (self.priorities, self.limiter, self.consume_after_n_samples)
        return any(setting is not None for setting in shared)

    @property
    def refills_consumed(self) -> bool:
        """Whether writes fill the slots of consumed records before they go on in the ring.

        Where the order of records counts, the ring alone decides: in lanes, for sequences, and
        where what came next lies in the following record.
        """
        if self.consume_after_n_samples is None or self.lanes > 1:
            return False
        stored_once = self.schema is not None and is_stored_once(self.schema)
        return isinstance(self.sample_unit, Transition) and not stored_once

    def with_schema(self, schema: Schema) -> BufferSpec:
        """This description with the schema that the first write decided."""
        return dataclasses.replace(self, schema=schema)

    def for_handle(
        self,
        *,
        sampler: Sampler | None = None,
        sample_unit: SampleUnit | None = None,
        batch_size: int | None = None,
    ) -> BufferSpec:
        """This description with a handle's own settings in place of the defaults.

        Raises:
            SpecError: the buffer does not keep what they need, or they do not go together.
        """
        sampler = sampler or self.sampler
        sample_unit = sample_unit or self.sample_unit
        batch_size = self.batch_size if batch_size is None else batch_size
        # Held against what the buffer keeps before it is taken in: a description with a prioritized
        # sampler would take its priorities from it.
        plain = dataclasses.replace(
            self, sampler=RandomSampler(), sample_unit=Transition(), batch_size=batch_size
        )
        require(plain, sampler, sample_unit)
        return dataclasses.replace(
            self, sampler=sampler, sample_unit=sample_unit, batch_size=batch_size
        )

    def differences(self, other: BufferSpec) -> list[str]:
        """What `other` wants otherwise of what is the buffer's, one sentence each.

        Not compared: sampler, sample unit and batch size, which are each handle's; the order of
        fields; and what one of the two leaves open (schema, error buffer).

        Args:
            other: the description asked for, while this one exists.
        """
        found = []
        for name in ("storage", "writer", "priorities", "limiter"):
            found += differences(name, getattr(self, name), getattr(other, name))
        if self.schema is not None and other.schema is not None:
            found += self.schema.differences(other.schema)
        if self.done_keys and other.done_keys and set(self.done_keys) != set(other.done_keys):
            found.append(
                difference("done_keys", show_paths(self.done_keys), show_paths(other.done_keys))
            )
        if self.traj_key and other.traj_key and self.traj_key != other.traj_key:
            found.append(
                difference("traj_key", show_path(self.traj_key), show_path(other.traj_key))
            )
        for name in ("purpose", "consume_after_n_samples", "lifetime", "max_clients"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                found.append(difference(name, mine, theirs))
        return found

    @classmethod
    def _values(cls, known: dict[str, Any]) -> dict[str, Any]:
        values = dict(known)
        for name, kinds in KINDS.items():
            if values.get(name) is not None:
                values[name] = read_one_of(values[name], name, kinds)
        return values


def _check_purpose(spec: BufferSpec) -> None:
    if spec.purpose not in PURPOSES:
        raise SpecError(f"purpose must be {' or '.join(PURPOSES)}, got {spec.purpose!r}.")
    if spec.purpose == "buffer":
        return
    if spec.storage != SharedStorage(PARAMETER_SLOTS) or spec.needs_control_lock:
        raise SpecError(
            f"purpose='parameters' goes with SharedStorage({PARAMETER_SLOTS}) and with neither "
            "priorities, limiter nor consumption. Use shmrb.Parameters, which describes itself."
        )
    if spec.schema is None or spec.schema.root != "dict":
        raise SpecError(
            "purpose='parameters' needs the schema of a tree with named leaves: give "
            "shmrb.Parameters(name, like=tree)."
        )


def _checked_count(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int):
        raise SpecTypeError("consume_after_n_samples must be a positive integer.")
    if count < 1:
        raise SpecError("consume_after_n_samples must be a positive integer.")
    if count > MAX_DRAWS:
        raise SpecError(f"consume_after_n_samples: at most {MAX_DRAWS} is possible, got {count}.")
    return count


def _check_columns(schema: Schema, capacity: int) -> None:
    for field in schema.fields:
        if field.row_bytes * capacity > MAX_COLUMN_BYTES:
            raise SpecError(
                f"field {show_path(field.path)}: {capacity} records of {field.row_bytes} bytes are "
                "more than 64-bit offsets can reach. Take a smaller capacity."
            )
