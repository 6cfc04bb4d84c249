"""Environments of peers are made once, and made again when they are not what is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import environments
from bench.environments import STAMP, Environment, EnvironmentUnavailable, interpreter

# Satisfied by every new environment: nothing is fetched.
NOTHING_NEW = Environment(("pip",))


@pytest.mark.long
def test_made_once_and_again_after_an_interrupted_install(tmp_path: Path) -> None:
    said: list[str] = []
    python = interpreter("peer", tmp_path, said.append, NOTHING_NEW)
    assert python == tmp_path / "peer" / "bin" / "python"
    assert python.exists()
    assert interpreter("peer", tmp_path, said.append, NOTHING_NEW) == python
    assert len(said) == 1
    # The stamp is written last: without it the install did not end.
    (tmp_path / "peer" / STAMP).unlink()
    (tmp_path / "peer" / "left over").touch()
    interpreter("peer", tmp_path, said.append, NOTHING_NEW)
    assert len(said) == 2
    assert not (tmp_path / "peer" / "left over").exists()


@pytest.mark.long
def test_a_failed_install_says_what_pip_said_and_counts_as_not_made(tmp_path: Path) -> None:
    nowhere = Environment((str(tmp_path / "no-such-package"),))
    with pytest.raises(EnvironmentUnavailable, match="no-such-package"):
        interpreter("peer", tmp_path, lambda line: None, nowhere)
    assert not (tmp_path / "peer" / STAMP).exists()


def test_a_missing_python_is_named(tmp_path: Path) -> None:
    old = Environment(("pip",), python="3.1")
    with pytest.raises(EnvironmentUnavailable, match=r"expected Python 3\.1 as python3\.1 on PATH"):
        interpreter("peer", tmp_path, lambda line: None, old)
    assert list(tmp_path.iterdir()) == [tmp_path / "peer.lock"]


def test_the_cache_directory_follows_the_desktop_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert environments.default_root() == Path("/somewhere/shmrb-bench")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert environments.default_root() == Path.home() / ".cache" / "shmrb-bench"
