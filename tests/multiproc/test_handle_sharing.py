"""Many processes on one buffer. Children here never import torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers import stamped
from helpers.child import emit, receive
from helpers.procs import Children, until

BODY = 65_536
SECONDS = [pytest.param(3.0, id="3s"), pytest.param(20.0, id="20s", marks=pytest.mark.long)]


def attach(name: str, **options: Any) -> shmrb.ReplayBuffer:
    return shmrb.attach(name, format="numpy", timeout=30.0, **options)


# ---- children ------------------------------------------------------------------------------------


def write_until(buffer: str, writer: int, seconds: float, chunk: int) -> None:
    """Stamped records as fast as they go in."""
    rb = attach(buffer)
    emit("ready")
    receive()
    stop = time.monotonic() + seconds
    seq = 0
    while time.monotonic() < stop:
        count = 1 + seq % chunk
        rb.extend(stamped.records(writer, seq, count, BODY))
        seq += count
    emit("done", written=seq, torch="torch" in sys.modules)


def read_until(buffer: str, seconds: float) -> None:
    """Checks every row: whole, written, and newer than what was seen in its slot before."""
    rb = attach(buffer, batch_size=8)
    emit("ready")
    receive()
    stop = time.monotonic() + seconds
    newest: dict[int, int] = {}
    last_seq: dict[tuple[int, int], int] = {}
    rows, faults, out = 0, [], None
    pauses, last = [0.0], time.monotonic()
    while time.monotonic() < stop:
        try:
            batch = rb.sample() if out is None else rb.sample(out=out)
        except shmrb.EmptyBufferError:
            continue
        out = batch
        faults += stamped.torn(batch)
        handles = zip(
            batch["index"].tolist(),
            batch["index_generation"].tolist(),
            batch["writer"].tolist(),
            batch["seq"].tolist(),
            strict=True,
        )
        for slot, generation, writer, seq in handles:
            if generation < newest.get(slot, 0) or writer == 0:
                faults.append(f"slot {slot}: generation {generation} after {newest.get(slot)}")
            newest[slot] = max(newest.get(slot, 0), generation)
            if seq < last_seq.get((slot, writer), 0):
                faults.append(f"slot {slot}: writer {writer} went back to {seq}")
            last_seq[slot, writer] = seq
        rows += len(batch["index"])
        now = time.monotonic()
        pauses.append(now - last)
        last = now
    emit("done", rows=rows, faults=faults[:5], slots=len(newest), pause=max(pauses))


def fill_alone(buffer: str) -> None:
    """The only writer: uid is the number of the record."""
    rb = attach(buffer)
    emit("ready")
    receive()
    seq = 0
    while True:
        count = 1 + seq % 5
        rb.extend({"uid": np.arange(seq, seq + count), "twice": 2 * np.arange(seq, seq + count)})
        seq += count


def write_share(buffer: str, writer: int) -> None:
    """2,500 stamped records; then what this process sees of everybody's."""
    rb = attach(buffer, client_name=f"writer {writer}")
    seq = 0
    while seq < 2500:
        count = min(1 + seq % 64, 2500 - seq)
        if count == 1:
            rb.add(stamped.record(writer, seq, 64))
        else:
            rb.extend(stamped.records(writer, seq, count, 64))
        seq += count
    emit("written")
    receive()
    uids = rb["uid"]
    emit(
        "done",
        length=len(rb),
        write_count=rb.write_count,
        uids=[int(uids.min()), int(uids.max()), len(set(uids.tolist()))],
        torn=stamped.torn({**rb[:], "index": np.arange(len(rb))})[:5],
        modules=sorted({"torch", "tensordict"} & set(sys.modules)),
    )


def race_to_be_first(buffer: str, fields: list[str]) -> None:
    rb = attach(buffer)
    emit("ready")
    receive()
    try:
        rb.extend({field: np.arange(3) for field in fields})
    except shmrb.RecordError as error:
        emit("done", won=False, message=str(error), length=len(rb))
        return
    emit("done", won=True, length=len(rb))


def watch_emptying(buffer: str) -> None:
    """Looks right after each `empty`; shapes must stay, and there must be nothing."""
    rb = attach(buffer, batch_size=12)
    emit("ready")
    while receive() == "look":
        length = len(rb)
        try:
            found = rb.sample()["body"].shape[0]
        except shmrb.EmptyBufferError as error:
            found = str(error)
        emit("looked", length=length, found=found)


def write_and_stop(buffer: str) -> None:
    """SHMRB_STOP_AT stops this process inside the second extend."""
    rb = attach(buffer, client_name="the stopped writer")
    rb.extend(stamped.records(1, 0, 4, 64))
    emit("first")
    rb.extend(stamped.records(1, 4, 3, 64))
    emit("second")


def learn(buffer: str) -> None:
    """Starts before there is anything to attach to."""
    emit("started")
    rb = attach(buffer)
    batch = rb.sample(16, timeout=30.0)
    emit("learned", uids=sorted(set(batch["uid"].tolist())))


def create_at_leisure(buffer: str) -> None:
    """Stops when the files have their sizes and nothing in them."""
    with shmrb.ReplayBuffer(
        buffer, storage=shmrb.SharedStorage(8), schema={"uid": "int64"}, format="numpy"
    ) as rb:
        emit("created")
        rb.extend({"uid": np.arange(4)})
        receive()


def wait_and_attach(buffer: str, timeout: float) -> None:
    began = time.monotonic()
    emit("started")
    try:
        with shmrb.attach(buffer, timeout=timeout, format="numpy") as rb:
            emit("attached", fields=[list(path) for path in rb.schema.paths])
    except shmrb.NoSuchBufferError:
        emit("not there", waited=time.monotonic() - began)


# ---- tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", SECONDS)
def test_four_writers_and_two_readers_meet_in_a_small_ring(
    children: Children, seconds: float
) -> None:
    """64 records of 64 KiB; nothing torn, nothing unwritten, no generation backwards."""
    rb = shmrb.ReplayBuffer(
        "hot", storage=shmrb.SharedStorage(64), schema=stamped.schema(BODY), format="numpy"
    )
    options = {"buffer": "hot", "seconds": seconds}
    writers = [children.start(write_until, writer=i, chunk=6, **options) for i in range(1, 5)]
    readers = [children.start(read_until, **options) for _ in range(2)]
    for child in (*writers, *readers):
        child.expect("ready")
    for child in (*writers, *readers):
        child.send("go")
    found = [reader.expect("done") for reader in readers]
    written = [writer.expect("done") for writer in writers]
    assert [reader["faults"] for reader in found] == [[], []]
    for reader in found:
        assert reader["rows"] > 0
        assert reader["slots"] > 8, "from all over the ring"
    assert not any(writer["torch"] for writer in written)
    assert rb.write_count == sum(writer["written"] for writer in written)
    assert min(writer["written"] for writer in written) > 0
    print(f"read {[r['rows'] for r in found]}, longest pause {[r['pause'] for r in found]}")
    rb.close()


def test_a_stamp_and_its_record_are_of_the_same_instant(children: Children) -> None:
    """With one writer, uid == generation * capacity + slot in every row."""
    capacity = 16
    rb = shmrb.ReplayBuffer(
        "alone",
        storage=shmrb.SharedStorage(capacity),
        schema={"uid": "int64", "twice": "int64"},
        format="numpy",
        batch_size=500,
    )
    writer = children.start(fill_alone, buffer="alone")
    writer.expect("ready")
    writer.send("go")
    out = rb.sample(timeout=30)
    for _ in range(200):
        batch = rb.sample(out=out)
        expected = batch["index_generation"] * capacity + batch["index"]
        assert np.array_equal(batch["uid"], expected)
        assert np.array_equal(batch["twice"], 2 * expected)
    assert rb.write_count > capacity
    rb.close()


def test_unrelated_processes_fill_one_buffer(children: Children) -> None:
    """Four writers of 2,500 records, and everybody sees 10,000."""
    rb = shmrb.ReplayBuffer(
        "shared/by/four",
        storage=shmrb.SharedStorage(16_384),
        schema=stamped.schema(64),
        format="numpy",
    )
    writers = [children.start(write_share, buffer=rb.name, writer=i) for i in range(4)]
    for writer in writers:
        writer.expect("written")
    names = {client.name for client in rb.statistics().producers}
    assert names == {f"writer {i}" for i in range(4)}
    for writer in writers:
        writer.send("look")
    for writer in writers:
        seen = writer.expect("done")
        assert (seen["length"], seen["write_count"]) == (10_000, 10_000)
        assert seen["uids"] == [0, 3 * stamped.WRITER + 2499, 10_000]
        assert seen["torn"] == []
        assert seen["modules"] == []
        writer.succeed()
    assert len(rb) == 10_000
    assert [client.name for client in rb.statistics().clients] != []
    rb.close()


@pytest.mark.parametrize("kinds", [[["x"]], [["x"], ["x", "y"]]], ids=["alike", "two kinds"])
def test_racing_first_writes(children: Children, kinds: list[list[str]]) -> None:
    """One decides the fields; the others are checked against them, and nothing is lost."""
    rb = shmrb.ReplayBuffer("race", storage=shmrb.SharedStorage(64), format="numpy")
    racers = [
        children.start(race_to_be_first, buffer="race", fields=kinds[i % len(kinds)])
        for i in range(3)
    ]
    for racer in racers:
        racer.expect("ready")
    for racer in racers:
        racer.send("go")
    ends = [racer.expect("done") for racer in racers]
    assert rb.schema is not None
    fields = sorted(field.path[0] for field in rb.schema.fields)
    won = [i for i, end in enumerate(ends) if end["won"]]
    assert won == [i for i in range(3) if kinds[i % len(kinds)] == fields]
    assert len(rb) == 3 * len(won)
    assert sorted(rb["x"].tolist()) == sorted([0, 1, 2] * len(won))
    for end in ends:
        assert end["won"] or "another writer's first record" in end["message"]
    rb.close()


def test_another_process_sees_nothing_right_after_empty(children: Children) -> None:
    """Zero, and then an error, not garbage."""
    rb = shmrb.ReplayBuffer(
        "emptied", storage=shmrb.SharedStorage(16), schema=stamped.schema(64), format="numpy"
    )
    watcher = children.start(watch_emptying, buffer="emptied")
    watcher.expect("ready")
    for _ in range(30):
        rb.extend(stamped.records(1, 0, 12, 64))
        watcher.send("look")
        assert watcher.expect("looked") == {"length": 12, "found": 12}
        rb.empty()
        watcher.send("look")
        seen = watcher.expect("looked")
        assert seen["length"] == 0
        assert seen["found"].startswith("Cannot sample from an empty storage")
    watcher.send("end")
    watcher.succeed()
    rb.close()


def test_nobody_sees_a_record_that_is_half_written(children: Children) -> None:
    """With a writer stopped in the middle of its payload, every call answers or says why.

    What it writes is not there yet; what it does not touch stays usable.
    """
    rb = shmrb.ReplayBuffer(
        "half",
        storage=shmrb.SharedStorage(16),
        schema=stamped.schema(64),
        format="numpy",
        default_timeout=0.3,
    )
    writer = children.start(
        write_and_stop, buffer="half", environment={"SHMRB_STOP_AT": "mid_payload:stop:2"}
    )
    writer.expect("first")
    writer.wait_stopped()

    assert (len(rb), rb.write_count) == (4, 4)
    assert rb.stats()["size"] == 4
    assert rb.generations_of(range(8)).tolist() == [0] * 4 + [-1] * 4
    batch = rb.sample(2000)
    assert set(batch["uid"].tolist()) == {stamped.WRITER + i for i in range(4)}
    assert rb[[0, 1, 2, 3]]["seq"].tolist() == [0, 1, 2, 3]
    rb.set_at_("traj", [5], [3])
    assert rb.extend(stamped.records(2, 0, 2, 64)).tolist() == [7, 8]
    reads: list[Callable[[], Any]] = [lambda: rb[:], lambda: rb["uid"], lambda: rb[5]]
    for read in reads:
        with pytest.raises(shmrb.LockTimeoutError, match=r"'the stopped writer' \(pid \d+\) alive"):
            read()
    with pytest.raises(shmrb.DeadlineError, match="continue it or end it"):
        rb.set_("traj", np.zeros(9, np.int64))

    writer.resume()
    writer.expect("second")
    assert len(rb) == 9
    assert rb["seq"].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    rb.close()


def test_learner_may_start_before_the_buffer(children: Children) -> None:
    learner = children.start(learn, buffer="later")
    learner.expect("started")
    with shmrb.ReplayBuffer("later", storage=shmrb.SharedStorage(8), format="numpy") as rb:
        rb.extend({"uid": np.arange(4)})
        assert set(learner.expect("learned")["uids"]) <= {0, 1, 2, 3}
        learner.succeed()
        until(lambda: len(rb.statistics().clients) == 1)


def test_attachers_wait_for_a_creator_that_is_not_done(children: Children) -> None:
    """A name never shows what is half made, for as long as that may take."""
    creator = children.start(
        create_at_leisure, buffer="slow", environment={"SHMRB_STOP_AT": "sized:stop"}
    )
    creator.wait_stopped()
    patient = [children.start(wait_and_attach, buffer="slow", timeout=100) for _ in range(3)]
    hasty = children.start(wait_and_attach, buffer="slow", timeout=0.3)
    assert hasty.expect("not there")["waited"] >= 0.3
    hasty.succeed()
    for child in patient:
        child.expect("started")
    creator.resume()
    creator.expect("created")
    for child in patient:
        assert child.expect("attached") == {"fields": [["uid"]]}
        child.succeed()
    creator.send("end")
    creator.succeed()
