"""limits(memory=…) in RSS: python -m benchmarks.read.memory measures many more cases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hold

CHILD = Path(__file__).with_name("read_memory_child.py")


def small(rows: int) -> dict[str, Any]:
    """About 50 bytes each: their order is a large part of what they take."""
    return {"label": np.arange(rows), "weight": np.linspace(0, 1, rows, dtype=np.float32)}


def large(rows: int) -> dict[str, Any]:
    image = np.random.default_rng(1).bytes(100_000)
    return {"label": np.arange(rows), "image": [image] * rows}


@pytest.mark.parametrize(
    ("columns", "rows", "batch", "memory_mb", "prefetch", "rounds"),
    # With prefetch the threads' turns decide how much is there at once.
    [(small, 960_000, 1024, 50, "", 1), (large, 1_600, 140, 60, "20MB", 3)],
    ids=["small shuffled records", "large records and prefetch"],
)
def test_the_growth_of_rss_is_within_a_quarter_of_the_bound(
    columns: Any, rows: int, batch: int, memory_mb: int, prefetch: str, rounds: int, tmp_path: Path
) -> None:
    schema = {"label": hold.Int64(), **({"weight": hold.Float32()} if columns is small else {"image": hold.Bytes()})}
    for name, n in [("one", 1), *((f"part-{shard}", rows // 8) for shard in range(8))]:
        with hold.TFRecordWriter(tmp_path / f"{name}.tfrecord", schema) as writer:
            writer.extend(columns(n))
    asked = [str(tmp_path), str(batch), f"{memory_mb}MB", prefetch]
    for _ in range(rounds):
        done = subprocess.run([sys.executable, CHILD, *asked], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        samples, growth_bytes = map(int, done.stdout.split())
        assert samples == rows
        assert growth_bytes <= 1.25 * memory_mb * 1_000_000
