"""What goes through the pipeline: the rows of one step, and where they came from."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from ...formats.columns import Ints
from ..order.blocks import Blocks
from ..order.sharding import Step
from ..order.shuffle import SamplePositions

Sample = dict[str, Any] | tuple[Any, ...]


class WorkItem:
    """`rows` are columns, or samples one by one once a function has had them; after the last stage, what is given out.

    start, done: how many samples of the epoch all ranks have had before this step, and after
    places: of the rows, in `blocks`; which samples they are is looked up only when somebody asks
    kept:   which rows of the step these are, by their numbers in it
    paths:  of all shards, by their numbers
    held:   what a cache had of it (keep.py)
    lost:   rows of the step that are damaged, or that a function failed on
    """

    __slots__ = ("_places", "blocks", "done", "epoch", "held", "kept", "lost", "paths", "rows", "size_bytes", "start")

    def __init__(
        self,
        epoch: int,
        start: int,
        done: int,
        places: SamplePositions | Step,
        kept: Ints,
        rows: Any,
        blocks: Blocks,
        paths: Sequence[str],
        held: Any = None,
    ) -> None:
        self.epoch, self.start, self.done = epoch, start, done
        self._places, self.kept, self.rows = places, kept, rows
        self.blocks, self.paths, self.held = blocks, paths, held
        self.size_bytes = 0
        self.lost: list[int] = []

    @property
    def places(self) -> SamplePositions:
        if isinstance(self._places, Step):
            self._places = self._places.places
        return self._places

    @places.setter
    def places(self, places: SamplePositions) -> None:
        self._places = places

    @property
    def shard(self) -> Ints:
        return self.blocks.shard[self.places.block]

    @property
    def sample(self) -> Ints:
        """Their numbers in their shards."""
        return self.blocks.first[self.places.block] + self.places.row

    def select(self, stay: Ints) -> None:
        """Only these of its rows stay. `rows` is the caller's to change."""
        self.places, self.kept = self.places.at(stay), self.kept[stay]

    def place_of(self, row: int) -> tuple[str, int]:
        """The file of a row, and its number there."""
        return self.paths[self.shard[row]], int(self.sample[row])


Items = Generator[WorkItem, None, None]  # each stage is one: closing it ends what it started, and the one before it
