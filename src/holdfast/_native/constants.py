"""Defines constants and types that both codecs and their callers share. See `codec.py`."""

from __future__ import annotations

from typing import Any, NamedTuple

# Why a scan of frames stopped.
OK = 0
NEED_MORE = 1
BAD_LENGTH_CRC = 2
BAD_DATA_CRC = 3

# Why one record gave no row.
MALFORMED = 16
MISSING = 17
WRONG_KIND = 18
WRONG_COUNT = 19
IS_LIST = 20
NOT_LIST = 21

# What a feature holds: the numbers of tf.train.Feature's oneof. NONE: an empty one.
NONE = 0
BYTES = 1
FLOAT32 = 2
INT64 = 3

# Bytes that stay in the input buffer, one string per row: `values` has int64 pairs, the start and stop in that buffer.
# Only in the compiled codec.
BORROWED_BYTES = 4

# How items occur in a row: one, a list, or a list of lists.
FIXED = 0
RAGGED = 1
NESTED = 2

HEADER_BYTES = 12
FOOTER_BYTES = 4
OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES

# (key, kind, depth, values per item, default).
# The default is None, the values' bytes, or, for BYTES, a list of bytes.
Field = tuple[bytes, int, int, int, bytes | list[bytes] | None]

# (values, ends, steps, rows): buffers, and None where the field has no such array.
#   values               numbers, or all bytes joined
#   ends (BYTES)         int64: 0, and then where each value ends
#   steps (NESTED)       int64: 0, and then how many items there are up to each step's end
#   rows (not FIXED)     int64: 0, and then how many items, or steps, there are up to each row's end
ColumnBuffers = tuple[Any, Any, Any, Any]

# A column to gather rows from: for each level of ends how many of its items make one of the level above (1, or n for
# rows of Bytes(n)), and the bytes per value. No level: numbers of a fixed shape; one: byte strings, or lists of
# numbers; two: lists of strings, or lists of lists.
GatherLayout = tuple[tuple[int, ...], int]


class Fault(NamedTuple):
    """Why a record gave no row. The compiled codec returns plain tuples in this order."""

    record: int
    offset: int
    code: int
    field: int
    got: int
