"""The front door: what `import shmrb` promises, and what it costs."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import shmrb

# The names of the README and of the design; others may join them in `__all__`.
PROMISED = {
    "BufferSpec",
    "MemmapStorage",
    "MinSize",
    "Parameters",
    "PrioritizedSampler",
    "Queue",
    "RandomSampler",
    "RateLimiter",
    "ReplayBuffer",
    "SamplerWithoutReplacement",
    "Schema",
    "Sequence",
    "SharedStorage",
    "ShmrbError",
    "Transition",
    "__version__",
    "attach",
    "connect",
    "schema_from_env",
    "schema_like",
}


def _fresh(code: str, cwd: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new interpreter that sees the same packages as this one."""
    prelude = f"import sys; sys.path[:] = {sys.path!r}\n"
    command = [sys.executable, *flags, "-c", prelude + code]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_all_is_sorted_and_complete() -> None:
    assert shmrb.__all__ == sorted(shmrb.__all__)
    assert set(shmrb.__all__) >= PROMISED
    assert set(shmrb.__all__) <= set(dir(shmrb))


def test_namespace_holds_nothing_else(tmp_path: Path) -> None:
    # In a fresh interpreter: other tests import submodules, which become attributes of the package.
    code = (
        "import json, types, shmrb\n"
        "for name in shmrb.__all__: getattr(shmrb, name)\n"
        "modules = [n for n, v in vars(shmrb).items() if isinstance(v, types.ModuleType)]\n"
        "print(json.dumps([sorted(vars(shmrb)), modules]))"
    )
    done = _fresh(code, tmp_path)
    assert done.returncode == 0, done.stderr
    names, modules = json.loads(done.stdout)
    public = {name for name in names if not name.startswith("_")}
    assert public - set(shmrb.__all__) - set(modules) == {"annotations"} & public


@pytest.mark.parametrize("name", sorted(set(shmrb.__all__) - {"__version__"}))
def test_public_object_is_documented(name: str) -> None:
    value = getattr(shmrb, name)
    assert not isinstance(value, types.ModuleType), "promise objects, not modules"
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return
    missing = [] if _own_docstring(value) else [name]
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            if attribute.startswith("_"):
                continue
            if isinstance(member, (staticmethod, classmethod)):
                member = member.__func__
            described = inspect.isfunction(member) or isinstance(member, property)
            if described and not inspect.getdoc(getattr(value, attribute)):
                missing.append(f"{name}.{attribute}")
    assert missing == []


def _own_docstring(value: object) -> bool:
    """Whether somebody wrote one: a dataclass without gets its signature as docstring."""
    text = value.__doc__ or ""
    return bool(text) and not text.startswith(f"{getattr(value, '__name__', '')}(")


def test_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        shmrb.no_such_name  # noqa: B018


def test_import_loads_neither_torch_nor_tensordict(tmp_path: Path) -> None:
    code = (
        "import shmrb, sys\n"
        "for name in shmrb.__all__: getattr(shmrb, name)\n"
        "print(sorted({'torch', 'tensordict', 'gymnasium', 'typer', 'rich'} & set(sys.modules)))"
    )
    done = _fresh(code, tmp_path, "-W", "error")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_missing_native_part_is_told_with_the_build_command(tmp_path: Path) -> None:
    source = Path(shmrb.__file__).parent
    without_native = shutil.ignore_patterns("_native*.so", "__pycache__", "native")
    shutil.copytree(source, tmp_path / "shmrb", ignore=without_native)
    done = _fresh(f"sys.path.insert(0, {str(tmp_path)!r})\nimport shmrb", tmp_path)
    assert done.returncode == 1
    last_lines = done.stderr[-1500:]
    assert "ImportError" in last_lines
    assert "_native" in last_lines
    assert "pip install" in last_lines
    assert str(tmp_path / "shmrb") in last_lines, "the message says which copy was imported"
