"""Small datasets on disk: every sample knows its number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hold

SCHEMA = {
    "id": hold.Int64(),
    "name": hold.Bytes(),
    "emb": hold.Float32(3),
    "tags": hold.Ragged(hold.Int64()),
}


def columns_of(first: int, count: int, pad: int = 0) -> dict[str, Any]:
    numbers = range(first, first + count)
    return {
        "id": np.arange(first, first + count),
        "name": [f"sample {i}".encode() + bytes(pad) for i in numbers],
        "emb": np.arange(first * 3, (first + count) * 3, dtype=np.float32).reshape(-1, 3),
        "tags": [list(range(i % 4)) for i in numbers],
    }


def make_shards(folder: Path, counts: Sequence[int], pad: int = 0, suffix: str = ".tfrecord") -> list[Path]:
    """Shards with so many samples each, numbered through."""
    paths, first = [], 0
    for at, count in enumerate(counts):
        paths.append(folder / f"shard-{at:04}{suffix}")
        with hold.TFRecordWriter(paths[-1], SCHEMA) as writer:
            if count:
                writer.extend(columns_of(first, count, pad))
        first += count
    return paths


def ids_of(batches: Iterable[Any]) -> list[int]:
    return [int(i) for batch in batches for i in np.atleast_1d(batch["id"])]


def check_rows(batch: Any, pad: int = 0) -> None:
    """Every column belongs to the sample that the number says."""
    for at, number in enumerate(batch["id"].tolist()):
        assert bytes(batch["name"][at]) == f"sample {number}".encode() + bytes(pad)
        assert batch["emb"][at].tolist() == [number * 3, number * 3 + 1, number * 3 + 2]
        assert batch["tags"][at].tolist() == list(range(number % 4))
