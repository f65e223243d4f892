"""What the sides of benchmarks/write.py share: the rows they write, and the clock they are timed by.

Knows neither holdfast nor h5py.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from read_pass import tree_cpu_s

ROW_FLOATS = 1024  # 4 KiB
BLOCK_ROWS = 64  # a block is a chunk: 256 KiB
BLOCK_BYTES = 4 * ROW_FLOATS * BLOCK_ROWS
GZIP_LEVEL = 4
CODECS = {"plain": "none", "gzip": ("gzip", GZIP_LEVEL), "lzf": "lzf"}

_DIFFERENT = 16  # blocks; then they come again

Block = npt.NDArray[np.float32]


class Clock:
    """Since it was made: seconds, and CPU time of this process and of all that came from it."""

    def __init__(self) -> None:
        self._cpu_s = tree_cpu_s()
        self._start_s = time.perf_counter()

    def lap_s(self) -> float:
        return time.perf_counter() - self._start_s

    def told(self) -> dict[str, float]:
        """Takes the place of worker.take_turn's own: what was prepared does not count."""
        seconds = self.lap_s()
        return {"seconds": seconds, "cpu_s": tree_cpu_s() - self._cpu_s}


class Blocks:
    """The blocks that one writer writes, by number: noise, or packable to a half."""

    def __init__(self, seed: int, codec: str) -> None:
        rng = np.random.default_rng(seed)
        self._blocks = [rng.random((BLOCK_ROWS, ROW_FLOATS), np.float32) for _ in range(_DIFFERENT)]
        for block in self._blocks if codec != "plain" else []:
            block[:, ROW_FLOATS // 2 :] = 0  # gzip and lzf alike get rid of that, and of little else

    def __getitem__(self, number: int) -> Block:
        return self._blocks[number % _DIFFERENT]


def write_synced(path: Path, data: Any) -> tuple[float, float]:
    """A plain file and its fsync: how long either took."""
    view = memoryview(data).cast("B")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        start_s = time.perf_counter()
        for at in range(0, len(view), 1 << 20):
            os.write(fd, view[at : at + (1 << 20)])
        written_s = time.perf_counter()
        os.fsync(fd)
        return written_s - start_s, time.perf_counter() - written_s
    finally:
        os.close(fd)
