"""`shmrb doctor` in bad places that are made for real, in namespaces of their own."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess

from helpers.child import emit
from helpers.commands import run_here
from helpers.mounts import InOwnMounts
from shmrb.cli import exits


def look_around(root: str) -> None:
    """Asks the doctor about one bad place after another, each made for real."""

    def mount(*words: str) -> None:
        subprocess.run(["mount", *words], check=True)

    def ask(place: str) -> None:
        emit("asked", place=place, **run_here("doctor", "--json"))

    base = os.getcwd()
    # As Docker gives it.
    mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm")
    os.environ["SHMRB_ROOT"] = "/dev/shm/shmrb"
    os.environ["SHMRB_SOCKET"] = f"{base}/daemon.sock"
    ask("small")
    with open("schema.json", "w") as schema:
        schema.write('{"x": ["uint8", [1048576]]}')
    words = ("create", "a", "--capacity", "200", "--schema", "schema.json")
    emit("created", **run_here(*words), left=os.listdir("/dev/shm/shmrb"))
    mount("-o", "remount,ro", "/dev/shm")
    ask("closed")
    for name in ("lower", "upper", "work", "over"):
        os.mkdir(name)
    layers = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
    mount("-t", "overlay", "-o", layers, "overlay", f"{base}/over")
    os.environ["SHMRB_ROOT"] = f"{base}/over"
    ask("overlay")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(os.environ["SHMRB_SOCKET"])
    ask("stale")
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    ask("limited")


BAD = {
    "small": (exits.OK, "shared memory", "warning", "--shm-size"),
    "closed": (exits.FAILED, "shared memory", "problem", "SHMRB_ROOT"),
    "overlay": (exits.FAILED, "root", "problem", "tmpfs, ext4 or xfs"),
    "stale": (exits.FAILED, "daemon", "problem", "shmrb serve"),
    "limited": (exits.FAILED, "limits", "warning", "ulimit -n 1024"),
}


def test_the_doctor_finds_what_is_bad_where_it_is_bad(in_own_mounts: InOwnMounts) -> None:
    """What a namespace can make real."""
    child = in_own_mounts(look_around)
    for place, (code, check, level, advice) in BAD.items():
        asked = child.expect("asked")
        assert (asked["place"], asked["code"]) == (place, code), asked
        said = [one for one in json.loads(asked["out"]) if one["check"] == check]
        assert any(one["level"] == level and advice in one["advice"] for one in said), said
        if place == "small":
            created = child.expect("created")
            assert created["code"] == exits.NO_ROOM
            assert "--shm-size" in created["err"]
            assert not [name for name in created["left"] if not name.startswith((".lock", ".st"))]
    child.succeed()
