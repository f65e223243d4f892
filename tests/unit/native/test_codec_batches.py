"""Many records -> one batch: rows, faults, arrays, and records that look like those before them."""

from __future__ import annotations

import struct
import threading
from typing import Any

import numpy as np
import pytest
from codec_cases import INTS, ONE_INT, decode, plain
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
from holdfast._native.constants import BYTES, FIXED, FLOAT32, INT64, MALFORMED, NESTED, RAGGED


def test_rows_up_to_a_number_and_then_the_rest(codec_impl: Any) -> None:
    frames = b"".join([codec_impl.frame(example_of_a(int_feature(*range(i)))) for i in range(5)])
    decoder = codec_impl.Decoder([INTS])
    used = decoder.feed(frames, 0, len(frames), True, 2, 0, 0)
    assert used[0] == decoder.rows() == 2
    assert decoder.feed(frames, used[1], len(frames), True, 2, 2, used[1]) == (0, 0, codec.OK, 0)
    assert decoder.feed(frames, used[1], len(frames), True, 3, 2, used[1])[0] == 1
    (first,) = decoder.take()
    assert np.frombuffer(first[3], np.int64).tolist() == [0, 0, 1, 3]
    assert decoder.rows() == 0
    at = len(frames) - len(codec_impl.frame(example_of_a(int_feature(0, 1, 2, 3))))
    assert decoder.feed(frames, at, len(frames), True, 10, 4, at)[0] == 1
    (second,) = decoder.take()
    assert np.frombuffer(second[3], np.int64).tolist() == [0, 4]
    assert np.frombuffer(first[0], np.int64).tolist() == [0, 0, 1]


def test_faults_are_numbered_from_where_the_caller_is(codec_impl: Any) -> None:
    good, bad = codec_impl.frame(example_of_a(int_feature(1))), codec_impl.frame(b"\xff")
    frames = b"??" + good + bad + good + bad
    decoder = codec_impl.Decoder([ONE_INT])
    assert decoder.feed(frames, 2, len(frames), True, 9, 100, 5000) == (4, len(frames) - 2, codec.OK, 0)
    first = 5000 + len(good)
    second = first + len(bad) + len(good)
    assert decoder.faults() == [(101, first, MALFORMED, -1, 0), (103, second, MALFORMED, -1, 0)]
    assert decoder.faults() == []
    assert decoder.rows() == 2


def test_a_walk_stops_at_a_damaged_frame(codec_impl: Any) -> None:
    good = codec_impl.frame(example_of_a(int_feature(1)))
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    decoder = codec_impl.Decoder([ONE_INT])
    frames = good + damaged + good
    assert decoder.feed(frames, 0, len(frames), True, 9, 0, 0) == (
        1,
        len(good),
        codec.BAD_DATA_CRC,
        len(good),
    )
    assert decoder.feed(frames, 0, len(frames), False, 9, 0, 0) == (3, len(frames), codec.OK, 0)
    assert decoder.feed(good[1:] + good, 0, 50, True, 9, 0, 0) == (0, 0, codec.BAD_LENGTH_CRC, 16)
    assert decoder.feed(good, 0, len(good) - 1, True, 9, 0, 0) == (0, 0, codec.NEED_MORE, len(good))
    assert decoder.rows() == 4


@pytest.mark.parametrize("kind", [BYTES, FLOAT32, INT64])
@pytest.mark.parametrize("depth", [FIXED, RAGGED, NESTED])
def test_arrays_of_an_empty_batch(codec_impl: Any, kind: int, depth: int) -> None:
    zero = bytes(8)
    wanted = (
        b"",
        zero if kind == BYTES else None,
        zero if depth == NESTED else None,
        zero if depth else None,
    )
    decoder = codec_impl.Decoder([(b"a", kind, depth, 1, None)])
    assert plain(decoder.take()) == [wanted]
    decoder.feed(b"", 0, 0, True, 9, 0, 0)
    assert plain(decoder.take()) == [wanted]
    frames = codec_impl.frame(b"\xff")
    decoder.feed(frames, 0, len(frames), True, 9, 0, 0)
    assert plain(decoder.take()) == [wanted]


def test_arrays_can_be_written_to(codec_impl: Any) -> None:
    frames = codec_impl.frame(sequence([], [entry(b"a", steps(bytes_feature(b"xy")))]))
    decoder = codec_impl.Decoder([(b"a", BYTES, NESTED, 1, None)])
    decoder.feed(frames, 0, len(frames), True, 9, 0, 0)
    (column,) = decoder.take()
    for buffer in column:
        array = np.frombuffer(buffer, np.uint8)
        assert array.flags.writeable
        array[:] = 7
        assert len(buffer) == array.size == bytes(buffer).count(7)


def test_a_decoder_serves_one_thread_at_a_time(codec_impl: Any) -> None:
    frames = codec_impl.frame(example_of_a(int_feature(*range(1000)))) * 2000
    decoder = codec_impl.Decoder([INTS])
    barrier = threading.Barrier(4)
    refused = []

    def feed() -> None:
        barrier.wait()
        try:
            decoder.feed(frames, 0, len(frames), True, 200, 0, 0)
        except RuntimeError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=feed) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refused) <= {"this Decoder is at work in another thread: give each thread its own"}
    assert decoder.rows() == 200
    (column,) = decoder.take()
    assert np.array_equal(np.frombuffer(column[0], np.int64), np.tile(np.arange(1000), 200))


# ---- records that look like those before them --------------------------------------------------------------
# A decoder may go by what the record before it looked like. It must not show.


def gives_what_each_gives_alone(impl: Any, fields: list[codec.Field], *records: bytes) -> None:
    columns, faults = decode(impl, fields, *records)
    alone = [decode(impl, fields, record) for record in records]
    for place, column in enumerate(columns):
        assert column == [row for rows, _ in alone for row in rows[place]]
    assert faults == [(i, *fault[1:]) for i, (_, found) in enumerate(alone) for fault in found]


ALIKE = [
    (b"a", INT64, FIXED, 1, None),
    (b"b", FLOAT32, FIXED, 2, None),
    (b"c", BYTES, FIXED, 1, None),
    (b"d", INT64, RAGGED, 2, None),
    (b"e", BYTES, RAGGED, 1, None),
    (b"f", INT64, FIXED, 2, struct.pack("<2q", 8, 9)),
    (b"g", INT64, NESTED, 1, None),
]


def alike(a: int, d: list[int], text: bytes = b"text", *more: bytes) -> bytes:
    return example(
        entry(b"a", int_feature(a)),
        entry(b"b", float_feature(a, 2)),
        entry(b"unasked", int_feature(a)),
        entry(b"c", bytes_feature(text)),
        entry(b"unasked too", float_feature(a)),
        entry(b"d", int_feature(*d)),
        entry(b"e", bytes_feature(text)),
        *more,
    )


def test_other_values_in_the_same_places(codec_impl: Any) -> None:
    records = [alike(i, [i, 2 * i], bytes([i]) * 4) for i in range(20)]
    gives_what_each_gives_alone(codec_impl, ALIKE, *records)


def test_as_many_bytes_can_hold_another_number_of_ints(codec_impl: Any) -> None:
    records = [alike(1, d) for d in ([1, 2, 3, 4], [300, 400], [1, 2, 300], [2**21, 5], [1, 2, 3, 4], [2**27 - 1])]
    gives_what_each_gives_alone(codec_impl, ALIKE, *records, *records)


def test_every_byte_of_a_record_that_was_seen_before(codec_impl: Any) -> None:
    record = alike(1, [1, 2])
    for at in range(len(record)):
        changed = [record[:at] + bytes([byte]) + record[at + 1 :] for byte in {0, 0x0A, 0x7F, 0x80, record[at] ^ 1}]
        gives_what_each_gives_alone(codec_impl, ALIKE, record, record, *changed, record)


@pytest.mark.parametrize("empty", [b"", b"\x0a\x00", b"\x0a\x80\x00", field(1, field(1, b"")), example_of_a(b"")])
def test_an_empty_record_says_nothing_about_the_next(codec_impl: Any, empty: bytes) -> None:
    others = [b"\xff" * len(empty), bytes(len(empty)), b"\x12" + empty[1:], b"\x0b" + empty[1:]]
    gives_what_each_gives_alone(codec_impl, [INTS, ALIKE[5]], empty, empty, *others, empty)


def test_a_nested_column_that_is_missing_again_and_again(codec_impl: Any) -> None:
    nested = sequence([], [entry(b"a", steps(int_feature(1, 2, 3), int_feature(4, 5, 6)))])
    without = example(entry(b"other", int_feature(1)))
    fields = [(b"a", INT64, NESTED, 1, None)]
    gives_what_each_gives_alone(codec_impl, fields, nested, without, without, without, nested, without)


def test_a_key_of_the_same_length(codec_impl: Any) -> None:
    records = [example(entry(key, int_feature(7))) for key in (b"first", b"first", b"other", b"First", b"first")]
    fields = [(b"first", INT64, RAGGED, 1, None), (b"other", INT64, FIXED, 1, bytes(8))]
    gives_what_each_gives_alone(codec_impl, fields, *records)


def test_many_kinds_of_records_by_turns(codec_impl: Any) -> None:
    kinds = [alike(i, [i] * 2 * i, b"x" * i) for i in range(1, 9)]
    gives_what_each_gives_alone(codec_impl, ALIKE, *[record for _ in range(30) for record in kinds])
