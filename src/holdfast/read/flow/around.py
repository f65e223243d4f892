"""Samples of a shard in which some are damaged: all the others, found by halving."""

from __future__ import annotations

import numpy as np

from ...errors import DataError
from ...formats.columns import Batch, Ints
from ...formats.empty import empty_batch
from ...formats.gather import gather_rows
from ...formats.shard import Shard
from ...schema import Schema
from .samples import rows_of


def read_around(shard: Shard, numbers: Ints, schema: Schema) -> tuple[Batch, list[tuple[int, DataError]]]:
    """The samples with these numbers, but for those that cannot be read; and these, each with its error."""
    parts: list[Batch] = []
    damaged: list[tuple[int, DataError]] = []
    _halve(shard, numbers, schema, parts, damaged)
    if not parts:
        return empty_batch(schema), damaged
    sizes = [rows_of(part) for part in parts]
    which = np.repeat(np.arange(len(parts)), sizes)
    row = np.concatenate([np.arange(size) for size in sizes])
    return gather_rows(parts, which, row), damaged


def _halve(
    shard: Shard, numbers: Ints, schema: Schema, parts: list[Batch], damaged: list[tuple[int, DataError]]
) -> None:
    if not len(numbers):
        return
    try:
        parts.append(shard.read_rows(numbers, schema))
    except DataError as error:
        if len(numbers) == 1:
            damaged.append((int(numbers[0]), error))
            return
        half = len(numbers) // 2
        _halve(shard, numbers[:half], schema, parts, damaged)
        _halve(shard, numbers[half:], schema, parts, damaged)
