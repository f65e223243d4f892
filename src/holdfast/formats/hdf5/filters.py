"""Filters that HDF5 does not have itself: they come with the Python package hdf5plugin, or in HDF5_PLUGIN_PATH."""

from __future__ import annotations

import h5py

ZSTD = 32015
PACKAGE = "hdf5plugin"

_NAMES = {307: "bzip2", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", ZSTD: "zstd", 32026: "blosc2"}


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
    plist = dataset.id.get_create_plist()
    numbers = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    for number in numbers:
        if not has_filter(number):
            name = _NAMES.get(number, "unknown here")
            return f"is packed with filter {number} ({name}), which needs the Python package {PACKAGE}"
    return None
