"""Samples by number, in the order of the files, as a map-style loader needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..._util.finalize import close_when_collected
from ..formats.columns import split_samples
from .options import Options
from .order.blocks import Blocks, SamplePositions
from .order.dataset_split import picked_rows
from .pipeline.pipeline import Pipeline
from .pipeline.run_context import RunContext, WorkItem
from .sources.catalog import ShardSet
from .sources.file_source import Files
from .stats import Meter, SkippedSamples


class RandomAccess:
    """Reads samples in any thread and any forked child. Files stay open, within the limit, until it is collected."""

    def __init__(self, source: Files, options: Options) -> None:
        inline = tuple(
            replace(function, where="inline", workers=0) for function in options.functions if function.each == "sample"
        )
        self._options = replace(options, functions=inline, batch=None, global_batch=None, cache=None)
        self._source = source
        self._ends = np.cumsum(source.counts())
        self._masks = source.masks()
        self._shards = ShardSet(source.catalogs(), options.open_files, source.schema())
        close_when_collected(self, self._shards.close)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._read(range(*index.indices(len(self))))
        if isinstance(index, (Sequence, np.ndarray)) and not isinstance(index, (str, bytes)):
            return self._read([self._number(one) for one in index])
        return self._read([self._number(index)])[0]

    def _number(self, index: Any) -> int:
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise TypeError(f"expected a sample's number, a slice or a list of them, got {index!r}")
        number = int(index.__index__())
        if not -len(self) <= number < len(self):
            raise IndexError(f"expected a sample from 0 to {len(self) - 1:,}, got {number:,}")
        return number % len(self)

    def _read(self, numbers: Sequence[int]) -> list[Any]:
        found: dict[int, Any] = {}
        unique = np.unique(np.asarray(numbers, np.int64))
        shards = np.searchsorted(self._ends, unique, "right")
        for shard in np.unique(shards).tolist():
            of_shard = unique[shards == shard]
            begin = int(self._ends[shard - 1]) if shard else 0
            in_shard, mask = of_shard - begin, self._masks[shard]
            if mask is not None:
                in_shard = picked_rows(mask, in_shard)
            with self._shards.use(shard) as opened:
                rows = opened.read_rows(in_shard, self._shards.schema(shard))
            found.update(self._transformed(shard, of_shard, in_shard, rows))
        missing = [number for number in numbers if number not in found]
        if missing:
            raise IndexError(f"sample {missing[0]:,} was filtered out, or a function failed on it")
        return [found[number] for number in numbers]

    def _transformed(self, shard: int, numbers: Any, in_shard: Any, rows: Any) -> dict[int, Any]:
        zeros = np.zeros(len(numbers), np.int64)
        item = WorkItem(
            epoch=0,
            start=0,
            done=0,
            positions=SamplePositions(zeros, in_shard),
            row_indices=np.asarray(numbers, np.int64),
            rows=rows,
            blocks=Blocks(np.array([shard]), zeros[:1], zeros[:1], zeros[:1]),
            paths=self._shards.paths,
        )
        losses = SkippedSamples(len(self), self._options.max_corrupt)
        pipeline = Pipeline(self._source.schema(), RunContext(self._options, losses, Meter()))
        [done] = pipeline.run((one for one in (item,)), None)
        samples = split_samples(done.rows) if isinstance(done.rows, dict) else done.rows
        return dict(zip(done.row_indices.tolist(), samples, strict=True))
