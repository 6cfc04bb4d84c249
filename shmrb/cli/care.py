"""Commands that look after things: doctor, gc, events."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from shmrb.cli import exits, surroundings, tables
from shmrb.cli.buffers import Json, OneName, Socket
from shmrb.cli.progress import progress
from shmrb.cli.surroundings import Advice, Surroundings
from shmrb.cli.target import target_of
from shmrb.client import connect
from shmrb.errors import DaemonError, SpecError
from shmrb.segment import audit, boot, names
from shmrb.segment.directory import Root
from shmrb.segment.entries import State
from shmrb.segment.findings import Finding
from shmrb.segment.member import Member

# How often `events` asks; the daemon keeps the last thousand.
_ASK_EVERY_S = 0.5


def doctor(
    name: OneName = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend the buffer: what the dead left, counts, sums.")
    ] = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Say what is wrong and what to do: with this machine, or with buffer NAME while it is used.

    Ends with 1 if there is a problem that was not mended.
    """
    if name is not None:
        raise typer.Exit(_verify(name, repair, socket, as_json))
    if repair:
        raise SpecError("--repair: expected the NAME of a buffer beside it.")
    with target_of(socket) as target:
        roots = target.roots
    sockets = names.client_sockets(socket)
    found = surroundings.examine(Surroundings(roots=roots, sockets=sockets))
    _print_advice(found, as_json)
    raise typer.Exit(exits.FAILED if any(one.level == "problem" for one in found) else exits.OK)


def gc(
    prefix: Annotated[
        str,
        typer.Argument(
            help="Only buffers called NAME and what lies below it, and what bears no name."
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Remove what dead creators and interrupted drops left; never what anybody has or may want."""
    with target_of(socket) as target:
        roots = list(map(Root, target.roots))
    with progress("removing what was left"):
        removed = [
            leftover
            for root in roots
            for leftover in (root.leftovers(prefix) if dry_run else root.reclaim(prefix))
        ]
    if as_json:
        print(json.dumps([asdict(leftover) for leftover in removed]))
    else:
        tables.show(tables.leftovers(removed))


def events(
    once: Annotated[
        bool, typer.Option("--once", help="Print what the daemon remembers, and end.")
    ] = False,
    socket: Socket = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document a line.")] = False,
) -> None:
    """Follow what the daemon sees: who attached, left, died, was repaired. Ctrl-C ends it."""
    with connect(socket) as client:
        seen, daemon = 0, None
        try:
            while True:
                try:
                    page = client.events(after=seen)
                except DaemonError:
                    if once:
                        raise
                    # Restarted, most likely: the one that comes counts anew.
                    time.sleep(_ASK_EVERY_S)
                    continue
                if page.pid != daemon and daemon is not None:
                    page = client.events()
                daemon = page.pid
                for event in page.events:
                    seen = event.number
                    when = datetime.fromtimestamp(event.time).isoformat(" ", "milliseconds")
                    document = {"time": event.time, "kind": event.kind, **event.facts}
                    facts = " ".join(f"{key}={value!r}" for key, value in event.facts.items())
                    line = json.dumps(document) if as_json else f"{when} {event.kind} {facts}"
                    print(line, flush=True)
                if once:
                    return
                time.sleep(_ASK_EVERY_S)
        except KeyboardInterrupt:
            return


def _verify(name: str, repair: bool, socket: str | None, as_json: bool) -> int:
    with target_of(socket) as target:
        root = target.root_of(name)
    entry = root.require(name)
    found: list[Finding] = []
    mended: list[Finding] = []
    if entry.state is State.UNCLEAN:
        raise boot.unclean(entry.path)
    if entry.state is State.READY:
        # An observer: attaching otherwise would already mend something.
        with (
            Member.join(root, name, role="observer") as observer,
            progress(f"verifying {name}"),
        ):
            found = audit.audit(observer)
        if repair and found:
            with (
                Member.join(root, name, client_name="doctor") as member,
                progress(f"mending {name}"),
            ):
                audit.repair(member)
            with Member.join(root, name, role="observer") as observer:
                left = audit.audit(observer)
            mended = [finding for finding in found if finding not in left]
            found = left
    if as_json:
        document = {
            "name": name,
            "broken": [finding.to_json() for finding in found],
            "mended": [finding.to_json() for finding in mended],
        }
        print(json.dumps(document))
        return exits.FAILED if found else exits.OK
    for finding in mended:
        print(f"mended   {finding}")
    for finding in found:
        print(f"broken   {finding}")
    if not found:
        print(f"ok       {name} in {root.path} keeps its rules")
    elif not repair and all(finding.mends for finding in found):
        print(f"Mend it: shmrb doctor {name} --repair. It may be used meanwhile.")
    else:
        print("What cannot be mended was written by no shmrb: drop the buffer and create it anew.")
    return exits.FAILED if found else exits.OK


def _print_advice(found: list[Advice], as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(one) for one in found]))
        return
    for one in found:
        print(f"{one.level:<8} {one.check}: {one.found}")
        if one.advice and one.level != "ok":
            print(f"{'':<8} {one.advice}")
