"""SequenceExample records -> columns."""

from __future__ import annotations

from typing import Any

import pytest
from codec_cases import INTS, ONE_INT, decode, decode_one, fault_of
from wire_bytes import (
    bytes_feature,
    entry,
    example,
    example_of_a,
    field,
    float_feature,
    int_feature,
    sequence,
    steps,
)

from holdfast._native import codec
from holdfast._native.constants import BYTES, FIXED, FLOAT32, INT64, NESTED, RAGGED, WRONG_COUNT, WRONG_KIND


def test_feature_lists(codec_impl: Any) -> None:
    record = sequence(
        [entry(b"id", int_feature(7))],
        [
            entry(b"one a step", steps(int_feature(1), int_feature(2))),
            entry(b"pairs", steps(float_feature(1, 2), float_feature(3, 4), float_feature(5, 6))),
            entry(b"lists", steps(int_feature(1, 2), b"", int_feature(), int_feature(3))),
            entry(b"strings", steps(bytes_feature(b"a", b""), bytes_feature(), bytes_feature(b"bc"))),
            entry(b"none", b""),
        ],
    )
    fields = [
        (b"id", INT64, FIXED, 1, None),
        (b"one a step", INT64, RAGGED, 1, None),
        (b"pairs", FLOAT32, RAGGED, 2, None),
        (b"lists", INT64, NESTED, 1, None),
        (b"strings", BYTES, NESTED, 1, None),
        (b"none", BYTES, NESTED, 1, None),
        (b"not there", INT64, RAGGED, 1, None),
    ]
    columns, faults = decode(codec_impl, fields, record, record)
    assert faults == []
    assert [column[0] for column in columns] == [column[1] for column in columns]
    assert [column[0] for column in columns] == [
        [7],
        [1, 2],
        [1, 2, 3, 4, 5, 6],
        [[1, 2], [], [], [3]],
        [[b"a", b""], [], [b"bc"]],
        [],
        [],
    ]


def test_nested_items_of_several_values(codec_impl: Any) -> None:
    asked = (b"a", BYTES, NESTED, 2, None)
    two, four = bytes_feature(b"a", b"b"), bytes_feature(b"c", b"", b"d", b"e")
    record = sequence([], [entry(b"a", steps(two, b"", four))])
    assert decode_one(codec_impl, asked, record) == [[b"a", b"b"], [], [b"c", b"", b"d", b"e"]]
    record = sequence([], [entry(b"a", steps(two, bytes_feature(b"c", b"d", b"e"), four))])
    assert fault_of(codec_impl, asked, record) == (WRONG_COUNT, 0, 3)


def test_the_last_feature_list_of_a_key_wins(codec_impl: Any) -> None:
    lists = [
        entry(b"a", steps(int_feature(1), int_feature(2), float_feature(3))),
        entry(b"a", steps(int_feature(4))),
    ]
    assert decode_one(codec_impl, INTS, sequence([], lists)) == [4]
    assert decode_one(codec_impl, (b"a", INT64, NESTED, 1, None), sequence([], lists)) == [[4]]
    assert fault_of(codec_impl, INTS, sequence([], lists[::-1])) == (WRONG_KIND, 0, FLOAT32)


def test_a_feature_list_in_pieces_is_joined(codec_impl: Any) -> None:
    pieces = field(2, steps(int_feature(1))) + field(1, b"a") + field(2, steps(int_feature(2), int_feature(3)))
    assert decode_one(codec_impl, INTS, sequence([], [field(1, pieces)])) == [1, 2, 3]


def test_a_feature_list_hides_a_context_feature(codec_impl: Any) -> None:
    context = [entry(b"a", int_feature(8, 9))]
    lists = [entry(b"a", steps(int_feature(1)))]
    before, after = example(*context), field(2, b"".join(lists))
    for record in (before + after, after + before, before + after + before):
        assert decode_one(codec_impl, INTS, record) == [1]
        assert decode_one(codec_impl, (b"a", INT64, NESTED, 1, None), record) == [[1]]
        assert fault_of(codec_impl, ONE_INT, record) == (codec.IS_LIST, 0, 0)
    assert decode_one(codec_impl, INTS, sequence(context, [entry(b"a", b"")])) == []


def test_a_fixed_column_found_in_lists(codec_impl: Any) -> None:
    for lists in (
        [entry(b"a", b"")],
        [entry(b"a", steps(int_feature(1)))],
        [entry(b"a", steps(float_feature()))],
    ):
        assert fault_of(codec_impl, ONE_INT, sequence([], lists)) == (codec.IS_LIST, 0, 0)
    record = sequence([], [entry(b"a", b"")])
    assert fault_of(codec_impl, (b"a", INT64, FIXED, 1, bytes(8)), record) == (codec.IS_LIST, 0, 0)


def test_a_nested_column_found_in_the_context(codec_impl: Any) -> None:
    asked = (b"a", INT64, NESTED, 1, None)
    assert fault_of(codec_impl, asked, example_of_a(int_feature(1, 2))) == (codec.NOT_LIST, 0, 2)
    assert fault_of(codec_impl, asked, example_of_a(field(3, b""))) == (codec.NOT_LIST, 0, 0)
    assert fault_of(codec_impl, asked, example_of_a(float_feature())) == (WRONG_KIND, 0, FLOAT32)


@pytest.mark.parametrize("bad", [int_feature(), int_feature(1), int_feature(1, 2, 3), b""])
def test_a_step_with_a_wrong_count(codec_impl: Any, bad: bytes) -> None:
    asked = (b"a", INT64, RAGGED, 2, None)
    good = int_feature(5, 6)
    n = {int_feature(): 0, int_feature(1): 1, int_feature(1, 2, 3): 3, b"": 0}[bad]
    spoiled = sequence([], [entry(b"a", steps(good, bad, good, int_feature(*range(7))))])
    whole = sequence([], [entry(b"a", steps(good, good))])
    (rows,), faults = decode(codec_impl, [asked], whole, spoiled, whole)
    assert rows == [[5, 6, 5, 6]] * 2
    assert faults == [(1, WRONG_COUNT, 0, n)]


@pytest.mark.parametrize("depth", [RAGGED, NESTED])
def test_a_step_of_a_wrong_kind(codec_impl: Any, depth: int) -> None:
    asked = (b"a", BYTES, depth, 1, None)
    good = bytes_feature(b"x")
    spoiled = sequence([], [entry(b"a", steps(good, int_feature(1), good, float_feature(1)))])
    assert fault_of(codec_impl, asked, spoiled) == (WRONG_KIND, 0, INT64)


@pytest.mark.parametrize("depth", [RAGGED, NESTED])
def test_a_step_whose_oneof_is_replaced(codec_impl: Any, depth: int) -> None:
    replaced = bytes_feature(b"gone", b"too") + int_feature(1) + bytes_feature(b"stays")
    record = sequence([], [entry(b"a", steps(bytes_feature(b"x"), replaced, bytes_feature(b"y")))])
    row = decode_one(codec_impl, (b"a", BYTES, depth, 1, None), record)
    assert row == ([b"x", b"stays", b"y"] if depth == RAGGED else [[b"x"], [b"stays"], [b"y"]])
