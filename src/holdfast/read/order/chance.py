"""Shuffling that is the same on every machine, under every version of numpy, and for ever.

numpy promises that for its bit generators but not for `shuffle`, so this is written out:

    key     the first 8 bytes, little endian, of BLAKE2b-64 of the parts, joined by "|", in UTF-8
    draw i  SplitMix64's output function of key + (i + 1) * 0x9E3779B97F4A7C15, modulo 2^64
    order   0 … n-1 by draw; the lowest bits of a draw, as many as n - 1 has, are replaced by i itself

With its number inside, no draw is there twice, so every way of sorting gives the same order.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ...formats.columns import Ints

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def key_of(*parts: object) -> int:
    """A number for these parts, as they are written."""
    text = "|".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def shuffled(n: int, key: int) -> Ints:
    """0 … n-1 in an order that `key` alone decides."""
    if n < 2:
        return np.arange(n, dtype=np.int64)
    # In place: a window may have millions of samples, and every array more is eight bytes for each.
    draws = np.arange(1, n + 1, dtype=np.uint64)
    draws *= _STEP
    draws += np.uint64(key)
    _mix(draws)
    low = np.uint64((1 << (n - 1).bit_length()) - 1)
    draws &= ~low
    draws |= np.arange(n, dtype=np.uint64)
    draws.sort()
    draws &= low
    return draws.view(np.int64)


def _mix(x: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> None:
    x ^= x >> np.uint64(30)
    x *= _MIX_1
    x ^= x >> np.uint64(27)
    x *= _MIX_2
    x ^= x >> np.uint64(31)
