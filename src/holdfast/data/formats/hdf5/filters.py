"""HDF5 filters: their names, which of them are lossless, and how to create a pipeline with the same parameters.

Filters other than HDF5's own come with the Python package hdf5plugin, or from HDF5_PLUGIN_PATH.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import h5py

from ....errors import WriteError

Filter = tuple[int, int, tuple[int, ...]]  # number, flags, parameters

GZIP, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET, LZF, LZ4, ZSTD = 1, 2, 3, 4, 5, 6, 32000, 32004, 32015
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
    LZ4: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
    ZSTD: "zstd",
    32017: "sz",
    32024: "sz3",
    32026: "blosc2",
    32028: "sperr",
}

_OWN = (*range(256), LZF)  # HDF5 reserves the first 256; h5py includes lzf
_LOSSLESS = (GZIP, SHUFFLE, FLETCHER32, SZIP, NBIT, 307, LZF, 32001, LZ4, 32008, ZSTD)
_CHECKSUMMED = (GZIP, FLETCHER32, 307)
NEVER_ZEROS = (GZIP, 307, LZF, 32001, LZ4, 32008, ZSTD, 32026)  # codecs whose output is never all zeros
_SZIP_OPTIONS = 4 | 32  # the options that a caller sets; the others follow from the type


def filter_name(code: int) -> str:
    return NAMES.get(code, f"filter {code}")


def describe_filters(filters: Iterable[Filter]) -> str:
    return " + ".join(filter_name(code) for code, _, _ in filters) or "none"


def is_own(code: int) -> bool:
    """Returns whether every HDF5 library that h5py ships includes this filter."""
    return code in _OWN


def has_filter(number: int) -> bool:
    """Returns whether this process can use the filter, and loads hdf5plugin if that has it."""
    if not h5py.h5z.filter_avail(number):
        try:
            __import__(PACKAGE)
        except ImportError:
            return False
    return bool(h5py.h5z.filter_avail(number))


def plugin_library(number: int) -> str | None:
    """Returns the shared library of hdf5plugin that has the filter and its codec; None if the filter is another's."""
    plugin = sys.modules.get(PACKAGE)
    filters = plugin.get_config().registered_filters if plugin is not None else {}
    return filters.get(NAMES[number])


def check_zstd() -> None:
    """Raises WriteError if chunks cannot be compressed with zstd here."""
    if not has_filter(ZSTD):
        raise WriteError(f'codec "zstd" needs the Python package {PACKAGE}: pip install {PACKAGE}')


def lacking_filter(dataset: h5py.Dataset) -> str | None:
    """Says what must be installed to read the dataset; None if nothing."""
    for number, _, _ in filters_of(dataset.id.get_create_plist()):
        if not has_filter(number):
            name = NAMES.get(number, "unknown here")
            return f"is compressed with filter {number} ({name}), which needs the Python package {PACKAGE}"
    return None


def filter_names_of(plist: Any) -> dict[int, bytes]:
    """Returns the names of a pipeline's filters in its file, by number."""
    return {int(found[0]): found[3] for found in map(plist.get_filter, range(plist.get_nfilters()))}


def filters_of(plist: Any) -> tuple[Filter, ...]:
    """Returns the pipeline of a creation property list."""
    found = (plist.get_filter(number)[:3] for number in range(plist.get_nfilters()))
    return tuple((int(code), int(flags), tuple(int(value) for value in values)) for code, flags, values in found)


def is_lossless(filters: Iterable[Filter]) -> bool:
    """Returns whether values that were decoded by this pipeline survive being encoded again.

    Filters that are not known to be exact count as lossy: scaleoffset of floats, zfp, sz, sz3, sperr, and unknown ones.
    """
    integers = (h5py.h5z.SO_INT, h5py.h5z.SO_INT_MINBITS_DEFAULT)
    return all(code in _LOSSLESS or (code == SCALEOFFSET and values[:2] == integers) for code, _, values in filters)


def is_compressed(filters: Iterable[Filter]) -> bool:
    return any(code != SHUFFLE for code, _, _ in filters)


def has_checksum(filters: Iterable[Filter]) -> bool:
    """Returns whether decoding detects any flipped bit. Other codecs detect some."""
    return any(code in _CHECKSUMMED for code, _, _ in filters)


def add_filters(plist: Any, filters: Iterable[Filter]) -> None:
    for code, flags, values in filters:
        if code == SCALEOFFSET:
            plist.set_scaleoffset(*values[:2])
        elif code == SZIP:
            plist.set_szip(values[0] & _SZIP_OPTIONS, values[1])
        else:
            plist.set_filter(code, flags, values)


def same_filters(one: Iterable[Filter], other: Iterable[Filter]) -> bool:
    """Returns whether one pipeline decodes the chunks that the other encoded."""
    sides = [[(code, _decoding_parameters(code, values)) for code, _, values in side] for side in (one, other)]
    return sides[0] == sides[1]


def _decoding_parameters(code: int, values: tuple[int, ...]) -> tuple[int, ...]:
    if code in (GZIP, ZSTD, LZF):  # a level, or the version of the codec
        return ()
    if code == SCALEOFFSET and len(values) > 8:  # then the fill value if any, then uninitialized memory
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


_REJECT_ALL = _FILTER_FUNCTION(lambda *_: 0)


def register_stand_in(code: int, name: bytes) -> Any:
    """Registers a filter that fails to encode and decode in place of another, which may not be installed: datasets can
    then be created with any parameters, and chunks copied. The library uses the returned object: keep it alive."""
    made = _FilterClass(1, code, 1, 1, name, None, None, _REJECT_ALL)
    h5py.h5z.register_filter(ctypes.addressof(made))
    return made


@contextmanager
def verbatim_parameters(names: Mapping[int, bytes]) -> Iterator[None]:
    """Within the block, datasets are created with the parameters of these filters, by number, exactly as given.

    A filter's `set_local` derives parameters from the dataset as it is created. bitshuffle, zfp, sz and others do that
    by moving those they were given, so creating a dataset with the parameters of another gives other parameters. Within
    the block a stand-in without `set_local` replaces the filter. It cannot encode: no values may be read or written,
    and every dataset that is created must be closed before the block ends.
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
