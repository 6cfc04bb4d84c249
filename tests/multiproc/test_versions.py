"""Changes in place from several processes: versions only grow, and no record is torn."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.child import emit, receive
from helpers.procs import Children

NAME = "shared"
CAPACITY = 16
FACTOR = 1_000_003

SECONDS = [pytest.param(1.0, id="1s"), pytest.param(20.0, id="20s", marks=pytest.mark.long)]


def value_of(version: Any, slot: Any) -> Any:
    """What a patch of this version writes."""
    return version * FACTOR + slot


def update_until(seconds: float, seed: int, key: str | None) -> None:
    """Draws, raises or lowers versions, and checks that what is drawn only ever goes up."""
    rb = shmrb.attach(NAME, format="numpy", seed=seed)
    random = np.random.default_rng(seed)
    seen: dict[tuple[int, int], int] = {}
    faults: list[str] = []
    tally = np.zeros(3, np.int64)
    accepted: dict[int, int] = {}
    emit("ready")
    receive()
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        batch = rb.sample(8)
        index, stamps = batch["index"], batch["index_generation"]
        # Rows of one batch are of no common instant; those of the last batch were all before.
        now = dict(seen)
        for slot, stamp, version, value in zip(
            index.tolist(), stamps.tolist(), batch["ver"].tolist(), batch["x"].tolist(), strict=True
        ):
            if version < seen.get((slot, stamp), -1):
                faults.append(f"slot {slot}: version {version} after {seen[slot, stamp]}")
            if version >= 0 and value != value_of(version, slot):
                faults.append(f"slot {slot}: value {value} with version {version}")
            now[slot, stamp] = max(version, now.get((slot, stamp), -1))
        seen = now
        version = batch["ver"] + random.integers(-2, 4, 8)
        patch = {"x": value_of(version, index)}
        if key is None:
            patch["ver"] = version
        result = rb.update_if_present(
            batch, patch=patch, version_key=key, version=version, require_newer=bool(seed % 2)
        )
        if not (result.updated ^ result.version_rejected ^ result.stale).all():
            faults.append("a row that is in none or several of the masks")
        for slot, one in zip(index[result.updated].tolist(), version[result.updated], strict=True):
            accepted[slot] = max(accepted.get(slot, -1), int(one))
        tally += result.updated_count, result.version_rejected_count, result.stale_count
    emit("done", faults=faults[:5], tally=tally.tolist(), accepted=list(accepted.items()))


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("key", ["ver", None], ids=["a field", "the buffer's own"])
def test_versions_grow_and_patches_belong_to_them(
    children: Children, seconds: float, key: str | None
) -> None:
    rb = shmrb.ReplayBuffer(
        NAME,
        storage=shmrb.SharedStorage(CAPACITY),
        schema={"x": "int64", "ver": "int64"},
        format="numpy",
    )
    for start in range(0, CAPACITY, 4):
        rb.extend({"x": np.arange(start, start + 4), "ver": np.full(4, -1)})
    updaters = [
        children.start(update_until, seconds=seconds, seed=seed, key=key, name=f"updater {seed}")
        for seed in range(4)
    ]
    for child in updaters:
        child.expect("ready")
    for child in updaters:
        child.send()
    # Meanwhile one record after the other is replaced: its handles go stale, the others' do not.
    stop = time.monotonic() + seconds / 2
    written = 0
    while time.monotonic() < stop:
        rb.add({"x": 0, "ver": -1})
        written += 1
    total = np.zeros(3, np.int64)
    highest = np.full(CAPACITY, -1)
    for child in updaters:
        said = child.expect("done")
        assert said["faults"] == []
        total += said["tally"]
        for slot, version in said["accepted"]:
            highest[slot] = max(highest[slot], version)
        child.succeed()
    stats = rb.stats()
    counted = [stats[name] for name in ("rows_updated", "versions_rejected", "stale_rows")]
    assert counted == total.tolist()
    assert min(total[:2]) > 0
    assert written > 0
    stored, values = rb["ver"], rb["x"]
    assert (stored <= highest).all()
    marked = stored >= 0
    assert (values[marked] == value_of(stored, np.arange(CAPACITY))[marked]).all()
    rb.close()


def set_until(seconds: float, first: int) -> None:
    """Writes the same number into both halves of every record, by every setter in turn."""
    rb = shmrb.attach(NAME, format="numpy")
    emit("ready")
    receive()
    stop = time.monotonic() + seconds
    number = first
    while time.monotonic() < stop:
        both = {half: np.full((CAPACITY, 64), number) for half in ("left", "right")}
        if number % 3 == 0:
            rb.update_(both)
        elif number % 3 == 1:
            rb[:] = both
        else:
            rb.write_all(both)
        number += 2
    emit("done", sets=(number - first) // 2)


def test_setters_tear_no_record_that_others_read(children: Children) -> None:
    halves = dict.fromkeys(("left", "right"), ("int64", (64,)))
    rb = shmrb.ReplayBuffer(
        NAME, storage=shmrb.SharedStorage(CAPACITY), schema=halves, format="numpy"
    )
    for _ in range(2):
        rb.extend({half: np.zeros((CAPACITY // 2, 64), np.int64) for half in halves})
    setters = [
        children.start(set_until, seconds=1.0, first=first, name=f"setter {first}")
        for first in (1, 2)
    ]
    for child in setters:
        child.expect("ready")
    for child in setters:
        child.send()
    rows, numbers = 0, set()
    while any(child.exit_code is None for child in setters):
        batch = rb.sample(32)
        numbers |= set(batch["left"][:, 0].tolist())
        assert (batch["left"] == batch["left"][:, :1]).all()
        assert (batch["left"] == batch["right"]).all()
        rows += 32
    assert rows > 0
    assert all(child.expect("done")["sets"] > 0 for child in setters)
    assert len(numbers) > 1
    assert (rb.generations_of(range(CAPACITY)) == 0).all()
    rb.close()
