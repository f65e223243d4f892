"""How the bytes of limits(memory=…) are shared between blocks that are held and batches on their way.

What is made ready by prefetch() has its own part. Of the rest, the order of the windows and the batches on their way
take what they take, as there is no reading without them; blocks get what is left, and half at least.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

from ..options import RUN_SAMPLES, Function, Options

_LARGE_BYTES = 1 << 20  # smaller steps leave little behind
_IN_VAIN = 8  # so many trims in a row that were of no use; those behind them are ever rarer
_MOST_STEPS = 64
_READY_PART = 4  # of the memory, for a number of batches that are made ready


class MemoryBudget:
    """`places`: of every stage, the function that says where it runs; None: here."""

    def __init__(self, settings: Options, places: list[Function | None]) -> None:
        self.most_bytes = settings.memory_bytes
        self._settings = settings
        self._places = places
        self._step_bytes = 0
        self._made_bytes = 0
        self._begun_bytes = _resident_bytes()
        self._in_vain = 0  # trims that were of no use
        self._pause = 0  # steps until the next

    @property
    def _most(self) -> int:
        """What there is beside the batches that prefetch() makes ready."""
        one = self._settings
        ready_bytes = one.prefetch_bytes
        if one.prefetch_batches:
            each = max(self._step_bytes, self._made_bytes)
            ready_bytes = min(prefetched_items(one) * each, prefetched_bytes(one))
        return one.memory_bytes - ready_bytes

    def step(self, size_bytes: int) -> None:
        """Steps are about so large as they are read."""
        self._step_bytes = max(self._step_bytes, size_bytes)

    def made(self, size_bytes: int) -> None:
        """A stage has made so much of one."""
        self._made_bytes = max(self._made_bytes, size_bytes)

    @property
    def _each_bytes(self) -> int:
        """One that is worked on: as it was read, the samples that were made of it, and the batch of these."""
        return self._step_bytes + 2 * max(self._step_bytes, self._made_bytes)

    def under_way(self, place: Function | None) -> int:
        """How many batches a stage may have at once: one for every worker, and one more (of processes two, as they are
        slower to be told) where there is memory for it, so that no worker waits for the user."""
        if place is None or place.where == "inline":
            return 1
        spare = 1 if place.where == "threads" else 2
        fits = self._most // 2 // max(1, self._each_bytes * len(self._places))
        return min(place.workers + spare, max(2, place.workers, fits))

    def for_blocks(self, order_bytes: int) -> int:
        """What blocks may take, beside the order of the windows in use."""
        if self._places and not self._made_bytes:  # what the functions make of a step is not known yet
            batches = self._most // 2
        else:
            # Two of the one that is read: where it was read to, and put together. And the one that the user has.
            under_way = sum(map(self.under_way, self._places))
            batches = 2 * self._step_bytes + under_way * self._each_bytes + max(self._step_bytes, self._made_bytes)
        return max(0, self._most - order_bytes - min(batches, self._most // 2))

    def for_packed(self, order_bytes: int) -> int:
        """The same for packed shards, which cannot be read otherwise: only what no step can do without is kept back."""
        return max(self.for_blocks(order_bytes), self._most - order_bytes - 3 * self._step_bytes)

    def trim(self) -> None:
        """Gives memory that is free to the system, before a large step is read that could exceed the bound otherwise.

        The allocator keeps what large buffers leave for the next ones, in every thread: several batches' worth.
        """
        if self._step_bytes < _LARGE_BYTES or _malloc_trim is None:
            return
        self._pause -= 1
        if self._pause > 0:
            return
        next_bytes = 2 * self._step_bytes + max(self._step_bytes, self._made_bytes)
        before = _resident_bytes()
        if before - self._begun_bytes + next_bytes <= self.most_bytes:
            return
        _malloc_trim(0)
        # Others in this process may take memory, too: trying in vain at every step would only cost time.
        self._in_vain = 0 if before - _resident_bytes() >= self._step_bytes // 2 else self._in_vain + 1
        self._pause = min(_MOST_STEPS, 1 << max(0, min(self._in_vain, 2 * _IN_VAIN) - _IN_VAIN))


def prefetched_items(settings: Options) -> int:
    """How many items prefetch() makes ready at most: without batches, an item is a run of samples."""
    if not settings.prefetch_batches:
        return sys.maxsize
    return settings.prefetch_batches if settings.batched else -(-settings.prefetch_batches // RUN_SAMPLES)


def prefetched_bytes(settings: Options) -> int:
    """How many bytes prefetch() makes ready at most, but for the first batch."""
    return settings.prefetch_bytes or settings.memory_bytes // _READY_PART


def _resident_bytes() -> int:
    """0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
