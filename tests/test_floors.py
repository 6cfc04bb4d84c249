"""A module imports from its own floor and lower ones; some imports belong to one module alone.

Floors are those of CONTRIBUTING.md. Every import statement counts, also one inside a function; only
the rule against cycles looks at what is executed when a module is loaded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.paths import CHECKOUT

# The longest entry that is the module or a package around it decides.
FLOORS = {
    "shmrb.errors": 0,
    "shmrb.boundaries": 1,
    "shmrb.components": 1,
    "shmrb.description": 1,
    "shmrb.dtypes": 1,
    "shmrb.fields": 1,
    "shmrb.likeness": 1,
    "shmrb.limiters": 1,
    "shmrb.requirements": 1,
    "shmrb.results": 1,
    "shmrb.schema": 1,
    "shmrb.slicing": 1,
    "shmrb.spaces": 1,
    "shmrb.spec": 1,
    "shmrb.steps": 1,
    "shmrb.wire": 1,
    "shmrb._native": 2,
    "shmrb.core": 2,
    "shmrb.segment": 3,
    "shmrb.planner": 4,
    "shmrb.anchoring": 5,
    "shmrb.appender": 5,
    "shmrb.attached": 5,
    "shmrb.attachment": 5,
    "shmrb.batches": 5,
    "shmrb.buffer": 5,
    "shmrb.cells": 5,
    "shmrb.channel": 5,
    "shmrb.client": 5,
    "shmrb.consumer": 5,
    "shmrb.consuming": 5,
    "shmrb.copies": 5,
    "shmrb.gathering": 5,
    "shmrb.handles": 5,
    "shmrb.lanes": 5,
    "shmrb.leases": 5,
    "shmrb.limits": 5,
    "shmrb.nesting": 5,
    "shmrb.opening": 5,
    "shmrb.parameters": 5,
    "shmrb.parts": 5,
    "shmrb.placing": 5,
    "shmrb.prefetching": 5,
    "shmrb.priorities": 5,
    "shmrb.producer": 5,
    "shmrb.records": 5,
    "shmrb.refreshing": 5,
    "shmrb.schedules": 5,
    "shmrb.slotwise": 5,
    "shmrb.stepping": 5,
    "shmrb.tensors": 5,
    "shmrb.vector": 5,
    "shmrb.predicates": 5,
    "shmrb.query": 5,
    "shmrb.trajectories": 5,
    "shmrb.transforms": 5,
    "shmrb.trees": 5,
    "shmrb.updates": 5,
    "shmrb.views": 5,
    "shmrb.waiting": 5,
    "shmrb.writeback": 5,
    "shmrb.drawn": 5,
    "shmrb.ends": 5,
    "shmrb.orders": 5,
    "shmrb.returns": 5,
    "shmrb.sampling": 5,
    "shmrb.sequences": 5,
    "shmrb.slices": 5,
    "shmrb.windowing": 5,
    "shmrb.windows": 5,
    "shmrb": 6,
    "shmrb.cli": 6,
    "shmrb.demo": 6,
    "shmrbd": 6,
}

# What only these modules may import, and why it is one place.
SOLE_IMPORTERS = {
    "shmrb._native": {"shmrb.core"},
    "mmap": {"shmrb.segment.mapping"},
    "posix_ipc": {"shmrb.segment.doorbell"},
    "shmrbd": {"shmrb.cli"},
}

TENSORS = {"torch", "tensordict"}
# Processes that learn, and load torch in any case, may do so when they start.
TENSORS_AT_TOP = {f"shmrb.demo.{name}" for name in ("dqn", "sac", "rdqn", "training")}
# Where torch is imported at all, in a function: the floors that return tensors to the user.
TENSORS_FLOOR = 5

# The daemon builds on bytes and words, not on what decides or serves users.
DAEMON_MAY_USE_UP_TO = 3


class Import(NamedTuple):
    """One import of `target`, as seen in a module."""

    target: str
    line: int
    at_load: bool
    for_types: bool


def _floor_of(module: str) -> int | None:
    """The floor of a module of this project, None if it has none yet."""
    parts = module.split(".")
    if module != "shmrb" and parts[0] == "shmrb" and ".".join(parts[:2]) not in FLOORS:
        return None
    while parts:
        if (floor := FLOORS.get(".".join(parts))) is not None:
            return floor
        parts.pop()
    return None


class _Imports(ast.NodeVisitor):
    """Collects the imports of one module, relative ones resolved."""

    def __init__(self, module: str, is_package: bool, known: set[str]) -> None:
        self.package = module if is_package else module.rpartition(".")[0]
        self.known = known
        self.at_load = True
        self.for_types = False
        self.found: list[Import] = []

    def _add(self, target: str, node: ast.AST) -> None:
        line = getattr(node, "lineno", 0)
        self.found.append(Import(target, line, self.at_load, self.for_types))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before, self.at_load = self.at_load, False
        self.generic_visit(node)
        self.at_load = before

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_If(self, node: ast.If) -> None:
        if not ast.unparse(node.test).endswith("TYPE_CHECKING"):
            self.generic_visit(node)
            return
        before, self.for_types = self.for_types, True
        for statement in node.body:
            self.visit(statement)
        self.for_types = before
        for statement in node.orelse:
            self.visit(statement)

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            self._add(name.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            above = self.package.split(".")
            above = above[: len(above) - (node.level - 1)]
            base = ".".join([*above, base] if base else above)
        for name in node.names:
            # `from shmrb import errors` names a module, `from shmrb.errors import X` does not.
            inner = f"{base}.{name.name}"
            # The version is a constant of the package, and no way into the upper floors.
            if inner == "shmrb.__version__":
                continue
            self._add(inner if inner in self.known else base, node)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        if called.endswith(("import_module", "__import__")) and node.args:
            word = node.args[0]
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                name = word.value
                self._add(self.package + name if name.startswith(".") else name, node)
        self.generic_visit(node)


def _imports(module: str, source: str, known: set[str], is_package: bool = False) -> list[Import]:
    visitor = _Imports(module, is_package, known)
    visitor.visit(ast.parse(source))
    return visitor.found


def _within(target: str, package: str) -> bool:
    return target == package or target.startswith(package + ".")


def complaints(module: str, source: str, known: set[str], is_package: bool = False) -> list[str]:
    """Every broken rule in one module's text, one line each."""
    floor = _floor_of(module)
    if floor is None:
        return [f"{module} has no floor: give it one in tests/test_floors.py"]
    found = []
    for target, line, at_load, for_types in _imports(module, source, known, is_package):
        where = f"{module}:{line} imports {target}"
        ours = target.split(".")[0] in ("shmrb", "shmrbd")
        target_floor = _floor_of(target) if ours else None
        if ours and target_floor is None:
            found.append(f"{where}, which has no floor")
        elif target_floor is not None and target_floor > floor:
            found.append(f"{where}, floor {target_floor} from floor {floor}")
        for sole, importers in SOLE_IMPORTERS.items():
            inside = _within(module, sole)
            allowed = any(_within(module, importer) for importer in importers)
            if _within(target, sole) and not inside and not allowed:
                found.append(f"{where}, which only {sorted(importers)} may")
        if target.split(".")[0] in TENSORS and not for_types:
            if floor < TENSORS_FLOOR or _within(module, "shmrbd"):
                found.append(f"{where}, which works without torch")
            elif at_load and module not in TENSORS_AT_TOP:
                found.append(f"{where} when it is loaded: import it in the function that needs it")
        of_library = ours and not _within(target, "shmrbd")
        if _within(module, "shmrbd") and of_library and (target_floor or 0) > DAEMON_MAY_USE_UP_TO:
            found.append(f"{where}, floor {target_floor}: the daemon uses 0 to 3")
    return found


def _cycle(graph: dict[str, set[str]]) -> list[str]:
    """A path of modules that ends where it begins, or an empty list."""
    finished: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in finished:
            return []
        for target in sorted(graph.get(module, ())):
            if found := walk(target, [*path, module]):
                return found
        finished.add(module)
        return []

    for start in sorted(graph):
        if found := walk(start, []):
            return found
    return []


def _sources() -> Iterator[tuple[str, Path, bool]]:
    for package_root in (CHECKOUT / "shmrb", CHECKOUT / "daemon" / "shmrbd"):
        for path in sorted(package_root.rglob("*.py")):
            parts = list(path.relative_to(package_root.parent).with_suffix("").parts)
            is_package = parts[-1] == "__init__"
            yield ".".join(parts[:-1] if is_package else parts), path, is_package


MODULES = list(_sources())
KNOWN = {module for module, _, _ in MODULES} | {"shmrb._native"}


def test_there_is_something_to_check() -> None:
    assert {"shmrb", "shmrb.errors", "shmrb.core", "shmrbd"} <= KNOWN


@pytest.mark.parametrize(("module", "path", "is_package"), MODULES, ids=[m[0] for m in MODULES])
def test_imports_go_down(module: str, path: Path, is_package: bool) -> None:
    assert complaints(module, path.read_text(), KNOWN, is_package) == []


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {
        module: {
            found.target
            for found in _imports(module, path.read_text(), KNOWN, is_package)
            if found.at_load and not found.for_types and found.target in KNOWN - {module}
        }
        for module, path, is_package in MODULES
    }
    assert _cycle(graph) == []


WRONG = [
    ("shmrb.schema", "from .segment import layout", "floor 3 from floor 1"),
    ("shmrb.schema", "from . import buffer", "floor 5 from floor 1"),
    ("shmrb.schema", "import shmrb", "floor 6 from floor 1"),
    ("shmrb.segment.names", "def f():\n    from shmrb.planner.limits import x", "floor 4 from"),
    ("shmrb.segment.names", "from ..attachment import Attachment", "floor 5 from floor 3"),
    ("shmrb.segment.member", "from .. import _native", "only ['shmrb.core'] may"),
    ("shmrb.buffer", "from shmrb._native import Segment", "only ['shmrb.core'] may"),
    ("shmrb.buffer", "importlib.import_module('._native', 'shmrb')", "only ['shmrb.core'] may"),
    ("shmrb.segment.layout", "import mmap", "only ['shmrb.segment.mapping'] may"),
    ("shmrb.attachment", "import posix_ipc", "only ['shmrb.segment.doorbell'] may"),
    ("shmrb.buffer", "from shmrbd.registry import Registry", "only ['shmrb.cli'] may"),
    ("shmrb.records", "import torch", "import it in the function"),
    ("shmrb.records", "try:\n    from tensordict import TensorDict\nfinally: pass", "the function"),
    ("shmrb.cli.show", "import torch.nn", "import it in the function"),
    ("shmrb.segment.member", "def f():\n    import torch", "works without torch"),
    ("shmrbd.server", "def f():\n    import torch", "works without torch"),
    ("shmrbd.server", "from shmrb.attachment import attach", "the daemon uses 0 to 3"),
    ("shmrbd.server", "from shmrb.planner import limits", "the daemon uses 0 to 3"),
    ("shmrbd.server", "import shmrb", "the daemon uses 0 to 3"),
    ("shmrb.utils", "", "has no floor"),
    ("shmrb.buffer", "from shmrb import utils", "has no floor"),
]
RIGHT = [
    ("shmrb.core", "from . import _native"),
    ("shmrb.core", "from ._native import Rng"),
    ("shmrb.schema", "from .dtypes import DTYPES\nfrom . import errors"),
    ("shmrb.records", "if TYPE_CHECKING:\n    import torch\ndef f():\n    import tensordict"),
    ("shmrb.demo.dqn", "import torch"),
    ("shmrb.cli.serve", "from shmrbd.__main__ import main"),
    ("shmrbd.server", "from shmrb.segment.directory import Root\nfrom shmrb import __version__"),
]
_SYNTHETIC = {*FLOORS, "shmrb.segment.layout", "shmrb.planner.limits", "shmrb.utils"}


@pytest.mark.parametrize(("module", "source", "expected"), WRONG)
def test_rules_can_fail(module: str, source: str, expected: str) -> None:
    assert any(expected in line for line in complaints(module, source, _SYNTHETIC))


@pytest.mark.parametrize(("module", "source"), RIGHT)
def test_rules_let_good_imports_pass(module: str, source: str) -> None:
    assert complaints(module, source, _SYNTHETIC) == []


def test_cycle_is_found() -> None:
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert _cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
