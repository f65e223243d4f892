"""What is not converted, and what is said of it; nothing is ever left behind."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from factories_convert import SCHEMA, make, make_tar, plain_h5, samples

import holdfast as hold
from holdfast._util.atomic import staging_dir
from holdfast.data.rewrite import convert as convert_module
from holdfast.data.rewrite import engine
from holdfast.data.rewrite.convert import convert
from holdfast.errors import (
    CorruptError,
    DataError,
    DecodeError,
    FormatError,
    InputError,
    SchemaError,
    TargetExistsError,
    WriteError,
    WriterBusyError,
)

pytestmark = pytest.mark.formats


def refused(error: type[Exception], said: str, source: Any, target: Path, *args: Any, **options: Any) -> None:
    before = sorted(path for path in target.parent.rglob("*"))
    with pytest.raises(error, match=said):
        convert(source, target, *args, **options)
    assert sorted(path for path in target.parent.rglob("*")) == before


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


# ---- what would be lost


def test_what_float32_holds_only_rounded(tmp_path: Path) -> None:
    source = plain_h5(tmp_path / "a.h5", x=np.array([0.1, 0.2]), y=np.arange(2))
    said = "a.tfrecord: column 'x', sample 0: got 0.1, which float32 cannot hold exactly, and a TFRecord has no float64"
    refused(SchemaError, said, source, tmp_path / "a.tfrecord")
    narrow = {"x": hold.Float32()}
    said = r"column 'x' is float64, which Float32\(\) holds only rounded"
    refused(SchemaError, said, source, tmp_path / "a.tar", narrow)
    assert convert(source, tmp_path / "a.tar", narrow, cast=True).notes == ["'x' is rounded from float64 to Float32()"]
    done = convert(source, tmp_path / "a.tfrecord", cast=True)
    assert done.notes == ["'x' is rounded from float64 to Float32()"]
    assert done.schema == {"x": hold.Float32(), "y": hold.Int64()}
    assert convert(source, tmp_path / "b.tar", {"y": hold.Int64()}).schema == {"y": hold.Int64()}


def test_lists_of_float64(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        lists = file.create_dataset("x", (3,), h5py.vlen_dtype("f8"))
        lists[0], lists[2] = [0.5, 1], [2, 0.1]
    said = "column 'x', sample 2: got 0.1, which float32 cannot hold exactly"
    refused(SchemaError, said, tmp_path / "a.h5", tmp_path / "a.tfrecord")
    done = convert(tmp_path / "a.h5", tmp_path / "a.tfrecord", cast=True)
    assert done.schema == {"x": hold.Ragged(hold.Float32())}
    assert convert(tmp_path / "a.h5", tmp_path / "a.tar").schema == {"x": hold.Ragged(hold.Array("float64"))}


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        (np.array([1, 2**64 - 1], "u8"), SchemaError, "column 'x', sample 1: got 18446744073709551615, which int64"),
        (np.array([1 + 2j]), FormatError, "'x' has the type complex128, which no column can hold"),
        (np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]), FormatError, "'x' has the type compound"),
    ],
)
def test_what_no_column_can_hold(tmp_path: Path, values: Any, error: Any, said: str, cast: bool) -> None:
    refused(error, said, plain_h5(tmp_path / "a.h5", x=values), tmp_path / "a.tfrecord", cast=cast)


def test_too_large_for_float32(tmp_path: Path) -> None:
    source = plain_h5(tmp_path / "a.h5", x=np.array([1e300]))
    said = r"record 0: dataset 'x' has 1e\+300, which float32 cannot hold"
    refused(DecodeError, said, source, tmp_path / "a.tfrecord", cast=True)


def test_attributes_and_single_values_are_reported(tmp_path: Path) -> None:
    source = plain_h5(tmp_path / "a.h5", x=np.arange(3), scale=2)
    with h5py.File(source, "a") as file:
        file.attrs["made"] = "here"
        file["x"].attrs["unit"] = "m"
    assert convert(source, tmp_path / "a.tar").notes == [
        f"{source}: 2 attributes dropped: @made, x@unit",
        f"{source}: 1 scalar dataset dropped: scale",
    ]


def test_features_that_some_records_lack(tmp_path: Path) -> None:
    for name, schema, columns in [
        ("a", {"x": hold.Int64(), "y": hold.Int64()}, {"x": [1], "y": [2]}),
        ("b", {"x": hold.Int64()}, {"x": [3]}),
    ]:
        with hold.TFRecordWriter(tmp_path / f"{name}.tfrecord", schema) as writer:
            writer.extend(columns)
    sources = [tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"]
    refused(SchemaError, "column 'y': missing in 1 of 2 records", sources, tmp_path / "a.h5")
    done = convert(sources, tmp_path / "a.h5", cast=True)
    assert done.notes == ["'y' is missing in 1 of 2 records: there it is 0"]
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["y"][:].tolist() == [2, 0]
    assert convert(sources, tmp_path / "b.h5", {"x": hold.Int64(), "y": hold.Int64(default=7)}).rows == 2


def test_a_feature_of_two_types(tmp_path: Path) -> None:
    for name, column, value in [("a", hold.Int64(), 1), ("b", hold.Float32(), 1.5)]:
        with hold.TFRecordWriter(tmp_path / f"{name}.tfrecord", {"x": column}) as writer:
            writer.append(x=value)
    sources = [tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"]
    refused(SchemaError, "feature 'x': its type differs", sources, tmp_path / "a.h5", cast=True)


def test_a_member_that_some_samples_lack(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in [f"{i:03}.{ext}" for i in range(150) for ext in (["jpg", "txt"] if i == 140 else ["jpg"])]:
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    refused(DecodeError, "sample '000' has no member 'txt'", tmp_path / "a.tar", tmp_path / "a.h5")


def test_a_member_that_is_called_as_the_keys_are(tmp_path: Path) -> None:
    make_tar(tmp_path / "a.tar", [("0.__key__", b"k"), ("0.txt", b"t")])
    refused(SchemaError, "members of the extension '__key__'", tmp_path / "a.tar", tmp_path / "a.h5")
    done = convert(tmp_path / "a.tar", tmp_path / "a.h5", {"__key__": hold.Bytes(), "txt": hold.Bytes()})
    assert done.rows == 1


def test_members_of_no_sample_are_reported(tmp_path: Path) -> None:
    names = ["LICENSE", "0.txt", ".hidden", "a/b", "1.txt", "c"]
    path = make_tar(tmp_path / "a.tar", [(name, b"x") for name in names])
    for target in ("a.h5", "b.h5"):  # the second time by an index that was kept
        said = f"{path}: 4 members of no sample dropped: LICENSE, .hidden, a/b, …"
        assert convert(path, tmp_path / target).notes == [said]


# ---- sources that differ, or say nothing


def test_sources_of_other_columns(tmp_path: Path) -> None:
    one = plain_h5(tmp_path / "a.h5", x=np.arange(3))
    other = plain_h5(tmp_path / "b.h5", x=np.zeros((3, 2), "f4"))
    said = r"b.h5: column 'x' is Float32\(2\), but Int64\(\) in .*a.h5. Give a schema"
    refused(SchemaError, said, [one, other], tmp_path / "a.tar")


def test_nothing_to_take_columns_from(tmp_path: Path) -> None:
    with hold.TFRecordWriter(tmp_path / "a.tfrecord"):
        pass
    refused(SchemaError, "no records to take columns from; give a schema", tmp_path / "a.tfrecord", tmp_path / "a.h5")
    assert convert(tmp_path / "a.tfrecord", tmp_path / "a.h5", SCHEMA).rows == 0
    with hold.TFRecordWriter(tmp_path / "b.tfrecord") as writer:
        writer.write(b"no Example")
    refused(FormatError, "not a tf.train.Example", tmp_path / "b.tfrecord", tmp_path / "b.h5")
    refused(InputError, "No such file", tmp_path / "none.h5", tmp_path / "b.h5")
    (tmp_path / "x.jpg").write_bytes(b"x")
    refused(InputError, "expected TFRecord, HDF5 or tar", tmp_path / "x.jpg", tmp_path / "b.h5")
    refused(InputError, "expected a local file, got a URL", "s3://there/a.tfrecord", tmp_path / "b.h5")


def test_a_name_that_hdf5_cannot_have(tmp_path: Path) -> None:
    with hold.TFRecordWriter(tmp_path / "a.tfrecord", {"a": hold.Int64(), "a/b": hold.Int64()}) as writer:
        writer.append(**{"a": 1, "a/b": 2})
    refused(SchemaError, "column 'a/b' would lie inside column 'a'", tmp_path / "a.tfrecord", tmp_path / "a.h5")
    assert convert(tmp_path / "a.tfrecord", tmp_path / "a.tar").rows == 1


# ---- damage


def test_a_damaged_record(tmp_path: Path) -> None:
    source = make(tmp_path, "tfrecord", 20)
    flip(source, source.stat().st_size - 30)
    refused(CorruptError, "in.tfrecord, record 19 at byte", source, tmp_path / "a.h5", SCHEMA)


def test_a_cut_on_a_record_boundary_where_a_manifest_knows(tmp_path: Path) -> None:
    source = make(tmp_path, "tfrecord", 20)
    convert(source, tmp_path / "out" / "t.tfrecord", SCHEMA, shards=1)
    [shard] = (tmp_path / "out").glob("*.tfrecord")
    size = 16 + int.from_bytes(shard.read_bytes()[:8], "little")
    shard.write_bytes(shard.read_bytes()[:size])
    refused(CorruptError, "the manifest says 20 records, the file has 1", shard, tmp_path / "a.h5", SCHEMA)


def test_a_damaged_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", data=np.arange(1000), chunks=(100,), compression="gzip")
        offset = data.id.get_chunk_info(3).byte_offset
    flip(path, offset + 9)
    refused(CorruptError, f"a.h5 at byte {offset:,}: /x, chunk at 300: ", path, tmp_path / "a.tar")


def test_a_damaged_part_of_a_run(tmp_path: Path) -> None:
    run = hold.write(tmp_path / "run.hold", SCHEMA)
    with run.part("t") as part:
        part.extend(samples(0, 20))
    [record] = run.parts()
    offset, _, _ = record.chunks["emb"][0]
    flip(run.path_of(record), offset + 1)
    refused(CorruptError, "dataset 'emb', chunk 0: the checksum", run.folder, tmp_path / "a.tar")


def test_a_missing_part_of_a_run(tmp_path: Path) -> None:
    run = hold.write(tmp_path / "run.hold", SCHEMA)
    for task in "ab":
        with run.part(task) as part:
            part.extend(samples(0, 2))
    os.unlink(run.path_of(run.parts()[1]))
    refused(
        CorruptError,
        "expected all committed parts, 1 are gone, such as that of task 'b'",
        run.folder,
        tmp_path / "a.tar",
    )


def test_a_cut_tar(tmp_path: Path) -> None:
    source = make(tmp_path, "tar", 5)
    whole = source.read_bytes()
    source.write_bytes(whole[:-2048])
    refused(CorruptError, "without a tar's end mark", source, tmp_path / "a.h5")
    with tarfile.open(source, "w") as tar, tarfile.open(fileobj=io.BytesIO(whole)) as old:
        for member in old.getmembers()[:-1]:
            tar.addfile(member, old.extractfile(member))
    refused(DecodeError, "record 4: the sample lacks a member", source, tmp_path / "a.h5")


def test_a_damaged_tar_whose_index_was_kept(tmp_path: Path) -> None:
    """A bit that flips on a disk changes no time."""
    path = make_tar(tmp_path / "a.tar", [(f"{i:03}.x", b"x") for i in range(100)])
    assert convert(path, tmp_path / "a.h5").rows == 100
    was = path.stat()
    flip(path, 1024 * 55 + 3)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    refused(CorruptError, "a.tar at byte 56,320: the tar header is corrupt", path, tmp_path / "b.h5")


# ---- targets


def test_a_target_that_is_there(tmp_path: Path) -> None:
    source, target = make(tmp_path, "tar", 3), tmp_path / "a.tfrecord"
    target.write_bytes(b"mine")
    refused(TargetExistsError, "a.tfrecord exists already", source, target)
    assert target.read_bytes() == b"mine"
    assert convert(source, target, overwrite=True).rows == 3
    refused(WriteError, "is also an input", target, target, SCHEMA, overwrite=True)
    (tmp_path / "t-00001-of-00002.h5").write_bytes(b"mine")
    refused(TargetExistsError, "t-00001-of-00002.h5 exists", source, tmp_path / "t.h5", shards=2)


def test_shards_of_before_are_not_taken_in_again(tmp_path: Path) -> None:
    make(tmp_path, "hdf5", 6)
    convert(tmp_path / "in.h5", tmp_path / "out" / "t.tar", shards=2)
    refused(WriteError, "t-00000-of-00002.tar is also an input", tmp_path / "out", tmp_path / "out" / "t.tar", shards=3)
    assert convert(tmp_path / "out", tmp_path / "out" / "t.h5", shards=3).rows == 6


@pytest.mark.parametrize("options", [{"shards": 3}, {"shard_bytes": 20}])
@pytest.mark.parametrize("overwrite", [False, True])
def test_shards_of_another_number(tmp_path: Path, options: Any, overwrite: bool) -> None:
    """Whoever reads the folder would get all samples twice."""
    source, target = plain_h5(tmp_path / "in.h5", x=np.arange(10)), tmp_path / "out" / "t.tfrecord"
    convert(source, target, shards=2)
    refused(TargetExistsError, "t-00000-of-00002.* is of another", source, target, overwrite=overwrite, **options)
    assert convert(source, target, shards=2, overwrite=True).rows == 10


def test_the_place_to_work_in_is_taken(tmp_path: Path) -> None:
    source = make(tmp_path, "tar", 2)
    (tmp_path / ".a.h5.convert").write_text("mine")
    refused(WriteError, "cannot make the folder .*a.h5.convert to work in: File exists", source, tmp_path / "a.h5")
    assert (tmp_path / ".a.h5.convert").read_text() == "mine"


def test_a_target_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="expected a local file to write to, got the URL 's3://there/a.h5'"):
        convert(make(tmp_path, "tar", 2), "s3://there/a.h5")
    assert not (tmp_path / "s3:").exists()


def test_a_manifest_that_cannot_be_added_to(tmp_path: Path) -> None:
    source = make(tmp_path, "tar", 2)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "holdfast.manifest.json").write_text("{")
    refused(InputError, "not a holdfast manifest", source, tmp_path / "out" / "t.tfrecord", shards=2)


def test_a_target_that_appears_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = make(tmp_path, "tar", 3), tmp_path / "t.tfrecord"
    real, mine = engine.verify_targets, tmp_path / "t-00001-of-00002.tfrecord"
    monkeypatch.setattr(convert_module, "verify_targets", lambda *args: (real(*args), mine.write_bytes(b"mine")))
    with pytest.raises(TargetExistsError, match="t-00001-of-00002.tfrecord exists already"):
        convert(source, target, shards=2)
    assert mine.read_bytes() == b"mine"
    assert not (tmp_path / "t-00000-of-00002.tfrecord").exists()


def test_one_at_a_time(tmp_path: Path) -> None:
    source = make(tmp_path, "tar", 3)
    with staging_dir(tmp_path, "a.h5.convert", busy="a test"):
        with pytest.raises(WriterBusyError, match=r"another conversion to .*a.h5 is running"):
            convert(source, tmp_path / "a.h5")
        assert convert(source, tmp_path / "b.h5").rows == 3


def test_a_source_that_changes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make(tmp_path, "tar", 3)
    monkeypatch.setattr(convert_module, "verify_targets", lambda *_: os.utime(source, (1, 1)))
    refused(InputError, "in.tar: it changed while it was read; nothing was kept", source, tmp_path / "a.h5")


@pytest.mark.parametrize("name", ["a.h5", "a.tar", "a.tfrecord"])
def test_a_target_that_reads_otherwise_than_it_was_written(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a disk that fails would have it."""
    source = make(tmp_path, "tar", 3)
    real = engine._OutputSeries.finish

    def finish(row: Any, count: int) -> Any:
        entries = real(row, count)
        path = Path(entries[0].path)
        data = path.read_bytes()
        at = data.index(np.float32(0.1 * 7).tobytes()) if name != "a.tfrecord" else len(data) - 40
        flip(path, at)
        return entries

    monkeypatch.setattr(engine._OutputSeries, "finish", finish)
    refused(DataError, "when reading it back|is corrupt|CRC", source, tmp_path / name)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("a.csv", {}, "expected a name that ends in .tfrecord"),
        (".h5", {}, "expected a name that ends in"),
        ("a.tar.gz", {}, "expected a name that ends in"),
        ("a.tar", {"codec": "gzip"}, "a codec is for HDF5"),
        ("a.h5", {"codec": "bad"}, "expected codec to be"),
        ("a.h5", {"compression": "gzip"}, "compression is for TFRecord"),
        ("a.h5", {"compression": "bad"}, "expected compression to be"),
        ("a.h5", {"shards": 0}, "expected from 1 to"),
        ("a.h5", {"shards": 2.0}, "expected from 1 to"),
        ("a.h5", {"shards": "2"}, "expected from 1 to"),
        ("a.h5", {"shards": 2, "shard_bytes": 9}, "expected either shards= or shard_bytes="),
        ("a.h5", {"shard_bytes": "big"}, "expected a size such as"),
    ],
)
def test_what_makes_no_sense(tmp_path: Path, name: str, options: Any, said: str) -> None:
    refused(ValueError, said, tmp_path, tmp_path / name, **options)
