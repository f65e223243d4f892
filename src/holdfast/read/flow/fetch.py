"""From places of the order to rows of data, within a bound of memory.

A block of small samples is read whole and kept until its window is passed: decoded, or as it is where the format allows
to put samples together first and decode them then. A step is picked out of all blocks that are held. Large samples are
read one by one when their turn comes: holding them would gain nothing. So are small ones when memory is short, which is
slower and gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.ma  # np.unique wants it, and a process without a free descriptor can import nothing

from ...errors import DataError, InputError
from ...formats.columns import Batch, BytesColumn, Ints, split_batch
from ...formats.empty import empty_batch
from ...formats.gather import RowPool, gather_rows
from ...formats.shard import FramedShard, FramesDecoder, Shard
from ...schema import Schema
from ..order.blocks import Blocks
from ..order.lanes import Places
from ..order.shards import Run, Step
from ..sources.library import Library
from .around import read_around
from .item import Item, Sample
from .keep import Held, SampleCache
from .losses import Losses
from .samples import rows_of, split_samples
from .stats import Meter

_FRAMES = ""  # the one column of blocks that are held undecoded
_SLAB = 8  # blocks
_PIECE_BYTES = 2 << 20
_BESIDE_BYTES = 8192  # what a block takes beside its samples: a page at each end of its buffer
_TOGETHER_BYTES = 1 << 19  # a batch that is kept keeps so much alive
_LARGE_BYTES = 8192  # reading one such sample costs less than its share of a block's copy


class Ordered(Protocol):
    """What a fetcher needs to know of an order."""

    @property
    def blocks(self) -> Blocks: ...

    def windows(self, first: int, stop: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Ints]]: ...


class Fetcher:
    """Reads the steps of one epoch, in turn."""

    def __init__(
        self,
        library: Library,
        order: Ordered,
        schema: Schema,
        *,
        epoch: int,
        memory_bytes: int,
        losses: Losses,
        meter: Meter,
        skip_corrupt: bool = False,
        cache: SampleCache | None = None,
        as_samples: bool = False,
    ) -> None:
        self._library, self._order, self._schema = library, order, schema
        self._epoch, self._bound, self._losses, self._meter = epoch, memory_bytes, losses, meter
        self._skip, self._cache, self._as_samples = skip_corrupt, cache, as_samples
        blocks = order.blocks
        self._large = self._wanted_singly(blocks)
        self._framed = library.framed
        self._decoder: FramesDecoder | None = None
        self._frames: dict[int, BytesColumn] = {}  # of blocks that are held undecoded
        self._spare: list[Any] = []  # their memory, once they are passed: fresh memory costs more than the reading
        self._pool = RowPool()
        self._slot = np.full(len(blocks), -1, np.int64)  # of every block that is held
        self._free: list[int] = []
        self._users: dict[int, int] = {}  # how many windows in use have a block
        self._windows: dict[Any, Ints] = {}
        self._bad: dict[int, Ints] = {}  # rows of a block that are lost
        self._all_cached = cache is not None and len(cache) >= blocks.samples
        self._arange = np.zeros(0, np.int64)
        self._held_bytes = 0
        self._swell = 1.0  # how much larger samples are in memory than on disk

    def _wanted_singly(self, blocks: Blocks) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Blocks whose samples are best read one by one, when their turn comes."""
        single, apart = np.zeros((2, len(self._library)), np.bool_)
        for shard in np.unique(blocks.shard).tolist():
            single[shard], apart[shard] = self._library.single(shard), self._library.apart(shard)
        large = blocks.size_bytes >= _LARGE_BYTES * blocks.count
        return large & single[blocks.shard] | apart[blocks.shard]

    # ---- steps

    def steps(self, run: Run, rank: int, world: int) -> Iterator[Item]:
        """The rows of these steps. What their windows need and is not held is read first."""
        self._turn(dict(self._order.windows(run.first, run.stop, rank, world)))
        together = self._steps_together(run)
        for at in range(0, len(run.steps), together):
            yield from self._some(run.steps[at : at + together], run.places, at)

    def _steps_together(self, run: Run) -> int:
        """Steps that are picked out and decoded in one go: so many that Python's part of it is small."""
        blocks = self._order.blocks
        sample_bytes = int(blocks.size_bytes.sum()) // max(1, blocks.samples) + 1
        return max(1, _TOGETHER_BYTES // (sample_bytes * max(1, len(run.steps[0].places))))

    def _some(self, steps: list[Step], all_places: Places, first: int) -> Iterator[Item]:
        """The same, of a few steps of one length whose rows are all held and whole; else one after the other."""
        size = len(steps[0].places)
        places = all_places[first * size : (first + len(steps)) * size]
        if len(steps) > 1 and len(places) == len(steps) * size > 0 and not self._bad and self._cache is None:
            slots = self._slot[places.block]
            batch = self._decoded(places, slots) if slots.min() >= 0 else None
            if batch is not None:
                for step, rows in zip(steps, split_batch(batch, size, len(places)), strict=True):
                    yield self._made(step, step.places, self._numbers(size), rows)
                return
        for step in steps:
            yield self._item(step)

    def _item(self, step: Step) -> Item:
        places, kept = step.places, self._numbers(len(step.places))
        held = None if self._cache is None else self._held(self._cache, places, kept)
        if held is not None and held.found:
            missing = np.array([at for at in range(len(places)) if at not in held.found], np.int64)
            places, kept = places.at(missing), kept[missing]
        wanted = kept
        if self._bad:
            places, kept = self._without_bad(places, kept)
        rows, stay = self._rows(places)
        if stay is not None:
            places, kept = places.at(stay), kept[stay]
        item = self._made(step, places, kept, rows, held)
        if len(kept) < len(wanted):
            item.lost = np.setdiff1d(wanted, kept).tolist()
        return item

    def _made(
        self, step: Step, places: Places, kept: Ints, rows: Batch | list[Sample], held: Held | None = None
    ) -> Item:
        return Item(
            self._epoch, step.start, step.done, places, kept, rows, self._order.blocks, self._library.paths, held=held
        )

    def _rows(self, places: Places) -> tuple[Batch | list[Sample], Ints | None]:
        """These rows; and which of them could be had, if not all."""
        if not len(places):
            return self._no_rows(), None
        slots = self._slot[places.block]
        if slots.min() >= 0:
            batch = self._decoded(places, slots)
            if batch is not None:
                return batch, None
        return self._pick(places, slots)

    def _decoded(self, places: Places, slots: Ints) -> Batch | None:
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

    def _numbers(self, n: int) -> Ints:
        """0 … n-1. Steps have all the same length, but for the last."""
        if len(self._arange) != n:
            self._arange = np.arange(n, dtype=np.int64)
        return self._arange

    def _held(self, cache: SampleCache, places: Places, kept: Ints) -> Held:
        """Of a step's rows, those a cache has."""
        blocks = self._order.blocks
        found = cache.find(blocks.shard[places.block], blocks.first[places.block] + places.row)
        return Held(places, kept, found)

    def _no_rows(self) -> Batch:
        return empty_batch(self._schema)

    # ---- blocks that are held

    def _turn(self, wanted: dict[Any, Ints]) -> None:
        """Lets go of windows that are passed, then takes in those that begin."""
        for key in self._windows.keys() - wanted.keys():
            for block in self._windows.pop(key).tolist():
                self._users[block] -= 1
                if not self._users[block]:
                    del self._users[block]
                    self._drop(block)
        for key in wanted.keys() - self._windows.keys():
            self._windows[key] = wanted[key]
            for block in wanted[key].tolist():
                self._users[block] = self._users.get(block, 0) + 1
                if self._slot[block] < 0 and not self._large[block] and not self._all_cached:
                    self._load(block)

    def _load(self, block: int) -> None:
        about = int(self._order.blocks.size_bytes[block] * self._swell) + _BESIDE_BYTES
        if self._held_bytes + about > self._bound:
            self._no_room(block, about)
            return
        batch = self._read_block(block)
        slot = self._free.pop() if self._free else len(self._pool)
        self._pool.put(slot, batch)
        self._slot[block] = slot
        size = self._pool.size_in(slot)
        self._held_bytes += size
        self._swell = max(self._swell, size / max(1, int(self._order.blocks.size_bytes[block])))
        self._meter.hold(size)

    def _no_room(self, block: int, about: int) -> None:
        """Its samples are read one by one then. A packed shard has no such way."""
        shard = int(self._order.blocks.shard[block])
        if not self._library.seekable(shard):
            raise InputError(
                f"{self._library.paths[shard]}: it is packed, and takes about {about:,} bytes of memory beside the "
                f"{self._held_bytes:,} in use, which is more than the {self._bound:,} that limits(memory=…) leaves: "
                "raise that, lower shuffle(window=…), or unpack the file"
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
        blocks = self._order.blocks
        shard, first, count = int(blocks.shard[block]), int(blocks.first[block]), int(blocks.count[block])
        with self._library.use(shard) as opened, self._meter.reading(int(blocks.size_bytes[block])):
            if self._framed and isinstance(opened, FramedShard):
                if self._decoder is None:
                    self._decoder = opened.frames_decoder(self._schema)
                frames = opened.frames(first, first + count, self._memory(int(blocks.size_bytes[block])))
                self._frames[block] = frames
                return {_FRAMES: frames}
            try:
                return opened.read(first, first + count, self._schema)
            except DataError:
                if not self._skip:
                    raise
            batch, bad = self._read_around(shard, opened, np.arange(first, first + count))
        self._bad[block] = bad - first
        return batch

    def _memory(self, size_bytes: int) -> Any:
        """Memory for a block's frames: of one that was passed, or a piece of a slab. None: it is no ordinary block.

        A slab is so large that the kernel gives it in large pages: small ones cost as much as reading into them.
        """
        if size_bytes + _BESIDE_BYTES > _PIECE_BYTES or len(self._slot) < _SLAB:
            return None
        if not self._spare:
            slab = np.empty(_SLAB * _PIECE_BYTES, np.uint8)
            self._spare = [slab[at : at + _PIECE_BYTES] for at in range(0, len(slab), _PIECE_BYTES)]
        return self._spare.pop()

    # ---- samples that are read when they are wanted

    def _pick(self, places: Places, slots: Ints) -> tuple[Batch | list[Sample], Ints | None]:
        """These rows, of which some are held and the others are read; and which could be had, if not all."""
        blocks = self._order.blocks
        shard, sample = blocks.shard[places.block], blocks.first[places.block] + places.row
        missing = slots < 0
        held = self._decoded(places.at(np.flatnonzero(~missing)), slots[~missing]) if not missing.all() else None
        if held is None:
            missing[:] = True
        sources: list[Batch] = []
        which, row = np.full(len(places), -1, np.int64), np.zeros(len(places), np.int64)
        for one in np.unique(shard[missing]).tolist():
            at = np.flatnonzero(missing & (shard == one))
            numbers, back = np.unique(sample[at], return_inverse=True)
            batch, bad = self._read_some(one, numbers)
            lost = np.isin(numbers, bad)
            which[at] = np.where(lost[back], -1, len(sources))
            row[at] = (back - np.cumsum(lost)[back]).reshape(-1)
            sources.append(batch)
        if held is not None:
            at = np.flatnonzero(~missing)
            which[at], row[at] = len(sources), np.arange(len(at))
            sources.append(held)
        stay = np.flatnonzero(which >= 0)
        if len(stay) == len(places) and len(sources) == 1 and (row == np.arange(len(row))).all():
            return sources[0], None
        with self._meter.timed("gather"):
            rows = self._put_together(sources, which[stay], row[stay])
        return rows, None if len(stay) == len(places) else stay

    def _put_together(self, sources: list[Batch], which: Ints, row: Ints) -> Batch | list[Sample]:
        if not len(which):
            return self._no_rows()
        # A function that wants samples gets them where they were read; but one that comes twice is two samples.
        if self._as_samples and sum(map(rows_of, sources)) == len(which):
            samples = [split_samples(source) for source in sources]
            return [samples[a][b] for a, b in zip(which.tolist(), row.tolist(), strict=True)]
        return gather_rows(sources, which, row)

    def _read_some(self, shard: int, numbers: Ints) -> tuple[Batch, Ints]:
        with self._library.use(shard) as opened, self._meter.reading(_sum_bytes(opened, numbers)):
            try:
                return opened.read_rows(numbers, self._schema), numbers[:0]
            except DataError:
                if not self._skip:
                    raise
            return self._read_around(shard, opened, numbers)

    # ---- what cannot be read

    def _read_around(self, shard: int, opened: Shard, numbers: Ints) -> tuple[Batch, Ints]:
        """All but the samples that are damaged, and these, which are noted as lost."""
        batch, damaged = read_around(opened, numbers, self._schema)
        for number, error in damaged:
            lost_bytes = opened.bytes_of(number, number + 1)
            self._losses.corrupt(self._library.paths[shard], number, error, lost_bytes)
        return batch, np.array([number for number, _ in damaged], np.int64)

    def _without_bad(self, places: Places, kept: Ints) -> tuple[Places, Ints]:
        lost = np.zeros(len(places), np.bool_)
        for block in set(places.block.tolist()) & self._bad.keys():
            lost |= (places.block == block) & np.isin(places.row, self._bad[block])
        stay = np.flatnonzero(~lost)
        return places.at(stay), kept[stay]

    def _rows_in_slots(self, places: Places) -> Ints:
        """A slot has no rows for what was lost, so those behind move up."""
        if not self._bad:
            return places.row
        row = places.row.copy()
        for block in set(places.block.tolist()) & self._bad.keys():
            here = places.block == block
            row[here] -= np.searchsorted(self._bad[block], row[here])
        return row

    def close(self) -> None:
        """Lets go of everything that is held."""
        self._meter.hold(-self._held_bytes)
        self._held_bytes = 0
        self._pool = RowPool()
        self._slot[:] = -1
        self._windows.clear()
        self._users.clear()
        self._frames.clear()
        self._spare.clear()


def _sum_bytes(shard: Shard, numbers: Ints) -> int:
    return sum(shard.bytes_of(n, n + 1) for n in numbers.tolist())
