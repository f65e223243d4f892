"""The data all sides work on: numpy columns from a seed, so that every process can make the same ones.

Knows neither holdfast nor TensorFlow: each side says in its own terms what the columns are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

SHARDS = 4
EMBED = 64
IMAGE_BYTES = 100_000
FRAME_BYTES = 16  # length, its CRC, the data's CRC

Columns = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work a run is."""

    small_rows: int
    big_rows: int
    write_rows: int
    memory_bytes: int
    turn_s: float  # a turn takes at least this long, in as many passes as it needs


FULL = Sizes(small_rows=400_000, big_rows=6_000, write_rows=100_000, memory_bytes=2 << 30, turn_s=0.3)
QUICK = Sizes(small_rows=8_000, big_rows=160, write_rows=2_000, memory_bytes=32 << 20, turn_s=0.0)

BATCH = {"small": 256, "big": 32}


def small_columns(rows: int, seed: int = 0) -> Columns:
    """About 335 bytes a row, serialised."""
    rng = np.random.default_rng(seed)
    return {
        "id": [b"%08d" % i for i in range(rows)],
        "label": rng.integers(0, 1000, rows),
        "weight": rng.random(rows, np.float32),
        "embed": rng.random((rows, EMBED), np.float32),
    }


def big_columns(rows: int, seed: int = 0) -> Columns:
    """About 100 kB a row: bytes that do not compress, as a JPEG's."""
    rng = np.random.default_rng(seed)
    return {
        "image": [rng.bytes(IMAGE_BYTES) for _ in range(rows)],
        "label": rng.integers(0, 1000, rows),
    }


def chunks(kind: str, rows: int, seed: int) -> Iterator[Columns]:
    """The rows of one file in pieces, so that making 600 MB takes no 600 MB."""
    make, most = (small_columns, 50_000) if kind == "small" else (big_columns, 100)
    for done in range(0, rows, most):
        yield make(min(most, rows - done), seed + done)


# ---- proof that all sides read the same --------------------------------------------------------------------


class Sums:
    """Adds up what a side read. Exact, and the same in whatever order the rows come."""

    def __init__(self) -> None:
        self.records = 0
        self.totals: dict[str, int] = {}

    def numbers(self, name: str, values: Any) -> None:
        bits = np.ascontiguousarray(values)
        bits = bits.view({4: np.uint32, 8: np.uint64, 1: np.uint8}[bits.dtype.itemsize])
        self._add(name, int(bits.sum(dtype=np.uint64)))

    def text(self, name: str, value: bytes | memoryview) -> None:
        self.numbers(name, np.frombuffer(value, np.uint8))

    def _add(self, name: str, amount: int) -> None:
        self.totals[name] = (self.totals.get(name, 0) + amount) % (1 << 64)

    def as_dict(self) -> dict[str, int]:
        return {"records": self.records, **dict(sorted(self.totals.items()))}
