"""Memory that stays where it is: with many writers, with many calls, with many clients."""

from __future__ import annotations

import gc
import resource
import shutil
from pathlib import Path

import numpy as np
import psutil
import pytest

import shmrb
from helpers import stamped
from helpers.child import emit, receive
from helpers.procs import Children
from shmrb.segment import doorbell
from shmrb.segment.directory import Root

BODY = 4096
MIB = 1 << 20
LONG = [pytest.mark.long, pytest.mark.watchdog(1800)]


def private_bytes(pid: int) -> int:
    """What this process alone holds: shared pages and files are not counted."""
    return int(psutil.Process(pid).memory_full_info().uss)


def write_on_and_on(buffer: str, writer: int) -> None:
    rb = shmrb.attach(buffer, format="numpy", timeout=30)
    chunk = stamped.records(writer, 0, 16, BODY)
    emit("ready")
    while True:
        rb.extend(chunk)


def attach_on_and_on(buffer: str, times: int) -> None:
    for number in range(times):
        with shmrb.attach(buffer, format="numpy", timeout=30) as rb:
            rb.sample(1) if number % 2 else rb.add({"x": number})
        if number == times // 10:
            gc.collect()
            emit("warm")
            receive()
    gc.collect()
    emit("done")
    receive()


def draw_and_keep(buffer: str, batches: int) -> None:
    """With hardly any descriptors to spare."""
    with shmrb.attach(buffer, format="numpy", timeout=30) as rb:
        before = psutil.Process().num_fds()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        kept = [rb.sample(2) for _ in range(batches)]
        emit("kept", batches=len(kept), more=psutil.Process().num_fds() - before)


def lose_its_files(buffer: str) -> None:
    """Ends in order although somebody removes the buffer by hand."""
    rb = shmrb.attach(buffer, format="numpy", timeout=30)
    emit("attached")
    receive()
    emit("drew", records=len(rb.sample(4)["x"]))


def test_many_writers_and_a_slow_reader(children: Children) -> None:
    """No queue grows in any client; what is too much is overwritten."""
    rb = shmrb.ReplayBuffer(
        "flat", storage=shmrb.SharedStorage(256), schema=stamped.schema(BODY), format="numpy"
    )
    writers = [
        children.start(write_on_and_on, method="fork", buffer="flat", writer=i) for i in range(4)
    ]
    for writer in writers:
        writer.expect("ready")
    before = wait_for_writes(rb, 20_000) and [private_bytes(writer.pid) for writer in writers]
    wait_for_writes(rb, 40_000)
    after = [private_bytes(writer.pid) for writer in writers]
    assert max(a - b for a, b in zip(after, before, strict=True)) < MIB
    assert 256 - 4 * 16 <= len(rb) <= 256, "all but what is being written"
    assert stamped.torn(rb.sample(64)) == []
    rb.close()


def wait_for_writes(rb: shmrb.ReplayBuffer, count: int) -> bool:
    while rb.write_count < count:
        rb.sample(1, timeout=10)
    return True


@pytest.mark.parametrize("calls", [2_000, pytest.param(1_000_000, marks=LONG)])
@pytest.mark.parametrize("format", ["numpy", "torch"])
def test_many_calls(calls: int, format: str) -> None:
    """Nothing is remembered for a call that is over."""
    rb = shmrb.ReplayBuffer(
        storage=shmrb.SharedStorage(64),
        schema={"x": "int64", "n": {"w": ("float32", 8)}},
        sampler=shmrb.PrioritizedSampler(alpha=0.6, beta=0.4),
        format=format,
        batch_size=1,
    )
    record = {"x": 1, "n": {"w": np.zeros(8, np.float32)}}

    def call(times: int) -> None:
        for _ in range(times):
            rb.add(record)
            batch = rb.sample()
            rb.sample(out=batch)
            rb.update_priority(batch, 2.0)
            rb.update_if_present(batch, patch={"x": [7]}, version=1)
            rb.set_at_("x", [5], [0])
            rb.generations_of(batch["index"])
            len(rb)

    call(calls // 4)
    gc.collect()
    before = private_bytes(psutil.Process().pid)
    call(calls)
    gc.collect()
    assert private_bytes(psutil.Process().pid) - before < 2 * MIB
    rb.close()


@pytest.mark.parametrize("times", [200, pytest.param(10_000, marks=LONG)])
def test_many_clients_come_and_go(children: Children, times: int) -> None:
    """Neither the client entries nor the process that attaches keep anything."""
    rb = shmrb.ReplayBuffer(
        "visited", storage=shmrb.SharedStorage(64), schema={"x": "int64"}, format="numpy"
    )
    rb.add({"x": 0})
    child = children.start(attach_on_and_on, method="fork", buffer="visited", times=times)
    child.expect("warm")
    before = private_bytes(child.pid)
    descriptors = psutil.Process(child.pid).num_fds()
    child.send("on")
    child.expect("done")
    assert private_bytes(child.pid) - before < 2 * MIB
    assert psutil.Process(child.pid).num_fds() == descriptors
    stats = rb.statistics()
    assert len(stats.clients) == 1
    assert stats.counters["write_calls"] == 1 + times // 2
    child.send("end")
    child.succeed()
    rb.close()


def test_attached_buffers_cost_one_descriptor_each() -> None:
    """To ask who lives; mappings hold none."""
    rb = shmrb.ReplayBuffer(
        "many", storage=shmrb.SharedStorage(64), schema={"x": "int64"}, format="numpy"
    )
    before = psutil.Process().num_fds()
    handles = [shmrb.attach("many", format="numpy") for _ in range(20)]
    assert psutil.Process().num_fds() <= before + 20
    for handle in handles:
        handle.close()
    assert psutil.Process().num_fds() == before
    rb.close()


def fields(count: int) -> dict[str, str]:
    return {f"f{number}": "float32" for number in range(count)}


@pytest.mark.parametrize("batches", [500, pytest.param(10_000, marks=LONG)])
def test_kept_batches_cost_no_descriptors(children: Children, batches: int) -> None:
    """40 fields, and every batch is kept."""
    with shmrb.ReplayBuffer(
        "wide", storage=shmrb.SharedStorage(8), schema=fields(40), format="numpy"
    ) as rb:
        rb.extend({name: np.zeros(8, np.float32) for name in fields(40)})
        child = children.start(draw_and_keep, buffer="wide", batches=batches)
        assert child.expect("kept") == {"batches": batches, "more": 0}
        child.succeed()


def test_mappings_are_per_file_not_per_field() -> None:
    """Control, slots, data and the lock's page, for any schema; bells have none until they ring."""

    def mappings(count: int) -> int:
        made = [
            shmrb.ReplayBuffer(
                f"wide{count}/{number}",
                storage=shmrb.SharedStorage(8),
                schema=fields(count),
                format="numpy",
            )
            for number in range(5)
        ]
        maps = Path("/proc/self/maps").read_text().count("/dev/shm/")
        for rb in made:
            rb.close()
        return maps

    assert mappings(200) == mappings(1) == 5 * 4


def test_a_buffer_removed_by_hand_ends_nobody(children: Children, root: Path) -> None:
    rb = shmrb.ReplayBuffer(
        "gone", storage=shmrb.SharedStorage(8), schema={"x": "int64"}, format="numpy"
    )
    rb.extend({"x": np.arange(8)})
    child = children.start(lose_its_files, buffer="gone")
    child.expect("attached")
    entry = Root(root).require("gone")
    shutil.rmtree(entry.path)
    doorbell.unlink_semaphores(entry.uuid or b"")
    child.send("go on")
    assert child.expect("drew") == {"records": 4}
    child.succeed()
    assert child.stderr == ""
    rb.close()
