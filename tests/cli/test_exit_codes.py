"""Each exit code of the help, from a command that ends with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import shmrb
from helpers.child import emit, receive
from helpers.commands import run_here
from helpers.procs import Children
from shmrb.cli import care, exits
from shmrb.segment.administration import administration_lock
from shmrb.segment.directory import Root

Shell = Callable[..., Any]

NOBODY = 65534


class Stage(NamedTuple):
    """What a scene may use."""

    shell: Shell
    root: Path
    children: Children
    patch: pytest.MonkeyPatch

    def made(self) -> None:
        """There is a buffer called a."""
        shmrb.ReplayBuffer("a", storage=shmrb.SharedStorage(8), schema={"x": "int64"}).close()


def all_is_well(stage: Stage) -> Any:
    stage.made()
    return stage.shell("ls")


def a_check_fails(stage: Stage) -> Any:
    stage.root.chmod(0o777)
    return stage.shell("doctor")


def a_word_is_missing(stage: Stage) -> Any:
    return stage.shell("create", "a")


def nobody_bears_the_name(stage: Stage) -> Any:
    return stage.shell("show", "a")


def it_is_in_use(stage: Stage) -> Any:
    with shmrb.ReplayBuffer("a", storage=shmrb.SharedStorage(8), schema={"x": "int64"}):
        return stage.shell("drop", "a")


def no_daemon_answers(stage: Stage) -> Any:
    return stage.shell("events", "--once")


def a_stopped_process_holds_the_lock(stage: Stage) -> Any:
    stage.children.start(hold_lock, root=str(stage.root)).expect("locked")
    stage.patch.setattr(care, "Root", partial(Root, lock_timeout=0.05))
    return stage.shell("gc")


def hold_lock(root: str) -> None:
    with administration_lock(root, 0o600, 60):
        emit("locked")
        receive()


def there_is_no_room(stage: Stage) -> Any:
    schema = stage.root.parent / "schema.json"
    schema.write_text('{"x": "int64"}')
    return stage.shell("create", "a", "--capacity", 1 << 40, "--schema", schema)


def it_belongs_to_others(stage: Stage) -> Any:
    stage.made()
    stage.root.parent.chmod(0o755)
    stage.root.chmod(0)
    try:
        # Root may look into everything, so somebody else has to try.
        child = stage.children.start(run_as_nobody, words=["show", "a"])
        return child.expect("ended")
    finally:
        stage.root.chmod(0o700)


def run_as_nobody(words: list[str]) -> None:
    # While the modules that it needs can still be read.
    run_here("ls")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    emit("ended", **run_here(*words))


def it_is_damaged(stage: Stage) -> Any:
    stage.made()
    meta = stage.root / "a" / "meta"
    whole = meta.read_bytes()
    meta.chmod(0o600)
    meta.write_bytes(b"x" * 8192)
    try:
        return stage.shell("show", "a")
    finally:
        # What it has outside of the root is found by it.
        meta.write_bytes(whole)


SCENES: dict[int, Callable[[Stage], Any]] = {
    exits.OK: all_is_well,
    exits.FAILED: a_check_fails,
    exits.USAGE: a_word_is_missing,
    exits.NO_SUCH_BUFFER: nobody_bears_the_name,
    exits.TAKEN: it_is_in_use,
    exits.NO_DAEMON: no_daemon_answers,
    exits.TIMED_OUT: a_stopped_process_holds_the_lock,
    exits.NO_ROOM: there_is_no_room,
    exits.NOT_PERMITTED: it_belongs_to_others,
    exits.UNREADABLE: it_is_damaged,
}


def test_every_code_of_the_help_has_its_scene() -> None:
    assert SCENES.keys() == exits.MEANINGS.keys()


@pytest.mark.parametrize("code", SCENES)
def test_a_command_ends_with_its_code_and_says_why(
    shmrb_: Shell, root: Path, children: Children, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    ended = SCENES[code](Stage(shmrb_, root, children, monkeypatch))
    found = ended["code"] if isinstance(ended, dict) else ended.code
    said = ended["err"] if isinstance(ended, dict) else ended.err
    assert found == code, said
    assert "Traceback" not in said
    if code not in (exits.OK, exits.FAILED, exits.USAGE):
        assert said.startswith("shmrb: ")
        assert said.count("\n") == 1
