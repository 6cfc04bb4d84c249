"""Parameters: versions, trees, and what is refused."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

import shmrb
from helpers.procs import until
from shmrb.errors import (
    AlreadyExistsError,
    AttachError,
    ClosedError,
    LaneBusyError,
    NoSuchBufferError,
    RecordError,
    SpecError,
    StaleAttachmentError,
)
from shmrb.segment import survey
from shmrb.segment.directory import Root

LIKE = {
    "0.weight": np.zeros((3, 2), np.float32),
    "0.bias": np.zeros(3, np.float32),
    "head": {"scale": np.float64(0), "steps": np.int64(0)},
}


def tree(number: int) -> dict[str, Any]:
    return {
        "0.weight": np.full((3, 2), number, np.float32),
        "0.bias": np.arange(3, dtype=np.float32) + number,
        "head": {"scale": np.array(number / 2), "steps": np.array(3 * number)},
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def parameters(name: str = "policy", **options: Any) -> shmrb.Parameters:
    return shmrb.Parameters(name, format="numpy", **options)


class TestSeenFromOutside:
    def test_trees_that_are_whole_are_counted_and_named_for_what_they_are(self, root: Any) -> None:
        with parameters(like=LIKE) as theta:
            for number in range(5):
                [summary] = survey.survey(Root(root))
                assert (summary.purpose, summary.size) == ("parameters", min(number, 3))
                theta.publish(tree(number))
            assert survey.stats(Root(root), "policy").size == 3


class TestVersions:
    def test_nothing_is_there_before_the_first(self) -> None:
        with parameters(like=LIKE) as theta:
            assert theta.version == -1
            assert theta.latest() == (-1, None)
            assert theta.latest(timeout=0.01) == (-1, None)

    def test_every_reader_sees_the_newest(self) -> None:
        with parameters(like=LIKE) as learner, parameters() as collector:
            for number in range(10):
                assert learner.publish(tree(number)) == number
                assert learner.version == collector.version == number
                for handle in (learner, collector):
                    version, got = handle.latest()
                    assert version == number
                    assert same(got, tree(number))

    def test_only_what_is_newer_is_copied(self) -> None:
        with parameters(like=LIKE) as theta:
            theta.publish(tree(0))
            assert theta.latest(0) == (0, None)
            assert theta.latest(5) == (5, None)
            theta.publish(tree(1))
            version, got = theta.latest(newer_than=0)
            assert (version, same(got, tree(1))) == (1, True)

    def test_own_versions_only_grow(self) -> None:
        with parameters(like=LIKE) as theta:
            assert theta.publish(tree(0), version=7) == 7
            assert theta.publish(tree(1)) == 8
            for refused in (8, 3, -1, 1 << 63):
                with pytest.raises(SpecError, match=rf"expected one above 8, got {refused}"):
                    theta.publish(tree(2), version=refused)
            assert theta.publish(tree(3), version=1_000_000_000_000) == 1_000_000_000_000
            assert same(theta.latest()[1], tree(3))

    def test_successor_goes_on_where_the_last_ended(self) -> None:
        with parameters(like=LIKE) as first:
            first.publish(tree(4), version=4)
        with parameters() as second:
            assert same(second.latest()[1], tree(4))
            assert second.publish(tree(5)) == 5

    def test_what_is_read_is_the_readers_own(self) -> None:
        with parameters(like=LIKE) as theta:
            theta.publish(tree(1))
            _, got = theta.latest()
            got["0.bias"][:] = 99
            assert same(theta.latest()[1], tree(1))

    def test_waiting_ends_when_something_newer_comes(self) -> None:
        with parameters(like=LIKE) as learner, parameters() as collector:
            learner.publish(tree(0))
            found: list[Any] = []
            waiter = threading.Thread(target=lambda: found.append(collector.latest(0, timeout=60)))
            waiter.start()
            until(lambda: any(client.waiting_for == "records" for client in _clients(learner)))
            learner.publish(tree(1))
            waiter.join()
            version, got = found[0]
            assert (version, same(got, tree(1))) == (1, True)


def _clients(theta: shmrb.Parameters) -> Any:
    from shmrb.segment import snapshot

    return snapshot.clients(theta._attachment.member.segment)


class TestPublisher:
    def test_second_living_one_is_refused_by_name(self) -> None:
        with (
            parameters(like=LIKE, client_name="learner 1") as first,
            parameters() as second,
        ):
            first.publish(tree(0))
            with pytest.raises(LaneBusyError, match=r"policy is published by 'learner 1'.*alive"):
                second.publish(tree(1))
            assert second.version == 0
            first.close()
            assert second.publish(tree(1)) == 1

    def test_readers_do_not_hold_the_place(self) -> None:
        with parameters(like=LIKE) as first, parameters(like=LIKE) as second:
            assert first.latest() == (-1, None)
            assert second.publish(tree(0)) == 0

    def test_threads_take_turns(self) -> None:
        with parameters(like=LIKE) as theta:
            found: list[int] = []

            def publish() -> None:
                found.extend(theta.publish(tree(0)) for _ in range(50))

            threads = [threading.Thread(target=publish) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(found) == list(range(200))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"0.bias": np.zeros(3)}, "expected dtype float32, got float64"),
            ({"0.bias": np.zeros(4, np.float32)}, r"expected shape \[3\], got \[4\]"),
            ({"head": {"scale": 0.0}}, "missing .*steps"),
            ({"more": 1}, "unknown 'more'"),
            ({"head": 1}, "'head'"),
        ],
    )
    def test_tree_that_does_not_fit_changes_nothing(self, change: Any, message: str) -> None:
        with parameters(like=LIKE) as theta:
            theta.publish(tree(0))
            with pytest.raises(RecordError, match=message):
                theta.publish(tree(1) | change)
            version, got = theta.latest()
            assert (version, same(got, tree(0))) == (0, True)


class TestLife:
    def test_reader_waits_for_the_name(self) -> None:
        made: list[shmrb.Parameters] = []
        creator = threading.Timer(0.1, lambda: made.append(parameters(like=LIKE)))
        creator.start()
        with parameters(timeout=60) as reader:
            # The name is there before the creator's constructor has returned.
            creator.join()
            assert reader.schema.paths == made[0].schema.paths
        made[0].close()

    def test_reader_of_a_missing_name(self) -> None:
        with pytest.raises(NoSuchBufferError, match="policy"):
            parameters(timeout=0)

    def test_equal_trees_share_a_name_others_are_refused(self) -> None:
        with parameters(like=LIKE), parameters(like=tree(5)) as second:
            other = {**LIKE, "0.bias": np.zeros(4, np.float32)}
            with pytest.raises(AlreadyExistsError, match=r"0\.bias.*float32 \[3\]"):
                parameters(like=other)
            assert second.version == -1

    @pytest.mark.parametrize(
        ("like", "message"),
        [
            ((np.zeros(2),), "expected a tree of named arrays.*got tuple"),
            (np.zeros(2), "expected a tree of named arrays.*got ndarray"),
            ({"a": (np.zeros(2), np.zeros(2))}, "tuple"),
            ({"a": "text"}, "field 'a'"),
            ({}, "no field"),
        ],
    )
    def test_like_that_is_no_tree(self, like: Any, message: str) -> None:
        with pytest.raises(SpecError, match=message):
            parameters(like=like)

    def test_name_of_a_buffer_is_refused_and_the_other_way(self) -> None:
        storage = shmrb.SharedStorage(3)
        buffer = shmrb.ReplayBuffer("ring", storage=storage, schema={"a": int}, format="numpy")
        with buffer, parameters(like=LIKE):
            with pytest.raises(AttachError, match=r"ring in .* holds records.*shmrb\.attach"):
                parameters("ring")
            with pytest.raises(AlreadyExistsError, match="purpose"):
                parameters("ring", like={"a": 1})
            with pytest.raises(AttachError, match=r"policy in .* published parameters.*Parameters"):
                shmrb.attach("policy", format="numpy")
            with pytest.raises(AlreadyExistsError, match="purpose"):
                shmrb.ReplayBuffer("policy", storage=storage, schema={"a": int}, format="numpy")

    def test_closed(self) -> None:
        theta = parameters(like=LIKE)
        theta.close()
        theta.close()
        for call in (theta.latest, lambda: theta.version, lambda: theta.publish(tree(0))):
            with pytest.raises(ClosedError):
                call()

    def test_dropped(self, root: Any) -> None:
        theta = parameters(like=LIKE)
        theta.publish(tree(0))
        assert theta.latest(0) == (0, None)
        Root(root).drop("policy", force=True)
        for call in (
            theta.latest,
            lambda: theta.latest(0),
            lambda: theta.latest(0, timeout=1),
            lambda: theta.version,
            lambda: theta.publish(tree(1)),
        ):
            with pytest.raises(StaleAttachmentError, match="policy"):
                call()
        theta.close()

    def test_pickled_handle_is_small_and_opens_the_same(self) -> None:
        with parameters(like=LIKE) as theta:
            theta.publish(tree(2))
            travelling = pickle.dumps(theta)
            assert len(travelling) < 4096
            with pickle.loads(travelling) as landed:
                assert same(landed.latest()[1], tree(2))
                assert type(landed.latest()[1]["0.weight"]) is np.ndarray


class TestTensors:
    torch = pytest.importorskip("torch")

    def test_network_travels(self) -> None:
        torch = self.torch
        net, other = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
        with (
            shmrb.Parameters("net", like=net.state_dict()) as learner,
            shmrb.Parameters("net") as collector,
        ):
            learner.publish(net.state_dict())
            _, got = collector.latest()
            other.load_state_dict(got)
            assert torch.equal(other.weight, net.weight)
            assert torch.equal(other.bias, net.bias)

    def test_torch_publishes_and_numpy_reads(self) -> None:
        torch = self.torch
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        with shmrb.Parameters("net", like=net.state_dict()) as learner:
            learner.publish(net.state_dict())
            with parameters("net") as collector:
                _, got = collector.latest()
        assert set(got) == set(net.state_dict())
        np.testing.assert_array_equal(got["0.weight"], net[0].weight.detach().numpy())
        assert got["1.num_batches_tracked"].shape == ()

    def test_halves_keep_their_bits(self) -> None:
        torch = self.torch
        values = torch.tensor([1.5, -2.25, 3e38], dtype=torch.bfloat16)
        with shmrb.Parameters("half", like={"a": values}) as theta, parameters("half") as reader:
            theta.publish({"a": values})
            assert torch.equal(theta.latest()[1]["a"], values)
            bits = reader.latest()[1]["a"]
            assert bits.tolist() == values.view(torch.uint16).tolist()

    def test_publishing_copies_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        net = self.torch.nn.Linear(64, 64)
        state = net.state_dict()
        with shmrb.Parameters("net", like=state) as theta:
            taken = []
            record = theta._reader.record

            def spying(tree: Any) -> Any:
                taken.append(record(tree))
                return taken[-1]

            monkeypatch.setattr(theta._reader, "record", spying)
            theta.publish(state)
            addresses = sorted(tensor.data_ptr() for tensor in state.values())
            assert sorted(taken[0].addresses) == addresses


class TestDescription:
    SCHEMA = shmrb.Schema.from_mapping({"a": "float32"})

    def described(self, **changes: Any) -> shmrb.BufferSpec:
        settings = {"storage": shmrb.SharedStorage(3), "schema": self.SCHEMA}
        return shmrb.BufferSpec(**(settings | {"purpose": "parameters"} | changes))

    def test_survives_json_and_differs_from_a_buffer(self) -> None:
        spec = self.described()
        assert shmrb.BufferSpec.from_json(spec.to_json()) == spec
        assert spec.differences(self.described(purpose="buffer")) == [
            "purpose: existing parameters, asked for buffer"
        ]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"purpose": "weights"}, "purpose must be buffer or parameters, got 'weights'"),
            ({"storage": shmrb.SharedStorage(4)}, r"goes with SharedStorage\(3\)"),
            ({"storage": shmrb.SharedStorage(3, lanes=3)}, r"goes with SharedStorage\(3\)"),
            ({"limiter": shmrb.MinSize(1)}, "neither priorities, limiter nor consumption"),
            ({"schema": None}, "needs the schema of a tree"),
            ({"schema": shmrb.schema_like(np.zeros(2))}, "needs the schema of a tree"),
        ],
    )
    def test_other_settings_are_refused(self, changes: Any, message: str) -> None:
        with pytest.raises(SpecError, match=message):
            self.described(**changes)
