"""Spin searches every interleaving of the models in this folder, with kills at every step.

Each model must hold, and each of its mutants (one rule of the protocol broken by a -D flag, listed
in the model's head) must fail: a model that forgives everything would prove nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDER = Path(__file__).parent

ASSERTION = "assertion violated"
STUCK = "invalid end state"

# Small searches: compiling without optimisation saves more than the search loses.
QUICK = ("-O0", "-DMEMLIM=1500")
LONG = ("-O2", "-DCOLLAPSE", "-DMEMLIM=6000")
DEPTH = 100_000
HASH_TABLE_BITS = 19  # it grows as needed; the default of 24 costs more than most searches


class Mutant(NamedTuple):
    """A broken rule: the flags of a search that finds it, and how it shows."""

    flags: str
    shows: str = ASSERTION


class Model(NamedTuple):
    """The searches of one model, by flags."""

    holds: tuple[str, ...]
    holds_long: tuple[str, ...]
    mutants: dict[str, Mutant]


# A start at which the default error buffer is too narrow for the last call before min_size.
_START = "-DPRODUCERS=1 -DKILLS=0 -DCAPACITY=8 -DROWS=4 -DSPI=2 -DBATCH=2 -DMIN_SIZE=5 -DMIN_DIFF=5"
_STAMPS = "-DOBSERVER -DC=1 -DWRITES=2 -DKILLS=0"
_ONE_PUBLISHER = "-DREADER -DPUBLISHERS=1 -DPUBLISHES=4 -DKILLS=0"

MODELS = {
    "claim": Model(
        holds=("",),
        holds_long=("-DREAPER", "-DWRITES=2 -DKILLS=2"),
        mutants={
            "NO_PROOF": Mutant(""),
            "NO_LOOK": Mutant(""),
            "RELEASE_FIRST": Mutant(""),
            "MARK_LATE": Mutant(""),
            "NO_VOID": Mutant(""),
            "UNVOID": Mutant(""),
            "NO_REVISION": Mutant(""),
            "REVISION_LATE": Mutant(""),
            "WORD_FIRST": Mutant(""),
        },
    ),
    "claims": Model(
        holds=("-DROUNDS=1",),
        holds_long=("-DROUNDS=2 -DKILLS=2",),
        mutants={
            "KEEP_CLAIMS": Mutant("", STUCK),
            "FORGET_CLAIM": Mutant("", STUCK),
            "WAIT_ANY": Mutant("", STUCK),
        },
    ),
    "lane": Model(
        holds=(
            "-DWRITERS=2",
            "-DREADER",
            "-DREADER -DEMPTIES=2 -DKILLS=0",
            "-DUPDATER",
            "-DFRESH -DOBSERVER",
            _STAMPS,
        ),
        holds_long=(
            "-DWRITERS=2 -DEMPTIES=2 -DKILLS=2",
            "-DREADER -DEMPTIES=2 -DKILLS=2",
            "-DREADER -DWRITERS=2",
            "-DOBSERVER -DC=1 -DWRITES=3 -DKILLS=2",
            "-DOBSERVER -DUPDATER -DC=1",
        ),
        mutants={
            "NO_PROOF": Mutant(""),
            "NO_REPLAY": Mutant(""),
            "NO_JOURNAL": Mutant(""),
            "COUNT_FIRST": Mutant(""),
            "UNLOCK_FIRST": Mutant(""),
            "HEAD_FIRST": Mutant("-DREADER"),
            "RAISE_HEAD_FIRST": Mutant("-DREADER -DEMPTIES=2 -DKILLS=0"),
            "LOAD_FLOOR_FIRST": Mutant("-DREADER -DEMPTIES=2 -DKILLS=0"),
            "NO_LIVENESS": Mutant("-DUPDATER"),
            "ADD_ONE": Mutant(_STAMPS),
            "STAMP_BUSY": Mutant(_STAMPS),
            "STAMP_RANGE_FIRST": Mutant(_STAMPS),
            "ROWS_ONCE": Mutant("-DOBSERVER"),
        },
    ),
    "lock": Model(
        holds=("-DROUNDS=1 -DDEADLINE", "-DKILLS=0"),
        holds_long=("-DROUNDS=2 -DDEADLINE", "-DROUNDS=2 -DKILLS=2"),
        mutants={
            "NO_PROOF": Mutant(""),
            "NO_REPAIR": Mutant(""),
            "LOSE_BIT": Mutant("-DKILLS=0"),
            "TAKE_BARE": Mutant(""),
            "NO_COMPARE": Mutant(""),
            "NO_WAKE": Mutant(""),
            "NO_TIMEOUT": Mutant("", STUCK),
            "GIVE_UP": Mutant("-DKILLS=0"),
        },
    ),
    "bell": Model(
        holds=("", "-DSEMAPHORES=1 -DKILLS=0"),
        holds_long=(
            "-DSEMAPHORES=1",
            "-DSEMAPHORES=2",
            "-DBRINGS=2 -DWANTS=2",
            "-DBRINGS=2 -DWANTS=2 -DSEMAPHORES=1",
            "-DBRINGS=2 -DWANTS=2 -DSEMAPHORES=2",
        ),
        mutants={
            "NO_RECHECK": Mutant(""),
            "LOOK_FIRST": Mutant(""),
            "LEAVE_ALWAYS": Mutant("-DBRINGS=2 -DWANTS=2 -DKILLS=0"),
            "SAME_EVENT": Mutant(""),
            "TWO_STEPS": Mutant("-DBRINGS=2 -DWANTS=2 -DKILLS=0"),
            "WAKE_ONE": Mutant("-DBRINGS=2 -DWANTS=2 -DKILLS=0"),
            "NO_CAP": Mutant("", STUCK),
            "ONE_PAIR": Mutant("-DBRINGS=2 -DWANTS=2 -DKILLS=0 -DSEMAPHORES=1"),
        },
    ),
    "publish": Model(
        holds=("-DKILLS=2", "-DREADER -DFRESH -DPUBLISHERS=2", _ONE_PUBLISHER),
        holds_long=(
            "-DREADER -DIN_TURN -DKILLS=2",
            "-DREADER -DIN_TURN -DKILLS=3 -DFRESH",
            "-DREADER -DPUBLISHERS=2 -DPUBLISHES=2 -DKILLS=2",
        ),
        mutants={
            "NO_LOOK": Mutant(_ONE_PUBLISHER),
            "ANY": Mutant(_ONE_PUBLISHER),
            "RING": Mutant("-DKILLS=2 -DIN_TURN"),
            "COUNT_BUSY": Mutant("-DKILLS=2 -DIN_TURN"),
            "NO_PROOF": Mutant("-DPUBLISHERS=2"),
        },
    ),
    "consume": Model(
        holds=("", "-DHOLD"),
        holds_long=("-DDRAWS=2 -DKILLS=2", "-DSLOTS=2 -DHOLD -DKILLS=2"),
        mutants={
            "FREE_FIRST": Mutant(""),
            "NO_REBUILD": Mutant(""),
            "NO_JOURNAL": Mutant(""),
            "NO_REPLAY": Mutant(""),
            "CHARGE_FIRST": Mutant(""),
            "NO_SETTLE": Mutant(""),
            "SETTLE_ALL": Mutant(""),
            "KEEP_MEMBER": Mutant(""),
        },
    ),
    "limiter": Model(
        holds=(_START, "-DMIN_SIZE=1 -DWINDOW=4", "-DPRODUCERS=1 -DCONSUMERS=2"),
        holds_long=(
            "",
            "-DMIN_SIZE=4",
            "-DMIN_SIZE=4 -DPRODUCERS=1 -DCONSUMERS=2",
        ),
        mutants={
            "NARROW": Mutant("", STUCK),
            "NEVER_OPEN": Mutant("-DMIN_SIZE=1 -DWINDOW=4", STUCK),
            "OPEN_AT_DRAW": Mutant(_START, STUCK),
            "STAYS_OPEN": Mutant("-DMIN_SIZE=1 -DWINDOW=4"),
            "KEEP_CHARGE": Mutant("-DWINDOW=2"),
            "NO_RECLAIM": Mutant(""),
            "NO_MARKED": Mutant(""),
            "CLAIM_FIRST": Mutant(""),
            "STALE_ONCE": Mutant(""),
        },
    ),
    "tree": Model(
        holds=("-DWRITES=1",),
        holds_long=("-DDRAWS=2", "-DKILLS=2"),
        mutants={
            "NO_DIRTY": Mutant(""),
            "DIRTY_LATE": Mutant(""),
            "NO_REBUILD": Mutant(""),
            "NO_STALE": Mutant(""),
            "STALE_ONCE": Mutant("-DWRITES=1"),
            "FORGET": Mutant("-DWRITES=1 -DKILLS=2"),
            "LEAF_FIRST": Mutant(""),
            "NO_COMPARE": Mutant(""),
            "EARLY_LOOK": Mutant(""),
        },
    ),
}

HOLDS = [(name, flags) for name, model in MODELS.items() for flags in model.holds]
HOLDS_LONG = [(name, flags) for name, model in MODELS.items() for flags in model.holds_long]
MUTANTS = [(name, mutant) for name, model in MODELS.items() for mutant in model.mutants]


def the(program: str, package: str) -> str:
    """The path of a program that these tests cannot do without."""
    path = shutil.which(program)
    if path is None:
        pytest.fail(f"{program} is not installed. Install it: apt-get install {package}")
    return path


def run(command: list[str], folder: Path) -> str:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}{result.stderr}"
    return result.stdout


def search(model: str, flags: str, build: tuple[str, ...], folder: Path) -> str:
    """Has Spin search one model; the verifier's report."""
    spin = the("spin", "spin")
    compiler = the("gcc", "gcc")
    # Spin's preprocessing step looks for included files beside the model.
    run([spin, *flags.split(), "-a", str(FOLDER / f"{model}.pml")], folder)
    run([compiler, "-w", "-DSAFETY", "-DNOCLAIM", *build, "-o", "pan", "pan.c"], folder)
    return run(["./pan", f"-m{DEPTH}", f"-w{HASH_TABLE_BITS}"], folder)


def errors(report: str) -> int:
    found = re.search(r"errors: (\d+)", report)
    assert found, report
    return int(found[1])


def assert_holds(report: str) -> None:
    assert errors(report) == 0, report
    assert "Full statespace search" in report, report
    for sign in ("max search depth too small", "Search not completed", "out of memory"):
        assert sign not in report, report


# Spin keeps one core busy for up to half a minute; on a loaded machine that is minutes.
@pytest.mark.watchdog(600)
@pytest.mark.parametrize(("model", "flags"), HOLDS)
def test_holds_whatever_is_killed(model: str, flags: str, tmp_path: Path) -> None:
    assert_holds(search(model, flags, QUICK, tmp_path))


@pytest.mark.long
@pytest.mark.watchdog(1200)
@pytest.mark.parametrize(("model", "flags"), HOLDS_LONG)
def test_holds_with_wider_bounds(model: str, flags: str, tmp_path: Path) -> None:
    assert_holds(search(model, flags, LONG, tmp_path))


@pytest.mark.watchdog(600)
@pytest.mark.parametrize(("model", "name"), MUTANTS)
def test_a_broken_rule_is_found(model: str, name: str, tmp_path: Path) -> None:
    mutant = MODELS[model].mutants[name]
    report = search(model, f"-D{name} {mutant.flags}", QUICK, tmp_path)
    assert errors(report) > 0, report
    assert mutant.shows in report, report


@pytest.mark.parametrize("model", MODELS)
def test_the_head_lists_the_mutants(model: str) -> None:
    text = (FOLDER / f"{model}.pml").read_text()
    listed = re.findall(r"^ \*   ([A-Z_]+)  ", text.partition("*/")[0], re.MULTILINE)
    assert sorted(listed) == sorted(MODELS[model].mutants)
    for name in listed:
        assert re.search(rf"#if(def|ndef| !?defined).*\b{name}\b", text), f"{name} changes nothing"
