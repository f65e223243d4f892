"""Writing tars: what other tools find in them, and what comes back."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hold
from holdfast.data.formats.tar.scan import header_of, padding
from holdfast.data.formats.tar.shard import TarShard
from holdfast.data.formats.tar.values import extensions_of, pack
from holdfast.data.formats.tar.writer import TarWriter
from holdfast.errors import ClosedWriterError, DecodeError, ForkedWriterError, SchemaError, TargetExistsError

pytestmark = pytest.mark.formats

SCHEMA = {
    "__key__": hold.Bytes(),
    "jpg": hold.Bytes(),
    "label": hold.Int64(),
    "w": hold.Float32(),
    "emb": hold.Float32(2, 2),
    "boxes": hold.Ragged(hold.Float32(2)),
    "tags": hold.Ragged(hold.Bytes()),
    "pair": hold.Bytes(2),
    "lists": hold.Ragged(hold.Ragged(hold.Int64())),
    "words": hold.Ragged(hold.Ragged(hold.Bytes())),
    "pairs": hold.Ragged(hold.Bytes(2)),
}
COLUMNS: dict[str, Any] = {
    "__key__": ["ä/0".encode(), b"x" * 120, b"\xff\xfe"],  # UTF-8, long, and neither
    "jpg": [b"", b"\0a\0", b"q"],
    "label": [1, -2, 2**63 - 1],
    "w": [1.5, float("inf"), -0.0],
    "emb": np.arange(12, dtype=np.float32).reshape(3, 2, 2).tolist(),
    "boxes": [[], [[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]],
    "tags": [[], [b""], [b"x", b"\0\0"]],
    "pair": [[b"a", b""], [b"", b"bb"], [b"\0", b"c"]],
    "lists": [[], [[], [1]], [[1, 2], [3]]],
    "words": [[], [[]], [[b"a", b""], [b"c"]]],
    "pairs": [[], [[b"", b"1"]], [[b"2", b"3"], [b"4", b""]]],
}


def as_lists(batch: Any) -> dict[str, Any]:
    return {name: column.tolist() for name, column in batch.items()}


def write(path: Path, schema: Any, columns: Any, **more: Any) -> Path:
    with TarWriter(path, schema, **more) as writer:
        writer.extend(columns)
    return path


def test_everything_comes_back(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.tar",
        SCHEMA,
        {name: column for name, column in COLUMNS.items() if name != "boxes"}
        | {"boxes": [np.zeros((0, 2)), *map(np.array, COLUMNS["boxes"][1:])]},
    )
    with TarShard(path) as shard:
        assert shard.marked
        assert list(shard.schema) == list(SCHEMA)
        assert as_lists(shard.read(0, 3)) == COLUMNS
        assert as_lists(shard.read_rows([2, 0])) == {name: [column[2], column[0]] for name, column in COLUMNS.items()}


def test_what_other_tools_find(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", SCHEMA, COLUMNS | {"boxes": [np.zeros((0, 2)), np.ones((2, 2)), np.ones((1, 2))]})
    with tarfile.open(path) as tar:
        names = tar.getnames()
        assert names[:4] == ["__holdfast__", "ä/0.jpg", "ä/0.label.cls", "ä/0.w.npy"]
        assert f"{'x' * 120}.emb.npy" in names
        mark, label = tar.extractfile("__holdfast__"), tar.extractfile("ä/0.label.cls")
        assert mark is not None
        assert label is not None
        assert list(json.loads(mark.read())["schema"]) == list(SCHEMA)
        assert label.read() == b"1"
        members = tar.getmembers()
        assert {(m.mtime, m.uid, m.gid, m.mode, m.uname) for m in members} == {(0, 0, 0, 0o644, "")}
        emb, words = tar.extractfile("ä/0.emb.npy"), tar.extractfile(f"{'x' * 120}.tags.npz")
        assert emb is not None
        assert words is not None
        assert np.load(io.BytesIO(emb.read())).tolist() == [[0, 1], [2, 3]]
        with np.load(io.BytesIO(words.read())) as arrays:
            assert (arrays["values"].tolist(), arrays["offsets"].tolist()) == ([], [0, 0])
    listed = subprocess.run(["tar", "tf", path], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    assert (listed.stderr, len(listed.stdout.splitlines())) == (b"", 1 + 3 * 10)


def test_the_same_samples_make_the_same_bytes_in_whatever_pieces(tmp_path: Path) -> None:
    schema = {"a": hold.Bytes(), "b": hold.Ragged(hold.Bytes())}
    columns: dict[str, Any] = {"a": [b"1", b"22", b""], "b": [[b"x"], [], [b"y", b""]]}
    one = write(tmp_path / "one.tar", schema, columns)
    with TarWriter(tmp_path / "two.tar", schema) as writer:
        for i in range(3):
            assert writer.extend({name: column[i : i + 1] for name, column in columns.items()}) == 1
    assert one.read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert writer.entry is not None
    assert (writer.entry.records, writer.entry.bytes) == (3, one.stat().st_size)
    with TarShard(one) as shard:
        assert shard.read(0, 3, {"__key__": hold.Bytes()})["__key__"].tolist() == [
            b"000000000",
            b"000000001",
            b"000000002",
        ]


def test_no_samples(tmp_path: Path) -> None:
    with TarWriter(tmp_path / "a.tar", {"x": hold.Float32(4)}):
        pass
    with TarShard(tmp_path / "a.tar") as shard:
        assert len(shard) == 0
        assert shard.schema == {"x": hold.Float32(4, key="x.npy")}
        assert shard.read(0, 0)["x"].shape == (0, 4)


def test_names_of_columns_become_extensions(tmp_path: Path) -> None:
    schema = {
        "Image/x": hold.Bytes(),
        "image_x": hold.Bytes(),
        "ß": hold.Int64(),
        ".": hold.Bytes(),
        "a;b": hold.Bytes(),
    }
    assert list(extensions_of(schema).values()) == ["image_x", "image_x_2", "_.cls", "column", "a_b"]
    columns: dict[str, Any] = {"Image/x": [b"1"], "image_x": [b"2"], "ß": [3], ".": [b"4"], "a;b": [b"5"]}
    with TarShard(write(tmp_path / "a.tar", schema, columns)) as shard:
        assert as_lists(shard.read(0, 1)) == columns
    with pytest.raises(SchemaError, match="at least one member"):
        TarWriter(tmp_path / "b.tar", {"__key__": hold.Bytes()})


@pytest.mark.parametrize("key", [b"", b"a.b", b"a/", b".a", b"a\0b"])
def test_a_key_that_no_member_can_have(tmp_path: Path, key: bytes) -> None:
    with TarWriter(tmp_path / "a.tar", {"__key__": hold.Bytes(), "x": hold.Bytes()}) as writer:
        with pytest.raises(SchemaError, match="sample 1: expected a key"):
            writer.extend({"__key__": [b"good", key], "x": [b"", b""]})
        writer.extend({"__key__": [b"good"], "x": [b""]})
        with pytest.raises(SchemaError, match="expected another key than the sample before it has, got 'good'"):
            writer.extend({"__key__": [b"good"], "x": [b""]})
    with TarShard(tmp_path / "a.tar") as shard:
        assert len(shard) == 1


def test_bytes_that_are_no_text_in_a_long_name(tmp_path: Path) -> None:
    key = b"\xff" * 150
    path = write(tmp_path / "a.tar", {"__key__": hold.Bytes(), "x": hold.Bytes()}, {"__key__": [key], "x": [b"1"]})
    with tarfile.open(path) as tar:
        assert [os.fsencode(name) for name in tar.getnames()] == [b"__holdfast__", key + b".x"]
    with TarShard(path) as shard:
        assert shard.read(0, 1)["__key__"].tolist() == [key]


def test_a_member_too_large_for_octal_digits() -> None:
    head = header_of(b"a.jpg", 1 << 40)
    with tarfile.open(fileobj=io.BytesIO(head + bytes(1024))) as tar:
        first = tar.next()
    assert first is not None
    assert (first.name, first.size) == ("a.jpg", 1 << 40)
    assert padding(512) == b""
    assert padding(513) == bytes(511)


def test_it_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path, schema = tmp_path / "a.tar", {"x": hold.Bytes()}
    with pytest.raises(RuntimeError, match="stop"), TarWriter(path, schema) as writer:
        writer.extend({"x": [b"1"]})
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ClosedWriterError):
        writer.extend({"x": [b"1"]})
    write(path, schema, {"x": [b"1"]})
    with pytest.raises(TargetExistsError):
        TarWriter(path, schema)
    write(path, schema, {"x": [b"1", b"2"]}, overwrite=True)
    lost = TarWriter(tmp_path / "b.tar", schema)
    with pytest.warns(ResourceWarning, match="the writer was not closed"):
        del lost
    assert [one.name for one in tmp_path.iterdir()] == ["a.tar"]


def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    with TarWriter(tmp_path / "a.tar", {"x": hold.Bytes()}) as writer:
        pid = os.fork()
        if not pid:
            try:
                writer.extend({"x": [b"1"]})
            except ForkedWriterError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        writer.extend({"x": [b"2"]})
    with TarShard(tmp_path / "a.tar") as shard:
        assert shard.read(0, 1)["x"].tolist() == [b"2"]


# ---- reading .npz members


def zipped(how: int, **arrays: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.save(data, np.asarray(array))
            archive.writestr(f"{name}.npy", data.getvalue())
    return file.getvalue()


U1, I8 = np.uint8, np.int64


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (b"no zip", "not a zip file"),
        (zipped(zipfile.ZIP_STORED), "expected an array 'values'"),
        (zipped(zipfile.ZIP_DEFLATED, values=np.zeros(9, U1), offsets=[0, 9]), "compressed"),
        (pack({"values": np.zeros(3, I8), "offsets": np.array([0, 3])}), "expected values of uint8"),
        (pack({"values": np.zeros(3, U1), "offsets": np.array([0, 4])}), "expected offsets that go from 0 up to 3"),
        (pack({"values": np.zeros(3, U1), "offsets": np.array([0, 2, 1, 3])}), "expected offsets that go"),
        (pack({"values": np.zeros(3, U1), "offsets": np.array([0.0, 3])}), "expected offsets of int64"),
    ],
)
def test_a_member_that_is_no_list_of_strings(tmp_path: Path, item: bytes, said: str) -> None:
    path = write(tmp_path / "a.tar", {"x.npz": hold.Bytes()}, {"x.npz": [item]})
    with TarShard(path) as shard, pytest.raises(DecodeError, match=said):
        shard.read(0, 1, {"x": hold.Ragged(hold.Bytes(), key="x.npz")})


def test_lists_of_lists_may_be_json_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", {"x.json": hold.Bytes()}, {"x.json": [b"[[1],[]]", b"[]"]})
    with TarShard(path) as shard:
        batch = shard.read(0, 2, {"x": hold.Ragged(hold.Ragged(hold.Int64()), key="x.json")})
        assert batch["x"].tolist() == [[[1], []], []]


def test_no_member_is_taken_for_one_of_webdatasets(tmp_path: Path) -> None:
    """Which begin and end with two underscores."""
    schema: Any = {"__key__": hold.Bytes(), "x__": hold.Bytes(), "x": hold.Bytes(), ".__": hold.Bytes()}
    path = write(tmp_path / "a.tar", schema, {"__key__": [b"__a"], "x__": [b"1"], "x": [b"2"], ".__": [b"3"]})
    with TarShard(path) as shard:
        found = shard.read(0, 1)
        assert {name: column.tolist() for name, column in found.items()} == {
            "__key__": [b"__a"],
            "x__": [b"1"],
            "x": [b"2"],
            ".__": [b"3"],
        }
