"""Schemas say themselves, and say what is wrong with them."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest

import holdfast as hold
from holdfast.cli.convert import parse_schema
from holdfast.data.formats.gather import default_numbers
from holdfast.errors import SchemaError
from holdfast.schema import (
    DTYPES,
    Value,
    as_code,
    check_schema,
    column_to_json,
    schema_digest,
    schema_from_json,
    schema_to_json,
)


def test_shapes_are_what_they_look_like() -> None:
    assert hold.Float32().shape == ()
    assert hold.Float32(128).shape == (128,)
    assert hold.Float32(4, 3).shape == hold.Float32((4, 3)).shape == hold.Float32([4, 3]).shape == (4, 3)
    assert hold.Float32(np.int64(4)) == hold.Float32(4) == hold.Float32(np.array([4]))
    assert hold.Float32(4, 3).count == 12
    assert hold.Ragged(hold.Ragged(hold.Bytes())).depth == 2
    assert hold.Ragged(hold.Int64).inner == hold.Int64()


def test_equality_and_repr() -> None:
    assert hold.Int64(3) == hold.Int64(3)
    assert hold.Int64(3) != hold.Float32(3)
    assert hold.Int64(default=1) != hold.Int64()
    assert hold.Ragged(hold.Int64(2)) == hold.Ragged(hold.Int64(2))
    for column in (
        hold.Bytes(),
        hold.Float32(4, 3, default=1.5),
        hold.Ragged(hold.Int64(2), key="k"),
        hold.Int64(key="a"),
        hold.Array("uint8", 4, 3, key="a"),
        hold.Ragged(hold.Array("float64", 4)),
    ):
        assert eval(repr(column), vars(hold) | {n: getattr(hold, n) for n in hold.__all__}) == column
        assert pickle.loads(pickle.dumps(column)) == column
        assert hash(column) == hash(pickle.loads(pickle.dumps(column)))


class Named:
    """What a dtype of another framework looks like."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize("dtype", ["uint8", "u1", np.uint8, np.dtype("uint8"), Named("uint8"), Named("torch.uint8")])
def test_a_dtype_is_what_people_write(dtype: Any) -> None:
    images = hold.Array("uint8", 224, 224, 3)
    assert images == hold.Array(dtype, (224, 224, 3)) == hold.Array(dtype, shape=[224, 224, 3])
    assert repr(images) == 'Array("uint8", (224, 224, 3))'
    assert repr(hold.Array(dtype, 4, default=1)) == 'Array("uint8", (4,), default=1)'
    assert hold.Array(dtype).dtype == "uint8"


def test_short_names_of_arrays() -> None:
    for short, dtype in ((hold.Int64, "int64"), (hold.Float32, "float32")):
        long = hold.Array(dtype, 3, key="k")
        assert long == short(3, key="k")
        assert hash(long) == hash(short(3, key="k"))
        assert repr(long) == f"{short.__name__}(3, key='k')"
        assert column_to_json(long) == {"type": short.__name__, "shape": [3], "key": "k"}
        assert hold.Array("float64", 3) != long
    assert [hold.Array(kind).dtype for kind in (bool, int, float)] == ["bool", "int64", "float64"]
    assert schema_digest({"x": hold.Array("uint8")}) != schema_digest({"x": hold.Int64()})


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_from_json_and_code(dtype: str) -> None:
    schema = {"x": hold.Array(dtype), "y": hold.Array(dtype, 2, 3, default=1), "z": hold.Ragged(hold.Array(dtype, 4))}
    assert schema_from_json(json.loads(json.dumps(schema_to_json(schema)))) == schema
    assert parse_schema(as_code(schema)) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema


@pytest.mark.parametrize(
    ("dtype", "instead"),
    [
        (np.complex64, 'a complex number is two floats, so use Array\\("float32", …, 2\\)'),
        (object, "Python objects cannot be stored; use Bytes"),
        ("M8[ns]", 'so use Array\\("int64"\\)'),
        (str, "strings have no fixed size, so use Bytes"),
        ("S5", "strings have no fixed size, so use Bytes"),
        (">f4", "'>f4': columns have the byte order of the machine, .* use \"float32\""),
        (np.longdouble, "numbers can be bool, int8"),
        ("bfloat16", "[Nn]umbers can be bool, int8"),
        (Named("torch.bfloat16"), "Numbers can be bool, int8"),
        ([("a", "i4")], "define a column for each"),
        ((np.uint8, 3), 'Array\\("uint8", \\(3,\\)\\)'),
        (None, "the dtype comes first"),
        (224, "224; the dtype comes first, then the shape"),
    ],
)
def test_other_dtypes_are_refused_with_what_to_write(dtype: Any, instead: str) -> None:
    with pytest.raises(SchemaError, match=f'^Array: expected a dtype such as "uint8", got .*{instead}'):
        hold.Array(dtype)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: hold.Float32(0), "positive integers, got 0"),
        (lambda: hold.Float32(-3), "positive integers"),
        (lambda: hold.Float32(2.5), "Float32: expected sizes"),
        (lambda: hold.Float32("4"), "positive integers, got '4'"),
        (lambda: hold.Float32(True), "got True"),
        (lambda: hold.Ragged(3), "expected a column type"),
        (lambda: hold.Ragged(hold.Ragged(hold.Ragged(hold.Int64()))), "two levels"),
        (lambda: hold.Ragged(hold.Int64(default=3)), "an empty list is the only default"),
        (lambda: Value(), "use one of those"),
        (lambda: hold.Array("uint8", 3, shape=(3,)), "expected the shape once"),
        (lambda: hold.Array("uint8", 0), "positive integers, got 0"),
        (lambda: hold.Array("uint8", None, 3), "got None; lists of any length are Ragged"),  # type: ignore[arg-type]
        (lambda: hold.Ragged(hold.Array), 'expected a dtype such as "uint8", got None'),
    ],
)
def test_nonsense_is_refused(make: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        make()


def test_a_schema_is_checked_as_a_whole() -> None:
    assert check_schema({"a": hold.Int64}) == {"a": hold.Int64()}
    for schema, text in [
        ([("a", hold.Int64())], "expected a schema such as"),
        ({}, "empty"),
        ({3: hold.Int64()}, "expected a string as a column's name, got 3"),
        ({"a": 3}, "column 'a': expected Array, Int64, Float32, Bytes or Ragged, got 3$"),
        ({"a": np.uint8}, """column 'a': expected Array.* got <class 'numpy.uint8'>; use Array\\("uint8"\\)"""),
        ({"a": hold.Int64(key=3)}, "column 'a': expected a feature's name as its key, got 3"),  # type: ignore[arg-type]
        ({"a": hold.Int64(), "b": hold.Int64(key="a")}, "both read the feature 'a'"),
    ]:
        with pytest.raises(SchemaError, match=text):
            check_schema(schema)  # type: ignore[arg-type]


def test_a_schema_as_code_can_be_pasted() -> None:
    schema = {"img": hold.Bytes(), "it's": hold.Float32(4, default=0.5), "r": hold.Ragged(hold.Int64(), key="x y")}
    assert eval(as_code(schema), {"hold": hold}) == schema


def test_a_default_of_nan_survives_code_and_json() -> None:
    """JSON has no NaN, Python has no spelling for it, and one is not equal to another."""
    schema = {"x": hold.Float32(2, default=math.nan), "y": hold.Float32(default=math.inf)}
    text = json.dumps(schema_to_json(schema), allow_nan=False)
    assert schema_from_json(json.loads(text)) == schema
    assert schema_digest(schema) == schema_digest({**schema, "x": hold.Float32(2, default=float("nan"))})
    assert parse_schema(as_code({"x": schema["x"]})) == {"x": schema["x"]}


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("float16", [0.1, math.nan]),
        ("float32", [0.1, 1e-45]),
        ("float64", [0.1, -math.inf]),
        ("uint64", [1, 2**64 - 1]),
        ("bool", [True, False]),
    ],
)
def test_a_default_may_be_an_array(dtype: str, values: list[Any]) -> None:
    array = np.array(values, dtype)
    column = hold.Array(dtype, 2, default=array)
    for other in (np.array(values, dtype), array.tolist(), tuple(array), [array[0], array[1:].reshape(())]):
        assert hold.Array(dtype, 2, default=other) == column
    assert hold.Array(dtype, 2, default=array[::-1]) != column
    assert {column: 1}[hold.Array(dtype, 2, default=array.copy())] == 1
    for again in (
        pickle.loads(pickle.dumps(column)),
        schema_from_json(json.loads(json.dumps(schema_to_json({"x": column}))))["x"],
        parse_schema(as_code({"x": column}))["x"],
        column.alike(default=array),
    ):
        assert again == column
        assert isinstance(again, hold.Array)
        assert default_numbers("x", again).tobytes() == array.tobytes()
    array[:] = 0
    assert hold.Array(dtype, 2, default=array) != column  # which keeps no view of it
