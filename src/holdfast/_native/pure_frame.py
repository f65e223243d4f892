"""TFRecord frames: u64 length, its masked crc32c, data, masked crc32c of the data; little-endian."""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .constants import (
    BAD_DATA_CRC,
    BAD_LENGTH_CRC,
    FOOTER_BYTES,
    HEADER_BYTES,
    NEED_MORE,
    OK,
    OVERHEAD_BYTES,
)
from .pure_crc import BYTE_TABLE, TABLES, as_array, crc32c, extend, mask, mask_words, unmask_words

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HEADER = Struct("<QI")
_FOOTER = Struct("<I")
_HEAP_OBJECT = 16
_MOST_OF_HEAP = (1 << 62) - 1
_MOST_BYTES = (1 << 64) - 1
_MOST_FRAMES = (1 << 63) - 1
_CHUNK = 1 << 16  # offsets looked at together: what is searched for is often near


def as_range(buf: Buffer, start: int, stop: int) -> memoryview:
    view = as_array(buf).data
    if start < 0 or stop < start or stop > len(view):
        raise ValueError(f"expected a range within 0 and {len(view)}, got {start} to {stop}")
    return view


@lru_cache(maxsize=1024)  # the records of a file come in few lengths
def _length_crc(length: int) -> int:
    return mask(crc32c(length.to_bytes(8, "little")))


def _data_crc_is_good(view: memoryview, at: int, length: int) -> bool:
    end = at + HEADER_BYTES + length
    wanted: int = _FOOTER.unpack_from(view, end)[0]
    return mask(extend(0, view[at + HEADER_BYTES : end])) == wanted


def check_frame(view: memoryview, at: int, stop: int, verify_data: bool) -> tuple[int, int]:
    """The status of the frame at `at`, and its data's length: 0 where its header is not there or not good."""
    if stop - at < HEADER_BYTES:
        return NEED_MORE, 0
    length, crc = _HEADER.unpack_from(view, at)
    if _length_crc(length) != crc:
        return BAD_LENGTH_CRC, 0
    if length > stop - at - OVERHEAD_BYTES:
        return NEED_MORE, length
    if verify_data and not _data_crc_is_good(view, at, length):
        return BAD_DATA_CRC, length
    return OK, length


def bytes_needed(length: int) -> int:
    return min(length + OVERHEAD_BYTES, _MOST_BYTES)


def _walk(view: memoryview, start: int, stop: int, verify_data: bool, most: int) -> tuple[array[int], int, int]:
    """(where each frame starts and then where the last ends), status, needed."""
    bounds = array("q", [start])
    at = start
    while len(bounds) <= most and at < stop:
        status, length = check_frame(view, at, stop, verify_data)
        if status != OK:
            return bounds, status, bytes_needed(length)
        at += length + OVERHEAD_BYTES
        bounds.append(at)
    return bounds, OK, 0


def scan(
    buf: Buffer, start: int, stop: int, verify_data: bool, starts: Buffer | None = None, base: int = 0, /
) -> tuple[int, int, int, int]:
    view = as_range(buf, start, stop)
    out = None if starts is None else _as_offsets(starts)
    most = _MOST_FRAMES if out is None else out.size
    bounds, status, needed = _walk(view, start, stop, verify_data, most)
    frames = len(bounds) - 1
    if out is not None:
        out[:frames] = np.frombuffer(bounds, np.int64)[:frames] + (base - start)
    return frames, bounds[-1] - start, status, needed


def _as_offsets(starts: Buffer) -> npt.NDArray[np.int64]:
    raw = as_array(starts)
    if not raw.flags.writeable:
        raise BufferError("the buffer for the frames' offsets is not writable")
    offsets: npt.NDArray[np.int64] = raw[: raw.size // 8 * 8].view(np.int64)
    return offsets


def scan_file(
    _fd: int,
    buf: Buffer,
    start: int,
    stop: int,
    offset: int,
    verify_data: bool,
    starts: Buffer | None,
    _most_bytes: int,
    /,
) -> tuple[int, int, int, int, int, int]:
    """Only what is in the buffer: reading on from here would save nothing."""
    walk = scan(buf, start, stop, verify_data, starts, offset)
    return *walk, start + walk[1], stop


def records(buf: Buffer, start: int, stop: int, verify_data: bool, max: int, /) -> tuple[list[bytes], int, int, int]:
    view = as_range(buf, start, stop)
    bounds, status, needed = _walk(view, start, stop, verify_data, max)
    data = [view[a + HEADER_BYTES : b - FOOTER_BYTES].tobytes() for a, b in pairwise(bounds)]
    return data, bounds[-1] - start, status, needed


def find_header(buf: Buffer, start: int, stop: int, /) -> int:
    raw = np.frombuffer(as_range(buf, start, stop), np.uint8)
    for at in range(start, stop - HEADER_BYTES + 1, _CHUNK):
        found = _first_header(raw[at : min(at + _CHUNK + HEADER_BYTES - 1, stop)])
        if found >= 0:
            return at + found
    return -1


def _first_header(data: npt.NDArray[np.uint8]) -> int:
    """The CRC of the 8 bytes at every offset: each byte's part in it depends on its place alone."""
    count = data.size - HEADER_BYTES + 1
    crcs = np.full(count, TABLES[7][255] ^ TABLES[6][255] ^ TABLES[5][255] ^ TABLES[4][255] ^ 0xFFFFFFFF)
    for k in range(8):
        crcs ^= TABLES[7 - k][data[k : k + count]]
    good = np.flatnonzero(mask_words(crcs) == _words_at_all_offsets(data[8:], count))
    return int(good[0]) if good.size else -1


def _words_at_all_offsets(data: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.uint32]:
    words = data[:count].astype(np.uint32)
    for k in range(1, 4):
        words |= data[k : k + count].astype(np.uint32) << np.uint32(8 * k)
    return words


def find_end(buf: Buffer, start: int, stop: int, crc: int, /) -> tuple[int, int]:
    raw = np.frombuffer(as_range(buf, start, stop), np.uint8)
    table = BYTE_TABLE
    state = ~crc & 0xFFFFFFFF
    for at in range(start, stop - FOOTER_BYTES + 1, _CHUNK):
        data = raw[at : min(at + _CHUNK + FOOTER_BYTES - 1, stop)]
        # The states that would end at each offset: the loop only compares, and computes no masks.
        wanted = ~unmask_words(_words_at_all_offsets(data, data.size - FOOTER_BYTES + 1))
        for k, (byte, end_state) in enumerate(zip(data.tobytes(), wanted.tolist(), strict=False)):
            if state == end_state:
                return at + k, ~state & 0xFFFFFFFF
            state = table[(state ^ byte) & 255] ^ (state >> 8)
    return -1, ~state & 0xFFFFFFFF


def walk_heap(buf: Buffer, start: int, stop: int, width: int, /) -> tuple[int, bool]:
    if width not in (2, 4, 8):
        raise ValueError(f"expected a length of 2, 4 or 8 bytes, got {width}")
    data = as_range(buf, start, stop)
    at = start
    while at + _HEAP_OBJECT <= stop:
        size = int.from_bytes(data[at + 8 : at + 8 + width], "little")
        is_free = not (data[at] or data[at + 1])
        if size > _MOST_OF_HEAP or (is_free and not size):
            return at, True
        at += size if is_free else _HEAP_OBJECT + (size + 7 & ~7)
    return at, False


def seal(data: bytes | bytearray | memoryview) -> bytes:
    length = len(data)
    footer = _FOOTER.pack(mask(extend(0, memoryview(data))))
    return b"".join((_HEADER.pack(length, _length_crc(length)), data, footer))


def frame(data: Buffer, /) -> bytes:
    return seal(as_array(data).data)
