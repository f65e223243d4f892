"""Large values stay in the buffer they were read into: the same rows, and what is kept stays as it was."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import holdfast as hold
from holdfast._native import codec
from holdfast.data.formats.columns import BytesColumn, ZeroCopyBytesColumn
from holdfast.errors import CorruptError, DecodeError

pytestmark = pytest.mark.formats

SCHEMA = {"image": hold.Bytes(), "label": hold.Int64(), "thumb": hold.Bytes(default=b"none")}


def image(i: int) -> bytes:
    return random.Random(int(i)).randbytes(20_000 + 17 * (i * 7919 % 4000))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "x.tfrecord"
    with hold.TFRecordWriter(path, {"image": hold.Bytes(), "label": hold.Int64()}) as writer:
        for i in range(200):
            writer.append(image=image(i), label=i)
    return path


@pytest.mark.parametrize("size", [1, 3, 8, 32, 150])
@pytest.mark.parametrize("buffer_bytes", [100, 1 << 19])
def test_every_row_once_in_order(file: Path, size: int, buffer_bytes: int) -> None:
    seen = 0
    with hold.TFRecordReader(file, buffer_bytes=buffer_bytes) as reader:
        for batch in reader.batches(SCHEMA, size):
            rows = len(batch["label"])
            assert rows == min(size, 200 - seen)
            assert batch["label"].tolist() == list(range(seen, seen + rows))
            for i in range(rows):
                assert batch["image"][i] == image(seen + i)
                assert batch["thumb"][i] == b"none"
            seen += rows
    assert seen == 200


def test_kept_items_and_batches_stay_as_they_were(file: Path) -> None:
    items, batches = [], []
    with hold.TFRecordReader(file) as reader:
        for batch in reader.batches(SCHEMA, 16):
            items.append((int(batch["label"][3]), batch["image"][3]))
            if len(batches) < 5:
                batches.append(batch)
    assert all(item == image(label) for label, item in items)
    for batch in batches:
        assert batch["image"].tolist() == [image(label) for label in batch["label"]]


def test_a_lent_column_is_a_bytes_column(file: Path) -> None:
    with hold.TFRecordReader(file) as reader:
        *_, batch = reader.batches(SCHEMA, 10)
    column = batch["image"]
    assert isinstance(column, BytesColumn)
    assert isinstance(column, ZeroCopyBytesColumn) == codec.NATIVE
    want = [image(i) for i in range(190, 200)]
    assert column.tolist() == want
    assert bytes(column.values) == b"".join(want)
    assert column.offsets.tolist() == [0, *np.cumsum([len(data) for data in want]).tolist()]
    assert column[2:4].tolist() == want[2:4]
    assert column[-1] == want[-1]
    assert column[5:5].tolist() == []
    assert len(column[5:5].values) == 0
    assert column.copy().tolist() == want
    assert "10" in repr(column)
    with pytest.raises(IndexError):
        column[10]


def test_a_damage_comes_after_the_rows_before_it(file: Path, tmp_path: Path) -> None:
    with hold.Records(file, cache=False) as records:
        start = int(records._offsets[150])
    data = bytearray(file.read_bytes())
    data[start + 5000] ^= 1
    broken = tmp_path / "broken"
    broken.write_bytes(data)
    rows = 0
    with hold.TFRecordReader(broken) as reader, pytest.raises(CorruptError, match="record 150 "):
        for batch in reader.batches(SCHEMA, 50):
            rows += len(batch["label"])
    assert rows == 150
    with hold.TFRecordReader(broken, on_corrupt="salvage") as reader:
        assert sum(len(batch["label"]) for batch in reader.batches(SCHEMA, 32)) == 199


def test_a_mismatch_among_large_records_is_named(file: Path) -> None:
    with hold.TFRecordReader(file) as reader, pytest.raises(DecodeError, match="record 0 .*'label': expected floats"):
        list(reader.batches({"image": hold.Bytes(), "label": hold.Float32()}, 8))


def test_memory_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "big"
    with hold.TFRecordWriter(path, {"image": hold.Bytes()}) as writer:
        for _ in range(1500):
            writer.append(image=bytes(100_000))
    code = """
import sys, holdfast as hold, numpy
def high():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
reader = hold.TFRecordReader(sys.argv[1])
batches = reader.batches({"image": hold.Bytes()}, 32)
next(batches)
before = high()
print(sum(len(b["image"]) for b in batches), high() - before)
reader.close()
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    rows, grown_kib = map(int, done.stdout.split())
    assert rows == 1500 - 32
    assert grown_kib < 32 << 10, "150 MB were read"
    os.unlink(path)


def test_going_on_after_large_batches_costs_no_memory(file: Path) -> None:
    with hold.TFRecordReader(file) as reader:
        batches = reader.batches(SCHEMA, 8)
        for _ in range(3):
            next(batches)
        batches.close()  # type: ignore[attr-defined]
        rest = list(reader)
        assert len(reader._stream.window.buf) <= 2 << 20
    assert len(rest) == 200 - 24


def test_a_loop_left_after_close(file: Path) -> None:
    with hold.TFRecordReader(file) as reader:
        batches = reader.batches(SCHEMA, 8)
        next(batches)
        next(batches)
    with pytest.raises(ValueError, match="closed"):
        list(batches)
    with hold.TFRecordReader(file) as reader:
        batches = reader.batches(SCHEMA, 8)
        next(batches)
        kept = next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert kept["image"][0] == image(8)
