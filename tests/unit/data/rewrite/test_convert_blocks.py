"""Samples some at a time: never more than a block of memory, whatever is in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import holdfast as hold
from holdfast.data.formats.columns import nbytes_of
from holdfast.data.formats.registry import open_shard
from holdfast.data.formats.targets import ShardCut
from holdfast.data.rewrite import engine
from holdfast.data.rewrite.engine import each_block, row_sizes
from holdfast.schema import Bytes, Column, Float32, Ragged


def test_few_large_rows_behind_many_small_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema: dict[str, Column] = {"x": Bytes()}
    with hold.TFRecordWriter(tmp_path / "a.tfrecord", schema) as writer:
        writer.extend({"x": [b"x"] * 3000 + [bytes(100_000)] * 50 + [b"y"] * 3000})
    monkeypatch.setattr(engine, "BLOCK_BYTES", 300_000)
    with open_shard(tmp_path / "a.tfrecord") as shard:
        found = list(each_block(shard, schema))
    assert sum(rows for _, rows in found) == 6050
    assert max(nbytes_of(batch) for batch, _ in found) <= 310_000
    assert len(found) < 60


def test_chunks_that_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a megabyte that take nearly nothing in the file."""
    with hold.write(tmp_path / "run.hold", {"x": Bytes()}).part("t", codec="gzip") as part:
        for _ in range(40):
            part.extend({"x": [bytes(1 << 20)]})
    monkeypatch.setattr(engine, "BLOCK_BYTES", 2 << 20)
    monkeypatch.setattr(engine, "_FIRST_ROWS", 1)
    [path] = (tmp_path / "run.hold" / "parts").glob("*.h5")
    with open_shard(path) as shard:
        found = list(each_block(shard, shard.schema))
    assert sum(rows for _, rows in found) == 40
    assert max(nbytes_of(batch) for batch, _ in found) <= 3 << 20


def test_blocks_end_where_chunks_do(tmp_path: Path) -> None:
    with hold.write(tmp_path / "run.hold", {"x": Float32(4)}).part("t", chunk_rows=100) as part:
        part.extend({"x": np.ones((5050, 4))})
    [path] = (tmp_path / "run.hold" / "parts").glob("*.h5")
    with open_shard(path) as shard:
        rows = [count for _, count in each_block(shard, shard.schema)]
    assert sum(rows) == 5050
    ends = np.cumsum(rows)[:-1]
    assert [int(end) for end in ends if end % 100] == [64]  # the first is small: nothing is known yet


def test_the_size_of_rows(tmp_path: Path) -> None:
    schema: dict[str, Column] = {"n": Float32(2), "b": Bytes(), "p": Bytes(2), "r": Ragged(Ragged(Bytes()))}
    with hold.write(tmp_path / "run.hold", schema).part("t") as part:
        part.extend(
            {
                "n": np.ones((2, 2)),
                "b": [b"abc", b""],
                "p": [[b"a", b"b"], [b"", b""]],
                "r": [[[b"xy"], []], []],
            }
        )
    [path] = (tmp_path / "run.hold" / "parts").glob("*.h5")
    with open_shard(path) as shard:
        sizes = row_sizes(shard.read(0, 2), 2)
    # Two floats; a string and its length; two of both; a list, two lists in it, and a string.
    assert sizes.tolist() == [8 + 11 + 18 + (8 + 16 + 10), 8 + 8 + 16 + 8]


def test_where_shards_end() -> None:
    cut = ShardCut([3, 3, 4])
    assert list(cut.spans(10)) == [(0, 0, 3), (1, 3, 6), (2, 6, 10)]
    by_size = ShardCut(shard_bytes=24)
    bounds = np.arange(0, 88, 8)
    for _ in range(2):
        spans = list(by_size.spans(10, bounds))
    assert spans[0] == (3, 0, 2)  # what the batch before left room for
    assert by_size.counts == [3, 3, 3, 3, 3, 3, 2]


MEASURE = """
import resource, sys
import holdfast as hold
from holdfast.data.rewrite.convert import convert
convert(sys.argv[1], sys.argv[2] + "/small" + sys.argv[3], {"x": hold.Bytes()})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert(sys.argv[4], sys.argv[2] + "/large" + sys.argv[3], {"x": hold.Bytes()})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("suffix", [".h5", ".tar"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, suffix: str) -> None:
    for name, rows in (("small", 400), ("large", 2000)):
        with hold.TFRecordWriter(tmp_path / f"{name}.tfrecord", {"x": Bytes()}) as writer:
            for _ in range(rows):
                writer.append(x=os.urandom(100_000))
    paths = [str(tmp_path / "small.tfrecord"), str(tmp_path), suffix, str(tmp_path / "large.tfrecord")]
    done = subprocess.run([sys.executable, "-c", MEASURE, *paths], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40  # MB, of 160 MB more
