"""TFRecord files as shards: errors that name the record, and large values that are not copied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import holdfast as hold
from holdfast.data.formats.columns import ZeroCopyBytesColumn
from holdfast.data.formats.registry import open_shard
from holdfast.data.formats.tfrecord.shard import TFRecordShard
from holdfast.errors import CorruptError, DecodeError, FormatError, InputError

pytestmark = pytest.mark.formats

SCHEMA = {"name": hold.Bytes(), "label": hold.Int64()}


def made(folder: Path, names: list[bytes], suffix: str = "") -> Path:
    path = folder / f"data.tfrecord{suffix}"
    with hold.TFRecordWriter(path, SCHEMA) as writer:
        writer.extend({"name": names, "label": list(range(len(names)))})
    return path


def test_a_flipped_bit_names_the_record_and_spares_the_others(tmp_path: Path) -> None:
    path = made(tmp_path, [b"a" * 50] * 10)
    size = path.stat().st_size // 10
    data = bytearray(path.read_bytes())
    data[6 * size + 30] ^= 1
    path.write_bytes(data)
    with open_shard(path) as shard:
        assert shard.read(0, 6, SCHEMA)["label"].tolist() == [0, 1, 2, 3, 4, 5]
        with pytest.raises(CorruptError, match=f"record 6 at byte {6 * size:,}: bad data CRC"):
            shard.read(4, 9, SCHEMA)
        with pytest.raises(CorruptError, match="record 6 "):
            shard.read_rows([9, 6, 0], SCHEMA)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_record_that_does_not_fit_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data.tfrecord{suffix}"
    with hold.TFRecordWriter(path, {"x": hold.Ragged(hold.Int64())}) as writer:
        writer.extend({"x": [[1], [2], [3, 4], [5]]})
    with open_shard(path) as shard:
        with pytest.raises(DecodeError, match="record 2 at byte .*'x': expected 1 value, got 2"):
            shard.read_rows([3, 2, 0], {"x": hold.Int64()})
        assert shard.read_rows([3, 0], {"x": hold.Int64()})["x"].tolist() == [5, 1]


def test_records_that_are_no_examples(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    with hold.TFRecordWriter(path) as writer:
        writer.write(b"\xff\xff")
    with open_shard(path) as shard:
        with pytest.raises(FormatError, match="not a tf.train.Example"):
            _ = shard.schema
        with pytest.raises(DecodeError, match="record 0 .*not a tf.train.Example"):
            shard.read(0, 1, SCHEMA)


def test_a_file_cut_after_it_was_opened(tmp_path: Path) -> None:
    path = made(tmp_path, [b"a" * 50] * 10)
    with open_shard(path) as shard:
        os.truncate(path, path.stat().st_size - 5)
        assert shard.read(0, 9, SCHEMA)["label"].tolist() == list(range(9))
        with pytest.raises(CorruptError, match="record 9 at byte .*truncated"):
            shard.read(5, 10, SCHEMA)


def test_a_file_rewritten_after_it_was_opened(tmp_path: Path) -> None:
    path = made(tmp_path, [b"a" * 50, b"b" * 60])
    with open_shard(path) as shard:
        other = made(tmp_path, [b"a" * 40] * 3, ".other")
        data = other.read_bytes()
        other.unlink()
        path.write_bytes(data)
        with pytest.raises(CorruptError, match="changed since it was opened"):
            shard.read(0, 1, SCHEMA)


def test_large_values_are_lent(tmp_path: Path) -> None:
    names = [bytes([i]) * 40_000 for i in range(5)]
    path = made(tmp_path, names)
    with open_shard(path) as shard:
        batch = shard.read_rows([4, 0, 1], SCHEMA)
    assert batch["name"].tolist() == [names[4], names[0], names[1]]
    assert batch["label"].tolist() == [4, 0, 1]
    if os.environ.get("HOLDFAST_NATIVE") != "0":
        assert isinstance(batch["name"], ZeroCopyBytesColumn)


def test_packed_rows_in_any_order(tmp_path: Path) -> None:
    path = made(tmp_path, [b"n%d" % i for i in range(30)], ".gz")
    with open_shard(path) as shard:
        assert not shard.seekable
        assert shard.read_rows([29, 0, 15], SCHEMA)["name"].tolist() == [b"n29", b"n0", b"n15"]


def test_folders_and_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a file to read, this is a folder"):
        open_shard(tmp_path)
    with pytest.raises(ValueError, match="expected verify to be one of all, header, got 'none'"):
        TFRecordShard(made(tmp_path, [b"a"]), verify="none")  # type: ignore[arg-type]
    with open_shard(tmp_path / "data.tfrecord") as shard, pytest.raises(TypeError, match="expected a sample's number"):
        shard.read_rows([True], SCHEMA)
