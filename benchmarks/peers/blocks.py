"""Shuffling by hand: chunks in random order, and the rows of as many of them as fit into the window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers.data import CHUNK_ROWS, SHUFFLE, SMALL_BATCH
from benchmarks.peers.operations import Batches

RNG = np.random.default_rng()


def windows(rows: int) -> Iterator[Any]:
    """Yields the first rows of the chunks in each window."""
    starts = RNG.permutation(range(0, rows, CHUNK_ROWS))
    size = SHUFFLE["rows"] // CHUNK_ROWS
    for first in range(0, len(starts), size):
        yield starts[first : first + size]


def shuffled_batches(ids: Any, starts: Any, block: Any) -> Batches:
    """`block` has the chunks that begin at `starts`."""
    places = (starts[:, None] + np.arange(CHUNK_ROWS)).ravel()
    order = RNG.permutation(len(places))
    values = block.reshape(len(places), -1)
    for start in range(0, len(order), SMALL_BATCH):
        chosen = order[start : start + SMALL_BATCH]
        yield {"id": ids[places[chosen]], "values": values[chosen]}
