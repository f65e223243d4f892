"""Records that are no protobuf message are told from those that are, as protobuf itself does it."""

from __future__ import annotations

from typing import Any

import pytest
from codec_cases import INTS, decode, fault_of
from example_messages import parse
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
    group,
    int_feature,
    ints_unpacked,
    sequence,
    steps,
    tag,
    varint,
)

from holdfast._native import codec
from holdfast._native.constants import BYTES, FIXED, FLOAT32, INT64, MALFORMED, NESTED, RAGGED

FULL = sequence(
    [
        entry(b"a", int_feature(1, -2, 300)),
        entry(b"b", float_feature(0.5, 1.5)),
        entry(b"c", bytes_feature(b"abc", b"", b"d" * 130)),
        entry(b"d", field(3, ints_unpacked(1, 2)) + group(7, field(3, b"x"))),
        tag(9, FIXED64) + b"12345678",
    ],
    [entry(b"e", steps(int_feature(1), int_feature(2, 3), b"")), entry(b"f", steps(bytes_feature(b"x")))],
)
ALL_FIELDS = [
    (b"a", INT64, RAGGED, 1, None),
    (b"b", FLOAT32, RAGGED, 1, None),
    (b"c", BYTES, RAGGED, 1, None),
    (b"e", INT64, NESTED, 1, None),
]


@pytest.mark.parametrize("fields", [ALL_FIELDS, []])
def test_every_cut_of_a_record(codec_impl: Any, fields: list[codec.Field]) -> None:
    whole = 0
    for size in range(len(FULL) + 1):
        _, faults = decode(codec_impl, fields, FULL[:size])
        legal = parse(FULL[:size]) is not None
        whole += legal
        assert faults == ([] if legal else [(0, MALFORMED, -1, 0)]), size
    assert whole == 3  # nothing, the context alone, and all of it


@pytest.mark.parametrize(
    "content",
    [
        b"\x80",
        b"\x00",
        b"\x02\x00",
        tag(9, 6),
        tag(9, 7),
        tag(9, 4),
        group(9, b"")[:-1],
        tag(9, 3) + tag(8, 4),
        tag(9, FIXED32) + b"123",
        tag(9, FIXED64) + b"1234567",
        tag(9, VARINT) + b"\xff" * 10 + b"\x01",
        tag(9, VARINT),
        varint(2**32 | 9 << 3) + b"\x00",
        field(9, b"abc")[:-1],
        tag(9, 2) + varint(2**31),
        tag(9, 2) + varint(2**63),
        tag(9, 2) + varint(2**64 - 1),
        tag(9, 2) + varint(1, 6) + b"x",
        tag(9, 2) + varint(1, 10) + b"x",
        varint(9 << 3 | 2, 6) + b"\x00",
        varint(9 << 3, 10) + b"\x00",
    ],
)
def test_malformed_at_any_place(codec_impl: Any, content: bytes) -> None:
    assert parse(content) is None
    for key in (b"a", b"unasked"):
        for record in (
            content,
            field(1, content),
            field(1, field(1, content)),
            example(entry(key, content)),
            example(entry(key, field(1, content))),
            example(entry(key, field(2, content))),
            example(entry(key, field(3, content))),
            field(2, content),
            field(2, field(1, content)),
            sequence([], [entry(key, content)]),
            sequence([], [entry(key, steps(content))]),
            sequence([], [entry(key, steps(field(3, content)))]),
        ):
            assert fault_of(codec_impl, INTS, record) == (MALFORMED, -1, 0), record


@pytest.mark.parametrize("key", [b"a", b"unasked"])
@pytest.mark.parametrize(
    "feature",
    [
        field(2, field(1, b"12345")),
        field(2, tag(1, FIXED32) + b"123"),
        field(3, field(1, b"\x80")),
        field(3, field(1, varint(1) * 30 + b"\xff")),
        field(3, field(1, varint(1) * 30 + b"\xff" * 10 + b"\x01")),
        field(3, field(1, b"\x80" * 30)),
        field(3, tag(1, VARINT)),
        field(3, tag(1, VARINT) + b"\xff" * 11),
        field(1, tag(1, 2) + b"\x05abc"),
    ],
)
def test_malformed_lists(codec_impl: Any, key: bytes, feature: bytes) -> None:
    for wanted in (BYTES, FLOAT32, INT64):
        asked = (b"a", wanted, RAGGED, 1, None)
        assert fault_of(codec_impl, asked, example(entry(key, feature))) == (MALFORMED, -1, 0)
        assert fault_of(codec_impl, asked, sequence([], [entry(key, steps(feature))])) == (MALFORMED, -1, 0)


def test_a_hidden_context_feature_must_be_well_formed(codec_impl: Any) -> None:
    record = field(2, entry(b"a", steps(int_feature(1)))) + example(entry(b"a", field(3, b"\xff")))
    assert fault_of(codec_impl, INTS, record) == (MALFORMED, -1, 0)


@pytest.mark.parametrize("length", [2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])
def test_lengths_beyond_the_record_allocate_nothing(codec_impl: Any, length: int) -> None:
    head = b"\x0a" + varint(length)
    records = [
        head,
        field(1, head),
        example_of_a(head),
        example_of_a(field(3, head)),
        example_of_a(field(1, head)),
        example_of_a(field(2, head)),
    ]
    for record in records:
        for kind in (BYTES, FLOAT32, INT64):
            assert fault_of(codec_impl, (b"a", kind, FIXED, 2**40, None), record) == (MALFORMED, -1, 0)


@pytest.mark.parametrize(
    ("place", "messages"),
    [
        (lambda groups: groups, 0),
        (lambda groups: field(1, groups), 1),
        (lambda groups: field(1, field(1, groups)), 2),
        (lambda groups: example_of_a(groups), 3),
        (lambda groups: example_of_a(field(3, groups)), 4),
        (lambda groups: example(entry(b"b", field(1, groups))), 4),
        (lambda groups: sequence([], [entry(b"a", groups)]), 3),
        (lambda groups: sequence([], [entry(b"a", steps(groups))]), 4),
        (lambda groups: sequence([], [entry(b"a", steps(field(1, groups)))]), 5),
    ],
)
def test_nesting_is_bounded_like_protobufs(codec_impl: Any, place: Any, messages: int) -> None:
    asked = (b"a", INT64, NESTED, 1, None)
    for depth in (1, 99 - messages, 100 - messages, 101 - messages, 100, 101, 5000):
        record = place(tag(5, 3) * depth + tag(5, 4) * depth)
        malformed = [fault for fault in decode(codec_impl, [asked], record)[1] if fault[1] == MALFORMED]
        assert bool(malformed) == (messages + depth > 100) == (parse(record) is None), depth
