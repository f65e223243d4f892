"""What is in a file, and a schema for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import TFRecordReader, TFRecordWriter
from holdfast._native import codec
from holdfast.data.formats.folder_index import Entry, save
from holdfast.data.formats.tfrecord.index import find_records
from holdfast.data.formats.tfrecord.inspect import survey_file
from holdfast.data.formats.tfrecord.manifest import write_manifest
from holdfast.data.formats.tfrecord.schema_inference import NotAnExample, infer_schema
from holdfast.schema import Bytes, Column, Float32, Int64, Ragged

pytestmark = pytest.mark.formats

SCHEMA: dict[str, Column] = {"b": Bytes(), "f": Float32(3), "i": Int64(), "r": Ragged(Int64())}


def _make_index(path: Path) -> None:
    key, offsets = find_records(path)
    save(path.parent, [Entry(path.name, key, places=offsets.tobytes())], "beside")


def write(path: Path, count: int = 30, **options: Any) -> Path:
    with TFRecordWriter(path, SCHEMA, **options) as writer:
        for i in range(count):
            writer.append(b=b"x" * i, f=[0.5, i, -1], i=-i, r=range(i % 3))
    return path


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def example(**features: bytes) -> bytes:
    return field(1, b"".join(field(1, field(1, key.encode()) + field(2, value)) for key, value in features.items()))


# ---- survey ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_a_whole_file(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "x", compression=compression)
    with TFRecordReader(path) as reader:
        sizes = sorted(map(len, reader))
    heard: list[int] = []
    found = survey_file(path, progress=heard.append)
    assert (found.format, found.compression, found.problem) == ("tfrecord", compression, None)
    assert (found.records, found.bytes) == (30, path.stat().st_size)
    assert found.sizes == (sizes[0], sizes[14], sizes[-1])
    assert found.inferred is not None
    assert found.inferred.schema == SCHEMA
    assert found.inferred.examples == {"b": [b""], "f": [0.5, 0.0, -1.0], "i": [0], "r": []}
    assert sum(heard) == found.bytes


def test_with_an_index_only_the_beginning_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x")
    before = survey_file(path)
    _make_index(path)
    frame_batches = "holdfast.data.formats.tfrecord.inspect.FrameBatches"
    monkeypatch.setattr(frame_batches, lambda *_, **__: pytest.fail("read to its end"))
    assert survey_file(path) == before


def test_every_problem_is_in_the_survey_and_none_is_raised(tmp_path: Path) -> None:
    path = write(tmp_path / "x")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    data[-3] ^= 1
    path.write_bytes(data)
    found = survey_file(path)
    assert found.problem == "record 0 at byte 0: bad data CRC, and 1 more"
    assert (found.records, found.readable) == (28, True)
    assert found.inferred is not None
    assert found.inferred.examples["i"] == [-1]

    packed = write(tmp_path / "y.gz")
    os.truncate(packed, packed.stat().st_size - 20)
    found = survey_file(packed)
    assert (found.problem or "").startswith("record 29 at byte ")
    assert found.records == 29
    assert found.inferred is not None

    found = survey_file(tmp_path / "nix")
    assert (found.problem, found.readable) == ("cannot open: No such file or directory", False)


def test_damage_that_a_fresh_index_does_not_know_of(tmp_path: Path) -> None:
    path = write(tmp_path / "x")
    _make_index(path)
    stamp = path.stat()
    data = bytearray(path.read_bytes())
    data[20] ^= 1  # as a failing disk does: neither size nor mtime tell
    path.write_bytes(data)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    found = survey_file(path)
    assert (found.problem, found.readable, found.records) == ("record 0 at byte 0: bad data CRC", True, 30)


def test_a_file_cut_between_records_is_found_by_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with TFRecordWriter(path) as writer:
        writer.write(b"1")
        writer.write(b"2")
    assert writer.entry is not None
    assert survey_file(path).manifest == "none beside it"
    write_manifest(tmp_path, [writer.entry])
    assert survey_file(path).manifest == "listed in holdfast.manifest.json, 2 records"
    os.truncate(path, 17)
    assert survey_file(path).problem == "the manifest says 2 records in 34 bytes, the file has 1 in 17"
    write(tmp_path / "other")
    assert survey_file(tmp_path / "other").manifest == "not listed in holdfast.manifest.json"


# ---- inferring a schema ------------------------------------------------------------------------------------


def test_features_that_differ_between_records() -> None:
    ints, floats = field(3, b"\x0a\x02\x01\x02"), field(2, b"\x0d\x00\x00\x00\x3f")
    found = infer_schema(
        [
            example(same=ints, sometimes=floats, kind=ints, empty=b"", none=field(1, b"")),
            example(same=ints, kind=floats, size=ints, empty=b"", none=field(1, b"")),
            example(same=ints, kind=floats, size=field(3, b"\x08\x05"), empty=b"", none=field(1, b"")),
        ]
    )
    assert found.schema == {
        "same": Int64(2),
        "sometimes": Float32(default=0),
        "size": Ragged(Int64()),
        "none": Ragged(Bytes()),
    }
    assert found.notes == {
        "sometimes": "missing in 2 of 3 records",
        "kind": "its type differs from record to record",
        "size": "missing in 1 of 3 records",
        "empty": "always empty",
    }
    assert found.examples == {"same": [1, 2], "sometimes": [0.5], "kind": [1, 2], "empty": [], "none": []}


def test_of_a_name_that_is_there_twice_the_last_counts() -> None:
    twice = field(1, field(1, field(1, b"x") + field(2, field(3, b"\x08\x05"))) * 2)
    found = infer_schema([twice, twice])
    assert (found.schema, found.notes) == ({"x": Int64()}, {})


def test_negative_numbers_and_sequences() -> None:
    minus = field(3, b"\x08" + b"\xff" * 9 + b"\x01")
    assert infer_schema([example(x=minus)]).examples == {"x": [-1]}
    steps = field(1, minus) * 2
    found = infer_schema([example(c=minus) + field(2, field(1, field(1, b"s") + field(2, steps)))])
    assert (found.schema, found.sequence) == ({"c": Int64(), "s": Ragged(Int64())}, True)
    assert found.examples == {"c": [-1], "s": [[-1], [-1]]}


@pytest.mark.parametrize(
    "record",
    [
        b"hello world",
        b"\xff" * 20,
        field(3, b"something else"),
        field(1, b"\x10\x05"),  # a message, but no map
        field(1, field(1, b"\x18\x05")),  # a map's entry without name and value
        example(x=field(2, b"\x0a\x03abc")),  # floats of three bytes
        example(x=b"\x0a\x7f"),
    ],
)
def test_what_is_no_example(record: bytes) -> None:
    with pytest.raises(NotAnExample, match="record 1 is not a tf.train.Example"):
        infer_schema([example(), record])


def test_a_value_of_the_wrong_wire_type_is_an_unknown_field() -> None:
    """Among them a number where bytes belong, which must not become that many bytes."""
    huge = field(1, b"\x08" + b"\xff" * 8 + b"\x7f")
    found = infer_schema([example(x=huge, y=field(2, b"\x08\x05"), z=field(3, b"\x0d0000"))])
    assert found.examples == {"x": [], "y": [], "z": []}


def test_a_file_that_holds_no_examples(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(codec.frame(b"hello") + codec.frame(b""))
    found = survey_file(path)
    assert (found.inferred, found.head, found.head_of, found.problem) == (None, b"hello", 5, None)


@pytest.mark.parametrize(
    "records",
    [
        [example(x=field(3, b"\x08\x05")), example(x=b"")],  # an empty Feature is none
        [example(x=field(3, b"\x08\x05")), example(y=field(3, b"\x08\x05"))],
        [
            field(2, field(1, field(1, b"s") + field(2, field(1, field(3, b"\x08\x05")) + field(1, b""))))
        ],  # an empty step
        [example(x=field(1, b"\x0a\x01a\x0a\x01b")), example(x=field(1, b"\x0a\x01a"))],
    ],
)
def test_a_schema_fits_the_records_it_was_taken_from(tmp_path: Path, records: list[bytes]) -> None:
    with TFRecordWriter(tmp_path / "x") as writer:
        for record in records:
            writer.write(record)
    found = infer_schema(records)
    with TFRecordReader(tmp_path / "x") as reader:
        assert sum(len(next(iter(batch.values()))) for batch in reader.batches(found.schema, 8)) == len(records)


def test_a_feature_here_and_a_feature_list_there() -> None:
    value = field(3, b"\x08\x05")
    found = infer_schema([example(x=value), field(2, field(1, field(1, b"x") + field(2, field(1, value))))])
    assert (found.schema, found.notes) == ({}, {"x": "a feature in some records, a feature list in others"})
