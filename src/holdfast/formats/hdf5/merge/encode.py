"""Packing a chunk as its dataset's filters would."""

from __future__ import annotations

import io
import zlib
from typing import Any

import h5py
import numpy as np

from ..filters import (
    GZIP,
    SHUFFLE,
    Filter,
    add_filters,
    filter_name,
    filters_of,
    same_filters,
    verbatim_parameters,
)
from .facts import Dataset, Raw, Refusal
from .rows import is_gzip, shuffle

_LEVEL = 4


def plist_of(like: Dataset) -> Any:
    """How a dataset like this one is created. Made anew: a copy would carry the format version of its own file."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if like.chunks is not None:
        plist.set_chunk(like.chunks)
    add_filters(plist, like.filters)
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
        self.threads = is_gzip(like)
        self._level = next((values[0] for code, _, values in like.filters if code == GZIP and values), _LEVEL)
        self._shuffled = any(code == SHUFFLE for code, _, _ in like.filters)
        # Made before anything is read: it cannot be made while a dataset with the same filters is open.
        self._scratch = b"" if self.threads else _scratch_image(like)

    def encode(self, chunk: Raw) -> tuple[Any, int]:
        if self.threads:
            data: Any = chunk.reshape(-1).view(np.uint8)
            data = shuffle(data, self._like.item_bytes) if self._shuffled else data
            return zlib.compress(data, self._level), 0
        return self._through_library(chunk)

    def _through_library(self, chunk: Raw) -> tuple[Any, int]:
        """In a file in memory, of one chunk, made like the dataset: whatever the filters are.

        Each chunk gets a new copy of the file. Where a chunk is written over, HDF5 1.14 keeps the old filter mask if
        the size is the same.
        """
        with h5py.File(io.BytesIO(self._scratch), "r+", libver=("v110", "latest")) as file:
            dataset = h5py.h5d.open(file.id, b"x")
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, chunk, h5py.h5t.decode(self._like.type))
            file.flush()
            mask, data = dataset.read_direct_chunk((0,) * chunk.ndim)
            return bytes(data), mask


def create_like(file: h5py.File, name: bytes, like: Dataset, space: Any, plist: Any) -> None:
    """Creates a dataset whose filters are those of `like`. Call it within `verbatim_parameters`."""
    dataset = h5py.h5d.create(file.id, name, h5py.h5t.decode(like.type), space, plist)
    made = filters_of(dataset.get_create_plist())
    dataset.close()
    if not same_filters(made, like.filters):
        text = (
            f"dataset {like.path!r}: its filters ({filters_said(like)}) cannot be made again with the same parameters"
        )
        raise Refusal("write", "", f"{text}: expected {_parameters(like.filters)}, got {_parameters(made)}")


def filters_said(like: Dataset) -> str:
    return " + ".join(filter_name(code) for code, _, _ in like.filters) or "none"


def _parameters(filters: tuple[Filter, ...]) -> list[tuple[int, ...]]:
    return [(code, *values) for code, _, values in filters]


def _scratch_image(like: Dataset) -> bytes:
    image = io.BytesIO()
    with verbatim_parameters(like.filter_names):
        with h5py.File(image, "w", libver=("v110", "latest")) as file:
            create_like(file, b"x", like, h5py.h5s.create_simple(like.chunks), plist_of(like))
    return image.getvalue()
