"""Exports the compiled codec for TFRecord framing, crc32c and Example columns, or its pure Python fallback.

`HOLDFAST_NATIVE=0` forces pure Python, `=1` makes a missing compiled codec an error. Both pass the same tests.

crc32c(data, value=0)       the CRC of `data` after bytes with the CRC `value`
scan(buf, start, stop, verify_data, starts=None, base=0)
                            scans complete frames in buf[start:stop]; returns (frames, their bytes, status,
                            needed). `starts`, a writable buffer of int64, receives base + each frame's offset
                            from `start`, and limits the number of frames. `needed` is the size of the frame
                            that the scan stopped at if its header is valid, else the size of an empty frame;
                            0 with OK.
scan_file(fd, buf, start, stop, offset, verify_data, starts, max_bytes)
                            the same for a file whose bytes from `offset` on are in buf[start:stop]; `starts`
                            (or None) receives offsets in the file. The buffer may be refilled from the file
                            until max_bytes are scanned: the new start and stop follow the other results.
                            NEED_MORE: the bytes could not be read, and the caller finds out why
records(buf, start, stop, verify_data, max)
                            the same scan, but returns the data of at most `max` frames as a list of bytes
                            instead of their number
find_header(buf, start, stop)
                            the first offset from `start` on with a header of a valid CRC, or -1
find_end(buf, start, stop, crc)
                            the first offset where the next four bytes are the masked CRC of everything from
                            `start` up to it (`crc`: of what came before), or -1; and the CRC up to there, or
                            up to stop - 3, from where another call can continue
walk_heap(buf, start, stop, width)
                            scans the objects of an HDF5 global heap from the one at `start` on; a length takes
                            `width` bytes. Returns the offset of the first object with an incomplete header or with
                            an invalid size, and whether its size is invalid
frame(data)                 header + data + footer
copy_checked(from_fd, offset, to_fd, place, sizes, expected, here, again)
                            copies adjacent chunks of these sizes from one file to another: reads them, compares
                            their CRCs with `expected` (-1: any), writes them and reads them back. Returns their CRCs
                            as uint32, or None if anything differs or fails, and the caller finds out what. sizes and
                            expected are int64; `here` and `again` are work buffers
pieces(names, columns, n)   n dicts, the i-th with item i of each column by name. A column is a sequence, or
                            (sequence, class, slot, ((other slot, value), …)): then the item is put into a slot of
                            a new instance of that class, without calling __init__
Decoder(fields)             .feed(buf, start, stop, verify_data, max_rows, record, offset) scans frames like
                            scan and appends a row for each until it has max_rows. A bad record gives a fault
                            instead of a row. `record` and `offset` are those of the first frame, for the faults.
                            .feed_file(fd, buf, start, stop, offset, verify_data, max_rows, record, max_bytes) does
                            the same with frames of a file, like scan_file. .rows() .faults() .take(); for one
                            thread at a time
Encoder(fields)             .encode(columns, rows, first, sequence, stop_bytes) frames records of the rows
                            [first, rows) until they have stop_bytes; returns (buffer, next row)
Gatherer(layouts)           gathers rows of many batches. .put(slot, rows, buffers) refers to a batch's arrays without
                            a copy: for each column the ends of each level, an int64 array with a leading 0, and then
                            the values. The outermost level may have a start and a stop for every row instead.
                            .drop(slot) releases them. .take(which, rows) copies row rows[i] of slot which[i], both
                            int64, and returns buffers in the same order. Any thread may call any method
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .constants import (
    BAD_DATA_CRC,
    BAD_LENGTH_CRC,
    BORROWED_BYTES,
    BYTES,
    FIXED,
    FLOAT32,
    FOOTER_BYTES,
    HEADER_BYTES,
    INT64,
    IS_LIST,
    MALFORMED,
    MISSING,
    NEED_MORE,
    NESTED,
    NONE,
    NOT_LIST,
    OK,
    OVERHEAD_BYTES,
    RAGGED,
    WRONG_COUNT,
    WRONG_KIND,
    ColumnBuffers,
    Fault,
    Field,
    GatherLayout,
)

if TYPE_CHECKING:
    from . import _codec as _impl
else:
    _choice = os.environ.get("HOLDFAST_NATIVE", "")
    if _choice == "0":
        from . import fallback as _impl
    else:
        try:
            from . import _codec as _impl
        except ImportError:
            if _choice == "1":
                raise
            from . import fallback as _impl

__all__ = [
    "BAD_DATA_CRC",
    "BAD_LENGTH_CRC",
    "BORROWED_BYTES",
    "BYTES",
    "FIXED",
    "FLOAT32",
    "FOOTER_BYTES",
    "HEADER_BYTES",
    "INT64",
    "IS_LIST",
    "MALFORMED",
    "MISSING",
    "NATIVE",
    "NEED_MORE",
    "NESTED",
    "NONE",
    "NOT_LIST",
    "OK",
    "OVERHEAD_BYTES",
    "RAGGED",
    "WRONG_COUNT",
    "WRONG_KIND",
    "ColumnBuffers",
    "Decoder",
    "Encoder",
    "Fault",
    "Field",
    "GatherLayout",
    "Gatherer",
    "copy_checked",
    "crc32c",
    "crc_kind",
    "find_end",
    "find_header",
    "frame",
    "pieces",
    "records",
    "scan",
    "scan_file",
    "walk_heap",
]

NATIVE: bool = not TYPE_CHECKING and _impl.__name__.endswith("_codec")

copy_checked = _impl.copy_checked
crc32c = _impl.crc32c
crc_kind = _impl.crc_kind
scan = _impl.scan
scan_file = _impl.scan_file
records = _impl.records
find_header = _impl.find_header
find_end = _impl.find_end
walk_heap = _impl.walk_heap
frame = _impl.frame
pieces = _impl.pieces
Decoder = _impl.Decoder
Encoder = _impl.Encoder
Gatherer = _impl.Gatherer
