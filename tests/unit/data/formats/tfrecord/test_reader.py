"""Reading: values, errors that say where and what, and nothing used beyond the bound."""

from __future__ import annotations

import gc
import gzip
import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hold
from holdfast._native import codec
from holdfast.data.formats.columns import BytesColumn, RaggedColumn
from holdfast.errors import (
    CorruptError,
    DecodeError,
    FormatError,
    HoldfastError,
    InputError,
    SchemaError,
    UnfinishedError,
)

pytestmark = pytest.mark.formats

SCHEMA = {
    "name": hold.Bytes(),
    "label": hold.Int64(),
    "emb": hold.Float32(2, 2),
    "boxes": hold.Ragged(hold.Float32(4)),
    "tags": hold.Ragged(hold.Bytes()),
    "pair": hold.Bytes(2),
}


def sample(i: int) -> dict[str, Any]:
    return {
        "name": f"sample {i}".encode(),
        "label": (-1) ** i * i,
        "emb": [[i, 1], [2, 3]],
        "boxes": [[1, 2, 3, i]] * (i % 3),
        "tags": [b"t%d" % k for k in range(i % 4)],
        "pair": [b"left", b"%d" % i],
    }


def write(path: Path, n: int = 1000, **options: Any) -> Path:
    with hold.TFRecordWriter(path, SCHEMA, **options) as writer:
        for i in range(n):
            writer.append(**sample(i))
    return path


def raw(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(b"".join(codec.frame(record) for record in records))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "data.tfrecord")


@pytest.mark.parametrize("size", [1, 7, 64, 999, 1000, 5000])
def test_every_row_once_in_order_whatever_the_batch(file: Path, size: int) -> None:
    got: list[dict[str, Any]] = []
    with hold.TFRecordReader(file) as reader:
        for batch in reader.batches(SCHEMA, size):
            rows = len(batch["label"])
            assert rows == size or len(got) + rows == 1000
            for i in range(rows):
                name, pair, tags = batch["name"][i], batch["pair"][i], batch["tags"][i]
                got.append(
                    {
                        "name": bytes(name),
                        "label": int(batch["label"][i]),
                        "emb": batch["emb"][i].tolist(),
                        "boxes": batch["boxes"][i].tolist(),
                        "tags": tags.tolist(),
                        "pair": pair.tolist(),
                    }
                )
    assert got == [sample(i) for i in range(1000)]


def test_the_last_batch_can_be_dropped(file: Path) -> None:
    with hold.TFRecordReader(file) as reader:
        sizes = [len(batch["label"]) for batch in reader.batches(SCHEMA, 300, drop_last=True)]
    assert sizes == [300, 300, 300]


def test_columns_are_what_they_say(file: Path) -> None:
    with hold.TFRecordReader(file) as reader:
        batches = list(reader.batches(SCHEMA, 300))
    for at, batch in zip((0, 300, 600, 900), batches, strict=True):
        rows = min(300, 1000 - at)
        assert batch["label"].dtype == np.int64
        assert batch["label"].shape == (rows,)
        assert batch["emb"].dtype == np.float32
        assert batch["emb"].shape == (rows, 2, 2)
        name, boxes = batch["name"], batch["boxes"]
        assert isinstance(name, BytesColumn)
        assert isinstance(boxes, RaggedColumn)
        assert name.offsets[0] == 0
        assert len(name.offsets) == rows + 1
        assert bytes(name.values).startswith(b"sample %d" % at)
        assert len(name.values) == name.offsets[-1]
        assert boxes.row_splits[0] == 0
        assert boxes.values.shape == (boxes.row_splits[-1], 4)
        assert isinstance(name[0], memoryview)
        assert np.shares_memory(np.asarray(name[0]), name.values), "an item is a view, not a copy"
        assert name[-1] == b"sample %d" % (at + rows - 1)
        assert name[1:3].tolist() == [b"sample %d" % (at + 1), b"sample %d" % (at + 2)]
        assert name.copy().tolist() == name.tolist()
        assert boxes.copy().tolist() == boxes.tolist()


def test_records_are_bytes_objects(tmp_path: Path) -> None:
    records = [b"", b"one", bytes(300_000), b"last"]
    with hold.TFRecordReader(raw(tmp_path / "r", records)) as reader:
        assert list(reader) == records


@pytest.mark.parametrize("buffer_bytes", [1, 16, 100, 4096])
def test_records_longer_than_the_buffer(tmp_path: Path, buffer_bytes: int) -> None:
    records = [bytes([i]) * (i * 37) for i in range(100)]
    with hold.TFRecordReader(raw(tmp_path / "r", records), buffer_bytes=buffer_bytes) as reader:
        assert list(reader) == records


@pytest.mark.parametrize(
    "pack", [gzip.compress, zlib.compress, lambda data: gzip.compress(data[:5000]) + gzip.compress(data[5000:])]
)
@pytest.mark.parametrize("name", ["x.tfrecord", "x.tfrecord.gz", "x.zlib"])
def test_packed_files_are_known_by_content_not_by_name(file: Path, tmp_path: Path, pack: Any, name: str) -> None:
    packed = tmp_path / name
    packed.write_bytes(pack(file.read_bytes()))
    with hold.TFRecordReader(packed) as reader:
        assert sum(len(batch["label"]) for batch in reader.batches(SCHEMA, 64)) == 1000
    with pytest.raises(FormatError, match="expected plain data, got"):
        hold.TFRecordReader(packed, compression="none")


@pytest.mark.parametrize("length", [0x0178, 0x5E78, 0x9C78, 0xDA78, 0x088B1F])
def test_a_plain_file_that_begins_like_a_packed_one(tmp_path: Path, length: int) -> None:
    path = raw(tmp_path / "r", [bytes(length), b"second"])
    with hold.TFRecordReader(path) as reader:
        assert [len(record) for record in reader] == [length, 6]


def test_plain_read_as_gzip_is_reported(file: Path) -> None:
    with pytest.raises(FormatError, match="expected gzip data, got"):
        hold.TFRecordReader(file, compression="gzip")


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with hold.TFRecordReader(tmp_path / "empty") as reader:
        assert list(reader) == []
    with hold.TFRecordReader(tmp_path / "empty") as reader:
        assert list(reader.batches(SCHEMA, 4)) == []


# ---- damage


def damaged(file: Path, at: int, change: int = 1) -> Path:
    data = bytearray(file.read_bytes())
    data[at] ^= change
    file.write_bytes(data)
    return file


def offsets(file: Path) -> list[int]:
    with hold.Records(file, cache=False) as records:
        return [int(offset) for offset in records._offsets]


def test_an_error_names_file_record_offset_and_reason(file: Path) -> None:
    start = offsets(file)[17]
    damaged(file, start + 40)
    with pytest.raises(CorruptError) as caught, hold.TFRecordReader(file) as reader:
        list(reader)
    error = caught.value
    assert (error.path, error.record, error.offset, error.reason) == (str(file), 17, start, "bad data CRC")
    assert f"holdfast salvage {file}" in str(error)


def test_a_bad_length_is_distinguished_from_bad_data(file: Path) -> None:
    start = offsets(file)[17]
    damaged(file, start + 2)
    with pytest.raises(CorruptError, match="bad length CRC") as caught, hold.TFRecordReader(file) as reader:
        list(reader)
    assert (caught.value.record, caught.value.offset) == (17, start)


def test_what_came_before_a_damage_is_handed_out_first(file: Path) -> None:
    damaged(file, offsets(file)[130] + 40)
    with hold.TFRecordReader(file) as reader:
        got = []
        with pytest.raises(CorruptError):
            for record in reader:
                got.append(record)
        assert len(got) == 130
    with hold.TFRecordReader(file) as reader:
        rows = 0
        with pytest.raises(CorruptError):
            for batch in reader.batches(SCHEMA, 50):
                rows += len(batch["label"])
        assert rows == 100


@pytest.mark.parametrize("cut", [1, 5, 11, 12, 13, 30])
def test_a_cut_file_says_truncated(file: Path, cut: int) -> None:
    start = offsets(file)[-2]
    os.truncate(file, start + cut)
    with pytest.raises(CorruptError, match="truncated") as caught, hold.TFRecordReader(file) as reader:
        list(reader)
    assert (caught.value.record, caught.value.offset) == (999, start)


def test_a_header_that_claims_the_moon_allocates_nothing(tmp_path: Path) -> None:
    for length in (1 << 63, (1 << 64) - 1, (1 << 64) - 16, 1 << 40):
        raw_length = length.to_bytes(8, "little")
        crc = codec.crc32c(raw_length)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        path = tmp_path / "moon"
        path.write_bytes(codec.frame(b"fine") + raw_length + masked.to_bytes(4, "little") + b"little")
        for packed in (path.read_bytes(), gzip.compress(path.read_bytes())):
            path.write_bytes(packed)
            with hold.TFRecordReader(path) as reader:
                with pytest.raises(CorruptError, match="truncated") as caught:
                    list(reader)
                assert len(reader._stream.window.buf) < 4 << 20
            assert caught.value.record == 1


def test_skip_leaves_out_the_record_and_goes_on(file: Path) -> None:
    starts = offsets(file)
    damaged(file, starts[17] + 40)
    damaged(file, starts[500] + 40)
    with hold.TFRecordReader(file, on_corrupt="skip") as reader:
        assert sum(1 for _ in reader) == 998
        assert [(p.record, p.offset, p.reason) for p in reader.skipped] == [
            (17, starts[17], "bad data CRC"),
            (500, starts[500], "bad data CRC"),
        ]


def test_skip_gives_the_rest_up_where_a_length_is_bad(file: Path) -> None:
    starts = offsets(file)
    damaged(file, starts[17] + 2)
    with hold.TFRecordReader(file, on_corrupt="skip") as reader:
        assert sum(1 for _ in reader) == 17
        (loss,) = reader.skipped
    assert "given up" in loss.reason
    assert loss.bytes_lost == starts[-1] - starts[17]


def test_salvage_goes_on_behind_a_bad_length(file: Path) -> None:
    starts = offsets(file)
    damaged(file, starts[17] + 2)
    damaged(file, starts[500] + 40)
    with hold.TFRecordReader(file, on_corrupt="salvage") as reader:
        labels = np.concatenate([batch["label"] for batch in reader.batches(SCHEMA, 64)])
        assert [loss.record for loss in reader.skipped] == [17, 500]
    assert labels.tolist() == [sample(i)["label"] for i in range(1000) if i != 500]


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_damage_in_packed_files(file: Path, pack: Any) -> None:
    whole = file.read_bytes()
    record = offsets(file)[17]
    inside = bytearray(whole)
    inside[record + 40] ^= 1
    file.write_bytes(pack(bytes(inside)))
    with pytest.raises(CorruptError, match="bad data CRC"), hold.TFRecordReader(file) as reader:
        list(reader)
    with hold.TFRecordReader(file, on_corrupt="skip") as reader:
        assert sum(1 for _ in reader) == 999
    packed = pack(whole)
    file.write_bytes(packed[:-20])
    with pytest.raises(CorruptError, match="cut short"), hold.TFRecordReader(file) as reader:
        list(reader)
    file.write_bytes(packed[:100] + b"\xff" * 50 + packed[150:])
    with pytest.raises(CorruptError, match="corrupt"), hold.TFRecordReader(file) as reader:
        list(reader)
    file.write_bytes(packed + b"something else")
    with pytest.raises(CorruptError, match="unexpected bytes after"), hold.TFRecordReader(file) as reader:
        list(reader)


def test_verify_header_leaves_the_data_unchecked(file: Path) -> None:
    starts = offsets(file)
    damaged(file, starts[17] + 40)
    with hold.TFRecordReader(file, verify="header") as reader:
        assert sum(1 for _ in reader) == 1000
    damaged(file, starts[18])
    with pytest.raises(CorruptError, match="length"), hold.TFRecordReader(file, verify="header") as reader:
        list(reader)


def test_a_live_writer_is_distinguished_from_damage(file: Path) -> None:
    os.truncate(file, offsets(file)[-1] - 3)
    code = "import sys; f = open(sys.argv[1], 'ab'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(UnfinishedError, match=f"still being written by process {other.pid}"):
            with hold.TFRecordReader(file) as reader:
                list(reader)
        assert other.stdin is not None
        other.stdin.close()
    with pytest.raises(CorruptError), hold.TFRecordReader(file) as reader:
        list(reader)


def test_a_dead_writers_file_is_unfinished(tmp_path: Path) -> None:
    path = raw(tmp_path / ".train.tfrecord.partial", [b"one"])
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(UnfinishedError, match="its writer died"), hold.TFRecordReader(path) as reader:
        list(reader)


def test_a_file_the_manifest_does_not_list_is_unfinished(tmp_path: Path) -> None:
    from holdfast.data.formats.tfrecord.manifest import write_manifest

    path = raw(tmp_path / "new.tfrecord", [b"one"])
    os.truncate(path, path.stat().st_size - 1)
    write_manifest(tmp_path, [])
    with pytest.raises(UnfinishedError, match=r"not in holdfast\.manifest\.json"), hold.TFRecordReader(path) as reader:
        list(reader)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x89HDF\r\n\x1a\n" + bytes(600), "an HDF5 file"),
        (b"PK\x03\x04" + bytes(600), "a zip archive"),
        (b"a,b,c\n1,2,3\n" * 60, "a text file"),
        (bytes(257) + b"ustar\0" + bytes(400), "a tar archive"),
        (os.urandom(1) + bytes(range(1, 255)) * 3, ""),
    ],
)
def test_other_files_are_not_called_damaged(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(FormatError, match=f"not a TFRecord.*{what}"), hold.TFRecordReader(tmp_path / "x") as reader:
        list(reader)


# ---- records that do not fit the schema


def test_a_mismatch_names_feature_wanted_and_got(file: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"label": hold.Float32()}, "feature 'label': expected floats, got integers"),
        ({"emb": hold.Float32(3)}, "feature 'emb': expected 3 values, got 4"),
        ({"name": hold.Bytes(2)}, "feature 'name': expected 2 values, got 1"),
        ({"other": hold.Int64()}, "feature 'other' is missing: expected Int64(), which has no default"),
        ({"x": hold.Int64(key="y")}, "feature 'y' is missing"),
        ({"emb": hold.Ragged(hold.Float32(3))}, "feature 'emb': expected a multiple of 3 values, got 4"),
        ({"emb": hold.Ragged(hold.Ragged(hold.Float32()))}, "feature 'emb': expected a feature list"),
    ]
    for schema, text in wrong:
        with hold.TFRecordReader(file) as reader, pytest.raises(DecodeError) as caught:
            list(reader.batches(schema, 10))
        assert text in str(caught.value)
        assert (caught.value.path, caught.value.record, caught.value.offset) == (str(file), 0, 0)


def test_one_bad_example_does_not_fail_its_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "mixed"
    with hold.TFRecordWriter(path, {"x": hold.Int64()}) as writer:
        for i in range(100):
            if i % 10 == 3:
                writer.write(b"\x0a\xff not an example")
            elif i % 10 == 5:
                writer.write(b"")  # an empty Example: x is missing
            else:
                writer.append(x=i)
    with hold.TFRecordReader(path, on_corrupt="skip", on_mismatch="skip") as reader:
        got = [int(x) for batch in reader.batches({"x": hold.Int64()}, 7) for x in batch["x"]]
        assert got == [i for i in range(100) if i % 10 not in (3, 5)]
        assert [loss.record for loss in reader.skipped] == [i for i in range(100) if i % 10 in (3, 5)]
    with (
        hold.TFRecordReader(path, on_mismatch="skip") as reader,
        pytest.raises(DecodeError, match="not a tf.train.Example"),
    ):
        list(reader.batches({"x": hold.Int64()}, 7))
    with hold.TFRecordReader(path, on_corrupt="skip") as reader, pytest.raises(DecodeError, match="missing"):
        list(reader.batches({"x": hold.Int64()}, 7))


def test_defaults_fill_what_is_missing(file: Path) -> None:
    schema = {
        "a": hold.Float32(default=1.5),
        "b": hold.Int64(2, default=[3, 4]),
        "c": hold.Bytes(default=b"none"),
        "d": hold.Ragged(hold.Int64()),
        "e": hold.Bytes(2, default=["x", "yz"]),
    }
    with hold.TFRecordReader(file) as reader:
        batch = next(reader.batches(schema, 5))
    assert batch["a"].tolist() == [1.5] * 5
    assert batch["b"].tolist() == [[3, 4]] * 5
    assert batch["c"].tolist() == [b"none"] * 5
    assert batch["d"].tolist() == [[]] * 5
    assert batch["e"].tolist() == [[b"x", b"yz"]] * 5


def test_columns_can_have_other_names(file: Path) -> None:
    with hold.TFRecordReader(file) as reader:
        batch = next(reader.batches({"y": hold.Int64(key="label")}, 5))
    assert batch["y"].tolist() == [sample(i)["label"] for i in range(5)]


# ---- bad arguments and bad places


def test_wrong_arguments_say_what_was_wanted(file: Path) -> None:
    with pytest.raises(ValueError, match="verify.*all, header.*'yes'"):
        hold.TFRecordReader(file, verify="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_corrupt"):
        hold.TFRecordReader(file, on_corrupt="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_mismatch"):
        hold.TFRecordReader(file, on_mismatch="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compression"):
        hold.TFRecordReader(file, compression="bz2")  # type: ignore[arg-type]
    with hold.TFRecordReader(file) as reader:
        for size in (0, -1, True, 2.5, "4"):
            with pytest.raises(ValueError, match="batch size must be a positive integer"):
                reader.batches(SCHEMA, size)  # type: ignore[arg-type]
        with pytest.raises(SchemaError, match="empty"):
            reader.batches({}, 4)


def test_places_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, why in [
        (tmp_path / "nothing", "No such file"),
        (tmp_path, "a folder"),
        (tmp_path / "fifo", "not a regular file"),
    ]:
        with pytest.raises(InputError, match=why):
            hold.TFRecordReader(path)
    with pytest.raises(InputError, match="not a regular file"):
        hold.TFRecordReader("/dev/zero")


def test_every_error_is_a_holdfast_error(file: Path) -> None:
    damaged(file, 3)
    with pytest.raises(HoldfastError), hold.TFRecordReader(file) as reader:
        list(reader)


# ---- bounds


def test_one_descriptor_while_open_none_after(file: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    reader = hold.TFRecordReader(file)
    batches = reader.batches(SCHEMA, 10)
    next(batches)
    assert len(set(os.listdir("/proc/self/fd")) - before) == 1
    reader.close()
    reader.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_threads_read_the_same_file_at_once(file: Path) -> None:
    sums: list[int] = []

    def work() -> None:
        with hold.TFRecordReader(file) as reader:
            sums.append(sum(int(batch["label"].sum()) for batch in reader.batches(SCHEMA, 33)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [sum(sample(i)["label"] for i in range(1000))] * 4


def test_a_batch_that_is_kept_keeps_little_alive(tmp_path: Path) -> None:
    path = tmp_path / "big"
    with hold.TFRecordWriter(path, {"x": hold.Float32(100)}) as writer:
        for _ in range(20):
            writer.extend({"x": np.zeros((1000, 100), np.float32)})
    with hold.TFRecordReader(path) as reader:
        for batch in reader.batches({"x": hold.Float32(100)}, 10):
            held = batch["x"]
            while held.base is not None and isinstance(held.base, np.ndarray):
                held = held.base
            assert memoryview(held.base if held.base is not None else held).nbytes <= 1 << 20  # type: ignore[arg-type]


def test_a_second_iteration_ends_the_first(file: Path) -> None:
    with hold.TFRecordReader(file) as reader:
        first = reader.batches(SCHEMA, 10)
        assert next(first)["label"][0] == sample(0)["label"]
        second = iter(reader)
        next(second)
        with pytest.raises(RuntimeError, match="another iteration"):
            list(first)


def test_what_came_before_an_unfinished_record_is_handed_out(tmp_path: Path) -> None:
    path = raw(tmp_path / ".x.partial", [b"one", b"two", b"three"])
    os.truncate(path, path.stat().st_size - 1)
    got = []
    with hold.TFRecordReader(path) as reader, pytest.raises(UnfinishedError):
        for record in reader:
            got.append(record)
    assert got == [b"one", b"two"]


def test_a_mismatch_comes_before_the_rows_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with hold.TFRecordWriter(path, {"x": hold.Int64()}) as writer:
        for i in range(25):
            if i == 10:
                writer.write(b"")
            else:
                writer.append(x=i)
    got: list[int] = []
    with hold.TFRecordReader(path) as reader, pytest.raises(DecodeError, match="record 10 "):
        for batch in reader.batches({"x": hold.Int64()}, 4):
            got += batch["x"].tolist()
    assert got == [0, 1, 2, 3, 4, 5, 6, 7]


def test_records_that_grow_do_not_make_runs_grow(tmp_path: Path) -> None:
    path = tmp_path / "x"
    schema = {"x": hold.Ragged(hold.Float32())}
    with hold.TFRecordWriter(path, schema) as writer:
        writer.append(x=[])
        for _ in range(60):
            writer.append(x=np.zeros(250_000, np.float32))
    with hold.TFRecordReader(path) as reader:
        for batch in reader.batches(schema, 1):
            values = batch["x"]._values  # type: ignore[union-attr]
            assert values.nbytes <= 4 << 20  # two runs, and the record that was begun
    path.unlink()


@pytest.mark.parametrize("keep", [0.2, 0.9])
def test_packed_data_that_are_cut_give_what_came_before(file: Path, keep: float) -> None:
    packed = gzip.compress(file.read_bytes())
    file.write_bytes(packed[: int(len(packed) * keep)])
    counts = {}
    for mode in ("raise", "skip", "salvage"):
        got = 0
        with hold.TFRecordReader(file, on_corrupt=mode) as reader:  # type: ignore[arg-type]
            try:
                for _ in reader:
                    got += 1
            except CorruptError:
                assert mode == "raise"
            counts[mode] = got
            assert mode == "raise" or reader.skipped
    assert counts["raise"] == counts["skip"] == counts["salvage"] > 100


def test_one_reader_serves_one_thread(file: Path) -> None:
    with hold.TFRecordReader(file) as reader:

        def meanwhile(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            with pytest.raises(RuntimeError, match="two threads"):
                list(reader)
            return codec.scan(buf, start, stop, True)

        reader._stream.pump(meanwhile)


def test_a_reader_that_was_lost_gives_its_descriptor_back(file: Path) -> None:
    reader = hold.TFRecordReader(file)
    with pytest.warns(ResourceWarning, match="never closed"):
        del reader
        gc.collect()


def test_a_closed_reader_says_so(file: Path) -> None:
    with hold.TFRecordReader(file) as reader:
        pass
    with pytest.raises(ValueError, match="closed"):
        list(reader)


def test_bytes_as_a_path(file: Path) -> None:
    with hold.TFRecordReader(os.fsencode(file)) as reader:  # type: ignore[arg-type]
        assert sum(1 for _ in reader) == 1000
