"""What the programs of several ranks share: the data, and a ledger of the ids that each rank was given."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast as hold

SCHEMA = {"id": hold.Int64(), "x": hold.Float32(2)}
COUNTS = (40, 0, 1, 62)
SAMPLES = sum(COUNTS)  # 103: neither ranks nor batches divide it
BATCH = 8


def make(folder: Path) -> None:
    first = 0
    for number, count in enumerate(COUNTS):
        with hold.TFRecordWriter(folder / f"{number}.tfrecord", SCHEMA) as writer:
            for i in range(first, first + count):
                writer.append(id=i, x=[i, -i])
        first += count


def unordered() -> hold.Dataset:
    return hold.read(f"{sys.argv[1]}/*.tfrecord", SCHEMA)


def samples(shard: str | tuple[int, int] | None = "auto") -> hold.Dataset:
    return unordered().shuffle(seed=3).shard(shard)


def batches(shard: str | tuple[int, int] | None = "auto") -> hold.Dataset:
    return samples(shard).batch(BATCH)


def one_pass(loader: Any) -> list[int]:
    return [int(i) for batch in loader for i in batch["id"]]


def two_passes(loader: Any) -> dict[str, Any]:
    passes = [one_pass(loader), one_pass(loader)]
    try:
        return {"passes": passes, "length": len(loader)}
    except TypeError:
        return {"passes": passes, "length": None}


class Ledger:
    """`{case: what came of it}`, in a file for each rank."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def enter(self, case: str, play: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """What `play` gives, or the error that it ends in."""
        try:
            self._found[case] = play(*arguments, **options)
        except Exception as error:  # noqa: BLE001 each is a finding
            self._found[case] = f"{type(error).__name__}: {error}"

    def write(self, rank: int, name: str = "ledger") -> None:
        part = Path(sys.argv[2], f"{name}-{rank}.partial")
        part.write_text(json.dumps(self._found))
        os.replace(part, part.with_suffix(".json"))
