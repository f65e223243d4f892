"""Packing a chunk as its dataset's filters would."""

from __future__ import annotations

import zlib
from typing import Any

import h5py
import numpy as np

from .facts import Dataset, Raw
from .rows import shuffle

_GZIP, _SHUFFLE = 1, 2
_LEVEL = 4
_SZIP_OPTIONS = 4 | 32  # those that a caller gives: the others are made from the type


def plist_of(like: Dataset) -> Any:
    """How a dataset like this one is created. Made anew: a copy would carry the format version of its own file."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if like.chunks is not None:
        plist.set_chunk(like.chunks)
    for code, flags, values in like.filters:
        if code == h5py.h5z.FILTER_SCALEOFFSET:
            plist.set_scaleoffset(*values[:2])
        elif code == h5py.h5z.FILTER_SZIP:
            plist.set_szip(values[0] & _SZIP_OPTIONS, values[1])
        else:
            plist.set_filter(code, flags, values)
    if like.fill is not None:
        plist.set_fill_value(fill_of(like, like.fill))
    return plist


def fill_of(like: Dataset, fill: bytes) -> Any:
    """As h5py takes it. A string goes as one of any length: one of a fixed length is taken for a pointer."""
    dtype = h5py.h5t.decode(like.type).dtype
    value = np.frombuffer(fill, dtype)[0]
    text = h5py.check_string_dtype(dtype)
    return np.array(value, dtype if text is None else h5py.string_dtype(text.encoding))


class Encoder:
    """`encode(chunk)` -> its bytes in the file, and its filter mask.

    `threads`: whether it may be called by any. Through the library only by the one that does all else there: h5py takes
    no lock for read_direct_chunk.
    """

    def __init__(self, like: Dataset) -> None:
        self._like = like
        codes = [code for code, _, _ in like.filters]
        self.threads = codes in ([_GZIP], [_SHUFFLE, _GZIP])
        self._level = next((values[0] for code, _, values in like.filters if code == _GZIP and values), _LEVEL)
        self._shuffled = codes[:1] == [_SHUFFLE]
        self._scratch: h5py.File | None = None

    def encode(self, chunk: Raw) -> tuple[Any, int]:
        if self.threads:
            data: Any = chunk.reshape(-1).view(np.uint8)
            data = shuffle(data, self._like.item_bytes) if self._shuffled else data
            return zlib.compress(data, self._level), 0
        return self._through_library(chunk)

    def _through_library(self, chunk: Raw) -> tuple[Any, int]:
        """In a file in memory, of one chunk, made like the dataset: whatever the filters are."""
        assert self._like.chunks is not None
        if self._scratch is None:
            self._scratch = h5py.File("scratch", "w", driver="core", backing_store=False, libver=("v110", "latest"))
        if "x" in self._scratch:
            del self._scratch["x"]
        kind = h5py.h5t.decode(self._like.type)
        space = h5py.h5s.create_simple(self._like.chunks)
        dataset = h5py.h5d.create(self._scratch.id, b"x", kind, space, plist_of(self._like))
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, chunk, kind)
        self._scratch.flush()
        mask, data = dataset.read_direct_chunk((0,) * len(self._like.chunks))
        return bytes(data), mask

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None
