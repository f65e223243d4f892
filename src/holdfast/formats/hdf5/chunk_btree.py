"""Reads a dataset's chunk index of the older kind (a version 1 B-tree) without the library, and checks it.

The index has no checksums, and the library trusts it: a key that was zeroed hides a chunk, which then reads as fill
values, and a wrong address gives another chunk's rows. But an intact tree is redundant: its keys ascend, a node's last
key is the first one of the next node, the last key belongs to no chunk, and all other keys lie on the chunk grid.

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
_MAX_LEVEL = 32
_MAX_BLOCKS = 1000


class BTreeEntry(NamedTuple):
    """A chunk in the index. `sound`: the node that lists it is intact, or the chunk at least follows a neighbour."""

    start: tuple[int, ...]
    offset: int
    stored: int
    filter_mask: int
    sound: bool


class ChunkBTree(NamedTuple):
    """`problem`: offset and description of the first inconsistency, or None."""

    entries: list[BTreeEntry]
    problem: tuple[int, str] | None


def read_tree(fd: int, base: int, header: int, shape: tuple[int, ...], chunks: tuple[int, ...]) -> ChunkBTree | None:
    """Returns the index of the dataset whose header is at that address; None for indexes of other kinds, which have
    checksums.

    Reads no more than the file holds: a node is visited once.
    """
    found = _layout(fd, base, header)
    if found is None or found[:2] != _CHUNKED or len(found) < 11 or found[2] != len(chunks) + 1:
        return None
    (root,) = struct.unpack_from("<Q", found, 3)
    (item_bytes,) = struct.unpack_from("<I", found, 11 + 4 * len(chunks))
    if root == _UNDEFINED:
        return ChunkBTree([], None)
    return _TreeReader(fd, base, (*shape, 1), (*chunks, item_bytes)).tree(root)


class _TreeReader:
    """`ends` and `steps` are the shape and the chunk shape, with one more axis: the bytes of an item."""

    def __init__(self, fd: int, base: int, ends: tuple[int, ...], steps: tuple[int, ...]) -> None:
        self.fd, self.base, self.ends, self.steps = fd, base, ends, steps
        self.size = os.fstat(fd).st_size
        self.key = struct.Struct(f"<II{len(steps)}Q")
        self.seen: set[int] = set()
        self.entries: list[BTreeEntry] = []
        self.problem: tuple[int, str] | None = None

    def tree(self, root: int) -> ChunkBTree:
        self._node(root, None, None, None)
        return ChunkBTree(self.entries, self.problem)

    def _set_problem(self, at: int, what: str) -> None:
        if self.problem is None:
            self.problem = at + self.base, what

    def _node(self, at: int, level: int | None, low: tuple[int, ...] | None, high: tuple[int, ...] | None) -> bool:
        """Reads a node and what is below it; returns whether it has the level and end keys that its parent says."""
        if at in self.seen or len(self.seen) > self.size // _NODE.size:
            self._set_problem(at, "a node of its index occurs twice")
            return False
        self.seen.add(at)
        head = os.pread(self.fd, _NODE.size, at + self.base) if at + self.base < self.size else b""
        if len(head) < _NODE.size or head[:5] != b"TREE\x01" or head[5] > _MAX_LEVEL:
            self._set_problem(at, "a node of its index is unreadable")
            return False
        _, _, own_level, used, _, _ = _NODE.unpack(head)
        entry_bytes = self.key.size + 8
        data = os.pread(self.fd, used * entry_bytes + self.key.size, at + self.base + _NODE.size)
        if level is None and not used and not own_level and not any(data[: self.key.size]):
            return True  # all its chunks were deleted
        if not used or len(data) < used * entry_bytes + self.key.size or level not in (None, own_level):
            self._set_problem(at, "a node of its index is corrupt")
            return False
        keys = [self.key.unpack_from(data, i * entry_bytes) for i in range(used + 1)]
        children = [struct.unpack_from("<Q", data, i * entry_bytes + self.key.size)[0] for i in range(used)]
        starts = [key[2:] for key in keys]
        sound = starts == sorted(set(starts)) and low in (None, starts[0]) and high in (None, starts[-1])
        if level is None:  # the last key belongs to no chunk
            sound = sound and starts[-1][-1] == self.steps[-1]
        sound = sound and all(self._on_grid(key) for key in keys[:-1])
        if not sound:
            self._set_problem(at, "a node of its index is corrupt")
        if own_level:
            for i, child in enumerate(children):
                ends = (starts[i], starts[i + 1]) if sound else (None, None)
                self._node(child, own_level - 1, *ends)
            return sound
        numbers = [self._number(key) for key in keys]
        for i, (key, child) in enumerate(zip(keys, children, strict=False)):
            if self._on_grid(key) and key[0] and child + self.base + key[0] <= self.size:
                follows = numbers[i] - numbers[i - 1] == 1 if i else False
                sound_entry = sound or follows or numbers[i + 1] - numbers[i] == 1
                self.entries.append(BTreeEntry(key[2:-1], child + self.base, key[0], key[1], sound_entry))
            elif sound:
                self._set_problem(at, "its index has a chunk outside of the grid")
        return sound

    def _on_grid(self, key: tuple[int, ...]) -> bool:
        """Tells whether a key is the start of a chunk within the shape."""
        starts = zip(key[2:], self.ends, self.steps, strict=True)
        return all(start < end and not start % step for start, end, step in starts)

    def _number(self, key: tuple[int, ...]) -> int:
        """Returns the number of a chunk in row order; a key off the grid gets one that no neighbour follows."""
        number = 0
        for start, end, step in zip(key[2:-1], self.ends, self.steps, strict=False):
            number = number * -(-end // step) + start // step
        return number if self._on_grid(key) else -9


def _layout(fd: int, base: int, header: int) -> bytes | None:
    """Returns the message in an object's header that describes how its values are stored."""
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
    fd: int, base: int, first: tuple[int, int], head: struct.Struct, signature: bytes
) -> Iterator[tuple[int, bytes]]:
    """Yields the messages of all blocks. In newer files, every block but the first has a signature and a checksum."""
    blocks = [first]
    for number, (at, size) in enumerate(blocks):
        data = os.pread(fd, min(size, 1 << 24), at + base)
        stop = len(data)
        at = 0
        if number and signature:
            at, stop = len(signature), stop - 4
        while at + head.size <= stop:
            kind, length, _ = head.unpack_from(data, at)
            body = data[at + head.size : at + head.size + length]
            if kind == _CONTINUED and len(body) >= 16 and len(blocks) < _MAX_BLOCKS:
                blocks.append(struct.unpack_from("<QQ", body))
            yield kind, body
            at += head.size + length
