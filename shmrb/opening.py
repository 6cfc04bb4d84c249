"""Birth and finding: descriptions become buffers, names become attachments (floor F5)."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from shmrb import wire
from shmrb.attachment import LOOK_EVERY_S, Address, Attachment, find
from shmrb.channel import Channel
from shmrb.errors import (
    AttachError,
    DaemonError,
    DeadlineError,
    NoSuchBufferError,
    SpecError,
    StaleAttachmentError,
)
from shmrb.fields import key_path
from shmrb.segment import names
from shmrb.segment.building import Progress
from shmrb.segment.directory import Exist, Root
from shmrb.spec import (
    BufferSpec,
    Sampler,
    SampleUnit,
    Storage,
)
from shmrb.waiting import DEFAULT_TIMEOUT_S, deadline_of

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "Address",
    "HandleOptions",
    "attach",
    "create",
    "describe",
    "reattach",
]


# What TorchRL's losses write into a batch.
DEFAULT_PRIORITY_KEY = "td_error"
# A daemon that is busy creating a large buffer answers later; then the other roots are searched.
DAEMON_ANSWERS_S = 5.0
# A name can be replaced between finding it and attaching: so often it is looked for again at once.
ATTEMPTS = 20
# What a name bears, and who opens it.
_KINDS = {
    "buffer": ("records of a replay buffer", "open it with shmrb.attach({!r})"),
    "parameters": ("published parameters", "open it with shmrb.Parameters({!r})"),
}


@dataclass(frozen=True, slots=True)
class HandleOptions:
    """What belongs to a handle and travels with it.

    Attributes:
        format, cast, seed, default_timeout, client_name, role: as in `shmrb.attach`.
        priority_key: where records and batches may carry a priority.
        sampler, sample_unit, batch_size: None: the buffer's defaults.
        prefetch: batches to draw ahead; None: none.
    """

    format: str = "torch"
    cast: str = "no"
    seed: int | None = None
    default_timeout: float = DEFAULT_TIMEOUT_S
    client_name: str | None = None
    role: str = "member"
    priority_key: str | tuple[str, ...] = DEFAULT_PRIORITY_KEY
    sampler: Sampler | None = None
    sample_unit: SampleUnit | None = None
    batch_size: int | None = None
    prefetch: int | None = None

    def __post_init__(self) -> None:
        if self.format not in ("torch", "numpy"):
            raise SpecError(f"format: expected 'torch' or 'numpy', got {self.format!r}.")
        if self.cast not in ("no", "same_kind"):
            raise SpecError(f"cast: expected 'no' or 'same_kind', got {self.cast!r}.")
        if self.role not in ("member", "learner", "observer"):
            raise SpecError(f"role: expected 'member', 'learner' or 'observer', got {self.role!r}.")
        key_path(self.priority_key)
        if not self.default_timeout >= 0:
            raise SpecError(
                f"default_timeout: expected seconds >= 0, got {self.default_timeout!r}."
            )

    @property
    def label(self) -> str:
        """The client's name: the one given, else that of the program."""
        if self.client_name is not None:
            return self.client_name
        return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"

    def with_components(
        self, sampler: Sampler, sample_unit: SampleUnit, batch_size: int | None
    ) -> HandleOptions:
        """These options with the components that a handle has now, and without its seed.

        Whoever unpickles the handle draws a stream of its own, and nothing ahead.
        """
        return dataclasses.replace(
            self,
            sampler=sampler,
            sample_unit=sample_unit,
            batch_size=batch_size,
            seed=None,
            prefetch=None,
        )


def describe(*, storage: Storage, **settings: Any) -> BufferSpec:
    """The description that the arguments of `ReplayBuffer` and of the daemon's `create` give.

    Raises:
        SpecError: the description is impossible, or holds code, which stays in its process.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    return BufferSpec(storage=storage, **given)


def create(
    spec: BufferSpec,
    name: str | None,
    exist: Exist,
    root: str | None,
    options: HandleOptions,
    progress: Progress | None = None,
) -> Attachment:
    """Creates the buffer, or uses the one of the same description; an attachment to it."""
    place = Root(names.creation_root(root, _reported(root)))
    made = place.create(spec, name, exist=exist, progress=progress)
    entry = made.entry
    assert entry.spec is not None
    assert entry.uuid is not None
    return _attachment(
        Address(place.path, entry.name, entry.uuid), entry.spec, options, hold=made.hold
    )


def attach(
    name: str,
    timeout: float | None,
    root: str | None,
    options: HandleOptions,
    purpose: str = "buffer",
) -> Attachment:
    """An attachment to the buffer of that name, waited for as long as asked.

    Raises:
        AttachError: the name bears parameters where a buffer was asked for, or the other way.
    """
    names.check_name(name)
    deadline = deadline_of(timeout, DEFAULT_TIMEOUT_S)
    failed = 0
    while True:
        roots = names.search_roots(root, _reported(root))
        place, spec, uuid = find(roots, name, max(0.0, deadline - time.monotonic()))
        if spec.purpose != purpose:
            found, cure = _KINDS[spec.purpose]
            raise AttachError(
                f"{name} in {place} holds {found}, expected {_KINDS[purpose][0]}: "
                f"{cure.format(name)}."
            )
        try:
            return _attachment(Address(place, name, uuid), spec, options)
        except (StaleAttachmentError, NoSuchBufferError):
            # It was replaced since it was found, or it ends with its creator, who is gone.
            failed += 1
            if failed >= ATTEMPTS:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(LOOK_EVERY_S)


def reattach(address: Address, options: HandleOptions) -> Attachment:
    """An attachment to exactly the buffer that a handle elsewhere is attached to."""
    entry = Root(address.root).require(address.name)
    assert entry.spec is not None
    return _attachment(address, entry.spec, options)


def _attachment(
    address: Address, spec: BufferSpec, options: HandleOptions, hold: Any = None
) -> Attachment:
    attachment = Attachment(
        address,
        spec,
        role=options.role,
        client_name=options.label,
        default_timeout=options.default_timeout,
        seed=options.seed,
        hold=hold,
    )
    if spec.schema is not None:
        attachment.join()
    return attachment


def _reported(root: str | None) -> str | None:
    """What a daemon says its root is; nobody is asked when the root is named."""
    if root is not None or os.environ.get(names.ROOT_VARIABLE):
        return None
    sockets = [path for path in names.client_sockets() if os.path.exists(path)]
    if not sockets:
        return None
    channel = Channel(sockets)
    try:
        channel.open(0.0)
        info: wire.DaemonInfo = channel.ask(wire.Ping(), DAEMON_ANSWERS_S)
        return info.root
    except (DaemonError, DeadlineError):
        return None
    finally:
        channel.close()
