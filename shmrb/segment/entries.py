"""What lies under a name in a root, read without attaching; floor F3.

Nothing read here is trusted: a directory may hold anything, links are not followed, and a file of a
newer format is described, never touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from shmrb import core
from shmrb.errors import AttachError, FormatMismatchError
from shmrb.segment import boot, layout, names
from shmrb.segment.layout import Declaration, Meta
from shmrb.segment.opening import denied, file_sizes, read_file
from shmrb.segment.where import StaleDoor, open_buffer
from shmrb.spec import BufferSpec, MemmapStorage

# BufferState of native/abi.h.
READY_STATE = 1
DEAD_STATE = 2


class State(Enum):
    """How far a buffer has come."""

    MISSING = "missing"
    DECLARED = "declared"
    READY = "ready"
    # Somebody is dropping it, or died while doing so; for a user it is missing already.
    LEAVING = "leaving"
    # On a disk, and open when the machine stopped: words may be there without their bytes.
    UNCLEAN = "unclean"
    # Not ours, of another format, or not open to this user.
    FOREIGN = "foreign"


@dataclass(frozen=True)
class Entry:
    """A name of a root and what lies there.

    Attributes:
        name: the buffer's name; for what is not ours, the directory's.
        path: the directory of its files.
        state: how far it has come.
        door: the directory in the root that says where the files lie, None if they lie there.
        meta: of a buffer that is ready, unclean or leaving.
        declaration: of one that is declared.
        problem: why a foreign one is foreign, or an unclean one not served.
    """

    name: str
    path: str
    state: State
    door: str | None = None
    meta: Meta | None = None
    declaration: Declaration | None = None
    problem: str = ""

    @property
    def spec(self) -> BufferSpec | None:
        """The description, if there is a buffer."""
        if self.meta is not None:
            return self.meta.layout.spec
        return self.declaration.spec if self.declaration is not None else None

    @property
    def uuid(self) -> bytes | None:
        """The identity, if there is a buffer. It stays when a declared one is published."""
        described = self.meta or self.declaration
        return described.uuid if described is not None else None

    @property
    def place(self) -> str:
        """The directory in which the buffer's own directory lies: the root, or one on a disk."""
        return os.path.dirname(self.path)

    @property
    def is_lasting(self) -> bool:
        """Do its files outlive the machine's stop?"""
        return self.spec is not None and isinstance(self.spec.storage, MemmapStorage)

    @property
    def live_lock(self) -> str:
        """The file whose bytes the clients hold."""
        return os.path.join(self.path, names.LIVE_LOCK)

    @property
    def is_bounded(self) -> bool:
        """Does it end with its creator?"""
        return self.spec is not None and is_bounded(self.name, self.spec)

    @property
    def creator_lives(self) -> bool:
        """Is the byte held that the creator of a bounded buffer holds?"""
        return self.spec is not None and core.byte_held(self.live_lock, self.spec.max_clients)

    def held_slots(self) -> Iterator[int]:
        """The client slots whose byte is held, in order."""
        for slot in range(self.spec.max_clients if self.spec is not None else 0):
            if core.byte_held(self.live_lock, slot):
                yield slot


@dataclass(frozen=True)
class MemberLabel:
    """A client as its entry describes it; only its byte says whether it lives."""

    slot: int
    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name or 'unnamed'} (pid {self.pid})"


def is_bounded(name: str, spec: BufferSpec) -> bool:
    """Does a buffer of this name and description end with its creator?"""
    return names.is_private(name) or spec.lifetime == "creator"


def look(root: str, name: str) -> Entry:
    """What lies under the name of a buffer.

    Raises:
        FormatMismatchError: something that is not a buffer of this format.
        FileSystemError: a link, or no directory.
        PermissionDeniedError: it is not open to this user.
        SpecError: no buffer may bear the name.
    """
    path = os.path.join(root, names.directory_name(name))
    while True:
        try:
            with open_buffer(root, name) as found:
                try:
                    return read_entry(name, found.path, found.descriptor, found.door)
                except (FormatMismatchError, FileNotFoundError):
                    # Files that are being removed look damaged; the name is another's by then.
                    if os.path.samestat(os.stat(found.path), os.fstat(found.descriptor)):
                        raise
        except StaleDoor as error:
            return Entry(name, error.target, State.LEAVING, path)
        except FileNotFoundError:
            return Entry(name, path, State.MISSING)


def read_entry(name: str, path: str, descriptor: int, door: str | None = None) -> Entry:
    """What an open directory holds.

    Args:
        name: of the buffer.
        path: of the directory.
        descriptor: of the directory.
        door: the directory in the root that says where it is, if it lies elsewhere.

    Raises:
        FormatMismatchError: not a buffer of this format.
        PermissionDeniedError: a file is not open to this user.
    """
    limit = layout.HEADER_BYTES + layout.MAX_JSON_BYTES
    raw = read_file(names.META, descriptor, path, limit)
    if raw is None:
        declared = read_file(names.DECLARATION, descriptor, path, limit)
        if declared is not None:
            declaration = layout.parse_declaration(declared, os.path.join(path, names.DECLARATION))
            return Entry(name, path, State.DECLARED, door, declaration=declaration)
        # Published between the two looks, it has lost the one and got the other.
        raw = read_file(names.META, descriptor, path, limit)
    if raw is None:
        raise FormatMismatchError(
            f"{path}: expected {names.META!r} or {names.DECLARATION!r} in it, got neither: not a "
            "buffer of shmrb. Remove it by hand if nobody needs it."
        )
    meta = layout.parse_meta(raw, os.path.join(path, names.META))
    meta.layout.check_sizes(file_sizes(descriptor), path)
    entry = Entry(name, path, _read_state(meta, descriptor, path), door, meta=meta)
    if entry.state is State.READY and entry.is_lasting and not boot.is_whole(descriptor, path):
        return replace(entry, state=State.UNCLEAN, problem=str(boot.unclean(path)))
    return entry


def list_entries(root: str) -> Iterator[Entry]:
    """Everything in a root but its own bookkeeping and unfinished directories, by name."""
    try:
        directories = sorted(os.listdir(root))
    except FileNotFoundError:
        return
    except PermissionError:
        raise denied(root) from None
    for directory in directories:
        if directory in (names.ADMINISTRATION_LOCK, names.DAEMON_LOCK, names.STAMPS):
            continue
        if names.unfinished_build(directory) is not None:
            continue
        name = names.buffer_name(directory)
        path = os.path.join(root, directory)
        if name is None:
            yield Entry(directory, path, State.FOREIGN, problem="no name of a buffer")
            continue
        try:
            found = look(root, name)
        except AttachError as error:
            yield Entry(name, path, State.FOREIGN, problem=str(error))
            continue
        if found.state is not State.MISSING:
            yield found


def read_labels(entry: Entry, slots: list[int]) -> list[MemberLabel]:
    """What the control block says about the clients of these slots."""
    block = core.abi()["ClientBlock"]
    labels = []
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(os.path.join(entry.path, names.CONTROL), flags), "rb") as control:
        for slot in slots:
            control.seek(layout.CONTROL_BYTES + slot * block["size"])
            raw = control.read(block["size"])
            name = field(raw, block, "name").split(b"\0")[0].decode("utf-8", "replace")
            pid = int.from_bytes(field(raw, block, "pid"), "little")
            labels.append(MemberLabel(slot, pid, name))
    return labels


def field(raw: bytes, block: dict[str, Any], name: str) -> bytes:
    """The bytes of one field of a block of the control file."""
    offset, size = block["fields"][name]
    return raw[offset : offset + size]


def _read_state(meta: Meta, directory: int, where: str) -> State:
    """The state in the control block, after comparing the block with `meta`."""
    block = core.abi()["ControlBlock"]
    size = meta.layout.files[names.CONTROL]
    raw = read_file(names.CONTROL, directory, where, size, only=layout.CONTROL_BYTES) or b""
    spec = meta.layout.spec
    expected: dict[str, bytes] = {
        "magic": core.CONTROL_MAGIC.to_bytes(8, "little"),
        "format": core.FORMAT_NUMBER.to_bytes(4, "little"),
        "uuid": meta.uuid,
        "capacity": spec.capacity.to_bytes(8, "little"),
        "lanes": spec.lanes.to_bytes(4, "little"),
        "max_clients": spec.max_clients.to_bytes(4, "little"),
    }
    for name, value in expected.items():
        if field(raw, block, name) != value:
            raise FormatMismatchError(
                f"{where}: control block: expected {name} {value.hex()}, got "
                f"{field(raw, block, name).hex()}; it does not belong to this 'meta'. "
                "Remove the directory."
            )
    state = int.from_bytes(field(raw, block, "state"), "little")
    if state not in (READY_STATE, DEAD_STATE):
        raise FormatMismatchError(
            f"{where}: control block: expected state {READY_STATE} or {DEAD_STATE}, got {state}. "
            "Remove the directory."
        )
    return State.READY if state == READY_STATE else State.LEAVING
