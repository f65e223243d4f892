"""Samples of a shard in which some are damaged: all the others, found by halving."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.ma  # np.unique wants it, and a process without a free descriptor can import nothing

from ...errors import DataError
from ...formats.base import Shard
from ...formats.columns import Batch, Ints, rows_of, split_batch, split_samples
from ...formats.gather import empty_batch, gather_rows
from ...schema import Schema
from ..order.blocks import Blocks
from ..order.sharding import Order, Step, StepRange
from ..order.shuffle import SamplePositions
from ..skipped import Losses
from ..sources.catalog import ShardSet
from .block_cache import BlockCache
from .memory_budget import MemoryBudget
from .sample_cache import CachedSamples, SampleCache
from .stats import Meter
from .work_item import Sample, WorkItem


def read_around(shard: Shard, numbers: Ints, schema: Schema) -> tuple[Batch, list[tuple[int, DataError]]]:
    """The samples with these numbers, but for those that cannot be read; and these, each with its error."""
    parts: list[Batch] = []
    damaged: list[tuple[int, DataError]] = []
    _halve(shard, numbers, schema, parts, damaged)
    if not parts:
        return empty_batch(schema), damaged
    sizes = [rows_of(part) for part in parts]
    which = np.repeat(np.arange(len(parts)), sizes)
    row = np.concatenate([np.arange(size) for size in sizes])
    return gather_rows(parts, which, row), damaged


def _halve(
    shard: Shard, numbers: Ints, schema: Schema, parts: list[Batch], damaged: list[tuple[int, DataError]]
) -> None:
    if not len(numbers):
        return
    try:
        parts.append(shard.read_rows(numbers, schema))
    except DataError as error:
        if len(numbers) == 1:
            damaged.append((int(numbers[0]), error))
            return
        half = len(numbers) // 2
        _halve(shard, numbers[:half], schema, parts, damaged)
        _halve(shard, numbers[half:], schema, parts, damaged)


# From places of the order to rows of data.
#
# Blocks of small samples are read whole and held (shelf.py): a step is picked out of all of them. Large samples are
# read one by one when their turn comes: holding them would gain nothing. So are small ones when memory is short,
# which is slower and gives the same rows.

_RUNS_AHEAD = 2  # so far ahead blocks are read; lanes that begin new windows at once need more than the next run
_TOGETHER_BYTES = 1 << 19  # a batch that is kept keeps so much alive
_LARGE_BYTES = 8192  # reading one such sample costs less than its share of a block's copy


class Fetcher:
    """Reads the steps of one epoch, in turn."""

    def __init__(
        self,
        library: ShardSet,
        order: Order,
        schema: Schema,
        *,
        epoch: int,
        room: MemoryBudget,
        losses: Losses,
        meter: Meter,
        skip_corrupt: bool = False,
        cache: SampleCache | None = None,
        as_samples: bool = False,
    ) -> None:
        self._library, self._order, self._schema = library, order, schema
        self._epoch, self._losses, self._meter = epoch, losses, meter
        self._skip, self._cache, self._as_samples = skip_corrupt, cache, as_samples
        self._all_cached = cache is not None and len(cache) >= int(order.wanted.sum())
        self._arange = np.zeros(0, np.int64)
        self._room = room
        self._sample_bytes = int(order.blocks.size_bytes.sum()) // max(1, order.blocks.samples) + 1
        self._shelf = BlockCache(
            library,
            order.blocks,
            self._wanted_singly(order.blocks),
            meter,
            self._read_around if skip_corrupt else None,
        )

    def _wanted_singly(self, blocks: Blocks) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Blocks whose samples are best read one by one, when their turn comes."""
        single, apart = np.zeros((2, len(self._library)), np.bool_)
        for shard in np.unique(blocks.shard).tolist():
            single[shard], apart[shard] = self._library.single(shard), self._library.apart(shard)
        large = blocks.size_bytes >= _LARGE_BYTES * self._order.wanted
        return large & single[blocks.shard] | apart[blocks.shard] | self._all_cached

    # ---- steps

    def steps(self, run: StepRange, rank: int, world: int) -> Iterator[WorkItem]:
        """The rows of these steps. What their windows need and is not held is read first."""
        together = self._steps_together(run)
        self._room.step(together * len(run.steps[0]) * self._sample_bytes)
        order_bytes = self._order.nbytes
        self._shelf.bound_bytes = self._room.for_blocks(order_bytes)
        self._shelf.packed_bytes = self._room.for_packed(order_bytes)
        self._shelf.turn(dict(self._order.windows(run.first, run.stop, rank, world)))
        stop = min(run.stop + _RUNS_AHEAD * (run.stop - run.first), self._order.samples)
        self._shelf.expect(dict(self._order.windows(min(run.stop, stop), stop, rank, world)))
        for at in range(0, len(run.steps), together):
            yield from self._some(run.steps[at : at + together], run.places, at)

    def _steps_together(self, run: StepRange) -> int:
        """Steps that are picked out and decoded in one go: so many that Python's part of it is small."""
        return max(1, _TOGETHER_BYTES // (self._sample_bytes * max(1, len(run.steps[0]))))

    def _some(self, steps: list[Step], all_places: SamplePositions, first: int) -> Iterator[WorkItem]:
        """The same, of a few steps of one length whose rows are all held and whole; else one after the other."""
        size = len(steps[0])
        places = all_places[first * size : (first + len(steps)) * size]
        if len(steps) > 1 and len(places) == len(steps) * size > 0 and not self._shelf.bad and self._cache is None:
            slots = self._shelf.slots(places)
            batch = self._shelf.take(places, slots) if slots.min() >= 0 else None
            if batch is not None:
                kept, epoch, blocks, paths = self._numbers(size), self._epoch, self._order.blocks, self._library.paths
                for step, rows in zip(steps, split_batch(batch, size, len(places)), strict=True):
                    yield WorkItem(epoch, step.start, step.done, step, kept, rows, blocks, paths)
                return
        for step in steps:
            yield self._item(step)

    def _item(self, step: Step) -> WorkItem:
        self._room.trim()
        places, kept = step.places, self._numbers(len(step))
        held = None if self._cache is None else self._held(self._cache, places, kept)
        if held is not None and held.found:
            missing = np.array([at for at in range(len(places)) if at not in held.found], np.int64)
            places, kept = places.at(missing), kept[missing]
        wanted = kept
        if self._shelf.bad:
            places, kept = self._without_bad(places, kept)
        rows, stay = self._rows(places)
        if stay is not None:
            places, kept = places.at(stay), kept[stay]
        item = self._made(step, places, kept, rows, held)
        if len(kept) < len(wanted):
            item.lost = np.setdiff1d(wanted, kept).tolist()
        return item

    def _made(
        self,
        step: Step,
        places: SamplePositions,
        kept: Ints,
        rows: Batch | list[Sample],
        held: CachedSamples | None = None,
    ) -> WorkItem:
        return WorkItem(
            self._epoch, step.start, step.done, places, kept, rows, self._order.blocks, self._library.paths, held=held
        )

    def _rows(self, places: SamplePositions) -> tuple[Batch | list[Sample], Ints | None]:
        """These rows; and which of them could be had, if not all."""
        if not len(places):
            return self._no_rows(), None
        slots = self._shelf.slots(places)
        if slots.min() >= 0:
            batch = self._shelf.take(places, slots)
            if batch is not None:
                return batch, None
        return self._pick(places, slots)

    def _numbers(self, n: int) -> Ints:
        """0 … n-1. Steps have all the same length, but for the last."""
        if len(self._arange) != n:
            self._arange = np.arange(n, dtype=np.int64)
        return self._arange

    def _held(self, cache: SampleCache, places: SamplePositions, kept: Ints) -> CachedSamples:
        """Of a step's rows, those a cache has."""
        blocks = self._order.blocks
        found = cache.find(blocks.shard[places.block], blocks.first[places.block] + places.row)
        return CachedSamples(places, kept, found)

    def _no_rows(self) -> Batch:
        return empty_batch(self._schema)

    # ---- samples that are read when they are wanted

    def _pick(self, places: SamplePositions, slots: Ints) -> tuple[Batch | list[Sample], Ints | None]:
        """These rows, of which some are held and the others are read; and which could be had, if not all."""
        blocks = self._order.blocks
        shard, sample = blocks.shard[places.block], blocks.first[places.block] + places.row
        missing = slots < 0
        held = self._shelf.take(places.at(np.flatnonzero(~missing)), slots[~missing]) if not missing.all() else None
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
        self._room.trim()  # the user has let go of the last batch meanwhile
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
        with self._shelf.use(shard) as opened, self._meter.reading(_sum_bytes(opened, numbers)):
            try:
                return opened.read_rows(numbers, self._library.schema(shard)), numbers[:0]
            except DataError:
                if not self._skip:
                    raise
            return self._read_around(shard, opened, numbers)

    # ---- what cannot be read

    def _read_around(self, shard: int, opened: Shard, numbers: Ints) -> tuple[Batch, Ints]:
        """All but the samples that are damaged, and these, which are noted as lost."""
        batch, damaged = read_around(opened, numbers, self._library.schema(shard))
        for number, error in damaged:
            lost_bytes = opened.bytes_of(number, number + 1)
            self._losses.corrupt(self._library.paths[shard], number, error, lost_bytes)
        return batch, np.array([number for number, _ in damaged], np.int64)

    def _without_bad(self, places: SamplePositions, kept: Ints) -> tuple[SamplePositions, Ints]:
        lost = np.zeros(len(places), np.bool_)
        for block in set(places.block.tolist()) & self._shelf.bad.keys():
            lost |= (places.block == block) & np.isin(places.row, self._shelf.bad[block])
        stay = np.flatnonzero(~lost)
        return places.at(stay), kept[stay]

    def close(self) -> None:
        """Lets go of everything that is held."""
        self._shelf.close()


def _sum_bytes(shard: Shard, numbers: Ints) -> int:
    return sum(shard.bytes_of(n, n + 1) for n in numbers.tolist())
