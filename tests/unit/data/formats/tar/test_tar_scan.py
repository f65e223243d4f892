"""What a tar's headers say, and what is wrong with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from factories_tar import END, header_of, info, make_tar, padded

from holdfast.data.formats.tar.scan import (
    BadHeader,
    TarScan,
    bad_checksums,
    is_header,
    number_in,
    parts_of,
    pax_records,
)
from holdfast.data.formats.tar.source import PlainBytes
from holdfast.errors import CorruptError, DataError, FormatError, UnfinishedError

LAYOUTS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
LONG = "d" * 60 + "/" + "n" * 70 + ".jpg"


def walk(path: Path) -> list[tuple[bytes, int, int]]:
    source = PlainBytes(str(path))
    try:
        return list(TarScan(source))
    finally:
        source.close()


def by_tarfile(path: Path) -> list[tuple[bytes, int, int]]:
    with tarfile.open(path) as tar:
        return [(one.name.encode(), one.offset_data, one.size) for one in tar if one.isreg()]


def damaged(path: Path, kind: type[DataError], text: str) -> DataError:
    with pytest.raises(kind, match=text) as caught:
        walk(path)
    assert path.name in str(caught.value)
    return caught.value


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_members_as_tarfile(tmp_path: Path, layout: int) -> None:
    members = [(f"a/{i}.bin", os.urandom(i * 37 % 1500)) for i in range(200)]
    members += [(LONG, b"long"), ("large.bin", bytes(300_000)), ("/abs/../x.bin", b"name"), ("empty.bin", b"")]
    path = make_tar(tmp_path / "x.tar", members, layout=layout)
    assert walk(path) == by_tarfile(path)
    assert [name for name, _, _ in walk(path)] == [name.encode() for name, _ in members]


@pytest.mark.parametrize("layout", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_of_any_length_and_kind(tmp_path: Path, layout: int) -> None:
    names = ["n" * 400 + ".jpg", "d/" * 300 + "x.png", "ümläut 名.txt", "spaces  .x", "e" * 5000 + ".y"]
    path = make_tar(tmp_path / "x.tar", [(name, name.encode()) for name in names], layout=layout)
    assert walk(path) == by_tarfile(path)
    assert [name.decode() for name, _, _ in walk(path)] == names


def test_pax_headers_on_every_member(tmp_path: Path) -> None:
    """tarfile.add makes one for a time with a fraction; archives of git begin with a global one."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", pax_headers={"comment": "of all"}) as tar:
        for i in range(20):
            file = tmp_path / f"{i}.txt"
            file.write_bytes(b"t" * i)
            os.utime(file, ns=(0, 1_500_000_000))
            tar.add(file, file.name)
    assert walk(path) == by_tarfile(path)
    assert len(walk(path)) == 20


def test_sizes_above_eight_gibibytes() -> None:
    assert number_in(b"\x80" + (9 << 30).to_bytes(11, "big")) == 9 << 30
    assert number_in(b"77777777777\0") == (8 << 30) - 1
    assert number_in(b"       644 \0") == 0o644
    assert number_in(bytes(12)) == 0
    for field in (
        b"\xff" * 12,
        b"\x80" + b"\x7f" * 11,
        b"12x\0\0\0\0\0\0\0\0\0",
        b"00000000009\0",
        b"-1\0\0\0\0\0\0\0\0\0\0",
    ):
        with pytest.raises(BadHeader):
            number_in(field)


def test_pax_records_that_make_no_sense() -> None:
    assert pax_records(b"12 path=a/b\n") == {b"path": b"a/b"}
    assert pax_records(b"13 path=a\nb=\n") == {b"path": b"a\nb="}
    for payload in (
        b"99 path=a\n",
        b"x path=a\n",
        b"-5 path=a\n",
        b"3 \n",
        b"12 path=a/bc",
        b"6 abc\n",
        b"9999999999 a=b\n",
    ):
        with pytest.raises(BadHeader):
            pax_records(payload)


def test_checksums_of_signed_bytes_too() -> None:
    block = bytearray(header_of("ümläut.txt"))
    assert not len(bad_checksums([bytes(block)]))
    signed = sum(byte - 256 * (byte > 127) for byte in block[:148] + b" " * 8 + block[156:])
    block[148:156] = b"%06o\0 " % signed
    assert not len(bad_checksums([bytes(block)]))
    block[0] ^= 1
    assert bad_checksums([bytes(block)]).tolist() == [0]
    assert not is_header(bytes(block))


def test_folders_devices_and_fifos_are_skipped(tmp_path: Path) -> None:
    others = [
        info("d.dir", type=tarfile.DIRTYPE),
        info("c.dev", type=tarfile.CHRTYPE),
        info("b.dev", type=tarfile.BLKTYPE),
        info("f.fifo", type=tarfile.FIFOTYPE),
    ]
    path = make_tar(tmp_path / "x.tar", [*others, ("a.txt", b"a")])
    assert [name for name, _, _ in walk(path)] == [b"a.txt"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_are_refused_where_a_sample_would_miss_them(tmp_path: Path, kind: bytes) -> None:
    path = make_tar(tmp_path / "x.tar", [("a.jpg", b"a"), info("b.jpg", type=kind, linkname="../../etc/passwd")])
    damaged(path, FormatError, "'b.jpg' is a link to '../../etc/passwd', and links are not followed")
    path = make_tar(tmp_path / "y.tar", [("a.jpg", b"a"), info("latest", type=kind, linkname="a.jpg")])
    assert len(walk(path)) == 1


def test_sparse_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.tar"
    path.write_bytes(header_of("a.bin", type=b"S") + END)
    damaged(path, FormatError, "'a.bin' is a sparse member")
    path = make_tar(
        tmp_path / "new.tar", [info("b", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.name": "a.bin"})]
    )
    damaged(path, FormatError, "'a.bin' is a sparse member")


@pytest.mark.needs("tar")
def test_a_sparse_file_packed_by_tar_itself(tmp_path: Path) -> None:
    tar = shutil.which("tar")
    assert tar
    with open(tmp_path / "a.bin", "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x" * 4096)
    for layout in ("gnu", "posix"):
        path = tmp_path / f"{layout}.tar"
        subprocess.run([tar, "--sparse", f"--format={layout}", "-cf", path, "-C", tmp_path, "a.bin"], check=True)
        damaged(path, FormatError, "'a.bin' is a sparse member")


def test_a_cut_anywhere_is_reported(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("a.jpg", b"a" * 700), ("n" * 200 + ".jpg", b"b"), ("c.jpg", b"c")])
    whole = path.read_bytes().rstrip(b"\0")
    for keep in range(1, len(whole) + 1, 101):
        path.write_bytes(whole[:keep])
        damaged(path, CorruptError, "without a tar's end mark: it was cut")
    path.write_bytes(whole + bytes(-len(whole) % 512))  # all members are there
    damaged(path, CorruptError, "the file ends in or after 'c.jpg', without a tar's end mark: it was cut")


def test_a_tar_that_is_being_written(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("a.jpg", b"a")])
    whole = path.read_bytes()
    with open(path, "wb") as file:
        file.write(whole[:1024])
        file.flush()
        error = damaged(path, UnfinishedError, f"being written by process {os.getpid()}")
    assert error.hint == "Wait for it"


def test_every_flipped_bit_of_a_header_is_found(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("a.jpg", b"a" * 700), ("b.jpg", b"b")])
    whole = path.read_bytes()
    at = 512 + 1024  # of the second header
    for byte in range(0, 512, 3):
        data = bytearray(whole)
        data[at + byte] ^= 0x11
        path.write_bytes(data)
        assert damaged(path, CorruptError, "the tar header is corrupt").offset == at


@pytest.mark.parametrize("size", [1 << 20, (1 << 33) - 1, (1 << 60) - 1])
def test_sizes_that_are_not_there(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(header_of("a.jpg", size) + padded(b"few") + END)
    damaged(path, CorruptError, "the file ends in or after 'a.jpg'")


def test_extensions_that_are_too_large_or_have_no_member(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(header_of("././@LongLink", 1 << 33, type=b"L") + bytes(4096))
    damaged(path, CorruptError, "a long name or pax header of 8,589,934,592 bytes")
    path.write_bytes(header_of("././@LongLink", 5, type=b"L") + padded(b"name\0") + END)
    damaged(path, CorruptError, "has no member after it")
    path.write_bytes(header_of("x", 10, type=b"x") + padded(b"99 path=a\n") + header_of("a.jpg") + END)
    damaged(path, CorruptError, "pax header is corrupt")
    path.write_bytes(header_of("x", 11, type=b"x") + padded(b"11 size=-1\n") + header_of("a.jpg") + END)
    damaged(path, CorruptError, "the size in its pax header is not valid")


def test_a_part_of_many_volumes(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(header_of("a.jpg", 3, type=b"M") + padded(b"end") + END)
    damaged(path, FormatError, "'a.jpg' continues from another tar")


def test_two_tars_in_one_file(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("a.jpg", b"a")])
    path.write_bytes(path.read_bytes() * 2)
    assert damaged(path, FormatError, "data after the tar's end mark").offset == 10_240


def test_no_tar_at_all(tmp_path: Path) -> None:
    for data in (b"text " * 500, os.urandom(4096), header_of("a")[::-1]):
        path = tmp_path / "x.tar"
        path.write_bytes(data)
        damaged(path, FormatError, "not a tar file")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (b"a/b/000.seg.png", (b"a/b/000", b"seg.png")),
        (b"a.b/000.png", (b"a.b/000", b"png")),
        (b"/abs/../x.JPG", (b"/abs/../x", b"JPG")),
        (b"./x.cls", (b"./x", b"cls")),
        (b"README", None),
        (b"a.b/README", None),
        (b"a/.hidden.png", None),
        (b"._x.png", None),
        (b"x.", None),
        (b"__meta__", None),
        (b"__meta.json__", None),
    ],
)
def test_what_a_name_means(name: bytes, parts: tuple[bytes, bytes] | None) -> None:
    assert parts_of(name) == parts
