"""What the steps of a merge speak of."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..filters import Filter

Ints = npt.NDArray[np.int64]
Raw = npt.NDArray[Any]  # rows as the file has them: items of a void type, never converted

NO_CRC = -1


class MergeError(Exception):
    """It cannot be done, and why. `kind` names the error that the caller raises: schema, input, corrupt or write."""

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
    type: bytes
    value: Any  # None: an empty one
    plain: Any  # to be compared


@dataclass(slots=True)
class DatasetInfo:
    """One source's dataset. `extents`: of each chunk its number in the grid, its place in the file, its size there,
    its filter mask, and the crc32c it must have (NO_CRC: nobody knows)."""

    file: int
    path: str
    shape: tuple[int, ...] | None
    maxshape: tuple[int | None, ...]
    type: bytes
    item_bytes: int
    words: str  # its type, for people
    has_objects: bool
    chunks: tuple[int, ...] | None
    filters: tuple[Filter, ...]
    fill: bytes | None
    offset: int | None
    extents: Ints = field(default_factory=lambda: np.zeros((0, 5), np.int64))
    value: bytes = b""  # of one without rows
    filter_names: dict[int, bytes] = field(default_factory=dict)
    scales: tuple[tuple[int, str], ...] = ()  # axis, and the dataset that is its scale

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 0

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:] if self.shape else ()

    @property
    def row_bytes(self) -> int:
        return self.item_bytes * math.prod(self.row_shape)

    @property
    def chunk_bytes(self) -> int:
        return self.item_bytes * math.prod(self.chunks or ())

    @property
    def across(self) -> int:
        """How many chunks lie side by side over one row."""
        assert self.chunks is not None
        return math.prod(-(-n // c) for n, c in zip(self.row_shape, self.chunks[1:], strict=True))


def codes_of(dataset: DatasetInfo) -> tuple[int, ...]:
    """Returns its filters without their values, some of which say how large the chunk is."""
    return tuple(code for code, _, _ in dataset.filters)


@dataclass(slots=True)
class Node:
    """One object or link of a source. `kind`: group, dataset, datatype, soft, again."""

    kind: str
    attributes: dict[str, Attribute] = field(default_factory=dict)
    target: str = ""
    type: bytes = b""
    mark: Any = None  # the column that a packed group holds
    dataset: DatasetInfo | None = None


@dataclass(slots=True)
class MergeInput:
    number: int
    path: str
    nodes: dict[str, Node] = field(default_factory=dict)
    recorded: bool = False  # the checksums of its chunks are known

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


@dataclass(slots=True)
class MergeTarget:
    """A dataset of the result: what it is made like, and of which rows. `ends`: these are ends of a packed column, and
    each source's must be moved to where its values went."""

    path: str
    like: DatasetInfo
    sources: list[DatasetInfo]
    runs: list[RowRange] = field(default_factory=list)
    ends: bool = False
    kept: bool = False  # equal in all sources, and taken from the first

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs) + self.ends

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.like.row_shape)
