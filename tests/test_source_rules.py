"""House rules that can be read off the text of the sources."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from helpers.paths import CHECKOUT

CEILING = 450
# A table of cases may be longer than what it tests.
TEST_CEILING = 600
SOURCES = {".py", ".pyi", ".h", ".cc"}
NATIVE = {".h", ".cc"}

TOP_LEVEL = {
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "bench",
    "daemon",
    "pyproject.toml",
    "shmrb",
    "systemd",
    "tests",
}

# A name that would fit anything says nothing about where a thing belongs.
BANNED_NAMES = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}

# Spelled in pieces, so that this file passes its own rule.
LATER = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")


# Numbers of lists that lie outside the project.
NUMBERED = re.compile(r"\b(cas" + "es?|issu" + r"es?) #?\d+\b", re.IGNORECASE)


def _in_library(path: PurePosixPath) -> bool:
    return path.parts[0] in ("shmrb", "daemon")


DOORWAY = {"bindings.cc", "calls.h", "geometry.h", "reports.h", "tensors.h"}


def memory_order_in_one_header(path: PurePosixPath, text: str) -> str:
    spelled = re.search(r"memory_order|__ATOMIC_\w+|__atomic_\w+|\bvolatile\b", text)
    if path.suffix in NATIVE and path.name != "order.h" and _in_library(path) and spelled:
        return f"spells {spelled[0]}: call a named operation of native/order.h"
    return ""


def python_at_the_doorway(path: PurePosixPath, text: str) -> str:
    included = re.search(r'#\s*include\s*[<"](nanobind/|Python\.h)', text)
    if path.suffix in NATIVE and path.name not in DOORWAY and included:
        return f"includes Python or nanobind: only {', '.join(sorted(DOORWAY))} do"
    return ""


def no_pickle(path: PurePosixPath, text: str) -> str:
    if _in_library(path) and re.search(r"^\s*(import|from) (c?pickle|cloudpickle)\b", text, re.M):
        return "imports pickle: nothing here may run code out of data"
    return ""


def short_file(path: PurePosixPath, text: str) -> str:
    lines = text.count("\n")
    ceiling = TEST_CEILING if path.parts[0] == "tests" else CEILING
    generated = path.name == "_native.pyi"
    if path.suffix in SOURCES and not generated and lines > ceiling:
        return f"has {lines} lines, at most {ceiling}: find the two names in it"
    return ""


def telling_name(path: PurePosixPath, text: str) -> str:
    parts = {*path.parts[:-1], path.stem}
    if _in_library(path) and (banned := parts & BANNED_NAMES):
        return f"is called {sorted(banned)[0]}: name the thing it does"
    return ""


def nothing_for_later(path: PurePosixPath, text: str) -> str:
    if path.suffix in SOURCES and (mark := LATER.search(text)):
        return f"says {mark[0]}: do it, refuse it, or file an issue"
    return ""


def no_sleep_in_tests(path: PurePosixPath, text: str) -> str:
    in_tests = path.parts[0] == "tests" and path.suffix == ".py"
    polling = PurePosixPath("tests/helpers/procs.py")
    if in_tests and path != polling and re.search(r"\bsleep\(", text):
        return "sleeps: wait for an event of the child, or helpers.procs.until"
    return ""


def named_by_behaviour(path: PurePosixPath, text: str) -> str:
    if path.suffix == ".py" and (number := NUMBERED.search(text)):
        return f"says {number[0]!r}: a reader has no such list; say what happens"
    return ""


RULES: list[Callable[[PurePosixPath, str], str]] = [
    memory_order_in_one_header,
    python_at_the_doorway,
    no_pickle,
    short_file,
    telling_name,
    nothing_for_later,
    no_sleep_in_tests,
    named_by_behaviour,
]

BROKEN = {
    memory_order_in_one_header: [
        ("shmrb/native/slots.h", "word.load(std::memory_order_acquire);"),
        ("shmrb/native/slots.h", "__atomic_load_n(word, 2);"),
        ("shmrb/native/bindings.cc", "volatile int flag;"),
        ("shmrb/native/read.h", "std::atomic_thread_fence(std::memory_order_seq_cst);"),
    ],
    python_at_the_doorway: [
        ("shmrb/native/slots.h", "#include <nanobind/nanobind.h>"),
        ("tests/native/slots.cc", "# include <Python.h>"),
    ],
    no_pickle: [
        ("shmrb/wire.py", "import pickle\n"),
        ("daemon/shmrbd/server.py", "def f():\n    from pickle import loads\n"),
    ],
    short_file: [("bench/extend.py", "\n" * (CEILING + 1)), ("shmrb/native/abi.h", "\n" * 500)],
    telling_name: [("shmrb/utils.py", ""), ("shmrb/common/a.py", ""), ("shmrb/manager.py", "")],
    nothing_for_later: [("shmrb/buffer.py", "# TO" + "DO: finish"), ("tests/a.py", "# XX" + "X")],
    no_sleep_in_tests: [
        ("tests/test_a.py", "time.sl" + "eep(1)"),
        ("tests/b.py", "sl" + "eep(1)"),
    ],
    named_by_behaviour: [("tests/a.py", "# Cas" + "e 7: all alike"), ("a.py", "issu" + "e #4")],
}
SOUND = [
    ("shmrb/native/order.h", "__atomic_load_n(word, __ATOMIC_ACQUIRE);"),
    ("shmrb/native/bindings.cc", "#include <nanobind/nanobind.h>"),
    ("shmrb/buffer.py", "def __reduce__(self): ...  # pickled as a name\n" * 100),
    ("tests/helpers/procs.py", "time.sl" + "eep(_POLL_S)"),
    ("tests/native/stress.cc", "std::atomic<bool> go;"),
]


def _files() -> list[PurePosixPath]:
    """What is in the checkout and not ignored by git; an unpacked archive has no git to ask."""
    if not (CHECKOUT / ".git").exists():
        folders = ("shmrb", "daemon", "tests", "bench")
        found = (path for folder in folders for path in (CHECKOUT / folder).rglob("*"))
        names = [path for path in found if path.is_file() and path.suffix in SOURCES]
        return [PurePosixPath(path.relative_to(CHECKOUT)) for path in names]
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    paths = [PurePosixPath(line) for line in listed.stdout.splitlines()]
    return [path for path in paths if (CHECKOUT / path).is_file()]


FILES = _files()


def _text(path: PurePosixPath) -> str:
    return Path(CHECKOUT / path).read_text(errors="replace") if path.suffix in SOURCES else ""


def test_there_is_something_to_check() -> None:
    assert {PurePosixPath("shmrb/errors.py"), PurePosixPath("shmrb/native/order.h")} <= {*FILES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[PurePosixPath, str], str]) -> None:
    complaints = [f"{path} {text}" for path in FILES if (text := rule(path, _text(path)))]
    assert complaints == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_can_fail(rule: Callable[[PurePosixPath, str], str]) -> None:
    for path, text in BROKEN[rule]:
        assert rule(PurePosixPath(path), text), (path, text)
    for path, text in SOUND:
        assert not rule(PurePosixPath(path), text), (path, text)


def test_top_level_is_as_designed() -> None:
    top = {path.parts[0] for path in FILES}
    unexpected = {name for name in top - TOP_LEVEL if not name.startswith(".")}
    assert unexpected == set(), "a new top-level entry needs a place in the design first"
