"""Samples to batches and back."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as arrays_of

from holdfast.data.formats.columns import (
    Batch,
    BytesColumn,
    RaggedColumn,
    ZeroCopyBytesColumn,
    nbytes_of,
    rows_of,
    split_samples,
)
from holdfast.data.formats.gather import join_bytes
from holdfast.data.loader.pipeline.collate import collate, pad_columns
from holdfast.errors import SchemaError
from holdfast.schema import Array, Bytes, Float32, Int64, Ragged

pytestmark = pytest.mark.formats


def column_of(values: list[Any], how: Any = None, **options: Any) -> Any:
    return collate([{"a": value} for value in values], how, **options)["a"]


def splits(*ends: int) -> Any:
    return np.array(ends, np.int64)


# ---- stacked


@pytest.mark.parametrize(
    ("values", "dtype", "wanted"),
    [
        ([1, 2], "int64", [1, 2]),
        ([1.5, 2.5], "float32", [1.5, 2.5]),
        ([1, 2.5], "float32", [1, 2.5]),
        ([True, False], "bool", [True, False]),
        ([True, 2], "int64", [1, 2]),
        ([np.int32(1), np.int32(2)], "int32", [1, 2]),
        ([np.float64(1), np.float64(2)], "float64", [1, 2]),
        ([np.float32(1), 2.0], "float32", [1, 2]),
        ([np.int8(1), 2], "int8", [1, 2]),
        ([np.uint8(1), np.float32(2)], "float32", [1, 2]),
        ([np.array(3), np.array(4)], "int64", [3, 4]),
        ([[1, 2], [3, 4]], "int64", [[1, 2], [3, 4]]),
        ([[1.5, 2], [3, 4]], "float32", [[1.5, 2], [3, 4]]),
        ([[np.float64(1)], [np.float64(2)]], "float64", [[1], [2]]),
        ([[[1], [2]], [[3], [4]]], "int64", [[[1], [2]], [[3], [4]]]),
        ([[], []], "float32", [[], []]),
        ([np.zeros((2, 2), np.uint8), np.ones((2, 2), np.uint8)], "uint8", [[[0, 0], [0, 0]], [[1, 1], [1, 1]]]),
        ([np.zeros(1, np.uint8), np.ones(1)], "float64", [[0], [1]]),
        ([np.zeros((0, 3)), np.zeros((0, 3))], "float64", [[], []]),
        ([array("i", [1, 2]), array("i", [3, 4])], "int32", [[1, 2], [3, 4]]),
        ([np.datetime64("2020-01-01"), np.datetime64("2020-01-02")], "datetime64[D]", None),
        ([1j, 2j], "complex128", [1j, 2j]),
    ],
)
@pytest.mark.parametrize("how", [None, "stack"])
def test_values_of_one_shape_are_stacked(values: list[Any], dtype: str, wanted: Any, how: Any) -> None:
    column = column_of(values, how)
    assert column.dtype == dtype
    assert wanted is None or column.tolist() == wanted
    assert len(column) == 2


def test_a_stacked_column_is_a_copy() -> None:
    value = np.zeros(3)
    column = column_of([value])
    value[:] = 7
    assert column.tolist() == [[0, 0, 0]]


def test_arrays_that_are_not_in_one_piece() -> None:
    images = [np.arange(24).reshape(2, 3, 4)[::-1, :, ::2] + i for i in range(3)]
    assert column_of(images).tolist() == np.stack(images).tolist()


def test_strings_of_all_sorts() -> None:
    two_by_two = memoryview(b"abcd").cast("B", (2, 2))
    column = column_of([b"x", "né", bytearray(b"yz"), memoryview(b"abc")[1:], b"", two_by_two, np.bytes_(b"q")])
    assert isinstance(column, BytesColumn)
    assert column.tolist() == [b"x", "né".encode(), b"yz", b"bc", b"", b"abcd", b"q"]
    assert column.values.flags.writeable


class Tensor:
    """What torch's tensors look like from here."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def numpy(self) -> Any:
        if self.data is None:
            raise RuntimeError("Can't call numpy() on a tensor that requires grad")
        return self.data


class Image:
    def __init__(self, pixels: Any) -> None:
        self.__array_interface__ = pixels.__array_interface__
        self.pixels = pixels


def test_tensors_and_images() -> None:
    assert column_of([Tensor(np.float32(1)), Tensor(np.float32(2))]).dtype == np.float32
    assert column_of([Tensor(np.ones((2, 3))), Tensor(np.ones((2, 3)))]).shape == (2, 2, 3)
    assert column_of([Tensor(b"ab"), Tensor(b"c")]).tolist() == [b"ab", b"c"]
    assert column_of([Image(np.ones((2, 3), np.uint8))]).tolist() == [[[1, 1, 1], [1, 1, 1]]]
    with pytest.raises(SchemaError, match="column 'a', sample 1 of the batch: Tensor .* requires grad"):
        column_of([Tensor(np.float32(1)), Tensor(None)])


def test_real_tensors() -> None:
    torch = pytest.importorskip("torch")
    column = column_of([torch.arange(3), torch.arange(3) + 1])
    assert (column.dtype, column.tolist()) == (np.int64, [[0, 1, 2], [1, 2, 3]])
    assert column_of([torch.tensor(1.5), torch.tensor(2.5)]).dtype == np.float32


# ---- dtypes

BIG = 2**64 - 1
NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "dtype", "wanted"),
    [
        ([np.uint64(BIG), 0], "uint64", [BIG, 0]),
        ([0, np.uint64(1), BIG], "uint64", [0, 1, BIG]),
        ([[np.uint64(BIG), 0]], "uint64", [[BIG, 0]]),
        ([np.array([BIG], np.uint64), [2**63]], "uint64", [[BIG], [2**63]]),
        ([np.float64(0.2), 0.1], "float64", [0.2, 0.1]),
        ([[np.float64(0.2), 0.1]], "float64", [[0.2, 0.1]]),
        ([np.array([0.2]), [0.1], [3]], "float64", [[0.2], [0.1], [3]]),
        ([np.float64(0.2), 2**53], "float64", [0.2, 2**53]),
        ([np.float16(1), 0.1], "float16", [1, float(np.float16(0.1))]),
        ([np.float32(1), float("inf")], "float32", [1, float("inf")]),
        ([np.uint8(1), 0.1], "float32", [1, float(np.float32(0.1))]),
        ([np.int32(2**31 - 1), 0.1], "float64", [2**31 - 1, 0.1]),
        ([np.int32(2**31 - 1), np.float32(0.5)], "float64", [2**31 - 1, 0.5]),
        ([np.uint32(2**32 - 1), np.int8(-1)], "int64", [2**32 - 1, -1]),
        ([np.bool_(True), 2], "int64", [1, 2]),
        ([np.uint8(7), True], "uint8", [7, 1]),
        ([2**24, NAN], "float32", None),
        ([[[]], np.zeros((1, 0), np.uint8)], "uint8", [[[]], [[]]]),
        ([[np.zeros(2, np.uint8)], [np.ones(2, np.uint8)]], "uint8", [[[0, 0]], [[1, 1]]]),
        ([[np.zeros(0, np.uint8)], [np.ones(0, np.uint8)]], "uint8", [[[]], [[]]]),
        ([[[np.uint8(1)] * 2] * 2, [[np.uint8(2)] * 2] * 2], "uint8", [[[1, 1]] * 2, [[2, 2]] * 2]),
        ([[(1, 2)], [[3, 4]]], "int64", [[[1, 2]], [[3, 4]]]),
    ],
)
def test_numbers_beside_each_other_keep_their_values(values: list[Any], dtype: str, wanted: Any) -> None:
    for order in (values, values[::-1]):
        column = column_of(order)
        assert column.dtype == dtype
        assert wanted is None or column.tolist() == (wanted if order is values else wanted[::-1])


@pytest.mark.parametrize("how", ["stack", "pad", "ragged"])
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([np.uint64(BIG), np.int64(1)], "sample 0 is uint64, sample 1 is int64, and no dtype holds"),
        ([np.int64(1), np.int64(2), np.float64(1)], "sample 0 is int64, sample 2 is float64, and no"),
        ([np.zeros(1, np.int64), np.zeros(1, np.float32)], "sample 0 is int64, sample 1 is float32"),
        ([np.uint64(1), np.int8(1), np.uint8(1)], "sample 0 is uint64, sample 1 is int8"),
        ([np.array("x"), np.int64(1)], "sample 0 is <U1, sample 1 is int64"),
        ([np.int64(16777217), NAN], "sample 0 is int64, sample 1 is Python float, and no dtype holds"),
        ([[0.5], np.zeros(1, np.uint64)], "sample 0 is Python float, sample 1 is uint64"),
        (
            [[np.uint64(1), np.int64(1)]],
            "sample 0 is u?int64, sample 0 is u?int64, and no dtype",
        ),
        ([[np.int64(1), 0.5]], "sample 0 is int64, sample 0 is Python float, and no dtype"),
        ([np.uint8(1), 300], "sample 1 of the batch: uint8 cannot hold 300. This is the dtype of sample 0"),
        ([-1, np.uint64(1)], "sample 0 of the batch: uint64 cannot hold -1. This is the dtype of sample 1"),
        ([[np.uint8(1), 300]], "sample 0 of the batch: uint8 cannot hold 300"),
        ([np.float32(1), 1e300], "sample 1 of the batch: float32 cannot hold 1e[+]300. This is the dtype of sample 0"),
        ([np.float16(1), 2049], "sample 1 of the batch: float16 cannot hold 2049 exactly"),
        ([np.float64(1), 2**53 + 1], "sample 1 of the batch: float64 cannot hold 9007199254740993 exactly"),
        ([0.5, 1e300], "sample 1 of the batch: float32 cannot hold 1e[+]300. This is the dtype of Python floats"),
        ([0.5, 10**400], "sample 1 of the batch: float32 cannot hold 1000"),
        ([NAN, 16777217], "sample 1 of the batch: float32 cannot hold 16777217 exactly. This is the dtype of Python"),
        ([[NAN], [16777217]], "sample 1 of the batch: float32 cannot hold 16777217 exactly"),
        ([[1], [2**63]], "sample 1 of the batch: int64 cannot hold 9223372036854775808. This is the dtype of Python"),
        ([[1], [1e300]], "sample 1 of the batch: float32 cannot hold 1e[+]300"),
    ],
)
def test_numbers_that_no_dtype_holds_are_refused(values: list[Any], said: str, how: Any) -> None:
    with pytest.raises(SchemaError, match=f"column 'a'.*{said}"):
        column_of(values, how)


def test_lists_of_lists_of_different_dtypes_are_refused() -> None:
    rows = [RaggedColumn(np.ones(1, dtype), splits(0, 1)) for dtype in (np.uint64, np.int64)]
    with pytest.raises(SchemaError, match="column 'a': .* sample 0 is uint64, sample 1 is int64"):
        column_of(rows, "ragged")


@pytest.mark.parametrize("dtype", ["float64", "float16", "uint8", "int64", "bool"])
def test_lists_have_the_dtype_of_a_ragged_column_in_the_schema(dtype: Any) -> None:
    schema = {"a": Ragged(Array(dtype))}
    numbers = np.array([0, 1, 1], dtype)
    for values in ([[], []], [[], numbers.tolist()], [numbers.tolist()], [list(numbers), []]):
        assert column_of(values, schema=schema).values.dtype == dtype
    for other in ([np.int16(3)], [np.zeros(2, np.int16)]):  # a function may make something else of it
        assert column_of([other], schema=schema).values.dtype == np.int16


def test_lists_that_do_not_fit_a_ragged_column_in_the_schema() -> None:
    schema = {"a": Ragged(Array("uint8"))}
    assert column_of([[0.5], []], schema=schema).values.dtype == np.float32
    with pytest.raises(
        SchemaError, match="sample 1 of the batch: uint8 cannot hold 256. This is the dtype of the schema"
    ):
        column_of([[255], [256]], schema=schema)


numpy_numbers = st.sampled_from(
    [np.dtype(name) for name in ("?", "i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8")]
).flatmap(lambda dtype: arrays_of(dtype, ()).map(lambda array: array[()]))
python_numbers = st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False)


@given(values=st.lists(numpy_numbers | python_numbers, min_size=1, max_size=4), lists=st.sampled_from([0, 1, 2]))
@settings(deadline=None, max_examples=300)
def test_a_batch_holds_the_numbers_of_its_samples_or_is_refused(values: list[Any], lists: int) -> None:
    samples = [values] if lists == 2 else [[value] for value in values] if lists else values
    try:
        column = column_of(samples).reshape(-1)
    except SchemaError:
        return
    for value, found in zip(values, column.tolist(), strict=True):
        if type(value) is float:
            assert column.dtype.kind == "f"
            assert found == column.dtype.type(value)
            assert np.isinf(found) == np.isinf(value)
        else:  # compared as Python's numbers, which is exact
            wanted = value.item() if isinstance(value, np.generic) else value
            assert found == wanted or (wanted != wanted and found != found)


# ---- unequal


def test_unequal_shapes_name_both_and_say_what_helps() -> None:
    with pytest.raises(
        SchemaError,
        match=r"column 'a': sample 0 of the batch has the shape \(3,\), sample 2 the shape \(5,\): "
        r'use collate="pad" or collate="ragged"',
    ):
        column_of([np.zeros(3), np.zeros(3), np.zeros(5)])
    with pytest.raises(SchemaError, match=r"sample 0 of the batch has the shape \(\), sample 1 the shape \(1,\)"):
        column_of([1, [1]])
    with pytest.raises(SchemaError, match=r"sample 0 .* the shape \(1,\), sample 1 the shape \(2,\): use collate"):
        column_of([["x"], ["x", "y"]])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, None], "sample 1 of the batch: expected numbers, an array, bytes or a list of these, got None"),
        ([1, {"b": 1}], "sample 1 of the batch: .* got dict"),
        ([np.array([None])], "expected numbers, got arrays of Python objects"),
        ([[1, 2], [None, 2]], "sample 1 of the batch"),
        ([[[1], [1, 2]]], "sample 0 of the batch"),
        (
            [1 << 64],
            "sample 0 of the batch: int64 cannot hold 18446744073709551616. This is the dtype of Python ints",
        ),
        ([1, b"x"], "sample 0 of the batch is numbers, sample 1 is a string"),
        ([b"x", ["x"]], "sample 0 of the batch is a string, sample 1 is a list of strings"),
        ([[1, "x"]], "sample 0 of the batch: list .* strings and numbers in one list"),
        ([np.array(["2020-01-01"], "M8[D]"), np.ones(1)], "column 'a': the samples' types are incompatible"),
    ],
)
def test_values_that_make_no_column(values: list[Any], text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        column_of(values)


def test_samples_of_other_keys() -> None:
    with pytest.raises(SchemaError, match="column 'b' is in sample 0 of the batch, but not in sample 1"):
        collate([{"a": 1, "b": 2}, {"a": 1}])
    with pytest.raises(SchemaError, match="column 'c' is in sample 2 of the batch, but not in sample 0"):
        collate([{"a": 1}, {"a": 1}, {"a": 1, "c": 2}])


def test_samples_are_dicts() -> None:
    with pytest.raises(SchemaError, match="sample 1 of the batch: expected a dict of columns, got NoneType None"):
        collate([{"a": 1}, None])  # type: ignore[list-item]


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        collate([])
    with pytest.raises(ValueError, match="expected collate to be one of"):
        collate([{"a": 1}], "glue")  # type: ignore[arg-type]


def test_the_order_of_columns_is_the_first_samples() -> None:
    assert list(collate([{"b": 1, "a": 2}, {"a": 3, "b": 4}])) == ["b", "a"]


# ---- padded


def test_arrays_are_padded_in_every_dimension() -> None:
    column = column_of([np.ones((1, 3)), np.ones((2, 1))], "pad", pad_value=-1)
    assert column.tolist() == [[[1, 1, 1], [-1, -1, -1]], [[1, -1, -1], [1, -1, -1]]]
    assert column_of([[1], [], [2, 3]], "pad").tolist() == [[1, 0], [0, 0], [2, 3]]
    assert column_of([1, 2], "pad").tolist() == [1, 2]
    assert column_of([np.zeros(1, np.uint8), np.zeros(2, np.float32)], "pad").dtype == np.float32


def test_lists_of_strings_are_padded_with_empty_ones() -> None:
    column = column_of([["x"], [], ["y", "zz"]], "pad")
    assert (column.per_item, column.tolist()) == (2, [[b"x", b""], [b"", b""], [b"y", b"zz"]])


def test_what_cannot_be_padded() -> None:
    with pytest.raises(SchemaError, match=r"shape \(1,\), sample 1 the shape \(1, 1\): only arrays of one number"):
        column_of([np.ones(1), np.ones((1, 1))], "pad")
    for value in (-1, 0.5j, "x", 300):
        with pytest.raises(SchemaError, match="column 'a': the pad value .* does not fit uint8"):
            column_of([np.ones(1, np.uint8), np.ones(2, np.uint8)], "pad", pad_value=value)
    with pytest.raises(SchemaError, match="column 'a': the pad value 1000000.0 does not fit float16"):
        column_of([np.ones(1, np.float16), np.ones(2, np.float16)], "pad", pad_value=1e6)


def test_ragged_columns_of_a_batch_are_padded() -> None:
    lists = splits(0, 2, 2, 3)
    batch: Batch = {
        "n": np.arange(3),
        "ids": RaggedColumn(np.array([1, 2, 3]), lists),
        "boxes": RaggedColumn(np.ones((3, 2), np.float32), lists),
        "tags": RaggedColumn(join_bytes([b"x", b"yy", b"z"]), lists),
        "pairs": RaggedColumn(join_bytes([b"a", b"b", b"c", b"d", b"e", b"f"], 2), lists),
        "steps": RaggedColumn(RaggedColumn(np.array([1, 2, 3]), splits(0, 1, 1, 3)), lists),
        "none": RaggedColumn(np.zeros(0), splits(0, 0, 0, 0)),
    }
    padded = pad_columns(batch, 9)
    assert padded["n"] is batch["n"]
    assert padded["ids"].tolist() == [[1, 2], [9, 9], [3, 9]]
    assert padded["boxes"].tolist() == [[[1, 1], [1, 1]], [[9, 9], [9, 9]], [[1, 1], [9, 9]]]
    assert padded["tags"].tolist() == [[b"x", b"yy"], [b"", b""], [b"z", b""]]
    assert padded["pairs"].tolist() == [[b"a", b"b", b"c", b"d"], [b""] * 4, [b"e", b"f", b"", b""]]
    assert padded["steps"].tolist() == [[[1, 9], [9, 9]], [[9, 9], [9, 9]], [[2, 3], [9, 9]]]
    assert padded["none"].shape == (3, 0)
    assert pad_columns({"a": batch["ids"][1:]}, 9)["a"].tolist() == [[9], [3]]


def test_no_strings_at_all_are_still_a_row_each() -> None:
    padded = pad_columns({"a": RaggedColumn(join_bytes([]), splits(0, 0, 0))})["a"]
    assert padded.tolist() == [[b""], [b""]]


def test_strings_in_lists_of_lists_cannot_be_padded() -> None:
    words = RaggedColumn(RaggedColumn(join_bytes([b"x"]), splits(0, 1)), splits(0, 1))
    with pytest.raises(SchemaError, match="column 'a': strings in lists of lists cannot be padded"):
        pad_columns({"a": words})


# ---- ragged


def test_arrays_become_rows_of_a_ragged_column() -> None:
    column = column_of([np.ones((2, 4)), np.ones((0, 4)), np.ones((1, 4))], "ragged")
    assert isinstance(column, RaggedColumn)
    assert (column.values.shape, column.row_splits.tolist()) == ((3, 4), [0, 2, 2, 3])
    assert isinstance(column_of([[1], [2]], "ragged"), RaggedColumn)
    assert column_of([1, 2], "ragged").tolist() == [1, 2]
    assert isinstance(column_of([b"x", b"y"], "ragged"), BytesColumn)
    with pytest.raises(SchemaError, match=r"shape \(1, 2\), sample 1 the shape \(1, 3\): only the first size"):
        column_of([np.ones((1, 2)), np.ones((1, 3))], "ragged")


def test_an_empty_list_is_of_what_the_others_are() -> None:
    column = column_of([[], [1, 2]], "ragged")
    assert (column.values.dtype, column.tolist()) == (np.int64, [[], [1, 2]])
    assert column_of([[], ["x"]], "ragged").tolist() == [[], [b"x"]]
    assert column_of([[], []], "ragged").tolist() == [[], []]


def test_a_column_that_is_ragged_in_the_schema_is_so_here() -> None:
    schema = {"a": Ragged(Int64)}
    assert column_of([[1], [2]], schema=schema).tolist() == [[1], [2]]
    assert isinstance(column_of([[1], [2]], schema=schema), RaggedColumn)
    assert isinstance(column_of([[1], [2]], "stack", schema=schema), np.ndarray)
    assert column_of([1, 2], schema=schema).tolist() == [1, 2]
    assert column_of([[], []], schema=schema).values.dtype == np.int64
    assert column_of([[]], schema={"a": Ragged(Float32(4))}).values.shape == (0, 4)
    assert isinstance(column_of([[]], schema={"a": Ragged(Bytes)}).values, BytesColumn)
    assert isinstance(column_of([[]], schema={"a": Ragged(Ragged(Int64))}).values, RaggedColumn)


def test_lists_of_lists_cannot_be_stacked() -> None:
    rows = RaggedColumn(RaggedColumn(np.arange(3), splits(0, 1, 3)), splits(0, 2))
    assert column_of([rows[0], rows[0]], "ragged").tolist() == [[[0], [1, 2]], [[0], [1, 2]]]
    assert column_of([rows[0], rows[0]], "pad", pad_value=7).tolist() == [[[0, 7], [1, 2]], [[0, 7], [1, 2]]]
    with pytest.raises(SchemaError, match="lists of lists cannot be stacked"):
        column_of([rows[0]])


# ---- and back


SCHEMA = {
    "label": Int64(),
    "emb": Float32(2),
    "key": Bytes(),
    "pair": Bytes(2),
    "ids": Ragged(Int64()),
    "boxes": Ragged(Float32(4)),
    "tags": Ragged(Bytes()),
    "couples": Ragged(Bytes(2)),
    "steps": Ragged(Ragged(Int64())),
    "words": Ragged(Ragged(Bytes())),
}


def make(seed: int, rows: int) -> Batch:
    rng = np.random.default_rng(seed)

    def ends(n: int) -> Any:
        return np.concatenate([[0], np.cumsum(rng.integers(0, 4, n))]).astype(np.int64)

    def strings(n: int, per_item: int = 0) -> BytesColumn:
        return join_bytes([rng.bytes(int(size)) for size in rng.integers(0, 9, n)], per_item)

    lists = ends(rows)
    steps = ends(int(lists[-1]))
    return {
        "label": rng.integers(-9, 9, rows),
        "emb": rng.random((rows, 2), np.float32),
        "key": strings(rows),
        "pair": strings(rows * 2, 2),
        "ids": RaggedColumn(rng.integers(0, 9, int(lists[-1])), lists),
        "boxes": RaggedColumn(rng.random((int(lists[-1]), 4), np.float32), lists),
        "tags": RaggedColumn(strings(int(lists[-1])), lists),
        "couples": RaggedColumn(strings(int(lists[-1]) * 2, 2), lists),
        "steps": RaggedColumn(RaggedColumn(rng.integers(0, 9, int(steps[-1])), steps), lists),
        "words": RaggedColumn(RaggedColumn(strings(int(steps[-1])), steps), lists),
    }


@given(seed=st.integers(0, 2**31), rows=st.integers(1, 9), first=st.integers(0, 8))
@settings(deadline=None, max_examples=60)
def test_samples_make_the_same_batch_again(seed: int, rows: int, first: int) -> None:
    batch = {name: column[min(first, rows - 1) :] for name, column in make(seed, rows).items()}
    samples = split_samples(batch)
    again = collate(samples, schema=SCHEMA)
    assert list(again) == list(batch)
    for name, column in batch.items():
        assert type(again[name]) is type(column)
        assert again[name].tolist() == column.tolist()
        if isinstance(column, np.ndarray):
            assert again[name].dtype == column.dtype


def test_samples_share_the_batches_memory() -> None:
    batch = make(1, 5)
    samples = split_samples(batch)
    assert len(samples) == 5
    assert {name: type(value).__name__ for name, value in samples[0].items()} == {
        "label": "int64",
        "emb": "ndarray",
        "key": "memoryview",
        "pair": "BytesColumn",
        "ids": "ndarray",
        "boxes": "ndarray",
        "tags": "BytesColumn",
        "couples": "BytesColumn",
        "steps": "RaggedColumn",
        "words": "RaggedColumn",
    }
    samples[3]["emb"][:] = 7
    assert batch["emb"][3].tolist() == [7, 7]


def test_lent_strings_are_split_and_counted_without_joining_them() -> None:
    column = ZeroCopyBytesColumn(np.frombuffer(b"..abc..de", np.uint8), np.array([[2, 5], [7, 9]], np.int64))
    assert [bytes(sample["a"]) for sample in split_samples({"a": column})] == [b"abc", b"de"]
    assert nbytes_of({"a": column}) == 5 + 32
    assert column._joined is None


def test_rows_and_bytes() -> None:
    batch: Batch = {
        "a": np.zeros((3, 2)),
        "b": join_bytes([b"abc", b"de", b""]),
        "c": RaggedColumn(np.zeros(4, np.float32), splits(0, 1, 1, 4)),
    }
    assert (rows_of(batch), rows_of({}), nbytes_of({})) == (3, 0, 0)
    assert nbytes_of(batch) == 48 + (5 + 32) + (16 + 32)
    assert nbytes_of({name: column[:1] for name, column in batch.items()}) == 16 + (3 + 16) + (4 + 16)
    with pytest.raises(SchemaError, match="different numbers of rows: {'a': 3, 'b': 2}"):
        rows_of({"a": batch["a"], "b": batch["b"][:2]})
    with pytest.raises(SchemaError, match="different numbers of rows"):
        split_samples({"a": batch["a"], "b": batch["b"][:2]})
    assert split_samples({"a": batch["a"][:0]}) == []
