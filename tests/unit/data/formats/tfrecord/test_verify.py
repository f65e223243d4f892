"""Verify: every damage found, the walk goes on behind it, and a manifest shows what no CRC can."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import TFRecordWriter
from holdfast._native import codec
from holdfast.data.formats.tfrecord.manifest import FileEntry, find_manifest, read_manifest, write_manifest
from holdfast.data.formats.tfrecord.verify import verify_file
from holdfast.errors import InputError

pytestmark = pytest.mark.formats

RECORDS = [b"record %d " % i * 5 for i in range(300)]


def frames(records: list[bytes]) -> bytes:
    return b"".join(codec.frame(record) for record in records)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.tfrecord"
    with TFRecordWriter(path) as writer:
        for record in RECORDS:
            writer.write(record)
    assert writer.entry is not None
    write_manifest(tmp_path, [writer.entry])
    return path


def test_a_whole_file(file: Path) -> None:
    assert verify_file(file).as_dict() == {
        "path": str(file),
        "ok": True,
        "records": 300,
        "bytes": file.stat().st_size,
        "problems": [],
    }


def test_every_flipped_bit_of_a_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x"
    whole = frames([b"", b"some data", b"more data that are longer"])
    for at in range(len(whole) * 8):
        data = bytearray(whole)
        data[at // 8] ^= 1 << at % 8
        path.write_bytes(data)
        assert not verify_file(path).ok, f"bit {at}"


def test_all_damages_are_listed(file: Path) -> None:
    data = bytearray(file.read_bytes())
    size = len(data)
    data[200] ^= 1
    data[9000] ^= 1
    file.write_bytes(data[:-2])
    report = verify_file(file)
    assert not report.ok
    assert report.bytes == size - 2
    assert [problem.reason.split(":")[0] for problem in report.problems] == [
        "bad data CRC",
        "bad data CRC",
        "truncated",
    ]
    assert report.records == 297
    assert "salvage" in report.hint


def test_a_cut_on_a_record_boundary_shows_against_the_manifest(file: Path) -> None:
    file.write_bytes(frames(RECORDS[:200]))
    (first, second) = verify_file(file).problems
    assert first.reason == "the manifest says 300 records, the file has 200"
    assert "bytes" in second.reason
    file.write_bytes(b"")
    assert not verify_file(file).ok


def test_another_file_of_the_same_size_shows_against_the_manifest(file: Path) -> None:
    file.write_bytes(frames(RECORDS[::-1]))
    (problem,) = verify_file(file).problems
    assert "not the same file" in problem.reason


def test_without_a_manifest_a_whole_file_is_whole(file: Path) -> None:
    (file.parent / "holdfast.manifest.json").unlink()
    file.write_bytes(frames(RECORDS[:200]))
    assert verify_file(file).ok


def test_packed_files(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    with TFRecordWriter(path) as writer:
        for record in RECORDS:
            writer.write(record)
    assert writer.entry is not None
    write_manifest(tmp_path, [writer.entry])
    assert verify_file(path).ok
    assert verify_file(path).records == 300
    path.write_bytes(path.read_bytes()[:-9])
    report = verify_file(path)
    assert "cut short" in report.problems[-1].reason
    data = bytearray(frames(RECORDS))
    data[500] ^= 4
    path.write_bytes(gzip.compress(data))
    assert [problem.reason for problem in verify_file(path).problems] == ["bad data CRC"]


def test_members_that_end_where_a_read_ends(tmp_path: Path) -> None:
    """Each member is padded by a file name in its header to exactly one chunk of 64 KiB."""
    path = tmp_path / "x.gz"
    content = b""
    for part in (RECORDS[:150], RECORDS[150:]):
        packed = gzip.compress(frames(part))
        name = b"n" * (65536 - len(packed) - 1) + b"\0"
        content += packed[:3] + bytes([packed[3] | 8]) + packed[4:10] + name + packed[10:]
    content += bytes(200_000)  # padding, longer than a chunk
    path.write_bytes(content)
    write_manifest(tmp_path, [FileEntry("x.gz", 300, len(content), codec.crc32c(content))])
    assert verify_file(path).as_dict()["problems"] == []


def test_what_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    report = verify_file(tmp_path / "nothing")
    assert not report.ok
    assert report.problems[0].reason == "cannot open: No such file or directory"
    (tmp_path / "text").write_text("hello " * 100)
    assert "not a TFRecord" in verify_file(tmp_path / "text").problems[0].reason


def test_a_file_that_is_all_damage_is_listed_in_part(tmp_path: Path) -> None:
    data = bytearray(frames([b"12345678901234567890"] * 3000))
    for i in range(3000):
        data[36 * i + 20] ^= 1
    (tmp_path / "x").write_bytes(data)
    report = verify_file(tmp_path / "x")
    assert len(report.problems) == 1001
    assert "the rest was not read" in report.problems[-1].reason


def test_progress_sees_every_byte_once(file: Path) -> None:
    seen: list[int] = []
    verify_file(file, seen.append)
    assert sum(seen) == file.stat().st_size


def test_manifests(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "holdfast.manifest.json"
    manifest = read_manifest(path)
    assert list(manifest.entries) == ["x.tfrecord"]
    write_manifest(tmp_path, [manifest.entries["x.tfrecord"]._replace(path="y.tfrecord")])
    assert sorted(read_manifest(path).entries) == ["x.tfrecord", "y.tfrecord"]
    for bad in (
        b"",
        b"{}",
        b"[1]",
        b'{"holdfast_manifest": 9, "files": []}',
        b'{"holdfast_manifest": 1, "files": [{}]}',
        b'{"holdfast_manifest": 1, "files": [{"path": "x", "records": 1e999, "bytes": 1, "crc32c": "0"}]}',
        b"[" * 100_000,
    ):
        path.write_bytes(bad)
        with pytest.raises(InputError, match="not a holdfast manifest"):
            read_manifest(path)
        with pytest.raises(InputError):
            find_manifest(file)
        assert "the manifest that lists it cannot be read" in verify_file(file).problems[0].reason
    os.unlink(path)
    assert find_manifest(file) is None
    with pytest.raises(InputError, match="No such file"):
        read_manifest(path)


def test_many_add_to_one_manifest_at_once(tmp_path: Path) -> None:
    code = """
import sys
from holdfast.data.formats.tfrecord.manifest import FileEntry, write_manifest
for i in range(20):
    write_manifest(sys.argv[1], [FileEntry(f"{sys.argv[2]}-{i}", i, i, i)])
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(k)]) for k in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert len(read_manifest(tmp_path / "holdfast.manifest.json").entries) == 80


def read_bytes() -> int:
    """Returns how many bytes this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_large_file_that_is_no_tfrecord_is_not_searched(tmp_path: Path) -> None:
    path = tmp_path / "sparse.tfrecord"
    path.touch()
    os.truncate(path, 1 << 30)
    before = read_bytes()
    report = verify_file(path)
    assert read_bytes() - before < 16 << 20
    assert [problem.reason for problem in report.problems] == ["not a TFRecord: no record begins in its first megabyte"]


def test_a_file_with_a_destroyed_first_megabyte_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(bytes(2 << 20) + frames(RECORDS * 200))
    assert verify_file(path).records == len(RECORDS) * 200


BOMB = """
import resource, sys, holdfast as hold
from holdfast.data.formats.tfrecord.verify import verify_file
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (40 << 20),) * 2)
try:
    list(hold.TFRecordReader(sys.argv[1]))
except hold.errors.InputError as error:
    print(error)
print(verify_file(sys.argv[1]).problems[0].reason)
"""


def test_a_gzip_bomb_under_a_limit_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tfrecord.gz"
    path.write_bytes(gzip.compress(codec.frame(bytes(80 << 20)), 1))
    done = subprocess.run([sys.executable, "-c", BOMB, str(path)], capture_output=True, text=True, check=True)
    read, verified = done.stdout.splitlines()
    assert re.fullmatch(
        r"the record at byte 0 needs 83,886,096 bytes, more than the RLIMIT_AS of [\d,]+ bytes leaves;"
        r" it may be a gzip bomb; raise the limit to read it",
        verified,
    )
    assert read.startswith(f"{path}: the record at byte 0 needs 83,886,096 bytes")
