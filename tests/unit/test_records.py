"""Records on their way in: what is accepted, what is refused, and what the refusal says."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from shmrb.dtypes import DTYPES
from shmrb.errors import RecordError, UnknownKeyError
from shmrb.nesting import flat_fields, rows_of, with_first_dimension
from shmrb.records import RecordReader, Rows
from shmrb.schema import Schema, schema_like

PLAIN = {"x": "int64", "n": {"w": ("float32", 2)}}


def reader(fields: Any, cast: str = "no") -> RecordReader:
    return RecordReader(Schema.from_mapping(fields), cast)


def bytes_at(rows: Rows, column: int, reader: RecordReader) -> bytes:
    return ctypes.string_at(rows.addresses[column], rows.count * reader.strides[column])


def values(rows: Rows, column: int, reader: RecordReader) -> list[Any]:
    dtype = DTYPES[reader.schema.fields[column].dtype].numpy
    return np.frombuffer(bytes_at(rows, column, reader), dtype).tolist()


def x_of(data: Any, dtype: str = "int64", shape: Any = (), cast: str = "no") -> list[Any]:
    one = reader({"x": (dtype, shape)}, cast)
    return values(one.record({"x": data}), 0, one)


class TestShapesOfData:
    def test_nested_dictionaries_of_arrays(self) -> None:
        plain = reader(PLAIN)
        w = np.arange(6, dtype=np.float32).reshape(3, 2)
        rows = plain.batch({"x": np.arange(3), "n": {"w": w}})
        assert rows.count == 3
        assert values(rows, 0, plain) == [0, 1, 2]
        assert values(rows, 1, plain) == w.ravel().tolist()

    def test_data_that_lies_right_is_not_copied(self) -> None:
        plain = reader(PLAIN)
        x, w = np.arange(3), torch.zeros(3, 2)
        rows = plain.batch({"x": x, "n": {"w": w}})
        assert rows.addresses == [x.ctypes.data, w.data_ptr()]

    @pytest.mark.parametrize("as_batch", [True, False])
    def test_tensordicts_and_mixtures(self, as_batch: bool) -> None:
        plain = reader(PLAIN)
        lead = [2] if as_batch else []
        data = {"x": torch.ones(lead, dtype=torch.int64), "n": {"w": np.ones((*lead, 2), "f4")}}
        tensors = TensorDict({"x": data["x"], ("n", "w"): torch.ones(*lead, 2)}, lead)
        read = plain.batch if as_batch else plain.record
        for given in (data, tensors, {"x": data["x"], "n": tensors["n"]}):
            rows = read(given)
            assert rows.count == (2 if as_batch else 1)
            assert values(rows, 1, plain) == [1.0] * 2 * rows.count

    def test_lazy_stack_as_collectors_pass_it(self) -> None:
        plain = reader(PLAIN)
        steps = [
            TensorDict({"x": torch.tensor(u), "n": {"w": torch.full((2,), float(u))}}, [])
            for u in (3, 4)
        ]
        rows = plain.batch(LazyStackedTensorDict.lazy_stack(steps))
        assert (rows.count, values(rows, 0, plain)) == (2, [3, 4])
        assert values(rows, 1, plain) == [3.0, 3.0, 4.0, 4.0]

    def test_list_of_records(self) -> None:
        plain = reader(PLAIN)
        rows = plain.batch([{"x": u, "n": {"w": [u, 0.5]}} for u in (7, 8)])
        assert (rows.count, values(rows, 0, plain)) == (2, [7, 8])
        assert values(rows, 1, plain) == [7.0, 0.5, 8.0, 0.5]

    def test_bare_array_is_one_field(self) -> None:
        bare = RecordReader(schema_like(np.zeros(3, np.float32)))
        rows = bare.batch(np.arange(6, dtype=np.float32).reshape(2, 3))
        assert (rows.count, values(rows, 0, bare)) == (2, [0, 1, 2, 3, 4, 5])
        assert bare.record(torch.zeros(3)).count == 1
        assert bare.batch([[1.0, 2.0, 3.0]]).count == 1
        with pytest.raises(RecordError, match=r"one bare array.*got fields"):
            bare.record({"x": np.zeros(3, np.float32)})

    def test_tuple_is_a_pytree(self) -> None:
        both = RecordReader(schema_like((np.zeros(2, np.float32), {"a": 1})))
        rows = both.batch((np.ones((4, 2), np.float32), {"a": np.arange(4)}))
        assert (rows.count, values(rows, 1, both)) == (4, [0, 1, 2, 3])
        with pytest.raises(RecordError, match="expected a tuple, got dict"):
            both.batch({"0": np.ones((4, 2), np.float32)})

    def test_strided_and_foreign_memory_is_gathered(self) -> None:
        wide = np.arange(12, dtype=np.int64).reshape(3, 4)
        assert x_of(wide[:, 1], shape=3) == [1, 5, 9]
        assert x_of(torch.from_numpy(wide).T[1], shape=3) == [1, 5, 9]
        assert x_of(np.asfortranarray(wide), shape=(3, 4)) == list(range(12))
        assert x_of(wide[::-1, 0], shape=3) == [8, 4, 0]

    def test_read_only_arrays_are_read(self) -> None:
        frozen = np.arange(3)
        frozen.flags.writeable = False
        assert x_of(frozen, shape=3) == [0, 1, 2]

    def test_what_torch_has_put_off_is_done_first(self) -> None:
        """Lazy conjugates and negations have a sign that is not in memory."""
        number = torch.tensor([1 + 2j, 3 - 4j])
        assert x_of(number.conj(), "complex64", 2) == [1 - 2j, 3 + 4j]
        assert x_of(number.conj().imag, "float32", 2) == [-2.0, 4.0]

    def test_tensor_that_wants_gradients(self) -> None:
        parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        assert x_of(parameter, "float32", 2) == [1.0, 2.0]
        assert x_of(parameter * 2, "float32", 2) == [2.0, 4.0]

    def test_memory_mapped_tensors(self, tmp_path: Any) -> None:
        stored = TensorDict({"x": torch.arange(4)}, [4]).memmap(tmp_path)
        one = reader({"x": "int64"})
        assert values(one.batch(stored), 0, one) == [0, 1, 2, 3]

    def test_tuple_key_stands_for_nested_fields(self) -> None:
        plain = reader(PLAIN)
        rows = plain.batch({"x": np.arange(2), ("n", "w"): np.ones((2, 2), "f4")})
        assert values(rows, 1, plain) == [1.0] * 4
        with pytest.raises(RecordError, match=r"missing \('n', 'w'\) and unknown \('n', 'v'\)"):
            plain.batch({"x": np.arange(2), ("n", "v"): np.ones((2, 2), "f4")})


class TestNumbers:
    @pytest.mark.parametrize(
        ("dtype", "value", "stored"),
        [
            ("float32", 1, 1.0),
            ("float32", True, 1.0),
            ("float32", 0.1, np.float32(0.1)),
            ("float64", 0.1, 0.1),
            ("float16", math.inf, math.inf),
            ("int64", 2.0, 2),
            ("int64", -(2**63), -(2**63)),
            ("uint64", 2**64 - 1, 2**64 - 1),
            ("uint8", 255, 255),
            ("bool", True, True),
            ("bool", 1, True),
            ("complex64", 1.5, 1.5 + 0j),
            ("float32", np.float64(0.5), 0.5),
            ("int64", np.int32(3), 3),
            ("bool", np.bool_(False), False),
        ],
    )
    def test_number_takes_the_dtype_of_its_column(
        self, dtype: str, value: Any, stored: Any
    ) -> None:
        assert x_of(value, dtype) == [stored]

    @pytest.mark.parametrize(
        ("dtype", "value"),
        [
            ("uint8", 256),
            ("uint8", -1),
            ("int8", 128),
            ("int64", 0.5),
            ("int64", math.nan),
            ("int64", math.inf),
            ("int64", 2**63),
            ("bool", 2),
            ("bool", 0.5),
            ("float16", 1e6),
            ("float32", 1e39),
            ("float32", 1j),
            ("int64", 1j),
            ("uint32", [0, -1]),
        ],
    )
    def test_number_that_the_column_cannot_hold_is_refused(self, dtype: str, value: Any) -> None:
        shape = (2,) if isinstance(value, list) else ()
        with pytest.raises(RecordError, match=rf"field 'x': .*{dtype}"):
            x_of(value, dtype, shape)

    def test_lists_of_numbers(self) -> None:
        assert x_of([[1, 2], [3, 4]], "int32", (2, 2)) == [1, 2, 3, 4]
        assert x_of([], "float32", (0,)) == []
        with pytest.raises(RecordError, match=r"ragged.*length"):
            x_of([[1, 2], [3]], "int32", (2, 2))

    def test_bfloat16(self) -> None:
        half = torch.tensor([1.0, -2.5], dtype=torch.bfloat16)
        bits = half.view(torch.uint16).numpy()
        for given in (half, bits, [1.0, -2.5]):
            assert x_of(given, "bfloat16", 2) == bits.tolist()
        assert x_of(bits[1], "bfloat16") == [bits[1]], "a uint16 scalar is bits too"
        assert x_of(-2.5, "bfloat16") == [bits[1]]
        with pytest.raises(RecordError, match="expected dtype bfloat16, got float32"):
            x_of(np.zeros(2, np.float32), "bfloat16", 2)

    @pytest.mark.parametrize("value", ["text", None, b"x", object(), [None], {1, 2}])
    def test_no_number_at_all(self, value: Any) -> None:
        with pytest.raises(RecordError, match="field 'x'"):
            x_of(value)

    def test_what_only_pretends_to_be_an_array(self) -> None:
        class Pretender:
            def __array__(self, *_: Any, **__: Any) -> Any:
                raise TypeError("lies on another device")

        with pytest.raises(RecordError, match=r"'x': no values that numpy can read .*device"):
            x_of(Pretender())


class TestRefusals:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({"x": np.arange(2)}, r"missing \('n', 'w'\)"),
            ({"x": np.arange(2), "n": {}}, r"missing \('n', 'w'\)"),
            ({"x": np.arange(2), "n": np.zeros(2)}, r"missing \('n', 'w'\) and unknown 'n'"),
            ({"n": {"w": np.zeros((2, 2), "f4")}}, "missing 'x'"),
            ({"x": np.arange(2), "n": {"w": np.zeros((2, 2), "f4")}, "y": 1}, "unknown 'y'"),
            (
                {"x": np.arange(2), "n": {"w": np.zeros((2, 2), "f4"), "z": 1}},
                r"unknown \('n', 'z'",
            ),
            (
                {"x": np.arange(2.0), "n": {"w": np.zeros((2, 2), "f4")}},
                "'x': expected dtype int64",
            ),
            ({"x": np.arange(2), "n": {"w": np.zeros((2, 3), "f4")}}, r"expected shape \[2, 2\]"),
            ({"x": np.arange(3), "n": {"w": np.zeros((2, 2), "f4")}}, "same number of records"),
            ({"x": 5, "n": {"w": np.zeros((2, 2), "f4")}}, r"same number.*add\(\)"),
            (np.arange(2), r"expected fields 'x', \('n', 'w'\), got ndarray"),
            ("text", "got str"),
        ],
    )
    def test_batch_that_does_not_match_is_refused_by_name(self, data: Any, message: str) -> None:
        with pytest.raises(RecordError, match=message):
            reader(PLAIN).batch(data)

    def test_tensor_of_another_dtype_or_shape(self) -> None:
        with pytest.raises(RecordError, match=r"'x': expected dtype int64, got float32.*cast="):
            x_of(torch.zeros(()))
        with pytest.raises(RecordError, match=r"'x': expected shape \[\], got \[1\]"):
            x_of(torch.zeros(1, dtype=torch.int64))
        with pytest.raises(RecordError, match="expected dtype int64, got complex64"):
            x_of(torch.zeros((), dtype=torch.complex64))

    def test_foreign_byte_order(self) -> None:
        with pytest.raises(RecordError, match="expected dtype int64, got >i8"):
            x_of(np.arange(2, dtype=">i8"), shape=2)
        assert x_of(np.arange(2, dtype=">i8"), shape=2, cast="same_kind") == [0, 1]

    def test_field_that_is_given_twice(self) -> None:
        w = np.zeros((2, 2), "f4")
        with pytest.raises(RecordError, match="given twice"):
            reader(PLAIN).batch({"x": np.arange(2), ("n", "w"): w, "n": {"w": w}})

    def test_ragged_stack_is_refused_with_advice(self) -> None:
        steps = [TensorDict({"x": torch.zeros(n)}, []) for n in (2, 3)]
        one = reader({"x": ("float32", 2)})
        with pytest.raises(RecordError, match="length"):
            one.batch(LazyStackedTensorDict.lazy_stack(steps))

    def test_empty_batches_hold_nothing(self) -> None:
        plain = reader(PLAIN)
        assert plain.batch({"x": np.arange(0), "n": {"w": np.zeros((0, 2), "f4")}}).count == 0
        with pytest.raises(RecordError, match="empty list"):
            plain.batch([])

    def test_unknown_cast(self) -> None:
        with pytest.raises(RecordError, match="'no' or 'same_kind'"):
            reader(PLAIN, "unsafe")


class TestCasts:
    @pytest.mark.parametrize("make", [np.asarray, torch.tensor])
    def test_same_kind_lets_wider_and_narrower_in(self, make: Any) -> None:
        assert x_of(
            make([1.5, 2.5]).astype("f8") if make is np.asarray else make([1.5, 2.5]).double(),
            "float32",
            2,
            "same_kind",
        ) == [1.5, 2.5]
        assert x_of(make([1, 2]), "float32", 2, "same_kind") == [1.0, 2.0]

    @pytest.mark.parametrize("value", [np.zeros(2), torch.zeros(2)])
    def test_same_kind_still_refuses_floats_for_integers(self, value: Any) -> None:
        with pytest.raises(RecordError, match="expected dtype int64"):
            x_of(value, "int64", 2, "same_kind")


class TestValuesOfOneField:
    def test_position_and_array(self) -> None:
        position, array = reader(PLAIN).values(("n", "w"), [[1, 2], [3, 4]], 2)
        assert position == 1
        assert array.tolist() == [[1.0, 2.0], [3.0, 4.0]]

    def test_unknown_field_lists_those_there_are(self) -> None:
        with pytest.raises(
            UnknownKeyError, match=r"no field 'y'; the record has 'x', \('n', 'w'\)"
        ):
            reader(PLAIN).values("y", [1], 1)
        with pytest.raises(KeyError):
            reader(PLAIN).values(("n",), [1], 1)


class TestNestedData:
    def test_rows_of(self) -> None:
        assert rows_of([1, 2, 3]) == 3
        assert rows_of({"n": {"w": np.zeros((4, 2))}}) == 4
        assert rows_of((torch.zeros(5),)) == 5
        assert rows_of(TensorDict({"x": torch.zeros(6)}, [6])) == 6
        for nothing in (3.0, {}, (), np.zeros(())):
            with pytest.raises(RecordError, match="first dimension"):
                rows_of(nothing)

    def test_with_first_dimension(self) -> None:
        one = with_first_dimension({"x": 1, "n": {"w": np.zeros(2)}, "t": torch.zeros(3)})
        assert (one["x"], one["n"]["w"].shape, one["t"].shape) == ([1], (1, 2), (1, 3))
        assert with_first_dimension(TensorDict({"x": torch.zeros(2)}, [])).batch_size == (1,)
        assert with_first_dimension((1, np.zeros(2)))[1].shape == (1, 2)

    def test_flat_fields(self) -> None:
        flat = flat_fields({"x": 1, "n": TensorDict({"w": torch.zeros(2)}, [2])})
        assert list(flat) == [("x",), ("n", "w")]
        assert list(flat_fields({("n", "w"): 1})) == [("n", "w")]
        with pytest.raises(RecordError, match="by name"):
            flat_fields([1])
