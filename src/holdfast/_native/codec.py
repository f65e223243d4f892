"""TFRecord framing, crc32c and Example columns: the compiled codec, or the same in pure Python.

`HOLDFAST_NATIVE=0` forces pure Python, `=1` makes a missing compiled codec an error. Both pass the same tests.

crc32c(data, value=0)       the CRC of `value`'s bytes and then `data`
scan(buf, start, stop, verify_data, starts=None, base=0)
                            walks whole frames in buf[start:stop]; returns (frames, bytes they take, status, needed).
                            `starts`, a writable buffer of int64, gets base + each frame's offset from `start`, and
                            bounds how many frames are walked. `needed` is the next frame's size when its header is
                            there and good but the rest is not (status NEED_MORE), else the overhead of an empty frame.
records(buf, start, stop, verify_data, max)
                            the same walk, but returns the data of at most `max` frames as a list of bytes in place of
                            their number
find_header(buf, start, stop)
                            the first offset from `start` on where 12 bytes are a header with a good CRC, or -1
find_end(buf, start, stop, crc)
                            the first offset where the four bytes that follow are the masked CRC of everything from
                            `start` up to it (`crc`: of what came before), or -1; and the CRC up to there, or up to
                            stop - 3, from where a next call can go on
frame(data)                 header + data + footer
Decoder(fields)             .feed(buf, start, stop, verify_data, max_rows, record, offset) walks frames like scan and
                            decodes each into a row behind those it has, until it has max_rows. A bad record gives no
                            row, but a fault. `record` and `offset` number the first frame for the faults.
                            .rows() .faults() .take(); a Decoder serves one thread at a time
Encoder(fields)             .encode(columns, rows, first, sequence, stop_bytes): framed records of rows [first, rows),
                            as many as it takes to reach stop_bytes; returns (buffer, first row not in it)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from . import _codec as _impl
else:
    _wanted = os.environ.get("HOLDFAST_NATIVE", "")
    if _wanted == "0":
        from . import pure as _impl
    else:
        try:
            from . import _codec as _impl
        except ImportError:
            if _wanted == "1":
                raise
            from . import pure as _impl

NATIVE: bool = not TYPE_CHECKING and _impl.__name__.endswith("_codec")

# Why a walk over frames stopped.
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

# How often an item occurs in a row: once, as a list, as a list of lists.
FIXED = 0
RAGGED = 1
NESTED = 2

HEADER_BYTES = 12
FOOTER_BYTES = 4
OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES

# (key, kind, depth, values an item, default): the default is None, the values' bytes, or, for BYTES, a list of bytes.
Field = tuple[bytes, int, int, int, bytes | list[bytes] | None]

# (values, ends, steps, rows): buffers. values: numbers or all bytes joined; ends (BYTES): int64, 0 and then where each
# value ends; steps (NESTED): int64, 0 and then how many items there are up to each step's end; rows (not FIXED): int64, 0
# and then how many items, or steps, there are up to each row's end. None where the field has no such array.
ColumnBuffers = tuple[Any, Any, Any, Any]


class Fault(NamedTuple):
    """Why a record gave no row. The codec gives plain tuples in this order."""

    record: int
    offset: int
    code: int
    field: int
    got: int


crc32c = _impl.crc32c
crc_kind = _impl.crc_kind
scan = _impl.scan
records = _impl.records
find_header = _impl.find_header
find_end = _impl.find_end
frame = _impl.frame
Decoder = _impl.Decoder
Encoder = _impl.Encoder
