"""In the child: objects that no readable group leads to any more, found by how their bytes look.

Newer files begin each object with `OHDR` and end its header with a checksum. Older ones have neither, but their groups
keep nodes that begin with `SNOD` and list addresses, and heaps that begin with `HEAP` and hold the names.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

FOLDER = "/lost+found"
_ENTRY_BYTES = 40
_MOST_ENTRIES = 1024
_MOST_NAME = 255
_MOST_TRIES = 1_000_000


def find_orphans(path: str, base: int) -> dict[int, str]:
    """Addresses at which an object may begin, and its name where that can be told."""
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            return {}
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            found = {at - base: "" for at in _places(data, b"OHDR\x02")}
            heaps = [heap for at in _places(data, b"HEAP\0\0\0\0") if (heap := _heap(data, at, base)) is not None]
            nodes = list(_places(data, b"SNOD\x01\0"))
            if len(nodes) * len(heaps) > _MOST_TRIES:
                heaps = []  # each is tried for each node: names are not worth hours
            for at in nodes:
                found |= _node(data, at, base, heaps)
    return dict(sorted(found.items()))


def _places(data: mmap.mmap, mark: bytes) -> Iterator[int]:
    at = data.find(mark)
    while at >= 0:
        yield at
        at = data.find(mark, at + 1)


def _heap(data: mmap.mmap, at: int, base: int) -> bytes | None:
    """The names of one group, each with a zero behind it."""
    if at + 32 > len(data):
        return None
    size, _, address = struct.unpack_from("<QQQ", data, at + 8)
    start = address + base
    return data[start : start + size] if start + size <= len(data) else None


def _node(data: mmap.mmap, at: int, base: int, heaps: list[bytes]) -> dict[int, str]:
    (entries,) = struct.unpack_from("<H", data, at + 6) if at + 8 <= len(data) else (0,)
    if not entries or entries > _MOST_ENTRIES or at + 8 + entries * _ENTRY_BYTES > len(data):
        return {}
    rows = [struct.unpack_from("<QQ", data, at + 8 + i * _ENTRY_BYTES) for i in range(entries)]
    fits = [names for heap in heaps if (names := _names(heap, [offset for offset, _ in rows])) is not None]
    names = fits[0] if len(fits) == 1 else [""] * entries
    found = zip((address for _, address in rows), names, strict=True)
    return {address: name for address, name in found if _is_header(data, address + base)}


def _names(heap: bytes, offsets: list[int]) -> list[str] | None:
    """None: this is another group's heap. Names in a node are sorted, which hardly any other heap gives by chance."""
    names = []
    for offset in offsets:
        end = heap.find(b"\0", offset)
        if offset >= len(heap) or not 0 < end - offset <= _MOST_NAME:
            return None
        names.append(heap[offset:end])
    return [name.decode("utf-8", "replace") for name in names] if names == sorted(set(names)) else None


def _is_header(data: mmap.mmap, at: int) -> bool:
    """Whether a header of the older kind may begin here: version 1, some messages, few links to it."""
    if at + 16 > len(data):
        return False
    version, zero, messages, links, size = struct.unpack_from("<BBHII", data, at)
    return bool(version == 1 and zero == 0 and 0 < messages < 1000 and links < 1000 and 0 < size < 1 << 20)


def open_at(file: h5py.File, address: int) -> Any:
    """The object that begins there. h5py opens by reference, and a reference is an address."""
    with h5py.File("reference", "w", driver="core", backing_store=False) as scratch:
        made = scratch.create_dataset("r", (1,), dtype=h5py.ref_dtype)
        one = np.array([address], "u8")
        made.id.write(h5py.h5s.ALL, h5py.h5s.ALL, one, mtype=h5py.h5t.STD_REF_OBJ)
        return file[made[0]]


def path_of(address: int, name: str) -> str:
    plain = name.replace("/", "_")
    return f"{FOLDER}/{plain}-at-{address}" if plain else f"{FOLDER}/at-{address}"
