"""Caches the blocks of the windows in use, within a limit of memory.

Blocks are cached decoded, or as raw frames where the format can gather samples first and decode them then. Blocks of
the next windows are read ahead, as far as the limit leaves room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ...._native.c_modules import readahead
from ....errors import DataError, HoldfastError, InputError
from ...formats.base import FramedShard, FramesDecoder, PlacedShard, Shard
from ...formats.columns import Batch, BytesColumn, Ints
from ...formats.gather import RowPool
from ..order.blocks import Blocks, SamplePositions
from ..sources.catalog import ShardSet
from ..stats import Meter
from .decode_ahead import DecodeAhead

_FRAMES = ""  # the one column of blocks that are cached as raw frames
_SLAB_BLOCKS = 8
_PIECE_BYTES = 2 << 20
_OVERHEAD_BYTES = 8192  # what a block takes beside its samples: a page at each end of its buffer

ReadIntact = Callable[[int, Shard, Ints], tuple[Batch, Ints]]


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
        self._free: list[int] = []
        self._users: dict[int, int] = {}  # by block: how many windows in use have it
        self._windows: dict[Any, Ints] = {}
        self._framed = shards.framed
        self._decoder: FramesDecoder | None = None
        self._frames: dict[int, BytesColumn] = {}  # of blocks that are cached as raw frames
        self._spare: list[Any] = []  # memory of blocks that are over: fresh memory costs more than reading
        self._readahead: Readahead | DecodeAhead = (Readahead if self._framed else DecodeAhead)(shards, blocks)
        self._reserved: dict[int, int] = {}  # bytes by block, for those that are read ahead
        self._reserved_bytes = 0
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
            for block in self._windows.pop(key).tolist():
                self._users[block] -= 1
                if not self._users[block]:
                    del self._users[block]
                    self._drop(block)
        missing: dict[int, None] = {}
        for key in windows.keys() - self._windows.keys():
            self._windows[key] = windows[key]
            for block in windows[key].tolist():
                self._users[block] = self._users.get(block, 0) + 1
                if self._slot[block] < 0 and not self._uncached[block]:
                    missing[block] = None
        if len(missing) > 1:
            ahead = [block for block in missing if block not in self._readahead]
            self._request(ahead[1::2] if self._framed else ahead)  # half of the work
        for block in sorted(missing, key=self._readahead.__contains__):
            self._load(block)

    def read_ahead(self, windows: dict[Any, Ints]) -> None:
        """Reads the blocks of the next windows in the background, as far as there is memory for them."""
        self._request([block for key in windows if key not in self._windows for block in windows[key].tolist()])

    def _request(self, blocks: list[int]) -> None:
        for block in blocks:
            if self._slot[block] >= 0 or self._uncached[block] or block in self._readahead:
                continue
            estimate = self._estimate(block)
            # Half of what is free: what is needed now must have room, too.
            if (
                self._cached_bytes + 2 * (self._reserved_bytes + estimate) > self.limit_bytes
                or not self._readahead.has_room
            ):
                return
            if isinstance(self._readahead, DecodeAhead):
                if not self._readahead.request(block):
                    return
            else:
                memory = self._memory(int(self._blocks.size_bytes[block]))
                if memory is None:
                    continue
                if not self._readahead.request(block, memory):
                    self._spare.append(memory)
                    return
            self._reserved[block] = estimate
            self._reserve(estimate)

    def _reserve(self, change_bytes: int) -> None:
        self._reserved_bytes += change_bytes
        self._meter.add_memory(change_bytes)

    def _cancel_readahead(self) -> None:
        """Discards what was read ahead: its memory is needed."""
        self._spare += self._readahead.discard() or []
        self._reserved.clear()
        self._reserve(-self._reserved_bytes)

    # ---- blocks

    def _estimate(self, block: int) -> int:
        """Estimates how many bytes a cached block takes."""
        size = int(self._blocks.size_bytes[block])
        if self._is_piece(size):
            return _PIECE_BYTES + 8 * (int(self._blocks.count[block]) + 1)  # and the offset of each sample
        return int(size * self._expansion_ratio) + _OVERHEAD_BYTES

    def _is_piece(self, size_bytes: int) -> bool:
        """Whether a block of this size gets a piece of a slab."""
        return self._framed and size_bytes + _OVERHEAD_BYTES <= _PIECE_BYTES and len(self._slot) >= _SLAB_BLOCKS

    def _load(self, block: int) -> None:
        estimate = self._estimate(block)
        if block not in self._readahead and self._cached_bytes + self._reserved_bytes + estimate > self.limit_bytes:
            self._cancel_readahead()
            if self._cached_bytes + estimate > self.limit_bytes and not self._must_cache(block, estimate):
                return
        batch = self._read_block(block)
        slot = self._free.pop() if self._free else len(self._pool)
        self._pool.put(slot, batch)
        self._slot[block] = slot
        size = self._pool.size_in(slot)
        self._cached_bytes += size
        self._expansion_ratio = max(self._expansion_ratio, size / max(1, int(self._blocks.size_bytes[block])))
        self._meter.add_memory(size)

    def _must_cache(self, block: int, estimate: int) -> bool:
        """A compressed shard must be cached: its samples cannot be read one by one, as those of others can."""
        shard = int(self._blocks.shard[block])
        if self._shards.infos[shard].seekable:
            return False
        if self._cached_bytes + estimate <= self.packed_limit_bytes:
            return True
        needed = sum(self._estimate(one) for one in self._users if not self._uncached[one])
        raise InputError(
            f"{self._shards.paths[shard]}: a compressed file is kept in memory, decompressed, while its window is in "
            f"use: expected windows of at most {self.packed_limit_bytes:,} bytes, which limits(memory=…) leaves for "
            f"them, got {needed:,}: raise it by at least {needed - self.packed_limit_bytes:,} bytes, lower "
            "shuffle(window=…), or decompress the file"
        )

    def _drop(self, block: int) -> None:
        slot = int(self._slot[block])
        if slot < 0:
            return
        size = self._pool.size_in(slot)
        self._pool.drop(slot)
        self._free.append(slot)
        self._slot[block] = -1
        frames = self._frames.pop(block, None)
        if frames is not None and len(frames._values) == _PIECE_BYTES:
            self._spare.append(frames._values)
        self._cached_bytes -= size
        self._meter.add_memory(-size)

    def _read_block(self, block: int) -> Batch:
        if self._framed:
            frames = self._frames[block] = self._read_frames(block)
            return {_FRAMES: frames}
        shard, first, stop = self._range_of(block)
        size = int(self._blocks.size_bytes[block])
        if isinstance(self._readahead, DecodeAhead):
            with self._meter.reading(size):
                ahead = self._readahead.take(block)
            self._reserve(-self._reserved.pop(block, 0))
            if ahead is not None:
                return ahead
        with self.use(shard) as opened, self._meter.reading(size):
            try:
                return opened.read(first, stop, self._shards.schema(shard))
            except DataError:
                if self._read_intact is None:
                    raise
            batch, corrupt = self._read_intact(shard, opened, np.arange(first, stop))
        self.corrupt[block] = corrupt - first
        return batch

    def _read_frames(self, block: int) -> BytesColumn:
        shard, first, stop = self._range_of(block)
        size = int(self._blocks.size_bytes[block])
        memory = None
        if isinstance(self._readahead, Readahead) and block in self._readahead:
            with self._meter.reading(size):
                frames, memory = self._readahead.take(block)
            self._reserve(-self._reserved.pop(block))
            if frames is not None and self._decoder is not None:
                return frames
        with self.use(shard) as opened, self._meter.reading(size):
            assert isinstance(opened, FramedShard)
            if self._decoder is None:
                self._decoder = opened.frames_decoder(self._shards.schema(shard))
            return opened.frames(first, stop, self._memory(size) if memory is None else memory)

    def _range_of(self, block: int) -> tuple[int, int, int]:
        blocks = self._blocks
        return int(blocks.shard[block]), int(blocks.first[block]), int(blocks.first[block] + blocks.count[block])

    @contextmanager
    def use(self, shard: int) -> Iterator[Shard]:
        """Opens a shard for a while. Files that are open for reading ahead give way to it."""
        with ExitStack() as stack:
            try:
                opened = stack.enter_context(self._shards.use(shard))
            except InputError:
                if not self._readahead.finish():
                    raise
                opened = stack.enter_context(self._shards.use(shard))
            yield opened  # errors pass through the shard set, which names the file as the user did

    def _memory(self, size_bytes: int) -> Any:
        """Returns memory for a block's frames: a spare piece, or one of a new slab. None: the block is too large.

        A slab is so large that the kernel gives it in large pages: small ones cost as much as reading into them.
        """
        if not self._is_piece(size_bytes):
            if (
                self._cached_bytes + self._reserved_bytes + size_bytes + len(self._spare) * _PIECE_BYTES
                > self.limit_bytes
            ):
                self._spare.clear()  # such a block cannot use them, and they must not add to it
            return None
        if not self._spare:
            slab = np.empty(_SLAB_BLOCKS * _PIECE_BYTES, np.uint8)
            self._spare = [slab[at : at + _PIECE_BYTES] for at in range(0, len(slab), _PIECE_BYTES)]
        return self._spare.pop()

    def close(self) -> None:
        """Releases everything."""
        self._readahead.close()
        self._meter.add_memory(-self._cached_bytes - self._reserved_bytes)
        self._cached_bytes = self._reserved_bytes = 0
        self._pool = RowPool()
        self._slot[:] = -1
        self._windows.clear()
        self._users.clear()
        self._frames.clear()
        self._spare.clear()


# ---- read-ahead
#
# Copying from the kernel is a fifth of the work with small samples, and data from a disk have to be waited for: another
# core can do both. The thread is in C and never takes the GIL: two threads that hand it over for every block lose some
# of what they gain.


class _Request(NamedTuple):
    number: int
    size_bytes: int
    shard: PlacedShard
    samples: tuple[int, int]  # from the first to after the last
    memory: Any
    keeps_open: ExitStack  # the shard


class Readahead:
    """Reads the next blocks while those before them are used. Without the compiled extension it accepts no request."""

    def __init__(self, shards: ShardSet, blocks: Blocks) -> None:
        self._shards, self._blocks = shards, blocks
        self._reader: Any = None
        self._requests: dict[int, _Request] = {}
        self._read: dict[int, tuple[BytesColumn | None, Any]] = {}
        self._max_requests = shards.spare if readahead is not None else 0

    def __contains__(self, block: object) -> bool:
        return block in self._requests or block in self._read

    @property
    def has_room(self) -> bool:
        return len(self._requests) < self._max_requests

    def request(self, block: int, memory: Any) -> bool:
        """Begins to read a block into `memory`. Returns False if that is not possible."""
        first, count = int(self._blocks.first[block]), int(self._blocks.count[block])
        with ExitStack() as keeps_open:
            try:
                shard = keeps_open.enter_context(self._shards.use(int(self._blocks.shard[block])))
                fill = shard.fill(first, first + count, memory) if isinstance(shard, PlacedShard) else None
                if fill is None or not self._start():
                    return False
                number = self._reader.begin(fill.fd, fill.offset, memory, fill.first, fill.size)
            except HoldfastError:
                return False  # reading it raises the same error later
            samples = (first, first + count)
            kept = keeps_open.pop_all()
            self._requests[block] = _Request(number, fill.size, shard, samples, memory, kept)  # type: ignore[arg-type]
        return True

    def _start(self) -> bool:
        if self._reader is None:
            try:
                self._reader = readahead.Reader()
            except OSError:  # no thread can be started
                self._max_requests = 0
        return self._reader is not None

    def take(self, block: int) -> tuple[BytesColumn | None, Any]:
        """Waits for a block; returns its frames, and the memory they are in. None: not all of it could be read; reading
        it again says why."""
        return self._read.pop(block) if block in self._read else self._wait_for(self._requests.pop(block))

    def _wait_for(self, request: _Request) -> tuple[BytesColumn | None, Any]:
        with request.keeps_open:
            try:
                is_complete = self._reader.take(request.number) == request.size_bytes
            except OSError:
                is_complete = False
            frames = request.shard.filled(*request.samples, request.memory) if is_complete else None
            return frames, request.memory

    def finish(self) -> bool:
        """Waits for all requests, and releases their files. Returns False if there were none."""
        had_some = bool(self._requests)
        while self._requests:
            block, request = self._requests.popitem()
            self._read[block] = self._wait_for(request)
        return had_some

    def discard(self) -> list[Any]:
        """Waits for all requests; returns the memory of all that was read ahead."""
        self.finish()
        read, self._read = self._read, {}
        return [memory for _, memory in read.values()]

    def close(self) -> None:
        """Waits for the block that is being read; the others are not begun. Safe to call twice."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        while self._requests:
            with suppress(HoldfastError):  # the shard has changed; nobody uses what was read of it
                self._requests.popitem()[1].keeps_open.close()
        self._read.clear()
