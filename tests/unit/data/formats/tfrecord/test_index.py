"""Records by number, and an index that is never believed when it is stale."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hold
from holdfast._native import codec
from holdfast.data.formats.folder_index import Entry, Place, index_path, save
from holdfast.data.formats.tfrecord import index
from holdfast.errors import CorruptError, FormatError, InputError

pytestmark = pytest.mark.formats


def write(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(b"".join(codec.frame(record) for record in records))
    return path


def make_index(file: Path, place: Place = "beside") -> tuple[Path, int]:
    key, offsets = index.find_records(file)
    return save(file.parent, [Entry(file.name, key, places=offsets.tobytes())], place), len(offsets) - 1


@pytest.fixture
def records() -> list[bytes]:
    return [b"record %d " % i * (i % 7) for i in range(500)]


@pytest.fixture
def file(tmp_path: Path, records: list[bytes]) -> Path:
    return write(tmp_path / "x.tfrecord", records)


def test_records_by_number(file: Path, records: list[bytes]) -> None:
    with hold.Records(file) as got:
        assert len(got) == 500
        assert [got[i] for i in range(500)] == records
        assert got[-1] == records[-1]
        assert got[3:9] == records[3:9]
        assert got[::-100] == records[::-100]
        assert got[[5, 9, 5, -2]] == [records[i] for i in (5, 9, 5, -2)]
        for i in (500, -501):
            with pytest.raises(IndexError, match="expected a record from 0 to 499"):
                got[i]
        with pytest.raises(TypeError):
            got["x"]


def test_an_empty_file(tmp_path: Path) -> None:
    with hold.Records(write(tmp_path / "x", [])) as got:
        assert len(got) == 0
        with pytest.raises(IndexError):
            got[0]


def test_the_index_is_built_once(
    tmp_path: Path, file: Path, records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "QUICK_S", 0)  # one that takes no time is not stored
    with hold.Records(file):
        pass
    assert index_path(tmp_path, "cache").exists()
    assert sorted(entry.name for entry in file.parent.iterdir()) == ["x.tfrecord"]
    monkeypatch.setattr(index, "build_index", lambda source: pytest.fail("built again"))
    with hold.Records(file) as got:
        assert got[7] == records[7]


def test_beside_the_file_when_asked(file: Path) -> None:
    path, count = make_index(file)
    assert (path.parent, count) == (file.parent, 500)


@pytest.mark.parametrize("place", ["beside", "cache"])
def test_a_stale_index_is_not_believed(file: Path, records: list[bytes], place: Place) -> None:
    make_index(file, place)
    stamp = file.stat()
    # Same size and same mtime, other content: only the sample of CRCs shows it.
    swapped = records[::-1]
    write(file, swapped)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert file.stat().st_size == stamp.st_size
    with hold.Records(file) as got:
        assert [got[i] for i in range(500)] == swapped
    make_index(file, place)
    write(file, records[:100])
    with hold.Records(file) as got:
        assert len(got) == 100


@pytest.mark.parametrize("place", ["beside", "cache"])
def test_a_rebuilt_file_of_the_same_size_and_mtime_is_not_called_corrupt(file: Path, place: Place) -> None:
    """As Nix, Bazel and `tar --mtime` rebuild files: only two records between the sampled ones differ."""
    records = [b"a" * 40] * 500
    write(file, records)
    make_index(file, place)
    stamp = file.stat()
    records[40:42] = [b"a" * 30, b"a" * 50]
    write(file, records)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert file.stat().st_size == stamp.st_size
    with hold.Records(file) as got:
        if place == "cache":
            assert [got[i] for i in range(500)] == records
        else:  # one beside its file may have been copied with it: its inode and ctime say nothing
            with pytest.raises(FormatError, match="index was made from another version.*`holdfast index .*` makes"):
                got[41]


@pytest.mark.parametrize("damage", ["cut", "flip", "garbage", "empty"])
def test_a_damaged_index_is_built_again(file: Path, records: list[bytes], damage: str) -> None:
    path, _ = make_index(file)
    data = bytearray(path.read_bytes())
    data[-13] ^= 1
    path.write_bytes({"cut": bytes(data[:-9]), "flip": bytes(data), "garbage": b"{]\n", "empty": b""}[damage])
    with hold.Records(file) as got:
        assert got[499] == records[499]


def test_a_damaged_record_is_named(file: Path, records: list[bytes]) -> None:
    with hold.Records(file) as got:
        start = int(got._offsets[41])
    data = bytearray(file.read_bytes())
    data[start + 13] ^= 1
    file.write_bytes(data)
    with hold.Records(file) as got:
        assert got[40] == records[40]
        with pytest.raises(CorruptError, match="record 41.*bad data CRC"):
            got[41]
    with hold.Records(file, verify="header") as got:
        assert len(got[41]) == len(records[41])


def test_a_file_with_a_bad_length_cannot_be_indexed(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptError, match="bad length CRC"):
        hold.Records(file)


def test_packed_files_are_refused_with_a_way_out(tmp_path: Path) -> None:
    with hold.TFRecordWriter(tmp_path / "x.gz") as writer:
        writer.write(b"one")
    with pytest.raises(FormatError, match="holdfast merge"):
        hold.Records(tmp_path / "x.gz")
    with pytest.raises(InputError, match="gzip"):
        index.find_records(tmp_path / "x.gz")


def test_a_cache_that_cannot_be_written_does_no_harm(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with hold.Records(file) as got:
        assert len(got) == 500


def test_a_wrong_argument(file: Path) -> None:
    with pytest.raises(ValueError, match="verify"):
        hold.Records(file, verify="none")  # type: ignore[arg-type]


def test_arrays_and_masks(file: Path, records: list[bytes]) -> None:
    mask = np.zeros(500, bool)
    mask[[3, 499]] = True
    with hold.Records(file) as got:
        assert got[np.array([3, 5])] == [records[3], records[5]]
        assert got[np.int64(7)] == records[7]
        assert got[mask] == [records[3], records[499]]
        for wrong in (True, [True, False]):
            with pytest.raises(TypeError, match="True or False"):
                got[wrong]
        with pytest.raises(IndexError, match="mask of 500"):
            got[mask[:5]]


def test_a_file_that_grows_while_it_is_indexed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = index.build_index

    def build_slowly(source: Any) -> Any:
        offsets = build(source)
        with open(file, "ab") as more:
            more.write(codec.frame(b"one more"))
        return offsets

    monkeypatch.setattr(index, "build_index", build_slowly)
    with hold.Records(file) as got:
        assert len(got) == 500
    monkeypatch.undo()
    with hold.Records(file) as got:
        assert got[500] == b"one more"


@pytest.mark.parametrize("offsets", [[0, 2**62], [5, 100], [0, 3, 2], [0]])
def test_an_index_of_nonsense_is_built_again(file: Path, records: list[bytes], offsets: list[int]) -> None:
    key, _ = index.find_records(file)
    save(file.parent, [Entry(file.name, key, places=np.array(offsets, "<i8").tobytes())])
    with hold.Records(file) as got:
        assert got[499] == records[499]


def test_an_index_in_memory_is_not_believed_when_stale(file: Path, records: list[bytes]) -> None:
    before = file.stat()
    make_index(file, "cache")
    hold.Records(file).close()
    content = file.read_bytes()
    with open(file, "r+b") as same:  # the same file, as long as before, changed within one tick of the clock
        same.write(b"".join(codec.frame(record) for record in reversed(records)))
    assert len(content) == file.stat().st_size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with hold.Records(file) as got:
        assert got[:] == records[::-1]
