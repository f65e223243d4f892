"""Caches the blocks of the windows in use, within a limit of memory.

Blocks are cached decoded, or as raw frames where the format can gather samples first and decode them then. Blocks of
the next windows are read ahead, as far as the limit leaves room.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ...._native.c_modules import readahead
from ....errors import DataError, HoldfastError, InputError
from ...formats.base import FramedShard, FramesDecoder, PlacedShard, Shard, fill_from
from ...formats.columns import Batch, BytesColumn, Ints
from ...formats.gather import RowPool
from ...formats.tfrecord.source import front_of, new_buffer
from ..order.blocks import Blocks, SamplePositions
from ..sources.catalog import SEEKABLE, ShardSet
from ..stats import Meter
from .decode_ahead import DecodeAhead

_FRAMES = ""  # the one column of blocks that are cached as raw frames
_SLAB_PIECES = 8
_SMALLEST_PIECE, _PIECE_BYTES = 1 << 16, 2 << 20
_OVERHEAD_BYTES = 8192  # what a block takes beside its samples: a page at each end of its buffer
_FRAMES_BYTES = _PIECE_BYTES - _OVERHEAD_BYTES

ReadIntact = Callable[[int, Shard, Ints], tuple[Batch, Ints]]


class BlockUnit:
    """Blocks of one window that are read together: one, or whole small files. They are in one slot, one after another.

    memory: what its frames are in, if that is a piece of a slab
    """

    __slots__ = ("are_files", "blocks", "estimate", "memory", "size_bytes", "slot")

    def __init__(self, block: int, size_bytes: int, are_files: bool = False) -> None:
        self.blocks, self.size_bytes, self.are_files = [block], size_bytes, are_files
        self.slot, self.estimate = -1, 0
        self.memory: Any = None


class BlockCache:
    """`uncached`: blocks that are not to be cached. `read_intact`, if given, reads all but corrupt samples."""

    def __init__(
        self,
        shards: ShardSet,
        blocks: Blocks,
        uncached: np.ndarray[tuple[int], np.dtype[np.bool_]],
        meter: Meter,
        read_intact: ReadIntact | None,
    ) -> None:
        self._shards, self._blocks, self._meter = shards, blocks, meter
        self._uncached, self._read_intact = uncached, read_intact
        self.limit_bytes = 0  # what may be cached; set by the owner before every range of steps
        self.packed_limit_bytes = 0  # the same, where a compressed shard is among it
        self.corrupt: dict[int, Ints] = {}  # by block: its corrupt rows
        self._pool = RowPool()
        self._slot = np.full(len(blocks), -1, np.int64)  # by block; -1: not cached
        self._row = np.zeros(len(blocks), np.int64)  # by block: where its rows begin in its slot
        self._has_rows = False  # whether some do not begin at 0
        self._free: list[int] = []
        self._users = np.zeros(len(blocks), np.int32)  # by block: how many windows in use have it
        self._units: dict[int, BlockUnit] = {}  # by block: what it is cached in, or read ahead for
        self._windows: dict[Any, Ints] = {}
        self._framed = shards.framed
        self._joined = shards.are_whole_files(blocks, _FRAMES_BYTES) & self._framed
        self._decoder: FramesDecoder | None = None
        self._spare: dict[int, list[Any]] = {}  # by size: memory of units that are over; fresh memory costs more
        self._readahead: Readahead | DecodeAhead = (Readahead if self._framed else DecodeAhead)(shards, blocks)
        shards.give_way = self._readahead.finish
        self._reserved_bytes = 0  # for what is read ahead
        self._cached_bytes = 0
        self._expansion_ratio = 1.0  # how much larger blocks are in memory than on disk

    # ---- rows

    def slots(self, positions: SamplePositions) -> Ints:
        """Returns the slot of every position's block; -1: it is not cached."""
        return self._slot[positions.block]

    def take(self, positions: SamplePositions, slots: Ints) -> Batch | None:
        """Gathers rows that are all cached. Returns None if one of them cannot be decoded."""
        start = perf_counter()
        rows = self._pool.take(slots, self._rows_in_slots(positions))
        gathered = perf_counter()
        self._meter.add("gather", gathered - start)
        if self._decoder is None:
            return rows
        batch = self._decoder.decode(rows[_FRAMES])  # type: ignore[arg-type]
        self._meter.decoded(perf_counter() - gathered)
        return batch

    def _rows_in_slots(self, positions: SamplePositions) -> Ints:
        """A slot has no rows for corrupt samples: the rows after them move up."""
        if self._has_rows:
            return positions.row + self._row[positions.block]
        if not self.corrupt:
            return positions.row
        row = positions.row.copy()
        for block in set(positions.block.tolist()) & self.corrupt.keys():
            here = positions.block == block
            row[here] -= np.searchsorted(self.corrupt[block], row[here])
        return row

    # ---- windows

    def begin_windows(self, windows: dict[Any, Ints]) -> None:
        """Releases the blocks of windows that are over, then reads those of windows that begin."""
        for key in self._windows.keys() - windows.keys():
            blocks = self._windows.pop(key)
            self._users[blocks] -= 1
            for unit in {self._units[block] for block in blocks.tolist() if block in self._units}:
                if not self._users[unit.blocks].any():
                    self._drop(unit)
        missing: dict[BlockUnit, None] = {}
        for key in [key for key in windows if key not in self._windows]:
            self._windows[key] = windows[key]
            self._users[windows[key]] += 1
            missing |= dict.fromkeys(self._missing_units(windows[key]))
        if len(missing) > 1:
            ahead = [unit for unit in missing if unit not in self._readahead]
            self._request(ahead[1::2] if self._framed else ahead)  # half of the work
        for unit in sorted(missing, key=self._readahead.__contains__):
            self._load(unit)

    def read_ahead(self, windows: dict[Any, Ints]) -> None:
        """Reads the blocks of the next windows in the background, as far as there is memory for them."""
        if self._readahead.has_room:
            for key in [key for key in windows if key not in self._windows]:
                units = self._missing_units(windows[key])
                is_all = self._request(units)
                for unit in units:
                    if unit not in self._readahead:
                        self._forget(unit)
                if not is_all:
                    return

    def _missing_units(self, blocks: Ints) -> list[BlockUnit]:
        """Returns what has to be read of a window, small shards together; of what is read ahead, the same units."""
        blocks = blocks[(self._slot[blocks] < 0) & ~self._uncached[blocks]]
        sizes, joined = self._blocks.size_bytes[blocks].tolist(), self._joined[blocks].tolist()
        together: BlockUnit | None = None
        found: dict[BlockUnit, None] = {}
        for block, size, is_joined in zip(blocks.tolist(), sizes, joined, strict=True):
            unit = self._units.get(block)
            if unit is None and together is not None and is_joined and together.size_bytes + size <= _FRAMES_BYTES:
                together.blocks.append(block)
                together.size_bytes += size
                self._units[block] = together
                continue
            if unit is None:
                unit = self._units[block] = BlockUnit(block, size, is_joined)
                together = unit if is_joined else together
            found[unit] = None
        return list(found)

    def _request(self, units: Iterable[BlockUnit]) -> bool:
        """Begins to read units. Returns False if there is no room for all."""
        for unit in units:
            if unit in self._readahead:
                continue
            estimate = self._estimate(unit)
            # Half of what is free: what is needed now must have room, too.
            if (
                self._cached_bytes + 2 * (self._reserved_bytes + estimate) > self.limit_bytes
                or not self._readahead.has_room
            ):
                return False
            if self._framed:
                unit.memory = self._memory(unit.size_bytes)
                if unit.memory is None:
                    continue
            if not self._readahead.request(unit, unit.memory):
                self._recycle(unit)
                return False
            unit.estimate = estimate
            self._reserve(estimate)
        return True

    def _reserve(self, change_bytes: int) -> None:
        self._reserved_bytes += change_bytes
        self._meter.add_memory(change_bytes)

    def _cancel_readahead(self) -> None:
        """Discards what was read ahead: its memory is needed."""
        for unit in self._readahead.discard():
            self._forget(unit)
        self._reserve(-self._reserved_bytes)

    # ---- blocks

    def _estimate(self, unit: BlockUnit) -> int:
        """Estimates how many bytes a cached unit takes."""
        size = self._piece_bytes(unit.size_bytes)
        if size:
            return size + 8 * (int(self._blocks.count[unit.blocks].sum()) + 1)  # offsets of samples
        return int(unit.size_bytes * self._expansion_ratio) + _OVERHEAD_BYTES

    def _piece_bytes(self, size_bytes: int) -> int:
        """Returns the size of the slab's piece for so many bytes; 0: they get none."""
        needed = size_bytes + _OVERHEAD_BYTES
        if not self._framed or needed > _PIECE_BYTES or len(self._slot) < _SLAB_PIECES:
            return 0
        return max(_SMALLEST_PIECE, 1 << (needed - 1).bit_length())

    def _load(self, unit: BlockUnit) -> None:
        estimate = self._estimate(unit)
        if unit not in self._readahead and self._cached_bytes + self._reserved_bytes + estimate > self.limit_bytes:
            self._cancel_readahead()
            if self._cached_bytes + estimate > self.limit_bytes and not self._must_cache(unit, estimate):
                self._forget(unit)
                return
        batch = self._read_unit(unit)
        if batch is None:  # a file is not as it was: the first that is read by itself says what is wrong
            self._forget(unit)
            for block in unit.blocks:
                self._joined[block] = False
                self._load(BlockUnit(block, int(self._blocks.size_bytes[block])))
            return
        unit.slot = self._free.pop() if self._free else len(self._pool)
        self._pool.put(unit.slot, batch)
        self._units.update(dict.fromkeys(unit.blocks, unit))
        self._slot[unit.blocks] = unit.slot
        if len(unit.blocks) > 1:
            counts = self._blocks.count[unit.blocks]
            self._row[unit.blocks] = np.cumsum(counts) - counts
            self._has_rows = True
        size = self._pool.size_in(unit.slot)
        self._cached_bytes += size
        self._expansion_ratio = max(self._expansion_ratio, size / max(1, unit.size_bytes))
        self._meter.add_memory(size)

    def _must_cache(self, unit: BlockUnit, estimate: int) -> bool:
        """A compressed shard must be cached: its samples cannot be read one by one, as those of others can."""
        shard = int(self._blocks.shard[unit.blocks[0]])
        if self._shards.has(SEEKABLE, np.array([shard]))[0]:
            return False
        if self._cached_bytes + estimate <= self.packed_limit_bytes:
            return True
        in_use = np.flatnonzero((self._users > 0) & ~self._uncached)
        needed = sum(self._estimate(BlockUnit(int(one), int(self._blocks.size_bytes[one]))) for one in in_use)
        raise InputError(
            f"{self._shards.paths[shard]}: a compressed file is kept in memory, decompressed, while its window is in "
            f"use: expected windows of at most {self.packed_limit_bytes:,} bytes, which limits(memory=…) leaves for "
            f"them, got {needed:,}: raise it by at least {needed - self.packed_limit_bytes:,} bytes, lower "
            "shuffle(window=…), or decompress the file"
        )

    def _drop(self, unit: BlockUnit) -> None:
        if unit.slot >= 0:
            size = self._pool.size_in(unit.slot)
            self._pool.drop(unit.slot)
            self._free.append(unit.slot)
            self._slot[unit.blocks] = unit.slot = -1
            self._row[unit.blocks] = 0
            self._cached_bytes -= size
            self._meter.add_memory(-size)
            self._forget(unit)

    def _forget(self, unit: BlockUnit) -> None:
        for block in unit.blocks:
            self._units.pop(block, None)
        unit.estimate = 0
        self._recycle(unit)

    def _recycle(self, unit: BlockUnit) -> None:
        memory, unit.memory = unit.memory, None
        if memory is not None:
            self._spare.setdefault(len(memory), []).append(memory)

    def _read_unit(self, unit: BlockUnit) -> Batch | None:
        """Returns None if files that were to be read together are not as they were."""
        if self._framed:
            frames = self._read_frames(unit)
            return None if frames is None else {_FRAMES: frames}
        [block] = unit.blocks
        if isinstance(self._readahead, DecodeAhead):
            with self._meter.reading(unit.size_bytes):
                ahead = self._readahead.take(unit)
            self._reserve(-unit.estimate)
            unit.estimate = 0
            if ahead is not None:
                return ahead
        shard, first, stop = self._range_of(block)
        with self._shards.use(shard) as opened, self._meter.reading(unit.size_bytes):
            try:
                return opened.read(first, stop, self._shards.schema(shard))
            except DataError:
                if self._read_intact is None:
                    raise
            batch, corrupt = self._read_intact(shard, opened, np.arange(first, stop))
        self.corrupt[block] = corrupt - first
        return batch

    def _read_frames(self, unit: BlockUnit) -> BytesColumn | None:
        if unit in self._readahead:
            with self._meter.reading(unit.size_bytes):
                frames = self._readahead.take(unit)
            self._reserve(-unit.estimate)
            if unit.are_files and frames is not None:
                return self._find_frames(unit, frames)
            if isinstance(frames, BytesColumn) and self._decoder is not None:
                return frames
        if unit.memory is None:
            unit.memory = self._memory(unit.size_bytes)
        if unit.are_files:
            with self._meter.reading(unit.size_bytes):
                memory = new_buffer(unit.size_bytes) if unit.memory is None else unit.memory
                names, expected = self._shards.whole_files(self._blocks.shard[unit.blocks])
                is_read = read_whole_files(names, expected, memory) == unit.size_bytes
                return self._find_frames(unit, memory) if is_read else None
        shard, first, stop = self._range_of(unit.blocks[0])
        with self._shards.use(shard) as opened, self._meter.reading(unit.size_bytes):
            assert isinstance(opened, FramedShard)
            self._decoder = self._decoder or opened.frames_decoder(self._shards.schema(shard))
            return opened.frames(first, stop, unit.memory)

    def _find_frames(self, unit: BlockUnit, memory: Any) -> BytesColumn | None:
        """Returns the samples of whole files in memory. None: they are not where they were."""
        if self._decoder is None:
            shard = int(self._blocks.shard[unit.blocks[0]])
            with self._shards.use(shard) as opened:
                assert isinstance(opened, FramedShard)
                self._decoder = opened.frames_decoder(self._shards.schema(shard))
        counts, sizes = self._blocks.count[unit.blocks], self._blocks.size_bytes[unit.blocks]
        start = front_of(memory, 0)
        offsets = self._decoder.find(memory, start, unit.size_bytes, int(counts.sum()))
        if offsets is None or (offsets[np.cumsum(counts)] != start + np.cumsum(sizes)).any():
            return None
        return BytesColumn(memory, offsets)

    def _range_of(self, block: int) -> tuple[int, int, int]:
        blocks = self._blocks
        return int(blocks.shard[block]), int(blocks.first[block]), int(blocks.first[block] + blocks.count[block])

    def _memory(self, size_bytes: int) -> Any:
        """Returns memory for frames: a spare piece, or one of a new slab. None: they are too many.

        A slab is so large that the kernel gives it in large pages: small ones cost as much as reading into them.
        """
        size = self._piece_bytes(size_bytes)
        if not size:
            spare_bytes = sum(one * len(pieces) for one, pieces in self._spare.items())
            if self._cached_bytes + self._reserved_bytes + size_bytes + spare_bytes > self.limit_bytes:
                self._spare.clear()  # such a block cannot use them, and they must not add to it
            return None
        spare = self._spare.setdefault(size, [])
        if not spare:
            slab = np.empty(_SLAB_PIECES * size, np.uint8)
            spare += [slab[at : at + size] for at in range(0, len(slab), size)]
        return spare.pop()

    def close(self) -> None:
        """Releases everything."""
        self._shards.give_way = lambda: False
        self._readahead.close()
        self._meter.add_memory(-self._cached_bytes - self._reserved_bytes)
        self._cached_bytes = self._reserved_bytes = 0
        self._pool = RowPool()
        self._slot[:] = -1
        self._windows.clear()
        self._users[:] = 0
        self._units.clear()
        self._spare.clear()


# ---- read-ahead
#
# Copying from the kernel is a fifth of the work with small samples, and data from a disk have to be waited for: another
# core can do both. The thread is in C and never takes the GIL: two threads that hand it over for every block lose some
# of what they gain.


class _Request(NamedTuple):
    number: int
    size_bytes: int
    memory: Any
    shard: PlacedShard | None = None  # None: whole files
    samples: tuple[int, int] = (0, 0)  # from the first to after the last
    keeps_open: ExitStack = ExitStack()  # the shard


class Readahead:
    """Reads the next blocks while those before them are used. Without the compiled extension it accepts no request."""

    def __init__(self, shards: ShardSet, blocks: Blocks) -> None:
        self._shards, self._blocks = shards, blocks
        self._reader: Any = None
        self._requests: dict[BlockUnit, _Request] = {}
        self._read: dict[BlockUnit, Any] = {}
        self._max_requests = shards.spare if readahead is not None else 0

    def __contains__(self, unit: object) -> bool:
        return unit in self._requests or unit in self._read

    @property
    def has_room(self) -> bool:
        return len(self._requests) < self._max_requests

    def request(self, unit: BlockUnit, memory: Any) -> bool:
        """Begins to read a unit into `memory`. Returns False if that is not possible."""
        if not self._start():
            return False
        if unit.are_files:
            names, expected = self._shards.whole_files(self._blocks.shard[unit.blocks])
            number = self._reader.begin_files(names, expected, memory, front_of(memory, 0))
            self._requests[unit] = _Request(number, unit.size_bytes, memory)
            return True
        first, count = int(self._blocks.first[unit.blocks[0]]), int(self._blocks.count[unit.blocks[0]])
        with ExitStack() as keeps_open:
            try:
                shard = keeps_open.enter_context(self._shards.use(int(self._blocks.shard[unit.blocks[0]])))
                fill = shard.fill(first, first + count, memory) if isinstance(shard, PlacedShard) else None
                if fill is None:
                    return False
                number = self._reader.begin(fill.fd, fill.offset, memory, fill.first, fill.size)
            except HoldfastError:
                return False  # reading it raises the same error later
            assert isinstance(shard, PlacedShard)
            samples = (first, first + count)
            self._requests[unit] = _Request(number, fill.size, memory, shard, samples, keeps_open.pop_all())
        return True

    def _start(self) -> bool:
        if self._reader is None:
            try:
                self._reader = readahead.Reader()
            except OSError:  # no thread can be started
                self._max_requests = 0
        return self._reader is not None

    def take(self, unit: BlockUnit) -> Any:
        """Waits for a unit; returns its frames, or the memory that its whole files are in. None: not all of it could be
        read; reading it again says why."""
        return self._read.pop(unit) if unit in self._read else self._wait_for(self._requests.pop(unit))

    def _wait_for(self, request: _Request) -> Any:
        with request.keeps_open:
            try:
                is_complete = self._reader.take(request.number) == request.size_bytes
            except OSError:
                is_complete = False
            if not is_complete:
                return None
            return request.memory if request.shard is None else request.shard.filled(*request.samples, request.memory)

    def finish(self) -> bool:
        """Waits for all requests, and releases their files. Returns False if there were none."""
        had_some = bool(self._requests)
        while self._requests:
            unit, request = self._requests.popitem()
            self._read[unit] = self._wait_for(request)
        return had_some

    def discard(self) -> list[BlockUnit]:
        """Waits for all requests; returns all that was read ahead."""
        self.finish()
        read, self._read = self._read, {}
        return list(read)

    def close(self) -> None:
        """Waits for the block that is being read; the others are not begun. Safe to call twice."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        while self._requests:
            with suppress(HoldfastError):  # the shard has changed; nobody uses what was read of it
                self._requests.popitem()[1].keeps_open.close()
        self._read.clear()


def read_whole_files(names: bytes, expected: Ints, memory: Any) -> int:
    """Reads files one after another into memory, as long as they are as expected: each has a size and an mtime. Returns
    how many bytes it read. `names`: each is ended by a 0."""
    start = front_of(memory, 0)
    read_files: Any = getattr(readahead, "read_files", None)
    if read_files is not None:
        try:
            return int(read_files(names, expected, memory, start))
        except OSError:
            return -1
    view, at = memoryview(memory), start
    for name, (size, mtime_ns) in zip(names.split(b"\0"), expected.reshape(-1, 2).tolist(), strict=False):
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return -1
        try:
            info = os.fstat(fd)
            is_same = (info.st_size, info.st_mtime_ns) == (size, mtime_ns)
            if not is_same or fill_from(fd, os.fsdecode(name), 0, view[at : at + size]) < size:
                return -1
        except InputError:
            return -1
        finally:
            os.close(fd)
        at += size
    return at - start
