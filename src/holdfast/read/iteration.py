"""One pass over a dataset, from where it begins, or was left, to its end.

Everything it opens and starts is released when it is exhausted, closed, or dropped.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Iterator, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, Self

from ..errors import StateError
from .flow.ahead import run_ahead
from .flow.fetch import Fetcher
from .flow.item import Item
from .flow.keep import SampleCache
from .flow.losses import Loss, Losses
from .flow.pipeline import Pipeline
from .flow.samples import split_samples
from .flow.stats import Meter, Stats
from .launch import Launch
from .order.shards import Cut, Part, walk
from .order.state import Position, load_state, save_state
from .progress import Progress
from .settings import Settings
from .sources.library import Library
from .sources.source import Sequenced, Source

_ONE_BY_ONE = 256  # samples that are read together when no batch was asked for
_AT_ONCE_BYTES = 8 << 20
_AT_ONCE_MOST = 1 << 14


class Iteration:
    """Batches, or samples where no batch was asked for. Made by `Dataset.iterate()`.

    with ds.iterate(epoch=0) as it:
        for batch in it: ...
    """

    def __init__(
        self,
        source: Source,
        settings: Settings,
        launch: Launch,
        *,
        epoch: int = 0,
        worker: tuple[int, int] = (0, 1),
        cache: SampleCache | None = None,
    ) -> None:
        self._source, self._settings, self.launch = source, settings, launch
        self._part = Part(rank=launch.rank, world=launch.world, worker=worker[0], workers=worker[1])
        self._cut = cut_of(settings, launch.world)
        self._cache = cache
        self._position = Position(epoch=epoch, done=0)
        self._epochs_left = settings.repeat
        self._order = source.order(settings, epoch)
        self._made_from: dict[str, Any] | None = None
        self._meter = Meter()
        self._losses = Losses(self._order.samples, settings.max_corrupt)
        self._run: _Running | None = None
        self._ended = False
        self._pid = os.getpid()
        self.step = 0  # batches given so far

    # ---- iterating

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if os.getpid() != self._pid:
            raise StateError("this iteration belongs to the process that began it: begin another one in a forked child")
        start = monotonic()
        try:
            if self._run is None:
                self._meter.begun = start
                self._run = _Running(self)
            given = next(self._run.items, None)
        except BaseException:
            self.close()
            raise
        if given is None:
            self.close()
            raise StopIteration
        rows, self._position = given
        self.step += 1
        self._meter.batches += 1
        self._meter.wait_s += monotonic() - start
        return rows

    def close(self) -> None:
        """Ends everything that was started. Safe to call twice."""
        self._ended = True
        run, self._run = self._run, None
        if run is not None and os.getpid() == self._pid:
            run.close()
            self._final = run.library.stats()

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

    def __len__(self) -> int:
        """Steps of an epoch."""
        if self._settings.batched:
            return self._cut.steps(self._order, self._part.world)
        return _own_samples(self._cut, self._order, self._part)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands after the last batch that was given: small, JSON, and good for any number of ranks."""
        return save_state(self._position, self._fingerprint())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there. Only before the first batch. A state of other data is refused."""
        if self._run is not None or self._ended:
            raise StateError("wanted load_state_dict() before the first batch: begin another iteration")
        position = load_state(state, self._fingerprint(), samples=self._order.samples)
        if self._epochs_left is not None:
            # A state of a later epoch than was asked for: that one is finished.
            self._epochs_left = max(1, self._epochs_left - (position.epoch - self._position.epoch))
        self._position = position

    def _fingerprint(self) -> dict[str, Any]:
        if self._made_from is None:
            self._made_from = self._source.made_from(self._settings)
        return self._made_from

    # ---- what happened

    def losses(self) -> list[Loss]:
        """Samples that were skipped, with their reasons: the first thousand of them."""
        return list(self._losses)

    def progress(self) -> Progress:
        return Progress(
            epoch=self._position.epoch,
            done=min(self._position.done, self._cut.samples(self._order)),
            total=self._cut.samples(self._order),
            batches=self._meter.batches,
            elapsed_s=monotonic() - self._meter.begun if self._meter.batches else 0.0,
            began_at=self._run.began_at if self._run else 0,
        )

    def stats(self) -> Stats:
        meter = self._meter
        files = self._run.library.stats() if self._run else getattr(self, "_final", None)
        return Stats(
            elapsed_s=monotonic() - meter.begun,
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
        self.library = Library(source.catalogs(), settings.open_files)
        self.began_at = of._position.done
        try:
            pipeline = Pipeline(settings, source.schema(), of._losses, of._meter)
            self._fetchers: list[Fetcher] = []
            raw = self._raw(
                source, settings, of._cut, of._part, of._position, of._epochs_left, of._losses, of._meter, of._cache
            )
            items = pipeline.run(raw, of._cache)
            if settings.prefetch_bytes:
                items = run_ahead(items, settings.prefetch_bytes, of._meter)
            self._made = items
            self.items = _give(items, settings, of._part, of._meter)
        except BaseException:
            self.library.close()
            raise
        self._closer = weakref.finalize(of, self.close)

    def _raw(
        self,
        source: Source,
        settings: Settings,
        cut: Cut,
        part: Part,
        position: Position,
        epochs: int | None,
        losses: Losses,
        meter: Meter,
        cache: SampleCache | None,
    ) -> Iterator[Item]:
        """The rows of all steps, epoch after epoch."""
        epoch, done = position.epoch, position.done
        while epochs is None or epochs > 0:
            order = source.order(settings, epoch)
            fetcher = Fetcher(
                self.library,
                order,
                source.schema(),
                epoch=epoch,
                memory_bytes=settings.memory_bytes - settings.prefetch_bytes,
                losses=losses,
                meter=meter,
                skip_corrupt=settings.on_corrupt == "skip",
                cache=cache,
            )
            self._fetchers[:] = [fetcher]
            try:
                for run in walk(order, cut, part, done, _at_once(order, part)):
                    yield from fetcher.steps(run, part.rank, part.world)
            finally:
                fetcher.close()
            if not order.samples:
                return
            epoch, done = epoch + 1, 0
            epochs = None if epochs is None else epochs - 1

    def close(self) -> None:
        self._closer.detach()
        self.items.close()
        self._made.close()  # type: ignore[attr-defined]
        self.library.close()


def _give(
    items: Iterator[Item], settings: Settings, part: Part, meter: Meter
) -> Generator[tuple[Any, Position], None, None]:
    """What the user gets, and where the epoch stands when it has been given."""
    for item in items:
        if settings.batched:
            meter.samples += len(item.kept)
            yield item.rows, Position(epoch=item.epoch, done=item.done)
            continue
        samples = split_samples(item.rows) if isinstance(item.rows, dict) else item.rows
        start = item.start
        for place, sample in zip(item.kept.tolist(), samples, strict=True):
            meter.samples += 1
            yield sample, Position(epoch=item.epoch, done=min(item.done, start + (place + 1) * part.world))


def _at_once(order: Sequenced, part: Part) -> int:
    """Samples of a rank that are planned together: enough that every lane has some, and few enough to be held."""
    blocks = order.blocks
    each = int(blocks.size_bytes.sum()) // max(1, order.samples) or 1
    return max(256, min(_AT_ONCE_MOST, _AT_ONCE_BYTES // each))


def cut_of(settings: Settings, world: int) -> Cut:
    """How these settings cut a sequence into steps, for so many ranks."""
    batch = settings.batch or _ONE_BY_ONE
    if settings.global_batch is not None:
        if settings.global_batch % world:
            near = [
                n for n in (settings.global_batch // world * world, -(-settings.global_batch // world) * world) if n
            ]
            raise ValueError(
                f"wanted a global_size that {world} ranks can share, got {settings.global_batch}: "
                f"take {' or '.join(map(str, near))}"
            )
        batch = settings.global_batch // world
    most = settings.take_samples
    if settings.take_batches is not None:
        most = min(settings.take_batches * batch * world, most if most is not None else 1 << 62)
    return Cut(batch=batch, even=settings.even, most=most)


def _own_samples(cut: Cut, order: Sequenced, part: Part) -> int:
    total = cut.samples(order)
    if cut.even == "none":
        return len(range(part.rank, total, part.world))
    return total // part.world if cut.even == "drop" else -(-total // part.world)
