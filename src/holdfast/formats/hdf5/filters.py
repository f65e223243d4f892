"""HDF5 filters: their names, which of them give back the values they were given, and pipelines made exactly alike.

Filters other than HDF5's own come with the Python package hdf5plugin, or from HDF5_PLUGIN_PATH.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import h5py

Filter = tuple[int, int, tuple[int, ...]]  # its number, its flags, its parameters

GZIP, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET, LZF, ZSTD = 1, 2, 3, 4, 5, 6, 32000, 32015
PACKAGE = "hdf5plugin"
NAMES = {
    GZIP: "gzip",
    SHUFFLE: "shuffle",
    FLETCHER32: "fletcher32",
    SZIP: "szip",
    NBIT: "nbit",
    SCALEOFFSET: "scaleoffset",
    307: "bzip2",
    LZF: "lzf",
    32001: "blosc",
    32004: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
    ZSTD: "zstd",
    32017: "sz",
    32024: "sz3",
    32026: "blosc2",
    32028: "sperr",
}

_OWN = (*range(256), LZF)  # HDF5's own numbers; h5py brings lzf with it
_LOSSLESS = (GZIP, SHUFFLE, FLETCHER32, SZIP, NBIT, 307, LZF, 32001, 32004, 32008, ZSTD)
_CHECKSUMMED = (GZIP, FLETCHER32, 307)
_SZIP_OPTIONS = 4 | 32  # those that a caller gives: the others are made from the type


def filter_name(code: int) -> str:
    return NAMES.get(code, f"filter {code}")


def is_own(code: int) -> bool:
    """Whether every HDF5 library that h5py comes with has it."""
    return code in _OWN


def has_filter(number: int) -> bool:
    """Whether this process can pack and unpack with it, from now on."""
    if not h5py.h5z.filter_avail(number):
        try:
            __import__(PACKAGE)
        except ImportError:
            return False
    return bool(h5py.h5z.filter_avail(number))


def lacking_filter(dataset: h5py.Dataset) -> str | None:
    """What must be installed before the dataset can be read; None: nothing."""
    for number, _, _ in filters_of(dataset.id.get_create_plist()):
        if not has_filter(number):
            name = NAMES.get(number, "unknown here")
            return f"is packed with filter {number} ({name}), which needs the Python package {PACKAGE}"
    return None


def filter_names_of(plist: Any) -> dict[int, bytes]:
    """What the filters of a pipeline are called in its file, by number."""
    return {int(found[0]): found[3] for found in map(plist.get_filter, range(plist.get_nfilters()))}


def filters_of(plist: Any) -> tuple[Filter, ...]:
    """Reads the pipeline of a creation property list."""
    found = (plist.get_filter(number)[:3] for number in range(plist.get_nfilters()))
    return tuple((int(code), int(flags), tuple(int(value) for value in values)) for code, flags, values in found)


def is_lossless(filters: Iterable[Filter]) -> bool:
    """Tells whether values that come out of this pipeline survive going through it once more.

    Filters that are not known to be exact count as lossy: scaleoffset of floats, zfp, sz, sz3, sperr, and unknown ones.
    """
    return all(code in _LOSSLESS or (code == SCALEOFFSET and _keeps_integers(values)) for code, _, values in filters)


def _keeps_integers(values: tuple[int, ...]) -> bool:
    return values[:2] == (h5py.h5z.SO_INT, h5py.h5z.SO_INT_MINBITS_DEFAULT)


def is_packed(filters: Iterable[Filter]) -> bool:
    return any(code != SHUFFLE for code, _, _ in filters)


def has_checksum(filters: Iterable[Filter]) -> bool:
    """Tells whether unpacking notices any flipped bit. Other codecs notice some."""
    return any(code in _CHECKSUMMED for code, _, _ in filters)


# ---- pipelines made exactly alike


def add_filters(plist: Any, filters: Iterable[Filter]) -> None:
    for code, flags, values in filters:
        if code == SCALEOFFSET:
            plist.set_scaleoffset(*values[:2])
        elif code == SZIP:
            plist.set_szip(values[0] & _SZIP_OPTIONS, values[1])
        else:
            plist.set_filter(code, flags, values)


def same_filters(one: Iterable[Filter], other: Iterable[Filter]) -> bool:
    """Tells whether chunks that one pipeline packed are unpacked rightly by the other."""
    sides = [[(code, _for_unpacking(code, values)) for code, _, values in side] for side in (one, other)]
    return sides[0] == sides[1]


def _for_unpacking(code: int, values: tuple[int, ...]) -> tuple[int, ...]:
    if code in (GZIP, ZSTD, LZF):  # a level, or the release that packed it
        return ()
    if code == SCALEOFFSET and len(values) > 8:  # the fill value follows if there is one, then memory nobody has set
        item_bytes, has_fill = values[4], values[7]
        return values[: 8 + (-(-item_bytes // 4) if has_fill else 0)]
    return values


_FILTER_FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
)


class _FilterClass(ctypes.Structure):
    """`H5Z_class2_t` of <H5Zdevelop.h>."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("id", ctypes.c_int),
        ("encoder_present", ctypes.c_uint),
        ("decoder_present", ctypes.c_uint),
        ("name", ctypes.c_char_p),
        ("can_apply", ctypes.c_void_p),
        ("set_local", ctypes.c_void_p),
        ("filter", _FILTER_FUNCTION),
    )


_PACKS_NOTHING = _FILTER_FUNCTION(lambda *_: 0)


def register_stand_in(code: int, name: bytes) -> Any:
    """Puts a filter that refuses to pack and to unpack in the place of another, which may not be installed: datasets
    are then created with any parameters, and chunks are copied. The library uses what is returned: keep it."""
    made = _FilterClass(1, code, 1, 1, name, None, None, _PACKS_NOTHING)
    h5py.h5z.register_filter(ctypes.addressof(made))
    return made


@contextmanager
def verbatim_parameters(names: Mapping[int, bytes]) -> Iterator[None]:
    """Within the block, datasets are created with the parameters of these filters, by number, exactly as given.

    A filter's `set_local` derives parameters from the dataset as it is created. bitshuffle, zfp, sz and others do that
    by moving those they were given, so parameters that were read from a dataset are not those that create its like.
    Within the block a stand-in without `set_local` takes the filter's place. It cannot pack: no values may be read or
    written, and whatever dataset is created must be closed again before the block ends.
    """
    foreign = sorted(code for code in names if code not in _OWN)
    stand_ins = [register_stand_in(code, names[code]) for code in foreign]
    try:
        yield
    finally:
        for code in foreign:
            h5py.h5z.unregister_filter(code)
        plugin = sys.modules.get(PACKAGE)
        lacking = tuple(code for code in foreign if not h5py.h5z.filter_avail(code))
        if plugin is not None and lacking:
            plugin.register(lacking, force=True)
        del stand_ins
