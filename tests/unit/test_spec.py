"""Descriptions of buffers: what they accept, what they refuse, and that they survive JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmrb.description import Description
from shmrb.errors import SpecError, SpecTypeError, UnknownKeyError
from shmrb.limiters import UNBOUNDED
from shmrb.schema import Schema
from shmrb.spec import (
    BufferSpec,
    ImmutableWriter,
    MemmapStorage,
    MinSize,
    Priorities,
    PrioritizedSampler,
    Queue,
    RandomSampler,
    RateLimiter,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    Sequence,
    SharedStorage,
    SliceSampler,
    Transition,
    require,
    smallest_error_buffer,
    thresholds,
)

SCHEMA = Schema.from_mapping(
    {"observation": ("float32", 4), "done": bool, "next": {"reward": "float32", "done": (bool, 1)}}
)


def spec(**changes: Any) -> BufferSpec:
    return BufferSpec(**({"storage": SharedStorage(1000), "schema": SCHEMA} | changes))


class TestStorage:
    def test_first_arguments_are_positional_the_rest_are_not(self) -> None:
        assert SharedStorage(8) == SharedStorage(capacity=8, lanes=1)
        assert MemmapStorage(8, "/d", lanes=2).lanes == 2
        with pytest.raises(TypeError):
            SharedStorage(8, 2)  # type: ignore[misc]
        with pytest.raises(TypeError):
            MemmapStorage(8, "/d", 2)  # type: ignore[misc]

    def test_frozen_and_small(self) -> None:
        storage = SharedStorage(8)
        with pytest.raises(dataclasses.FrozenInstanceError):
            storage.capacity = 9  # type: ignore[misc]
        assert not hasattr(storage, "__dict__")
        assert pickle.loads(pickle.dumps(storage)) == storage

    @pytest.mark.parametrize(
        ("capacity", "lanes", "reason"),
        [
            (0, 1, "capacity must be between 1"),
            (-3, 1, "capacity must be between 1"),
            (1 << 41, 1, "capacity must be between 1"),
            (8, 0, "lanes must be between 1"),
            (10, 3, "take 9 or 12"),
            (2, 3, "take 3"),
        ],
    )
    def test_bad_numbers(self, capacity: int, lanes: int, reason: str) -> None:
        with pytest.raises(SpecError, match=reason):
            SharedStorage(capacity, lanes=lanes)
        with pytest.raises(SpecError, match=reason):
            MemmapStorage(capacity, "/d", lanes=lanes)

    @pytest.mark.parametrize("capacity", [8.0, "8", True, None])
    def test_capacity_is_an_integer(self, capacity: Any) -> None:
        with pytest.raises(SpecTypeError, match="capacity must be an integer, got"):
            SharedStorage(capacity)

    def test_numpy_integers_become_plain_ones(self) -> None:
        assert json.dumps(SharedStorage(np.int64(8)).to_json())

    def test_directories_are_absolute_paths(self, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.chdir(tmp_path)
        assert MemmapStorage(8, "d").directory == str(tmp_path / "d")
        assert MemmapStorage(8, tmp_path) == MemmapStorage(8, str(tmp_path))  # type: ignore[arg-type]
        for bad in ("", b"/d", "a\0b"):
            with pytest.raises(SpecError, match="directory must be a path"):
                MemmapStorage(8, bad)  # type: ignore[arg-type]
        with pytest.raises(SpecTypeError, match="directory must be a path"):
            MemmapStorage(8, 3)  # type: ignore[arg-type]


class TestComponents:
    def test_prioritized_sampler_takes_no_positional_argument(self) -> None:
        with pytest.raises(TypeError):
            PrioritizedSampler(0.6, 0.4)  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"alpha": -1}, "alpha must be greater or equal than 0, got alpha=-1.0"),
            ({"beta": -1}, "beta must be greater or equal to 0, got beta=-1.0"),
            ({"eps": -1}, "eps must be greater or equal to 0"),
            ({"alpha": float("nan")}, "alpha must be finite"),
            ({"beta": float("inf")}, "beta must be finite"),
            ({"alpha": "0.6"}, "alpha must be a number"),
            ({"max_priority_within_buffer": 1}, "must be True or False"),
        ],
    )
    def test_bad_priorities(self, arguments: dict[str, Any], message: str) -> None:
        for kind in (Priorities, PrioritizedSampler):
            with pytest.raises(SpecError, match=message):
                kind(**({"alpha": 0.6, "beta": 0.4} | arguments))

    def test_bad_reduction(self) -> None:
        with pytest.raises(SpecError, match="reduction must be one of max, min, median, mean"):
            PrioritizedSampler(alpha=0.6, beta=0.4, reduction="first")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"length": 0}, r"length must be strictly positive, got 0\."),
            ({"burn_in": -1}, r"burn_in must be non-negative, got -1\."),
            ({"bootstrap": -1}, r"bootstrap must be non-negative, got -1\."),
            ({"dilation": 0}, r"dilation must be strictly positive, got 0\."),
            ({"episode_boundary": "x"}, "Unknown episode_boundary x"),
            ({"length": 2.0}, "length must be an integer"),
            ({"done_key": ""}, "empty"),
        ],
    )
    def test_bad_sequences(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(SpecError, match=message):
            Sequence(**({"length": 4} | arguments))

    def test_windows_and_costs(self) -> None:
        unit = Sequence(length=32, burn_in=8, bootstrap=5)
        assert (unit.window, unit.cost) == (45, 32)
        assert (Transition().window, Transition().cost) == (1, 1)
        assert Sequence(length=1, done_key="done") == Sequence(length=1, done_key=["done"])
        assert Sequence(length=1, done_key=None).done_path is None

    def test_generations_cannot_be_switched_off(self) -> None:
        assert RoundRobinWriter(track_generations=True) == RoundRobinWriter()
        with pytest.raises(SpecError, match="track_generations=False is not possible"):
            RoundRobinWriter(track_generations=False)


class TestLimiters:
    def test_reverb_thresholds(self) -> None:
        assert thresholds(1000, 8.0, 300.0) == (7700.0, 8300.0)
        assert thresholds(1000, 8.0, (5.0, 90.0)) == (5.0, 90.0)
        limiter = RateLimiter(min_size=1000, samples_per_insert=8, error_buffer=300)
        assert limiter.thresholds() == (7700.0, 8300.0)
        assert MinSize(7).thresholds() == (-UNBOUNDED, UNBOUNDED)
        assert Queue(7).thresholds() == (0.0, 7.0)
        assert (Queue(7).min_size, Queue(7).samples_per_insert) == (1, 1.0)

    @pytest.mark.parametrize(
        ("ratio", "batch", "chunk", "smallest"),
        [(8.0, 256, 64, 384.0), (1.0, 64, 1, 32.5), (0.5, 0, 1, 1.0), (32.0, 1, 1, 32.0)],
    )
    def test_smallest_error_buffer(
        self, ratio: float, batch: int, chunk: int, smallest: float
    ) -> None:
        assert smallest_error_buffer(ratio, batch, chunk) == smallest

    @pytest.mark.parametrize("ratio", [0.25, 1.0, 3.0])
    @pytest.mark.parametrize("batch", [1, 5, 16])
    @pytest.mark.parametrize("chunk", [1, 4])
    def test_the_smallest_error_buffer_never_blocks_both(
        self, ratio: float, batch: int, chunk: int
    ) -> None:
        buffer = smallest_error_buffer(ratio, batch, chunk)
        least, most = thresholds(10, ratio, buffer)
        reached, fresh = set(), {10 * ratio}
        while fresh:
            difference = fresh.pop()
            reached.add(difference)
            after_insert, after_sample = difference + chunk * ratio, difference - batch
            allowed = {after_insert} if after_insert <= most else set()
            allowed |= {after_sample} if after_sample >= least else set()
            assert allowed
            fresh |= allowed - reached

    def test_an_open_error_buffer_is_resolved_later(self) -> None:
        limiter = RateLimiter(min_size=10, samples_per_insert=8.0)
        with pytest.raises(SpecError, match="error_buffer is not chosen yet"):
            limiter.thresholds()
        assert limiter.resolved(256).error_buffer == 384.0
        assert limiter.resolved(256, 1).error_buffer == 132.0
        given_one = RateLimiter(min_size=10, samples_per_insert=8.0, error_buffer=500)
        assert given_one.resolved(256) is given_one

    @given(st.floats(1e-9, 1e9), st.integers(0, 10**6), st.integers(1, 1 << 40))
    @settings(deadline=None)
    def test_every_resolved_limiter_is_legal(self, ratio: float, batch: int, least: int) -> None:
        limiter = RateLimiter(min_size=least, samples_per_insert=ratio).resolved(batch)
        assert limiter.error_buffer == smallest_error_buffer(ratio, batch)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"min_size": 0}, "min_size must be between 1"),
            ({"samples_per_insert": 0}, "samples_per_insert must be above 0"),
            ({"samples_per_insert": float("inf")}, "must be finite"),
            ({"error_buffer": 3.9}, r"expected at least 2 \* max.* = 8.0.*error_buffer >= 4.0"),
            ({"error_buffer": -5}, "expected at least"),
            ({"error_buffer": (0, 7)}, "expected at least"),
            ({"error_buffer": (41, 60)}, "begins above .* = 40.0.*min_diff <= 40.0"),
            ({"error_buffer": (1, 2, 3)}, r"number or \(min_diff, max_diff\)"),
        ],
    )
    def test_reverbs_rules(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(SpecError, match=message):
            RateLimiter(**({"min_size": 10, "samples_per_insert": 4} | arguments))

    def test_a_range_below_the_start_is_allowed(self) -> None:
        limiter = RateLimiter(min_size=10, samples_per_insert=4, error_buffer=(0, 8))
        assert limiter.thresholds() == (0.0, 8.0)

    @pytest.mark.parametrize(
        ("limiter", "message"),
        [
            (
                RateLimiter(min_size=1, samples_per_insert=1, error_buffer=16),
                r"costs 64 samples.*spans 32.0. Take error_buffer >= 64.0",
            ),
            (Queue(63), r"costs 64 samples.*spans 63.0. Take size >= 64"),
            (MinSize(1001), r"MinSize\(min_size=1001\) is more than the capacity 1000"),
            (Queue(1001), r"Queue\(size=1001\) is more than the capacity 1000"),
            (RateLimiter(min_size=1001, samples_per_insert=1), "more than the capacity 1000"),
        ],
    )
    def test_what_must_deadlock_is_refused(self, limiter: Any, message: str) -> None:
        with pytest.raises(SpecError, match=message):
            spec(limiter=limiter, batch_size=64)

    def test_a_sequence_costs_its_length(self) -> None:
        limiter = RateLimiter(min_size=1, samples_per_insert=1, error_buffer=32)
        assert spec(limiter=limiter, batch_size=64).limiter is limiter
        with pytest.raises(SpecError, match="costs 128 samples"):
            spec(limiter=limiter, batch_size=64, sample_unit=Sequence(length=2, burn_in=3))
        assert spec(limiter=Queue(64), batch_size=64).batch_size == 64


class TestBufferSpec:
    def test_defaults(self) -> None:
        plain = BufferSpec(storage=SharedStorage(12, lanes=3))
        assert (plain.capacity, plain.lanes, plain.lane_capacity) == (12, 3, 4)
        assert plain.writer == RoundRobinWriter()
        assert (plain.sampler, plain.sample_unit) == (RandomSampler(), Transition())
        assert (plain.schema, plain.done_keys, plain.lifetime) == (None, (), "persistent")
        assert not plain.needs_control_lock

    def test_what_needs_the_control_lock(self) -> None:
        assert spec(priorities=Priorities(alpha=0.6, beta=0.4)).needs_control_lock
        assert spec(limiter=MinSize(3)).needs_control_lock
        assert spec(consume_after_n_samples=1).needs_control_lock

    def test_a_prioritized_sampler_brings_its_priorities(self) -> None:
        sampler = PrioritizedSampler(alpha=0.6, beta=0.4, reduction="mean")
        assert spec(sampler=sampler).priorities == Priorities(alpha=0.6, beta=0.4)

    def test_a_dictionary_is_a_schema(self) -> None:
        assert spec(schema={"a": "bool"}).schema == Schema.from_mapping({"a": "bool"})

    def test_done_keys_follow_from_the_schema(self) -> None:
        ends = {"done": bool, "truncated": ("uint8", ()), "terminated": (bool, 2)}
        following = {"done": (bool, 1), "truncated": (bool, (1, 1)), "over": bool}
        schema = Schema.from_mapping({**ends, "next": following, "deep": {"done": bool}})
        found = (("done",), ("next", "done"), ("next", "truncated"))
        assert spec(schema=schema).done_keys == found
        assert spec(schema=None).with_schema(schema).done_keys == found
        own = spec(schema=None, done_keys=[("next", "over"), "done"])
        assert own.with_schema(schema).done_keys == (("next", "over"), ("done",))

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            (
                ["observation"],
                r"expected bool fields of one element, 'observation' is float32 \[4\]",
            ),
            ("done", r"write \['done'\]"),
            (3, "must be a list of keys"),
            ([""], "empty"),
        ],
    )
    def test_bad_done_keys(self, keys: Any, message: str) -> None:
        with pytest.raises(SpecError, match=message):
            spec(done_keys=keys)
        with pytest.raises(UnknownKeyError, match="no field 'over'"):
            spec(done_keys=["over"])

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("storage", None),
            ("storage", lambda: SharedStorage(3)),
            ("sampler", "random"),
            ("sampler", RandomSampler),
            ("sample_unit", "seq"),
            ("writer", RandomSampler()),
            ("limiter", 3),
            ("schema", [("a", "bool")]),
        ],
    )
    def test_only_descriptions_are_taken(self, name: str, value: Any) -> None:
        with pytest.raises(TypeError, match=f"{name} must be .*, got .*only descriptions"):
            spec(**{name: value})

    @pytest.mark.parametrize(
        ("count", "error"), [(True, TypeError), (1.0, TypeError), (0, ValueError)]
    )
    def test_consumption_counts_whole_draws(self, count: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match=r"consume_after_n_samples must be a positive integer\."):
            spec(consume_after_n_samples=count)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"batch_size": 0}, "batch_size must be at least 1"),
            ({"lifetime": "ever"}, "lifetime must be persistent or creator"),
            ({"max_clients": 1 << 16}, "max_clients must be between 1 and 65535"),
            ({"sampler": SamplerWithoutReplacement(drop_last=True)}, "predictable batch-size"),
            (
                {"schema": {"a": ("uint8", 1 << 38)}, "storage": SharedStorage(1 << 38)},
                "field 'a'.*64-bit offsets",
            ),
        ],
    )
    def test_bad_settings(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(SpecError, match=message):
            spec(**changes)


class TestRequire:
    def test_what_a_handle_may_choose(self) -> None:
        plain = spec(batch_size=4)
        handle = plain.for_handle(
            sampler=SamplerWithoutReplacement(drop_last=True), sample_unit=Sequence(length=3)
        )
        assert (handle.batch_size, handle.sample_unit) == (4, Sequence(length=3))
        assert plain.for_handle(batch_size=9).batch_size == 9
        ending = spec(schema={"x": "float32", "done": "bool"}, batch_size=8)
        sliced = ending.for_handle(sampler=SliceSampler(slice_len=5), batch_size=10)
        assert sliced.batch_size == 10, "the handle's batch counts, not the buffer's"
        assert plain.differences(handle) == []

    def test_priorities_must_be_there_and_the_same(self) -> None:
        sampler = PrioritizedSampler(alpha=0.6, beta=0.4)
        with pytest.raises(SpecError, match=r"sampler=PrioritizedSampler\(alpha=0.6, beta=0.4\)"):
            spec().for_handle(sampler=sampler)
        prioritized = spec(sampler=sampler)
        require(prioritized, RandomSampler(), Transition())
        require(prioritized, dataclasses.replace(sampler, reduction="min"), Transition())
        with pytest.raises(SpecError, match=r"alpha: existing 0.6, asked for 0.7"):
            require(prioritized, PrioritizedSampler(alpha=0.7, beta=0.4), Transition())

    def test_consumption_draws_at_random(self) -> None:
        for sampler in (SamplerWithoutReplacement(), PrioritizedSampler(alpha=1, beta=1)):
            with pytest.raises(SpecError, match=r"consume_after_n_samples=2: expected Random"):
                spec(consume_after_n_samples=2, sampler=sampler)

    def test_sequences_need_their_done_key(self) -> None:
        require(spec(), RandomSampler(), Sequence(length=3, done_key="done"))
        require(spec(schema={"a": "bool"}), RandomSampler(), Sequence(length=3, done_key=None))
        require(spec(schema=None), RandomSampler(), Sequence(length=3))
        with pytest.raises(SpecError, match=r"at no key.*done_keys=\[\('next', 'done2"):
            spec(schema={"a": "bool"}).for_handle(
                sample_unit=Sequence(length=3, done_key=("next", "done2"))
            )
        # Its trajectories end by their id, or when told.
        require(spec(schema={"a": "int64"}), RandomSampler(), Sequence(length=3))

    def test_handles_too_take_descriptions_only(self) -> None:
        with pytest.raises(TypeError, match="sampler must be"):
            spec().for_handle(sampler=lambda: None)  # type: ignore[arg-type]


class TestDifferences:
    def test_each_is_named_with_both_values(self) -> None:
        existing = spec(limiter=MinSize(5), consume_after_n_samples=1)
        asked = spec(
            storage=SharedStorage(2000, lanes=2),
            schema={"observation": ("float64", 4), "done": bool},
            writer=ImmutableWriter(),
            limiter=MinSize(6),
            lifetime="creator",
        )
        assert existing.differences(asked) == [
            "storage capacity: existing 1000, asked for 2000",
            "storage lanes: existing 1, asked for 2",
            f"writer: existing {RoundRobinWriter()}, asked for ImmutableWriter()",
            "limiter min_size: existing 5, asked for 6",
            "field 'observation': existing float32 [4], asked for float64 [4]",
            "field ('next', 'reward'): existing float32 [], asked for none",
            "field ('next', 'done'): existing bool [1], asked for none",
            "done_keys: existing 'done', ('next', 'done'), asked for 'done'",
            "consume_after_n_samples: existing 1, asked for None",
            "lifetime: existing persistent, asked for creator",
        ]

    def test_kinds_and_priorities(self) -> None:
        sampler = PrioritizedSampler(alpha=0.6, beta=0.4)
        existing = spec(sampler=sampler)
        assert existing.differences(spec(sampler=dataclasses.replace(sampler, eps=0))) == [
            "priorities eps: existing 1e-08, asked for 0.0"
        ]
        (found,) = existing.differences(spec())
        assert found.startswith("priorities: existing Priorities(alpha=0.6")
        assert found.endswith("asked for None")
        (found,) = spec().differences(spec(storage=MemmapStorage(1000, "/d")))
        assert "asked for MemmapStorage(capacity=1000, directory='/d', lanes=1)" in found

    def test_what_one_leaves_open_is_none(self) -> None:
        assert spec(schema=None).differences(spec()) == []
        assert spec().differences(spec(schema=None)) == []
        fixed = RateLimiter(min_size=5, samples_per_insert=8, error_buffer=400)
        left_open = RateLimiter(min_size=5, samples_per_insert=8)
        for one, other in itertools.permutations((fixed, left_open)):
            assert spec(limiter=one).differences(spec(limiter=other)) == []


capacities = st.builds(
    lambda rows, lanes: (rows * lanes, lanes), st.integers(1, 9), st.integers(1, 9)
)
rates = st.floats(0.01, 100)
storages = capacities.map(lambda pair: SharedStorage(pair[0], lanes=pair[1])) | capacities.map(
    lambda pair: MemmapStorage(pair[0], "/d/é", lanes=pair[1])
)
priorities = st.builds(
    Priorities, alpha=rates, beta=rates, eps=rates, max_priority_within_buffer=st.booleans()
)
samplers = st.one_of(
    st.just(RandomSampler()),
    st.builds(SamplerWithoutReplacement, shuffle=st.booleans()),
    st.builds(
        PrioritizedSampler, alpha=rates, beta=rates, reduction=st.sampled_from(["max", "median"])
    ),
)
units = st.just(Transition()) | st.builds(
    Sequence,
    length=st.integers(1, 9),
    burn_in=st.integers(0, 9),
    dilation=st.integers(1, 9),
    episode_boundary=st.sampled_from(["pad", "stop", "include_reset"]),
    done_key=st.sampled_from([None, "done", ("next", "done")]),
)
buffers = st.none() | st.floats(100, 200) | st.tuples(st.floats(-200, -100), st.floats(100, 200))
limiters = st.one_of(
    st.none(),
    st.just(MinSize(1)),
    st.just(Queue(1)),
    st.builds(RateLimiter, min_size=st.just(1), samples_per_insert=rates, error_buffer=buffers),
)
specs = st.builds(
    BufferSpec,
    storage=storages,
    schema=st.sampled_from([None, SCHEMA]),
    done_keys=st.sampled_from([(), (("done",), ("next", "done"))]),
    writer=st.sampled_from([RoundRobinWriter(), ImmutableWriter()]),
    limiter=limiters,
    sampler=samplers,
    sample_unit=units,
    lifetime=st.sampled_from(["persistent", "creator"]),
    max_clients=st.integers(1, 65535),
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)
# A busy machine is no failure.
calm = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


class TestJson:
    @calm
    @given(specs)
    def test_buffers_survive(self, described: BufferSpec) -> None:
        text = json.dumps(described.to_json(), allow_nan=False)
        read = BufferSpec.from_json(json.loads(text))
        assert read == described
        assert described.differences(read) == []
        assert pickle.loads(pickle.dumps(described)) == described

    @calm
    @given(st.one_of(storages, priorities, samplers, units, limiters.filter(bool)))
    def test_components_survive(self, component: Description) -> None:
        document = json.loads(json.dumps(component.to_json(), allow_nan=False))
        assert document["kind"] == type(component).__name__
        assert type(component).from_json(document) == component

    @calm
    @given(specs, st.data(), junk)
    def test_junk_is_refused_as_such(self, described: BufferSpec, data: Any, value: Any) -> None:
        document = described.to_json()
        key = data.draw(st.sampled_from(sorted(document)))
        part = document[key]
        if isinstance(part, dict):
            part[data.draw(st.sampled_from(sorted(part)))] = value
        else:
            document[key] = value
        try:
            read = BufferSpec.from_json(document)
        except SpecError:
            return
        assert isinstance(read, BufferSpec)

    def test_what_a_newer_version_wrote_is_named(self) -> None:
        document = spec().to_json()
        with pytest.raises(SpecError, match=r"BufferSpec.*unknown key 'colour'.*update shmrb"):
            BufferSpec.from_json(document | {"colour": 1})
        with pytest.raises(SpecError, match=r"sampler: expected .*got 'Fifo'.*update shmrb"):
            BufferSpec.from_json(document | {"sampler": {"kind": "Fifo"}})
        with pytest.raises(SpecError, match=r"RandomSampler.*unknown key 'weight'"):
            BufferSpec.from_json(document | {"sampler": {"kind": "RandomSampler", "weight": 1}})
        with pytest.raises(SpecError, match="expected kind 'BufferSpec', got 'Schema'"):
            BufferSpec.from_json(SCHEMA.to_json())
        with pytest.raises(SpecError, match="expected an object, got 3"):
            BufferSpec.from_json(3)

    def test_what_an_older_version_left_out_takes_the_default(self) -> None:
        document = spec().to_json()
        del document["max_clients"]
        assert BufferSpec.from_json(document) == spec()
        del document["storage"]
        with pytest.raises(SpecError, match="missing 'storage'"):
            BufferSpec.from_json(document)
