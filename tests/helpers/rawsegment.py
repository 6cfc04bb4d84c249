"""A segment made of `core.Segment` and files alone, without the floors above it.

Any process attaches by path: the geometry lies beside the files. Tests of the native core look at
and poke every shared word through it. Also the stamped record of these tests: what its `uid` is
says what the rest of it must be, so a torn record shows.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shmrb import core
from shmrb.core import Outcome, Status

PAGE = 4096
CONTROL, CLIENT, LANE = "ControlBlock", "ClientBlock", "LaneBlock"

# uid: who wrote it and when; done: ends the trajectory; mark and echo are changed together in
# place; body: bytes that only this uid has.
BODY_BYTES = 40
STAMPED = (
    ("uid", "<i8", ()),
    ("done", "|u1", (1,)),
    ("mark", "<i8", ()),
    ("echo", "<i8", ()),
    ("body", "|u1", (BODY_BYTES,)),
)
ECHO_FACTOR = 1_000_003
ALPHA_BETA_EPS = (1.0, 1.0, 0.0)
CONSUMPTION_WORDS = (
    "counts",
    "holders",
    "costs",
    "arrivals",
    "members",
    "places",
    "next",
    "previous",
    "freed",
)

Columns = Mapping[str, np.ndarray]
Array = np.ndarray


def _aligned(offset: int, to: int = PAGE) -> int:
    return -(-offset // to) * to


def _address(array: Array | None) -> int:
    if array is None:
        return 0
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def _tree(capacity: int) -> tuple[dict[str, Any], int]:
    """Where the leaves and the levels of the priority tree lie, and where they end."""
    end, nodes = _aligned(capacity * 8, 64), capacity
    tree: dict[str, Any] = {"leaves": 0, "sums": [], "minima": []}
    while nodes > 1 or not tree["sums"]:
        nodes = -(-nodes // 8)
        for level, size in (("sums", 8), ("minima", 4)):
            tree[level].append(end)
            end += _aligned(_aligned(nodes, 8) * size, 64)
    return tree, end


def _starts(capacity: int, lanes: int, offset: int) -> tuple[list[tuple[int, int]], int]:
    """Where the levels of the start counts lie and how wide they are a lane, and where they end."""
    levels: list[tuple[int, int]] = []
    counts = -(-(capacity // lanes) // 64)
    while not levels or levels[-1][1] > 16:
        width = _aligned(counts, 16)
        levels.append((offset, width))
        offset += width * lanes * 4
        counts = width // 16
    return levels, offset


def bodies(uids: Array) -> Array:
    """The body that each uid has."""
    uids = np.asarray(uids, dtype=np.int64)[:, None]
    return ((uids * 31 + uids // 251 + np.arange(BODY_BYTES)) % 251).astype(np.uint8)


def stamped(uids: Sequence[int] | Array, *, done: Sequence[int] | Array = ()) -> dict[str, Array]:
    """Stamped records with those uids, in their order."""
    uids = np.asarray(uids, dtype=np.int64)
    ends = np.zeros((len(uids), 1), np.uint8)
    ends[np.asarray(done, dtype=int)] = 1
    return {"uid": uids, "done": ends, **changed(uids, 0 * uids), "body": bodies(uids)}


def changed(uids: Sequence[int] | Array, marks: Sequence[int] | Array) -> dict[str, Array]:
    """The patch that gives records with those uids those marks."""
    marks = np.asarray(marks, dtype=np.int64)
    return {"mark": marks, "echo": marks * ECHO_FACTOR + np.asarray(uids, dtype=np.int64)}


def torn(batch: Columns) -> list[int]:
    """Positions of the records in the batch that no writer wrote like this."""
    uids = batch["uid"]
    whole = (batch["body"] == bodies(uids)).all(axis=1)
    whole &= batch["echo"] == batch["mark"] * ECHO_FACTOR + uids
    return [int(i) for i in np.flatnonzero(~whole)]


def finish(call: Callable[[], Outcome]) -> Outcome:
    """Repeats a call while its time slice is over, as the floors above do."""
    while (outcome := call())[0] == Status.AGAIN:
        pass
    return outcome


def ok(outcome: Outcome) -> Outcome:
    """The outcome of a call that must succeed."""
    assert outcome[0] == Status.OK, f"{Status(outcome[0]).name}: {outcome}"
    return outcome


@dataclass
class Batch:
    """What `sample` and `read` fill."""

    columns: dict[str, Array]
    index: Array
    generation: Array
    version: Array

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]


class RawSegment:
    """One attachment to the files of a directory.

    Attributes:
        segment: the native object.
        token: this client's token.
        words, owners, runs, versions: shared arrays, one element a slot.
        columns: shared arrays, one a column: [capacity, *shape].
    """

    def __init__(self, folder: Path | str, *, writable: bool = True) -> None:
        self.folder = Path(folder)
        told = json.loads((self.folder / "geometry.json").read_text())
        self.capacity: int = told["capacity"]
        self.lane_count: int = told["lanes"]
        self.max_clients: int = told["max_clients"]
        self.live_lock = str(self.folder / "live.lock")
        self._abi: dict[str, Any] = core.abi()
        names = ("ctl", "slots", "data", "prio", "consumption")
        files = {name: self._map(name, writable) for name in names}
        # The mappings live as long as this does.
        self._files = files
        self._ctl = files["ctl"]
        places = told["slots"]
        self.words = self._slot_array(files["slots"], places["words"], np.uint64)
        self.owners = self._slot_array(files["slots"], places["owners"], np.uint32)
        self.runs = self._slot_array(files["slots"], places["runs"], np.uint32)
        self.versions = self._slot_array(files["slots"], places["versions"], np.int64)
        self.consumed = {
            name: self._slot_array(files["consumption"], place, np.int32 if i < 3 else np.int64)
            for i, (name, place) in enumerate(
                zip(CONSUMPTION_WORDS, told["consumption"]["consumption_arrays"], strict=True)
            )
        }
        self.fields = [(name, dtype, tuple(shape)) for name, dtype, shape in told["columns"]]
        self.columns: dict[str, Array] = {}
        geometry_columns = []
        for (name, dtype, shape), offset in zip(self.fields, told["offsets"], strict=True):
            size = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
            raw = files["data"][offset : offset + size * self.capacity]
            self.columns[name] = raw.view(dtype).reshape(self.capacity, *shape)
            geometry_columns.append((offset, size))
        self.segment = core.Segment(
            {
                "ctl": _address(files["ctl"]),
                "slots": _address(files["slots"]),
                "data": _address(files["data"]),
                "prio": _address(files["prio"]),
                "consumption": _address(files["consumption"]),
                **told["tree"],
                **told["consumption"],
                "capacity": self.capacity,
                "lanes": self.lane_count,
                "max_clients": self.max_clients,
                "features": told["features"],
                "clients": PAGE,
                "lane_blocks": PAGE + self.max_clients * self._abi[CLIENT]["size"],
                **places,
                "columns": geometry_columns,
                "done_columns": told["done_columns"],
                "id_column": told["id_column"],
                "starts": told["starts"],
                "writable": writable,
                "data_writable": writable,
            }
        )
        self.rng = core.new_rng(1)

    def __del__(self) -> None:
        # The native object gives its client slot back in the mapping, so it goes first.
        if hasattr(self, "segment"):
            self.segment.close()

    # Making and joining

    @classmethod
    def create(
        cls,
        folder: Path | str,
        capacity: int,
        *,
        lanes: int = 1,
        max_clients: int = 8,
        features: int = 0,
        columns: Sequence[tuple[str, str, tuple[int, ...]]] = STAMPED,
        done: Sequence[str] = ("done",),
        trajectory_id: str | None = None,
        generation_base: int = 0,
        consume_after: int = 1,
    ) -> RawSegment:
        """Lay out the files, ready to attach, and map them; the caller does not attach by it."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        places, end = {}, 0
        for name, size in (("words", 8), ("owners", 4), ("runs", 4), ("versions", 8)):
            places[name] = end
            end = _aligned(end + size * capacity, 64)
        starts, end = _starts(capacity, lanes, end)
        offsets, data_end = [], 0
        for _, dtype, shape in columns:
            offsets.append(data_end)
            size = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
            data_end = _aligned(data_end + size * capacity)
        abi: dict[str, Any] = core.abi()
        tree, tree_end = _tree(capacity)
        sizes = {
            "ctl": PAGE + max_clients * abi[CLIENT]["size"] + lanes * abi[LANE]["size"],
            "slots": end,
            "data": max(data_end, PAGE),
            "prio": tree_end if features & core.Feature.PRIORITIES else PAGE,
            "consumption": len(CONSUMPTION_WORDS) * _aligned(capacity * 8, 64),
            "live.lock": max_clients,
        }
        for name, size in sizes.items():
            (folder / name).write_bytes(bytes(size))
        names = [name for name, _, _ in columns]
        told = {
            "capacity": capacity,
            "lanes": lanes,
            "max_clients": max_clients,
            "features": features,
            "columns": columns,
            "offsets": offsets,
            "slots": places,
            "tree": tree,
            "consumption": {
                "consumption_arrays": [
                    number * _aligned(capacity * 8, 64) for number in range(len(CONSUMPTION_WORDS))
                ],
                "consume_after": consume_after,
            },
            "done_columns": [names.index(name) for name in done if name in names],
            "id_column": -1 if trajectory_id is None else names.index(trajectory_id),
            "starts": starts,
        }
        (folder / "geometry.json").write_text(json.dumps(told))
        made = cls(folder)
        made.poke(CONTROL, "generation_base", generation_base)
        made.poke(CONTROL, "state", 1)
        made.word_of(CONTROL, "priorities").view(np.float64)[:3] = ALPHA_BETA_EPS
        return made

    @classmethod
    def attached(cls, folder: Path | str, name: str = "test", *, hint: int = 0) -> RawSegment:
        """Map the files and take a client slot."""
        member = cls(folder)
        member.attach(name, hint=hint)
        return member

    def attach(self, name: str = "test", *, hint: int = 0) -> int:
        role = core.ClientRole.MEMBER
        ok(self.segment.attach(self.live_lock, hint, os.getpid(), role, name))
        return self.token

    @property
    def token(self) -> int:
        return int(self.segment.token)

    def close(self) -> None:
        self.segment.close()

    # Calls of the core, with arrays

    def extend(
        self,
        records: Columns,
        *,
        lane: int = 0,
        versions: Array | None = None,
        flags: int = 0,
        slice_ns: int = core.SLICE_NS,
    ) -> Outcome:
        columns = [np.ascontiguousarray(records[name]) for name, _, _ in self.fields]
        count = len(columns[0])
        addresses = [_address(column) for column in columns]
        return self.segment.extend(lane, count, addresses, _address(versions), flags, slice_ns)

    def write(
        self, slot: int, record: Columns, version: int = -1, *, slice_ns: int = core.SLICE_NS
    ) -> Outcome:
        columns = [np.ascontiguousarray(record[name]) for name, _, _ in self.fields]
        stamp = np.array([version], np.int64)
        addresses = [_address(column) for column in columns]
        return self.segment.write(slot, addresses, _address(stamp), slice_ns)

    def sample(
        self, count: int, *, cost: int = 0, slice_ns: int = core.SLICE_NS
    ) -> tuple[Outcome, Batch]:
        batch = self._batch(np.full(count, -7, np.int64))
        return (
            self.segment.sample(
                self.rng,
                count,
                [_address(batch[name]) for name, _, _ in self.fields],
                _address(batch.index),
                _address(batch.generation),
                _address(batch.version),
                cost,
                slice_ns,
            ),
            batch,
        )

    def read(
        self,
        index: Sequence[int] | Array | None = None,
        *,
        cost: int = 0,
        slice_ns: int = core.SLICE_NS,
    ) -> tuple[Outcome, Batch]:
        """Read those slots, all by default."""
        slots = np.arange(self.capacity) if index is None else np.asarray(index)
        batch = self._batch(slots.astype(np.int64))
        return (
            self.segment.read(
                _address(batch.index),
                len(batch.index),
                [_address(batch[name]) for name, _, _ in self.fields],
                _address(batch.generation),
                _address(batch.version),
                cost,
                slice_ns,
            ),
            batch,
        )

    def update(
        self,
        index: Sequence[int] | Array,
        generation: Sequence[int] | Array | None,
        patch: Columns,
        *,
        versions: Sequence[int] | Array | None = None,
        require_newer: bool = False,
        slice_ns: int = core.SLICE_NS,
    ) -> tuple[Outcome, Array]:
        """The outcome, and a verdict a record: 0 stale, 1 updated, 2 version rejected."""
        slots = np.ascontiguousarray(index, np.int64)
        stamps = None if generation is None else np.ascontiguousarray(generation, np.int64)
        dates = None if versions is None else np.ascontiguousarray(versions, np.int64)
        verdicts = np.full(len(slots), 99, np.uint8)
        names = [name for name, _, _ in self.fields]
        values = [np.ascontiguousarray(value) for value in patch.values()]
        outcome = self.segment.update(
            _address(slots),
            len(slots),
            _address(stamps),
            [names.index(name) for name in patch],
            [_address(value) for value in values],
            _address(dates),
            require_newer,
            _address(verdicts),
            slice_ns,
        )
        return outcome, verdicts

    def take(self, count: int, kind: int = 0, *, cost: int = 0) -> tuple[Outcome, Array, Array]:
        """The outcome, and slots and generations of what was taken."""
        stamps = np.full((2, count), -7, np.int64)
        where = _address(stamps[0]), _address(stamps[1])
        segment = self.segment
        outcome = segment.take(self.rng, kind, count, cost, *where, core.SLICE_NS)
        taken = outcome[1] if outcome[0] == Status.OK else 0
        return outcome, stamps[0, :taken], stamps[1, :taken]

    def end_takes(self, slots: Array, generations: Array, *, back: bool = False) -> Array:
        """Which of these takes this client had, and has ended now."""
        ended = np.zeros(len(slots), np.bool_)
        slots, generations = slots.copy(), generations.copy()
        where = _address(slots), len(slots), _address(generations), _address(ended)
        ok(finish(lambda: self.segment.end_takes(back, *where, core.SLICE_NS)))
        return ended

    def generations(self, index: Sequence[int] | Array | None = None) -> Array:
        slots = np.arange(self.capacity) if index is None else np.asarray(index)
        slots = np.ascontiguousarray(slots, np.int64)
        stamps = np.full(len(slots), -99, np.int64)
        ok(self.segment.generations(_address(slots), len(slots), _address(stamps)))
        return stamps

    def empty(self, *, reset: bool = True, slice_ns: int = core.SLICE_NS) -> Outcome:
        return self.segment.empty(reset, slice_ns)

    def size(self) -> int:
        return int(ok(self.segment.size())[1])

    def write_count(self) -> int:
        return int(ok(self.segment.write_count())[1])

    # Shared words by name

    def word_of(self, block: str, name: str, number: int = 0) -> Array:
        """The shared bytes of a field of the control block, a client entry or a lane block."""
        offset, size = self._abi[block]["fields"][name]
        start = {
            CONTROL: 0,
            CLIENT: PAGE,
            LANE: PAGE + self.max_clients * self._abi[CLIENT]["size"],
        }[block]
        begin = start + number * self._abi[block]["size"] + offset
        return self._ctl[begin : begin + size]

    def peek(self, block: str, name: str, number: int = 0) -> int:
        return int.from_bytes(self.word_of(block, name, number).tobytes(), "little", signed=False)

    def poke(self, block: str, name: str, value: int, number: int = 0) -> None:
        word = self.word_of(block, name, number)
        word[:] = np.frombuffer(
            int(value).to_bytes(len(word), "little", signed=value < 0), np.uint8
        )

    # Inside

    def _batch(self, index: Array) -> Batch:
        count = len(index)
        columns = {
            name: np.zeros((count, *shape), dtype=dtype) for name, dtype, shape in self.fields
        }
        stamps = np.full(count, -99, np.int64)
        return Batch(columns, index, stamps, np.full(count, -99, np.int64))

    def _map(self, name: str, writable: bool) -> Array:
        mode = os.O_RDWR if writable else os.O_RDONLY
        descriptor = os.open(self.folder / name, mode)
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        with os.fdopen(descriptor, closefd=True):
            mapping = mmap.mmap(descriptor, 0, access=access)
        return np.frombuffer(mapping, np.uint8)

    def _slot_array(self, file: Array, offset: int, dtype: Any) -> Array:
        size = np.dtype(dtype).itemsize
        return file[offset : offset + size * self.capacity].view(dtype)
