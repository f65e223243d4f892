"""Computes CRC-32C (Castagnoli) with tables, and scans and writes TFRecord frames.

A frame has the length (u64), the masked CRC of the length, the data, and the masked CRC of the data; little-endian.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from ..constants import BAD_DATA_CRC, BAD_LENGTH_CRC, FOOTER_BYTES, HEADER_BYTES, NEED_MORE, OK, OVERHEAD_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Words = npt.NDArray[np.uint32]

_POLY = np.uint32(0x82F63B78)
_ALL = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8

_SHORT = 384  # below this, a loop is faster than numpy calls
_CHUNK = 1 << 17  # small enough that temporary arrays stay in the CPU's cache
_LAST_WORDS = 16  # up to this number, a loop joins them faster


def _make_tables() -> Words:
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = (first >> np.uint32(1)) ^ (first & np.uint32(1)) * _POLY
    tables = [first]
    for _ in range(7):
        tables.append(first[tables[-1] & 255] ^ (tables[-1] >> 8))
    return np.array(tables)


# TABLES[k][b] is the state after byte b and k zero bytes, from state 0.
TABLES = _make_tables()
BYTE_TABLE: list[int] = TABLES[0].tolist()


def _move(tables: Words, states: Words) -> Words:
    """Advances each state by the number of zero bytes of the tables. Linear in the state's bytes."""
    parts = states.view(np.uint8).reshape(-1, 4)
    moved: Words = tables[0][parts[:, 0]]
    for k in range(1, 4):
        moved ^= tables[k][parts[:, k]]
    return moved


def _make_moves() -> list[Words]:
    moves = [TABLES[[7, 6, 5, 4]]]
    while 8 << len(moves) <= _CHUNK:
        last = moves[-1]
        moves.append(_move(last, last.reshape(-1)).reshape(4, 256))
    return moves


# _MOVES[k] advances a state by 8 << k zero bytes.
_MOVES = _make_moves()
_MOVE_LISTS: list[list[list[int]]] = [tables.tolist() for tables in _MOVES]


def _extend_short(state: int, data: bytes) -> int:
    table = BYTE_TABLE
    for byte in data:
        state = table[(state ^ byte) & 255] ^ (state >> 8)
    return state


def _extend_long(state: int, data: npt.NDArray[np.uint8]) -> int:
    """Computes the CRCs of all 8-byte words at once, then joins them in pairs until one is left.

    Leading zero bytes do not change state 0, so zeros pad the first word, and the words to an even number. The state so
    far is XORed into the first four bytes.
    """
    pad = -data.size % 8
    padded = np.zeros(pad + data.size, np.uint8)
    padded[pad:] = data
    padded[pad : pad + 4] ^= np.frombuffer(state.to_bytes(4, "little"), np.uint8)
    columns = padded.reshape(-1, 8)
    words: Words = TABLES[7][columns[:, 0]]
    for k in range(1, 8):
        words ^= TABLES[7 - k][columns[:, k]]
    return _join(words)


def _join(words: Words) -> int:
    level = 0
    while words.size > _LAST_WORDS:
        if words.size % 2:
            words = np.concatenate((np.zeros(1, np.uint32), words))
        words = _move(_MOVES[level], np.ascontiguousarray(words[::2])) ^ words[1::2]
        level += 1
    a, b, c, d = _MOVE_LISTS[level]
    state = 0
    for word in words.tolist():
        state = a[state & 255] ^ b[state >> 8 & 255] ^ c[state >> 16 & 255] ^ d[state >> 24] ^ word
    return state


def extend(crc: int, data: memoryview) -> int:
    """Extends `crc` by a view of single bytes."""
    state = ~crc & _ALL
    if len(data) < _SHORT:
        return ~_extend_short(state, data.tobytes()) & _ALL
    array = np.frombuffer(data, np.uint8)
    for at in range(0, array.size, _CHUNK):
        chunk = array[at : at + _CHUNK]
        state = _extend_long(state, chunk) if chunk.size >= _SHORT else _extend_short(state, chunk.tobytes())
    return ~state & _ALL


def as_array(data: Buffer) -> npt.NDArray[np.uint8]:
    """Returns the bytes of any contiguous buffer."""
    return np.frombuffer(cast("bytes", data), np.uint8)


def crc32c(data: Buffer, value: int = 0, /) -> int:
    return extend(value & _ALL, as_array(data).data)


def crc_kind() -> str:
    return "python"


def mask(crc: int) -> int:
    """Masks a CRC as TFRecord does: the plain CRC of data that contain CRCs is a weak check."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ALL


def mask_words(crcs: Words) -> Words:
    return (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(_MASK_DELTA)


def unmask_words(masked: Words) -> Words:
    turned = masked - np.uint32(_MASK_DELTA)
    return turned >> np.uint32(17) | turned << np.uint32(15)


# ---- frames

_HEADER = Struct("<QI")
_FOOTER = Struct("<I")
_HEAP_OBJECT = 16
_MAX_OF_HEAP = (1 << 62) - 1
_MAX_BYTES = (1 << 64) - 1
_MAX_FRAMES = (1 << 63) - 1
_FRAME_CHUNK = 1 << 16  # offsets checked at once: the next header is often near


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
    expected: int = _FOOTER.unpack_from(view, end)[0]
    return mask(extend(0, view[at + HEADER_BYTES : end])) == expected


def check_frame(view: memoryview, at: int, stop: int, verify_data: bool) -> tuple[int, int]:
    """Returns the status of the frame at `at`, and its data's length: 0 if its header is missing or invalid."""
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
    return min(length + OVERHEAD_BYTES, _MAX_BYTES)


def _scan(view: memoryview, start: int, stop: int, verify_data: bool, maximum: int) -> tuple[array[int], int, int]:
    """Returns (the start of each frame, and the end of the last), status, needed."""
    bounds = array("q", [start])
    at = start
    while len(bounds) <= maximum and at < stop:
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
    maximum = _MAX_FRAMES if out is None else out.size
    bounds, status, needed = _scan(view, start, stop, verify_data, maximum)
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
    _max_bytes: int,
    /,
) -> tuple[int, int, int, int, int, int]:
    """Scans only what is in the buffer: refilling it here would save nothing."""
    result = scan(buf, start, stop, verify_data, starts, offset)
    return *result, start + result[1], stop


def records(buf: Buffer, start: int, stop: int, verify_data: bool, max: int, /) -> tuple[list[bytes], int, int, int]:
    view = as_range(buf, start, stop)
    bounds, status, needed = _scan(view, start, stop, verify_data, max)
    data = [view[a + HEADER_BYTES : b - FOOTER_BYTES].tobytes() for a, b in pairwise(bounds)]
    return data, bounds[-1] - start, status, needed


def find_header(buf: Buffer, start: int, stop: int, /) -> int:
    raw = np.frombuffer(as_range(buf, start, stop), np.uint8)
    for at in range(start, stop - HEADER_BYTES + 1, _FRAME_CHUNK):
        found = _first_header(raw[at : min(at + _FRAME_CHUNK + HEADER_BYTES - 1, stop)])
        if found >= 0:
            return at + found
    return -1


def _first_header(data: npt.NDArray[np.uint8]) -> int:
    """Computes the CRC of the 8 bytes at every offset: what each byte contributes depends on its position alone."""
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
    for at in range(start, stop - FOOTER_BYTES + 1, _FRAME_CHUNK):
        data = raw[at : min(at + _FRAME_CHUNK + FOOTER_BYTES - 1, stop)]
        # The states that would end at each offset, so that the loop only compares.
        end_states = ~unmask_words(_words_at_all_offsets(data, data.size - FOOTER_BYTES + 1))
        for k, (byte, end_state) in enumerate(zip(data.tobytes(), end_states.tolist(), strict=False)):
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
        if size > _MAX_OF_HEAP or (is_free and not size):
            return at, True
        at += size if is_free else _HEAP_OBJECT + (size + 7 & ~7)
    return at, False


def seal(data: bytes | bytearray | memoryview) -> bytes:
    length = len(data)
    footer = _FOOTER.pack(mask(extend(0, memoryview(data))))
    return b"".join((_HEADER.pack(length, _length_crc(length)), data, footer))


def frame(data: Buffer, /) -> bytes:
    return seal(as_array(data).data)
