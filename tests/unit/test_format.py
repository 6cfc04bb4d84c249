"""FORMAT.md, layout.py and the native core say the same bytes."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

import shmrb.segment
from shmrb import core
from shmrb.schema import Schema
from shmrb.segment import entries, layout, names, removal
from shmrb.segment.layout import Layout
from shmrb.spec import BufferSpec, PrioritizedSampler, RandomSampler, SharedStorage

# Beside the installed module, so that the page which ships is the one that is checked.
TEXT = (Path(shmrb.segment.__file__).parent / "FORMAT.md").read_text()


class Row(NamedTuple):
    offset: int
    size: int
    field: str


def _section(heading: str) -> str:
    match = re.search(rf"^#+ {heading}.*?\n(.*?)(?=^#|\Z)", TEXT, re.M | re.S)
    assert match, f"FORMAT.md has no section {heading!r}"
    return match[1]


def _cells(heading: str) -> list[list[str]]:
    lines = [line for line in _section(heading).splitlines() if line.startswith("|")]
    assert lines, f"section {heading!r} has no table"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _struct(name: str) -> tuple[int, list[Row]]:
    """The size in the heading of a struct, and its rows."""
    match = re.search(rf"^### {name}: (\d+) bytes$", TEXT, re.M)
    assert match, f"FORMAT.md has no struct {name!r}"
    rows = [Row(int(c[0]), int(c[1]), c[2]) for c in _cells(f"{name}:")]
    return int(match[1]), rows


STRUCTS = sorted(core.abi())
STATED = re.findall(r"^### ([\w ]+): \d+ bytes$", TEXT, re.M)


def test_every_struct_of_the_core_is_stated() -> None:
    assert set(STRUCTS) <= set(STATED)


@pytest.mark.parametrize("name", STATED)
def test_the_rows_of_a_struct_leave_no_byte_unsaid(name: str) -> None:
    size, rows = _struct(name)
    end = 0
    for row in rows:
        assert row.offset == end, f"{name}: a gap or an overlap before {row.field!r}"
        end = row.offset + row.size
    assert end == size


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_is_where_the_core_has_it(name: str) -> None:
    size, rows = _struct(name)
    block = core.abi()[name]
    assert size == block["size"]
    stated = {row.field: (row.offset, row.size) for row in rows if row.field != "reserved"}
    assert stated == block["fields"]


def test_the_meta_header_is_what_layout_packs() -> None:
    size, rows = _struct("meta header")
    assert size == layout.HEADER.size
    assert tuple(row.field for row in rows) == layout.HEADER_FIELDS
    offsets = dict(zip(layout.HEADER_FIELDS, _offsets_of(layout.HEADER.format), strict=True))
    assert {row.field: (row.offset, row.size) for row in rows} == offsets


def _offsets_of(pattern: str) -> list[tuple[int, int]]:
    found, end = [], 0
    for part in re.findall(r"\d*[a-zA-Z]", pattern):
        size = struct.calcsize("<" + part)
        found.append((end, size))
        end += size
    return found


def test_the_numbers_that_layout_repeats_are_the_cores() -> None:
    blocks = core.abi()
    assert blocks["ControlBlock"]["size"] == layout.CONTROL_BYTES
    assert blocks["ClientBlock"]["size"] == layout.CLIENT_BYTES
    assert blocks["LaneBlock"]["size"] == layout.LANE_BYTES
    assert core.FORMAT_NUMBER == layout.FORMAT_NUMBER
    assert core.CONTROL_MAGIC.to_bytes(8, "little") == b"SMBRCTL1"
    assert layout.META_MAGIC.to_bytes(8, "little") == b"SMBRMET1"
    for magic in (b"SMBRCTL1", b"SMBRMET1"):
        assert f'"{magic.decode()}"' in TEXT


def test_constants_in_prose_are_the_codes() -> None:
    assert f"(format number {layout.FORMAT_NUMBER})" in TEXT
    assert f"{entries.READY_STATE} ready, {entries.DEAD_STATE} dead" in TEXT
    assert removal.GENERATION_SHIFT == 18 + 2
    assert "generation:44, revision:18, void:1, busy:1" in TEXT
    roles = {role.value: role.name.lower() for role in core.ClientRole}
    assert f"1 {roles[1]}, 2 {roles[2]}" in TEXT
    for label in core.WaitLabel:
        assert re.search(rf"waiting_for \| .*\b{label.value} ", TEXT)


def _bytes(expression: str, spec: BufferSpec, count: int = 0) -> int:
    """The value of an arithmetic cell of the table of regions."""

    def pad(number: int, unit: int) -> int:
        return math.ceil(number / unit) * unit

    values = {"capacity": spec.capacity, "lanes": spec.lanes, "max_clients": spec.max_clients}
    return int(eval(expression, {"pad": pad, "n_k": count, "s_k": count, **values}))


@pytest.mark.parametrize(("capacity", "lanes", "clients"), [(1, 1, 1), (1000, 4, 7), (65, 5, 1024)])
def test_the_regions_are_where_layout_puts_them(capacity: int, lanes: int, clients: int) -> None:
    spec = BufferSpec(
        storage=SharedStorage(capacity, lanes=lanes),
        schema=Schema.from_mapping({"a": "float32"}),
        sampler=PrioritizedSampler(alpha=1.0, beta=1.0),
    )
    consuming = {"consume_after_n_samples": 1, "sampler": RandomSampler()}
    made = Layout.of(replace(spec, max_clients=clients, **consuming))
    spec = made.spec
    stated = {}
    end = 0
    for name, file, offset, size, _ in _cells("Regions"):
        tree, is_level, _ = name.partition(".")
        starts = layout.start_levels(capacity // lanes)
        levels = [0]
        if is_level:
            levels = starts if tree == "starts" else layout.tree_levels(capacity)
        for level, nodes in enumerate(levels):
            if level == 0:
                start = end if offset.startswith("end of") else _bytes(offset, spec)
                start = math.ceil(start / 4096) * 4096
            else:
                start = end
            length = _bytes(size, spec, nodes)
            end = start + length
            key = f"{tree}.{level}" if is_level else name
            stated[key] = layout.Region(file, start, length)
    assert stated == made.regions


def test_the_files_are_those_that_layout_makes() -> None:
    rows = {cells[0].strip("`") for cells in _cells("1. Files")}
    spec = BufferSpec(
        storage=SharedStorage(8),
        schema=Schema.from_mapping({"a": "float32"}),
        priorities=PrioritizedSampler(alpha=1.0, beta=1.0).priorities,
        consume_after_n_samples=1,
    )
    made = Layout.of(spec)
    assert rows == {*made.files, names.META, names.DECLARATION}
    assert made.files[names.LIVE_LOCK] == spec.max_clients + 1


def test_every_stopping_point_is_stated_in_order() -> None:
    stated = [name for cells in _cells("9. Stopping points") for name in cells[0::2] if name]
    assert stated == list(core.stopping_points())
