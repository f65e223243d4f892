"""Finds the other files that an HDF5 file names: external storage, and links into another file.

The library opens whatever is named there, such as `/etc/passwd`, and returns its bytes as values.
"""

from __future__ import annotations

import os
from typing import Any

import h5py

from .object_walk import text_of

NEEDS_PERMISSION = "hold.read refuses it without allow_external=True"


def external_storage(dataset: h5py.Dataset) -> list[tuple[str, int, int]]:
    """Returns the name, the first byte and the number of bytes of every file that stores the dataset's values."""
    plist = dataset.id.get_create_plist()
    found = [plist.get_external(i) for i in range(plist.get_external_count())]
    return [(text_of(name), int(start), int(size)) for name, start, size in found]


def values_file(obj: Any, file: h5py.File) -> str | None:
    """Returns the file that a dataset's values are in, or that a group is in; None if it is `file`."""
    if h5py.h5o.get_info(h5py.h5i.get_file_id(obj.id)).fileno != h5py.h5o.get_info(file.id).fileno:
        return str(obj.file.filename)
    stored = external_storage(obj) if isinstance(obj, h5py.Dataset) else []
    return stored[0][0] if stored else None


def external_dir(dataset: h5py.Dataset, file: str) -> str:
    """Returns where external storage is. The library resolves those names against the working directory, unlike those
    of links; if they do not exist there, they may be beside the file, for a reader that works there."""
    names = [name for name, _, _ in external_storage(dataset)]
    return "." if all(map(os.path.exists, names)) else os.path.dirname(os.path.abspath(file))


def external_problems(dataset: h5py.Dataset, directory: str = ".") -> list[str]:
    """Describes external storage that is missing or too short; the library reads fill values there."""
    found, left = [], dataset.size * dataset.id.get_type().get_size()
    for name, start, size in external_storage(dataset):
        size, there = min(size, left), os.path.join(directory, name)
        left -= size
        if not os.path.isfile(there):
            missing = "is not a file" if os.path.exists(there) else "does not exist"
            found.append(f"its values are in {name!r}, which {missing}")
        elif (got := os.path.getsize(there)) < start + size:
            found.append(f"its values are in {name!r}, which has {got:,} bytes, expected {start + size:,}")
    return found
