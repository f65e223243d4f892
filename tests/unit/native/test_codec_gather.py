"""The gatherer itself, compiled and pure: the same bytes and the same refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from codec_cases import load
from hypothesis import given, settings
from hypothesis import strategies as st


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def test_a_column_of_every_depth(codec_impl: Any) -> None:
    gatherer = codec_impl.Gatherer([((), 2), ((1,), 1), ((1, 2), 1)])
    values = np.frombuffer(b"abcdefgh", np.uint8)
    # Lists of pairs of strings: ("a", "bc"), none, ("", "d") and ("e", "f").
    gatherer.put(
        5, 3, [b"AABBCC", ints(0, 1, 1, 4), values, ints(0, 1, 1, 3), ints(0, 1, 3, 3, 4, 5, 6), values.tobytes()]
    )
    taken = [bytes(buffer) for buffer in gatherer.take(ints(5, 5, 5), ints(2, 0, 1))]
    assert taken == [
        b"CCAABB",
        ints(0, 3, 4, 4).tobytes(),
        b"bcda",
        ints(0, 2, 3, 3).tobytes(),
        ints(0, 0, 1, 2, 3, 4, 6).tobytes(),
        b"defabc",
    ]


def test_a_start_and_a_stop_for_each_row(codec_impl: Any) -> None:
    gatherer = codec_impl.Gatherer([((1,), 1)])
    gatherer.put(0, 3, [ints(4, 6, 0, 1, 2, 2), b"abcdefg"])
    gatherer.put(1, 1, [ints(1, 3), b"xyz"])
    ends, values = gatherer.take(ints(0, 0, 1, 0), ints(0, 1, 0, 2))
    assert np.frombuffer(ends, np.int64).tolist() == [0, 2, 3, 5, 5]
    assert bytes(values) == b"efayz"


def test_no_rows(codec_impl: Any) -> None:
    gatherer = codec_impl.Gatherer([((), 4), ((1,), 8), ((1,), 0)])
    taken = gatherer.take(ints(), ints())
    assert [bytes(buffer) for buffer in taken] == [b"", bytes(8), b"", bytes(8), b""]
    gatherer.put(0, 0, [b"", b"", b"", b"", b""])
    with pytest.raises(IndexError, match="expected a row below 0 of slot 0, got 0"):
        gatherer.take(ints(0), ints(0))


def test_values_without_bytes(codec_impl: Any) -> None:
    gatherer = codec_impl.Gatherer([((), 0), ((1,), 0)])
    gatherer.put(0, 2, [b"", ints(0, 3, 10), b""])
    assert [bytes(buffer) for buffer in gatherer.take(ints(0, 0), ints(1, 0))] == [b"", ints(0, 7, 10).tobytes(), b""]


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 12, 64, 100])
def test_widths(codec_impl: Any, width: int) -> None:
    gatherer = codec_impl.Gatherer([((), width)])
    data = np.random.default_rng(width).integers(0, 255, (30, width), dtype=np.uint8)
    gatherer.put(0, 30, [data])
    rows = np.random.default_rng(1).integers(0, 30, 100)
    assert bytes(gatherer.take(np.zeros(100, np.int64), rows)[0]) == data[rows].tobytes()


def test_ends_at_an_odd_address(codec_impl: Any) -> None:
    gatherer = codec_impl.Gatherer([((1,), 1)])
    gatherer.put(0, 2, [memoryview(b"?" + ints(0, 1, 3).tobytes())[1:], b"abc"])
    assert bytes(gatherer.take(ints(0, 0), ints(1, 0))[1]) == b"bca"


@pytest.mark.parametrize(
    ("layouts", "rows", "buffers"),
    [
        ([((), 4)], 3, [bytes(11)]),
        ([((), 4)], 2**61, [bytes(16)]),
        ([((1,), 1)], 2, [ints(0, 1), b"a"]),
        ([((1,), 1)], 2, [ints(0, 1, 2, 3, 4), b"a"]),
        ([((1,), 1)], 2, [ints(), b"a"]),
        ([((2,), 1)], 2, [ints(0, 1, 2, 3), b"aaaaaaaaa"]),
        ([((2**62,), 1)], 4, [ints(0), b""]),
        ([((1, 1), 1)], 1, [ints(0, 0), ints(), b""]),
    ],
)
def test_arrays_of_other_rows(codec_impl: Any, layouts: Any, rows: int, buffers: list[Any]) -> None:
    with pytest.raises(ValueError, match=f"column 0: its arrays are not those of {rows} rows"):
        codec_impl.Gatherer(layouts).put(0, rows, buffers)


def test_what_is_no_batch(codec_impl: Any) -> None:
    gatherer = codec_impl.Gatherer([((1,), 1)])
    for buffers in ([], [ints(0)], [ints(0), b"", b""]):
        with pytest.raises(ValueError, match="expected a buffer for every array of every column"):
            gatherer.put(0, 0, buffers)
    with pytest.raises(ValueError):
        gatherer.put(0, 1, [bytes(17), b""])
    with pytest.raises(ValueError, match="rows from 0 up"):
        gatherer.put(0, -1, [ints(0), b""])
    with pytest.raises(TypeError):
        gatherer.put(0, 0, [ints(0), 5])
    with pytest.raises(IndexError, match="slot 0 holds nothing"):
        gatherer.take(ints(0), ints(0))
    for layout in (((0,), 1), ((1,), -1), ((-3,), 1)):
        with pytest.raises(ValueError, match="expected counts from 1 up and a width from 0 up"):
            codec_impl.Gatherer([layout])
    gatherer.drop(3)
    gatherer.drop(-1)


def test_more_than_memory_holds(codec_impl: Any) -> None:
    gatherer = codec_impl.Gatherer([((1, 1), 0)])
    gatherer.put(0, 1, [ints(0, 1), ints(0, 2**61), b""])
    with pytest.raises(MemoryError):
        gatherer.take(np.zeros(4, np.int64), np.zeros(4, np.int64))


@given(
    ends=st.lists(st.integers(-3, 9), min_size=2, max_size=6),
    inner=st.lists(st.integers(-3, 9) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6),
    count=st.integers(1, 3),
    width=st.integers(0, 3),
    rows=st.lists(st.integers(-1, 5), max_size=6),
)
@settings(deadline=None, max_examples=400)
def test_whatever_it_is_given_both_do_the_same(
    ends: list[int], inner: list[int], count: int, width: int, rows: list[int]
) -> None:
    """Ends may be anything: nothing outside the buffers is read, and both see it."""

    def outcome(impl: Any) -> Any:
        gatherer = impl.Gatherer([((1, count), width)])
        gatherer.put(0, len(ends) - 1, [ints(*ends), ints(*inner), bytes(range(20))])
        try:
            return [bytes(buffer) for buffer in gatherer.take(np.zeros(len(rows), np.int64), ints(*rows))]
        except (IndexError, ValueError, MemoryError) as error:
            return type(error), str(error)

    assert outcome(load("compiled")) == outcome(load("pure"))
