"""A damaged file read around its damages gives what salvage would write, and writes nothing."""

from __future__ import annotations

import gzip
import os
import pickle
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import holdfast as hold
from holdfast import TFRecordReader
from holdfast._native import codec
from holdfast.data.formats.registry import find_format
from holdfast.data.formats.tfrecord.salvage import RepairedShard, build_repair_map, open_damaged
from holdfast.errors import CorruptError, DecodeError, FormatError, UnfinishedError
from holdfast.testing import ShardContract

pytestmark = pytest.mark.formats

SCHEMA = {"name": hold.Bytes(), "label": hold.Int64()}


def made(folder: Path, count: int = 10, suffix: str = "") -> tuple[Path, int]:
    """A file of records of one size, and that size."""
    path = folder / f"data.tfrecord{suffix}"
    with hold.TFRecordWriter(path, SCHEMA) as writer:
        writer.extend({"name": [b"a" * 50] * count, "label": list(range(count))})
    data = gzip.decompress(path.read_bytes()) if suffix else path.read_bytes()
    return path, len(data) // count


def flip(path: Path, *places: int) -> None:
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= 0x55
    path.write_bytes(data)


def contents(shard: RepairedShard) -> list[bytes]:
    column = shard.frames(0, len(shard))
    return [bytes(column[i]) for i in range(len(shard))]


def damage(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at : at + rng.randrange(1, 40)]
        case 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 40))
        case 3:
            data[at : at + 100] = bytes(len(data[at : at + 100]))


@pytest.mark.parametrize("seed", range(60))
def test_what_salvage_gets_is_read(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(b"".join(codec.frame(rng.randbytes(rng.randrange(80))) for _ in range(30)))
    for _ in range(rng.randrange(1, 4)):
        damage(rng, data)
    path = tmp_path / "data.tfrecord"
    path.write_bytes(data)
    with TFRecordReader(path, on_corrupt="salvage") as reader:
        want = [codec.frame(record) for record in reader.records()]
    if not want:
        with pytest.raises(CorruptError, match="might be data"):
            build_repair_map(path, salvage=True)
        return
    layout = build_repair_map(path, salvage=True)
    with RepairedShard(path, layout) as shard:
        assert contents(shard) == want
    assert sum(problem.bytes_lost for problem in layout.problems) + int(layout.offsets[-1]) == len(data)
    with RepairedShard(path, build_repair_map(path)) as shard:  # without the repaired ones
        repaired = {int(at) for at, _ in layout.headers}
        kept = [frame for frame, at in zip(want, layout.offsets[:-1].tolist(), strict=True) if at not in repaired]
        assert contents(shard) == kept
    assert path.read_bytes() == data


def test_a_damaged_header_is_left_out_or_put_right(tmp_path: Path) -> None:
    path, size = made(tmp_path)
    flip(path, 3 * size + 1, 7 * size)
    around = open_damaged(path)
    assert around is not None
    with around:
        assert around.read(0, len(around), SCHEMA)["label"].tolist() == [0, 1, 2, 4, 5, 6, 8, 9]
        assert around.read_rows([7, 3, 0], SCHEMA)["label"].tolist() == [9, 4, 0]
        assert around.bytes_of(0, 8) == 8 * size
        assert [(p.offset, p.record, p.bytes_lost) for p in around.layout.problems] == [
            (3 * size, 3, size),
            (7 * size, 7, size),
        ]
        assert "bad length CRC; its data are intact, and on_corrupt='salvage'" in around.layout.problems[0].reason
    back = open_damaged(path, salvage=True)
    assert back is not None
    with back:
        assert back.read(0, 10, SCHEMA)["label"].tolist() == list(range(10))
        assert back.read_rows([7, 3, 4], SCHEMA)["label"].tolist() == [7, 3, 4]
        assert back.schema == SCHEMA
        assert back.layout.problems == ()


def test_right_headers_are_laid_over_reads_that_begin_and_end_in_them(tmp_path: Path) -> None:
    path, size = made(tmp_path, 3)
    whole = path.read_bytes()
    flip(path, 0, size + 9, 2 * size)
    with RepairedShard(path, build_repair_map(path, salvage=True)) as shard, shard._opened() as source:
        assert source.size() == len(whole)
        for start in range(2 * size):
            for length in (0, 1, 5, 12, size, 3 * size):
                view = memoryview(bytearray(length))
                got = source.read_at(start, view)
                assert view[:got] == whole[start : start + length]
                assert got == len(whole[start : start + length])


def test_errors_name_the_place_in_the_damaged_file(tmp_path: Path) -> None:
    path, size = made(tmp_path)
    flip(path, 3 * size + 1)
    layout = build_repair_map(path)
    flip(path, 8 * size + 30)  # record 8 of the file, and 7 of what is left
    with RepairedShard(path, layout) as shard:
        with pytest.raises(CorruptError, match=f"record 7 at byte {8 * size:,}: bad data CRC"):
            shard.read(0, 9, SCHEMA)
        with pytest.raises(DecodeError, match=f"record 4 at byte {5 * size:,}: .*'name'"):
            shard.read_rows([4], {"name": hold.Int64()})


def test_a_torn_tail(tmp_path: Path) -> None:
    path, size = made(tmp_path)
    os.truncate(path, 10 * size - 5)
    with RepairedShard(path, build_repair_map(path)) as shard:
        assert shard.read(0, 9, SCHEMA)["label"].tolist() == list(range(9))
        [problem] = shard.layout.problems
    assert (problem.offset, problem.bytes_lost) == (9 * size, size - 5)
    assert problem.reason.startswith("truncated: the record needs")


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_packed_file_up_to_where_it_breaks(tmp_path: Path, how: str) -> None:
    rng = random.Random(7)
    path = tmp_path / "data.tfrecord.gz"
    with hold.TFRecordWriter(path, SCHEMA) as writer:
        writer.extend({"name": [rng.randbytes(500) for _ in range(200)], "label": list(range(200))})
    half = path.stat().st_size // 2
    if how == "cut":
        os.truncate(path, half)
    else:
        path.write_bytes(path.read_bytes()[:half] + b"\xff" * 1000)
    with RepairedShard(path, build_repair_map(path)) as shard:
        count = len(shard)
        assert 90 < count < 110
        assert shard.seekable is False
        for _ in range(2):
            assert shard.read(0, count, SCHEMA)["label"].tolist() == list(range(count))
        assert shard.read_rows([5, 2], SCHEMA)["label"].tolist() == [5, 2]
        assert "the gzip data are" in shard.layout.problems[-1].reason
    with pytest.raises(ValueError, match="the shard is closed"):
        shard.read(0, 1, SCHEMA)


def test_a_damage_inside_packed_data(tmp_path: Path) -> None:
    path, size = made(tmp_path, suffix=".gz")
    data = bytearray(gzip.decompress(path.read_bytes()))
    data[4 * size] ^= 1
    path.write_bytes(gzip.compress(data))
    with RepairedShard(path, build_repair_map(path)) as shard:
        assert shard.read(0, 9, SCHEMA)["label"].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    with RepairedShard(path, build_repair_map(path, salvage=True)) as shard:
        assert shard.read(0, 10, SCHEMA)["label"].tolist() == list(range(10))


def test_a_layout_is_pickled(tmp_path: Path) -> None:
    path, size = made(tmp_path)
    flip(path, 3 * size + 1)
    with RepairedShard(path, pickle.loads(pickle.dumps(build_repair_map(path, salvage=True)))) as shard:
        assert shard.read(0, 10, SCHEMA)["label"].tolist() == list(range(10))


def test_so_many_damages_and_no_more(tmp_path: Path) -> None:
    path, size = made(tmp_path)
    flip(path, 2 * size + 1, 4 * size + 1, 6 * size + 1)
    layout = build_repair_map(path, maximum=1)
    assert [problem.offset for problem in layout.problems] == [2 * size, 4 * size]
    assert "the rest of the file was given up" in layout.problems[1].reason
    with RepairedShard(path, layout) as shard:
        assert shard.read(0, len(shard), SCHEMA)["label"].tolist() == [0, 1, 3]


def test_a_file_with_no_good_record_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes(b"these are no records at all, but text\n" * 10)
    with pytest.raises(FormatError, match="not a TFRecord: this looks like a text file"):
        build_repair_map(path)
    path.write_bytes(codec.frame(b"cut")[:-2])
    with pytest.raises(CorruptError, match="truncated"):
        build_repair_map(path)


def test_a_file_that_is_being_written_is_not_damaged(tmp_path: Path) -> None:
    path, size = made(tmp_path)
    os.truncate(path, 10 * size - 5)
    with (
        open(path, "ab"),
        pytest.raises(UnfinishedError, match=f"still being written by process {os.getpid()}"),
    ):
        build_repair_map(path)
    assert len(build_repair_map(path).offsets) == 10


def test_other_formats_have_no_such_way(tmp_path: Path) -> None:
    for name, data in (("a.h5", b"no"), ("a.tar", b"no"), ("a", b"\x89HDF\r\n\x1a\n")):
        (tmp_path / name).write_bytes(data)
        assert find_format(tmp_path / name).open_damaged is None


def test_nothing_is_left_of_an_empty_or_whole_file(tmp_path: Path) -> None:
    path, _ = made(tmp_path)
    assert build_repair_map(path).problems == ()
    empty = tmp_path / "empty.tfrecord"
    empty.touch()
    with RepairedShard(empty, build_repair_map(empty)) as shard:
        assert len(shard) == 0


class TestMended(ShardContract):
    """What every shard owes, from one that had damaged headers, and junk between two records."""

    def make(self, folder: Path, rows: int) -> tuple[Path, Mapping[str, list[Any]]]:
        path = folder / "data.tfrecord"
        columns = {
            "name": [b"name %d" % i for i in range(rows)],
            "label": list(range(rows)),
            "emb": [[i + 0.5, -i, i * 0.25] for i in range(rows)],
        }
        with hold.TFRecordWriter(path, self.schema) as writer:
            writer.extend(columns)
        with TFRecordReader(path) as reader:
            frames = [bytearray(codec.frame(record)) for record in reader.records()]
        for frame in frames[2:-2:7]:
            frame[9] ^= 0x55
        for frame in frames[4:5]:
            frame += b"junk" * 20
        path.write_bytes(b"".join(frames))
        return path, columns

    def open(self, path: Path) -> RepairedShard:
        shard = open_damaged(path, salvage=True)
        assert shard is not None
        return shard
