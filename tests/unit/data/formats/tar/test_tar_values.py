"""Members as numbers."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest

from holdfast.data.formats.tar.values import Unfit, numbers_column
from holdfast.schema import Array, Column, Float32, Int64, Ragged


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


@pytest.mark.parametrize(
    ("item", "column", "want"),
    [
        (b"7", Int64(), 7),
        (b" -7\n", Int64(), -7),
        (b"[7]", Int64(), 7),
        (b"9223372036854775807", Int64(), 2**63 - 1),
        (b"1e3", Float32(), 1000.0),
        (b"inf", Float32(), float("inf")),
        (b"5", Float32(), 5.0),
        (b"1 2\t3\n4", Int64(4), [1, 2, 3, 4]),
        (b"1,2, 3 ,4", Int64(2, 2), [[1, 2], [3, 4]]),
        (b"[[1, 2], [3, 4]]", Int64(2, 2), [[1, 2], [3, 4]]),
        (b"[1, 2.5]", Float32(2), [1.0, 2.5]),
        (b"1 2 3", Ragged(Int64()), [1, 2, 3]),
        (b"", Ragged(Int64()), []),
        (b"[]", Ragged(Float32(4)), []),
        (b"1 2 3 4", Ragged(Float32(2)), [[1, 2], [3, 4]]),
        (b"[[1, 2], [3, 4]]", Ragged(Float32(2)), [[1, 2], [3, 4]]),
        (b"[[1, 2], [], [3]]", Ragged(Ragged(Int64())), [[1, 2], [], [3]]),
        (b"[]", Ragged(Ragged(Int64())), []),
        (npy(np.int16(5)), Int64(), 5),
        (npy(np.array([[1, 2], [3, 4]], ">f8")), Float32(2, 2), [[1, 2], [3, 4]]),
        (npy(np.asfortranarray([[1, 2, 3], [4, 5, 6]])), Int64(2, 3), [[1, 2, 3], [4, 5, 6]]),
        (npy(np.zeros((0, 4), np.float16)), Ragged(Float32(4)), []),
        (npy(np.arange(6).reshape(3, 2)), Ragged(Int64(2)), [[0, 1], [2, 3], [4, 5]]),
    ],
)
def test_numbers(item: bytes, column: Column, want: Any) -> None:
    got = numbers_column([item, item], column)
    assert got.tolist() == [want, want]
    assert len(numbers_column([], column)) == 0


@pytest.mark.parametrize(
    ("item", "column", "reason"),
    [
        (b"dog", Int64(), "expected integers"),
        (b"", Int64(), "expected 1 number, got 0"),
        (b"1.0", Int64(), "expected integers"),
        (b"1_000", Int64(), "expected numbers"),
        (b"1_000", Float32(), "expected numbers"),
        (b"1 2", Int64(), "expected 1 number, got 2"),
        (b"9223372036854775808", Int64(), "got 9223372036854775808, which int64 cannot hold"),
        (b"256", Array("uint8"), "got 256, which uint8 cannot hold"),
        (b"9" * 5000, Int64(), "expected integers"),
        (b"1e39", Float32(), r"got 1e\+39, which float32 cannot hold"),
        (b"1 2 3", Float32(2), "expected 2 numbers, got 3"),
        (b"[[1, 2]]", Float32(2), r"expected numbers of shape \(2,\), got \(1, 2\)"),
        (b"[1, [2]]", Float32(2), ""),
        (b"[1, null]", Float32(2), "expected numbers"),
        (b"[true]", Int64(), "expected integers"),
        (b'["1"]', Int64(), "expected integers"),
        (b"[1, 2", Int64(2), ""),
        (b"[" * 100_000, Int64(2), "too deep"),
        (b"\xff\xfe", Int64(), "expected integers"),
        (b"1 2 3", Ragged(Float32(2)), r"expected a list of items of shape \(2,\)"),
        (b"[1, 2]", Ragged(Ragged(Int64())), "expected a list of lists"),
        (b"1 2", Ragged(Ragged(Int64())), "expected a list of lists"),
        (npy(np.array([1.5])), Int64(), "expected integers"),
        (npy(np.array([2**63], np.uint64)), Int64(), "got 9223372036854775808, which int64 cannot hold"),
        (npy(np.array([1j])), Int64(), "expected numbers, got .npy of complex128"),
        (npy(np.array(["x"])), Int64(), "expected numbers, got .npy of"),
        (npy(np.arange(4))[:-1], Int64(4), "has 31 bytes of data"),
        (npy(np.arange(4)).replace(b"(4,)", b"(9,)"), Int64(4), "has 32 bytes of data"),
        (npy(np.arange(4)).replace(b"(4,), ", b"(-4,),"), Int64(4), "has 32 bytes of data"),
        (b"\x93NUMPY\x09\x00", Int64(), ""),
        (b"\x93NUMPY", Int64(), ""),
        (b"\x93NUMPY\x01\x00\xff\xff{", Int64(), ""),
    ],
)
def test_what_is_no_number(item: bytes, column: Column, reason: str) -> None:
    good = b"[[1]]" if isinstance(column, Ragged) and column.depth > 1 else b" ".join([b"1"] * _count(column))
    with pytest.raises(Unfit) as caught:
        numbers_column([good, good, item, good], column)
    assert caught.value.place == 2
    assert caught.match(reason or ".")


def _count(column: Column) -> int:
    return column.value.count if isinstance(column, Ragged) else column.count


def test_a_huge_array_that_is_not_there_takes_no_memory() -> None:
    claims = npy(np.arange(4)).replace(b"(4,), }" + b" " * 18, b"(%d,), }" % 10**18)
    with pytest.raises(Unfit, match="has 32 bytes of data"):
        numbers_column([claims], Int64(4))


def test_nothing_is_ever_unpickled() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(Unfit, match="got .npy of object"):
        numbers_column([file.getvalue()], Int64())
    with pytest.raises(Unfit):
        numbers_column([pickle.dumps(5)], Int64())
