"""The data types that the steps of a merge share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..chunks import chunk_grid
from ..filters import Filter

Ints = npt.NDArray[np.int64]
Values = npt.NDArray[Any]  # rows, as items of a void dtype in the file's own type; or as objects, if it has those

NO_CRC = -1


class MergeError(Exception):
    """`kind` names the error that the caller raises: schema, input, corrupt or write."""

    def __init__(self, kind: str, path: str, reason: str, offset: int | None = None) -> None:
        super().__init__(kind, path, reason, offset)
        self.kind, self.path, self.reason, self.offset = kind, path, reason, offset


class RowRange(NamedTuple):
    """Rows [start, stop) of one source."""

    file: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


class Attribute(NamedTuple):
    type: Any  # h5py's TypeID
    space: Any
    encoded: bytes  # its value, as raw_values.py writes it; b"": none
    plain: Any  # its value, comparable


@dataclass(slots=True)
class DatasetInfo:
    """A dataset of one source. `extents` has for each chunk its number in the grid, its offset and size in the file,
    its filter mask, and its recorded crc32c (NO_CRC if there is none)."""

    file: int
    path: str
    shape: tuple[int, ...] | None
    maxshape: tuple[int | None, ...]
    type: Any  # h5py's TypeID
    dtype: Any
    chunks: tuple[int, ...] | None
    filters: tuple[Filter, ...]
    filter_names: dict[int, bytes]
    fill: bytes | None  # as raw_values.py writes it
    offset: int | None  # of contiguous values
    extents: Ints = field(default_factory=lambda: np.zeros((0, 5), np.int64))
    value: Any = None  # of a scalar dataset, comparable
    scales: tuple[tuple[int, str], ...] = ()  # axis, and the dataset that is its dimension scale
    has_unfiltered_edges: bool = False  # its chunks cannot be copied: their masks do not tell which are filtered

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 0

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:] if self.shape else ()

    @property
    def row_bytes(self) -> int:
        return int(self.type.get_size()) * math.prod(self.row_shape)

    @property
    def chunk_rows(self) -> int:
        return self.chunks[0] if self.chunks else 1

    @property
    def across(self) -> int:
        """Returns the number of chunks that one row crosses."""
        return math.prod(chunk_grid(self.row_shape, self.chunks[1:])) if self.chunks else 1

    @property
    def codes(self) -> tuple[int, ...]:
        """Returns the numbers of its filters; some of their parameters depend on the chunk size."""
        return tuple(code for code, _, _ in self.filters)


@dataclass(slots=True)
class Node:
    """One object or link of a source. `kind`: group, dataset, datatype, soft, again."""

    kind: str
    attributes: dict[str, Attribute] = field(default_factory=dict)
    target: str = ""
    type: Any = None
    column: Any = None  # the column that a group of values and offsets stores
    dataset: DatasetInfo | None = None


@dataclass(slots=True)
class MergeInput:
    number: int
    path: str
    nodes: dict[str, Node] = field(default_factory=dict)
    recorded: bool = False  # a record has the checksums of its chunks
    ordered: list[str] = field(default_factory=list)  # objects that list their members in the order of creation


@dataclass(slots=True)
class MergeTarget:
    """A dataset of the result: the dataset it is created like, and its rows. `splits`: it holds the offsets of a ragged
    column, and the offsets of each source must be shifted."""

    path: str
    like: DatasetInfo
    sources: list[DatasetInfo]
    runs: list[RowRange] = field(default_factory=list)
    splits: bool = False
    shared: bool = False  # equal in all sources; copied from the first

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs) + self.splits

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.like.row_shape)

    def placed_runs(self) -> Iterator[tuple[int, RowRange]]:
        """Yields each run with its first row in the result."""
        at = int(self.splits)
        for run in self.runs:
            yield at, run
            at += run.rows
