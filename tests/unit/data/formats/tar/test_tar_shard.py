"""Tars as shards: samples out of members, columns out of a schema, the cached index."""

from __future__ import annotations

import io
import os
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories_tar import Given, info, make_tar

import holdfast as hold
from holdfast.data.formats.columns import ZeroCopyBytesColumn
from holdfast.data.formats.folder_index import Entry, FileKey, index_path, save
from holdfast.data.formats.registry import open_shard
from holdfast.data.formats.tar import index as tar_index
from holdfast.data.formats.tar.shard import TarShard
from holdfast.errors import CorruptError, DecodeError, FormatError, InputError, SchemaError
from holdfast.schema import Column

pytestmark = pytest.mark.formats

FOUR: list[Given] = [
    ("a/0.jpg", b"zero"),
    ("a/0.cls", b"7"),
    ("a/1.JPEG", b"one"),
    ("a/1.cls", b"8\n"),
    ("b/2.seg.png", b"seg"),
    ("b/2.png", b"two"),
    ("b/2.cls", b"-9"),
    ("b/3.jpg", b""),
    ("b/3.cls", b" 10 "),
]
IMAGE = hold.Bytes(key="jpg;jpeg;png")


@pytest.mark.parametrize(
    ("suffix", "mode"), [(".tar", "w"), (".tgz", "w:gz"), (".tar.xz", "w:xz"), (".tar.bz2", "w:bz2")]
)
def test_columns_by_extension(tmp_path: Path, suffix: str, mode: str) -> None:
    path = make_tar(tmp_path / f"x{suffix}", FOUR, mode)
    schema = {"image": IMAGE, "label": hold.Int64(key="cls"), "id": hold.Bytes(key="__key__")}
    with open_shard(path) as shard:
        assert isinstance(shard, TarShard)
        assert shard.seekable == (suffix == ".tar")
        assert list(shard.schema) == ["__key__", "jpg", "cls", "jpeg", "seg.png", "png"]
        batch = shard.read(0, 4, schema)
        assert batch["image"].tolist() == [b"zero", b"one", b"two", b""]
        assert batch["label"].tolist() == [7, 8, -9, 10]
        assert batch["id"].tolist() == [b"a/0", b"a/1", b"b/2", b"b/3"]
        assert shard.read_rows([3, 0, 3], schema)["id"].tolist() == [b"b/3", b"a/0", b"b/3"]
        assert shard.read_rows([2, 0], schema)["image"].tolist() == [b"two", b"zero"]


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(("suffix", "mode"), [(".tar", "w"), (".tgz", "w:gz")])
def test_numpy_members_keep_dtype_and_shape(tmp_path: Path, suffix: str, mode: str) -> None:
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (5, 4, 6, 3), np.uint8)
    columns: dict[str, list[Any]] = {
        "npy": list(images),
        "fortran.npy": [np.asfortranarray(image) for image in images],
        "boxes.npy": [rng.random((i, 4)) for i in range(5)],
        "swapped.npy": [np.float16(i).astype(">f2") for i in range(5)],
        "flag.npy": [np.array([i % 2 == 0]) for i in range(5)],
        "both.npy": [np.zeros(i % 2 + 1, "i4" if i % 2 else "i8") for i in range(5)],
        "any.npy": [np.zeros((2, i + 1)) for i in range(5)],
        "complex.npy": [np.array(1j)] * 5,
        "none.npy": [np.zeros((3, 0))] * 5,
    }
    members = [(f"{i}.{name}", npy(column[i])) for i in range(5) for name, column in columns.items()]
    path = make_tar(tmp_path / f"x{suffix}", members, mode)
    wanted = {
        "npy": hold.Array("uint8", 4, 6, 3),
        "fortran.npy": hold.Array("uint8", 4, 6, 3),
        "boxes.npy": hold.Ragged(hold.Array("float64", 4)),
        "swapped.npy": hold.Array("float16"),
        "flag.npy": hold.Array("bool", 1),
    }
    left = {name: hold.Bytes() for name in ("__key__", "both.npy", "any.npy", "complex.npy", "none.npy")}
    ds = hold.read(path)
    assert ds.schema == wanted | left  # what no column can hold are the bytes of the members
    [batch] = ds.batch(5)
    assert batch["npy"].dtype == np.uint8
    assert batch["npy"].tobytes() == batch["fortran.npy"].tobytes() == images.tobytes()
    assert [row.tobytes() for row in batch["boxes.npy"]] == [row.tobytes() for row in columns["boxes.npy"]]
    assert batch["swapped.npy"].dtype == np.dtype("float16")
    assert batch["swapped.npy"].tolist() == [0, 1, 2, 3, 4]
    assert batch["any.npy"].tolist() == [npy(array) for array in columns["any.npy"]]
    done = hold.convert(path, tmp_path / "a.h5")
    assert done.schema == wanted | left
    back = hold.convert(tmp_path / "a.h5", tmp_path / "b.tar")
    assert back.checksum == done.checksum
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert tar.getnames()[1:] == [f"{i}.{name}" for i in range(5) for name in done.schema if name != "__key__"]


def test_numpy_members_that_are_other_than_the_first(tmp_path: Path) -> None:
    arrays: list[Any] = [np.zeros(2, "f4")] * 120 + [np.array([0.5, 0.1])]
    path = make_tar(tmp_path / "x.tar", [(f"{i}.npy", npy(array)) for i, array in enumerate(arrays)])
    assert hold.read(path).schema["npy"] == hold.Float32(2)
    said = "x.tar, record 120: sample '120', column 'npy': got 0.1, which float32 cannot hold exactly.* Bytes"
    with pytest.raises(DecodeError, match=said):
        list(hold.read(path).batch(10))
    said_so = hold.read(path, {"npy": hold.Float32(2)}).batch(121)
    assert next(iter(said_so))["npy"][120].tolist() == np.array([0.5, 0.1], "f4").tolist()
    assert hold.convert(path, tmp_path / "x.h5").schema["npy"] == hold.Bytes()  # it looks at all of them


def test_a_missing_numpy_member_is_no_empty_list(tmp_path: Path) -> None:
    members = [("0.x", b""), ("0.npy", npy(np.zeros(2))), ("1.x", b""), ("2.x", b""), ("2.npy", npy(np.zeros(3)))]
    path = make_tar(tmp_path / "x.tar", members)
    with pytest.raises(DecodeError, match="sample '1' has no member 'npy'"):
        list(hold.read(path).batch(3))


def test_the_first_alternative_that_is_there(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("0.png", b"p"), ("0.jpg", b"j"), ("1.png", b"p")])
    with open_shard(path) as shard:
        assert shard.read(0, 2, {"x": hold.Bytes(key="JPG; png")})["x"].tolist() == [b"j", b"p"]
        assert shard.read(0, 2, {"x": hold.Bytes(key="png;jpg")})["x"].tolist() == [b"p", b"p"]


def test_a_missing_member_is_named_or_filled(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", FOUR)
    with open_shard(path) as shard:
        with pytest.raises(DecodeError, match=r"x.tar, record 1 .*sample 'a/1' has no member 'jpg' for column 'image'"):
            shard.read(0, 4, {"image": hold.Bytes(key="jpg")})
        with pytest.raises(DecodeError, match=r"no member 'jpg' .*mean 'jpeg'\? It has: 'jpeg', 'cls'"):
            shard.read(0, 4)
        filled: dict[str, Column] = {
            "jpg": hold.Bytes(default=b"none"),
            "png": hold.Bytes(default=""),
            "w": hold.Float32(2, default=0.5),
            "cls": hold.Int64(default=-1),
            "list": hold.Ragged(hold.Int64()),
        }
        got = {name: column.tolist() for name, column in shard.read_rows([2, 0, 1], filled).items()}
        assert got == {
            "jpg": [b"none", b"zero", b"none"],
            "png": [b"two", b"", b""],
            "w": [[0.5, 0.5]] * 3,
            "cls": [-9, 7, 8],
            "list": [[], [], []],
        }


def test_a_number_that_only_some_samples_have(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("0.a", b""), ("1.a", b""), ("1.w", b"2.5"), ("2.a", b""), ("2.w", b"3")])
    with open_shard(path) as shard:
        assert shard.read(0, 3, {"w": hold.Float32(default=1.0)})["w"].tolist() == [1.0, 2.5, 3.0]


def test_columns_that_no_tar_can_hold(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", FOUR)
    with open_shard(path) as shard:
        for column in (hold.Bytes(2), hold.Ragged(hold.Bytes())):
            with pytest.raises(SchemaError, match="'cls': a tar's member is one byte string"):
                shard.read(0, 1, {"cls": column})
        with pytest.raises(SchemaError, match="a sample's key is Bytes"):
            shard.read(0, 1, {"__key__": hold.Int64()})


def test_a_member_that_is_no_number_is_named(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [(f"{i}.cls", b"%d" % i) for i in range(5)] + [("5.cls", b"dog")])
    with open_shard(path) as shard:
        with pytest.raises(DecodeError, match=r"x.tar, record 5: sample '5', column 'y': expected integers.*b'dog'"):
            shard.read_rows([1, 5, 2], {"y": hold.Int64(key="cls")})
        assert shard.read(0, 5, {"y": hold.Int64(key="cls")})["y"].tolist() == [0, 1, 2, 3, 4]


# ---- samples


def test_names_that_are_no_samples_are_left_out(tmp_path: Path) -> None:
    extra: list[Given | tarfile.TarInfo] = [
        info("a", type=tarfile.DIRTYPE),
        ("README", b"r"),
        ("a/.DS_Store", b"d"),
        ("a/._0.jpg", b"d"),
        ("__info__", b"m"),
    ]
    with open_shard(make_tar(tmp_path / "x.tar", [*extra, *FOUR])) as shard:
        assert len(shard) == 4


def test_absolute_and_climbing_names_are_only_names(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("/etc/x.txt", b"a"), ("../../y.txt", b"b")])
    with open_shard(path) as shard:
        batch = shard.read(0, 2)
        assert batch["__key__"].tolist() == [b"/etc/x", b"../../y"]
        assert batch["txt"].tolist() == [b"a", b"b"]
    assert sorted(os.listdir(tmp_path)) == ["x.tar"]


def test_one_extension_twice_in_a_sample(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("0.jpg", b"a"), ("1.jpg", b"b"), ("1.cls", b"1"), ("1.JPG", b"c")])
    with pytest.raises(FormatError, match="x.tar, record 1 .*sample '1' has two members with the extension 'jpg'"):
        open_shard(path)


def test_two_samples_of_one_key_are_two(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("0.jpg", b"a"), ("1.jpg", b"b"), ("0.jpg", b"c")])
    with open_shard(path) as shard:
        assert shard.read(0, 3)["__key__"].tolist() == [b"0", b"1", b"0"]
        assert shard.read(0, 3)["jpg"].tolist() == [b"a", b"b", b"c"]


def test_a_sample_that_was_torn_apart(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("0.jpg", b"a"), ("1.jpg", b"b"), ("0.cls", b"0"), ("1.cls", b"1")])
    with pytest.raises(FormatError, match="sample '0' is split: its 'jpg' .*--sort=name"):
        open_shard(path)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_a_tar_of_nothing(tmp_path: Path, mode: str) -> None:
    with open_shard(make_tar(tmp_path / "x.tar", [], mode)) as shard:
        assert len(shard) == 0
        assert list(shard.schema) == ["__key__"]
        assert shard.read(0, 0)["__key__"].tolist() == []


def test_many_extensions(tmp_path: Path) -> None:
    """Names with a number behind the first dot: every member has an extension of its own."""
    path = make_tar(tmp_path / "x.tar", [(f"k.{i}.jpg", b"%d" % i) for i in range(3000)])
    with open_shard(path) as shard:
        assert len(shard) == 1
        assert shard.read(0, 1, {"x": hold.Int64(key="2999.jpg")})["x"].tolist() == [2999]


# ---- files that are not what they should be


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"")
    with pytest.raises(FormatError, match="x.tar: the file is empty"):
        open_shard(tmp_path / "x.tar")
    (tmp_path / "x.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    with pytest.raises(FormatError, match="this is a zstd file"):
        open_shard(tmp_path / "x.tar.zst")
    (tmp_path / "folder.tar").mkdir()
    with pytest.raises(InputError, match="expected a file to read, this is a folder"):
        open_shard(tmp_path / "folder.tar")
    os.mkfifo(tmp_path / "fifo.tar")
    with pytest.raises(InputError, match="not a regular file"):
        open_shard(tmp_path / "fifo.tar")
    with pytest.raises(InputError, match=r"nothing.tar: cannot open: No such file"):
        open_shard(tmp_path / "nothing.tar")


def test_content_goes_over_the_name(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", FOUR, "w:gz")
    with open_shard(path) as shard:
        assert (len(shard), shard.seekable) == (4, False)
    path = make_tar(tmp_path / "shard-000", FOUR)
    with open_shard(path) as shard:
        assert isinstance(shard, TarShard)


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_packed_data_that_are_damaged(tmp_path: Path, mode: str) -> None:
    path = make_tar(tmp_path / "x.tar", [(f"{i}.bin", os.urandom(500)) for i in range(50)], mode)
    whole = path.read_bytes()
    for at in range(200, len(whole) - 200, 3001):
        data = bytearray(whole)
        data[at : at + 8] = b"\xff" * 8
        path.write_bytes(data)
        with pytest.raises(CorruptError, match=r"x.tar.*(corrupt|cut)"):
            open_shard(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptError, match="x.tar: the .* data are cut short"):
        open_shard(path)


def test_a_tar_written_over_after_it_was_opened(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [(f"{i}.bin", b"a" * 900) for i in range(5)])
    other = make_tar(tmp_path / "y.tar", [(f"{i}.bin", b"b" * 800) for i in range(5)]).read_bytes()
    with open_shard(path) as shard:
        assert shard.read(0, 1)["bin"].tolist() == [b"a" * 900]
        path.write_bytes(other)
        os.utime(path, ns=(1, 1))
        with pytest.raises(CorruptError, match="x.tar: the file has changed since it was opened"):
            shard.read(0, 1)


def test_a_tar_cut_after_it_was_opened(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [(f"{i}.bin", b"a" * 900) for i in range(5)])
    with open_shard(path) as shard:
        os.truncate(path, 3000)
        with pytest.raises(CorruptError, match="x.tar: the file has changed since it was opened"):
            shard.read(3, 4)


def test_a_tar_that_was_only_touched(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", FOUR)
    with open_shard(path) as shard:
        os.utime(path, ns=(1, 1))
        assert shard.read(0, 1, {"cls": hold.Int64()})["cls"].tolist() == [7]


# ---- reading


def test_large_members_are_lent(tmp_path: Path) -> None:
    datas = [bytes([i]) * (40_000 + i) for i in range(5)]
    path = make_tar(tmp_path / "x.tar", [(f"{i}.jpg", data) for i, data in enumerate(datas)])
    with open_shard(path) as shard:
        batch = shard.read_rows([4, 0, 1, 4], {"jpg": hold.Bytes()})
    assert isinstance(batch["jpg"], ZeroCopyBytesColumn)
    assert batch["jpg"].tolist() == [datas[4], datas[0], datas[1], datas[4]]


def test_only_what_is_asked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [(f"{i}.{kind}", data) for i in range(4) for kind, data in (("jpg", bytes(100_000)), ("cls", b"1"))]
    read: list[int] = []
    preadv = os.preadv

    def counted(fd: int, views: list[memoryview], offset: int) -> int:
        read.extend(map(len, views))
        return preadv(fd, views, offset)

    with open_shard(make_tar(tmp_path / "x.tar", members)) as shard:
        monkeypatch.setattr(os, "preadv", counted)
        shard.read(0, 4, {"cls": hold.Int64()})
        assert read == [513] * 4  # each with its header
        read.clear()
        shard.read(0, 4, {"__key__": hold.Bytes()})
        assert read == []
        shard.read(0, 4)
        assert len(read) == 1


# ---- the index


def keep_index(path: Path) -> Path:
    """As hold.read does."""
    with open_shard(path) as shard:
        return save(path.parent, [Entry(path.name, FileKey.of(path.stat()), places=shard.places)])


def test_the_index_is_kept_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_tar(tmp_path / "x.tar", FOUR)
    with open_shard(path) as shard:
        want = shard.read_rows([2, 0], {"id": hold.Bytes(key="__key__"), "cls": hold.Int64()})
    keep_index(path)
    monkeypatch.setattr(tar_index, "build_index", lambda source: pytest.fail("it was built again"))
    with open_shard(path) as shard:
        got = shard.read_rows([2, 0], {"id": hold.Bytes(key="__key__"), "cls": hold.Int64()})
        assert list(shard.schema) == ["__key__", "jpg", "cls", "jpeg", "seg.png", "png"]
    assert {name: column.tolist() for name, column in got.items()} == {
        name: column.tolist() for name, column in want.items()
    }


def test_a_stale_or_damaged_index_is_built_again(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("0.txt", b"a" * 10), ("1.txt", b"b" * 20)])
    keep_index(path)
    stamp = path.stat()
    make_tar(path, [("0.txt", b"a" * 20), ("1.txt", b"b" * 10)])  # the same size, and, below, the same time
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert path.stat().st_size == stamp.st_size
    with open_shard(path) as shard:
        assert shard.read(0, 2)["txt"].tolist() == [b"a" * 20, b"b" * 10]
    with open_shard(path) as shard:
        good = shard.places
    for bad in (b"", b"{}", b"[]\n", good[:-3], good.replace(b'"samples": 2', b'"samples": 3'), good[:90]):
        save(path.parent, [Entry(path.name, FileKey.of(path.stat()), places=bad)])
        with open_shard(path) as shard:
            assert shard.read(0, 2)["__key__"].tolist() == [b"0", b"1"]


def test_a_tar_rebuilt_with_the_same_size_and_mtime_is_never_read_with_the_old_sizes(tmp_path: Path) -> None:
    """As Nix, Bazel and `tar --mtime` rebuild files: only members between the sampled headers differ."""
    members = [(f"{i:03}.txt", b"a" * 100) for i in range(200)]
    path = make_tar(tmp_path / "x.tar", members)
    with open_shard(path) as shard:
        stamp = path.stat()
        members[20] = ("020.txt", b"a" * 200)
        rebuilt = make_tar(tmp_path / "y.tar", members).read_bytes()
        with path.open("r+b") as file:  # the file that is open, too
            file.write(rebuilt)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        assert path.stat().st_size == stamp.st_size
        assert shard.read(0, 20)["txt"].tolist() == [b"a" * 100] * 20
        with pytest.raises(CorruptError, match="has changed since it was opened"):
            shard.read(0, 40)
    with open_shard(path) as shard:
        assert shard.read(0, 200)["txt"].tolist() == [data for _, data in members]


def test_sizes_in_pax_headers_are_right(tmp_path: Path) -> None:
    """They stand for those in the headers themselves, which then do not fit the index."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("0.txt")
        info.size, info.pax_headers = 3, {"size": "3"}
        tar.addfile(info, io.BytesIO(b"abc"))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"0.txt")
    data[at + 124 : at + 136] = b"00000000000\0"
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    path.write_bytes(data)
    with open_shard(path) as shard:
        assert [shard.read(0, 1)["txt"].tolist() for _ in range(2)] == [[b"abc"]] * 2


def test_no_cache_no_index(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", FOUR)
    with TarShard(path, cache=False) as shard:
        assert len(shard) == 4
    assert not index_path(tmp_path, "cache").exists()


def test_a_shard_never_closed_says_so(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", FOUR)
    with pytest.warns(ResourceWarning, match="x.tar: the file was read and never closed"):
        shard = open_shard(path)
        del shard


def test_an_index_takes_little_memory(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "a.tar", [(f"{i:06}.x", b"") for i in range(40_000)])
    tracemalloc.start()
    try:
        with TarShard(path, cache=False) as shard:
            assert len(shard) == 40_000
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000  # most of it are headers that are checked together
