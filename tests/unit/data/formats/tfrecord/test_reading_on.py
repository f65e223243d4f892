"""One call into the codec goes through far more of a file than its buffer holds."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hold
from holdfast._native import codec
from holdfast.data.formats.tfrecord.frame_stream import FrameStream
from holdfast.data.formats.tfrecord.index import build_index
from holdfast.data.formats.tfrecord.source import open_source
from holdfast.data.formats.tfrecord.verify import verify_file
from holdfast.errors import CorruptError

pytestmark = pytest.mark.formats

SCHEMA = {"i": hold.Int64(), "x": hold.Bytes()}


def write(path: Path, sizes: list[int]) -> Path:
    with hold.TFRecordWriter(path, SCHEMA) as writer:
        writer.extend({"i": np.arange(len(sizes)), "x": [bytes([i % 251]) * size for i, size in enumerate(sizes)]})
    return path


def check(path: Path, sizes: list[int], batch: int = 64, **options: Any) -> None:
    """Every row is there, in order, with its own bytes."""
    seen = 0
    with hold.TFRecordReader(path, **options) as reader:
        for columns in reader.batches(SCHEMA, batch):
            for number, text in zip(columns["i"], columns["x"], strict=True):
                assert number == seen
                assert text == bytes([seen % 251]) * sizes[seen]
                seen += 1
    assert seen == len(sizes)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """Records of every size around the pieces and buffers that reading is done in, 12 MB in all."""
    dice = random.Random(5)
    sizes = [dice.choice([0, 1, 30, 300, 300, 300, 3_000, 20_000]) for _ in range(2500)]
    for at, size in ((300, 131_072), (900, 131_053), (901, 300_000), (1500, 2_500_000), (2000, 262_144)):
        sizes[at] = size
    return write(tmp_path_factory.mktemp("mixed") / "mixed.tfrecord", sizes), sizes


@pytest.mark.parametrize("buffer_bytes", [1, 20, 4096, 100_000, 1 << 18, 1 << 22])
def test_records_of_all_sizes_through_buffers_of_all_sizes(mixed: tuple[Path, list[int]], buffer_bytes: int) -> None:
    check(*mixed, buffer_bytes=buffer_bytes)


def test_counting_and_indexing_agree_with_the_reader(mixed: tuple[Path, list[int]]) -> None:
    path, sizes = mixed
    report = verify_file(path)
    assert (report.ok, report.records) == (True, len(sizes))
    with open_source(path) as source:
        offsets = build_index(source)
    frames = []
    with hold.TFRecordReader(path) as reader:
        frames = [len(record) + codec.OVERHEAD_BYTES for record in reader]
    assert np.diff(offsets).tolist() == frames


def test_a_damage_far_behind_is_found_where_it_is(mixed: tuple[Path, list[int]], tmp_path: Path) -> None:
    path, sizes = mixed
    with open_source(path) as source:
        offsets = build_index(source)
    data = bytearray(path.read_bytes())
    data[int(offsets[2100]) + 40] ^= 1
    broken = tmp_path / "broken"
    broken.write_bytes(data)
    rows = 0
    with hold.TFRecordReader(broken) as reader, pytest.raises(CorruptError) as caught:
        for batch in reader.batches(SCHEMA, 50):
            rows += len(batch["i"])
    assert (caught.value.record, caught.value.offset, rows) == (2100, int(offsets[2100]), 2100)
    report = verify_file(broken)
    assert [problem.record for problem in report.problems] == [2100]
    assert report.records == len(sizes) - 1


def test_a_file_that_ends_early_ends_with_an_error(mixed: tuple[Path, list[int]], tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    cut.write_bytes(mixed[0].read_bytes()[:-5])
    with hold.TFRecordReader(cut) as reader, pytest.raises(CorruptError, match="truncated"):
        for _ in reader.batches(SCHEMA, 64):
            pass


def test_a_file_that_is_cut_while_it_is_read(mixed: tuple[Path, list[int]], tmp_path: Path) -> None:
    """Not a Bus error, as with a mapped file."""
    path = tmp_path / "shrinking"
    path.write_bytes(mixed[0].read_bytes())
    with hold.TFRecordReader(path) as reader:
        batches = reader.batches(SCHEMA, 16)
        next(batches)
        os.truncate(path, 100_000)
        with pytest.raises(CorruptError, match="truncated"):
            for _ in batches:
                pass


def test_closing_waits_for_the_thread_that_reads(mixed: tuple[Path, list[int]]) -> None:
    """A number that is closed is given to the next file at once: reading on would give that one's bytes."""
    stream = FrameStream(open_source(mixed[0]))

    def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
        stream.close()
        os.fstat(stream.source.fd)  # still open
        return codec.scan(buf, start, stop, True)

    stream.pump(feed)
    assert stream.source.fd == -1
