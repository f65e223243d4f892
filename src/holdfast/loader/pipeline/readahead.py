"""Reads the next blocks in a background thread while those before them are used.

Copying from the kernel is a fifth of the work with small samples, and data from a disk have to be waited for: another
core can do both. The thread is in C and never takes the GIL: two threads that hand it over for every block lose some of
what they gain.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

from ..._native.c_modules import readahead
from ...errors import HoldfastError
from ...formats.base import PlacedShard
from ...formats.columns import BytesColumn
from ..order.blocks import Blocks
from ..sources.catalog import ShardSet


class _Request(NamedTuple):
    number: int
    size_bytes: int
    shard: PlacedShard
    samples: tuple[int, int]  # from the first to after the last
    memory: Any
    keeps_open: ExitStack  # the shard


class Readahead:
    """Used by one thread. Without the compiled extension it accepts no request."""

    def __init__(self, shards: ShardSet, blocks: Blocks) -> None:
        self._shards, self._blocks = shards, blocks
        self._reader: Any = None
        self._requests: dict[int, _Request] = {}
        self._read: dict[int, tuple[BytesColumn | None, Any]] = {}
        self._max_requests = shards.spare if readahead is not None else 0

    def __contains__(self, block: object) -> bool:
        return block in self._requests or block in self._read

    @property
    def has_room(self) -> bool:
        return len(self._requests) < self._max_requests

    def request(self, block: int, memory: Any) -> bool:
        """Begins to read a block into `memory`. Returns False if that is not possible."""
        first, count = int(self._blocks.first[block]), int(self._blocks.count[block])
        with ExitStack() as keeps_open:
            try:
                shard = keeps_open.enter_context(self._shards.use(int(self._blocks.shard[block])))
                fill = shard.fill(first, first + count, memory) if isinstance(shard, PlacedShard) else None
                if fill is None or not self._start():
                    return False
                number = self._reader.begin(fill.fd, fill.offset, memory, fill.first, fill.size)
            except HoldfastError:
                return False  # reading it raises the same error later
            samples = (first, first + count)
            kept = keeps_open.pop_all()
            self._requests[block] = _Request(number, fill.size, shard, samples, memory, kept)  # type: ignore[arg-type]
        return True

    def _start(self) -> bool:
        if self._reader is None:
            try:
                self._reader = readahead.Reader()
            except OSError:  # no thread can be started
                self._max_requests = 0
        return self._reader is not None

    def take(self, block: int) -> tuple[BytesColumn | None, Any]:
        """Waits for a block; returns its frames, and the memory they are in. None: not all of it could be read; reading
        it again says why."""
        return self._read.pop(block) if block in self._read else self._wait_for(self._requests.pop(block))

    def _wait_for(self, request: _Request) -> tuple[BytesColumn | None, Any]:
        with request.keeps_open:
            try:
                is_complete = self._reader.take(request.number) == request.size_bytes
            except OSError:
                is_complete = False
            frames = request.shard.filled(*request.samples, request.memory) if is_complete else None
            return frames, request.memory

    def finish(self) -> bool:
        """Waits for all requests, and releases their files. Returns False if there were none."""
        had_some = bool(self._requests)
        while self._requests:
            block, request = self._requests.popitem()
            self._read[block] = self._wait_for(request)
        return had_some

    def discard(self) -> list[Any]:
        """Waits for all requests; returns the memory of all that was read ahead."""
        self.finish()
        read, self._read = self._read, {}
        return [memory for _, memory in read.values()]

    def close(self) -> None:
        """Waits for the block that is being read; the others are not begun. Safe to call twice."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        while self._requests:
            self._requests.popitem()[1].keeps_open.close()
        self._read.clear()
