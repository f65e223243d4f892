"""Schemas say themselves, and say what is wrong with them."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pytest

import holdfast as hold
from holdfast.cli.schema_file import parse_schema
from holdfast.errors import SchemaError
from holdfast.formats.schema_json import schema_digest, schema_from_json, schema_to_json
from holdfast.schema import Value, as_code, check_schema


def test_shapes_are_what_they_look_like() -> None:
    assert hold.Float32().shape == ()
    assert hold.Float32(128).shape == (128,)
    assert hold.Float32(4, 3).shape == hold.Float32((4, 3)).shape == hold.Float32([4, 3]).shape == (4, 3)
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
    ):
        assert eval(repr(column), vars(hold) | {n: getattr(hold, n) for n in hold.__all__}) == column
        assert pickle.loads(pickle.dumps(column)) == column
        assert hash(column) == hash(pickle.loads(pickle.dumps(column)))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: hold.Float32(0), "from 1 up, got 0"),
        (lambda: hold.Float32(-3), "from 1 up"),
        (lambda: hold.Float32(2.5), "Float32: wanted sizes"),
        (lambda: hold.Float32("4"), "from 1 up, got '4'"),
        (lambda: hold.Float32(True), "got True"),
        (lambda: hold.Ragged(3), "wanted a column type"),
        (lambda: hold.Ragged(hold.Ragged(hold.Ragged(hold.Int64()))), "two levels"),
        (lambda: hold.Ragged(hold.Int64(default=3)), "an empty list is the only default"),
        (lambda: Value(), "use one of those"),
    ],
)
def test_nonsense_is_refused(make: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        make()


def test_a_schema_is_checked_as_a_whole() -> None:
    assert check_schema({"a": hold.Int64}) == {"a": hold.Int64()}
    for schema, text in [
        ([("a", hold.Int64())], "wanted a schema such as"),
        ({}, "empty"),
        ({3: hold.Int64()}, "name is a string"),
        ({"a": int}, "column 'a': wanted Bytes"),
        ({"a": hold.Int64(key=3)}, "column 'a': wanted a feature's name as its key, got 3"),  # type: ignore[arg-type]
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
