"""How the bytes of limits(memory=…) are shared between cached blocks and batches in flight.

Batches that prefetch() makes ready have a share of their own. Of the rest, the order of the windows and the batches in
flight take what they need, as nothing can be read without them; blocks get what is left, and at least half.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

from ...procfs.procfs import REAL
from ..options import STEP_SAMPLES, Function, Options

_LARGE_BYTES = 1 << 20  # smaller steps leave little free memory behind
_MANY_IN_VAIN = 8  # after so many useless trims in a row, the next ones are ever rarer
_MAX_PAUSE = 64  # steps between two trims
_PREFETCH_SHARE = 4  # the part of the memory that prefetched batches take, where their number was given


class MemoryBudget:
    """`executors`: for every stage, the function that says where it runs; None: inline."""

    def __init__(self, options: Options, executors: list[Function | None]) -> None:
        self.limit_bytes = options.memory_bytes
        self._options = options
        self._executors = executors
        self._step_bytes = 0
        self._result_bytes = 0
        self._begun_bytes = _resident_bytes()
        self._n_in_vain = 0  # trims that were of no use
        self._pause = 0  # steps until the next trim

    @property
    def _available_bytes(self) -> int:
        """What is left beside the batches that prefetch() makes ready."""
        options = self._options
        ready_bytes = options.prefetch_bytes
        if options.prefetch_batches:
            each = max(self._step_bytes, self._result_bytes)
            ready_bytes = min(prefetched_items(options) * each, prefetched_bytes(options))
        return options.memory_bytes - ready_bytes

    def note_step(self, size_bytes: int) -> None:
        """Notes about how large a step is as it is read."""
        self._step_bytes = max(self._step_bytes, size_bytes)

    def note_result(self, size_bytes: int) -> None:
        """Notes how large the result of a stage is."""
        self._result_bytes = max(self._result_bytes, size_bytes)

    @property
    def _in_flight_bytes(self) -> int:
        """One step in flight: as it was read, the samples that were made of it, and the batch of these."""
        return self._step_bytes + 2 * max(self._step_bytes, self._result_bytes)

    def in_flight(self, executor: Function | None) -> int:
        """How many batches a stage may have at once.

        One for every worker, and one more (two for processes, which take longer to get them) where there is memory for
        it, so that no worker waits for the user.
        """
        if executor is None or executor.where == "inline":
            return 1
        spare = 1 if executor.where == "threads" else 2
        fits = self._available_bytes // 2 // max(1, self._in_flight_bytes * len(self._executors))
        return min(executor.workers + spare, max(2, executor.workers, fits))

    def block_bytes(self, order_bytes: int) -> int:
        """What cached blocks may take, beside the order of the windows in use."""
        available = self._available_bytes
        if self._executors and not self._result_bytes:  # what the functions make of a step is not known yet
            batches = available // 2
        else:
            # Twice the one that is read: where it was read to, and gathered. And the one that the user has.
            in_flight = sum(map(self.in_flight, self._executors))
            batches = 2 * self._step_bytes + in_flight * self._in_flight_bytes
            batches += max(self._step_bytes, self._result_bytes)
        return max(0, available - order_bytes - min(batches, available // 2))

    def packed_block_bytes(self, order_bytes: int) -> int:
        """The same with compressed shards, which must be cached: only what no step can do without is kept back."""
        return max(self.block_bytes(order_bytes), self._available_bytes - order_bytes - 3 * self._step_bytes)

    def trim(self) -> None:
        """Returns free memory to the system before a large step is read that could exceed the limit otherwise.

        The allocator keeps what large buffers free, in every thread: several batches' worth.
        """
        if self._step_bytes < _LARGE_BYTES or _malloc_trim is None:
            return
        self._pause -= 1
        if self._pause > 0:
            return
        next_bytes = 2 * self._step_bytes + max(self._step_bytes, self._result_bytes)
        before = _resident_bytes()
        if before - self._begun_bytes + next_bytes <= self.limit_bytes:
            return
        _malloc_trim(0)
        # Other code in this process may take memory, too: trying in vain at every step would only cost time.
        self._n_in_vain = 0 if before - _resident_bytes() >= self._step_bytes // 2 else self._n_in_vain + 1
        self._pause = min(_MAX_PAUSE, 1 << max(0, min(self._n_in_vain, 2 * _MANY_IN_VAIN) - _MANY_IN_VAIN))


def prefetched_items(options: Options) -> int:
    """How many items prefetch() makes ready at most; without batch(), an item is a step of single samples."""
    if not options.prefetch_batches:
        return sys.maxsize
    return options.prefetch_batches if options.batched else -(-options.prefetch_batches // STEP_SAMPLES)


def prefetched_bytes(options: Options) -> int:
    """How many bytes prefetch() makes ready at most, except for the first batch."""
    return options.prefetch_bytes or options.memory_bytes // _PREFETCH_SHARE


def _resident_bytes() -> int:
    """Returns 0 where the system does not tell."""
    try:
        return int(REAL.read_text("/proc/self/statm").split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
