"""What the stages of a run share: the items that pass through them, the memory they may take, and what ends them."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from ....procfs.procfs import REAL
from ...formats.columns import Ints
from ..options import Function, Options
from ..order.blocks import Blocks, SamplePositions
from ..order.sharding import Step

if TYPE_CHECKING:
    from ..stats import Meter, SkippedSamples
    from .sample_cache import CachedSamples

Sample = dict[str, Any] | tuple[Any, ...]

_LARGE_BYTES = 1 << 20  # smaller steps leave little free memory behind
_MANY_IN_VAIN = 8  # after so many useless trims in a row, the next ones are ever rarer
_MAX_PAUSE = 64  # steps between two trims


class RunContext:
    """The options of a run, what it counts, and its limits. All stages have the same one."""

    def __init__(self, options: Options, losses: SkippedSamples, meter: Meter) -> None:
        self.options, self.losses, self.meter = options, losses, meter
        self.budget = MemoryBudget(options)
        self.cancel_token = CancelToken()


class CancelToken:
    """Ends the waits of an iteration that another thread closes: a thread that waits for a batch would block that.

    Stages register how their waits are ended before they begin to wait. A forked child has none of their threads.
    """

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self._is_cancelled = False
        self._pid = os.getpid()

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Registers a callback, which may be called from any thread, more than once."""
        self._callbacks.append(callback)
        if self._is_cancelled:
            callback()

    def cancel(self) -> None:
        self._is_cancelled = True
        if os.getpid() == self._pid:
            for callback in list(self._callbacks):
                callback()


class WorkItem:
    """The rows of one step, and where they came from.

    rows:        columns, or single samples once a function has had them; after the last stage, what the user gets
    start, done: how many samples of the epoch all ranks have had before this step, and after it
    positions:   of the rows, in `blocks`; they are resolved to samples only when something asks
    row_indices: which rows of the step these are
    paths:       of all shards, by their numbers
    cached:      what the sample cache had of the step
    lost_rows:   rows of the step that are corrupt, or that a function failed on
    """

    __slots__ = (
        "_positions",
        "_samples",
        "blocks",
        "cached",
        "done",
        "epoch",
        "lost_rows",
        "paths",
        "row_indices",
        "rows",
        "size_bytes",
        "start",
    )

    def __init__(
        self,
        epoch: int,
        start: int,
        done: int,
        positions: SamplePositions | Step,
        row_indices: Ints,
        rows: Any,
        blocks: Blocks,
        paths: Sequence[str],
        cached: CachedSamples | None = None,
    ) -> None:
        self.epoch, self.start, self.done = epoch, start, done
        self._positions, self.row_indices, self.rows = positions, row_indices, rows
        self.blocks, self.paths, self.cached = blocks, paths, cached
        self._samples: tuple[Ints, Ints] | None = None
        self.size_bytes = 0
        self.lost_rows: list[int] = []

    @property
    def positions(self) -> SamplePositions:
        if isinstance(self._positions, Step):
            self._positions = self._positions.positions
        return self._positions

    @property
    def samples(self) -> tuple[Ints, Ints]:
        """The shard of every row, and its number in that shard."""
        if self._samples is None:
            self._samples = self.blocks.samples_at(self.positions)
        return self._samples

    def move_rows(self) -> WorkItem:
        """Moves the rows into an item of their own: they are released with it, not with what is made of them."""
        rows, self.rows = self.rows, {}
        return WorkItem(
            self.epoch, self.start, self.done, self._positions, self.row_indices, rows, self.blocks, self.paths
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A transform in another process needs the samples' numbers, but neither the order nor the paths.
        return _unpickled, (self.epoch, self.rows, self.samples)

    def take_rows(self) -> Any:
        """Takes the rows out: stages still refer to the item while they make the next one."""
        rows, self.rows = self.rows, None
        return rows

    def replace(self, positions: SamplePositions, row_indices: Ints) -> None:
        """Sets which samples of the step the rows are."""
        self._positions, self.row_indices, self._samples = positions, row_indices, None

    def select(self, which: Ints) -> None:
        """Selects some of the rows by their indices. `rows` itself is the caller's to change."""
        self.replace(self.positions[which], self.row_indices[which])

    def source_of(self, row: int) -> tuple[str, int]:
        """Returns the file of a row, and its number in that file."""
        shards, records = self.samples
        return self.paths[shards[row]], int(records[row])

    def describe(self, row: int) -> str:
        """Names a row in messages about the worker that has it."""
        if not 0 <= row < len(self.row_indices):
            return "a whole batch"
        path, record = self.source_of(row)
        return f"{path}, record {record:,}"


def _unpickled(epoch: int, rows: Any, samples: tuple[Ints, Ints]) -> WorkItem:
    item = WorkItem.__new__(WorkItem)
    item.epoch, item.rows, item._samples = epoch, rows, samples
    return item


Items = Generator[WorkItem, None, None]  # every stage is one: closing it ends what it started, and the stage before it


class MemoryBudget:
    """How the bytes of limits(memory=…) are shared between cached blocks and batches in flight.

    Batches that prefetch() makes ready have a share of their own. Of the rest, the order of the windows and the batches
    in flight take what they need, as nothing can be read without them; blocks get what is left, and at least half.

    executors: for every stage, the function that says where it runs; None: inline
    """

    def __init__(self, options: Options) -> None:
        self.limit_bytes = options.memory_bytes
        self._options = options
        self.executors: list[Function | None] = []
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
            ready_bytes = min(options.prefetch_max_items * each, options.prefetch_max_bytes)
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
        fits = self._available_bytes // 2 // max(1, self._in_flight_bytes * len(self.executors))
        return min(executor.workers + spare, max(2, executor.workers, fits))

    def block_bytes(self, order_bytes: int) -> int:
        """What cached blocks may take, beside the order of the windows in use."""
        available = self._available_bytes
        if self.executors and not self._result_bytes:  # what the functions make of a step is not known yet
            batches = available // 2
        else:
            # Twice the one that is read: where it was read to, and gathered. And the one that the user has.
            in_flight = sum(map(self.in_flight, self.executors))
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


def _resident_bytes() -> int:
    """Returns 0 if /proc is unreadable."""
    try:
        return int(REAL.read_text("/proc/self/statm").split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
