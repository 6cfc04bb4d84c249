"""From a description to files and offsets, and back from the bytes of `meta`; floor F3, pure.

The arithmetic is stated in FORMAT.md, and a test holds the two together. Nothing here opens or maps
a file. What is read back is believed only when computing it anew gives the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shmrb.errors import FormatMismatchError, SpecError
from shmrb.segment import names
from shmrb.spec import BufferSpec

FORMAT_NUMBER = 1
META_MAGIC = int.from_bytes(b"SMBRMET1", "little")

PAGE_BYTES = 4096
# One line of a cache: a node's eight children are fetched together.
LINE_BYTES = 64

# Sizes of the blocks in native/abi.h.
CONTROL_BYTES = 4096
CLIENT_BYTES = 256
LANE_BYTES = 384

# magic, format, header_bytes, digest, uuid, created_ns, json_bytes
HEADER = struct.Struct("<QII32s16sqQ")
HEADER_FIELDS = ("magic", "format", "header_bytes", "digest", "uuid", "created_ns", "json_bytes")
HEADER_BYTES = PAGE_BYTES
# A schema of thousands of fields takes less; more is a number that no creator wrote.
MAX_JSON_BYTES = 64 * 1024 * 1024
# Offsets are signed 64-bit numbers for the kernel.
MAX_FILE_BYTES = 2**63 - 1

# Per slot, in this order.
SLOT_WORDS = {"words": 8, "owners": 4, "runs": 4, "versions": 8}
# Of what consumption keeps a slot, in the order in which the native core takes them.
CONSUMPTION_WORDS = {
    "counts": 4,
    "holders": 4,
    "costs": 4,
    "arrivals": 8,
    "members": 8,
    "places": 8,
    "next": 8,
    "previous": 8,
    "freed": 8,
}
LEAF_BYTES = 8
FAN_OUT = 8
# Levels of the priority tree: nodes of 8 bytes for the sums, of 4 for the minima.
NODE_BYTES = {"sums": 8, "minima": 4}
# Trajectory starts: a count a block of slots, and sums over sixteen counts above it.
START_BLOCK = 64
START_FAN_OUT = 16
START_BYTES = 4


@dataclass(frozen=True, slots=True)
class Region:
    """A named range of one file."""

    file: str
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Column:
    """One field of all slots: [capacity, row_bytes] from `offset` of the data file on."""

    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    offset: int
    row_bytes: int


@dataclass(frozen=True)
class Layout:
    """Where everything lies in the files of one buffer.

    Attributes:
        spec: the description it was computed from; it has a schema.
        files: bytes of each file but `meta`, whose size is that of the header and `json`.
        regions: ranges of those files, except the columns.
        columns: one a field, in the order of the schema.
        json: canonical JSON of all of it, as `meta` holds it.
        digest: SHA-256 of `json`.
    """

    spec: BufferSpec
    files: Mapping[str, int]
    regions: Mapping[str, Region]
    columns: tuple[Column, ...]
    json: bytes
    digest: bytes

    @classmethod
    def of(cls, spec: BufferSpec) -> Layout:
        """Lay out the buffer that `spec` describes.

        Raises:
            SpecError: it has no schema yet, or a file would be larger than a file can be.
        """
        if spec.schema is None:
            raise SpecError("layout: expected a description with a schema, got none.")
        regions = _control_regions(spec) | _slot_arrays(names.SLOTS, SLOT_WORDS, spec.capacity)
        if spec.purpose == "buffer":  # parameters hold no trajectories
            regions |= _start_regions(spec, regions["versions"])
        if spec.priorities is not None:
            regions |= _priority_regions(spec.capacity)
        if spec.consume_after_n_samples is not None:
            regions |= _slot_arrays(names.CONSUMPTION, CONSUMPTION_WORDS, spec.capacity)
        columns, data_bytes = _columns(spec)
        files: dict[str, int] = {}
        for region in regions.values():
            end = _aligned(region.offset + region.bytes)
            files[region.file] = max(files.get(region.file, 0), end)
        # A file without a byte cannot be mapped.
        files[names.DATA] = max(data_bytes, PAGE_BYTES)
        # One byte a client, and one that the creator of a buffer with a bounded life holds.
        files[names.LIVE_LOCK] = spec.max_clients + 1
        for name, size in files.items():
            if size > MAX_FILE_BYTES:
                raise SpecError(
                    f"layout: file {name!r} would take {size} bytes, at most {MAX_FILE_BYTES} are "
                    "possible. Take a smaller capacity or smaller fields."
                )
        text = _canonical(spec, files, regions, columns)
        return cls(spec, files, regions, columns, text, hashlib.sha256(text).digest())

    @property
    def all_files(self) -> dict[str, int]:
        """Bytes of each file, `meta` too."""
        return {names.META: HEADER_BYTES + len(self.json), **self.files}

    @property
    def total_bytes(self) -> int:
        """Bytes that the whole buffer takes."""
        return sum(self.all_files.values())

    @property
    def creator_byte(self) -> int:
        """The byte of `live.lock` that says whether a bounded buffer's creator lives."""
        return self.spec.max_clients

    def check_sizes(self, sizes: Mapping[str, int], where: str) -> None:
        """Compare the files' sizes with the layout's.

        Raises:
            FormatMismatchError: a file is missing, or is shorter or longer than laid out.
        """
        for name, expected in self.files.items():
            if name not in sizes:
                raise FormatMismatchError(
                    f"{where}: file {name!r} is missing; remove the directory."
                )
            if sizes[name] != expected:
                raise FormatMismatchError(
                    f"{where}: file {name!r}: expected {expected} bytes, got {sizes[name]}. "
                    "Somebody changed its length; remove the directory."
                )


@dataclass(frozen=True)
class Meta:
    """What `meta` says, checked."""

    layout: Layout
    uuid: bytes
    created_ns: int


@dataclass(frozen=True)
class Declaration:
    """What the `declaration` of a buffer without a schema says, checked."""

    spec: BufferSpec
    uuid: bytes
    created_ns: int


def pack_meta(meta: Meta) -> bytes:
    """The bytes of `meta`. The creator writes the magic, its first eight, last."""
    header = HEADER.pack(
        META_MAGIC,
        FORMAT_NUMBER,
        HEADER_BYTES,
        meta.layout.digest,
        meta.uuid,
        meta.created_ns,
        len(meta.layout.json),
    )
    return header.ljust(HEADER_BYTES, b"\0") + meta.layout.json


@functools.lru_cache(maxsize=1024)
def parse_meta(raw: bytes, where: str) -> Meta:
    """Read the bytes of a `meta` file that anybody may have written.

    What it says is checked once a process: every look at a root meets the same files again.

    Args:
        raw: the whole file.
        where: what to call it in messages.

    Raises:
        FormatMismatchError: it is not ours, of another format number, damaged, or laid out
            otherwise than this program would.
    """
    header = _read_header(raw, where)
    text = raw[HEADER_BYTES:]
    if header["json_bytes"] != len(text):
        raise FormatMismatchError(
            f"{where}: expected {header['json_bytes']} bytes of description, as its header says, "
            f"got {len(text)}: cut off or not written by shmrb."
        )
    found = hashlib.sha256(text).digest()
    if found != header["digest"]:
        raise FormatMismatchError(
            f"{where}: expected a description with digest {header['digest'].hex()}, got "
            f"{found.hex()}: it was damaged. Remove the directory."
        )
    try:
        layout = Layout.of(_read_spec(_read_json(text, where), where))
    except SpecError as error:
        raise _senseless(error, where) from None
    if layout.json != text:
        raise FormatMismatchError(
            f"{where}: expected the layout that this version computes, digest "
            f"{layout.digest.hex()}, got {found.hex()}: another version of shmrb laid it out. Use "
            "that version."
        )
    return Meta(layout, header["uuid"], header["created_ns"])


def pack_declaration(declaration: Declaration) -> bytes:
    """The bytes of `declaration`."""
    document = {
        "format": FORMAT_NUMBER,
        "uuid": declaration.uuid.hex(),
        "created_ns": declaration.created_ns,
        "spec": declaration.spec.to_json(),
    }
    return _dump(document)


def parse_declaration(raw: bytes, where: str) -> Declaration:
    """Read the bytes of a `declaration` file that anybody may have written.

    Raises:
        FormatMismatchError: it is not ours, or of another format number.
    """
    document = _read_json(raw, where)
    _check_format(document.get("format"), where)
    try:
        uuid = bytes.fromhex(document["uuid"])
        created_ns = int(document["created_ns"])
    except (KeyError, TypeError, ValueError) as error:
        raise FormatMismatchError(f"{where}: not a declaration of shmrb: {error!r}.") from None
    if len(uuid) != 16:
        raise FormatMismatchError(f"{where}: expected a uuid of 16 bytes, got {len(uuid)}.")
    return Declaration(_read_spec(document, where), uuid, created_ns)


def tree_levels(capacity: int) -> list[int]:
    """Nodes of each level above the leaves, the last is the root alone."""
    levels = [-(-capacity // FAN_OUT)]
    while levels[-1] > 1:
        levels.append(-(-levels[-1] // FAN_OUT))
    return levels


def start_levels(lane_capacity: int) -> list[int]:
    """Counts of each level of one lane, padded to whole groups; the last is one group."""
    counts = -(-lane_capacity // START_BLOCK)
    levels = [_aligned(counts, START_FAN_OUT)]
    while levels[-1] > START_FAN_OUT:
        levels.append(_aligned(levels[-1] // START_FAN_OUT, START_FAN_OUT))
    return levels


def _aligned(offset: int, unit: int = PAGE_BYTES) -> int:
    return -(-offset // unit) * unit


def _control_regions(spec: BufferSpec) -> dict[str, Region]:
    clients = spec.max_clients * CLIENT_BYTES
    lanes = _aligned(CONTROL_BYTES + clients)
    return {
        "control": Region(names.CONTROL, 0, CONTROL_BYTES),
        "clients": Region(names.CONTROL, CONTROL_BYTES, clients),
        "lanes": Region(names.CONTROL, lanes, spec.lanes * LANE_BYTES),
    }


def _slot_arrays(file: str, words: Mapping[str, int], capacity: int) -> dict[str, Region]:
    """Arrays of one element a slot, one after the other."""
    regions, offset = {}, 0
    for name, width in words.items():
        regions[name] = Region(file, offset, capacity * width)
        offset = _aligned(offset + capacity * width)
    return regions


def _start_regions(spec: BufferSpec, below: Region) -> dict[str, Region]:
    """Each level of all lanes; a lane's counts follow those of the lane before it."""
    regions, offset = {}, _aligned(below.offset + below.bytes)
    for level, counts in enumerate(start_levels(spec.lane_capacity)):
        size = spec.lanes * counts * START_BYTES
        regions[f"starts.{level}"] = Region(names.SLOTS, offset, size)
        offset += size
    return regions


def _priority_regions(capacity: int) -> dict[str, Region]:
    """Leaves, sums, minima; counts are padded, since the children of a node are whole lines."""
    leaves = _aligned(capacity, FAN_OUT) * LEAF_BYTES
    regions = {"leaves": Region(names.PRIORITIES, 0, leaves)}
    offset = leaves
    for tree, width in NODE_BYTES.items():
        offset = _aligned(offset)
        for level, nodes in enumerate(tree_levels(capacity)):
            size = _aligned(_aligned(nodes, FAN_OUT) * width, LINE_BYTES)
            regions[f"{tree}.{level}"] = Region(names.PRIORITIES, offset, size)
            offset += size
    return regions


def _columns(spec: BufferSpec) -> tuple[tuple[Column, ...], int]:
    """The columns and the bytes of the data file; a column without bytes moves nothing."""
    assert spec.schema is not None
    columns, offset = [], 0
    for field in spec.schema.fields:
        columns.append(Column(field.path, field.dtype, field.shape, offset, field.row_bytes))
        offset = _aligned(offset + spec.capacity * field.row_bytes)
    return tuple(columns), offset


def _canonical(
    spec: BufferSpec,
    files: Mapping[str, int],
    regions: Mapping[str, Region],
    columns: tuple[Column, ...],
) -> bytes:
    return _dump(
        {
            "spec": spec.to_json(),
            "files": dict(files),
            "regions": {name: [r.file, r.offset, r.bytes] for name, r in regions.items()},
            "columns": [[c.path, c.dtype, c.shape, c.offset, c.row_bytes] for c in columns],
        }
    )


def _dump(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def _read_header(raw: bytes, where: str) -> dict[str, Any]:
    if not raw:
        raise FormatMismatchError(
            f"{where}: expected a header of {HEADER_BYTES} bytes, got an empty file."
        )
    if len(raw) < HEADER_BYTES:
        raise FormatMismatchError(
            f"{where}: expected a header of {HEADER_BYTES} bytes, got a file of {len(raw)}."
        )
    header = dict(zip(HEADER_FIELDS, HEADER.unpack_from(raw), strict=True))
    if header["magic"] == 0:
        raise FormatMismatchError(
            f"{where}: expected magic {META_MAGIC:#018x}, got 0: its creator never finished it."
        )
    if header["magic"] != META_MAGIC:
        raise FormatMismatchError(
            f"{where}: expected magic {META_MAGIC:#018x}, got {header['magic']:#018x}: not a file "
            "of shmrb."
        )
    _check_format(header["format"], where)
    if header["header_bytes"] != HEADER_BYTES:
        raise FormatMismatchError(
            f"{where}: expected a header of {HEADER_BYTES} bytes, got one that says "
            f"{header['header_bytes']}."
        )
    if header["json_bytes"] > MAX_JSON_BYTES:
        raise FormatMismatchError(
            f"{where}: expected at most {MAX_JSON_BYTES} bytes of description, got a header that "
            f"says {header['json_bytes']}."
        )
    return header


def _check_format(number: Any, where: str) -> None:
    if number != FORMAT_NUMBER:
        raise FormatMismatchError(
            f"{where}: expected format number {FORMAT_NUMBER}, got {number!r}. Use the version of "
            "shmrb that made it, or drop the buffer with that version."
        )


def _read_json(raw: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FormatMismatchError(f"{where}: its description is not JSON: {error}.") from None
    if not isinstance(document, dict):
        raise FormatMismatchError(f"{where}: expected a JSON object, got {document!r:.80}.")
    return document


def _read_spec(document: dict[str, Any], where: str) -> BufferSpec:
    try:
        return BufferSpec.from_json(document.get("spec"))
    except SpecError as error:
        raise _senseless(error, where) from None


def _senseless(error: SpecError, where: str) -> FormatMismatchError:
    return FormatMismatchError(f"{where}: its description makes no sense: {error}")
