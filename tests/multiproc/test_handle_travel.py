"""Handles that travel: by every start method, through queues and files, and across a fork."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers import stamped
from helpers.child import emit, receive
from helpers.procs import Children, until

BODY = 64
PATIENCE_S = 60


@pytest.fixture
def rb() -> Iterator[shmrb.ReplayBuffer]:
    """Eight records of writer 1 in a ring of 64."""
    buffer = shmrb.ReplayBuffer(
        "travels",
        storage=shmrb.SharedStorage(64),
        schema=stamped.schema(BODY),
        format="numpy",
        batch_size=16,
        seed=5,
    )
    buffer.extend(stamped.records(1, 0, 8, BODY))
    yield buffer
    buffer.close()


# ---- children ------------------------------------------------------------------------------------


def use(rb: shmrb.ReplayBuffer, writer: int = 2) -> None:
    """What a child does with a handle that it was given."""
    assert stamped.torn(rb.sample()) == []
    rb.extend(stamped.records(writer, 0, 4, BODY))
    emit(
        "used",
        length=len(rb),
        token=rb._attachment.member.token,
        draws=rb.sample()["index"].tolist(),
        torch="torch" in sys.modules,
    )


def use_pickled(file: str) -> None:
    use(pickle.loads(Path(file).read_bytes()))


def use_from_queue(handles: Any) -> None:
    use(handles.get(timeout=PATIENCE_S))


def use_and_exit(rb: shmrb.ReplayBuffer, how: str) -> None:
    use(rb)
    receive()
    if how == "raise":
        raise RuntimeError("on purpose")
    if how == "close":
        rb.close()
    if how == "hard":
        os._exit(0)


def draw_and_stay(rb: shmrb.ReplayBuffer) -> None:
    emit("drew", draws=rb.sample()["index"].tolist())
    receive()


# ---- tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_given_to_a_child(children: Children, rb: shmrb.ReplayBuffer, method: str) -> None:
    child = children.start(use, method=method, rb=rb)
    seen = child.expect("used")
    child.succeed()
    assert seen["length"] == 12
    assert seen["token"] != rb._attachment.member.token, "a client slot of its own"
    assert len(rb) == 12
    assert set(rb["writer"].tolist()) == {1, 2}


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_through_a_queue(children: Children, rb: shmrb.ReplayBuffer, method: str) -> None:
    handles = multiprocessing.get_context(method).Queue()
    child = children.start(use_from_queue, method=method, handles=handles)
    handles.put(rb)
    assert child.expect("used")["length"] == 12
    child.succeed()
    handles.close()
    handles.join_thread()


def test_to_an_unrelated_interpreter(
    children: Children, rb: shmrb.ReplayBuffer, tmp_path: Path
) -> None:
    """Less than 4 KiB, and torch stays out."""
    frozen = pickle.dumps(rb)
    assert len(frozen) < 4096
    file = tmp_path / "handle"
    file.write_bytes(frozen)
    child = children.start(use_pickled, file=str(file))
    seen = child.expect("used")
    assert (seen["length"], seen["torch"]) == (12, False)
    child.succeed()


def test_to_the_workers_of_a_pool(rb: shmrb.ReplayBuffer) -> None:
    """As torch's DataLoader does it: one handle, several workers, tasks that carry it."""
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        lengths = pool.map(len, [rb] * 6)
    assert lengths == [8] * 6
    until(lambda: sum(client.alive for client in rb.statistics().clients) == 1)


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_to_the_workers_of_a_data_loader(rb: shmrb.ReplayBuffer) -> None:
    """While batches wait that were drawn ahead, which stay where they are."""
    # Here, not above: children that load this file shall not have torch.
    from torch.utils.data import DataLoader, IterableDataset

    class Batches(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[tuple[int, Any]]:
            for _ in range(3):
                batch = handle.sample()
                assert stamped.torn(batch) == []
                yield handle._attachment.member.token, batch["uid"]

    with shmrb.attach("travels", format="numpy", prefetch=2) as handle:
        handle.sample()
        until(lambda: handle.stats()["prefetch_queue_size"] == 2)
        loader = DataLoader(
            Batches(), batch_size=None, num_workers=4, multiprocessing_context="fork"
        )
        drawn = list(loader)
        assert handle.stats()["prefetch_queue_size"] == 2
    tokens = {token for token, _ in drawn}
    assert len(drawn) == 12
    assert len(tokens) == 4, "a client slot each"
    assert {int(uid) for _, uids in drawn for uid in uids} <= set(rb["uid"].tolist())
    until(lambda: sum(client.alive for client in rb.statistics().clients) == 1)


def test_forked_children_draw_their_own(children: Children, rb: shmrb.ReplayBuffer) -> None:
    """A seed makes one handle repeatable; a copy of its stream would give everybody one batch."""
    rb.extend(stamped.records(1, 8, 56, BODY))
    started = [children.start(draw_and_stay, method="fork", rb=rb) for _ in range(3)]
    draws = {tuple(child.expect("drew")["draws"]) for child in started}
    draws.add(tuple(rb.sample()["index"].tolist()))
    assert len(draws) == 4
    assert len(rb.statistics().clients) == 4
    for child in started:
        child.send("end")
        child.succeed()


@pytest.mark.parametrize("how", ["return", "close", "hard", "raise", "kill"])
def test_end_of_a_forked_child_harms_nobody(
    children: Children, rb: shmrb.ReplayBuffer, how: str
) -> None:
    child = children.start(use_and_exit, method="fork", rb=rb, how=how)
    child.expect("used")
    if how == "kill":
        child.kill()
    else:
        child.send("end")
        child.wait()
    assert stamped.torn(rb.sample()) == []
    rb.extend(stamped.records(3, 0, 4, BODY))
    assert len(rb) == 16
    with shmrb.attach("travels", format="numpy") as again:
        assert len(again) == 16
    alive = [client for client in rb.statistics().clients if client.alive]
    assert [client.pid for client in alive] == [os.getpid()]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_fork_while_other_threads_use_the_handle(
    children: Children, rb: shmrb.ReplayBuffer
) -> None:
    """Whatever lock a thread holds at that moment, the child starts with locks of its own."""
    rb.set_sampler(shmrb.SamplerWithoutReplacement())
    stop = threading.Event()

    def sample() -> None:
        while not stop.is_set():
            rb.sample()

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        for _ in range(5):
            child = children.start(draw_and_stay, method="fork", rb=rb)
            child.expect("drew")
            child.send("end")
            child.succeed()
    finally:
        stop.set()
        thread.join()


def test_child_of_a_child(children: Children, rb: shmrb.ReplayBuffer) -> None:
    def middle(rb: shmrb.ReplayBuffer) -> None:
        inner = multiprocessing.get_context("fork").Process(target=use, args=(rb, 4))
        inner.start()
        inner.join()
        assert inner.exitcode == 0
        use(rb, 5)

    child = children.start(middle, method="fork", rb=rb)
    tokens = [child.expect("used")["token"] for _ in range(2)]
    child.succeed()
    assert len({*tokens, rb._attachment.member.token}) >= 2
    assert len(rb) == 16


def test_private_buffer_of_a_parent_is_not_ended_by_its_children(
    children: Children, root: Path
) -> None:
    rb = shmrb.ReplayBuffer(
        storage=shmrb.SharedStorage(8), schema={"x": "int64"}, format="numpy", batch_size=4
    )
    rb.extend({"x": np.arange(8)})
    for method in ("fork", "spawn"):
        child = children.start(draw_and_stay, method=method, rb=rb)
        child.expect("drew")
        child.send("end")
        child.succeed()
        assert rb["x"].tolist() == list(range(8))
    rb.close()
    assert not [name for name in os.listdir(root) if name.startswith("_")]


ENDINGS: dict[str, str] = {
    "without closing": "",
    "by an exception": "raise SystemExit(3)",
    "with a thread that waits": (
        "import threading\n"
        "threading.Thread(target=lambda: rb.sample(1, timeout=60), daemon=True).start()\n"
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("declared", [False, True])
def test_private_buffer_ends_with_its_program(root: Path, ending: str, declared: bool) -> None:
    """Also of a program that never closes it: nothing stays behind.

    A thread that still waits is told that the handle was closed, and the process may end before
    all of that is printed; else nothing is printed.
    """
    schema = "None" if declared else "{'x': 'int64'}"
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "import os, shmrb\n"
        "storage = shmrb.SharedStorage(8)\n"
        f"rb = shmrb.ReplayBuffer(storage=storage, schema={schema}, format='numpy')\n"
        "other = shmrb.ReplayBuffer(storage=storage, schema={'y': 'int64'})\n"
        "named = shmrb.ReplayBuffer('named', storage=storage, schema={'y': 'int64'})\n"
        f"del other\nassert len(os.listdir({str(root)!r})) > 2\n{ENDINGS[ending]}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == (3 if "exception" in ending else 0), done.stderr
    told = "thread" in ending and done.stderr.startswith("Exception in thread")
    assert done.stderr == "" or told, done.stderr
    assert [name for name in os.listdir(root) if not name.startswith(".")] == ["named"]
