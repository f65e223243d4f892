"""One pass over a dataset, from where it begins, or was left, to its end.

Everything that it opens and starts is released when it is exhausted, closed, or garbage-collected.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from inspect import GEN_CLOSED, GEN_RUNNING, getgeneratorstate
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self

from ..._util.finalize import close_leaked, close_when_collected, note_opened
from ..._util.rank import Launch
from ...errors import StateError
from ..formats.columns import split_samples
from .checkpoint import Position, load_state, save_state
from .options import STEP_SAMPLES, Options
from .order.sharding import BatchPlan, Order, ShardSpec, plan_steps
from .pipeline.fetch import Fetcher
from .pipeline.pipeline import Pipeline
from .pipeline.prefetch import prefetch
from .pipeline.run_context import Items, RunContext, WorkItem
from .pipeline.sample_cache import SampleCache
from .sources.catalog import ShardSet
from .sources.file_pool import PoolStats
from .sources.file_source import Source
from .stats import Meter, SkippedSample, SkippedSamples, Stats

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=Any)  # what iterating gives: samples, or batches
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

_FEW_LEAKED = 3  # leaked iterations that the garbage collector has not found yet
_RANGE_BYTES = 16 << 20
_MAX_RANGE_SAMPLES = 1 << 15
_RANGE_SHARE = 16  # a range takes at most this part of the memory


class Iteration(Generic[T_co]):
    """Batches, or samples without batch(). Made by `Dataset.iterate()`.

    with ds.iterate(epoch=0) as it:
        for batch in it: ...

    Threads may share it: each batch goes to one of them. Any thread may close it.
    """

    def __init__(
        self,
        source: Source,
        options: Options,
        launch: Launch,
        *,
        epoch: int = 0,
        worker: tuple[int, int] = (0, 1),
        cache: SampleCache | None = None,
        on_next_epoch: Callable[[int], None] | None = None,
    ) -> None:
        """on_next_epoch: called with the epoch that comes after this pass, if loading a state changes it."""
        self._source, self._options, self.launch = source, options, launch
        self._shard = ShardSpec(rank=launch.rank, world=launch.world, worker=worker[0], workers=worker[1])
        self._plan = batch_plan(options, launch.world)
        self._cache, self._on_next_epoch = cache, on_next_epoch
        self._position = self._began = Position(epoch=epoch, done=0)
        self._stop = stop_epoch(options, epoch, epoch)
        self._last_order: tuple[int, Order] | None = None
        self._made_from: dict[str, Any] | None = None
        self._meter = Meter()
        catalogs = source.catalogs()
        source.schema()  # raises now what is wrong with the files
        self._skipped = SkippedSamples(
            sum(source.counts()),
            options.max_corrupt,
            [loss for catalog in catalogs for loss in catalog.losses],
        )
        self._run: _Run | None = None
        self._final_stats: PoolStats | None = None
        self._ended = False
        self._ended_at: float | None = None
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._thread_inside: int | None = None  # the thread that waits for a batch
        self.step = 0  # batches returned so far

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "cannot pickle an iteration: pickle its state_dict(), and the dataset; dataset.iterate() and "
            "load_state_dict(state) continue where it is"
        )

    # ---- iterating

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        if os.getpid() != self._pid and not self._ended:
            raise StateError("this iteration belongs to the process that began it: begin a new one in a forked child")
        start = monotonic()
        with self._lock:
            if self._is_over():
                raise StopIteration
            try:
                self._thread_inside = threading.get_ident()
                if self._run is None:
                    self._meter.begun = start
                    self._run = _Run(self)
                found = next(self._run.items, None)
            except BaseException as error:
                closed = self._is_over()  # by another thread, which cancelled the wait
                self._release()
                if closed and isinstance(error, Exception):
                    raise StopIteration from None
                raise
            finally:
                self._thread_inside = None
            if found is None or self._is_over():
                self._release()
                raise StopIteration
            rows: T_co
            rows, self._position = found
            self.step += 1
            self._meter.batches += 1
            self._meter.wait_s += monotonic() - start
            return rows

    def close(self) -> None:
        """Ends everything that was started. Safe to call twice, and from another thread than the one that waits."""
        self._ended = True
        run = self._run
        # A closed run is tested first: at interpreter exit it is closed already, and `os` may be gone.
        if run is None or run.closed or os.getpid() != self._pid:
            return
        run.context.cancel_token.cancel()
        if self._thread_inside != threading.get_ident():  # else a signal handler called this, and next() releases it
            with self._lock:
                self._release()

    def _is_over(self) -> bool:
        """A method, as mypy takes an attribute for unchanged: another thread may have closed it meanwhile."""
        return self._ended

    def _release(self) -> None:
        self._ended = True
        run = self._run
        if run is not None:
            run.close()
            self._run, self._final_stats, self._ended_at = None, run.shards.stats(), monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- position

    @property
    def epoch(self) -> int:
        return self._position.epoch

    @property
    def next_epoch(self) -> int:
        """The epoch that a pass after this one begins with. A pass that repeats for ever counts as one epoch."""
        return self._began.epoch + 1 if self._stop is None else self._stop

    def __len__(self) -> int:
        """Returns the number of steps of an epoch."""
        order, world = self._order(), self._shard.world
        if self._options.batched:
            return self._plan.steps(order, world)
        first = self._plan.first
        return len(range(first + (self._shard.rank - first) % world, self._plan.end(order, world), world))

    def _order(self, epoch: int | None = None) -> Order:
        """Returns the order of an epoch, by default the current one; caches the last."""
        epoch = self._position.epoch if epoch is None else epoch
        if self._last_order is None or self._last_order[0] != epoch:
            self._last_order = epoch, self._source.order(self._options, epoch)
        return self._last_order[1]

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch: small, JSON, and valid for any number of ranks."""
        return save_state(self._position, self._fingerprint())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state. Only before the first batch. A state of other data is a StateError."""
        if self._run is not None or self._is_over():
            raise StateError("expected load_state_dict() before the first batch: begin a new iteration")
        position = load_state(state, self._fingerprint(), samples_of=lambda epoch: self._order(epoch).samples)
        # The state may be of another pass than this one: this finishes that one.
        self._stop = stop_epoch(self._options, self._began.epoch, position.epoch)
        self._position = self._began = position
        if self._on_next_epoch is not None:
            self._on_next_epoch(self.next_epoch)

    def _fingerprint(self) -> dict[str, Any]:
        if self._made_from is None:
            self._made_from = self._source.made_from(self._options) | {"selection": self._options.selection}
        return self._made_from

    # ---- statistics

    def skipped(self) -> list[SkippedSample]:
        """Returns the first thousand samples that were skipped, with their reasons."""
        return list(self._skipped)

    def progress(self) -> Progress:
        """Returns how far the epoch is. With remainder="drop" it ends with the last complete step."""
        position, began, order, first = self._position, self._began, self._order(), self._plan.first
        total = max(0, min(self._plan.last(order), self._plan.end(order, self._shard.world)) - first)
        return Progress(
            epoch=position.epoch,
            done=min(max(0, position.done - first), total),
            total=total,
            batches=self._meter.batches,
            elapsed_s=self._elapsed_s() if self._meter.batches else 0.0,
            began_at=max(0, began.done - first) - (position.epoch - began.epoch) * total,
        )

    def _elapsed_s(self) -> float:
        return (self._ended_at or monotonic()) - self._meter.begun

    def stats(self) -> Stats:
        meter = self._meter
        run = self._run
        files = run.shards.stats() if run else self._final_stats
        return Stats(
            elapsed_s=self._elapsed_s(),
            batches=meter.batches,
            samples=meter.samples,
            bytes_read=meter.bytes_read,
            wait_s=meter.wait_s,
            stages=dict(meter.stages),
            open_files=files.open if files else 0,
            open_files_max=files.maximum if files else 0,
            open_files_bound=files.budget if files else 0,
            memory_bytes=meter.memory_bytes,
            memory_max_bytes=meter.memory_max_bytes,
            memory_bound_bytes=self._options.memory_bytes,
            lost=len(self._skipped),
            rank=str(self.launch),
        )


class _Run:
    """What is open during an iteration. Holds no reference to the Iteration, so that a dropped one is collected."""

    def __init__(self, iteration: Iteration) -> None:
        self._source, self._options = iteration._source, iteration._options
        self._plan, self._shard = iteration._plan, iteration._shard
        self._cache = iteration._cache
        close_leaked(_FEW_LEAKED)
        schema = self._source.schema()
        self.shards = ShardSet(self._source.catalogs(), self._options.open_files, schema)
        self.context = RunContext(self._options, iteration._skipped, iteration._meter)
        self.pid = os.getpid()
        self.closed = False
        # close_leaked() must not close it: to its user that would look like the end of the data.
        self.iterator: Callable[[], Any] = lambda: None
        self._fetcher: Fetcher | None = None  # of the current epoch
        try:
            pipeline = Pipeline(schema, self.context)
            self._fetched = self._fetch(iteration._position, iteration._stop)
            items = pipeline.run(self._fetched, self._cache)
            if self._options.prefetches:
                items = prefetch(items, self.context)
            self.items = _results(items, self._options, self._shard, self.context.meter)
        except BaseException:
            self.shards.close()
            raise
        self._closer = close_when_collected(iteration, self.close)
        note_opened(self)

    def _fetch(self, position: Position, stop: int | None) -> Items:
        """Yields the rows of all steps, epoch after epoch, up to epoch `stop`."""
        options, shard = self._options, self._shard
        epoch, done = position
        while stop is None or epoch < stop:
            order = self._source.order(options, epoch)
            schema = self._source.schema()
            fetcher = Fetcher(self.shards, order, schema, self.context, epoch=epoch, cache=self._cache)
            self._fetcher = fetcher
            try:
                for steps in plan_steps(order, self._plan, shard, done, _range_samples(order, options)):
                    yield from fetcher.fetch(steps, shard.rank, shard.world)
            finally:
                fetcher.close()
            if not self._plan.steps(order, shard.world):  # an empty epoch: repeat() would never end
                return
            epoch, done = epoch + 1, 0

    def close(self) -> None:
        """Closes everything. Can be called again if a signal interrupted it: the finalizer stays until all is done."""
        if self.closed and sys.is_finalizing():
            return  # modules may be gone already
        if getgeneratorstate(self.items) == GEN_RUNNING:
            return  # Python exits while a daemon thread reads, which would report an error if it were cancelled
        if os.getpid() == self.pid:
            try:
                self.context.cancel_token.cancel()
                self.items.close()
            finally:
                self._close_files()
        self.closed = True
        self._closer.detach()

    def _close_files(self) -> None:
        """Closes also what a signal or a kept error left open; but not under a thread that reads."""
        is_over = getgeneratorstate(self._fetched) == GEN_CLOSED
        if is_over and self._fetcher is not None:
            self._fetcher.close()
        self.shards.close(in_use=is_over)


def _results(
    items: Items, options: Options, shard: ShardSpec, meter: Meter
) -> Generator[tuple[Any, Position], None, None]:
    """Yields what the user gets, and the position after it."""
    with closing(items):
        for item in items:
            if options.batched:
                meter.samples += len(item.row_indices)
                yield item.take_rows(), Position(item.epoch, item.done)
            else:
                yield from _single_samples(item, shard, meter)


def _single_samples(item: WorkItem, shard: ShardSpec, meter: Meter) -> Generator[tuple[Any, Position], None, None]:
    rows = item.take_rows()
    samples = split_samples(rows) if isinstance(rows, dict) else rows
    del rows
    for row, sample in zip(item.row_indices.tolist(), samples, strict=True):
        meter.samples += 1
        yield sample, Position(epoch=item.epoch, done=min(item.done, item.start + (row + 1) * shard.world))


def _range_samples(order: Order, options: Options) -> int:
    """Returns how many samples of a rank are planned together: so many that every lane has some.

    The windows of all of them are cached at once: where memory is short, the next windows must not begin long before
    the current ones end.
    """
    blocks = order.blocks
    each = int(blocks.size_bytes.sum()) // max(1, blocks.samples) or 1
    max_bytes = min(_RANGE_BYTES, (options.memory_bytes - options.prefetch_bytes) // _RANGE_SHARE)
    return max(256, min(_MAX_RANGE_SAMPLES, max_bytes // each))


def stop_epoch(options: Options, first: int, epoch: int) -> int | None:
    """Returns the epoch after the pass that `epoch` is in, if one pass begins with epoch `first`. None: no end."""
    times = options.repeat
    return None if times is None else epoch - (epoch - first) % times + times


def batch_plan(options: Options, world: int) -> BatchPlan:
    """Returns how these options cut a sequence into steps for `world` ranks."""
    batch, remainder_unit = options.batch or STEP_SAMPLES, None if options.batched else 1
    if options.global_batch is not None:
        if options.global_batch % world:
            below = options.global_batch // world * world
            near = [n for n in (below, below + world) if n]
            raise ValueError(
                f"expected a global_size that {world} ranks can share, got {options.global_batch}: "
                f"take {' or '.join(map(str, near))}"
            )
        batch = options.global_batch // world
    first, stop, each = options.first_sample, options.stop_sample, batch * world
    if options.stop_batch is not None:
        after_batches = first + options.stop_batch * each
        stop = after_batches if stop is None else min(stop, after_batches)
    first += options.first_batch * each
    return BatchPlan(batch=batch, remainder=options.remainder, first=first, stop=stop, remainder_unit=remainder_unit)


# ---- progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`done` of `total` samples of the epoch, over all ranks."""

    epoch: int
    done: int
    total: int
    batches: int
    elapsed_s: float
    began_at: int = 0  # samples that were done before a resume; below 0 after complete epochs

    @property
    def fraction(self) -> float:
        return self.done / self.total if self.total else 1.0

    @property
    def samples_per_s(self) -> float:
        """Over all ranks, since the pass began."""
        return max(0, self.done - self.began_at) / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def left_s(self) -> float | None:
        """The time left; None: not known yet."""
        return (self.total - self.done) / self.samples_per_s if self.samples_per_s else None

    def __str__(self) -> str:
        left = "" if self.left_s is None else f", {_clock(self.left_s)} left"
        return (
            f"epoch {self.epoch}: {self.done:,} of {self.total:,} samples ({100 * self.fraction:.0f} %), "
            f"{self.samples_per_s:,.0f}/s{left}"
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
