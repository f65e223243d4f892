"""Both codecs against the protobuf library's own parser: on messages it wrote, odd ones, damaged ones."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from codec_cases import NUMBERS, decode, load, plain
from example_messages import ENTRIES, MAPS, contents, parse
from hypothesis import example as explicit_example
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_bytes import (
    FIXED32,
    FIXED64,
    VARINT,
    field,
    floats,
    floats_unpacked,
    group,
    ints,
    strings,
    tag,
    varint,
)

from holdfast._native.constants import (
    BYTES,
    FIXED,
    FLOAT32,
    INT64,
    IS_LIST,
    MALFORMED,
    MISSING,
    NESTED,
    NOT_LIST,
    RAGGED,
    WRONG_COUNT,
    WRONG_KIND,
    Field,
)

SETTINGS = settings(max_examples=200, deadline=None, derandomize=True, database=None)
NO_LIMIT = 1 << 40
NOTHING = ENTRIES["Feature"]()

LISTS = {"bytes_list": BYTES, "float_list": FLOAT32, "int64_list": INT64}
KEYS = st.sampled_from(["a", "b", "c", ""])

INTEGERS = st.one_of(st.integers(-200, 200), st.integers(-(2**63), 2**63 - 1))
FLOATS = st.floats(width=32)
STRINGS = st.binary(max_size=12)


# ---- what protobuf says a record holds ---------------------------------------------------------------------


def values_of(feature: Any) -> tuple[int, list[Any]]:
    """(kind, values); kind 0 when it is empty."""
    name = feature.WhichOneof("kind")
    return (LISTS[name], list(getattr(feature, name).value)) if name else (0, [])


def wanted_of_list(asked: Field, features: list[Any]) -> tuple[Any, tuple[int, int] | None]:
    _, kind, depth, count, _ = asked
    if depth == FIXED:
        return None, (IS_LIST, 0)
    steps = []
    for feature in features:
        found, values = values_of(feature)
        if found not in (0, kind):
            return None, (WRONG_KIND, found)
        if (len(values) != count) if depth == RAGGED else (len(values) % count):
            return None, (WRONG_COUNT, len(values))
        steps.append(values)
    return (steps if depth == NESTED else [value for step in steps for value in step]), None


def wanted_of_feature(asked: Field, feature: Any) -> tuple[Any, tuple[int, int] | None]:
    _, kind, depth, count, default = asked
    found, values = values_of(feature)
    if found == 0:
        if depth != FIXED:
            return [], None
        return (None, (MISSING, 0)) if default is None else (default_values(asked), None)
    if found != kind:
        return None, (WRONG_KIND, found)
    if depth == NESTED:
        return None, (NOT_LIST, len(values))
    if (len(values) != count) if depth == FIXED else (len(values) % count):
        return None, (WRONG_COUNT, len(values))
    return values, None


def default_values(asked: Field) -> list[Any]:
    _, kind, _, _, default = asked
    return list(default) if kind == BYTES else np.frombuffer(default, NUMBERS[kind]).tolist()


def wanted_row(fields: list[Field], record: bytes) -> tuple[list[Any], list[tuple[int, ...]]]:
    """What `decode` must give for this one record."""
    there = contents(record)
    if there is None:
        return [[] for _ in fields], [(0, MALFORMED, -1, 0)]
    features, lists = there
    row = []
    for place, asked in enumerate(fields):
        key = asked[0]
        if key in lists:
            values, fault = wanted_of_list(asked, lists[key])
        else:
            values, fault = wanted_of_feature(asked, features.get(key, NOTHING))
        if fault:
            return [[] for _ in fields], [(0, fault[0], place, fault[1])]
        row.append([values])
    return row, []


def exact(value: Any) -> Any:
    """Comparable to the last bit; only which NaN it is does not count: Python floats do not keep it."""
    if isinstance(value, (list, tuple)):
        return [exact(part) for part in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<f", value)
    return value


def check(impl: Any, fields: list[Field], record: bytes) -> None:
    assert exact(decode(impl, fields, record)) == exact(wanted_row(fields, record))


# ---- what is generated -------------------------------------------------------------------------------------


@st.composite
def asked_fields(draw: st.DrawFn) -> list[Field]:
    fields: list[Field] = []
    for key in draw(st.lists(KEYS, min_size=1, max_size=4, unique=True)):
        kind = draw(st.sampled_from([BYTES, FLOAT32, INT64]))
        depth = draw(st.sampled_from([FIXED, RAGGED, NESTED]))
        count = draw(st.sampled_from([1, 1, 2, 3]))
        default: Any = None
        if depth == FIXED and draw(st.booleans()):
            default = (
                [b"d" * k for k in range(count)] if kind == BYTES else bytes(range(8))[:: 8 // SIZES[kind]] * count
            )
        fields.append((key.encode(), kind, depth, count, default))
    return fields


SIZES = {INT64: 8, FLOAT32: 4}


@st.composite
def features(draw: st.DrawFn) -> Any:
    feature = MAPS["Feature"]()
    name = draw(st.sampled_from([*LISTS, *LISTS, None]))
    if name:
        values = {"bytes_list": STRINGS, "float_list": FLOATS, "int64_list": INTEGERS}[name]
        getattr(feature, name).SetInParent()
        size = draw(st.sampled_from([0, 1, 1, 2, 3, 6]))
        times = draw(st.sampled_from([1, 1, 1, 10]))
        getattr(feature, name).value.extend(draw(st.lists(values, min_size=size, max_size=size)) * times)
    return feature


@st.composite
def written_records(draw: st.DrawFn) -> bytes:
    """By protobuf."""
    message = MAPS["SequenceExample"]()
    for key, feature in draw(st.dictionaries(KEYS, features(), max_size=4)).items():
        message.context.feature[key].CopyFrom(feature)
    for key, steps in draw(st.dictionaries(KEYS, st.lists(features(), max_size=4), max_size=2)).items():
        message.feature_lists.feature_list[key].SetInParent()
        message.feature_lists.feature_list[key].feature.extend(steps)
    return bytes(message.SerializeToString())


@st.composite
def plain_records(draw: st.DrawFn) -> bytes:
    """Examples as most files have them: each feature once, with values."""
    message = MAPS["Example"]()
    for key, value in draw(st.dictionaries(KEYS, st.one_of(INTEGERS, FLOATS, STRINGS), max_size=4)).items():
        name = {int: "int64_list", float: "float_list", bytes: "bytes_list"}[type(value)]
        times = 1 if name == "bytes_list" else draw(st.integers(1, 3))
        getattr(message.features.feature[key], name).value.extend([value] * times)
    return bytes(message.SerializeToString())


UNKNOWN = st.one_of(
    st.integers(0, 2**64 - 1).map(lambda value: tag(9, VARINT) + varint(value)),
    st.just(tag(3, FIXED64) + b"12345678"),
    st.just(tag(2, FIXED32) + b"1234"),
    STRINGS.map(lambda value: field(7, value)),
    STRINGS.map(lambda value: group(1, group(4, field(1, value)))),
)


def joined(*parts: st.SearchStrategy[bytes], maximum: int = 4) -> st.SearchStrategy[bytes]:
    return st.lists(st.one_of(*parts), max_size=maximum).map(b"".join)


def within(number: int, content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return content.map(lambda value: field(number, value))


def odd_records() -> st.SearchStrategy[bytes]:
    """Legal, but as no library writes them: in pieces, repeated, unpacked, out of order, unknown fields."""
    numbers = st.lists(INTEGERS, max_size=4)
    long_varint = st.builds(lambda value, size: tag(1, VARINT) + varint(value, size), INTEGERS, st.integers(1, 10))
    int_list = joined(numbers.map(lambda values: ints(*values)), long_varint, UNKNOWN)
    some_floats = st.lists(FLOATS, max_size=3)
    float_list = joined(
        some_floats.map(lambda values: floats(*values)),
        some_floats.map(lambda values: floats_unpacked(*values)),
        UNKNOWN,
    )
    bytes_list = joined(st.lists(STRINGS, max_size=3).map(lambda values: strings(*values)), UNKNOWN)
    feature = joined(within(1, bytes_list), within(2, float_list), within(3, int_list), UNKNOWN, maximum=3)
    key = within(1, KEYS.map(str.encode))
    feature_entry = joined(key, within(2, feature), UNKNOWN)
    list_entry = joined(key, within(2, joined(within(1, feature), UNKNOWN)), UNKNOWN)
    context = within(1, joined(within(1, feature_entry), UNKNOWN, maximum=6))
    lists = within(2, joined(within(1, list_entry), UNKNOWN))
    return joined(context, context, lists, UNKNOWN)


def change(record: bytes, how: tuple[str, float, float, bytes]) -> bytes:
    """`how`: what to do, where, up to where, and new bytes."""
    kind, at_share, stop_share, new = how
    at = int(at_share * len(record))
    stop = at + int(stop_share * min(len(record) - at, 16))
    if kind == "replace":
        return record[:at] + new + record[at + len(new) :]
    if kind == "insert":
        return record[:at] + new + record[at:]
    if kind == "delete":
        return record[:at] + record[stop:]
    if kind == "repeat":
        return record[:stop] + record[at:stop] + record[stop:]
    if kind == "lengthen" and at < len(record):
        return record[:at] + varint(record[at] & 127, 2 + len(new)) + record[at + 1 :]
    return record[:at]


CHANGES = st.tuples(
    st.sampled_from(["replace", "replace", "insert", "delete", "repeat", "lengthen", "cut"]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.one_of(
        st.binary(min_size=1, max_size=6),
        st.sampled_from([b"\x00", b"\x0a", b"\x12", b"\x1a", b"\x08", b"\x0b", b"\x0c", b"\x7f", b"\x80", b"\xff"]),
    ),
)


@st.composite
def damaged_records(draw: st.DrawFn) -> bytes:
    record = draw(st.one_of(written_records(), odd_records()))
    for how in draw(st.lists(CHANGES, min_size=1, max_size=4)):
        record = change(record, how)
    return record


ANY_RECORD = st.one_of(written_records(), odd_records(), damaged_records(), st.binary(max_size=40))


@pytest.fixture(params=["compiled", "pure"], scope="module")
def impl(request: pytest.FixtureRequest) -> Any:
    return load(request.param)


# ---- against protobuf --------------------------------------------------------------------------------------


@SETTINGS
@given(record=written_records())
def test_entries_are_what_a_map_is_on_the_wire(record: bytes) -> None:
    message, there = parse(record, MAPS), contents(record)
    assert there is not None
    features, lists = there
    assert {key.decode() for key in features} == set(message.context.feature)
    assert {key.decode() for key in lists} == set(message.feature_lists.feature_list)
    for key, feature in features.items():
        of_map = message.context.feature[key.decode()]
        assert feature.SerializeToString(deterministic=True) == of_map.SerializeToString(deterministic=True)


@SETTINGS
@given(fields=asked_fields(), record=written_records())
def test_records_that_protobuf_wrote(impl: Any, fields: list[Field], record: bytes) -> None:
    check(impl, fields, record)


@SETTINGS
@given(fields=asked_fields(), record=odd_records())
def test_records_of_odd_form(impl: Any, fields: list[Field], record: bytes) -> None:
    assert parse(record, MAPS) is not None
    check(impl, fields, record)


@SETTINGS
@given(fields=asked_fields(), record=damaged_records())
@explicit_example(fields=[], record=varint(9 << 3 | 2, 6) + b"\x00")
@explicit_example(fields=[], record=b"\x4a" + varint(1, 6) + b"x")
def test_damaged_records(impl: Any, fields: list[Field], record: bytes) -> None:
    check(impl, fields, record)


@SETTINGS
@given(fields=asked_fields(), record=st.binary(max_size=60))
def test_random_bytes(impl: Any, fields: list[Field], record: bytes) -> None:
    check(impl, fields, record)


# ---- against each other ------------------------------------------------------------------------------------


def feed_all(impl: Any, fields: list[Field], data: bytes, verify: bool, maximum: int) -> tuple[Any, ...]:
    decoder = impl.Decoder(fields)
    fed = decoder.feed(data, 0, len(data), verify, maximum, 3, 1000)
    rows = decoder.rows()
    again = decoder.feed(data, fed[1], len(data), verify, maximum + 1, 3 + fed[0], 1000 + fed[1])
    return fed, rows, again, decoder.faults(), decoder.rows(), plain(decoder.take()), decoder.rows()


@SETTINGS
@given(
    fields=asked_fields(),
    records=st.lists(ANY_RECORD, max_size=4),
    damage=st.lists(CHANGES, max_size=1),
    verify=st.booleans(),
    maximum=st.integers(0, 5),
)
def test_both_decode_the_same(
    fields: list[Field], records: list[bytes], damage: list[Any], verify: bool, maximum: int
) -> None:
    compiled, pure = load("compiled"), load("pure")
    data = b"".join([pure.frame(record) for record in records])
    for how in damage:
        data = change(data, how)
    assert feed_all(compiled, fields, data, verify, maximum) == feed_all(pure, fields, data, verify, maximum)


@SETTINGS
@given(
    fields=asked_fields(),
    record=st.one_of(plain_records(), written_records()),
    changes=st.lists(st.lists(CHANGES, max_size=2), min_size=1, max_size=5),
)
def test_both_decode_records_that_look_alike_the_same(
    fields: list[Field], record: bytes, changes: list[list[Any]]
) -> None:
    compiled, pure = load("compiled"), load("pure")
    records = [record, record]
    for some in changes:
        changed = record
        for how in some:
            changed = change(changed, how)
        records.append(changed)
    data = b"".join([pure.frame(record) for record in records])
    assert feed_all(compiled, fields, data, True, 99) == feed_all(pure, fields, data, True, 99)


@SETTINGS
@given(
    records=st.lists(st.binary(max_size=30), max_size=5),
    damage=st.lists(CHANGES, max_size=3),
    before=st.binary(max_size=30),
    verify=st.booleans(),
    crc=st.integers(0, 2**32 - 1),
)
def test_both_walk_and_search_the_same(
    records: list[bytes], damage: list[Any], before: bytes, verify: bool, crc: int
) -> None:
    compiled, pure = load("compiled"), load("pure")
    data = b"".join([pure.frame(record) for record in records])
    for how in damage:
        data = change(data, how)
    data = before + data
    for start in (0, len(before), len(data) // 2):
        found = []
        for impl in (compiled, pure):
            starts = np.full(4, -1, np.int64)
            found.append(
                (
                    impl.scan(data, start, len(data), verify, starts, 77),
                    starts.tolist(),
                    impl.scan(data, start, len(data), verify),
                    impl.records(data, start, len(data), verify, 3),
                    impl.find_header(data, start, len(data)),
                    impl.find_end(data, start, len(data), crc),
                    impl.find_end(data, min(start + 12, len(data)), len(data), 0),
                    impl.crc32c(data, crc),
                )
            )
        assert found[0] == found[1]


@st.composite
def splits(draw: st.DrawFn, maximum: int) -> Any:
    """Nearly always good."""
    values = sorted(draw(st.lists(st.integers(0, 4), max_size=maximum)))
    values = [0, *values] if draw(st.integers(0, 9)) else draw(st.lists(st.integers(-2, 9), max_size=4))
    return np.array(values, np.int64)


@st.composite
def columns_for(draw: st.DrawFn, asked: Field) -> Any:
    _, kind, _, _, _ = asked
    if kind == BYTES:
        values: Any = draw(st.binary(max_size=20))
    elif kind == FLOAT32:
        values = np.array(draw(st.lists(FLOATS, max_size=40)), np.float32)
    else:
        values = np.array(draw(st.lists(INTEGERS, max_size=40)), np.int64)
    return values, draw(splits(9)), draw(splits(6)), draw(splits(3))


def encoded(impl: Any, fields: list[Field], columns: list[Any], rows: int, sequence: bool, stop: int) -> Any:
    try:
        out, after = impl.Encoder(fields).encode(columns, rows, 0, sequence, stop)
    except ValueError as error:
        return str(error)
    return bytes(out), after


@SETTINGS
@given(data=st.data(), rows=st.integers(0, 3), sequence=st.booleans(), stop=st.sampled_from([1, 60, NO_LIMIT]))
def test_both_encode_the_same(data: st.DataObject, rows: int, sequence: bool, stop: int) -> None:
    fields = data.draw(asked_fields())
    columns = [data.draw(columns_for(asked)) for asked in fields]
    compiled = encoded(load("compiled"), fields, columns, rows, sequence, stop)
    assert compiled == encoded(load("pure"), fields, columns, rows, sequence, stop)


def fields_of(record: bytes) -> list[Field]:
    there = contents(record)
    assert there is not None
    features, lists = there
    fields: list[Field] = []
    for key, feature in features.items():
        kind, values = values_of(feature)
        if values and key not in lists:
            fields.append((key, kind, FIXED, len(values), None))
    for key, steps in lists.items():
        kinds = {values_of(feature)[0] for feature in steps} - {0}
        if len(kinds) <= 1:
            fields.append((key, kinds.pop() if kinds else INT64, NESTED, 1, None))
    return fields


@SETTINGS
@given(record=written_records())
def test_what_is_decoded_and_encoded_again_says_the_same(impl: Any, record: bytes) -> None:
    """Fields asked for as they are in the record, so that all of it is there."""
    fields = fields_of(record)
    decoder = impl.Decoder(fields)
    frames = impl.frame(record)
    assert decoder.feed(frames, 0, len(frames), True, 1, 0, 0)[0] == 1
    assert decoder.faults() == []
    columns = decoder.take()
    again, _ = impl.Encoder(fields).encode(columns, 1, 0, True, 1)
    assert decoder.feed(again, 0, len(again), True, 1, 0, 0)[0] == 1
    assert plain(decoder.take()) == plain(columns)
    check(impl, fields, bytes(again)[12:-4])
