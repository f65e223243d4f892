"""From one format to another: what goes in comes out."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import tarfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from factories_convert import SCHEMA, SUFFIXES, as_lists, contents, make, make_tar, plain_h5, samples, wanted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hold
from holdfast._native import codec
from holdfast.data.formats.registry import open_shard
from holdfast.data.formats.tfrecord.shard import TFRecordShard
from holdfast.data.rewrite import engine
from holdfast.data.rewrite.convert import convert
from holdfast.schema import Array, Bytes, Column, Float32, Int64, Ragged

pytestmark = pytest.mark.formats

WAYS = list(itertools.permutations(SUFFIXES, 2))


@pytest.mark.parametrize("rows", [0, 1, 70])
@pytest.mark.parametrize(("one", "other"), WAYS)
def test_all_six_ways(tmp_path: Path, one: str, other: str, rows: int) -> None:
    source = make(tmp_path, one, rows)
    schema = SCHEMA if one == "tfrecord" else None
    there = convert(source, tmp_path / f"out{SUFFIXES[other]}", schema)
    assert (there.rows, there.schema, there.notes) == (rows, SCHEMA, [])
    target = tmp_path / f"out{SUFFIXES[other]}"
    assert contents(target, SCHEMA if other == "tfrecord" else None) == wanted(0, rows)
    back = convert(target, tmp_path / f"back{SUFFIXES[one]}", SCHEMA if other == "tfrecord" else None)
    assert (back.checksum, back.schema) == (there.checksum, SCHEMA)
    [file] = there.files
    assert (file.path, file.records, file.bytes) == (str(target), rows, target.stat().st_size)
    assert file.crc32c == codec.crc32c(target.read_bytes())


@pytest.mark.parametrize("suffix", [".tfrecord", ".tar"])
def test_the_same_samples_make_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    """HDF5 keeps the time in its groups."""
    source = make(tmp_path, "hdf5", 30)
    first, second = (convert(source, tmp_path / f"{name}{suffix}").files[0] for name in "ab")
    assert (first.bytes, first.crc32c) == (second.bytes, second.crc32c)


# ---- sources


def test_files_folders_globs_and_runs(tmp_path: Path) -> None:
    run = hold.write(tmp_path / "run.hold", SCHEMA)
    kinds: list[Literal["hdf5", "tfrecord"]] = ["hdf5", "tfrecord", "hdf5"]
    for i, kind in enumerate(kinds):
        with run.part(f"t{i}", format=kind) as part:
            part.extend(samples(i * 10, 10))
    out = convert(run.folder, tmp_path / "out" / "all.tar", shards=3)
    assert out.rows == 30
    names = [f"all-0000{i}-of-00003.tar" for i in range(3)]
    assert sorted(os.listdir(tmp_path / "out")) == names
    again = [
        convert(tmp_path / "out", tmp_path / "folder.h5"),
        convert(str(tmp_path / "out" / "all-*.tar"), tmp_path / "glob.h5"),
        convert([tmp_path / "out" / name for name in names], tmp_path / "list.h5"),
    ]
    assert {one.checksum for one in again} == {out.checksum}
    assert contents(tmp_path / "glob.h5") == wanted(0, 30)


def test_packed_sources_are_read_in_any_place(tmp_path: Path) -> None:
    tar = make(tmp_path, "tar", 50)
    (tmp_path / "in.tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
    packed = convert(tar, tmp_path / "p.tfrecord.gz")
    assert (tmp_path / "p.tfrecord.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert convert(tmp_path / "in.tar.gz", tmp_path / "a.h5").checksum == packed.checksum
    assert convert(tmp_path / "p.tfrecord.gz", tmp_path / "b.h5", SCHEMA).checksum == packed.checksum
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_schema_chooses_renames_and_fills(tmp_path: Path) -> None:
    """What only some records have is filled."""
    source = make(tmp_path, "tfrecord", 5)
    with hold.TFRecordWriter(tmp_path / "w.tfrecord", {"label": Int64(), "w": Float32(), "emb": Float32(6)}) as w:
        w.append(label=9, w=1.5, emb=[0.0] * 6)
    schema = {"y": Int64(key="label"), "w": Float32(default=2.5), "x": Float32(6, key="emb")}
    done = convert([source, tmp_path / "w.tfrecord"], tmp_path / "a.h5", schema)
    assert done.schema == {"y": Int64(), "w": Float32(), "x": Float32(6)}
    assert contents(tmp_path / "a.h5")["w"] == [2.5] * 5 + [1.5]
    assert contents(tmp_path / "a.h5")["y"] == [*wanted(0, 5)["label"], 9]


def test_records_without_a_schema_show_it(tmp_path: Path) -> None:
    """A list that is longer only in the last record, far behind those that are usually looked at."""
    with hold.TFRecordWriter(
        tmp_path / "a.tfrecord", {"n": Ragged(Int64()), "x": Float32(2), "e": Ragged(Bytes())}
    ) as w:
        w.extend({"n": [[1]] * 299 + [[1, 2]], "x": np.ones((300, 2)), "e": [[]] * 300})
    done = convert(tmp_path / "a.tfrecord", tmp_path / "a.tar")
    assert done.schema == {"n": Ragged(Int64()), "x": Float32(2), "e": Ragged(Bytes())}
    assert contents(tmp_path / "a.tar")["n"] == [[1]] * 299 + [[1, 2]]


def test_another_tar_is_keys_and_bytes(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ["ü/0.jpg", "ü/0.cls", "1.jpg", "1.cls"]:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()[: len(name)]))
    done = convert(tmp_path / "a.tar", tmp_path / "a.h5")
    assert done.schema == {"__key__": Bytes(), "jpg": Bytes(), "cls": Bytes()}
    back = convert(tmp_path / "a.h5", tmp_path / "b.tar")
    assert back.checksum == done.checksum
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert tar.getnames() == ["__holdfast__", "ü/0.jpg", "ü/0.cls", "1.jpg", "1.cls"]
    numbers = convert(tmp_path / "a.h5", tmp_path / "c.tfrecord", {"key": Bytes(key="__key__")})
    assert numbers.schema == {"key": Bytes()}


def test_another_tar_with_odd_names(tmp_path: Path) -> None:
    """A semicolon parts the extensions of a schema's key; here it is in the extension."""
    names = ["a/\nä b.x;y", "a/\nä b.x", "a/\nä b.x ", "__b.x;y", "__b.x", "__b.x ", "/c.x;y", "/c.x", "/c.x "]
    path = make_tar(tmp_path / "a.tar", [(name, b"%d" % i) for i, name in enumerate(names)])
    done = convert(path, tmp_path / "a.h5")
    found = contents(tmp_path / "a.h5")
    assert found.pop("__key__") == ["a/\nä b".encode(), b"__b", b"/c"]
    assert found == {"x;y": [b"0", b"3", b"6"], "x": [b"1", b"4", b"7"], "x ": [b"2", b"5", b"8"]}
    assert convert(tmp_path / "a.h5", tmp_path / "b.tar").checksum == done.checksum


def test_types_of_hdf5_that_fit_without_a_loss(tmp_path: Path) -> None:
    source = plain_h5(
        tmp_path / "a.h5",
        i=np.arange(4, dtype="i2"),
        u=np.arange(4, dtype="u8"),
        b=np.array([True, False, True, True]),
        h=np.arange(4, dtype="f2"),
        s=np.array([b"a", b"bb", b"", b"c"]),
        t=["ä", "", "x", "y"],
    )
    done = convert(source, tmp_path / "a.tfrecord")
    numbers = {"i": "int16", "u": "uint64", "b": "bool", "h": "float16"}
    assert done.schema == {name: Array(dtype) for name, dtype in numbers.items()} | {"s": Bytes(), "t": Bytes()}
    assert done.notes[0] == """'b' is bool, stored as int64; reading it as Array("bool") gives it back"""
    assert len(done.notes) == 4
    assert contents(tmp_path / "a.tfrecord")["t"] == ["ä".encode(), b"", b"x", b"y"]
    with TFRecordShard(tmp_path / "a.tfrecord") as shard:
        assert shard.schema == {"i": Int64(), "u": Int64(), "b": Int64(), "h": Float32(), "s": Bytes(), "t": Bytes()}
    back = convert(tmp_path / "a.tfrecord", tmp_path / "b.h5", done.schema)
    assert back.checksum == done.checksum


# ---- shards


def test_so_many_shards(tmp_path: Path) -> None:
    source = make(tmp_path, "hdf5", 10)
    done = convert(source, tmp_path / "out" / "t.tfrecord", shards=4)
    assert [file.records for file in done.files] == [2, 3, 2, 3]
    assert sorted(os.listdir(tmp_path / "out")) == [
        "holdfast.manifest.json",
        *(f"t-0000{i}-of-00004.tfrecord" for i in range(4)),
    ]
    assert convert(tmp_path / "out", tmp_path / "b.tar", SCHEMA).checksum == done.checksum
    few = convert(source, tmp_path / "few" / "t.tar", shards=12)
    assert sum(not file.records for file in few.files) == 2
    assert convert(tmp_path / "few", tmp_path / "c.h5").checksum == done.checksum


@pytest.mark.parametrize("kind", SUFFIXES)
def test_shards_of_a_size(tmp_path: Path, kind: str) -> None:
    rows = 40
    with hold.TFRecordWriter(tmp_path / "a.tfrecord", {"x": Bytes()}) as writer:
        writer.extend({"x": [b"x" * (10_000 if i == 7 else 92) for i in range(rows)]})
    done = convert(tmp_path / "a.tfrecord", tmp_path / "out" / f"t{SUFFIXES[kind]}", shard_bytes="1kB")
    assert [file.records for file in done.files] == [7, 1, 10, 10, 10, 2]  # 100 bytes each, with their lengths
    assert convert(tmp_path / "out", tmp_path / "b.h5", {"x": Bytes()}).checksum == done.checksum


# ---- any schema, any values, any size of blocks


VALUES = {
    Int64: st.integers(-(2**63), 2**63 - 1),
    Float32: st.floats(width=32, allow_nan=False),
    Bytes: st.binary(max_size=6),
}
TYPES = st.sampled_from([Int64, Float32, Bytes])
SHAPES = st.sampled_from([(), (1,), (3,), (2, 2)])


@st.composite
def columns(draw: st.DrawFn) -> Column:
    kind = draw(TYPES)
    shape = draw(SHAPES)
    value = kind(*shape[:1]) if kind is Bytes else kind(*shape)  # strings come back in one row, whatever their shape
    depth = draw(st.integers(0, 2))
    column: Column = value
    for _ in range(depth):
        column = Ragged(column)
    return column


def item(column: Column) -> st.SearchStrategy[Any]:
    if isinstance(column, Ragged):
        return st.lists(item(column.inner), max_size=3)
    made = VALUES[type(column)]
    for size in reversed(column.shape):
        made = st.lists(made, min_size=size, max_size=size)
    return made


def shaped(column: Column, rows: list[Any]) -> Any:
    """What extend() takes: an empty list says nothing of the shape of what it would hold."""
    if isinstance(column, Ragged):
        return [shaped(column.inner, row) for row in rows]
    if isinstance(column, Bytes):
        return rows
    kind = np.int64 if isinstance(column, Int64) else np.float32
    return np.array(rows, kind).reshape(len(rows), *column.shape)


NAMES = st.text("abÄ/.-_ ;", min_size=1, max_size=4).filter(
    lambda name: all(step not in ("", ".", "..") for step in name.split("/"))
)


@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_schema_goes_around(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("around")
    names = data.draw(st.lists(NAMES.filter(lambda name: "/" not in name), min_size=1, max_size=3, unique=True))
    schema: dict[str, Column] = {name: data.draw(columns()) for name in names}
    rows = data.draw(st.integers(0, 5))
    values = {name: [data.draw(item(column)) for _ in range(rows)] for name, column in schema.items()}
    with hold.write(folder / "run.hold", schema).part("t") as part:
        part.extend({name: shaped(column, values[name]) for name, column in schema.items()})
    checksums, source = [], folder / "run.hold"
    for i, kind in enumerate(["tfrecord", "tar", "hdf5", "tar"]):
        target = folder / f"{i}{SUFFIXES[kind]}"
        checksums.append(convert(source, target, schema if source.suffix == ".tfrecord" else None).checksum)
        source = target
    assert len(set(checksums)) == 1
    assert contents(source) == contents(folder / "2.h5") == values


@pytest.mark.parametrize("size", [1, 300, 10_000])
def test_the_checksum_does_not_depend_on_blocks(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make(tmp_path, "hdf5", 200)
    whole = convert(source, tmp_path / "a.tar").checksum
    monkeypatch.setattr(engine, "BLOCK_BYTES", size)
    assert convert(source, tmp_path / "b.tar").checksum == whole
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_nan_keeps_its_bits(tmp_path: Path) -> None:
    bits = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0x7F800000], np.uint32)
    with hold.write(tmp_path / "run.hold", {"x": Float32()}).part("t") as part:
        part.extend({"x": bits.view(np.float32)})
    source: Any = tmp_path / "run.hold"
    for name in ("a.tar", "a.tfrecord", "b.tar", "a.h5"):
        convert(source, tmp_path / name)
        source = tmp_path / name
    with open_shard(source) as shard:
        values: Any = shard.read(0, 4)["x"]
    assert values.view(np.uint32).tolist() == bits.tolist()
    assert as_lists({"x": values})["x"][3] == float("inf")
