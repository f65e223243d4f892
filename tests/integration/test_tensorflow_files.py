"""A real TensorFlow reads what holdfast writes, holdfast reads what TensorFlow writes: all types, all compressions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hold
from line_child import ChildError
from tensorflow_client import Compression, TensorFlowPeer

pytestmark = pytest.mark.formats

PACKED: list[tuple[str, Compression]] = [("none", ""), ("gzip", "GZIP"), ("zlib", "ZLIB")]
EDGES = [0, 1, -1, 127, 128, 2**31, -(2**31), 2**63 - 1, -(2**63)]

SCHEMA = {
    "name": hold.Bytes(),
    "label": hold.Int64(),
    "edges": hold.Int64(len(EDGES)),
    "emb": hold.Float32(2, 2),
    "boxes": hold.Ragged(hold.Float32(4)),
    "tags": hold.Ragged(hold.Bytes()),
    "ids": hold.Ragged(hold.Int64()),
}


def rows(n: int = 50) -> list[dict[str, Any]]:
    return [
        {
            "name": bytes(range(i)) + "ü".encode(),
            "label": EDGES[i % len(EDGES)],
            "edges": EDGES,
            "emb": [[float(i), -0.5], [1e30, 2.0]],
            "boxes": [[1.0, 2.0, 3.0, float(k)] for k in range(i % 4)],
            "tags": [b"tag %d" % k for k in range(i % 3)],
            "ids": [k - 5 for k in range(i % 13)],
        }
        for i in range(n)
    ]


def close(got: Any, want: Any) -> None:
    if isinstance(want, list):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            close(g, w)
    elif isinstance(want, float):
        assert np.float32(got) == np.float32(want)
    else:
        assert got == want


@pytest.mark.parametrize(("ours", "theirs"), PACKED)
def test_tensorflow_reads_ours(tensorflow_peer: TensorFlowPeer, tmp_path: Path, ours: Any, theirs: Compression) -> None:
    path = tmp_path / "ours"
    with hold.TFRecordWriter(path, SCHEMA, compression=ours) as writer:
        for row in rows():
            writer.append(**row)
    got = tensorflow_peer.parse(
        path,
        {
            "name": {"kind": "bytes"},
            "label": {"kind": "int"},
            "edges": {"kind": "int", "shape": [len(EDGES)]},
            "emb": {"kind": "float", "shape": [2, 2]},
            "boxes": {"kind": "float", "ragged": True, "shape": [4]},
            "tags": {"kind": "bytes", "ragged": True},
            "ids": {"kind": "int", "ragged": True},
        },
        theirs,
    )
    for name in SCHEMA:
        close(got[name], [row[name] for row in rows()])


@pytest.mark.parametrize(("ours", "theirs"), PACKED)
def test_we_read_tensorflows(tensorflow_peer: TensorFlowPeer, tmp_path: Path, ours: str, theirs: Compression) -> None:
    path = tmp_path / "theirs"
    flat = {"emb": lambda v: [x for row in v for x in row], "boxes": lambda v: [x for row in v for x in row]}
    kinds = {
        "name": "bytes",
        "label": "int",
        "edges": "int",
        "emb": "float",
        "boxes": "float",
        "tags": "bytes",
        "ids": "int",
    }
    examples = []
    for row in rows():
        values = {
            name: flat.get(name, lambda v: v if isinstance(v, list) else [v])(value) for name, value in row.items()
        }
        examples.append([(name, kinds[name], value) for name, value in values.items()])
    tensorflow_peer.write(path, examples, theirs)
    with hold.TFRecordReader(path) as reader:
        assert reader._stream.source.compression == ours
        batches = list(reader.batches(SCHEMA, 16))
    for name in SCHEMA:
        close([item for batch in batches for item in batch[name].tolist()], [row[name] for row in rows()])


@pytest.mark.parametrize(("ours", "theirs"), PACKED)
def test_raw_records_both_ways(tensorflow_peer: TensorFlowPeer, tmp_path: Path, ours: Any, theirs: Compression) -> None:
    records = [b"", b"\0", bytes(range(256)) * 50, b"x" * 200_000]
    with hold.TFRecordWriter(tmp_path / "ours", compression=ours) as writer:
        for record in records:
            writer.write(record)
    assert tensorflow_peer.read_raw(tmp_path / "ours", theirs) == records
    tensorflow_peer.write_raw(tmp_path / "theirs", records, theirs)
    with hold.TFRecordReader(tmp_path / "theirs") as reader:
        assert list(reader) == records
    if ours == "none":
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


SEQUENCE = {
    "id": hold.Int64(),
    "title": hold.Bytes(default=b"?"),
    "words": hold.Ragged(hold.Bytes()),
    "pair": hold.Ragged(hold.Float32(2)),
    "frames": hold.Ragged(hold.Ragged(hold.Int64())),
}


def sequences(n: int = 20) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "title": b"title %d" % i,
            "words": [b"w%d" % k for k in range(i % 4)],
            "pair": [[float(k), 0.5] for k in range(i % 3)],
            "frames": [list(range(k)) for k in range(i % 5)],
        }
        for i in range(n)
    ]


@pytest.mark.parametrize(("ours", "theirs"), PACKED)
def test_sequence_examples_both_ways(
    tensorflow_peer: TensorFlowPeer, tmp_path: Path, ours: Any, theirs: Compression
) -> None:
    with hold.TFRecordWriter(tmp_path / "ours", SEQUENCE, sequence=True, compression=ours) as writer:
        for row in sequences():
            writer.append(**row)
    context, lists = tensorflow_peer.parse_sequence(
        tmp_path / "ours",
        {"id": {"kind": "int"}, "title": {"kind": "bytes"}},
        {
            "words": {"kind": "bytes", "shape": []},
            "pair": {"kind": "float", "shape": [2]},
            "frames": {"kind": "int", "ragged": True},
        },
        theirs,
    )
    for name in ("id", "title"):
        close(context[name], [row[name] for row in sequences()])
    for name in ("words", "pair", "frames"):
        close(lists[name], [row[name] for row in sequences()])
    tensorflow_peer.write_sequences(
        tmp_path / "theirs",
        [
            (
                [("id", "int", [row["id"]]), ("title", "bytes", [row["title"]])],
                {
                    "words": [("bytes", [word]) for word in row["words"]],
                    "pair": [("float", pair) for pair in row["pair"]],
                    "frames": [("int", frame) for frame in row["frames"]],
                },
            )
            for row in sequences()
        ],
        theirs,
    )
    for file in ("ours", "theirs"):
        with hold.TFRecordReader(tmp_path / file) as reader:
            batches = list(reader.batches(SEQUENCE, 7))
        for name in SEQUENCE:
            close([item for batch in batches for item in batch[name].tolist()], [row[name] for row in sequences()])


def test_both_refuse_the_same_damage(tensorflow_peer: TensorFlowPeer, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with hold.TFRecordWriter(path) as writer:
        for i in range(20):
            writer.write(b"record %d" % i)
    whole = path.read_bytes()
    for at in range(0, len(whole), 5):
        data = bytearray(whole)
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(hold.HoldfastError), hold.TFRecordReader(path) as reader:
            list(reader)
        with pytest.raises(ChildError, match="DataLoss"):
            tensorflow_peer.read_raw(path)
