"""Fields, schemas, and how they are read off records and environments."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, tensorclass

from shmrb.dtypes import DTYPES, DType, dtype_name
from shmrb.errors import SpecError, UnknownKeyError
from shmrb.fields import MAX_PART_BYTES, RESERVED_KEYS, Field
from shmrb.schema import Schema, schema_from_env, schema_like


def shapes(schema: Schema) -> dict[Any, tuple[str, tuple[int, ...]]]:
    return {field.key: (field.dtype, field.shape) for field in schema.fields}


class TestDTypes:
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
    def test_sizes_are_those_of_numpy_and_torch(self, dtype: DType) -> None:
        assert np.dtype(dtype.numpy).itemsize == dtype.itemsize
        assert getattr(torch, dtype.torch).itemsize == dtype.itemsize

    @pytest.mark.parametrize("name", DTYPES)
    def test_every_spelling_means_the_same(self, name: str) -> None:
        spellings = [name, f"torch.{name}", getattr(torch, name), DTYPES[name]]
        if name != "bfloat16":
            spellings += [np.dtype(name), np.dtype(name).type]
        assert {dtype_name(spelling) for spelling in spellings} == {name}

    def test_python_types(self) -> None:
        names = [dtype_name(kind) for kind in (bool, int, float, complex)]
        assert names == ["bool", "int64", "float32", "complex64"]

    @pytest.mark.parametrize(
        "dtype", [str, object, None, 3, "int", np.dtype("U3"), np.dtype("O"), torch.float8_e5m2]
    )
    def test_others_are_refused(self, dtype: Any) -> None:
        with pytest.raises(SpecError, match=r"expected one of bool, uint8.*got"):
            dtype_name(dtype)

    def test_foreign_byte_order_is_refused(self) -> None:
        foreign = np.dtype("f4").newbyteorder()
        with pytest.raises(SpecError, match="foreign byte order"):
            dtype_name(foreign)


class TestNames:
    def test_keys_that_look_like_paths_stay_distinct(self) -> None:
        keys = ["a/b", "a.b", ("a", "b"), "../x", "a\\b", "ключ 鍵", " ", "é", "e\u0301"]
        schema = Schema.from_mapping(dict.fromkeys(keys, "uint8"))
        assert [field.key for field in schema.fields] == keys
        assert [schema.find(key) for key in keys] == list(range(len(keys)))
        assert Schema.from_json(schema.to_json()) == schema

    @pytest.mark.parametrize(
        ("key", "reason"),
        [
            ("", "empty"),
            (("a", ""), "empty"),
            ((), "1 to 32 parts"),
            (("a",) * 33, "1 to 32 parts"),
            (".", "directory"),
            (("a", ".."), "directory"),
            ("a\x00b", "printed"),
            ("a\nb", "printed"),
            ("\ud800", "printed"),
            ("é" * 128, "256 bytes"),
            ("a" * 300, "300 bytes"),
            (3, "string"),
            (("a", 3), "string"),
            ((("a", "b"), "c"), "string"),
        ],
    )
    def test_bad_keys_are_refused_by_name(self, key: Any, reason: str) -> None:
        with pytest.raises(SpecError, match=reason) as caught:
            Schema.from_mapping({key: "float32"})
        assert f"key {key!r}" in str(caught.value)

    def test_the_longest_part_is_allowed(self) -> None:
        assert Field(("a" * MAX_PART_BYTES,), "bool", ()).key == "a" * MAX_PART_BYTES

    @pytest.mark.parametrize("key", sorted(RESERVED_KEYS))
    def test_our_own_keys_are_refused_at_the_root_only(self, key: str) -> None:
        with pytest.raises(SpecError, match=f"'{key}' is reserved"):
            Schema.from_mapping({"a": "bool", key: "int64"})
        with pytest.raises(SpecError, match=f"'{key}' is reserved"):
            Schema.from_mapping({(key, "a"): "int64"})
        assert Schema.from_mapping({"next": {key: "int64"}}).paths == (("next", key),)

    def test_names_near_ours_are_the_users(self) -> None:
        keys = ("priority", "weight", "_meta", "policy_version", "version", "length")
        assert len(Schema.from_mapping(dict.fromkeys(keys, "int64")).fields) == len(keys)


class TestSchema:
    def test_leaves_and_nesting(self) -> None:
        schema = Schema.from_mapping(
            {
                "observation": ("float32", (3, 4)),
                "scalar": torch.bfloat16,
                "listed": ["int16", [2]],
                "one": (np.uint8, 5),
                "array": np.zeros((2, 0), np.complex64),
                "tensor": torch.zeros(2, dtype=torch.float64),
                "number": int,
                ("next", "done"): (bool, 1),
                "next": {"reward": Field(("elsewhere",), "float16", (1,))},
            }
        )
        assert shapes(schema) == {
            "observation": ("float32", (3, 4)),
            "scalar": ("bfloat16", ()),
            "listed": ("int16", (2,)),
            "one": ("uint8", (5,)),
            "array": ("complex64", (2, 0)),
            "tensor": ("float64", (2,)),
            "number": ("int64", ()),
            ("next", "done"): ("bool", (1,)),
            ("next", "reward"): ("float16", (1,)),
        }
        assert Schema.from_mapping(schema) is schema

    @pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0), (1, 2, 3)])
    def test_row_bytes(self, shape: tuple[int, ...]) -> None:
        field = Field(("a",), "float64", shape)
        assert field.row_bytes == np.zeros(shape).nbytes
        assert Schema((field, Field(("b",), "bool", ()))).row_bytes == field.row_bytes + 1

    @pytest.mark.parametrize(
        ("shape", "reason"),
        [
            ((-1,), "at least 0"),
            ((2.0,), "integer"),
            ((True,), "integer"),
            ("3", "integer"),
            ((1,) * 32, "31 dimensions"),
            ((1 << 20, 1 << 20), "bytes"),
            ((0, 1 << 41), "sizes up to"),
        ],
    )
    def test_bad_shapes(self, shape: Any, reason: str) -> None:
        with pytest.raises(SpecError, match=rf"field 'a'.*{reason}"):
            Schema.from_mapping({"a": ("float32", shape)})

    @pytest.mark.parametrize(
        ("mapping", "reason"),
        [
            ({}, "holds no field"),
            ({"a": {}}, "'a' holds no field"),
            ({"a": ("float32", (), 1)}, r"expected \(dtype, shape\)"),
            ({"a": "float"}, "field 'a': expected one of"),
            ({"a": {"b": "bool"}, ("a", "b"): "bool"}, r"\('a', 'b'\) is given twice"),
            ({"a": "bool", ("a", "b"): "bool"}, "'a' is a field and also the parent"),
            ({("a", "b", "c"): "bool", ("a", "b"): "bool"}, "also the parent"),
            ([("a", "bool")], "expected a dictionary"),
        ],
    )
    def test_bad_mappings(self, mapping: Any, reason: str) -> None:
        with pytest.raises(SpecError, match=reason):
            Schema.from_mapping(mapping)

    def test_find_names_what_there_is(self) -> None:
        schema = Schema.from_mapping({"a": "bool", "b": {"c": "bool"}})
        with pytest.raises(
            UnknownKeyError, match=r"no field 'b'; the record has 'a', \('b', 'c'\)"
        ):
            schema.find("b")
        assert schema.find(["b", "c"]) == 1

    def test_differences(self) -> None:
        one = Schema.from_mapping({"a": "bool", "b": ("int64", 2), "c": "bool"})
        other = Schema.from_mapping({"c": "bool", "b": ("int32", 2), "d": "bool"})
        assert one.differences(other) == [
            "field 'a': existing bool [], asked for none",
            "field 'b': existing int64 [2], asked for int32 [2]",
            "field 'd': existing none, asked for bool []",
        ]

    def test_order_is_kept_and_is_no_difference(self) -> None:
        one = Schema.from_mapping({"a": "bool", "b": "int64"})
        other = Schema.from_mapping({"b": "int64", "a": "bool"})
        assert one.differences(other) == []
        assert other.paths == (("b",), ("a",))

    @pytest.mark.parametrize(
        ("paths", "root"),
        [(["a"], "tensor"), (["tensor", "b"], "tensor"), (["a"], "tuple"), (["1"], "tuple")],
    )
    def test_roots_have_their_own_paths(self, paths: list[str], root: str) -> None:
        with pytest.raises(SpecError, match="schema: "):
            Schema(tuple(Field((path,), "bool", ()) for path in paths), root)
        with pytest.raises(SpecError, match="expected one of dict, tensor, tuple"):
            Schema((Field(("a",), "bool", ()),), "list")


parts = st.text(st.characters(blacklist_categories=("C", "Z")), min_size=1, max_size=8).filter(
    lambda part: part.isprintable() and part not in {".", ".."} | RESERVED_KEYS
)
fields = st.builds(
    Field,
    st.lists(parts, min_size=1, max_size=3).map(tuple),
    st.sampled_from(list(DTYPES)),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
)


def apart(found: list[Field]) -> list[Field]:
    """Those whose first parts differ, so that none is the parent of another."""
    return list({field.path[0]: field for field in found}.values())


schemas = st.lists(fields, min_size=1, max_size=6).map(lambda found: Schema(tuple(apart(found))))
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)

# A busy machine is no failure.
calm = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


class TestJson:
    @calm
    @given(schemas)
    def test_round_trip(self, schema: Schema) -> None:
        assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema

    @calm
    @given(schemas, st.sampled_from(["kind", "root", "fields", "new"]), junk)
    def test_junk_is_refused_as_such(self, schema: Schema, key: str, value: Any) -> None:
        document = schema.to_json()
        if document.get(key) == value:
            return
        with pytest.raises(SpecError):
            Schema.from_json(document | {key: value})

    @calm
    @given(schemas, st.integers(0, 2), junk)
    def test_junk_in_a_field_is_refused_as_such(
        self, schema: Schema, column: int, value: Any
    ) -> None:
        document = schema.to_json()
        document["fields"][0][column] = value
        try:
            read = Schema.from_json(document)
        except SpecError:
            return
        assert read.fields[1:] == schema.fields[1:]

    def test_newer_documents_are_named(self) -> None:
        document = Schema.from_mapping({"a": "bool"}).to_json()
        with pytest.raises(SpecError, match=r"unknown key 'units'.*update shmrb"):
            Schema.from_json(document | {"units": []})
        del document["fields"]
        with pytest.raises(SpecError, match="missing 'fields'"):
            Schema.from_json(document)


@tensorclass
class Step:
    observation: torch.Tensor


class TestSchemaLike:
    def test_leaves(self) -> None:
        record = {
            "float": 1.5,
            "int": 3,
            "bool": True,
            "complex": 1j,
            "half": np.float16(1),
            "double": np.float64(1),
            "array": np.zeros((2, 3), np.uint16),
            "tensor": torch.zeros(4, 0, dtype=torch.bfloat16),
            "list": [[1, 2.5], [3, 4]],
            "arrays": [np.zeros(3, np.int8)] * 2,
            "nested": {"deep": {"flag": False}},
        }
        assert shapes(schema_like(record)) == {
            "float": ("float32", ()),
            "int": ("int64", ()),
            "bool": ("bool", ()),
            "complex": ("complex64", ()),
            "half": ("float16", ()),
            "double": ("float64", ()),
            "array": ("uint16", (2, 3)),
            "tensor": ("bfloat16", (4, 0)),
            "list": ("float32", (2, 2)),
            "arrays": ("int8", (2, 3)),
            ("nested", "deep", "flag"): ("bool", ()),
        }

    def test_tensordicts(self) -> None:
        record = TensorDict(
            {"a": torch.zeros(5, 2), "n": {"b": torch.ones(5)}, "a.b": torch.ones(5)}, 5
        )
        expected = {"a": ("float32", (2,)), ("n", "b"): ("float32", ()), "a.b": ("float32", ())}
        assert shapes(schema_like(record, batched=True)) == expected
        assert shapes(schema_like(record[0])) == expected
        lazy = LazyStackedTensorDict.lazy_stack([record[0], record[1]])
        assert shapes(schema_like(lazy, batched=True)) == expected

    def test_tensorclasses(self) -> None:
        steps = Step(observation=torch.zeros(3, 4), batch_size=[3])
        assert shapes(schema_like(steps, batched=True)) == {"observation": ("float32", (4,))}

    def test_roots(self) -> None:
        tensor = schema_like(torch.zeros(7, 2), batched=True)
        assert (tensor.root, shapes(tensor)) == ("tensor", {"tensor": ("float32", (2,))})
        pair = schema_like((np.zeros(3), {"a": 1}))
        assert pair.root == "tuple"
        assert shapes(pair) == {"0": ("float64", (3,)), ("1", "a"): ("int64", ())}
        assert schema_like([{"a": 1.0}, {"a": 2.0}], batched=True) == schema_like({"a": 1.0})

    @pytest.mark.parametrize(
        "record",
        [
            {"a": [[1, 2], [3]]},
            {"a": [np.zeros(2), np.zeros(3)]},
            {"a": np.array([[1], [2, 3]], dtype=object)},
            {"a": torch.nested.nested_tensor([torch.zeros(2)] * 2, layout=torch.jagged)},
            LazyStackedTensorDict.lazy_stack(
                [TensorDict(a=torch.zeros(2)), TensorDict(a=torch.zeros(3))]
            ),
        ],
    )
    def test_ragged_data_is_refused_with_advice(self, record: Any) -> None:
        with pytest.raises(SpecError, match="pad to a maximum and keep the true size in a field"):
            schema_like(record)

    def test_lists_of_unequal_records_are_refused_with_advice(self) -> None:
        records = [{"a": np.zeros(2)}, {"a": np.zeros(3)}]
        with pytest.raises(SpecError, match=r"record 1 .*float64 \[2\].*float64 \[3\].*pad to"):
            schema_like(records, batched=True)

    @pytest.mark.parametrize(
        ("record", "reason"),
        [
            ({"a": "text"}, "field 'a': expected an array"),
            ({"a": None}, "field 'a': expected an array"),
            ({"a": NonTensorData("text")}, "field 'a': expected an array"),
            (TensorDict({"a": "text"}), "field 'a': expected an array"),
            ({"a": {}}, "field 'a' holds no field"),
            (TensorDict(a=TensorDict()), "field 'a' holds no field"),
            ({"a": []}, "empty list has no dtype"),
            ({"a": [True, 1]}, "mixes bool and int64"),
            ({"a": (1, 2)}, "field 'a' is a tuple"),
            ({"a": np.array(["x"])}, "field 'a': expected one of"),
            ([1, 2], "batched=True"),
            ({"index": 3}, "'index' is reserved"),
            (
                LazyStackedTensorDict.lazy_stack(
                    [TensorDict(a=torch.zeros(2)), TensorDict(b=torch.zeros(2))]
                ),
                "missing in some",
            ),
        ],
    )
    def test_what_no_column_holds(self, record: Any, reason: str) -> None:
        with pytest.raises(SpecError, match=reason):
            schema_like(record)

    @pytest.mark.parametrize(
        "record", [{"a": 1.0}, {"a": np.zeros(3), "b": np.zeros(2)}, np.float32(1)]
    )
    def test_batches_agree_on_their_length(self, record: Any) -> None:
        with pytest.raises(SpecError, match="number of records as the first dimension"):
            schema_like(record, batched=True)
        with pytest.raises(SpecError, match="at least one record"):
            schema_like([], batched=True)


class Box(gymnasium.Env[Any, Any]):
    """An environment that only has spaces."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space = observation
        self.action_space = action


ENDS = {("next", key): ("bool", (1,)) for key in ("terminated", "truncated", "done")}


class TestSchemaFromEnv:
    def test_an_id_an_environment_and_a_vector_of_them_agree(self) -> None:
        expected = {
            "observation": ("float32", (4,)),
            "action": ("int64", ()),
            ("next", "observation"): ("float32", (4,)),
            ("next", "reward"): ("float32", (1,)),
            **ENDS,
        }
        schema = schema_from_env("CartPole-v1")
        assert shapes(schema) == expected
        assert list(shapes(schema)) == list(expected)
        env = gymnasium.make("CartPole-v1")
        vector = gymnasium.make_vec("CartPole-v1", num_envs=3)
        assert schema_from_env(env) == schema_from_env(vector) == schema
        env.close()
        vector.close()

    def test_spaces(self) -> None:
        observation = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
                "inner": spaces.Dict({"flags": spaces.MultiBinary([2, 3])}),
            }
        )
        schema = schema_from_env(Box(observation, spaces.MultiDiscrete([3, 4])))
        assert shapes(schema) == {
            ("observation", "image"): ("uint8", (8, 8, 3)),
            ("observation", "inner", "flags"): ("int8", (2, 3)),
            "action": ("int64", (2,)),
            ("next", "observation", "image"): ("uint8", (8, 8, 3)),
            ("next", "observation", "inner", "flags"): ("int8", (2, 3)),
            ("next", "reward"): ("float32", (1,)),
            **ENDS,
        }

    def test_what_records_of_one_shape_cannot_hold(self) -> None:
        number = spaces.Discrete(2)
        for space, reason in (
            (spaces.Tuple([number, number]), "'observation': .*got Tuple. Give its parts names"),
            (spaces.Sequence(number), "got Sequence. Every record has the same shape: pad"),
            (spaces.Dict({"words": spaces.Text(5)}), r"\('observation', 'words'\): .*got Text"),
            (spaces.Dict({}), "holds no space"),
        ):
            with pytest.raises(SpecError, match=reason):
                schema_from_env(Box(space, number))
        with pytest.raises(SpecError, match=r"space at 'action'.*got Tuple"):
            schema_from_env(Box(number, spaces.Tuple([number])))
        with pytest.raises(SpecError, match="expected a Gymnasium environment"):
            schema_from_env(object())


def test_describing_loads_neither_numpy_nor_torch_nor_gymnasium() -> None:
    code = (
        "import sys\n"
        "from shmrb.schema import schema_like\n"
        "from shmrb.spec import BufferSpec, SharedStorage\n"
        "import shmrb.results\n"
        "BufferSpec(storage=SharedStorage(3), schema=schema_like({'a': 1.0})).to_json()\n"
        "print({'numpy', 'torch', 'tensordict', 'gymnasium'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
