"""What is shipped for systemd: systemd itself finds nothing wrong, and little exposed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from helpers.paths import CHECKOUT
from shmrb.segment import names
from shmrbd import config

UNITS = CHECKOUT / "systemd"
SYSTEM_UNITS = ("shmrbd.service", "shmrbd@.service", "shmrbd.socket", "run-shmrb-segments.mount")
SERVICES = ("shmrbd.service", "shmrbd@.service")
ALL = sorted(path for path in UNITS.rglob("*") if path.is_file())
# Tenths: what is left is RestrictSUIDSGID, PrivateUsers and small change, each with its reason.
THRESHOLD = "10"


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units, with programs that this machine has."""
    folder = tmp_path_factory.mktemp("units") / "systemd"
    shutil.copytree(UNITS, folder)
    for path in folder.rglob("*.service"):
        text = re.sub(r"^(Exec\w+)=\S+", r"\1=/bin/true", path.read_text(), flags=re.MULTILINE)
        path.write_text(text)
    return folder


def analyze(*words: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, output and complaints of systemd-analyze."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.fail("systemd-analyze is missing; install the package systemd (apt-get install)")
    ended = subprocess.run(
        [program, *words], capture_output=True, text=True, env={**os.environ, **(environment or {})}
    )
    return ended.returncode, ended.stdout, ended.stderr


def verify(*paths: Path, user: Path | None = None) -> str:
    """What systemd complains about; its exit code says nothing about unknown keys."""
    words = ["--user"] if user else []
    environment = {"XDG_RUNTIME_DIR": str(user)} if user else {}
    instances = [str(path).replace("@.", "@one.") for path in paths]
    code, _, complaints = analyze("verify", "--man=no", *words, *instances, environment=environment)
    return complaints or f"exit code {code}" * (code != 0)


def test_systemd_finds_nothing_wrong_with_the_system_units(units: Path) -> None:
    assert verify(*(units / name for name in SYSTEM_UNITS)) == ""


def test_systemd_finds_nothing_wrong_with_the_user_unit(units: Path, tmp_path: Path) -> None:
    assert verify(units / "user" / "shmrbd.service", user=tmp_path) == ""


@pytest.mark.parametrize("broken", ["Tpye=notify", "Type=notfy", "UMask=0007 # inline"])
def test_a_mistake_would_be_found(units: Path, tmp_path: Path, broken: str) -> None:
    key = broken.partition("=")[0].replace("Tpye", "Type")
    text = (units / "shmrbd.service").read_text()
    path = tmp_path / "shmrbd.service"
    path.write_text(re.sub(rf"^{key}=.*$", broken, text, flags=re.MULTILINE))
    assert str(path) in verify(path)


@pytest.mark.parametrize("name", SERVICES)
def test_the_services_expose_little(units: Path, name: str) -> None:
    code, output, complaints = analyze(
        "security", "--offline=true", f"--threshold={THRESHOLD}", str(units / name)
    )
    assert (code, complaints) == (0, ""), output


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(UNITS)))
def test_reasons_stand_above_what_they_explain(path: Path) -> None:
    hardening = re.compile(
        r"(Protect|Private|Restrict|NoNew|System|Memory|Lock|Keyring|Device|Capab|Ambient|IPAddr)"
    )
    above = ""
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            assert " #" not in line, "systemd takes an inline comment for a part of the value"
            if path.suffix == ".service" and hardening.match(line):
                assert above.startswith("#"), f"{line}: no reason above it"
        above = line


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_hides_or_removes_the_segments(name: str) -> None:
    text = (UNITS / name).read_text()
    keys = dict(line.split("=", 1) for line in text.splitlines() if re.match(r"\w+=", line))
    # logind cleans up after ordinary users; DynamicUser implies RemoveIPC.
    assert (keys["User"], keys["RemoveIPC"]) == ("shmrb", "no")
    for key in ("DynamicUser", "PrivateUsers", "TemporaryFileSystem", "RestrictSUIDSGID"):
        assert key not in keys
    assert "/dev/shm" not in keys.get("InaccessiblePaths", "") + keys.get("ReadOnlyPaths", "")


def test_the_user_is_one_of_the_system() -> None:
    text = (UNITS / "shmrb.sysusers.conf").read_text()
    assert re.search(r"^u shmrb - ", text, re.MULTILINE), "u with - takes an id of the system range"


def test_units_and_programs_mean_the_same_places() -> None:
    service = (UNITS / "shmrbd.service").read_text()
    [line] = re.findall(r"^ExecStart=\S+ (.*)$", service, re.MULTILINE)
    flags = dict(word.split("=") for word in line.split())
    assert flags == {"--root": names.SERVICE_ROOT, "--socket": names.SERVICE_SOCKET}
    assert flags.keys() <= config.flags().keys()
    mount = (UNITS / "run-shmrb-segments.mount").read_text()
    assert f"\nWhere={names.SERVICE_ROOT}\n" in mount
    assert (
        f"\nListenSequentialPacket={names.SERVICE_SOCKET}\n"
        in (UNITS / "shmrbd.socket").read_text()
    )
