"""CRC-32C (Castagnoli) with tables: byte by byte for short data, many words at once for long data."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Words = npt.NDArray[np.uint32]

_POLY = np.uint32(0x82F63B78)
_ALL = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8

_SHORT = 384  # below this, numpy's cost a call is more than the loop's
_CHUNK = 1 << 17  # the arrays in between stay in the cache
_LAST_WORDS = 16  # so few are joined faster one by one


def _make_tables() -> Words:
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = (first >> np.uint32(1)) ^ (first & np.uint32(1)) * _POLY
    tables = [first]
    for _ in range(7):
        tables.append(first[tables[-1] & 255] ^ (tables[-1] >> 8))
    return np.array(tables)


# TABLES[k][b] is the state that byte b followed by k zero bytes makes of state 0.
TABLES = _make_tables()
BYTE_TABLE: list[int] = TABLES[0].tolist()


def _move(tables: Words, states: Words) -> Words:
    """Each state moved on by as many zero bytes as the tables stand for. Linear in the state's bytes."""
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


# _MOVES[k] moves a state on by 8 << k zero bytes.
_MOVES = _make_moves()
_MOVE_LISTS: list[list[list[int]]] = [tables.tolist() for tables in _MOVES]


def _extend_short(state: int, data: bytes) -> int:
    table = BYTE_TABLE
    for byte in data:
        state = table[(state ^ byte) & 255] ^ (state >> 8)
    return state


def _extend_long(state: int, data: npt.NDArray[np.uint8]) -> int:
    """CRCs of all 8-byte words at once, then of neighbours joined, of neighbours of those …

    Zero bytes in front leave state 0 as it is: they fill up the first word, and words to an even number. The
    state so far goes in as if the first four bytes held it.
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
    """`crc` extended by a view of single bytes."""
    state = ~crc & _ALL
    if len(data) < _SHORT:
        return ~_extend_short(state, data.tobytes()) & _ALL
    array = np.frombuffer(data, np.uint8)
    for at in range(0, array.size, _CHUNK):
        chunk = array[at : at + _CHUNK]
        state = _extend_long(state, chunk) if chunk.size >= _SHORT else _extend_short(state, chunk.tobytes())
    return ~state & _ALL


def as_array(data: Buffer) -> npt.NDArray[np.uint8]:
    """The bytes of any contiguous buffer, whatever its items are."""
    return np.frombuffer(cast("bytes", data), np.uint8)


def crc32c(data: Buffer, value: int = 0, /) -> int:
    return extend(value & _ALL, as_array(data).data)


def crc_kind() -> str:
    return "python"


def mask(crc: int) -> int:
    """TFRecord stores CRCs masked, so that a CRC over data that holds CRCs stays a good one."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ALL


def mask_words(crcs: Words) -> Words:
    return (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(_MASK_DELTA)


def unmask_words(masked: Words) -> Words:
    turned = masked - np.uint32(_MASK_DELTA)
    return turned >> np.uint32(17) | turned << np.uint32(15)
