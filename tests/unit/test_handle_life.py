"""Birth and end of buffers and handles: names, descriptions, first writes, closing, pickling."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shmrb
from helpers import stamped
from helpers.segments import remains
from shmrb import attachment

New = Callable[..., shmrb.ReplayBuffer]
SCHEMA = {"x": "int64"}
STORAGE = shmrb.SharedStorage(8)


def drop(root: Path, name: str) -> None:
    from shmrb.segment.directory import Root

    Root(root).drop(name, force=True)


class TestBirth:
    def test_same_description_attaches(self, new: New) -> None:
        one = new("same", schema=SCHEMA, batch_size=4)
        one.extend({"x": [1, 2]})
        again = new("same", schema=SCHEMA, sampler=shmrb.SamplerWithoutReplacement(), batch_size=2)
        assert again["x"].tolist() == [1, 2]
        assert (one.batch_size, again.batch_size) == (4, 2), "these are each handle's"

    def test_other_description_lists_the_differences(self, new: New) -> None:
        new("taken", schema=SCHEMA)
        with pytest.raises(shmrb.AlreadyExistsError, match="described otherwise") as refused:
            new("taken", capacity=16, schema={"x": "float32"}, lifetime="creator")
        for part in ("capacity: existing 8, asked for 16", "field 'x'", "lifetime"):
            assert part in str(refused.value)

    def test_exist(self, new: New) -> None:
        old = new("exist", schema=SCHEMA)
        old.extend({"x": [1]})
        with pytest.raises(shmrb.AlreadyExistsError, match="exists already"):
            new("exist", schema=SCHEMA, exist="error")
        with pytest.raises(shmrb.SpecError, match="exist must be one of attach, error, replace"):
            new("exist", schema=SCHEMA, exist="maybe")
        fresh = new("exist", capacity=4, schema={"y": "float32"}, exist="replace")
        assert len(fresh) == 0
        for call in (lambda: old.extend({"x": [2]}), lambda: old.sample(1), lambda: old[0]):
            with pytest.raises(shmrb.StaleAttachmentError, match="Attach again"):
                call()

    def test_stamps_are_not_given_twice_under_a_name(self, new: New) -> None:
        seen: set[int] = set()
        for _ in range(4):
            rb = new("again", schema=SCHEMA, exist="replace")
            for _ in range(2):
                rb.extend({"x": np.arange(8)})
            stamps = set(rb.generations_of(range(8)).tolist())
            assert not stamps & seen
            seen |= stamps

    def test_generations_are_always_tracked(self, new: New) -> None:
        assert new(schema=SCHEMA, track_generations=True).writer.tracks_generations
        with pytest.raises(shmrb.SpecError, match="always on"):
            new(schema=SCHEMA, track_generations=False)

    @pytest.mark.parametrize(
        "options",
        [
            {"storage": 5},
            {"sampler": "uniform"},
            {"sampler": lambda: None},
            {"sample_unit": "transition"},
            {"limiter": 3},
            {"batch_size": 0},
            {"batch_size": 2.5},
            {"lifetime": "forever"},
            {"max_clients": 0},
            {"format": "jax"},
            {"cast": "unsafe"},
            {"default_timeout": -1},
            {"schema": {}},
            {"done_keys": ("missing",)},
            {"transform": 5},
        ],
    )
    def test_impossible_arguments(self, new: New, root: Path, options: dict[str, Any]) -> None:
        with pytest.raises(shmrb.SpecError):
            new("impossible", **{"schema": SCHEMA} | options)
        assert remains(root) == []

    @pytest.mark.parametrize("name", ["", "/", "a//b", "../x", "a/b/c/d/e", "-x", "x" * 63, "_p"])
    def test_impossible_names(self, new: New, name: str) -> None:
        with pytest.raises(shmrb.SpecError, match="name"):
            new(name, schema=SCHEMA)

    def test_attach_waits_for_a_name_and_names_what_it_searched(self, root: Path) -> None:
        with pytest.raises(shmrb.NoSuchBufferError, match=str(root)):
            shmrb.attach("nowhere")
        with pytest.raises(shmrb.NoSuchBufferError, match="'nowhere'"):
            shmrb.attach("nowhere", timeout=0.05)

    def test_attached_handle_takes_the_defaults_or_its_own(self, new: New) -> None:
        sampler = shmrb.SamplerWithoutReplacement(shuffle=False)
        new("own", schema=SCHEMA, sampler=sampler, batch_size=3).extend({"x": np.arange(6)})
        with shmrb.attach("own", format="numpy") as same:
            assert same.sample()["x"].tolist() == [0, 1, 2]
        with shmrb.attach("own", format="numpy", batch_size=4) as other:
            assert other.sample()["x"].tolist() == [0, 1, 2, 3]
        with shmrb.attach("own", sampler=shmrb.RandomSampler(), format="numpy") as random:
            former = random.set_sampler(sampler)
            assert former == shmrb.RandomSampler()
            assert random.sample()["x"].tolist() == [0, 1, 2]

    def test_sampler_that_needs_more_than_the_buffer_keeps(self, new: New) -> None:
        rb = new("plain", schema=SCHEMA)
        with pytest.raises(shmrb.SpecError, match=r"Create it with sampler=PrioritizedSampler"):
            shmrb.attach("plain", sampler=shmrb.PrioritizedSampler(alpha=0.6, beta=0.4))
        assert len(rb.statistics().clients) == 1, "who is refused takes no client slot along"

    @pytest.mark.parametrize("timeout", [-1, float("nan"), "soon"])
    def test_impossible_timeout(self, timeout: Any) -> None:
        with pytest.raises(shmrb.SpecError, match="timeout: expected seconds"):
            shmrb.attach("nowhere", timeout=timeout)

    def test_attaching_while_the_name_is_replaced(self, new: New) -> None:
        """Whichever of them it finds: a name alone is a promise of no particular buffer."""
        new("moving", schema=SCHEMA)
        over = threading.Event()

        def replace() -> None:
            while not over.is_set():
                new("moving", schema=SCHEMA, exist="replace").close()

        thread = threading.Thread(target=replace)
        thread.start()
        try:
            for _ in range(40):
                shmrb.attach("moving", format="numpy", timeout=30).close()
        finally:
            over.set()
            thread.join()


class TestFirstWrite:
    def test_it_decides_the_fields(self, new: New) -> None:
        rb = new("first")
        rb.extend({"x": np.arange(3), "n": {"w": np.zeros((3, 2), np.float32)}})
        assert rb.schema is not None
        assert [(f.path, f.dtype, f.shape) for f in rb.schema.fields] == [
            (("x",), "int64", ()),
            (("n", "w"), "float32", (2,)),
        ]
        with pytest.raises(shmrb.RecordError, match="unknown 'y'"):
            rb.add({"x": 1, "n": {"w": [0, 0]}, "y": 1})

    @pytest.mark.parametrize(
        ("record", "fields"),
        [
            ({"x": 1}, [("x", "int64", ())]),
            ({"x": 0.5}, [("x", "float32", ())]),
            ({"x": True}, [("x", "bool", ())]),
            ({"x": [1.0, 2.0]}, [("x", "float32", (2,))]),
            ({"x": np.float64(0.5)}, [("x", "float64", ())]),
            ({"x": torch.zeros(2, dtype=torch.float16)}, [("x", "float16", (2,))]),
            (np.zeros((2, 3)), [("tensor", "float64", (2, 3))]),
            ((np.zeros(2), 5), [("0", "float64", (2,)), ("1", "int64", ())]),
        ],
    )
    def test_of_one_record(self, new: New, record: Any, fields: list[Any]) -> None:
        rb = new()
        assert rb.add(record) == 0
        assert rb.schema is not None
        assert [(f.path[0], f.dtype, f.shape) for f in rb.schema.fields] == fields
        assert rb.add(record) == 1

    @pytest.mark.parametrize(
        "data",
        [
            [],
            {"x": np.zeros((0, 2))},
            {},
            {"x": "text"},
            {"x": np.zeros(3), "y": np.zeros(2)},
            {"x": 5},
            {"index": np.zeros(3)},
            [{"x": 1}, {"y": 1}],
            None,
        ],
    )
    def test_refused_first_write_reserves_nothing(self, new: New, root: Path, data: Any) -> None:
        rb = new("kept")
        before = remains(root)
        with pytest.raises(shmrb.SpecError):
            rb.extend(data)
        assert remains(root) == before
        assert not rb.initialized
        assert rb.extend({"x": np.arange(2)}).tolist() == [0, 1]

    def test_no_room_leaves_the_declaration(self, new: New, root: Path) -> None:
        rb = new("large", capacity=1 << 40)
        with pytest.raises(shmrb.CapacityError) as refused:
            rb.extend({"x": np.zeros((2, 1 << 16), np.float32)})
        assert refused.value.needed_bytes > refused.value.available_bytes > 0
        assert not rb.initialized
        assert remains(root) == ["large"]

    def test_loser_of_the_race_is_checked_against_the_winner(self, new: New) -> None:
        first, second = new("race"), new("race")
        first.extend({"x": np.arange(2), "y": np.zeros(2)})
        with pytest.raises(shmrb.RecordError, match="another writer's first record: field 'y'"):
            second.extend({"x": np.arange(2)})
        assert second.extend({"y": np.zeros(2), "x": np.arange(2)}).tolist() == [2, 3]

    def test_creator_whose_first_join_fails_is_still_there(self, new: New, root: Path) -> None:
        """A private buffer ends with it, and not because its client slots were taken."""
        rb = new(max_clients=1)
        other = pickle.loads(pickle.dumps(rb))
        other.extend({"x": np.arange(2)})
        with pytest.raises(shmrb.AttachError, match="all 1 client slots are taken"):
            rb.sample(1)
        other.close()
        assert rb["x"].tolist() == [0, 1]
        rb.close()
        assert remains(root) == []

    def test_handle_of_a_replaced_declaration_touches_nothing(self, new: New, root: Path) -> None:
        """What bears the name now is another buffer, though it is declared alike."""
        old = new("swapped")
        drop(root, "swapped")
        fresh = new("swapped")
        with pytest.raises(shmrb.StaleAttachmentError, match="Attach again"):
            old.extend({"x": np.arange(2)})
        assert not fresh.initialized
        assert fresh.extend({"y": np.arange(2)}).tolist() == [0, 1]


class TestEnd:
    def test_close_twice_and_use_after(self, new: New) -> None:
        rb = new("closed", schema=SCHEMA, batch_size=1)
        rb.extend({"x": [1, 2]})
        assert rb.is_alive
        rb.close()
        rb.close()
        rb.shutdown()
        assert not rb.is_alive
        calls: list[Callable[[], Any]] = [
            lambda: rb.sample(1),
            lambda: rb.add({"x": 1}),
            lambda: len(rb),
            lambda: rb.write_count,
            lambda: rb.stats(),
            lambda: rb.initialized,
            lambda: rb.schema,
            lambda: rb[0],
            lambda: rb.generations_of(0),
            lambda: rb.empty(),
            lambda: rb.producer(),
            lambda: pickle.dumps(rb),
            lambda: rb.next(),
            lambda: next(iter(rb)),
        ]
        for call in calls:
            with pytest.raises(shmrb.ClosedError, match="was closed"):
                call()
        assert "closed" in repr(rb)

    def test_with_block(self, new: New) -> None:
        with new("block", schema=SCHEMA) as rb:
            rb.add({"x": 5})
        assert not rb.is_alive
        with shmrb.attach("block", format="numpy") as again:
            assert again["x"].tolist() == [5]

    def test_private_buffer_ends_with_its_creator(self, new: New, root: Path) -> None:
        rb = new(schema=SCHEMA)
        assert len(remains(root)) > 0
        rb.close()
        assert remains(root) == []
        assert rb._attachment.address not in attachment._bounded, "nothing left to do at exit"

    def test_creators_lifetime_waits_for_the_last_member(self, new: New, root: Path) -> None:
        owner = new("bounded", schema=SCHEMA, lifetime="creator")
        other = shmrb.attach("bounded", format="numpy")
        owner.extend({"x": [1, 2]})
        owner.close()
        assert other["x"].tolist() == [1, 2]
        with pytest.raises(shmrb.NoSuchBufferError):
            shmrb.attach("bounded")
        other.close()
        assert [name for name in remains(root) if "stamp" not in name] == []

    def test_named_buffer_outlives_its_handles(self, new: New) -> None:
        new("stays", schema=SCHEMA).close()
        with shmrb.attach("stays", format="numpy") as rb:
            assert len(rb) == 0

    def test_forgotten_handle_gives_its_slot_back(self, new: New) -> None:
        watcher = new("forgotten", schema=SCHEMA)
        for _ in range(3):
            shmrb.attach("forgotten", format="numpy")
            gc.collect()
            assert len(watcher.statistics().clients) == 1

    def test_dropped_buffer_is_stale_for_every_call(self, new: New, root: Path) -> None:
        limiter = shmrb.MinSize(1)
        storage = shmrb.SharedStorage(8, lanes=2)
        rb = new("dropped", storage=storage, schema=SCHEMA, batch_size=2, limiter=limiter)
        lane = rb.lane()
        lane.extend({"x": [1, 2]})
        drop(root, "dropped")
        calls: list[Callable[[], Any]] = [
            lambda: rb.sample(),
            lambda: rb.extend({"x": [1]}),
            lambda: rb[0],
            lambda: rb.set_("x", [1, 2]),
            lambda: rb.empty(),
            lambda: rb.empty(lanes=[0]),
            lambda: rb.lane(),
            lambda: rb.limiter.lift(),
            lambda: rb.limiter.set(shmrb.MinSize(2)),
            lambda: rb.generations_of([0]),
            lambda: rb.write_count,
            lambda: len(rb),
            lambda: lane.extend({"x": [1]}),
            lambda: lane.end_trajectory(),
        ]
        for call in calls:
            with pytest.raises(shmrb.StaleAttachmentError, match="is attached to was dropped"):
                call()

    def test_attached_handles_are_counted(self, new: New) -> None:
        rb = new("full", schema=SCHEMA, max_clients=2, client_name="first")
        other = shmrb.attach("full", format="numpy", client_name="second")
        names = [client.name for client in rb.statistics().clients]
        assert names == ["first", "second"]
        with pytest.raises(shmrb.AttachError, match="all 2 client slots are taken"):
            shmrb.attach("full")
        with shmrb.attach("full", role="observer", format="numpy") as looker:
            assert len(looker) == 0, "observers take no slot"
        other.close()
        shmrb.attach("full").close()


class TestPickling:
    def test_handle_is_a_name(self, new: New) -> None:
        """Less than 4 KiB, whatever the size of the buffer."""
        rb = new("much", capacity=4096, schema=stamped.schema(65_536 // 16), batch_size=4)
        rb.extend(stamped.records(1, 0, 512))
        frozen = pickle.dumps(rb)
        assert len(frozen) < 4096
        thawed = pickle.loads(frozen)
        assert (thawed.name, len(thawed), thawed.batch_size) == ("much", 512, 4)
        assert stamped.torn(thawed.sample()) == []
        assert thawed._attachment is not rb._attachment
        thawed.close()

    def test_options_travel_and_the_seed_does_not(self, new: New) -> None:
        order = shmrb.SamplerWithoutReplacement()
        rb = new("own", schema={"x": "float32"}, cast="same_kind", seed=5, default_timeout=1.5)
        rb.set_sampler(order)
        rb.extend({"x": np.arange(8.0)})
        copies = [pickle.loads(pickle.dumps(rb)) for _ in range(3)]
        draws = {tuple(copy.sample(8)["x"].tolist()) for copy in copies}
        assert len(draws) == 3
        for copy in copies:
            assert copy.sampler.ran_out
            assert copy._options.default_timeout == 1.5
            assert copy.extend({"x": np.zeros(1)}).tolist()
            copy.close()

    def test_private_buffers_travel_while_their_creator_lives(self, new: New) -> None:
        rb = new(schema=SCHEMA)
        rb.extend({"x": [3]})
        frozen = pickle.dumps(rb)
        with pickle.loads(frozen) as copy:
            assert copy["x"].tolist() == [3]
        rb.close()
        with pytest.raises(shmrb.AttachError):
            pickle.loads(frozen)

    def test_declared_buffers_travel(self, new: New) -> None:
        rb = new()
        with pickle.loads(pickle.dumps(rb)) as copy:
            copy.extend({"x": [3]})
            assert rb["x"].tolist() == [3]

    def test_it_attaches_to_that_buffer_and_no_other_of_the_name(self, new: New) -> None:
        rb = new("unique", schema=SCHEMA)
        frozen = pickle.dumps(rb)
        new("unique", schema=SCHEMA, exist="replace")
        with pytest.raises(shmrb.StaleAttachmentError, match="is gone"):
            pickle.loads(frozen)

    def test_transforms_do_not_travel(self, new: New) -> None:
        rb = new("transformed", schema=SCHEMA)
        rb.append_transform(lambda batch: batch)
        with pytest.raises(shmrb.SpecError, match="append them after attaching"):
            pickle.dumps(rb)


def test_environment_names_the_root(new: New, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new("here", schema=SCHEMA)
    elsewhere = root.parent / "elsewhere"
    monkeypatch.setenv("SHMRB_ROOT", str(elsewhere))
    with pytest.raises(shmrb.NoSuchBufferError, match="elsewhere"):
        shmrb.attach("here")
    with shmrb.attach("here", root=str(root)) as rb:
        assert rb.name == "here"
    assert not os.path.exists(elsewhere)
