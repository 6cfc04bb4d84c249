"""Commands on buffers, with a daemon and on the root itself."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.child import emit
from helpers.daemons import Daemons
from helpers.procs import Children
from shmrb.cli import exits

Shell = Callable[..., Any]

SCHEMA = {"obs": ["float32", [4]], "next": {"done": ["bool", [1]]}, "reward": "float32"}


@pytest.fixture(params=["daemon", "root"])
def surroundings(request: pytest.FixtureRequest, daemons: Daemons) -> str:
    """With a daemon that serves the root, and without any."""
    if request.param == "daemon":
        daemons.start()
    return str(request.param)


@pytest.fixture
def schema_file(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return path


def test_a_buffer_from_create_to_drop(
    shmrb_: Shell, surroundings: str, schema_file: Path, root: Path
) -> None:
    made = shmrb_("create", "exp42/replay", "--capacity", 100, "--schema", schema_file)
    assert made.code == exits.OK, made.err
    assert re.search(r"^exp42/replay +ready", made.out, re.MULTILINE)
    rb = shmrb.attach("exp42/replay", format="numpy", client_name="me")
    observations = np.arange(40, dtype=np.float32).reshape(10, 4)
    done = np.zeros((10, 1), dtype=bool)
    rewards = np.arange(10, dtype=np.float32)
    rb.extend({"obs": observations, "next": {"done": done}, "reward": rewards})

    [row] = json.loads(shmrb_("ls", "--json").out)
    assert (row["name"], row["root"], row["size"]) == ("exp42/replay", str(root), 10)
    assert row["clients"] == 1, "the daemon does not count"
    assert json.loads(shmrb_("ls", "exp4", "--json").out) == []
    assert "exp42/replay" in shmrb_("ls", "exp42").out

    shown = shmrb_("show", "exp42/replay", "--records", 3)
    assert shown.code == exits.OK
    assert "10 of 100 records, 10 written" in shown.out
    assert re.search(r"^\('next', 'done'\) +bool", shown.out, re.MULTILINE)
    assert "[36., 37., 38., 39.]" in shown.out
    assert re.search(rf"^me +{os.getpid()} +member +alive", shown.out, re.MULTILINE)
    document = json.loads(shmrb_("show", "exp42/replay", "--records", 2, "--json").out)
    assert [record["slot"] for record in document["records"]] == [9, 8]
    assert document["records"][0] == {
        "slot": 9,
        "generation": 0,
        "fields": [
            [["obs"], [36.0, 37.0, 38.0, 39.0]],
            [["next", "done"], [False]],
            [["reward"], 9.0],
        ],
    }
    assert document["spec"]["storage"]["capacity"] == 100

    assert json.loads(shmrb_("stats", "exp42/replay", "--json").out)["write_count"] == 10
    assert json.loads(shmrb_("stats", "--json").out)[0]["size"] == 10
    assert "records_written" in shmrb_("stats", "exp42/replay").out
    assert "exp42/replay" in shmrb_("stats").out

    refused = shmrb_("drop", "exp42/replay")
    assert refused.code == exits.TAKEN
    assert f"me (pid {os.getpid()})" in refused.err
    assert shmrb_("drop", "exp42/replay", "--force").code == exits.OK
    assert json.loads(shmrb_("ls", "--json").out) == []
    assert not (root / "exp42+replay").exists()


def test_a_whole_tree_is_dropped_but_what_is_in_use(shmrb_: Shell, surroundings: str) -> None:
    for name in ("exp4/a", "exp42", "exp42/a", "exp42/b/c"):
        assert shmrb_("create", name, "--capacity", 5).code == exits.OK
    assert shmrb_("drop", "exp", "-r").code == exits.NO_SUCH_BUFFER
    with shmrb.attach("exp42/a", format="numpy", client_name="me") as rb:
        rb.add({"x": np.int64(1)})
        refused = shmrb_("drop", "exp42", "--recursive")
        assert refused.code == exits.TAKEN
        assert "1 of 3 buffers were not dropped" in refused.err
        assert f"me (pid {os.getpid()})" in refused.err
        left = json.loads(shmrb_("ls", "--json").out)
        assert [row["name"] for row in left] == ["exp4/a", "exp42/a"]
        assert shmrb_("drop", "exp42", "-r", "--force").code == exits.OK
    assert [row["name"] for row in json.loads(shmrb_("ls", "--json").out)] == ["exp4/a"]


def test_create_from_an_environment_with_limits(shmrb_: Shell, surroundings: str) -> None:
    words = ["--capacity", 1000, "--batch-size", 32, "--min-size", 100, "--samples-per-insert", 8]
    made = shmrb_("create", "env", "--like-env", "CartPole-v1", *words)
    assert made.code == exits.OK, made.err
    rb = shmrb.attach("env", format="numpy")
    assert rb.batch_size == 32
    assert rb.schema == shmrb.schema_from_env("CartPole-v1")
    limiter = json.loads(shmrb_("stats", "env", "--json").out)["limiter"]
    assert (limiter["min_size"], limiter["samples_per_insert"]) == (100, 8.0)
    assert "samples_per_insert" in shmrb_("stats", "env").out


def test_create_again_is_the_same_buffer_or_an_error(
    shmrb_: Shell, surroundings: str, schema_file: Path
) -> None:
    words = ["create", "a", "--schema", schema_file]
    assert shmrb_(*words, "--capacity", 10).code == exits.OK
    assert shmrb_(*words, "--capacity", 10).code == exits.OK
    other = shmrb_(*words, "--capacity", 11)
    assert other.code == exits.TAKEN
    assert "capacity: existing 10, asked for 11" in other.err
    assert shmrb_(*words, "--capacity", 11, "--replace").code == exits.OK
    assert json.loads(shmrb_("ls", "--json").out)[0]["capacity"] == 11


def test_a_declared_buffer_is_shown_as_such(shmrb_: Shell, surroundings: str) -> None:
    assert "declared" in shmrb_("create", "later", "--capacity", 10).out
    assert "the first write decides" in shmrb_("show", "later", "--records", 3).out
    assert not json.loads(shmrb_("stats", "later", "--json").out)["initialized"]
    assert shmrb_("drop", "later").code == exits.OK


def test_a_schema_that_was_written_by_us_is_read_again(shmrb_: Shell, tmp_path: Path) -> None:
    written = shmrb.schema_like((np.zeros(3), np.int64(1)))
    path = tmp_path / "written.json"
    path.write_text(json.dumps(written.to_json()))
    assert shmrb_("create", "a", "--capacity", 10, "--schema", path).code == exits.OK
    rb = shmrb.attach("a", format="numpy")
    assert rb.schema == written
    rb.add((np.ones(3), np.int64(5)))
    [record] = json.loads(shmrb_("show", "a", "--records", 1, "--json").out)["records"]
    assert record["fields"] == [[["0"], [1.0, 1.0, 1.0]], [["1"], 5]]


def write_and_stand_still(buffer: str) -> None:
    """SHMRB_STOP_AT stops it in the middle of its second write."""
    handle = shmrb.attach(buffer, format="numpy", client_name="stopped")
    for first in (0, 4):
        handle.extend({"uid": np.arange(first, first + 4), "body": np.zeros((4, 64), np.uint8)})
        emit("written")


def test_commands_show_what_is_whole_while_a_writer_stands_still(
    shmrb_: Shell, surroundings: str, children: Children
) -> None:
    schema = {"uid": "int64", "body": ("uint8", 64)}
    with shmrb.ReplayBuffer("half", storage=shmrb.SharedStorage(16), schema=schema, format="numpy"):
        environment = {"SHMRB_STOP_AT": "mid_payload:stop:2"}
        writer = children.start(write_and_stand_still, buffer="half", environment=environment)
        writer.expect("written")
        writer.wait_stopped()
        [row] = json.loads(shmrb_("ls", "--json").out)
        assert (row["size"], row["write_count"]) == (4, 4)
        [totals] = json.loads(shmrb_("stats", "--json").out)
        assert (totals["size"], totals["write_count"]) == (4, 4)
        assert json.loads(shmrb_("stats", "half", "--json").out)["size"] == 4
        shown = json.loads(shmrb_("show", "half", "--records", 8, "--json").out)
        assert [record["fields"][0][1] for record in shown["records"]] == [3, 2, 1, 0]
        [seen] = json.loads(shmrb_("top", "--json", "--interval", 0.01).out)
        assert seen["size"] == 4
        assert shmrb_("doctor", "half").code == exits.OK
        if surroundings == "daemon":
            told = shmrb_("stats", "--prometheus").out
            assert re.search(r'^shmrb_buffer_records\{.*"half".*\} 4', told, re.MULTILINE)
        writer.resume()
        writer.expect("written")
        writer.succeed()
        assert json.loads(shmrb_("ls", "--json").out)[0]["size"] == 8


def test_foreign_things_in_the_root_are_listed_and_left_alone(shmrb_: Shell, root: Path) -> None:
    (root / "notes").write_text("precious")
    listed = shmrb_("ls")
    assert listed.code == exits.OK
    assert "foreign" in listed.out
    assert shmrb_("drop", "notes", "--force").code == exits.UNREADABLE
    assert (root / "notes").read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["show", "nope"], exits.NO_SUCH_BUFFER, "'nope'"),
        (["stats", "nope"], exits.NO_SUCH_BUFFER, "'nope'"),
        (["drop", "nope"], exits.NO_SUCH_BUFFER, "'nope'"),
        (["show", "../x"], exits.USAGE, "'../x'"),
        (["create", "a", "--capacity", 0], exits.USAGE, "capacity"),
        (["create", "a"], exits.USAGE, "--capacity"),
        (["create", "a", "--capacity", 5, "--schema", "none.json"], exits.USAGE, "none.json"),
        (
            ["create", "a", "--capacity", 5, "--schema", "x", "--like-env", "y"],
            exits.USAGE,
            "--like-env or --schema, got both",
        ),
        (["ls", "--socket", "none.sock"], exits.NO_DAEMON, "none.sock"),
        (["nonsense"], exits.USAGE, "nonsense"),
    ],
)
def test_what_cannot_be_done_has_its_exit_code(
    shmrb_: Shell, words: list[Any], code: int, complaint: str
) -> None:
    ended = shmrb_(*words)
    assert ended.code == code
    assert complaint in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_prometheus_text_comes_from_the_daemon_alone(shmrb_: Shell, daemons: Daemons) -> None:
    assert shmrb_("stats", "--prometheus").code == exits.NO_DAEMON
    daemons.start()
    assert shmrb_("create", "a", "--capacity", 10).code == exits.OK
    told = shmrb_("stats", "--prometheus")
    assert told.code == exits.OK
    assert "shmrb_daemon_buffers 0.0\n" in told.out
    assert shmrb_("stats", "a", "--prometheus").code == exits.USAGE
    assert shmrb_("stats", "--json", "--prometheus").code == exits.USAGE


def test_no_room_has_its_exit_code(shmrb_: Shell, surroundings: str, schema_file: Path) -> None:
    ended = shmrb_("create", "a", "--capacity", 1 << 40, "--schema", schema_file)
    assert ended.code == exits.NO_ROOM
    assert json.loads(shmrb_("ls", "--json").out) == []


def test_a_daemon_of_another_root_is_not_asked_about_this_one(
    shmrb_: Shell, daemons: Daemons, tmp_path: Path, root: Path
) -> None:
    other = root.parent / "other"
    daemons.start(f"--root={other}")
    assert shmrb_("create", "a", "--capacity", 5).code == exits.OK
    assert (root / "a").exists()
    socket = os.environ["SHMRB_SOCKET"]
    assert json.loads(shmrb_("ls", "--json", "--socket", socket).out) == []
    assert shmrb_("create", "b", "--capacity", 5, "--socket", socket).code == exits.OK
    assert (other / "b").exists()
    assert shmrb_("drop", "a").code == exits.OK


def test_without_a_root_variable_the_daemons_root_is_meant(
    shmrb_: Shell, daemons: Daemons, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    daemons.start()
    monkeypatch.delenv("SHMRB_ROOT")
    assert shmrb_("create", "a", "--capacity", 5).code == exits.OK
    assert (root / "a").exists()
    rows = json.loads(shmrb_("ls", "a", "--json").out)
    assert [row["root"] for row in rows] == [str(root)]


def test_a_stale_socket_does_not_keep_anybody_from_the_root(
    shmrb_: Shell, daemons: Daemons
) -> None:
    daemons.start().kill()
    assert os.path.exists(os.environ["SHMRB_SOCKET"])
    assert shmrb_("create", "a", "--capacity", 5).code == exits.OK
    assert shmrb_("drop", "a").code == exits.OK
