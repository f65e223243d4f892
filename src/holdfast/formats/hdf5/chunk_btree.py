"""A dataset's chunk index of the older kind (a version 1 B-tree), read without the library and checked as a whole.

It has no checksums. The library follows what it finds: a key that was zeroed hides a chunk, which then reads as fill
values, and a wrong address gives another chunk's rows. But a tree that was written properly repeats itself: its keys
ascend, a node's last key is the first one of the node behind it, the last key of all is no chunk's place, and all other
keys lie on the grid of chunks.

    https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html: III.A.1, IV.A.1, IV.A.2.i
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

_LAYOUT, _CONTINUED = 0x0008, 0x0010
_CHUNKED = bytes([3, 2])  # version and class of a layout
_UNDEFINED = (1 << 64) - 1
_NODE = struct.Struct("<4sBBHQQ")
_DEEPEST = 32
_MOST_BLOCKS = 1000


class BTreeEntry(NamedTuple):
    """A chunk as its index has it. `sound`: so is the node that lists it, or at least it follows a neighbour."""

    start: tuple[int, ...]
    offset: int
    stored: int
    filter_mask: int
    sound: bool


class ChunkBTree(NamedTuple):
    """`flaw`: the first thing that is wrong with it, and its offset; None: all of it fits together."""

    entries: list[BTreeEntry]
    flaw: tuple[int, str] | None


def read_tree(fd: int, base: int, header: int, shape: tuple[int, ...], chunks: tuple[int, ...]) -> ChunkBTree | None:
    """The index of the dataset whose header is at that address. None: it has none of this kind; others have checksums.

    Reads no more than the file holds: a node is visited once.
    """
    found = _layout(fd, base, header)
    if found is None or found[:2] != _CHUNKED or len(found) < 11 or found[2] != len(chunks) + 1:
        return None
    (root,) = struct.unpack_from("<Q", found, 3)
    (item_bytes,) = struct.unpack_from("<I", found, 11 + 4 * len(chunks))
    if root == _UNDEFINED:
        return ChunkBTree([], None)
    return _Reading(fd, base, (*shape, 1), (*chunks, item_bytes)).tree(root)


class _Reading:
    """`ends` and `steps` are the shape and the chunks' shape, with one axis more: that of the bytes of an item."""

    def __init__(self, fd: int, base: int, ends: tuple[int, ...], steps: tuple[int, ...]) -> None:
        self.fd, self.base, self.ends, self.steps = fd, base, ends, steps
        self.size = os.fstat(fd).st_size
        self.key = struct.Struct(f"<II{len(steps)}Q")
        self.seen: set[int] = set()
        self.entries: list[BTreeEntry] = []
        self.flaw: tuple[int, str] | None = None

    def tree(self, root: int) -> ChunkBTree:
        self._node(root, None, None, None)
        return ChunkBTree(self.entries, self.flaw)

    def _wrong(self, at: int, what: str) -> None:
        if self.flaw is None:
            self.flaw = at + self.base, what

    def _node(self, at: int, level: int | None, low: tuple[int, ...] | None, high: tuple[int, ...] | None) -> bool:
        """Reads a node and what is below it; whether it is what its parent says: of that level, with those end keys."""
        if at in self.seen or len(self.seen) > self.size // _NODE.size:
            self._wrong(at, "a node of its index is there twice")
            return False
        self.seen.add(at)
        head = os.pread(self.fd, _NODE.size, at + self.base) if at + self.base < self.size else b""
        if len(head) < _NODE.size or head[:5] != b"TREE\x01" or head[5] > _DEEPEST:
            self._wrong(at, "a node of its index is destroyed")
            return False
        _, _, own_level, used, _, _ = _NODE.unpack(head)
        entry_bytes = self.key.size + 8
        data = os.pread(self.fd, used * entry_bytes + self.key.size, at + self.base + _NODE.size)
        if level is None and not used and not own_level and not any(data[: self.key.size]):
            return True  # all its chunks were taken away
        if not used or len(data) < used * entry_bytes + self.key.size or level not in (None, own_level):
            self._wrong(at, "a node of its index is damaged")
            return False
        keys = [self.key.unpack_from(data, i * entry_bytes) for i in range(used + 1)]
        children = [struct.unpack_from("<Q", data, i * entry_bytes + self.key.size)[0] for i in range(used)]
        places = [key[2:] for key in keys]
        sound = places == sorted(set(places)) and low in (None, places[0]) and high in (None, places[-1])
        if level is None:  # the last key of all is no chunk's place
            sound = sound and places[-1][-1] == self.steps[-1]
        sound = sound and all(self._on_grid(key) for key in keys[:-1])
        if not sound:
            self._wrong(at, "a node of its index is damaged")
        if own_level:
            for i, child in enumerate(children):
                ends = (places[i], places[i + 1]) if sound else (None, None)
                self._node(child, own_level - 1, *ends)
            return sound
        numbers = [self._number(key) for key in keys]
        for i, (key, child) in enumerate(zip(keys, children, strict=False)):
            if self._on_grid(key) and key[0] and child + self.base + key[0] <= self.size:
                follows = numbers[i] - numbers[i - 1] == 1 if i else False
                sure = sound or follows or numbers[i + 1] - numbers[i] == 1
                self.entries.append(BTreeEntry(key[2:-1], child + self.base, key[0], key[1], sure))
            elif sound:
                self._wrong(at, "its index has a chunk where none can be")
        return sound

    def _on_grid(self, key: tuple[int, ...]) -> bool:
        """Chunks that a dataset shrinks out of are taken away."""
        places = zip(key[2:], self.ends, self.steps, strict=True)
        return all(place < end and not place % step for place, end, step in places)

    def _number(self, key: tuple[int, ...]) -> int:
        """Of a chunk, in the order of rows; a key off the grid has one that no neighbour follows."""
        number = 0
        for place, end, step in zip(key[2:-1], self.ends, self.steps, strict=False):
            number = number * -(-end // step) + place // step
        return number if self._on_grid(key) else -9


# ---- where the tree begins


def _layout(fd: int, base: int, header: int) -> bytes | None:
    """The message in an object's header that says how its values are laid out."""
    for kind, body in _messages(fd, base, header):
        if kind == _LAYOUT:
            return body
    return None


def _messages(fd: int, base: int, header: int) -> Iterator[tuple[int, bytes]]:
    start = os.pread(fd, 64, header + base)
    if start[:4] == b"OHDR":
        yield from _messages_2(fd, base, header, start)
    elif start[:1] == b"\x01" and len(start) >= 16:
        (size,) = struct.unpack_from("<I", start, 8)
        yield from _blocks(fd, base, (header + 16, size), struct.Struct("<HHB3x"), b"")


def _messages_2(fd: int, base: int, header: int, start: bytes) -> Iterator[tuple[int, bytes]]:
    flags = start[5]
    at = 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10)
    width = 1 << (flags & 3)
    size = int.from_bytes(start[at : at + width], "little")
    head = struct.Struct("<BHB2x" if flags & 4 else "<BHB")
    yield from _blocks(fd, base, (header + at + width, size), head, b"OCHK")


def _blocks(
    fd: int, base: int, first: tuple[int, int], head: struct.Struct, mark: bytes
) -> Iterator[tuple[int, bytes]]:
    """Of one block after the other. A block of the newer kind but the first has a mark before and a checksum behind."""
    blocks = [first]
    for number, (at, size) in enumerate(blocks):
        data = os.pread(fd, min(size, 1 << 24), at + base)
        stop = len(data)
        at = 0
        if number and mark:
            at, stop = len(mark), stop - 4
        while at + head.size <= stop:
            kind, length, _ = head.unpack_from(data, at)
            body = data[at + head.size : at + head.size + length]
            if kind == _CONTINUED and len(body) >= 16 and len(blocks) < _MOST_BLOCKS:
                blocks.append(struct.unpack_from("<QQ", body))
            yield kind, body
            at += head.size + length
