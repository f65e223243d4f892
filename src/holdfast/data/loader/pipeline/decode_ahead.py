"""Decodes the next blocks while those before them are used, for formats that decode without the interpreter.

Threads share the chunks of a block, and the one that waits for a block helps: all blocks of a window may be requested.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ...._native.c_modules import chunks
from ....errors import DataError, HoldfastError
from ...formats.base import AheadShard
from ...formats.columns import Batch
from ..order.blocks import Blocks
from ..sources.catalog import ShardSet

if TYPE_CHECKING:
    from .block_cache import BlockUnit

_MAX_THREADS = 4  # beside the one that waits


class _Request(NamedTuple):
    finish: Callable[[], Batch]
    keeps_open: ExitStack  # the shard


class DecodeAhead:
    """Has the methods of Readahead, for units of one block, which have no memory of their own."""

    def __init__(self, shards: ShardSet, blocks: Blocks) -> None:
        self._shards, self._blocks = shards, blocks
        self._pool: Any = None
        self._requests: dict[BlockUnit, _Request] = {}
        self._read: dict[BlockUnit, Batch | None] = {}
        self._is_able = chunks is not None

    def __contains__(self, unit: object) -> bool:
        return unit in self._requests or unit in self._read

    @property
    def has_room(self) -> bool:
        return self._is_able and len(self._requests) < self._shards.spare

    def request(self, unit: BlockUnit, memory: None = None) -> bool:
        """Begins to read a block. Returns False if that is not possible."""
        [block] = unit.blocks
        number, first = int(self._blocks.shard[block]), int(self._blocks.first[block])
        with ExitStack() as keeps_open:
            try:
                shard = keeps_open.enter_context(self._shards.use(number))
                if not isinstance(shard, AheadShard) or not self._start():
                    self._is_able = False
                    return False
                stop = first + int(self._blocks.count[block])
                finish = shard.begin(first, stop, self._shards.schema(number), self._pool)
            except HoldfastError:
                return False  # reading it raises the same error later
            self._requests[unit] = _Request(finish, keeps_open.pop_all())
        return True

    def _start(self) -> bool:
        if self._pool is None:
            with suppress(OSError):  # no thread can be started
                self._pool = chunks.Pool(max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)) - 1)))
        return self._pool is not None

    def take(self, unit: BlockUnit) -> Batch | None:
        """Waits for a block, and helps to read it; begins it if nobody has. None: it cannot be read so; reading it
        otherwise says why."""
        if unit not in self and not (self._is_able and self.request(unit)):
            return None
        return self._read.pop(unit) if unit in self._read else self._wait_for(self._requests.pop(unit))

    def _wait_for(self, request: _Request) -> Batch | None:
        with request.keeps_open:
            try:
                return request.finish()
            except DataError:
                return None

    def finish(self) -> bool:
        """Waits for all requests, and releases their files. Returns False if there were none."""
        had_some = bool(self._requests)
        while self._requests:
            unit = next(iter(self._requests))
            self._read[unit] = self._wait_for(self._requests.pop(unit))
        return had_some

    def discard(self) -> list[BlockUnit]:
        """Waits for all requests; returns all that was read ahead."""
        self.finish()
        read, self._read = self._read, {}
        if self._pool is not None:
            self._pool.trim()
        return list(read)

    def close(self) -> None:
        """Waits for the chunks that are being read; the others are not begun. Safe to call twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        while self._requests:
            with suppress(HoldfastError):  # the shard has changed; nobody uses what was read of it
                self._requests.popitem()[1].keeps_open.close()
        self._read.clear()
