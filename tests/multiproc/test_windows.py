"""Windows of rings that other processes write, are killed in, and update."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.child import emit, receive
from helpers.procs import Child, Children

# The only thread beside pytest's is the watchdog of faulthandler, which touches no lock of ours.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

SECONDS = [pytest.param(2.0, id="2s"), pytest.param(20.0, id="20s", marks=pytest.mark.long)]
SCHEMA = {"writer": "int64", "traj": "int64", "step": "int64", "next": {"done": bool}}
# The longest episode, and how often one is broken off by who writes it.
LONGEST = 12


def attach(name: str, **options: Any) -> shmrb.ReplayBuffer:
    return shmrb.attach(name, format="numpy", timeout=30.0, **options)


def steps(writer: int, traj: int, first: int, count: int, ends: bool = False) -> dict[str, Any]:
    """Records `first` and on of an episode."""
    done = np.zeros(count, bool)
    done[-1] = ends
    return {
        "writer": np.full(count, writer),
        "traj": np.full(count, traj),
        "step": np.arange(first, first + count),
        "next": {"done": done},
    }


# ---- children ------------------------------------------------------------------------------------


def collect(buffer: str, writer: int) -> None:
    """Episodes of random length into a lane, in random pieces, for ever."""
    chance = random.Random(writer)
    rb = attach(buffer)
    emit("ready")
    traj = 0
    with rb.lane(timeout=30) as lane:
        while True:
            length, step = chance.randint(1, LONGEST), 0
            while step < length:
                count = min(chance.randint(1, 4), length - step)
                lane.extend(steps(writer, traj, step, count, ends=step + count == length))
                step += count
            if chance.random() < 0.1:
                lane.end_trajectory()
            traj += 1


def write_endlessly(buffer: str, writer: int, chunk: int) -> None:
    """One episode that never ends."""
    rb = attach(buffer)
    emit("ready")
    step = 0
    while True:
        rb.extend(steps(writer, 0, step, chunk))
        step += chunk


def write_in_turn(buffer: str, writer: int, traj: int, length: int, chunk: int) -> None:
    """Episodes of one id, a chunk at a time, beside others in the same ring."""
    rb = attach(buffer)
    emit("ready")
    receive()
    for _ in range(200):
        for step in range(0, length, chunk):
            count = min(chunk, length - step)
            rb.extend(steps(writer, traj, step, count))
        rb.end_trajectory()
    emit("done")


def write_and_wait(buffer: str, writer: int, count: int, in_lane: bool) -> None:
    """An episode without an end; then nothing more."""
    rb = attach(buffer)
    out = rb.lane() if in_lane else rb
    out.extend(steps(writer, 7, 0, count))
    emit("written", lanes=list(out.lanes) if in_lane else [0])
    receive()


def update_for_ever(buffer: str) -> None:
    """New priorities for all eight slots, as fast as they go."""
    rb = attach(buffer)
    rng = np.random.default_rng(1)
    emit("ready")
    receive()
    stop = time.monotonic() + 60
    while time.monotonic() < stop:
        for _ in range(50):
            rb.update_priority(np.arange(8), rng.uniform(0.1, 10.0, 8))
        emit("round")


# ---- what a window may be ------------------------------------------------------------------------


def faults(batch: Any, window: int) -> list[str]:
    """Windows that join what does not belong together, or are cut short without need."""
    found = []
    writer, traj, step, real, done, index = (
        np.asarray(values).reshape(-1, window)
        for values in (
            batch["writer"],
            batch["traj"],
            batch["step"],
            batch["validity_mask"],
            batch["next"]["done"],
            batch["index"],
        )
    )
    for row in range(len(writer)):
        valid = real[row]
        whole = np.flatnonzero(valid)
        said = f"writers {writer[row]}, trajectories {traj[row]}, steps {step[row]}, {valid}"
        if len(set(writer[row])) > 1 or len(set(traj[row])) > 1:
            found.append(f"mixed: {said}")
        if (np.diff(step[row][whole]) != 1).any() or (np.diff(whole) != 1).any():
            found.append(f"jump: {said}")
        if done[row][whole[:-1]].any():
            found.append(f"an end inside: {said}")
        if (index[row][~valid] != index[row][whole[-1]]).any():
            found.append(f"padding is not the last record: {said}")
    return found


def kinds(batch: Any, window: int, seen: Counter[str]) -> None:
    step = np.asarray(batch["step"]).reshape(-1, window)
    real = np.asarray(batch["validity_mask"]).reshape(-1, window)
    done = np.asarray(batch["next"]["done"]).reshape(-1, window)
    ends = (done & real).any(axis=1)
    seen["full"] += int(real.all(axis=1).sum())
    seen["padded behind an end"] += int((~real.all(axis=1) & ends).sum())
    seen["padded behind a cut or the head"] += int((~real.all(axis=1) & ~ends).sum())
    seen["from the first step"] += int((step[:, 0] == 0).sum())
    seen["from the middle"] += int((step[:, 0] > 0).sum())
    seen["of one record"] += int((real.sum(axis=1) == 1).sum())
    slots = np.asarray(batch["index"]).reshape(-1, window)
    seen["over the last slot into the first"] += int((np.diff(slots) < 0).any(axis=1).sum())


@pytest.mark.parametrize("seconds", SECONDS)
def test_collectors_that_are_killed_and_come_again(children: Children, seconds: float) -> None:
    storage = shmrb.SharedStorage(4 * 48, lanes=4)
    unit = shmrb.Sequence(length=5)
    rb = shmrb.ReplayBuffer(
        "field", storage=storage, schema=SCHEMA, sample_unit=unit, format="numpy", seed=1
    )
    slicer = attach(
        "field", sampler=shmrb.SliceSampler(slice_len=4), sample_unit=shmrb.Transition(), seed=2
    )
    chance = random.Random(3)
    alive: list[Child] = []
    born = 0
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    lanes: set[int] = set()
    deaths = 0
    stop = time.monotonic() + seconds
    next_death = 0.0
    while time.monotonic() < stop or deaths < 3:
        while len(alive) < 4:
            born += 1
            alive.append(children.start(collect, method="fork", buffer="field", writer=born))
            alive[-1].expect("ready")
        for _ in range(10):
            batch = rb.sample(64, timeout=30)
            wrong += faults(batch, 5)
            kinds(batch, 5, seen)
            lanes |= set((batch["index"] // 48).tolist())
            batch = slicer.sample(64, timeout=30)
            batch["validity_mask"] = np.ones(64, bool)
            wrong += faults(batch, 4)
            seen["slices to an end"] += int(batch["next"]["done"].sum())
        assert not wrong, wrong[:3]
        if time.monotonic() > next_death:
            alive.pop(chance.randrange(len(alive))).kill()
            deaths += 1
            next_death = time.monotonic() + chance.uniform(0.05, 0.4)
    assert lanes == {0, 1, 2, 3}
    for kind in (
        "full",
        "padded behind an end",
        "padded behind a cut or the head",
        "from the first step",
        "from the middle",
        "of one record",
        "over the last slot into the first",
        "slices to an end",
    ):
        assert seen[kind] > 0, (kind, seen)
    # Each trajectory that the buffer still has is one writer's and one episode's.
    for part in rb.query():
        assert len(set(part.writer.tolist())) == len(set(part.traj.tolist())) == 1
        assert (np.diff(part.step) == 1).all()
    slicer.close()
    rb.close()


@pytest.mark.parametrize("seconds", SECONDS)
def test_a_seam_that_moves_while_windows_are_read(children: Children, seconds: float) -> None:
    """A ring of one endless episode: only the head says where the seam is."""
    unit = shmrb.Sequence(length=6, burn_in=2, episode_boundary="stop")
    rb = shmrb.ReplayBuffer(
        "seam", storage=shmrb.SharedStorage(32), schema=SCHEMA, sample_unit=unit, format="numpy"
    )
    returns = attach(
        "seam", sampler=shmrb.SliceSampler(slice_len=20), sample_unit=shmrb.Transition()
    )
    children.start(write_endlessly, method="fork", buffer="seam", writer=1, chunk=3).expect("ready")
    stop = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < stop:
        batch = rb.sample(4000, timeout=30)
        rows = batch["step"].reshape(-1, 8)
        real = batch["validity_mask"].reshape(-1, 8)
        jumps = np.diff(rows)
        assert (jumps[real[:, 1:] & real[:, :-1]] == 1).all(), rows
        rows = returns.sample(20 * 500, timeout=30)["step"].reshape(-1, 20)
        assert (np.diff(rows) == 1).all(), rows
        for part in rb.query():
            assert (np.diff(part.step) == 1).all()
        rounds += 1
    assert rounds > 3
    returns.close()
    rb.close()


def test_collectors_that_count_their_trajectories_from_zero(children: Children) -> None:
    rb = shmrb.ReplayBuffer(
        "ids",
        storage=shmrb.SharedStorage(4096),
        schema=SCHEMA,
        traj_key="traj",
        sampler=shmrb.SliceSampler(slice_len=3),
        format="numpy",
        seed=1,
    )
    writers = [
        children.start(
            write_in_turn, method="fork", buffer="ids", writer=n, traj=0, length=5, chunk=2 + n
        )
        for n in (1, 2)
    ]
    for child in writers:
        child.expect("ready")
    for child in writers:
        child.send()
    for child in writers:
        child.expect("done")
    batch = rb.sample(3000)
    rows = {key: batch[key].reshape(-1, 3) for key in ("writer", "step", "sequence_id")}
    assert (rows["writer"] == rows["writer"][:, :1]).all()
    assert (np.diff(rows["step"]) == 1).all()
    assert set(rows["writer"][:, 0].tolist()) == {1, 2}
    assert (rows["sequence_id"][:, 0] == np.arange(1000)).all()
    # Two slices of one trajectory are told apart by it.
    assert (rows["sequence_id"] == rows["sequence_id"][:, :1]).all()
    rb.close()


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_writer_that_died_is_not_continued(children: Children, lanes: int) -> None:
    storage = shmrb.SharedStorage(64 * lanes, lanes=lanes)
    rb = shmrb.ReplayBuffer(
        "cut", storage=storage, schema=SCHEMA, traj_key="traj", format="numpy", seed=1
    )
    slices = attach("cut", sampler=shmrb.SliceSampler(slice_len=3))
    used = []
    for writer in range(lanes + 1):
        child = children.start(
            write_and_wait, method="fork", buffer="cut", writer=writer, count=5, in_lane=lanes > 1
        )
        used += child.expect("written")["lanes"]
        child.kill()
    if lanes > 1:  # the least recently written lane of those that the dead had
        assert used[2] == used[0] != used[1]
    batch = slices.sample(2000 * 3)
    writer, step = (batch[key].reshape(-1, 3) for key in ("writer", "step"))
    assert (writer == writer[:, :1]).all()
    assert (np.diff(step) == 1).all()
    assert set(writer[:, 0].tolist()) == set(range(lanes + 1))
    slices.close()
    rb.close()


def test_a_stopped_writer_holds_up_its_lane_alone(children: Children) -> None:
    """It stands still with its lane's lock in its hands; the other lane has its own."""
    storage = shmrb.SharedStorage(128, lanes=2)
    rb = shmrb.ReplayBuffer("two", storage=storage, schema=SCHEMA, format="numpy", seed=1)
    with rb.lane(rotate=False) as lane:
        lane.extend(steps(1, 0, 0, 8))
        child = children.start(
            collect,
            buffer="two",
            writer=2,
            environment={"SHMRB_STOP_AT": "holding_lock:stop:3"},
        )
        child.wait_stopped()
        for number in range(50):
            lane.extend(steps(1, number, 0, 8, ends=True), timeout=0)
        assert set(rb.sample(256, timeout=0)["writer"].tolist()) >= {1}
        with pytest.raises(shmrb.LockTimeoutError, match="lane's lock"):
            rb.empty(timeout=0.05)
        rb.empty(lanes=lane.lanes, timeout=0)
        child.resume()
        child.kill()
    rb.close()


def test_priorities_change_while_slices_are_drawn(children: Children) -> None:
    sampler = shmrb.PrioritizedSliceSampler(alpha=1.0, beta=1.0, eps=0.0, slice_len=3)
    rb = shmrb.ReplayBuffer(
        "priorities",
        storage=shmrb.SharedStorage(8),
        schema=SCHEMA,
        sampler=sampler,
        format="numpy",
        seed=1,
    )
    rb.extend(steps(1, 0, 0, 4))
    rb.extend(steps(1, 0, 4, 1, ends=True))
    rb.extend(steps(1, 1, 0, 4))
    rb.extend(steps(1, 1, 4, 1, ends=True))
    child = children.start(update_for_ever, method="fork", buffer="priorities")
    child.expect("ready")
    child.send()
    child.expect("round")
    starts: Counter[int] = Counter()
    for _ in range(100):
        starts.update(rb.sample(200 * 3)["index"][::3].tolist())
    child.expect("round")
    child.kill()
    assert set(starts) == {2, 5, 6, 7}
    info = rb._attachment.member.segment.priorities()
    leaves = rb.sampler.priorities_of(np.arange(8))
    assert (leaves > 0.09).all()
    assert info["total"] == pytest.approx(float(leaves.astype(np.float64).sum()), rel=1e-6)
    rb.close()


def test_one_by_one_is_as_good_as_all_at_once() -> None:
    """The same records, slots, stamps and draws, whichever way they came in."""
    drawn = []
    for whole in (False, True):
        rb = shmrb.ReplayBuffer(
            storage=shmrb.SharedStorage(16),
            schema=SCHEMA,
            sample_unit=shmrb.Sequence(length=2),
            format="numpy",
            seed=9,
        )
        data = steps(1, 0, 0, 7)
        if whole:
            slots = rb.extend(data).tolist()
        else:
            rows = [
                {k: {"done": v["done"][i]} if k == "next" else v[i] for k, v in data.items()}
                for i in range(7)
            ]
            slots = [rb.add(row) for row in rows]
        batch = rb.sample(5)
        drawn.append((slots, {k: v.tolist() for k, v in batch.items() if k != "next"}))
        rb.close()
    assert drawn[0] == drawn[1]
