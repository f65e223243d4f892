"""Samples kept from one epoch to the next, as the functions before left them: in memory or in a file, within a bound.

They are kept pickled: what a user does to a sample later is not done to the kept one, and bytes are counted exactly.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...formats.columns import Ints
from ..order.lanes import Places
from ..settings import Cache
from .item import Item, Sample
from .samples import split_samples

_GONE = b""  # a sample that was filtered out


class _Store(Protocol):
    def write(self, data: bytes) -> Any: ...

    def read(self, where: Any) -> bytes: ...


class _Memory:
    def write(self, data: bytes) -> bytes:
        return data

    def read(self, where: bytes) -> bytes:
        return where


class _File:
    """One file in a folder of its own, which goes with it. Open only while it is used."""

    def __init__(self, parent: str) -> None:
        os.makedirs(parent, exist_ok=True)
        self._folder = tempfile.mkdtemp(prefix="holdfast-cache-", dir=parent)
        self._path = os.path.join(self._folder, "samples")
        self._end = 0
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def write(self, data: bytes) -> tuple[int, int]:
        start = self._end
        with open(self._path, "ab") as file:
            file.write(data)
        self._end += len(data)
        return start, len(data)

    def read(self, where: tuple[int, int]) -> bytes:
        with open(self._path, "rb") as file:
            return os.pread(file.fileno(), where[1], where[0])


@dataclass(slots=True)
class Held:
    """What a cache had of an item: of every row that was wanted, its place among all and its data."""

    places: Places
    kept: Ints
    found: dict[int, Any]


class SampleCache:
    """Keeps what comes until `most_bytes` are full; the rest is made anew every time."""

    def __init__(self, settings: Cache) -> None:
        self._most_bytes = settings.most_bytes
        self._store: _Store = _Memory() if settings.folder is None else _File(settings.folder)
        self._where: dict[tuple[int, int], Any] = {}
        self.size_bytes = 0
        self._lock = threading.Lock()
        self._failed = False

    def __len__(self) -> int:
        return len(self._where)

    def find(self, shard: Ints, sample: Ints) -> dict[int, Any]:
        """Of these samples, by their number in the list, where those are that are kept."""
        where = self._where
        if not where:
            return {}
        pairs = zip(shard.tolist(), sample.tolist(), strict=True)
        return {at: where[pair] for at, pair in enumerate(pairs) if pair in where}

    def merge(self, items: Iterator[Item]) -> Iterator[Item]:
        """Keeps what is new in every item, and puts in what was kept before."""
        for item in items:
            held = item.held
            samples = split_samples(item.rows) if isinstance(item.rows, dict) else item.rows
            own = dict(zip(item.kept.tolist(), samples, strict=True))
            if held is None:
                yield item
                continue
            self._keep_new(item, held, own)
            item.held = None
            yield self._whole(item, held, own)

    def _keep_new(self, item: Item, held: Held, own: dict[int, Sample]) -> None:
        blocks = item.blocks
        shards = blocks.shard[held.places.block].tolist()
        samples = (blocks.first[held.places.block] + held.places.row).tolist()
        with self._lock:
            for at, (shard, sample) in enumerate(zip(shards, samples, strict=True)):
                place = int(held.kept[at])
                if (shard, sample) in self._where or self._failed:
                    continue
                data = pickle.dumps(own[place], protocol=5) if place in own else _GONE
                if self.size_bytes + len(data) > self._most_bytes:
                    return
                try:
                    self._where[shard, sample] = self._store.write(data) if data else None
                except OSError:  # a full disk: what is kept is kept, and reading goes on without more
                    self._failed = True
                    return
                self.size_bytes += len(data)

    def _whole(self, item: Item, held: Held, own: dict[int, Sample]) -> Item:
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
