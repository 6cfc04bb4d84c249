"""Builds tests/native and runs it: plain, under ThreadSanitizer and under AddressSanitizer.

It needs a C++ compiler with its sanitizers, and neither Python headers nor nanobind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import CHECKOUT

pytestmark = pytest.mark.watchdog(900)

# Where the installed CMake and Ninja are, in an environment that was not activated too.
TOOLS = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

# Without a sanitizer it is what all other tests run too.
VARIANTS = [pytest.param("", id="plain", marks=pytest.mark.long), "thread", "address"]
# Optimised enough to reorder, cheap enough to compile three times.
FLAGS = "-O1 -g1"


@pytest.fixture(scope="module", params=VARIANTS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built program of one variant."""
    folder = tmp_path_factory.mktemp("native")
    options = ["-DSHMRB_TESTS=ON", "-DSHMRB_WERROR=ON", f"-DSHMRB_SANITIZE={request.param}"]
    flags = ["-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_CXX_FLAGS={FLAGS}"]
    # The headers are most of each file: compiling all as one takes half the time.
    flags += ["-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0"]
    source = CHECKOUT / "shmrb" / "native"
    cmake = shutil.which("cmake", path=TOOLS) or "cmake"
    run([cmake, "-S", str(source), "-B", str(folder), "-G", "Ninja", *options, *flags])
    run([cmake, "--build", str(folder)])
    return folder / "native_tests"


def run(command: list[str]) -> str:
    environment = {**os.environ, "PATH": TOOLS}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-8000:]}{done.stderr[-8000:]}"
    return done.stdout


def run_program(program: Path, *words: str) -> str:
    """Its output. ThreadSanitizer cannot place its shadow under some kernels' address randomising:
    then without it."""
    try:
        return run([str(program), *words])
    except AssertionError as error:
        if "unexpected memory mapping" not in str(error):
            raise
    return run(["setarch", "-R", str(program), *words])


def test_the_native_core_keeps_its_promises(program: Path) -> None:
    assert "passed" in run_program(program)


@pytest.mark.long
def test_the_native_core_keeps_its_promises_for_millions_of_rounds(program: Path) -> None:
    assert "passed" in run_program(program, "--long")
