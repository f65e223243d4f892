"""Example records -> columns: everything the wire format allows, and what does not fit the schema."""

from __future__ import annotations

import struct
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from codec_cases import INTS, ONE_INT, decode, decode_one, fault_of
from wire_bytes import (
    FIXED32,
    FIXED64,
    VARINT,
    bytes_feature,
    entry,
    example,
    example_of_a,
    field,
    float_feature,
    floats,
    floats_unpacked,
    group,
    int_feature,
    ints,
    ints_unpacked,
    sequence,
    steps,
    strings,
    tag,
    varint,
)

from holdfast._native import codec
from holdfast._native.constants import (
    BYTES,
    FIXED,
    FLOAT32,
    INT64,
    MALFORMED,
    MISSING,
    NESTED,
    RAGGED,
    WRONG_COUNT,
    WRONG_KIND,
)

FLOATS = (b"a", FLOAT32, RAGGED, 1, None)
STRINGS = (b"a", BYTES, RAGGED, 1, None)

LOWEST, HIGHEST = -(2**63), 2**63 - 1

UNKNOWN = [
    tag(9, VARINT) + varint(2**64 - 1),
    tag(9, FIXED64) + b"12345678",
    tag(9, FIXED32) + b"1234",
    field(9, b"anything"),
    field(2**29 - 1, b""),
    group(9, b""),
    group(9, group(1, tag(2, VARINT) + varint(5)) + field(1, b"abc") + group(10, b"")),
]


# ---- what is there -----------------------------------------------------------------------------------------


def test_features_in_any_order(codec_impl: Any) -> None:
    fields = [(b"a", INT64, FIXED, 2, None), (b"b", FLOAT32, FIXED, 1, None), (b"cc", BYTES, FIXED, 1, None)]
    entries = [
        entry(b"a", int_feature(-5, 7)),
        entry(b"b", float_feature(0.5)),
        entry(b"cc", bytes_feature(b"x\0y")),
        entry(b"unasked", int_feature(9)),
    ]
    records = [example(*some) for some in permutations(entries)]
    (a, b, c), faults = decode(codec_impl, fields, *records)
    assert faults == []
    assert (a, b, c) == ([[-5, 7]] * 24, [[0.5]] * 24, [[b"x\0y"]] * 24)


def test_features_in_several_maps(codec_impl: Any) -> None:
    record = example(entry(b"a", int_feature(1))) + example(entry(b"b", int_feature(2)))
    columns, _ = decode(codec_impl, [ONE_INT, (b"b", INT64, FIXED, 1, None)], record)
    assert columns == [[[1]], [[2]]]


def test_no_fields_give_rows_all_the_same(codec_impl: Any) -> None:
    assert decode(codec_impl, [], example_of_a(int_feature(1)), b"", b"\xff") == ([], [(2, MALFORMED, -1, 0)])


def test_of_two_fields_with_one_key_the_first_gets_it(codec_impl: Any) -> None:
    columns, _ = decode(codec_impl, [INTS, INTS], example_of_a(int_feature(1)))
    assert columns == [[[1]], [[]]]


@pytest.mark.parametrize("values", [(), (0,), (1, 2, 3), (LOWEST, -1, 0, 127, 128, HIGHEST)])
def test_ints_packed_and_unpacked(codec_impl: Any, values: tuple[int, ...]) -> None:
    for content in (ints(*values), ints_unpacked(*values)):
        assert decode_one(codec_impl, INTS, example_of_a(field(3, content))) == list(values)


@pytest.mark.parametrize("size", [1, 22, 23, 24, 25, 1000])
@pytest.mark.parametrize("low", [0, -3, LOWEST])
def test_many_ints(codec_impl: Any, size: int, low: int) -> None:
    high = {0: 100, -3: 300, LOWEST: HIGHEST}[low]
    values = np.random.default_rng(size).integers(low, high, size, np.int64).tolist()
    assert decode_one(codec_impl, INTS, example_of_a(int_feature(*values))) == values


@pytest.mark.parametrize("values", [(), (0.5,), (1.0, -2.0, float("inf"))])
def test_floats_packed_and_unpacked(codec_impl: Any, values: tuple[float, ...]) -> None:
    for content in (floats(*values), floats_unpacked(*values)):
        assert decode_one(codec_impl, FLOATS, example_of_a(field(2, content))) == list(values)


def test_float_bits_stay_as_they_are(codec_impl: Any) -> None:
    bits = bytes.fromhex("0100a07f 000000ff 00000080".replace(" ", ""))
    decoder = codec_impl.Decoder([FLOATS])
    frames = codec_impl.frame(example_of_a(field(2, field(1, bits))))
    decoder.feed(frames, 0, len(frames), True, 1, 0, 0)
    assert bytes(decoder.take()[0][0]) == bits


def test_overlong_varints(codec_impl: Any) -> None:
    content = field(1, varint(5, 10) + varint(300, 3) + varint(-1)) + tag(1, VARINT) + varint(0, 2)
    assert decode_one(codec_impl, INTS, example_of_a(field(3, content))) == [5, 300, -1, 0]


def test_bits_beyond_the_64th_are_dropped(codec_impl: Any) -> None:
    for filler in (b"", varint(1) * 30):
        content = field(1, filler + b"\xff" * 9 + b"\x7e")
        assert decode_one(codec_impl, INTS, example_of_a(field(3, content)))[-1] == HIGHEST


def test_the_same_list_in_pieces_is_joined(codec_impl: Any) -> None:
    lists = field(3, ints(1, 2)) + field(3, ints_unpacked(3)) + field(3, b"") + field(3, ints(4) + ints(5))
    assert decode_one(codec_impl, INTS, example_of_a(lists)) == [1, 2, 3, 4, 5]
    lists = field(2, floats(1) + floats_unpacked(2)) + field(2, floats(3))
    assert decode_one(codec_impl, (b"a", FLOAT32, FIXED, 3, None), example_of_a(lists)) == [1, 2, 3]
    lists = field(1, strings(b"x")) + field(1, strings(b"", b"yy"))
    assert decode_one(codec_impl, STRINGS, example_of_a(lists)) == [b"x", b"", b"yy"]


def test_the_last_entry_of_a_key_wins(codec_impl: Any) -> None:
    record = example(entry(b"a", int_feature(1, 2, 3)), entry(b"a", int_feature(4)))
    assert decode_one(codec_impl, ONE_INT, record) == [4]
    record = example(entry(b"a", float_feature(1))) + example(entry(b"a", int_feature(4)))
    assert decode_one(codec_impl, ONE_INT, record) == [4]
    record = example(entry(b"a", int_feature(4)), entry(b"a", b""))
    assert fault_of(codec_impl, ONE_INT, record) == (MISSING, 0, 0)


def test_a_later_member_of_the_oneof_replaces_the_earlier(codec_impl: Any) -> None:
    assert decode_one(codec_impl, INTS, example_of_a(float_feature(1, 2) + int_feature(3))) == [3]
    assert decode_one(codec_impl, INTS, example_of_a(int_feature(1, 2) + bytes_feature() + int_feature(3))) == [3]
    assert decode_one(codec_impl, STRINGS, example_of_a(bytes_feature(b"a") + int_feature() + bytes_feature())) == []
    assert fault_of(codec_impl, INTS, example_of_a(int_feature(1) + float_feature())) == (WRONG_KIND, 0, FLOAT32)


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_unknown_fields_are_skipped_everywhere(codec_impl: Any, unknown: bytes) -> None:
    for a, b in ((unknown, b""), (b"", unknown)):
        values = a + ints(1) + b + ints(2)
        feature = a + field(3, values) + b
        map_entry = field(1, a + field(1, b"a") + a + b + field(2, feature) + b)
        assert decode_one(codec_impl, INTS, a + field(1, a + map_entry + b) + b) == [1, 2]
        lists = field(2, a + field(1, field(1, b"a") + field(2, a + field(1, feature) + b)) + b)
        assert decode_one(codec_impl, (b"a", INT64, NESTED, 1, None), a + lists + b) == [[1, 2]]


@pytest.mark.parametrize(
    "other",
    [
        tag(1, VARINT) + varint(7),
        tag(1, FIXED32) + b"1234",
        tag(3, VARINT) + varint(7),
        tag(2, FIXED64) + b"12345678",
        group(1, b""),
        group(3, ints(8)),
    ],
)
def test_known_numbers_with_another_wire_type_are_unknown_fields(codec_impl: Any, other: bytes) -> None:
    record = other + field(1, other + field(1, other + field(1, b"a") + field(2, other + int_feature(5))))
    assert decode_one(codec_impl, INTS, record) == [5]


def test_entries_of_any_form(codec_impl: Any) -> None:
    key, value = field(1, b"a"), field(2, int_feature(1))
    other_key, more = field(1, b"b"), field(2, int_feature(2))
    forms = {
        value + key: [1],
        other_key + key + value: [1],
        other_key + value + key: [1],
        key + value + more: [1, 2],
        value + key + more: [1, 2],
        key + field(2, float_feature(1)) + value: [1],
    }
    for form, values in forms.items():
        assert decode_one(codec_impl, INTS, example(field(1, form))) == values
    assert fault_of(codec_impl, ONE_INT, example(field(1, key + value + other_key))) == (MISSING, 0, 0)
    assert fault_of(codec_impl, ONE_INT, example(field(1, key))) == (MISSING, 0, 0)


def test_an_entry_without_a_key_has_the_empty_key(codec_impl: Any) -> None:
    no_key = example(field(1, field(2, int_feature(3))))
    assert decode_one(codec_impl, (b"", INT64, FIXED, 1, None), no_key) == [3]
    assert decode_one(codec_impl, (b"", INT64, FIXED, 1, None), example(entry(b"", int_feature(3)))) == [3]


# ---- what is not there -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record", [b"", example(), example(entry(b"b", int_feature(1))), example_of_a(b""), example_of_a(UNKNOWN[0])]
)
def test_missing(codec_impl: Any, record: bytes) -> None:
    assert fault_of(codec_impl, ONE_INT, record) == (MISSING, 0, 0)
    for kind in (BYTES, FLOAT32, INT64):
        assert decode_one(codec_impl, (b"a", kind, RAGGED, 2, None), record) == []
        assert decode_one(codec_impl, (b"a", kind, NESTED, 2, None), record) == []


@pytest.mark.parametrize(
    ("kind", "count", "default", "values"),
    [
        (INT64, 1, struct.pack("<q", -7), [-7]),
        (INT64, 3, struct.pack("<3q", 1, 2, LOWEST), [1, 2, LOWEST]),
        (FLOAT32, 1, struct.pack("<f", 0.5), [0.5]),
        (FLOAT32, 4, struct.pack("<4f", 1, 2, 3, 4), [1, 2, 3, 4]),
        (BYTES, 1, [b""], [b""]),
        (BYTES, 1, [b"abc"], [b"abc"]),
        (BYTES, 3, [b"", b"xy", b""], [b"", b"xy", b""]),
    ],
)
def test_defaults(codec_impl: Any, kind: int, count: int, default: Any, values: list[Any]) -> None:
    there = {INT64: int_feature, FLOAT32: float_feature, BYTES: bytes_feature}[kind]
    other = [b"z"] * count if kind == BYTES else [9] * count
    asked = (b"a", kind, FIXED, count, default)
    records = [b"", example_of_a(there(*other)), example_of_a(b""), example_of_a(there(*other, *other)), b""]
    (rows,), faults = decode(codec_impl, [asked], *records)
    assert rows == [values, other, values, values]
    assert faults == [(3, WRONG_COUNT, 0, 2 * count)]


# ---- what is not as wanted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [FIXED, RAGGED, NESTED])
@pytest.mark.parametrize("there", [BYTES, FLOAT32, INT64])
def test_wrong_kind(codec_impl: Any, depth: int, there: int) -> None:
    for wanted in {BYTES, FLOAT32, INT64} - {there}:
        assert fault_of(codec_impl, (b"a", wanted, depth, 1, None), example_of_a(field(there, b""))) == (
            WRONG_KIND,
            0,
            there,
        )


@pytest.mark.parametrize("n", [0, 1, 3, 4, 100])
def test_wrong_count(codec_impl: Any, n: int) -> None:
    contents = {
        INT64: [ints(*range(n)), ints_unpacked(*range(n))],
        FLOAT32: [floats(*range(n)), floats_unpacked(*range(n))],
        BYTES: [strings(*[b"xyz"] * n)],
    }
    for kind, forms in contents.items():
        for form in forms:
            asked = (b"a", kind, FIXED, 2, None)
            assert fault_of(codec_impl, asked, example_of_a(field(kind, form))) == (WRONG_COUNT, 0, n)


def test_an_empty_list_is_there_but_has_no_values(codec_impl: Any) -> None:
    default = struct.pack("<q", 1)
    assert fault_of(codec_impl, (b"a", INT64, FIXED, 1, default), example_of_a(field(3, b""))) == (WRONG_COUNT, 0, 0)
    assert decode_one(codec_impl, INTS, example_of_a(field(3, b""))) == []


def test_ragged_rows_hold_whole_items(codec_impl: Any) -> None:
    asked = (b"a", INT64, RAGGED, 3, None)
    records = [example_of_a(int_feature(*range(n))) for n in range(7)]
    (rows,), faults = decode(codec_impl, [asked], *records)
    assert rows == [[], [0, 1, 2], [0, 1, 2, 3, 4, 5]]
    assert faults == [(n, WRONG_COUNT, 0, n) for n in (1, 2, 4, 5)]


def test_the_first_field_that_is_bad_is_named(codec_impl: Any) -> None:
    fields = [(key, INT64, FIXED, 1, None) for key in (b"a", b"b", b"c")]
    record = example(entry(b"c", float_feature(1)), entry(b"b", int_feature(1, 2)), entry(b"a", int_feature(1)))
    assert decode(codec_impl, fields, record)[1] == [(0, WRONG_COUNT, 1, 2)]


def test_what_a_fault_got_is_of_its_own_field(codec_impl: Any) -> None:
    fields = [(b"a", INT64, FIXED, 3, None), (b"b", INT64, FIXED, 1, None)]
    good = entry(b"a", int_feature(1, 2, 3))
    assert decode(codec_impl, fields, example(good))[1] == [(0, MISSING, 1, 0)]
    record = sequence([good], [entry(b"b", steps(int_feature(1)))])
    assert decode(codec_impl, fields, record)[1] == [(0, codec.IS_LIST, 1, 0)]


def test_a_bad_record_does_not_touch_its_neighbours(codec_impl: Any) -> None:
    fields = [
        (b"a", BYTES, FIXED, 1, None),
        (b"b", INT64, RAGGED, 1, None),
        (b"c", FLOAT32, NESTED, 1, None),
        (b"d", INT64, FIXED, 1, None),
    ]

    def record(i: int, last: bytes = b"") -> bytes:
        context = [entry(b"a", bytes_feature(b"x" * i)), entry(b"b", int_feature(*range(i)))]
        lists = [entry(b"c", steps(float_feature(*[i] * i), float_feature()))]
        return sequence([*context, last or entry(b"d", int_feature(i))], lists)

    bad = [
        record(9, entry(b"d", int_feature(1, 2))),
        record(9, entry(b"d", float_feature(1))),
        record(9, entry(b"e", b"")),
        record(9, entry(b"d", b"\xff")),
        record(9)[:-1],
        b"\x07",
    ]
    records = [record(1), *[part for one in bad for part in (one, record(2))], record(3)]
    columns, faults = decode(codec_impl, fields, *records)
    good = [1] + [2] * len(bad) + [3]
    assert columns[0] == [[b"x" * i] for i in good]
    assert columns[1] == [list(range(i)) for i in good]
    assert columns[2] == [[[i] * i, []] for i in good]
    assert columns[3] == [[i] for i in good]
    assert [fault[0] for fault in faults] == [1, 3, 5, 7, 9, 11]
    assert [fault[1] for fault in faults] == [WRONG_COUNT, WRONG_KIND, MISSING] + [MALFORMED] * 3


# ---- fields ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ((b"a", 0, 0, 1, None), ValueError),
        ((b"a", 5, 0, 1, None), ValueError),
        ((b"a", 3, -1, 1, None), ValueError),
        ((b"a", 3, 3, 1, None), ValueError),
        ((b"a", 3, 0, 0, None), ValueError),
        ((b"a", 3, 0, -1, None), ValueError),
        ((b"a", 3, 0, 2**40 + 1, None), ValueError),
        ((b"a", 3, 0, 1, b"1234567"), ValueError),
        ((b"a", 3, 0, 2, bytes(8)), ValueError),
        ((b"a", 2, 0, 1, bytes(8)), ValueError),
        ((b"a", 3, 0, 1, [1]), TypeError),
        ((b"a", 1, 0, 2, [b"x"]), ValueError),
        ((b"a", 1, 0, 1, ["x"]), TypeError),
        ((b"a", 1, 0, 1, b"x"), TypeError),
        (("a", 3, 0, 1, None), TypeError),
        ((b"a", 3, 0, 1), TypeError),
        ([b"a", 3, 0, 1, None], TypeError),
        (b"a", TypeError),
    ],
)
@pytest.mark.parametrize("name", ["Decoder", "Encoder"])
def test_refuses_bad_fields(codec_impl: Any, name: str, asked: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        getattr(codec_impl, name)([ONE_INT, asked])


def test_refuses_what_is_no_sequence(codec_impl: Any) -> None:
    with pytest.raises(TypeError):
        codec_impl.Decoder(None)
    with pytest.raises(TypeError):
        codec_impl.Encoder(iter([ONE_INT]))
