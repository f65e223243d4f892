"""Decodes the next blocks while those before them are used, for formats that decode without the interpreter.

Threads share the chunks of a block, and the one that waits for a block helps: all blocks of a window may be requested.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

from ...._native.c_modules import chunks
from ....errors import DataError, HoldfastError
from ...formats.base import AheadShard
from ...formats.columns import Batch
from ..order.blocks import Blocks
from ..sources.catalog import ShardSet

_MAX_THREADS = 4  # beside the one that waits


class _Request(NamedTuple):
    finish: Callable[[], Batch]
    keeps_open: ExitStack  # the shard


class DecodeAhead:
    """Has the methods of Readahead, for blocks without memory of their own."""

    def __init__(self, shards: ShardSet, blocks: Blocks) -> None:
        self._shards, self._blocks = shards, blocks
        self._pool: Any = None
        self._requests: dict[int, _Request] = {}
        self._read: dict[int, Batch | None] = {}
        self._is_able = chunks is not None

    def __contains__(self, block: object) -> bool:
        return block in self._requests or block in self._read

    @property
    def has_room(self) -> bool:
        return self._is_able and len(self._requests) < self._shards.spare

    def request(self, block: int) -> bool:
        """Begins to read a block. Returns False if that is not possible."""
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
            self._requests[block] = _Request(finish, keeps_open.pop_all())
        return True

    def _start(self) -> bool:
        if self._pool is None:
            with suppress(OSError):  # no thread can be started
                self._pool = chunks.Pool(max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)) - 1)))
        return self._pool is not None

    def take(self, block: int) -> Batch | None:
        """Waits for a block, and helps to read it; begins it if nobody has. None: it cannot be read so; reading it
        otherwise says why."""
        if block not in self and not (self._is_able and self.request(block)):
            return None
        return self._read.pop(block) if block in self._read else self._wait_for(self._requests.pop(block))

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
            block = next(iter(self._requests))
            self._read[block] = self._wait_for(self._requests.pop(block))
        return had_some

    def discard(self) -> None:
        """Waits for all requests, and releases what was read ahead."""
        self.finish()
        self._read.clear()
        if self._pool is not None:
            self._pool.trim()

    def close(self) -> None:
        """Waits for the chunks that are being read; the others are not begun. Safe to call twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        while self._requests:
            with suppress(HoldfastError):  # the shard has changed; nobody uses what was read of it
                self._requests.popitem()[1].keeps_open.close()
        self._read.clear()
