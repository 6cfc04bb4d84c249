"""The arithmetic of the files, and what is refused when `meta` is read back."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import struct
from dataclasses import replace
from typing import Any

import pytest

from shmrb.errors import FormatMismatchError, SpecError
from shmrb.schema import Schema
from shmrb.segment import layout as layouts
from shmrb.segment.layout import Declaration, Layout, Meta
from shmrb.spec import BufferSpec, PrioritizedSampler, SharedStorage

FIELDS = {"observation": ("float32", (17,)), "empty": ("int64", (0, 3)), "next": {"done": bool}}


def _spec(capacity: int = 1000, lanes: int = 1, fields: Any = FIELDS, **options: Any) -> BufferSpec:
    schema = Schema.from_mapping(fields)
    return BufferSpec(storage=SharedStorage(capacity, lanes=lanes), schema=schema, **options)


def _meta(**options: Any) -> Meta:
    return Meta(Layout.of(_spec(**options)), bytes(range(16)), 1_700_000_000_000_000_000)


def _ranges(layout: Layout) -> list[tuple[str, int, int]]:
    columns = [
        ("data", column.offset, layout.spec.capacity * column.row_bytes)
        for column in layout.columns
    ]
    return columns + [(r.file, r.offset, r.bytes) for r in layout.regions.values()]


def test_no_two_ranges_overlap_and_all_lie_in_their_files() -> None:
    rng = random.Random(5)
    for _ in range(100):
        lanes = rng.choice([1, 2, 7])
        fields = {f"f{i}": ("float32", rng.choice([(), (3,), (0,), (2, 5)])) for i in range(6)}
        sampler = {"sampler": PrioritizedSampler(alpha=1.0, beta=1.0)} if rng.random() < 0.5 else {}
        spec = _spec(lanes * rng.randrange(1, 5000), lanes, fields, **sampler)
        layout = Layout.of(replace(spec, max_clients=rng.randrange(1, 3000)))
        for file, offset, size in _ranges(layout):
            assert 0 <= offset <= offset + size <= layout.files[file]
            assert offset % layouts.LINE_BYTES == 0
        for one, other in itertools.combinations(sorted(_ranges(layout)), 2):
            assert one[0] != other[0] or one[1] + one[2] <= other[1]


def test_columns_are_whole_pages_apart_and_keep_the_schemas_order() -> None:
    layout = Layout.of(_spec())
    assert [column.path for column in layout.columns] == [
        ("observation",),
        ("empty",),
        ("next", "done"),
    ]
    assert [column.row_bytes for column in layout.columns] == [68, 0, 1]
    assert [column.offset for column in layout.columns] == [0, 69632, 69632]
    assert layout.files["data"] == 69632 + 4096


def test_a_buffer_of_empty_fields_can_still_be_mapped() -> None:
    layout = Layout.of(_spec(fields={"empty": ("float32", (0,))}))
    assert layout.files["data"] == layouts.PAGE_BYTES


def test_priorities_take_their_file_only_when_asked_for() -> None:
    assert "prio" not in Layout.of(_spec()).files
    layout = Layout.of(_spec(sampler=PrioritizedSampler(alpha=0.6, beta=0.4)))
    assert layout.regions["leaves"].bytes == 8 * 1000
    assert layout.regions["sums.0"].bytes == 8 * 128
    assert layout.regions["minima.3"].offset + 64 <= layout.files["prio"]


@pytest.mark.parametrize(
    ("capacity", "levels"),
    [
        (1, [1]),
        (8, [1]),
        (9, [2, 1]),
        (64, [8, 1]),
        (65, [9, 2, 1]),
        (1000, [125, 16, 2, 1]),
        (2**25, [2**22, 2**19, 2**16, 2**13, 2**10, 2**7, 2**4, 2, 1]),
    ],
)
def test_every_tree_ends_in_one_root(capacity: int, levels: list[int]) -> None:
    assert layouts.tree_levels(capacity) == levels


@pytest.mark.parametrize(
    ("lane_capacity", "levels"),
    [
        (1, [16]),
        (1024, [16]),
        (1025, [32, 16]),
        (16 * 1024, [256, 16]),
        (16 * 1024 + 1, [272, 32, 16]),
        (10**7, [156_256, 9_776, 624, 48, 16]),
    ],
)
def test_the_starts_of_a_lane_end_in_one_group(lane_capacity: int, levels: list[int]) -> None:
    assert layouts.start_levels(lane_capacity) == levels
    # Each count has its sum above it.
    assert all(above * 16 >= below for below, above in itertools.pairwise(levels))


def test_lanes_have_their_starts_one_after_another() -> None:
    layout = Layout.of(_spec(3 * 1025, lanes=3))
    assert layout.regions["starts.0"].bytes == 3 * 32 * 4
    assert layout.regions["starts.1"].offset == layout.regions["starts.0"].offset + 3 * 32 * 4
    assert layout.regions["starts.1"].bytes == 3 * 16 * 4


def test_the_memory_beside_the_payload_is_at_most_36_bytes_a_slot() -> None:
    million = 1_000_000
    layout = Layout.of(_spec(million, sampler=PrioritizedSampler(alpha=0.6, beta=0.4)))
    assert sum(layout.files[name] for name in ("slots", "prio")) / million < 33.9
    assert (layout.total_bytes - layout.files["data"]) / million < 36


def test_a_file_beyond_64_bits_is_refused() -> None:
    with pytest.raises(SpecError, match="64-bit"):
        Layout.of(_spec(2**40, fields={"a": ("float32", (2**30,))}))
    wide = {f"f{i}": ("uint8", (2**22,)) for i in range(3)}
    with pytest.raises(SpecError, match="'data' would take"):
        Layout.of(_spec(2**40, fields=wide))


def test_without_a_schema_there_is_no_layout() -> None:
    with pytest.raises(SpecError, match="schema"):
        Layout.of(BufferSpec(storage=SharedStorage(8)))


def test_meta_comes_back_as_it_was_written() -> None:
    meta = _meta(sampler=PrioritizedSampler(alpha=0.6, beta=0.1))
    assert layouts.parse_meta(layouts.pack_meta(meta), "here") == meta


def test_equal_descriptions_have_equal_digests_and_others_differ() -> None:
    digests = {
        Layout.of(spec).digest
        for spec in (
            _spec(),
            _spec(),
            _spec(1001),
            _spec(lanes=2),
            _spec(max_clients=7),
            _spec(fields={"observation": ("float32", (17,))}),
            _spec(fields=FIELDS | {"observation": ("int32", (17,))}),
        )
    }
    assert len(digests) == 6


def _rewritten(raw: bytes, change: Any) -> bytes:
    """`meta` with another description, and the header that goes with it."""
    document = json.loads(raw[layouts.HEADER_BYTES :])
    change(document)
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    header = bytearray(raw[: layouts.HEADER_BYTES])
    header[16:48] = hashlib.sha256(text).digest()
    header[72:80] = struct.pack("<Q", len(text))
    return bytes(header) + text


def _patched(raw: bytes, offset: int, value: bytes) -> bytes:
    return raw[:offset] + value + raw[offset + len(value) :]


def _overflowing(document: dict[str, Any]) -> None:
    document["spec"]["storage"]["capacity"] = 2**63


def _wide(document: dict[str, Any]) -> None:
    document["spec"]["schema"]["fields"][0][2] = [2**62, 2**62]


def _shifted(document: dict[str, Any]) -> None:
    document["columns"][0][3] = 4096


def test_whatever_lies_there_instead_is_refused_each_with_its_own_words() -> None:
    good = layouts.pack_meta(_meta())
    text = good[layouts.HEADER_BYTES :]
    not_json = b"{" * len(text)
    cases = {
        "empty file": b"",
        "got a file of 100": good[:100],
        "never finished": bytes(4096),
        "not a file of shmrb": random.Random(1).randbytes(8192),
        "expected format number 1, got 2": _patched(good, 8, struct.pack("<I", 2)),
        "one that says 8192": _patched(good, 12, struct.pack("<I", 8192)),
        f"says {2**64 - 1}": _patched(good, 72, b"\xff" * 8),
        "cut off": good[:-1],
        "was damaged": good[:-1] + b" ",
        "is not JSON": _patched(good[:4096], 16, hashlib.sha256(not_json).digest()) + not_json,
        "capacity must be between": _rewritten(good, _overflowing),
        "expected sizes up to": _rewritten(good, _wide),
        "another version of shmrb laid it out": _rewritten(good, _shifted),
    }
    messages = set()
    for words, raw in cases.items():
        with pytest.raises(FormatMismatchError) as caught:
            layouts.parse_meta(raw, "somewhere/name/meta")
        assert words in str(caught.value)
        assert "somewhere/name/meta" in str(caught.value)
        messages.add(str(caught.value))
    assert len(messages) == len(cases)


def test_no_flipped_bit_crashes_the_reader() -> None:
    good = layouts.pack_meta(_meta())
    rng = random.Random(9)
    used = [*range(80), *range(layouts.HEADER_BYTES, len(good))]
    for _ in range(2000):
        position = rng.choice(used)
        raw = _patched(good, position, bytes([good[position] ^ 1 << rng.randrange(8)]))
        try:
            meta = layouts.parse_meta(raw, "meta")
        except FormatMismatchError:
            continue
        # Only what the digest does not cover is read: the uuid, which ctl repeats, and the date.
        assert 48 <= position < 72
        assert meta.layout.digest == _meta().layout.digest


def test_file_sizes_must_be_the_layouts() -> None:
    layout = Layout.of(_spec())
    layout.check_sizes(layout.files, "here")
    for name, size in layout.files.items():
        for wrong in (0, size - 1, size + 1):
            with pytest.raises(FormatMismatchError, match=f"'{name}'.*expected {size} bytes"):
                layout.check_sizes({**layout.files, name: wrong}, "here")
        rest = {file: size for file, size in layout.files.items() if file != name}
        with pytest.raises(FormatMismatchError, match="missing"):
            layout.check_sizes(rest, "here")


def test_a_declaration_comes_back_as_it_was_written() -> None:
    declared = Declaration(BufferSpec(storage=SharedStorage(8)), bytes(16), 77)
    assert layouts.parse_declaration(layouts.pack_declaration(declared), "here") == declared


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not JSON"),
        (b"[]", "JSON object"),
        (b"{}", "format number"),
        (b'{"format":2}', "got 2"),
        (b'{"format":1}', "not a declaration"),
        (b'{"format":1,"uuid":"00","created_ns":1}', "16 bytes"),
        (b'{"format":1,"uuid":"' + b"00" * 16 + b'","created_ns":1}', "makes no sense"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_no_declaration_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(FormatMismatchError, match=words):
        layouts.parse_declaration(raw, "here")
