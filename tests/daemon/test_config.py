"""One configuration file, whose every setting is described in one place."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shmrb.errors import SpecError
from shmrbd import config
from shmrbd.config import Config, Settings

SAMPLES: dict[type, Any] = {str: "/x", int: 7, float: 2.5}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that SHMRB_CONFIG names; root and socket are not in the environment."""
    path = tmp_path / "shmrbd.toml"
    path.write_text("")
    monkeypatch.setenv("SHMRB_CONFIG", str(path))
    monkeypatch.delenv("SHMRB_ROOT")
    monkeypatch.delenv("SHMRB_SOCKET")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return path


def test_every_setting_has_a_text_and_a_flag() -> None:
    flags = config.flags()
    for field in dataclasses.fields(Config):
        assert field.metadata["text"].endswith("."), field.name
        flag = flags[f"--{field.name.replace('_', '-')}"]
        assert field.metadata["text"][:40] in flag["help"]
        assert bool(field.metadata["unit"]) == isinstance(field.default, (int, float)), field.name


def test_what_is_printed_is_a_file_with_the_same_settings(file: Path) -> None:
    given = {"max_buffers": 3, "sweep_interval_s": 0.25, "mode": "0660", "root": "/dev/shm/a b"}
    first = config.resolve(given)
    text = config.documented(first)
    file.write_text(text)
    assert config.resolve() == first
    for field in dataclasses.fields(Config):
        assert f"\n{field.name} = " in text
    assert max(map(len, text.splitlines())) <= 100


def test_print_config_is_read_again_by_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shmrbd", "--print-config", "--max-clients=9"]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    path = tmp_path / "printed.toml"
    path.write_text(first.stdout)
    again = [*command[:-1], f"--config={path}"]
    second = subprocess.run(again, capture_output=True, text=True, check=True)
    assert (second.stdout, second.stderr) == (first.stdout, "")
    assert "max_clients = 9\n" in first.stdout


@pytest.mark.parametrize("field", dataclasses.fields(Config), ids=lambda field: field.name)
def test_a_flag_overrides_the_environment_that_the_file_that_the_default(
    field: dataclasses.Field[Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    special = {"mode": ("0600", "0660"), "log_level": ("debug", "error")}
    sample = SAMPLES[type(field.default)]
    in_file, in_flag = special.get(field.name, (sample, sample * 2))
    file.write_text(f"{field.name} = {config.json.dumps(in_file)}\n")
    assert getattr(config.resolve(), field.name) == in_file
    variable = {"root": "SHMRB_ROOT", "socket": "SHMRB_SOCKET"}.get(field.name)
    if variable:
        monkeypatch.setenv(variable, "/from/environment")
        assert getattr(config.resolve(), field.name) == "/from/environment"
    assert getattr(config.resolve({field.name: in_flag}), field.name) == in_flag


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sweep_intervall_s = 1", "did you mean 'sweep_interval_s'"),
        ("zzz = 1", "known: root, socket"),
        ("max_bytes = '1'", "max_bytes: expected int, got '1'"),
        ("max_bytes = true", "max_bytes: expected int, got True"),
        ("max_bytes = -1", "max_bytes: expected a number of at least 0, got -1"),
        ("sweep_interval_s = nan", "sweep_interval_s: expected a number of at least 0"),
        ("max_connections = 0", "at least 1"),
        ("mode = '0666'", "mode: expected one of 0600, 0640, 0660, got '0666'"),
        ("log_level = 'loud'", "log_level: expected one of debug"),
        ("metrics_port = 70000", "at most 65535"),
        ("[root", "cannot be read"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_name(
    file: Path, text: str, complaint: str
) -> None:
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        config.resolve()
    assert complaint in str(caught.value)


def test_a_whole_number_of_seconds_is_a_number_of_seconds(file: Path) -> None:
    file.write_text("sweep_interval_s = 2")
    assert config.resolve().sweep_interval_s == 2.0


def test_a_file_that_is_named_must_be_there(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = f"{file}.missing"
    with pytest.raises(SpecError, match="got none at"):
        config.resolve(file=missing)
    monkeypatch.setenv("SHMRB_CONFIG", missing)
    with pytest.raises(SpecError, match="got none at"):
        config.resolve()


def test_a_reload_takes_what_a_running_daemon_can_change() -> None:
    settings = Settings(Config(root="/a", socket="/s"))
    changed, waiting = settings.take(Config(root="/b", socket="/s", max_buffers=5))
    assert (changed, waiting) == (["max_buffers"], ["root"])
    assert settings.now == Config(root="/a", socket="/s", max_buffers=5)
