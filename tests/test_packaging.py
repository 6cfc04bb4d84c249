"""What gets installed: the parts of the wheel, its metadata, the stub and the pinned versions."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import shmrb
from helpers.paths import CHECKOUT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PROJECT: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())


@pytest.fixture
def installed() -> importlib.metadata.Distribution:
    """The installed distribution, if that is what is being tested."""
    package = Path(shmrb.__file__).parent
    if package.parent == CHECKOUT:
        assert "CI" not in os.environ, "CI must test what it installed, not the checkout"
        pytest.skip("shmrb was built in place (PYTHONPATH names the checkout)")
    return importlib.metadata.distribution("shmrb")


def test_version_is_told_once(installed: importlib.metadata.Distribution) -> None:
    assert installed.version == shmrb.__version__


def test_wheel_holds_what_users_need(installed: importlib.metadata.Distribution) -> None:
    files = {str(path) for path in installed.files or ()}
    assert files >= {
        "shmrb/_native.pyi",
        "shmrb/py.typed",
        "shmrb/segment/FORMAT.md",
        "shmrbd/__main__.py",
    }
    native = {name for name in files if re.fullmatch(r"shmrb/_native\..*so", name)}
    assert len(native) == 1
    assert (sys.version_info < (3, 12)) or native == {"shmrb/_native.abi3.so"}
    strangers = {name for name in files if re.search(r"\.(cc|h|txt|cmake)$", name)}
    assert {name for name in strangers if "dist-info" not in name} == set()
    tops = {name.split("/")[0] for name in files if not name.startswith("..")}
    assert {top for top in tops if "dist-info" not in top} == {"shmrb", "shmrbd"}


def test_commands_are_installed(installed: importlib.metadata.Distribution) -> None:
    commands = {entry.name: entry.value for entry in installed.entry_points}
    assert commands == {"shmrb": "shmrb.cli:main", "shmrbd": "shmrbd.__main__:main"}
    for entry in installed.entry_points:
        assert callable(entry.load())


def test_stub_of_the_native_module_is_current(tmp_path: Path) -> None:
    fresh = tmp_path / "_native.pyi"
    # stubgen's own option for import paths would turn their order around.
    code = f"import sys; sys.path[:] = {sys.path!r}; from nanobind.stubgen import main; main()"
    command = [sys.executable, "-c", code, "-q", "-m", "shmrb._native", "-o", str(fresh)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    committed = CHECKOUT / "shmrb" / "_native.pyi"
    assert fresh.read_text() == committed.read_text(), (
        "the stub is out of date: python -m nanobind.stubgen -m shmrb._native -o shmrb/_native.pyi"
    )


def _requirements() -> list[Requirement]:
    """Everything that some command line of this project may install."""
    extras = PROJECT["project"]["optional-dependencies"]
    texts = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    return [
        Requirement(text) for text in [*texts, *(t for extra in extras.values() for t in extra)]
    ]


def _pins() -> list[Requirement]:
    lines = (CHECKOUT / ".ci" / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def _holds(marker: Marker | None, python: str) -> bool:
    return marker is None or marker.evaluate({"python_version": python, "extra": ""})


@pytest.mark.parametrize("python", PYTHONS)
def test_each_requirement_has_one_pin_that_fits(python: str) -> None:
    pins = [pin for pin in _pins() if _holds(pin.marker, python)]
    names = [canonicalize_name(pin.name) for pin in pins]
    assert sorted(names) == sorted(set(names)), "two pins of one package"
    pinned = {name: next(iter(pin.specifier)) for name, pin in zip(names, pins, strict=True)}
    assert {str(spec) for spec in pinned.values() if spec.operator != "=="} == set()
    for requirement in _requirements():
        if not _holds(requirement.marker, python):
            continue
        version = pinned[canonicalize_name(requirement.name)].version
        assert version in requirement.specifier, f"{requirement} but pinned {version}"


def test_requirements_have_open_lower_bounds() -> None:
    for requirement in _requirements():
        assert [spec.operator for spec in requirement.specifier] == [">="], str(requirement)


def test_each_python_is_announced() -> None:
    project = PROJECT["project"]
    assert project["requires-python"] == f">={PYTHONS[0]}"
    announced = [c.rpartition(" ")[2] for c in project["classifiers"] if ":: 3." in c]
    assert tuple(announced) == PYTHONS


def test_extras_are_those_of_the_readme() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras) == {"bench", "demo", "test", "torchrl", "video"}
    # The tests run the demo, so they need what it needs.
    assert set(extras["demo"]) <= set(extras["test"])


def test_changelog_knows_the_version() -> None:
    changelog = (CHECKOUT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.M)
    assert "## [Unreleased]" in changelog or shmrb.__version__ in released
