"""Commands that create, look at and drop buffers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from shmrb import opening
from shmrb.buffer import ReplayBuffer, attach
from shmrb.cli import tables
from shmrb.cli.progress import progress
from shmrb.cli.target import Target, target_of
from shmrb.client import connect
from shmrb.description import Path as FieldPath
from shmrb.errors import AttachError, DeadlineError, ShmrbError, SpecError
from shmrb.fields import show_path
from shmrb.results import BufferStats
from shmrb.schema import Schema, schema_from_env
from shmrb.segment import lag, survey
from shmrb.segment.directory import Exist, Root
from shmrb.segment.entries import State
from shmrb.spec import Limiter, MemmapStorage, MinSize, RateLimiter, SharedStorage

# How long a look at one record waits for who is writing it, seconds.
LOOK_S = 0.02

Socket = Annotated[str | None, typer.Option("--socket", help="Path of the daemon's socket.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def _complete(incomplete: str) -> list[str]:
    """The buffers whose names begin so, for the shell."""
    try:
        with target_of(None) as target:
            roots = list(map(Root, target.roots))
        found = [entry for root in roots for entry in root.list() if entry.spec is not None]
    except ShmrbError:
        return []
    return [entry.name for entry in found if entry.name.startswith(incomplete)]


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the buffer, like exp42/replay.", autocompletion=_complete
    ),
]
OneName = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="One buffer.", autocompletion=_complete),
]


def create(
    name: Name,
    capacity: Annotated[int, typer.Option(help="Records that the buffer holds.")],
    like_env: Annotated[
        str | None,
        typer.Option(metavar="ENV", help="Take the fields of this Gymnasium environment's steps."),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(help='JSON file of fields, like {"obs": ["float32", [17]]}; may nest.'),
    ] = None,
    lanes: Annotated[int, typer.Option(help="Independent streams, one writer each.")] = 1,
    memmap: Annotated[
        str | None,
        typer.Option(metavar="DIRECTORY", help="Keep the records in files there, on a disk."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Default of those who attach.")] = None,
    min_size: Annotated[
        int | None, typer.Option(help="Records that must be there before the first sample.")
    ] = None,
    samples_per_insert: Annotated[
        float | None, typer.Option(help="How often a record is drawn on average; limits both ways.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Drop what bears the name, members or not.")
    ] = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Create a buffer, or find that one so described exists.

    Without --like-env and --schema the first write decides its fields.
    """
    spec = opening.describe(
        storage=(
            MemmapStorage(capacity, memmap, lanes=lanes)
            if memmap is not None
            else SharedStorage(capacity, lanes=lanes)
        ),
        schema=_schema(like_env, schema),
        batch_size=batch_size,
        limiter=_limiter(min_size, samples_per_insert),
    )
    exist: Exist = "replace" if replace else "attach"
    with target_of(socket) as target:
        root = Root(target.roots[0])
        # How far the daemon is, only the daemon knows.
        with progress(f"creating {name}", of_bytes=target.client is None) as heard:
            if target.client is not None:
                target.client.create_described(name, spec, exist=exist)
            else:
                root.create(spec, name, exist=exist, progress=heard)
    _print([made for made in survey.survey(root, name) if made.name == name], as_json)


def ls(
    prefix: Annotated[str, typer.Argument(help="Only NAME and what lies below it.")] = "",
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """List buffers."""
    with target_of(socket) as target:
        roots = target.roots
    found = [summary for root in roots for summary in survey.survey(Root(root), prefix)]
    _print(found, as_json)


def show(
    name: Name,
    records: Annotated[int, typer.Option(help="Show so many of the newest records.")] = 0,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Show a buffer: fields, lanes, who is attached, and records."""
    with target_of(socket) as target:
        root = target.root_of(name)
    entry = root.require(name)
    assert entry.spec is not None
    found = survey.stats(root, name)
    newest = list(_newest(root, name, found, records)) if found.initialized else []
    if as_json:
        rows = [
            {
                "slot": slot,
                "generation": generation,
                "fields": [[list(path), value.tolist()] for path, value in fields],
            }
            for slot, generation, fields in newest
        ]
        document = {"spec": entry.spec.to_json(), "stats": found.to_json(), "records": rows}
        # Complex numbers and NaN have no JSON of their own.
        print(json.dumps(document, default=str))
        return
    head = (
        f"{name} in {root.path}: {found.size:,} of {found.capacity:,} records, "
        f"{found.write_count:,} written"
    )
    if entry.state is State.DECLARED:
        tables.show(head, "declared: the first write decides the fields and reserves memory")
        return
    tables.show(head, "", tables.description(entry.spec), "", tables.lanes(found))
    tables.show("", tables.clients(found))
    for slot, generation, fields in newest:
        named = {show_path(path): value for path, value in fields}
        tables.show("", tables.record(slot, generation, named))


def stats(
    name: OneName = None,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="What the daemon tells a Prometheus server.")
    ] = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Show counters: a line a buffer, or all about one."""
    if prometheus:
        if name is not None or as_json:
            raise SpecError("expected --prometheus alone: it is about all buffers, as text.")
        with connect(socket) as client:
            print(client.metrics(), end="")
        return
    with target_of(socket) as target:
        roots = list(map(Root, target.roots)) if name is None else [target.root_of(name)]
    if name is None:
        _print_totals(roots, as_json)
        return
    one = survey.stats(roots[0], name)
    behind = lag.lag_in(roots[0], name)
    if as_json:
        print(json.dumps(one.to_json() | {"policy_lag": behind}))
        return
    values: dict[str, Any] = {
        key: value for key, value in one.as_dict().items() if isinstance(value, (int, float))
    }
    if behind is not None:
        values["policy_lag"] = behind
    tables.show(tables.numbers(values), "", tables.lanes(one), "", tables.clients(one))
    for state in (one.limiter, one.priorities):
        if state is not None:
            told = {key: value for key, value in state.to_json().items() if key != "kind"}
            tables.show("", tables.numbers(told))


def drop(
    name: Name,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="All buffers called NAME and below it.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also while it has members; their next call fails.")
    ] = False,
    socket: Socket = None,
) -> None:
    """Drop a buffer: its name goes, its memory is freed."""
    with target_of(socket) as target, progress(f"dropping {name}"):
        chosen = _below(target, name) if recursive else [(target.root_of(name), name)]
        stay = []
        for root, one in chosen:
            client = target.client_for(root)
            try:
                (client or root).drop(one, force=force)
            except AttachError as error:
                stay.append(error)
    if len(chosen) == 1 and stay:
        raise stay[0]
    if stay:
        reasons = " ".join(map(str, stay))
        raise AttachError(f"{len(stay)} of {len(chosen)} buffers were not dropped. {reasons}")


def _below(target: Target, prefix: str) -> list[tuple[Root, str]]:
    found = [
        (root, entry.name)
        for root in map(Root, target.roots)
        for entry in root.list(prefix)
        if entry.state is not State.FOREIGN
    ]
    if not found:
        raise Root(target.roots[0]).unknown(prefix)
    return found


def _schema(like_env: str | None, file: Path | None) -> Schema | None:
    if like_env is not None and file is not None:
        raise SpecError("expected --like-env or --schema, got both.")
    if like_env is not None:
        return schema_from_env(like_env)
    if file is None:
        return None
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise SpecError(f"--schema: expected a JSON file of fields, got {file}: {error}.") from None
    is_written = isinstance(document, dict) and document.get("kind") == Schema.kind
    return Schema.from_json(document) if is_written else Schema.from_mapping(document)


def _limiter(min_size: int | None, samples_per_insert: float | None) -> Limiter | None:
    if samples_per_insert is not None:
        return RateLimiter(min_size=min_size or 1, samples_per_insert=samples_per_insert)
    return MinSize(min_size) if min_size is not None else None


def _print(found: list[survey.BufferSummary], as_json: bool) -> None:
    if as_json:
        print(json.dumps([summary.to_json() for summary in found]))
    else:
        tables.show(tables.listing(found))


def _print_totals(roots: list[Root], as_json: bool) -> None:
    found = [
        survey.stats(root, entry.name)
        for root in roots
        for entry in root.list()
        if entry.state in (State.READY, State.DECLARED)
    ]
    if as_json:
        print(json.dumps([one.to_json() for one in found]))
    else:
        tables.show(tables.totals(found))


def _newest(
    root: Root, name: str, stats: BufferStats, count: int
) -> Iterator[tuple[int, int, list[tuple[FieldPath, Any]]]]:
    """Slot, generation and fields of the newest records of the lane that was written last."""
    if count <= 0 or not stats.lanes:
        return
    lane = max(stats.lanes, key=lambda info: info.written_ns)
    lane_capacity = stats.capacity // len(stats.lanes)
    oldest = max(lane.floor, lane.head - lane_capacity, lane.head - count)
    handle = attach(name, root=root.path, role="observer", format="numpy", default_timeout=LOOK_S)
    try:
        for ticket in range(lane.head - 1, oldest - 1, -1):
            slot = lane.lane * lane_capacity + ticket % lane_capacity
            try:
                fields = list(_fields(handle, slot))
            except (IndexError, DeadlineError):
                # Void, overwritten since, or still in somebody's hands.
                continue
            yield slot, int(handle.generations_of(slot)), fields
    finally:
        handle.close()


def _fields(handle: ReplayBuffer, slot: int) -> Iterator[tuple[FieldPath, Any]]:
    record = handle[slot]
    assert handle.schema is not None
    for path in handle.schema.paths:
        value = record
        if handle.schema.root == "dict":
            for part in path:
                value = value[part]
        elif handle.schema.root == "tuple":
            value = record[int(path[0])]
        yield path, np.asarray(value)
