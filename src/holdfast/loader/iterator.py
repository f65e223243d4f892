"""How far an epoch is."""

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
from typing import TYPE_CHECKING, Any, Generic, Self

from .._util.finalize import close_leaked, close_when_collected, note_opened
from .._util.rank import Launch
from ..errors import StateError
from ..formats.columns import split_samples
from .checkpoint import Position, load_state, save_state
from .options import RUN_SAMPLES, Options
from .order.sharding import BatchPlan, Order, ShardSpec, walk
from .pipeline.executors import CancelToken
from .pipeline.fetch import Fetcher
from .pipeline.memory_budget import MemoryBudget, prefetched_bytes, prefetched_items
from .pipeline.pipeline import Pipeline
from .pipeline.prefetch import run_ahead
from .pipeline.sample_cache import SampleCache
from .pipeline.stats import Meter, Stats
from .pipeline.work_item import Items, WorkItem
from .skipped import Loss, Losses
from .sources.catalog import ShardSet
from .sources.file_pool import PoolStats
from .sources.file_source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`done` of `total` samples of the epoch, over all ranks."""

    epoch: int
    done: int
    total: int
    batches: int
    elapsed_s: float
    began_at: int = 0  # samples that were done before, when it was resumed; below 0 after whole epochs

    @property
    def fraction(self) -> float:
        return self.done / self.total if self.total else 1.0

    @property
    def samples_per_s(self) -> float:
        """Over all ranks, since it began here."""
        return max(0, self.done - self.began_at) / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def left_s(self) -> float | None:
        """None: nothing is known yet."""
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


# One pass over a dataset, from where it begins, or was left, to its end.
#
# Everything it opens and starts is released when it is exhausted, closed, or dropped.

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=Any)  # what iterating gives: samples, or batches
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

_FEW_LOST = 3  # iterations that the collector has not found yet
_AT_ONCE_BYTES = 16 << 20
_AT_ONCE_MOST = 1 << 15
_AT_ONCE_PART = 16  # of the memory there is


class Iteration(Generic[T_co]):
    """Batches, or samples where no batch was asked for. Made by `Dataset.iterate()`.

    with ds.iterate(epoch=0) as it:
        for batch in it: ...

    Threads may share it: each batch goes to one of them. Any of them may close it.
    """

    def __init__(
        self,
        source: Source,
        settings: Options,
        launch: Launch,
        *,
        epoch: int = 0,
        worker: tuple[int, int] = (0, 1),
        cache: SampleCache | None = None,
        moved: Callable[[int], None] | None = None,
    ) -> None:
        """moved: hears which epoch comes after this pass when a state that is loaded changes that."""
        self._source, self._settings, self.launch = source, settings, launch
        self._part = ShardSpec(rank=launch.rank, world=launch.world, worker=worker[0], workers=worker[1])
        self._cut = cut_of(settings, launch.world)
        self._cache, self._moved = cache, moved
        self._position = self._began = Position(epoch=epoch, done=0)
        self._stop = stop_of(settings, epoch, epoch)
        self._planned: tuple[int, Order] | None = None
        self._made_from: dict[str, Any] | None = None
        self._meter = Meter()
        catalogs = source.catalogs()
        source.schema()  # what is wrong with the files is said now
        self._losses = Losses(
            sum(source.counts()),
            settings.max_corrupt,
            [loss for catalog in catalogs for loss in catalog.losses],
        )
        self._run: _Running | None = None
        self._final: PoolStats | None = None
        self._ended = False
        self._ended_at: float | None = None
        self._pid = os.getpid()
        self._turn = threading.RLock()
        self._inside: int | None = None  # the thread that waits for a batch
        self.step = 0  # batches given so far

    # ---- iterating

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        if os.getpid() != self._pid and not self._ended:
            raise StateError("this iteration belongs to the process that began it: begin another one in a forked child")
        start = monotonic()
        with self._turn:
            if self._is_over():
                raise StopIteration
            try:
                self._inside = threading.get_ident()
                if self._run is None:
                    self._meter.begun = start
                    self._run = _Running(self)
                given = next(self._run.items, None)
            except BaseException as error:
                closed = self._is_over()  # by another thread, which ended the wait
                self._release()
                if closed and isinstance(error, Exception):
                    raise StopIteration from None
                raise
            finally:
                self._inside = None
            if given is None or self._is_over():
                self._release()
                raise StopIteration
            rows: T_co = given[0]
            self._position = given[1]
            self.step += 1
            self._meter.batches += 1
            self._meter.wait_s += monotonic() - start
            return rows

    def close(self) -> None:
        """Ends everything that was started. Safe to call twice, and from another thread than the one that waits."""
        self._ended = True
        run = self._run
        if run is None or os.getpid() != self._pid:
            return
        run.halt()
        if self._inside != threading.get_ident():  # else a signal's handler calls, and next() closes it
            with self._turn:
                self._release()

    def _is_over(self) -> bool:
        """Another thread may have ended it since it was last asked."""
        return self._ended

    def _release(self) -> None:
        self._ended = True
        run = self._run
        if run is not None:
            run.close()
            self._run, self._final, self._ended_at = None, run.library.stats(), monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- where it stands

    @property
    def epoch(self) -> int:
        return self._position.epoch

    @property
    def next_epoch(self) -> int:
        """The epoch that a pass after this one begins with. One that repeats for ever counts as one epoch."""
        return self._began.epoch + 1 if self._stop is None else self._stop

    def __len__(self) -> int:
        """Steps of an epoch."""
        order, world = self._order(), self._part.world
        if self._settings.batched:
            return self._cut.steps(order, world)
        first = self._cut.first
        return len(range(first + (self._part.rank - first) % world, self._cut.end(order, world), world))

    def _order(self, epoch: int | None = None) -> Order:
        """The order of an epoch, by default the present one. The last one is kept."""
        epoch = self._position.epoch if epoch is None else epoch
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self._source.order(self._settings, epoch)
        return self._planned[1]

    def state_dict(self) -> dict[str, Any]:
        """Where it stands after the last batch that was given: small, JSON, and good for any number of ranks."""
        return save_state(self._position, self._fingerprint())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there. Only before the first batch. A state of other data is refused."""
        if self._run is not None or self._is_over():
            raise StateError("expected load_state_dict() before the first batch: begin another iteration")
        position = load_state(state, self._fingerprint(), samples_of=lambda epoch: self._order(epoch).samples)
        # A state of another pass than this one: that one is finished.
        self._stop = stop_of(self._settings, self._began.epoch, position.epoch)
        self._position = self._began = position
        if self._moved is not None:
            self._moved(self.next_epoch)

    def _fingerprint(self) -> dict[str, Any]:
        if self._made_from is None:
            self._made_from = self._source.made_from(self._settings)
        return self._made_from

    # ---- what happened

    def losses(self) -> list[Loss]:
        """Samples that were skipped, with their reasons: the first thousand of them."""
        return list(self._losses)

    def progress(self) -> Progress:
        """How far the epoch is. With remainder="drop" it ends with the last whole step."""
        position, began, order, first = self._position, self._began, self._order(), self._cut.first
        total = max(0, min(self._cut.last(order), self._cut.end(order, self._part.world)) - first)
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
        files = run.library.stats() if run else self._final
        return Stats(
            elapsed_s=self._elapsed_s(),
            batches=meter.batches,
            samples=meter.samples,
            bytes_read=meter.bytes_read,
            wait_s=meter.wait_s,
            stages=dict(meter.stages),
            open_files=files.open if files else 0,
            open_files_most=files.most if files else 0,
            open_files_bound=files.budget if files else 0,
            memory_bytes=meter.memory_bytes,
            memory_most_bytes=meter.memory_most_bytes,
            memory_bound_bytes=self._settings.memory_bytes,
            lost=len(self._losses),
            rank=str(self.launch),
        )


class _Running:
    """What is open while an iteration goes on. Knows nothing of the Iteration, so that one that is dropped can go."""

    def __init__(self, of: Iteration) -> None:
        settings, source = of._settings, of._source
        close_leaked(_FEW_LOST)
        self.library = ShardSet(source.catalogs(), settings.open_files, source.schema())
        self.halt = CancelToken()
        self.pid = os.getpid()
        self.closed = False
        # Only what the collector finds is closed: an end that nobody asked for would look like that of the data.
        self.iterator: Callable[[], Any] = lambda: None
        self._fetcher: Fetcher | None = None  # of the epoch that is being read
        try:
            pipeline = Pipeline(settings, source.schema(), of._losses, of._meter, self.halt)
            self._fetched = self._raw(
                source,
                settings,
                of._cut,
                of._part,
                of._position,
                of._stop,
                of._losses,
                of._meter,
                of._cache,
                pipeline.room,
            )
            items = pipeline.run(self._fetched, of._cache)
            if settings.prefetches:
                most = prefetched_bytes(settings), prefetched_items(settings)
                items = run_ahead(items, *most, of._meter, self.halt)
            self.items = _give(items, settings, of._part, of._meter)
        except BaseException:
            self.library.close()
            raise
        self._closer = close_when_collected(of, self.close)
        note_opened(self)

    def _raw(
        self,
        source: Source,
        settings: Options,
        cut: BatchPlan,
        part: ShardSpec,
        position: Position,
        stop: int | None,
        losses: Losses,
        meter: Meter,
        cache: SampleCache | None,
        room: MemoryBudget,
    ) -> Items:
        """The rows of all steps, epoch after epoch, up to epoch `stop`."""
        epoch, done = position.epoch, position.done
        while stop is None or epoch < stop:
            order = source.order(settings, epoch)
            fetcher = self._fetcher = Fetcher(
                self.library,
                order,
                source.schema(),
                epoch=epoch,
                room=room,
                losses=losses,
                meter=meter,
                skip_corrupt=settings.on_corrupt != "raise",
                cache=cache,
                as_samples=bool(settings.functions) and settings.functions[0].each == "sample",
            )
            try:
                for run in walk(order, cut, part, done, _at_once(order, settings)):
                    yield from fetcher.steps(run, part.rank, part.world)
            finally:
                fetcher.close()
            if not cut.steps(order, part.world):  # nothing in an epoch: repeat() would be without an end
                return
            epoch, done = epoch + 1, 0

    def close(self) -> None:
        """Again, if a signal came in between: the finalizer stays until all is done."""
        if self.closed and sys.is_finalizing():
            return  # modules are being taken apart
        if getgeneratorstate(self.items) == GEN_RUNNING:
            return  # Python ends while a daemon thread reads, which would tell of an error if it were halted
        if os.getpid() == self.pid:
            try:
                self.halt()
                self.items.close()
            finally:
                self._close_files()
        self.closed = True
        self._closer.detach()

    def _close_files(self) -> None:
        """Also what a signal left open, which an error that is kept would keep so; not under a thread that reads."""
        is_over = getgeneratorstate(self._fetched) == GEN_CLOSED
        if is_over and self._fetcher is not None:
            self._fetcher.close()
        self.library.close(in_use=is_over)


def _give(
    items: Items, settings: Options, part: ShardSpec, meter: Meter
) -> Generator[tuple[Any, Position], None, None]:
    """What the user gets, and where the epoch stands when it has been given."""
    with closing(items):
        for item in items:
            if settings.batched:
                meter.samples += len(item.kept)
                yield _taken(item), Position(item.epoch, item.done)
            else:
                yield from _give_each(item, part, meter)


def _taken(item: WorkItem) -> Any:
    """Its rows, which are the user's alone from now on: stages still have the item while they make the next one."""
    rows, item.rows = item.rows, None
    return rows


def _give_each(item: WorkItem, part: ShardSpec, meter: Meter) -> Generator[tuple[Any, Position], None, None]:
    rows = _taken(item)
    samples = split_samples(rows) if isinstance(rows, dict) else rows
    del rows
    for place, sample in zip(item.kept.tolist(), samples, strict=True):
        meter.samples += 1
        yield sample, Position(epoch=item.epoch, done=min(item.done, item.start + (place + 1) * part.world))


def _at_once(order: Order, settings: Options) -> int:
    """Samples of a rank that are planned together: enough that every lane has some, and few enough to be held.

    The windows of all of them are held at once: where memory is short, the next ones shall not begin long before those
    before them end.
    """
    blocks = order.blocks
    each = int(blocks.size_bytes.sum()) // max(1, blocks.samples) or 1
    most_bytes = min(_AT_ONCE_BYTES, (settings.memory_bytes - settings.prefetch_bytes) // _AT_ONCE_PART)
    return max(256, min(_AT_ONCE_MOST, most_bytes // each))


def stop_of(settings: Options, first: int, epoch: int) -> int | None:
    """Behind the last epoch of the pass that `epoch` is in, where one pass begins with epoch `first`. None: no end."""
    times = settings.repeat
    return None if times is None else epoch - (epoch - first) % times + times


def cut_of(settings: Options, world: int) -> BatchPlan:
    """How these settings cut a sequence into steps, for so many ranks."""
    batch, grain = settings.batch or RUN_SAMPLES, None if settings.batched else 1
    if settings.global_batch is not None:
        if settings.global_batch % world:
            near = [
                n for n in (settings.global_batch // world * world, -(-settings.global_batch // world) * world) if n
            ]
            raise ValueError(
                f"expected a global_size that {world} ranks can share, got {settings.global_batch}: "
                f"take {' or '.join(map(str, near))}"
            )
        batch = settings.global_batch // world
    first, most, each = settings.first_sample, settings.stop_sample, batch * world
    if settings.stop_batch is not None:
        stop = first + settings.stop_batch * each
        most = stop if most is None else min(most, stop)
    first += settings.first_batch * each
    return BatchPlan(batch=batch, remainder=settings.remainder, first=first, most=most, grain=grain)
