"""Columns -> Example and SequenceExample records, and back."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from codec_cases import plain
from example_messages import MAPS
from wire_bytes import bytes_feature, entry, example, field, float_feature, int_feature, sequence, steps

from holdfast._native import codec
from holdfast._native.constants import BYTES, FIXED, FLOAT32, INT64, NESTED, RAGGED

NO_LIMIT = 1 << 40
LOWEST, HIGHEST = -(2**63), 2**63 - 1


def int64s(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


# Three rows of every column type.
FIELDS: list[codec.Field] = [
    (b"int", INT64, FIXED, 1, None),
    (b"ints", INT64, FIXED, 2, None),
    (b"floats", FLOAT32, FIXED, 3, None),
    (b"bytes", BYTES, FIXED, 1, None),
    (b"two bytes", BYTES, FIXED, 2, None),
    (b"ragged ints", INT64, RAGGED, 1, None),
    (b"ragged pairs", FLOAT32, RAGGED, 2, None),
    (b"ragged bytes", BYTES, RAGGED, 1, None),
]
COLUMNS: list[Any] = [
    (int64s(LOWEST, -1, HIGHEST), None, None, None),
    (int64s(0, 127, 128, 300, 2**35, 2**56), None, None, None),
    (np.arange(9, dtype=np.float32) / 2, None, None, None),
    (b"abcd" * 50, int64s(0, 0, 1, 200), None, None),
    (b"abcdef", int64s(0, 1, 1, 3, 3, 5, 6), None, None),
    (np.arange(-50, 50), None, None, int64s(0, 0, 98, 100)),
    (np.arange(8, dtype=np.float32), None, None, int64s(0, 3, 3, 4)),
    (b"xyz", int64s(0, 1, 1, 3), None, int64s(0, 2, 3, 3)),
]
NESTED_FIELDS: list[codec.Field] = [
    (b"nested ints", INT64, NESTED, 1, None),
    (b"nested pairs", FLOAT32, NESTED, 2, None),
    (b"nested bytes", BYTES, NESTED, 1, None),
]
NESTED_COLUMNS: list[Any] = [
    (np.arange(6) * -7, None, int64s(0, 1, 1, 4, 6), int64s(0, 2, 2, 4)),
    (np.arange(8, dtype=np.float32), None, int64s(0, 1, 4), int64s(0, 1, 2, 2)),
    (b"abcdef", int64s(0, 2, 2, 6), int64s(0, 0, 3), int64s(0, 0, 1, 2)),
]
KINDS = {INT64: "int64_list", FLOAT32: "float_list", BYTES: "bytes_list"}


def encode(impl: Any, fields: list[codec.Field], columns: list[Any], rows: int, sequence: bool = False) -> bytes:
    out, after = impl.Encoder(fields).encode(columns, rows, 0, sequence, NO_LIMIT)
    assert after == rows
    return bytes(out)


def records(impl: Any, frames: bytes) -> list[bytes]:
    found, used, status, _ = impl.records(frames, 0, len(frames), True, NO_LIMIT)
    assert (used, status) == (len(frames), codec.OK)
    return found


def as_bytes(column: Any) -> tuple[bytes | None, ...]:
    return tuple(None if buffer is None else bytes(memoryview(buffer).cast("B")) for buffer in column)


# ---- the bytes ---------------------------------------------------------------------------------------------


def test_the_bytes_of_an_example(codec_impl: Any) -> None:
    fields = [FIELDS[0], FIELDS[2], (b"b", BYTES, RAGGED, 1, None), (b"empty", INT64, RAGGED, 1, None)]
    columns = [
        (int64s(-5), None, None, None),
        (np.float32([1, 2, 3]), None, None, None),
        (b"xyz", int64s(0, 1, 1, 3), None, int64s(0, 3)),
        (int64s(), None, None, int64s(0, 0)),
    ]
    record = example(
        entry(b"int", int_feature(-5)),
        entry(b"floats", float_feature(1, 2, 3)),
        entry(b"b", bytes_feature(b"x", b"", b"yz")),
        entry(b"empty", field(3, b"")),
    )
    assert encode(codec_impl, fields, columns, 1) == codec_impl.frame(record)


def test_the_bytes_of_a_sequence_example(codec_impl: Any) -> None:
    fields = [(b"r", INT64, RAGGED, 2, None), FIELDS[0], (b"n", BYTES, NESTED, 1, None)]
    columns = [
        (int64s(1, 2, 3, 4), None, None, int64s(0, 2)),
        (int64s(7), None, None, None),
        (b"xyz", int64s(0, 1, 3), int64s(0, 0, 2), int64s(0, 2)),
    ]
    record = sequence(
        [entry(b"int", int_feature(7))],
        [
            entry(b"r", steps(int_feature(1, 2), int_feature(3, 4))),
            entry(b"n", steps(bytes_feature(), bytes_feature(b"x", b"yz"))),
        ],
    )
    assert encode(codec_impl, fields, columns, 1, sequence=True) == codec_impl.frame(record)


def test_without_columns(codec_impl: Any) -> None:
    assert records(codec_impl, encode(codec_impl, [], [], 2)) == [b"\x0a\x00"] * 2
    assert records(codec_impl, encode(codec_impl, [], [], 1, sequence=True)) == [b"\x0a\x00\x12\x00"]


def test_protobuf_reads_it(codec_impl: Any) -> None:
    frames = encode(codec_impl, FIELDS, COLUMNS, 3)
    (decoded, faults) = _decode(codec_impl, FIELDS, frames)
    assert faults == []
    for record in records(codec_impl, frames):
        message = MAPS["Example"].FromString(record)
        assert set(message.features.feature) == {key.decode() for key, *_ in FIELDS}
        for key, kind, *_ in FIELDS:
            assert message.features.feature[key.decode()].WhichOneof("kind") == KINDS[kind]
    assert list(message.features.feature["two bytes"].bytes_list.value) == [b"de", b"f"]
    assert list(message.features.feature["ints"].int64_list.value) == [2**35, 2**56]
    assert decoded == [as_bytes(column) for column in COLUMNS]


# ---- there and back ----------------------------------------------------------------------------------------


def _decode(impl: Any, fields: list[codec.Field], frames: bytes) -> tuple[Any, Any]:
    decoder = impl.Decoder(fields)
    assert decoder.feed(frames, 0, len(frames), True, NO_LIMIT, 0, 0)[1] == len(frames)
    return plain(decoder.take()), decoder.faults()


def test_round_trip_as_example(codec_impl: Any) -> None:
    frames = encode(codec_impl, FIELDS, COLUMNS, 3)
    assert _decode(codec_impl, FIELDS, frames) == ([as_bytes(column) for column in COLUMNS], [])


def test_round_trip_as_sequence_example(codec_impl: Any) -> None:
    fields, columns = FIELDS + NESTED_FIELDS, COLUMNS + NESTED_COLUMNS
    frames = encode(codec_impl, fields, columns, 3, sequence=True)
    assert _decode(codec_impl, fields, frames) == ([as_bytes(column) for column in columns], [])


@pytest.mark.parametrize("size", [1, 23, 24, 25, 500])
@pytest.mark.parametrize("bits", [1, 7, 8, 14, 35, 62, 64])
def test_ints_of_every_size(codec_impl: Any, size: int, bits: int) -> None:
    values = np.random.default_rng(bits).integers(0, 2**64 - 1, size, np.uint64, True) >> np.uint64(64 - bits)
    values[-1] = 2**bits - 1
    fields = [(b"a", INT64, FIXED, size, None)]
    column = (values, None, None, None)
    frames = encode(codec_impl, fields, [column], 1)
    assert _decode(codec_impl, fields, frames) == ([as_bytes(column)], [])
    (record,) = records(codec_impl, frames)
    assert record == example(entry(b"a", int_feature(*values.tolist())))


def test_nested_columns_need_a_sequence_example(codec_impl: Any) -> None:
    fields, columns = (
        [(b"a", INT64, NESTED, 1, None)],
        [(int64s(5, 6), None, int64s(0, 1, 2), int64s(0, 1, 2))],
    )
    with pytest.raises(ValueError, match="SequenceExample"):
        encode(codec_impl, fields, columns, 2)


def test_columns_may_be_longer_than_the_rows(codec_impl: Any) -> None:
    fields = [FIELDS[0], FIELDS[3], NESTED_FIELDS[0]]
    columns = [
        (int64s(1, 2, 3), None, None, None),
        (b"abcdef", int64s(0, 1, 3, 6), None, None),
        (int64s(1, 2, 3), None, int64s(0, 1, 3), int64s(0, 1)),
    ]
    (record,) = records(codec_impl, encode(codec_impl, fields, columns, 1, sequence=True))
    context = [entry(b"int", int_feature(1)), entry(b"bytes", bytes_feature(b"a"))]
    assert record == sequence(context, [entry(b"nested ints", steps(int_feature(1)))])


def test_splits_need_not_start_at_0(codec_impl: Any) -> None:
    columns = [(int64s(9, 1, 2), None, None, int64s(1, 3))]
    (record,) = records(codec_impl, encode(codec_impl, [(b"a", INT64, RAGGED, 1, None)], columns, 1))
    assert record == example(entry(b"a", int_feature(1, 2)))


# ---- parts of a batch --------------------------------------------------------------------------------------


def test_rows_in_parts(codec_impl: Any) -> None:
    encoder = codec_impl.Encoder(FIELDS)
    whole = encode(codec_impl, FIELDS, COLUMNS, 3)
    parts, first = b"", 0
    while first < 3:
        part, after = encoder.encode(COLUMNS, 3, first, False, 1)
        assert after == first + 1
        parts += bytes(part)
        first = after
    assert parts == whole
    first_size = len(bytes(encoder.encode(COLUMNS, 3, 0, False, 1)[0]))
    assert encoder.encode(COLUMNS, 3, 0, False, first_size)[1] == 1
    assert encoder.encode(COLUMNS, 3, 0, False, first_size + 1)[1] == 2


def test_no_rows(codec_impl: Any) -> None:
    out, after = codec_impl.Encoder(FIELDS).encode(COLUMNS, 3, 3, False, 1)
    assert (bytes(out), after) == (b"", 3)
    empty = [(int64s(), None, None, None), (bytearray(), int64s(0), int64s(0), int64s(0))]
    out, after = codec_impl.Encoder([FIELDS[0], NESTED_FIELDS[2]]).encode(empty, 0, 0, True, 1)
    assert (bytes(out), after) == (b"", 0)


@pytest.mark.parametrize(("rows", "first", "stop"), [(-1, 0, 1), (3, -1, 1), (3, 4, 1), (3, 0, 0), (3, 0, -1)])
def test_refuses_numbers_out_of_bounds(codec_impl: Any, rows: int, first: int, stop: int) -> None:
    with pytest.raises(ValueError, match="within bounds"):
        codec_impl.Encoder(FIELDS).encode(COLUMNS, rows, first, False, stop)


# ---- columns that are not as they say ----------------------------------------------------------------------

NOT_RISING = [
    int64s(0, 2, 1),
    int64s(-1, 0, 1),
    int64s(0, -1, 1),
    int64s(0, HIGHEST, 1),
    int64s(LOWEST, 0, 1),
]
HUGE = [int64s(0, 1, HIGHEST), int64s(0, 1, 2**40), int64s(HIGHEST, HIGHEST, HIGHEST), int64s(0, 1, 5)]


def refuses(impl: Any, field: codec.Field, column: Any, error: Any = ValueError) -> None:
    for as_sequence in (False, True):
        with pytest.raises(error):
            impl.Encoder([field]).encode([column], 2, 0, as_sequence, NO_LIMIT)


@pytest.mark.parametrize("rows", [*NOT_RISING, *HUGE, int64s(), int64s(0), int64s(0, 1), int64s(0, 1, 2, 3)])
def test_refuses_bad_row_splits(codec_impl: Any, rows: Any) -> None:
    for kind, values in ((INT64, int64s(1, 2)), (FLOAT32, np.zeros(2, np.float32)), (BYTES, b"ab")):
        refuses(codec_impl, (b"a", kind, RAGGED, 1, None), (values, int64s(0, 1, 2), None, rows))
        refuses(codec_impl, (b"a", kind, NESTED, 1, None), (values, int64s(0, 1, 2), int64s(0, 1, 2), rows))


@pytest.mark.parametrize("bad", [*NOT_RISING, *HUGE, int64s(), int64s(0), int64s(0, 1)])
def test_refuses_bad_step_splits_and_offsets(codec_impl: Any, bad: Any) -> None:
    rows = int64s(0, 1, 2)
    refuses(codec_impl, (b"a", INT64, NESTED, 1, None), (int64s(1, 2), None, bad, rows))
    refuses(codec_impl, (b"a", BYTES, NESTED, 1, None), (b"ab", int64s(0, 1, 2), bad, rows))
    for depth in (FIXED, RAGGED, NESTED):
        refuses(codec_impl, (b"a", BYTES, depth, 1, None), (b"ab", bad, int64s(0, 1, 2), rows))


def test_refuses_too_few_values(codec_impl: Any) -> None:
    refuses(codec_impl, (b"a", INT64, FIXED, 1, None), (int64s(1), None, None, None))
    refuses(codec_impl, (b"a", FLOAT32, FIXED, 3, None), (np.zeros(5, np.float32), None, None, None))
    refuses(codec_impl, (b"a", INT64, RAGGED, 2, None), (int64s(1, 2, 3), None, None, int64s(0, 1, 2)))
    for count, splits in product((2**40, 2**39), (int64s(0, 1, 2**30), int64s(0, 1, HIGHEST))):
        refuses(codec_impl, (b"a", INT64, RAGGED, count, None), (int64s(1), None, None, splits))
        refuses(codec_impl, (b"a", BYTES, RAGGED, count, None), (b"1", int64s(0, 1), None, splits))
    with pytest.raises(ValueError, match="fewer values"):
        codec_impl.Encoder([FIELDS[0]]).encode([(int64s(1), None, None, None)], HIGHEST, 0, False, 1)


def test_refuses_buffers_of_broken_values(codec_impl: Any) -> None:
    refuses(codec_impl, (b"a", INT64, FIXED, 1, None), (bytes(17), None, None, None))
    refuses(codec_impl, (b"a", FLOAT32, FIXED, 1, None), (bytes(9), None, None, None))
    refuses(codec_impl, (b"a", INT64, RAGGED, 1, None), (int64s(1, 2), None, None, bytes(23)))
    unaligned = memoryview(np.zeros(4, np.int64)).cast("B")[4:-4]
    refuses(codec_impl, (b"a", INT64, FIXED, 1, None), (unaligned, None, None, None))
    strided = np.zeros((4, 2), np.int64)[:, 0]
    refuses(codec_impl, (b"a", INT64, FIXED, 1, None), (strided, None, None, None), (ValueError, BufferError))


def test_refuses_what_is_no_column(codec_impl: Any) -> None:
    good = (int64s(1, 2), None, None, None)
    for column in (good[:3], list(good), None, (None, None, None, None), ("text", None, None, None)):
        refuses(codec_impl, FIELDS[0], column, TypeError)
    refuses(codec_impl, (b"a", INT64, RAGGED, 1, None), good, TypeError)
    for columns in ([], [good, good]):
        with pytest.raises(ValueError, match=f"expected 1 columns, got {len(columns)}"):
            codec_impl.Encoder([FIELDS[0]]).encode(columns, 2, 0, False, 1)


def test_names_the_column(codec_impl: Any) -> None:
    columns = [(int64s(1), None, None, None), (int64s(1), None, None, int64s(0))]
    with pytest.raises(ValueError, match="column 1: row splits must be rising"):
        codec_impl.Encoder([FIELDS[0], FIELDS[5]]).encode(columns, 1, 0, False, 1)
