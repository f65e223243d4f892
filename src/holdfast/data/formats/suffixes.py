"""The one table of file suffixes: which names and first bytes belong to which format."""

from __future__ import annotations

import re
from typing import Literal

Format = Literal["hdf5", "tar", "tfrecord"]
TITLES: dict[Format, str] = {"hdf5": "HDF5", "tar": "tar", "tfrecord": "TFRecord"}

# Suffixes are lower case; names are compared in lower case.
TFRECORD_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec")
TFRECORD_COMPRESSION = {".gz": "gzip", ".gzip": "gzip", ".zlib": "zlib", ".zz": "zlib"}  # by a further suffix
HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz", ".tar.zst")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
SAMPLE_SUFFIXES = (*IMAGE_SUFFIXES, ".gif", ".pbm", ".pnm", ".txt")  # files that are one sample each
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"

_COMPRESSED = rf"({'|'.join(map(re.escape, TFRECORD_COMPRESSION))})?$"
_TFRECORD_NAME = re.compile(
    rf"({'|'.join(map(re.escape, TFRECORD_SUFFIXES))})([-._]\d+(-of-\d+)?)?{_COMPRESSED}", re.IGNORECASE
)
_NUMBERED_NAME = re.compile(rf"-\d{{5}}-of-\d{{5}}{_COMPRESSED}", re.IGNORECASE)


def is_tfrecord_name(name: str) -> bool:
    """Tells whether a name has a suffix of TFRecord, possibly followed by a shard number or a compression suffix."""
    return _TFRECORD_NAME.search(name) is not None


def format_of_name(name: str) -> Format | None:
    """Returns the format that a name has the suffix of; None: the name does not say."""
    if name.lower().endswith(HDF5_SUFFIXES):
        return "hdf5"
    if name.lower().endswith(TAR_SUFFIXES):
        return "tar"
    return "tfrecord" if is_tfrecord_name(name) else None


def is_shard_name(name: str) -> bool:
    """Tells whether a name is one of a TFRecord, HDF5 or tar file. TensorFlow's tools number their shards
    `-00000-of-00010`, often without a suffix."""
    return format_of_name(name) is not None or _NUMBERED_NAME.search(name) is not None
