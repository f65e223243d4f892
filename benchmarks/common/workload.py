"""The columns that contenders read and write, made from a seed, and sums that prove that they read the same.

Imports neither holdfast nor TensorFlow: each contender declares the schema in its own terms.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

EMBED = 64
IMAGE_BYTES = 100_000

Columns = dict[str, Any]


def small_columns(rows: int, seed: int = 0) -> Columns:
    """About 335 bytes a row, serialized."""
    rng = np.random.default_rng(seed)
    return {
        "id": [b"%08d" % i for i in range(rows)],
        "label": rng.integers(0, 1000, rows),
        "weight": rng.random(rows, np.float32),
        "embed": rng.random((rows, EMBED), np.float32),
    }


def big_columns(rows: int, seed: int = 0) -> Columns:
    """About 100 kB a row, incompressible like a JPEG."""
    rng = np.random.default_rng(seed)
    return {
        "image": [rng.bytes(IMAGE_BYTES) for _ in range(rows)],
        "label": rng.integers(0, 1000, rows),
    }


def chunks(kind: str, rows: int, seed: int) -> Iterator[Columns]:
    """Yields the rows of one file in pieces, so that making 600 MB does not take 600 MB."""
    make, limit = (small_columns, 50_000) if kind == "small" else (big_columns, 100)
    for done in range(0, rows, limit):
        yield make(min(limit, rows - done), seed + done)


# ---- data that are kept ------------------------------------------------------------------------------------


def data_folder(name: str, given: Path | None = None) -> Path:
    """Returns the folder for the data. Refuses one that another user has made under this name."""
    folder = given or Path(tempfile.gettempdir()) / f"holdfast-bench-{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise SystemExit(f"{folder}: expected a folder of user {os.getuid()}, got one of user {folder.stat().st_uid}")
    return folder


def made_once(home: Path, make: Callable[[Path], Any]) -> Path:
    """Returns `home`; makes it under another name and renames it when it is complete, unless it exists."""
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=home.parent))
        try:
            make(partial)
            partial.rename(home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return home


# ---- proof that all contenders read the same ---------------------------------------------------------------


class Sums:
    """Adds up all columns: exact, and independent of the order of rows."""

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
