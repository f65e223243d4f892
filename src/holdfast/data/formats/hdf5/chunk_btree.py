"""A dataset's chunk index of the older kind, a version 1 B-tree: reads and checks it without the library, or builds it.

The index has no checksums, and the library trusts it: a key that was zeroed hides a chunk, which then reads as fill
values, and a wrong address gives another chunk's rows. But an intact tree is redundant: its keys ascend, a node's last
key is the first one of the next node, the last key belongs to no chunk, and all other keys lie on the chunk grid.

    https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html: III.A.1, IV.A.1.a, IV.A.2.i
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

_LAYOUT, _CONTINUED = 0x0008, 0x0010
CHUNKED = bytes([3, 2])  # version and class of a layout
UNDEFINED = (1 << 64) - 1
ADDRESS = struct.Struct("<Q")
_NODE = struct.Struct("<4sBBHQQ")
_FANOUT = 64  # twice the library's default K
_MAX_LEVEL = 32
_MAX_BLOCKS = 1000

ReadBytes = Callable[[int, int], bytes]  # takes an address and a size; returns less at the end of the file


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
    _, layout = find_layout(lambda at, size: os.pread(fd, size, at + base), header) or (-1, b"")
    if layout[:2] != CHUNKED or len(layout) < 11 or layout[2] != len(chunks) + 1:
        return None
    (root,) = ADDRESS.unpack_from(layout, 3)
    (item_bytes,) = struct.unpack_from("<I", layout, 11 + 4 * len(chunks))
    if root == UNDEFINED:
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
        children = [ADDRESS.unpack_from(data, i * entry_bytes + self.key.size)[0] for i in range(used)]
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
        """Returns whether a key is the start of a chunk within the shape."""
        starts = zip(key[2:], self.ends, self.steps, strict=True)
        return all(start < end and not start % step for start, end, step in starts)

    def _number(self, key: tuple[int, ...]) -> int:
        """Returns the number of a chunk in row order; a key off the grid gets one that no neighbour follows."""
        number = 0
        for start, end, step in zip(key[2:-1], self.ends, self.steps, strict=False):
            number = number * -(-end // step) + start // step
        return number if self._on_grid(key) else -9


def find_layout(read: ReadBytes, header: int) -> tuple[int, bytes] | None:
    """Returns the message in an object's header that describes how its values are stored, and its address."""
    return next(((at, body) for kind, at, body in _messages(read, header) if kind == _LAYOUT), None)


def _messages(read: ReadBytes, header: int) -> Iterator[tuple[int, int, bytes]]:
    """Yields the kind, address and content of each message of a header."""
    start = read(header, 64)
    if start[:4] == b"OHDR":
        flags = start[5]
        at = 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10)
        width = 1 << (flags & 3)
        size = int.from_bytes(start[at : at + width], "little")
        head = struct.Struct("<BHB2x" if flags & 4 else "<BHB")
        yield from _blocks(read, (header + at + width, size), head, b"OCHK")
    elif start[:1] == b"\x01" and len(start) >= 16:
        (size,) = struct.unpack_from("<I", start, 8)
        yield from _blocks(read, (header + 16, size), struct.Struct("<HHB3x"), b"")


def _blocks(
    read: ReadBytes, first: tuple[int, int], head: struct.Struct, signature: bytes
) -> Iterator[tuple[int, int, bytes]]:
    """Yields the messages of all blocks. In newer files, every block but the first has a signature and a checksum."""
    blocks = [first]
    for number, (address, size) in enumerate(blocks):
        data = read(address, min(size, 1 << 24))
        at, stop = 0, len(data)
        if number and signature:
            at, stop = len(signature), stop - 4
        while at + head.size <= stop:
            kind, length, _ = head.unpack_from(data, at)
            at += head.size
            body = data[at : at + length]
            if kind == _CONTINUED and len(body) >= 16 and len(blocks) < _MAX_BLOCKS:
                blocks.append(struct.unpack_from("<QQ", body))
            yield kind, address + at, body
            at += length


def build_tree(chunks: Sequence[tuple[int, int, int]], steps: tuple[int, ...], at: int) -> tuple[bytes, int]:
    """Returns the nodes of a B-tree that begins at `at`, and the address of its root. `chunks`: offset,
    size and crc32c of each in row order; `steps`: the chunk shape and the item size."""
    key = struct.Struct(f"<II{len(steps)}Q")
    zeros = (0,) * (len(steps) - 1)
    keys = [key.pack(size, 0, number * steps[0], *zeros) for number, (_, size, _) in enumerate(chunks)]
    keys.append(key.pack(0, 0, len(chunks) * steps[0], *steps[1:]))  # as the library does
    children = [offset for offset, _, _ in chunks]
    node_bytes = _NODE.size + _FANOUT * ADDRESS.size + (_FANOUT + 1) * key.size
    nodes, level = bytearray(), 0
    while True:
        groups = range(0, len(children), _FANOUT)
        first = at + len(nodes)
        addresses = [first + number * node_bytes for number in range(len(groups))]
        for number, start in enumerate(groups):
            few = children[start : start + _FANOUT]
            left = addresses[number - 1] if number else UNDEFINED
            right = addresses[number + 1] if number + 1 < len(groups) else UNDEFINED
            node = bytearray(_NODE.pack(b"TREE", 1, level, len(few), left, right))
            for child, one in enumerate(few):
                node += keys[start + child] + ADDRESS.pack(one)
            node += keys[start + len(few)]
            nodes += node.ljust(node_bytes, b"\0")
        if len(addresses) == 1:
            return bytes(nodes), addresses[0]
        keys = [*(keys[start] for start in groups), keys[-1]]
        children, level = addresses, level + 1
