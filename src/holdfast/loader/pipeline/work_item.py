"""The two envelopes of the pipeline: what goes into a transform, and what comes out of it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...formats.columns import Ints
from ..order.blocks import Blocks, SamplePositions
from ..order.sharding import Step

if TYPE_CHECKING:
    from .sample_cache import CachedSamples

Sample = dict[str, Any] | tuple[Any, ...]


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
        self.replace(self.positions.at(which), self.row_indices[which])

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


class Failure(NamedTuple):
    """Function number `function` of a transform failed on row `row`, or on the whole batch if that is -1.

    Function -1: the samples could not be collated into a batch.
    """

    row: int
    function: int
    reason: str
    traceback: str
    error: Exception | None  # None if it came from another process

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception of the user's may not unpickle; its text always does.
        return Failure, (*self[:4], self.error if self.function < 0 else None)


class TransformResult(NamedTuple):
    """What a transform made of an item.

    selected: indices of the rows that are left; None: all
    """

    rows: Any
    selected: Ints | None
    failures: list[Failure]
    seconds: float = 0.0
