"""A slow model of one ring's priorities: random calls leave its leaves, sums and defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import shmrb

CAPACITY = 11
EPS = 1e-3
NUMBERS = st.sampled_from([0.0, 1e-6, 0.25, 1.0, 3.0, 1e4])


@dataclass
class Model:
    """What each slot holds: (generation, raw priority), in plain Python."""

    alpha: float
    within: bool
    records: dict[int, tuple[int, float]] = field(default_factory=dict)
    generations: list[int] = field(default_factory=lambda: [-1] * CAPACITY)
    cursor: int = 0
    greatest: float = 0.0

    def default(self) -> float:
        return self.greatest if self.greatest > 0 else 1.0

    def extend(self, raws: list[float] | None, count: int) -> None:
        slots = [(self.cursor + i) % CAPACITY for i in range(count)]
        for slot in slots:
            self.records.pop(slot, None)
        self._forget()
        common = np.float32(self.default())
        for i, slot in enumerate(slots):
            raw = float(np.float32(common if raws is None else raws[i]))
            self.generations[slot] += 1
            self.records[slot] = self.generations[slot], raw
            self.greatest = max(self.greatest, raw)
        self.cursor = (self.cursor + count) % CAPACITY
        self._forget()

    def update(self, handles: list[tuple[int, int | None]], raws: list[float]) -> list[bool]:
        reached = []
        for (slot, generation), raw in zip(handles, raws, strict=True):
            record = self.records.get(slot)
            there = record is not None and generation in (None, record[0])
            reached.append(there)
            if there:
                assert record is not None
                self.records[slot] = record[0], float(np.float32(raw))
                self.greatest = max(self.greatest, float(np.float32(raw)))
        self._forget()
        return reached

    def empty(self) -> None:
        for slot in self.records:
            self.generations[slot] += 1
        self.records.clear()
        self.cursor, self.greatest = 0, 0.0

    def masses(self) -> dict[int, float]:
        return {
            slot: float(np.float32((raw + EPS) ** self.alpha))
            for slot, (_, raw) in self.records.items()
        }

    def _forget(self) -> None:
        if self.within:
            self.greatest = max((raw for _, raw in self.records.values()), default=0.0)


CALLS = st.one_of(
    st.tuples(st.just("extend"), st.integers(1, 5), st.none()),
    st.tuples(st.just("extend"), st.just(0), st.lists(NUMBERS, min_size=1, max_size=5)),
    st.tuples(
        st.just("update"),
        st.booleans(),
        st.lists(st.tuples(st.integers(-1, CAPACITY - 1), st.integers(-2, 3), NUMBERS), max_size=6),
    ),
    st.tuples(st.just("alpha"), st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.none()),
    st.tuples(st.just("empty"), st.none(), st.none()),
)


@given(alpha=st.sampled_from([0.0, 0.6, 1.0]), within=st.booleans(), calls=st.lists(CALLS))
@settings(max_examples=80, deadline=None)
def test_calls_leave_what_the_model_says(alpha: float, within: bool, calls: list[tuple]) -> None:  # type: ignore[type-arg]
    sampler = shmrb.PrioritizedSampler(
        alpha=alpha, beta=0.5, eps=EPS, max_priority_within_buffer=within
    )
    rb = shmrb.ReplayBuffer(
        storage=shmrb.SharedStorage(CAPACITY),
        schema={"x": "uint8"},
        sampler=sampler,
        format="numpy",
    )
    model = Model(alpha, within)
    segment = rb._attachment.member.segment
    for name, first, second in calls:
        if name == "extend":
            count = first or len(second)
            rb.extend({"x": np.zeros(count, np.uint8)}, priority=second)
            model.extend(second, count)
        elif name == "update" and second:
            slots, offsets, raws = (list(column) for column in zip(*second, strict=True))
            stamps = [model.generations[s] + min(0, o) for s, o in zip(slots, offsets, strict=True)]
            checked = stamps if first else [None] * len(slots)
            result = rb.update_priority(slots, raws, checked if first else None)
            handles = list(zip(slots, checked, strict=True))
            assert result.updated.tolist() == model.update(handles, raws)
        elif name == "alpha":
            rb.sampler.alpha = model.alpha = first
        elif name == "empty":
            rb.empty()
            model.empty()
        assert segment.wrong_nodes()[:2] == (0, 0)
        masses = model.masses()
        info = rb.statistics().priorities
        assert info is not None
        assert math.isclose(info.total_mass, math.fsum(masses.values()), rel_tol=1e-12)
        assert info.least_mass == min((m for m in masses.values() if m > 0), default=0)
        assert rb.sampler.default_priority == model.default()
        raws = rb.sampler.priorities_of(range(CAPACITY))
        expected = [model.records.get(slot, (0, math.nan))[1] for slot in range(CAPACITY)]
        np.testing.assert_array_equal(raws, np.float32(expected))
        if masses:
            batch = rb.sample(40)
            least = min(masses.values())
            weights = [(masses[slot] / least) ** -0.5 for slot in batch["index"].tolist()]
            np.testing.assert_allclose(batch["priority_weight"], weights, rtol=1e-6)
    rb.close()
