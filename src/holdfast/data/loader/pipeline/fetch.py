"""Reads the rows of the order's steps.

Blocks of small samples are read as a whole and cached, and a step is gathered out of all of them. Large samples are
read one by one when their turn comes: caching them would gain nothing. So are small ones when memory is short, which is
slower and gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.ma  # np.unique needs it, and a process without a free descriptor can import nothing

from ....errors import DataError
from ....schema import Schema
from ...formats.base import Shard
from ...formats.columns import Batch, Ints, rows_of, split_batch, split_samples
from ...formats.gather import empty_batch, gather_rows
from ..order.blocks import Blocks, SamplePositions
from ..order.sharding import Order, Step, StepRange
from ..sources.catalog import FILES, SINGLE, ShardSet
from .block_cache import BlockCache
from .run_context import RunContext, Sample, WorkItem
from .sample_cache import CachedSamples, SampleCache

_RANGES_AHEAD = 2  # how far ahead blocks are read; lanes that begin new windows at once need more than the next range
_TOGETHER_BYTES = 1 << 19  # a batch that the user keeps keeps so much alive
_LARGE_BYTES = 8192  # reading one such sample costs less than its share of a block's copy


class Fetcher:
    """Reads the steps of one epoch, one after the other."""

    def __init__(
        self,
        shards: ShardSet,
        order: Order,
        schema: Schema,
        context: RunContext,
        *,
        epoch: int,
        cache: SampleCache | None = None,
    ) -> None:
        self._shards, self._order, self._schema = shards, order, schema
        self._epoch, self._sample_cache = epoch, cache
        self._losses, self._meter, self._budget = context.losses, context.meter, context.budget
        options = context.options
        self._skip_corrupt = options.on_corrupt != "raise"
        self._as_samples = bool(options.functions) and options.functions[0].each == "sample"
        self._all_cached = cache is not None and len(cache) >= int(order.block_samples.sum())
        self._arange = np.zeros(0, np.int64)
        self._sample_bytes = int(order.blocks.size_bytes.sum()) // max(1, order.blocks.samples) + 1
        self._block_cache = BlockCache(
            shards,
            order.blocks,
            self._find_uncached(order.blocks),
            self._meter,
            self._read_intact if self._skip_corrupt else None,
        )

    def _find_uncached(self, blocks: Blocks) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Finds blocks whose samples are best read one by one, when their turn comes."""
        large = blocks.size_bytes >= _LARGE_BYTES * self._order.block_samples
        single, apart = (self._shards.has(flag, blocks.shard) for flag in (SINGLE, FILES))
        return large & single | apart | self._all_cached

    # ---- steps

    def fetch(self, steps: StepRange, rank: int, world: int) -> Iterator[WorkItem]:
        """Yields the rows of these steps. Blocks of their windows that are not cached are read first."""
        together = self._steps_together(steps)
        self._budget.note_step(together * len(steps.steps[0]) * self._sample_bytes)
        order_bytes = self._order.nbytes
        self._block_cache.limit_bytes = self._budget.block_bytes(order_bytes)
        self._block_cache.packed_limit_bytes = self._budget.packed_block_bytes(order_bytes)
        self._block_cache.begin_windows(dict(self._order.windows(steps.first, steps.stop, rank, world)))
        stop = min(steps.stop + _RANGES_AHEAD * (steps.stop - steps.first), self._order.samples)
        self._block_cache.read_ahead(dict(self._order.windows(min(steps.stop, stop), stop, rank, world)))
        for at in range(0, len(steps.steps), together):
            yield from self._fetch_some(steps.steps[at : at + together], steps.positions, at)

    def _steps_together(self, steps: StepRange) -> int:
        """How many steps are gathered and decoded in one go: so many that Python's part of the work is small."""
        return max(1, _TOGETHER_BYTES // (self._sample_bytes * max(1, len(steps.steps[0]))))

    def _fetch_some(self, steps: list[Step], all_positions: SamplePositions, first: int) -> Iterator[WorkItem]:
        """Gathers a few steps of one length at once if all their rows are cached; else one after the other."""
        size = len(steps[0])
        positions = all_positions[first * size : (first + len(steps)) * size]
        if (
            len(steps) > 1
            and len(positions) == len(steps) * size > 0
            and not self._block_cache.corrupt
            and self._sample_cache is None
        ):
            slots = self._block_cache.slots(positions)
            batch = self._block_cache.take(positions, slots) if slots.min() >= 0 else None
            if batch is not None:
                row_indices, blocks, paths = self._range(size), self._order.blocks, self._shards.paths
                for step, rows in zip(steps, split_batch(batch, size, len(positions)), strict=True):
                    yield WorkItem(self._epoch, step.start, step.done, step, row_indices, rows, blocks, paths)
                return
        for step in steps:
            yield self._fetch_one(step)

    def _fetch_one(self, step: Step) -> WorkItem:
        self._budget.trim()
        positions, row_indices = step.positions, self._range(len(step))
        cached = None if self._sample_cache is None else self._find_cached(self._sample_cache, positions, row_indices)
        if cached is not None and cached.found:
            missing = np.array([at for at in range(len(positions)) if at not in cached.found], np.int64)
            positions, row_indices = positions[missing], row_indices[missing]
        requested = row_indices
        if self._block_cache.corrupt:
            positions, row_indices = self._without_corrupt(positions, row_indices)
        rows, selected = self._rows(positions)
        if selected is not None:
            positions, row_indices = positions[selected], row_indices[selected]
        blocks, paths = self._order.blocks, self._shards.paths
        item = WorkItem(self._epoch, step.start, step.done, positions, row_indices, rows, blocks, paths, cached)
        if len(row_indices) < len(requested):
            item.lost_rows = np.setdiff1d(requested, row_indices).tolist()
        return item

    def _rows(self, positions: SamplePositions) -> tuple[Batch | list[Sample], Ints | None]:
        """Returns these rows; and which of them could be read, if not all."""
        if not len(positions):
            return empty_batch(self._schema), None
        slots = self._block_cache.slots(positions)
        if slots.min() >= 0:
            batch = self._block_cache.take(positions, slots)
            if batch is not None:
                return batch, None
        return self._pick(positions, slots)

    def _range(self, n: int) -> Ints:
        """Returns 0 … n-1. All steps but the last have one length."""
        if len(self._arange) != n:
            self._arange = np.arange(n, dtype=np.int64)
        return self._arange

    def _find_cached(self, cache: SampleCache, positions: SamplePositions, row_indices: Ints) -> CachedSamples:
        """Looks up which of a step's rows the sample cache has."""
        found = cache.find(*self._order.blocks.samples_at(positions))
        return CachedSamples(positions, row_indices, found)

    # ---- samples that are read one by one

    def _pick(self, positions: SamplePositions, slots: Ints) -> tuple[Batch | list[Sample], Ints | None]:
        """Returns these rows, some from the cache and the others read; and which could be read, if not all."""
        shard, sample = self._order.blocks.samples_at(positions)
        missing = slots < 0
        cached = None
        if not missing.all():
            cached = self._block_cache.take(positions[np.flatnonzero(~missing)], slots[~missing])
        if cached is None:
            missing[:] = True
        sources: list[Batch] = []
        which, row = np.full(len(positions), -1, np.int64), np.zeros(len(positions), np.int64)
        for one in np.unique(shard[missing]).tolist():
            at = np.flatnonzero(missing & (shard == one))
            numbers, back = np.unique(sample[at], return_inverse=True)
            batch, corrupt = self._read_samples(one, numbers)
            lost = np.isin(numbers, corrupt)
            which[at] = np.where(lost[back], -1, len(sources))
            row[at] = (back - np.cumsum(lost)[back]).reshape(-1)
            sources.append(batch)
        if cached is not None:
            at = np.flatnonzero(~missing)
            which[at], row[at] = len(sources), np.arange(len(at))
            sources.append(cached)
        selected = np.flatnonzero(which >= 0)
        if len(selected) == len(positions) and len(sources) == 1 and (row == np.arange(len(row))).all():
            return sources[0], None
        self._budget.trim()  # the user has released the last batch meanwhile
        with self._meter.timed("gather"):
            rows = self._gather(sources, which[selected], row[selected])
        return rows, None if len(selected) == len(positions) else selected

    def _gather(self, sources: list[Batch], which: Ints, row: Ints) -> Batch | list[Sample]:
        if not len(which):
            return empty_batch(self._schema)
        # A function of samples gets them where they were read; but one that comes twice must be two samples.
        if self._as_samples and sum(map(rows_of, sources)) == len(which):
            samples = [split_samples(source) for source in sources]
            return [samples[a][b] for a, b in zip(which.tolist(), row.tolist(), strict=True)]
        return gather_rows(sources, which, row)

    def _read_samples(self, shard: int, numbers: Ints) -> tuple[Batch, Ints]:
        with self._shards.use(shard) as opened, self._meter.reading(_sum_bytes(opened, numbers)):
            try:
                return opened.read_rows(numbers, self._shards.schema(shard)), numbers[:0]
            except DataError:
                if not self._skip_corrupt:
                    raise
            return self._read_intact(shard, opened, numbers)

    # ---- corrupt samples

    def _read_intact(self, shard: int, opened: Shard, numbers: Ints) -> tuple[Batch, Ints]:
        """Reads all but the corrupt samples, and returns these numbers too, which are noted as lost."""
        batch, corrupt = read_intact(opened, numbers, self._shards.schema(shard))
        for number, error in corrupt:
            lost_bytes = opened.bytes_of(number, number + 1)
            self._losses.add_corrupt(self._shards.paths[shard], number, error, lost_bytes)
        return batch, np.array([number for number, _ in corrupt], np.int64)

    def _without_corrupt(self, positions: SamplePositions, row_indices: Ints) -> tuple[SamplePositions, Ints]:
        lost = np.zeros(len(positions), np.bool_)
        for block in set(positions.block.tolist()) & self._block_cache.corrupt.keys():
            lost |= (positions.block == block) & np.isin(positions.row, self._block_cache.corrupt[block])
        selected = np.flatnonzero(~lost)
        return positions[selected], row_indices[selected]

    def close(self) -> None:
        """Releases all cached blocks."""
        self._block_cache.close()


def _sum_bytes(shard: Shard, numbers: Ints) -> int:
    return sum(shard.bytes_of(n, n + 1) for n in numbers.tolist())


def read_intact(shard: Shard, numbers: Ints, schema: Schema) -> tuple[Batch, list[tuple[int, DataError]]]:
    """Reads the samples with these numbers except corrupt ones, found by halving; returns these with their errors."""
    parts: list[Batch] = []
    corrupt: list[tuple[int, DataError]] = []
    _read_halves(shard, numbers, schema, parts, corrupt)
    if not parts:
        return empty_batch(schema), corrupt
    sizes = [rows_of(part) for part in parts]
    which = np.repeat(np.arange(len(parts)), sizes)
    row = np.concatenate([np.arange(size) for size in sizes])
    return gather_rows(parts, which, row), corrupt


def _read_halves(
    shard: Shard, numbers: Ints, schema: Schema, parts: list[Batch], corrupt: list[tuple[int, DataError]]
) -> None:
    if not len(numbers):
        return
    try:
        parts.append(shard.read_rows(numbers, schema))
    except DataError as error:
        if len(numbers) == 1:
            corrupt.append((int(numbers[0]), error))
            return
        half = len(numbers) // 2
        _read_halves(shard, numbers[:half], schema, parts, corrupt)
        _read_halves(shard, numbers[half:], schema, parts, corrupt)
