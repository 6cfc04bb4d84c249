"""Records as the demo's collectors write them, and whole demos as programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import shmrb
from shmrb.demo import recipe
from shmrb.demo.job import DQN, Job
from shmrb.demo.seals import Stamper
from shmrb.segment import layout, names

from .procs import Child, until

SCHEMA = recipe.record_schema("CartPole-v1", Job("CartPole-v1", DQN))


def demo_records(
    identities: Iterable[tuple[int, int]], seed: int = 0, schema: shmrb.Schema = SCHEMA
) -> dict[str, Any]:
    """Sealed records of random content, one for each (collector, number)."""
    chance = np.random.default_rng(seed)
    pairs = list(identities)
    leaves: dict[tuple[str, ...], np.ndarray] = {}
    for field in schema.fields:
        shape = (len(pairs), *field.shape)
        raw = chance.integers(0, 2, shape) if field.dtype == "bool" else chance.normal(size=shape)
        leaves[field.path] = (raw * (1 if field.dtype == "bool" else 100)).astype(field.dtype)
    for row, pair in enumerate(pairs):
        leaves["collector",][row], leaves["number",][row] = pair
    stamper = Stamper(schema)
    fields = [leaf for path, leaf in leaves.items() if path != ("seal",)]
    for row in range(len(pairs)):
        leaves["seal",][row] = stamper.seal(leaf[row] for leaf in fields)
    record: dict[str, Any] = {"next": {}}
    for path, leaf in leaves.items():
        (record["next"] if path[0] == "next" else record)[path[-1]] = leaf
    return record


def as_numpy(tree: Any) -> Any:
    """A published tree as a reader in numpy format gets it."""
    if isinstance(tree, dict):
        return {name: as_numpy(leaf) for name, leaf in tree.items()}
    return tree.numpy()


class RunningDemo:
    """`shmrb demo` as a program, and what belongs to it outside of its own process."""

    def __init__(self, child: Child, collectors: int) -> None:
        self.child = child
        self._collectors = collectors
        self.processes: list[psutil.Process] = []
        self.base = Path()
        self.semaphores: list[Path] = []

    def wait_until_at_work(self) -> None:
        """Waits until every process of it has attached."""
        until(lambda: self.child.exit_code is not None or self._is_at_work())
        assert self.child.exit_code is None, self.child.report()

    def _is_at_work(self) -> bool:
        self.processes = psutil.Process(self.child.pid).children(recursive=True)
        if len(self.named("collector")) < self._collectors:
            return False
        self.base = Path(self.named("collector")[0].cwd())
        metas = list(self.base.glob("segments/demo+*/meta"))
        if len(metas) < 2:
            return False
        uuids = [layout.parse_meta(meta.read_bytes(), str(meta)).uuid for meta in metas]
        self.semaphores = [
            Path(names.semaphore_file(name)) for u in uuids for name in names.semaphore_names(u)
        ]
        with shmrb.attach(
            recipe.BUFFER, root=str(self.base / "segments"), format="numpy", role="observer"
        ) as buffer:
            return len(buffer) > 0

    def named(self, name: str) -> list[psutil.Process]:
        """Its processes that run the module of this name."""
        found = []
        for process in self.processes:
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if any(word.rpartition(".")[2] == name for word in words):
                found.append(process)
        return found

    def wait_until_nothing_is_left(self) -> None:
        """Waits for the end of its processes, its directory and its semaphores."""
        until(lambda: not any(map(_runs, self.processes)))
        until(lambda: not self.base.exists())
        assert [path for path in self.semaphores if path.exists()] == []


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


StartDemo = Callable[..., RunningDemo]
