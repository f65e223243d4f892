"""Caches samples from one epoch to the next, as the functions before left them: in memory or in a file.

Samples are cached pickled: what a user does to a sample later does not change the cached one, and bytes are counted
exactly. Samples that were lost are not cached: every epoch tries them again, and lists them.
"""

from __future__ import annotations

import io
import os
import pickle
import tempfile
import threading
import weakref
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...._util.atomic import pwrite_all
from ...._util.process import call_after_fork
from ...formats.columns import ColumnPickler, Ints, split_samples
from ..options import Cache
from ..order.blocks import SamplePositions
from .run_context import Items, Sample, WorkItem

_FILTERED = b""  # a sample that was filtered out


class _Store(Protocol):
    def write(self, data: bytes) -> Any: ...

    def read(self, where: Any) -> bytes: ...


class _Memory:
    def write(self, data: bytes) -> bytes:
        return data

    def read(self, where: bytes) -> bytes:
        return where


class _CacheFile:
    """A file without a name, so that nothing is left behind however the process ends. Created on the first write."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fd = -1
        self._end = 0

    def write(self, data: bytes) -> tuple[int, int]:
        if self._fd < 0:
            self._create()
        start = self._end
        pwrite_all(self._fd, data, start)
        self._end += len(data)
        return start, len(data)

    def _create(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - open as long as this object lives
        weakref.finalize(self, file.close)
        self._fd = file.fileno()

    def read(self, where: tuple[int, int]) -> bytes:
        return os.pread(self._fd, where[1], where[0])


def _pickled(sample: Sample) -> bytes:
    buffer = io.BytesIO()
    ColumnPickler(buffer, 5).dump(sample)
    return buffer.getvalue()


@dataclass(slots=True)
class CachedSamples:
    """What the cache had of a step.

    positions, row_indices: of all rows that were requested
    found: where the cached ones are stored, by their index among these; None: filtered out
    """

    positions: SamplePositions
    row_indices: Ints
    found: dict[int, Any]


class SampleCache:
    """Caches samples until `max_bytes` are full; the others are made anew every time."""

    def __init__(self, options: Cache) -> None:
        self._options = options
        self._begin()

    def _begin(self) -> None:
        self._store: _Store = _Memory() if self._options.folder is None else _CacheFile(self._options.folder)
        self._where: dict[tuple[int, int], Any] = {}
        self.size_bytes = 0
        self._lock = threading.Lock()
        self._write_failed = False
        call_after_fork(self)

    def after_fork_in_child(self) -> None:
        """Begins a cache of its own: two processes cannot write to one file."""
        self._begin()

    def __len__(self) -> int:
        return len(self._where)

    def find(self, shard: Ints, sample: Ints) -> dict[int, Any]:
        """Finds where cached samples are stored, by their index in the list."""
        where = self._where
        if not where:
            return {}
        pairs = zip(shard.tolist(), sample.tolist(), strict=True)
        return {at: where[pair] for at, pair in enumerate(pairs) if pair in where}

    def merge(self, items: Items) -> Items:
        """Caches what is new in every item, and adds what was cached before."""
        with closing(items):
            for item in items:
                yield self._merged(item)

    def _merged(self, item: WorkItem) -> WorkItem:
        samples = split_samples(item.rows) if isinstance(item.rows, dict) else item.rows
        fresh = dict(zip(item.row_indices.tolist(), samples, strict=True))
        cached, item.cached = item.cached, None
        assert cached is not None
        self._add(item, cached, fresh)
        self._fill_in(item, cached, fresh)
        return item

    def _add(self, item: WorkItem, cached: CachedSamples, fresh: dict[int, Sample]) -> None:
        shards, samples = item.blocks.samples_at(cached.positions)
        lost = set(item.lost_rows)
        with self._lock:
            for at, (shard, sample) in enumerate(zip(shards.tolist(), samples.tolist(), strict=True)):
                row = int(cached.row_indices[at])
                if (shard, sample) in self._where or self._write_failed or row in lost:
                    continue
                data = _pickled(fresh[row]) if row in fresh else _FILTERED
                if self.size_bytes + len(data) > self._options.max_bytes:
                    return
                try:
                    self._where[shard, sample] = self._store.write(data) if data else None
                except OSError:  # a full disk: reading goes on with what is cached
                    self._write_failed = True
                    return
                self.size_bytes += len(data)

    def _fill_in(self, item: WorkItem, cached: CachedSamples, fresh: dict[int, Sample]) -> None:
        rows: list[Sample] = []
        selected: list[int] = []
        for at, row in enumerate(cached.row_indices.tolist()):
            if row in fresh:
                rows.append(fresh[row])
            elif cached.found.get(at) is not None:
                rows.append(pickle.loads(self._store.read(cached.found[at])))
            else:
                continue
            selected.append(at)
        which = np.array(selected, np.int64)
        item.rows = rows
        item.replace(cached.positions[which], cached.row_indices[which])
