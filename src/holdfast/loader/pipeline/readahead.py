"""Blocks that will be expected next, read by a thread while those before them are used.

Copying from the kernel is a fifth of the work with small samples; where the data come from a disk it is waiting. It is
what another core can do. It does it without the interpreter: two threads that hand its lock to each other for each
block lose by that some of what they gain.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

from ..._native.extensions import readahead
from ...errors import HoldfastError
from ...formats.base import PlacedShard
from ...formats.columns import BytesColumn
from ..order.blocks import Blocks
from ..sources.catalog import ShardSet


class _Request(NamedTuple):
    number: int
    size: int
    shard: PlacedShard
    run: tuple[int, int]
    memory: Any
    use: ExitStack  # keeps the shard open


class Readahead:
    """One owner, in one thread. Without the compiled part nothing is ever taken on."""

    def __init__(self, library: ShardSet, blocks: Blocks) -> None:
        self._library, self._blocks = library, blocks
        self._reader: Any = None
        self._wishes: dict[int, _Request] = {}
        self._read: dict[int, tuple[BytesColumn | None, Any]] = {}
        self._most = library.spare if readahead is not None else 0

    def __contains__(self, block: object) -> bool:
        return block in self._wishes or block in self._read

    @property
    def has_room(self) -> bool:
        return len(self._wishes) < self._most

    def wish(self, block: int, memory: Any) -> bool:
        """Whether it is taken on: `memory` is then in use until it is taken."""
        first, count = int(self._blocks.first[block]), int(self._blocks.count[block])
        with ExitStack() as use:
            try:
                shard = use.enter_context(self._library.use(int(self._blocks.shard[block])))
                fill = shard.fill(first, first + count, memory) if isinstance(shard, PlacedShard) else None
                if fill is None or not self._start():
                    return False
                number = self._reader.begin(fill.fd, fill.offset, memory, fill.first, fill.size)
            except HoldfastError:
                return False  # whoever reads it is told why
            run = (first, first + count)
            self._wishes[block] = _Request(number, fill.size, shard, run, memory, use.pop_all())  # type: ignore[arg-type]
        return True

    def _start(self) -> bool:
        if self._reader is None:
            try:
                self._reader = readahead.Reader()
            except OSError:  # no thread is to be had
                self._most = 0
        return self._reader is not None

    def take(self, block: int) -> tuple[BytesColumn | None, Any]:
        """What was read, waited for if need be, and the memory it is in. None: it could not be read, or not all of it;
        whoever reads it again is told why."""
        return self._read.pop(block) if block in self._read else self._finish(self._wishes.pop(block))

    def _finish(self, wish: _Request) -> tuple[BytesColumn | None, Any]:
        with wish.use:
            try:
                got = self._reader.take(wish.number)
            except OSError:
                return None, wish.memory
            whole = got == wish.size
            return wish.shard.filled(*wish.run, wish.memory) if whole else None, wish.memory

    def settle(self) -> bool:
        """Waits for all that is being read, and lets go of the files. False: there was nothing."""
        some = bool(self._wishes)
        while self._wishes:
            block, wish = self._wishes.popitem()
            self._read[block] = self._finish(wish)
        return some

    def forget(self) -> list[Any]:
        """The memory of all that was read, or is being read."""
        self.settle()
        read, self._read = self._read, {}
        return [memory for _, memory in read.values()]

    def close(self) -> None:
        """What is being read is waited for, the rest is not begun. Safe to call twice."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        while self._wishes:
            self._wishes.popitem()[1].use.close()
        self._read.clear()
