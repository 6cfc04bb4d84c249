"""Fixtures of every test: a root of its own, children that are always reaped, and a watchdog."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# `helpers` is on the path by `pythonpath` in pyproject.toml.
from helpers.paths import arrange_import_path
from helpers.procs import Children

arrange_import_path()

WATCHDOG_S = 120.0
# A test that does not even notice the watchdog (stuck in native code) ends the whole run, this
# much later.
HARD_END_S = 30.0

_stderr_fd = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    # The watchdog's last resort writes to the real stderr, which pytest's capture hides.
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        config.stash[_stderr_fd] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.cancel_dump_traceback_later()
    os.close(config.stash[_stderr_fd])


def pytest_report_header() -> str:
    spec = importlib.util.find_spec("shmrb")
    origin = spec.origin if spec else "not importable"
    return f"shmrb under test: {origin} (python {sys.version.split()[0]})"


@pytest.fixture
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """Starts child processes; whatever still runs at the end of the test is killed and reaped."""
    started = Children(tmp_path_factory.mktemp("children"))
    yield started
    started.close()


@pytest.fixture(autouse=True)
def root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root of segments (tmpfs), a socket path and a working directory for this test alone.

    Children inherit all three. An interpreter that runs with -c or -m imports from its working
    directory first, which must therefore not be the checkout.
    """
    base = Path(tempfile.mkdtemp(prefix="shmrb-test-", dir="/dev/shm"))
    segments = base / "segments"
    segments.mkdir(mode=0o700)
    monkeypatch.setenv("SHMRB_ROOT", str(segments))
    monkeypatch.setenv("SHMRB_SOCKET", str(base / "daemon.sock"))
    monkeypatch.chdir(base)
    yield segments
    for place in filter(None, (base, request.node.funcargs.get("tmp_path"))):
        _remove_semaphores(place)
    shutil.rmtree(base)


def _remove_semaphores(place: Path) -> None:
    """Removes what the buffers that are left below a directory have outside of it."""
    for meta in place.rglob("meta"):
        # Here, not above: tests without buffers shall not need the library.
        from shmrb.errors import ShmrbError
        from shmrb.segment import layout, names

        with contextlib.suppress(ShmrbError):  # a test may have damaged it on purpose
            uuid = layout.parse_meta(meta.read_bytes(), str(meta)).uuid
            for name in names.semaphore_names(uuid):
                Path(names.semaphore_file(name)).unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def _watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends a test that hangs, with the stacks of this process and of its children."""
    mark = request.node.get_closest_marker("watchdog")
    seconds = float(mark.args[0]) if mark else WATCHDOG_S
    stderr = request.config.stash[_stderr_fd]

    def bark(_signal: int, _frame: object) -> None:
        faulthandler.dump_traceback(file=stderr, all_threads=True)
        reports = []
        if "children" in request.fixturenames:
            for child in request.getfixturevalue("children"):
                if child.exit_code is None:
                    child.dump_stacks()
                reports.append(child.report())
        text = "\n".join(reports)
        pytest.fail(f"watchdog: the test still ran after {seconds:g} s\n{text}", pytrace=True)

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + HARD_END_S, exit=True, file=stderr)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    faulthandler.cancel_dump_traceback_later()
