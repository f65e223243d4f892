"""Samples kept from one epoch to the next, as the functions before left them: in memory or in a file, within a bound.

They are kept pickled: what a user does to a sample later is not done to the kept one, and bytes are counted exactly.
What was lost is not kept: every epoch tries it again, and lists it.
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

from ..._util.process import call_after_fork
from ...formats.columns import ColumnPickler, Ints, split_samples
from ..options import Cache
from ..order.shuffle import SamplePositions
from .work_item import Items, Sample, WorkItem

_GONE = b""  # a sample that was filtered out


class _Store(Protocol):
    def write(self, data: bytes) -> Any: ...

    def read(self, where: Any) -> bytes: ...


class _Memory:
    def write(self, data: bytes) -> bytes:
        return data

    def read(self, where: bytes) -> bytes:
        return where


class _CacheFile:
    """A file without a name, so that nothing is left however the process ends. Made when it is first needed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fd = -1
        self._end = 0

    def write(self, data: bytes) -> tuple[int, int]:
        if self._fd < 0:
            self._make()
        start, left = self._end, memoryview(data)
        while left:
            n = os.pwrite(self._fd, left, start + len(data) - len(left))
            left = left[n:]
        self._end += len(data)
        return start, len(data)

    def _make(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - open as long as this is there
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
    """What a cache had of an item: of every row that was expected, its place among all and its data."""

    places: SamplePositions
    kept: Ints
    found: dict[int, Any]


class SampleCache:
    """Keeps what comes until `most_bytes` are full; the rest is made anew every time."""

    def __init__(self, settings: Cache) -> None:
        self._settings = settings
        self._most_bytes = settings.most_bytes
        self._begin()

    def _begin(self) -> None:
        self._store: _Store = _Memory() if self._settings.folder is None else _CacheFile(self._settings.folder)
        self._where: dict[tuple[int, int], Any] = {}
        self.size_bytes = 0
        self._lock = threading.Lock()
        self._failed = False
        call_after_fork(self)

    def after_fork_in_child(self) -> None:
        """A file that two processes write to is no use to either: a child has its own."""
        self._begin()

    def __len__(self) -> int:
        return len(self._where)

    def find(self, shard: Ints, sample: Ints) -> dict[int, Any]:
        """Of these samples, by their number in the list, where those are that are kept."""
        where = self._where
        if not where:
            return {}
        pairs = zip(shard.tolist(), sample.tolist(), strict=True)
        return {at: where[pair] for at, pair in enumerate(pairs) if pair in where}

    def merge(self, items: Items) -> Items:
        """Keeps what is new in every item, and puts in what was kept before."""
        with closing(items):
            for item in items:
                yield self._merged(item)

    def _merged(self, item: WorkItem) -> WorkItem:
        samples = split_samples(item.rows) if isinstance(item.rows, dict) else item.rows
        own = dict(zip(item.kept.tolist(), samples, strict=True))
        held, item.held = item.held, None
        self._keep_new(item, held, own)
        return self._whole(item, held, own)

    def _keep_new(self, item: WorkItem, held: CachedSamples, own: dict[int, Sample]) -> None:
        blocks = item.blocks
        shards = blocks.shard[held.places.block].tolist()
        samples = (blocks.first[held.places.block] + held.places.row).tolist()
        lost = set(item.lost)
        with self._lock:
            for at, (shard, sample) in enumerate(zip(shards, samples, strict=True)):
                place = int(held.kept[at])
                if (shard, sample) in self._where or self._failed or place in lost:
                    continue
                data = _pickled(own[place]) if place in own else _GONE
                if self.size_bytes + len(data) > self._most_bytes:
                    return
                try:
                    self._where[shard, sample] = self._store.write(data) if data else None
                except OSError:  # a full disk: what is kept is kept, and reading goes on without more
                    self._failed = True
                    return
                self.size_bytes += len(data)

    def _whole(self, item: WorkItem, held: CachedSamples, own: dict[int, Sample]) -> WorkItem:
        rows: list[Sample] = []
        stay: list[int] = []
        for at, place in enumerate(held.kept.tolist()):
            if place in own:
                rows.append(own[place])
            elif held.found.get(at) is not None:
                rows.append(pickle.loads(self._store.read(held.found[at])))
            else:
                continue
            stay.append(at)
        which = np.array(stay, np.int64)
        item.rows, item.places, item.kept = rows, held.places.at(which), held.kept[which]
        return item
