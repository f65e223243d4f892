"""TFRecord framing, crc32c and Example columns: the compiled codec, or the same in pure Python.

`HOLDFAST_NATIVE=0` forces pure Python, `=1` makes a missing compiled codec an error. The same tests hold for
both.

crc32c(data, value=0)       the CRC of `value`'s bytes and then `data`
scan(buf, start, stop, verify_data, starts=None, base=0)
                            walks whole frames in buf[start:stop]; returns (frames, bytes they take, status,
                            needed). `starts`, a writable buffer of int64, gets base + each frame's offset
                            from `start`, and bounds how many frames are walked. `needed` is the size
                            of the frame it stopped at where that one's header is there and good, else the
                            size of an empty frame; 0 with OK.
scan_file(fd, buf, start, stop, offset, verify_data, starts, most_bytes)
                            the same walk over a file's frames, of which buf[start:stop] are those from byte
                            `offset` on; `starts` (or None) gets their places in the file. The buffer may be
                            refilled from the file on the way, until most_bytes are walked: start and stop
                            come back behind the other results. NEED_MORE: what is needed was not to be
                            had this way, for the caller to find out why
records(buf, start, stop, verify_data, max)
                            the same walk, but returns the data of at most `max` frames as a list of bytes in
                            place of their number
find_header(buf, start, stop)
                            the first offset from `start` on where 12 bytes are a header with a good CRC, or
                            -1
find_end(buf, start, stop, crc)
                            the first offset where the four bytes that follow are the masked CRC of everything
                            from `start` up to it (`crc`: of what came before), or -1; and the CRC up to
                            there, or up to stop - 3, from where a next call can go on
walk_heap(buf, start, stop, width)
                            walks the objects of an HDF5 global heap, of which the one at `start` is the first and
                            buf[start:stop] are there; a length takes `width` bytes. Returns the offset of the first
                            object whose header is not there in full, or of one whose size leads nowhere, and which it
                            is
frame(data)                 header + data + footer
copy_checked(from_fd, offset, to_fd, place, sizes, expected, here, again)
                            chunks of these sizes, which follow each other, from one file to another: read, compared
                            with the CRCs that are expected (-1: any), written, and read again. Their CRCs as uint32, or
                            None where anything was not as it should be, for the caller to find out what. sizes and
                            expected are int64; `here` and `again` are memory to work in
pieces(names, columns, n)   n dicts, the i-th with item i of each column under its name. A column is a sequence, or
                            (sequence, class, slot, ((other slot, value), …)): then the item is put into a slot
                            of a new instance of that class, whose __init__ is not called
Decoder(fields)             .feed(buf, start, stop, verify_data, max_rows, record, offset) walks frames like
                            scan and decodes each into a row behind those it has, until it has max_rows. A bad
                            record gives no row, but a fault. `record` and `offset` number the first frame for
                            the faults. .feed_file(fd, buf, start, stop, offset, verify_data, max_rows,
                            record, most_bytes) does so with frames of a file, like scan_file.
                            .rows() .faults() .take(); a Decoder serves one thread at a time
Encoder(fields)             .encode(columns, rows, first, sequence, stop_bytes): framed records of rows
                            [first, rows), as many as it takes to reach stop_bytes; returns (buffer, first row
                            not in it)
Gatherer(layouts)           rows picked out of many batches. .put(slot, rows, buffers) keeps a batch's arrays, without a
                            copy: for each column the ends of each level, an int64 array with a leading 0, and then
                            the values. For the outermost level there may be a start and a stop for every row
                            instead. .drop(slot) lets go of them. .take(which, rows) copies row rows[i] of slot
                            which[i], both int64, and gives buffers in the same order. Any thread may call any of it
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .constants import (
    BAD_DATA_CRC,
    BAD_LENGTH_CRC,
    BYTES,
    FIXED,
    FLOAT32,
    FOOTER_BYTES,
    HEADER_BYTES,
    INT64,
    IS_LIST,
    LENT_BYTES,
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
    _wanted = os.environ.get("HOLDFAST_NATIVE", "")
    if _wanted == "0":
        from . import fallback as _impl
    else:
        try:
            from . import _codec as _impl
        except ImportError:
            if _wanted == "1":
                raise
            from . import fallback as _impl

__all__ = [
    "BAD_DATA_CRC",
    "BAD_LENGTH_CRC",
    "BYTES",
    "FIXED",
    "FLOAT32",
    "FOOTER_BYTES",
    "HEADER_BYTES",
    "INT64",
    "IS_LIST",
    "LENT_BYTES",
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
