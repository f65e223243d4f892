"""Blocks that are held until their window is passed, within a bound of memory.

They are held decoded, or as they are where the format allows to put samples together first and decode them then. Those
of windows to come are read beforehand, as far as the bound leaves room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from ...errors import DataError, InputError
from ...formats.base import FramedShard, FramesDecoder, Shard
from ...formats.columns import Batch, BytesColumn, Ints
from ...formats.gather import RowPool
from ..order.blocks import Blocks
from ..order.shuffle import SamplePositions
from ..sources.catalog import ShardSet
from .readahead import Readahead
from .stats import Meter

_FRAMES = ""  # the one column of blocks that are held undecoded
_SLAB = 8  # blocks
_PIECE_BYTES = 2 << 20
_BESIDE_BYTES = 8192  # what a block takes beside its samples: a page at each end of its buffer

ReadAround = Callable[[int, Shard, Ints], tuple[Batch, Ints]]


class BlockCache:
    """`singly`: blocks that are not to be held. `read_around`, if given, reads all but what is damaged."""

    def __init__(
        self,
        library: ShardSet,
        blocks: Blocks,
        singly: np.ndarray[tuple[int], np.dtype[np.bool_]],
        meter: Meter,
        read_around: ReadAround | None,
    ) -> None:
        self._library, self._blocks, self._meter = library, blocks, meter
        self._singly, self._read_around = singly, read_around
        self.bound_bytes = 0  # what may be held; its owner says how much that is now
        self.packed_bytes = 0  # and with a packed shard among it
        self.bad: dict[int, Ints] = {}  # rows of a block that are lost
        self._pool = RowPool()
        self._slot = np.full(len(blocks), -1, np.int64)  # of every block that is held
        self._free: list[int] = []
        self._users: dict[int, int] = {}  # how many windows in use have a block
        self._windows: dict[Any, Ints] = {}
        self._framed = library.framed
        self._decoder: FramesDecoder | None = None
        self._frames: dict[int, BytesColumn] = {}  # of blocks that are held undecoded
        self._spare: list[Any] = []  # their memory, once they are passed: fresh memory costs more than the reading
        self._beforehand = Readahead(library, blocks)
        self._promised: dict[int, int] = {}  # bytes, to blocks that are being read beforehand
        self._promised_bytes = 0  # all of them
        self._held_bytes = 0
        self._swell = 1.0  # how much larger samples are in memory than on disk

    # ---- what is held

    def slots(self, places: SamplePositions) -> Ints:
        """Where each is; -1: it is not held."""
        return self._slot[places.block]

    def take(self, places: SamplePositions, slots: Ints) -> Batch | None:
        """Rows that are all held. None: something is wrong with one of them."""
        start = perf_counter()
        rows = self._pool.take(slots, self._rows_in_slots(places))
        gathered = perf_counter()
        self._meter.add("gather", gathered - start)
        if self._decoder is None:
            return rows
        batch = self._decoder.decode(rows[_FRAMES])  # type: ignore[arg-type]
        self._meter.decoded(perf_counter() - gathered)
        return batch

    def _rows_in_slots(self, places: SamplePositions) -> Ints:
        """A slot has no rows for what was lost, so those behind move up."""
        if not self.bad:
            return places.row
        row = places.row.copy()
        for block in set(places.block.tolist()) & self.bad.keys():
            here = places.block == block
            row[here] -= np.searchsorted(self.bad[block], row[here])
        return row

    # ---- windows begin and end

    def turn(self, wanted: dict[Any, Ints]) -> None:
        """Lets go of windows that are passed, then takes in those that begin."""
        for key in self._windows.keys() - wanted.keys():
            for block in self._windows.pop(key).tolist():
                self._users[block] -= 1
                if not self._users[block]:
                    del self._users[block]
                    self._drop(block)
        missing: dict[int, None] = {}
        for key in wanted.keys() - self._windows.keys():
            self._windows[key] = wanted[key]
            for block in wanted[key].tolist():
                self._users[block] = self._users.get(block, 0) + 1
                if self._slot[block] < 0 and not self._singly[block]:
                    missing[block] = None
        if len(missing) > 1:
            self._wish([block for block in missing if block not in self._beforehand][1::2])  # half of the work
        for block in sorted(missing, key=self._beforehand.__contains__):
            self._load(block)

    def expect(self, coming: dict[Any, Ints]) -> None:
        """These windows are next: their blocks are read meanwhile, as far as there is memory for them."""
        self._wish([block for key in coming if key not in self._windows for block in coming[key].tolist()])

    def _wish(self, wanted: list[int]) -> None:
        for block in wanted if self._framed else []:
            if self._slot[block] >= 0 or self._singly[block] or block in self._beforehand:
                continue
            about = self._about(block)
            # Half of what is free: what is wanted now must have room, too.
            if (
                self._held_bytes + 2 * (self._promised_bytes + about) > self.bound_bytes
                or not self._beforehand.has_room
            ):
                return
            memory = self._memory(int(self._blocks.size_bytes[block]))
            if memory is None:
                continue
            if not self._beforehand.wish(block, memory):
                self._spare.append(memory)
                return
            self._promised[block] = about
            self._count_promise(about)

    def _count_promise(self, change_bytes: int) -> None:
        self._promised_bytes += change_bytes
        self._meter.hold(change_bytes)

    def _unwish(self) -> None:
        """What was read beforehand is forgotten: its memory is needed."""
        self._spare += self._beforehand.forget()
        self._promised.clear()
        self._count_promise(-self._promised_bytes)

    # ---- blocks come and go

    def _about(self, block: int) -> int:
        """What holding it takes, in bytes."""
        size = int(self._blocks.size_bytes[block])
        if self._is_piece(size):
            return _PIECE_BYTES + 8 * (int(self._blocks.count[block]) + 1)  # and where each sample begins
        return int(size * self._swell) + _BESIDE_BYTES

    def _is_piece(self, size_bytes: int) -> bool:
        """Whether it has a piece of a slab for itself."""
        return self._framed and size_bytes + _BESIDE_BYTES <= _PIECE_BYTES and len(self._slot) >= _SLAB

    def _load(self, block: int) -> None:
        about = self._about(block)
        if block not in self._beforehand and self._held_bytes + self._promised_bytes + about > self.bound_bytes:
            self._unwish()
            if self._held_bytes + about > self.bound_bytes and not self._must_hold(block, about):
                return
        batch = self._read_block(block)
        slot = self._free.pop() if self._free else len(self._pool)
        self._pool.put(slot, batch)
        self._slot[block] = slot
        size = self._pool.size_in(slot)
        self._held_bytes += size
        self._swell = max(self._swell, size / max(1, int(self._blocks.size_bytes[block])))
        self._meter.hold(size)

    def _must_hold(self, block: int, about: int) -> bool:
        """A packed shard is held: its samples cannot be read one by one, as those of others are then."""
        shard = int(self._blocks.shard[block])
        if self._library.seekable(shard):
            return False
        if self._held_bytes + about <= self.packed_bytes:
            return True
        needed = sum(self._about(one) for one in self._users if not self._singly[one])
        raise InputError(
            f"{self._library.paths[shard]}: it is packed, so it is held unpacked as long as its window is in use: "
            f"expected windows of at most {self.packed_bytes:,} bytes, which limits(memory=…) leaves for them, got "
            f"{needed:,}: raise it by at least {needed - self.packed_bytes:,} bytes, lower shuffle(window=…), or "
            "unpack the file"
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
        self._held_bytes -= size
        self._meter.hold(-size)

    def _read_block(self, block: int) -> Batch:
        if self._framed:
            frames = self._frames[block] = self._read_frames(block)
            return {_FRAMES: frames}
        shard, first, stop = self._run_of(block)
        with self.use(shard) as opened, self._meter.reading(int(self._blocks.size_bytes[block])):
            try:
                return opened.read(first, stop, self._library.schema(shard))
            except DataError:
                if self._read_around is None:
                    raise
            batch, bad = self._read_around(shard, opened, np.arange(first, stop))
        self.bad[block] = bad - first
        return batch

    def _read_frames(self, block: int) -> BytesColumn:
        shard, first, stop = self._run_of(block)
        size = int(self._blocks.size_bytes[block])
        memory = None
        if block in self._beforehand:
            with self._meter.reading(size):
                frames, memory = self._beforehand.take(block)
            self._count_promise(-self._promised.pop(block))
            if frames is not None and self._decoder is not None:
                return frames
        with self.use(shard) as opened, self._meter.reading(size):
            assert isinstance(opened, FramedShard)
            if self._decoder is None:
                self._decoder = opened.frames_decoder(self._library.schema(shard))
            return opened.frames(first, stop, self._memory(size) if memory is None else memory)

    def _run_of(self, block: int) -> tuple[int, int, int]:
        blocks = self._blocks
        return int(blocks.shard[block]), int(blocks.first[block]), int(blocks.first[block] + blocks.count[block])

    @contextmanager
    def use(self, shard: int) -> Iterator[Shard]:
        """A shard, open for a while. Files that are kept open for what is read beforehand give way to it."""
        with ExitStack() as stack:
            try:
                opened = stack.enter_context(self._library.use(shard))
            except InputError:
                if not self._beforehand.settle():
                    raise
                opened = stack.enter_context(self._library.use(shard))
            yield opened  # what goes wrong with it is told to the library, which names it as the user did

    def _memory(self, size_bytes: int) -> Any:
        """Memory for a block's frames: of one that was passed, or a piece of a slab. None: it is no ordinary block.

        A slab is so large that the kernel gives it in large pages: small ones cost as much as reading into them.
        """
        if not self._is_piece(size_bytes):
            if (
                self._held_bytes + self._promised_bytes + size_bytes + len(self._spare) * _PIECE_BYTES
                > self.bound_bytes
            ):
                self._spare.clear()  # such a block cannot use them: they must not stand beside it
            return None
        if not self._spare:
            slab = np.empty(_SLAB * _PIECE_BYTES, np.uint8)
            self._spare = [slab[at : at + _PIECE_BYTES] for at in range(0, len(slab), _PIECE_BYTES)]
        return self._spare.pop()

    def close(self) -> None:
        """Lets go of everything that is held."""
        self._beforehand.close()
        self._meter.hold(-self._held_bytes - self._promised_bytes)
        self._held_bytes = self._promised_bytes = 0
        self._pool = RowPool()
        self._slot[:] = -1
        self._windows.clear()
        self._users.clear()
        self._frames.clear()
        self._spare.clear()
