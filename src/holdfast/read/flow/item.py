"""What goes through the pipeline: the rows of one step, and where they came from."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...formats.columns import Ints
from ..order.blocks import Blocks
from ..order.lanes import Places

Sample = dict[str, Any]


@dataclass(slots=True)
class Item:
    """`rows` are columns, or samples one by one once a function has had them; after the last stage, what is given out.

    start, done: how many samples of the epoch all ranks have had before this step, and after
    places: of the rows, in `blocks`; which samples they are is looked up only when somebody asks
    kept:   which rows of the step these are, by their numbers in it
    paths:  of all shards, by their numbers
    """

    epoch: int
    start: int
    done: int
    places: Places
    kept: Ints
    rows: Any
    blocks: Blocks
    paths: Sequence[str]
    size_bytes: int = 0
    held: Any = None  # what a cache had of it (keep.py)
    lost: list[int] = field(default_factory=list)  # rows of the step that are damaged, or that a function failed on

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


Items = Generator[Item, None, None]  # each stage is one: closing it ends what it started, and the one before it
