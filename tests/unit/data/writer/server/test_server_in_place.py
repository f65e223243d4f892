"""Segments of the journal that become parts: their rows are written once, and nothing else is different."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from factories_central import WIDE, check_wide, served
from factories_central import wide_rows as rows

import holdfast as hold
from holdfast.data.formats.hdf5.inplace_writer import InplaceWriter
from holdfast.data.formats.hdf5.salvage import salvage_hdf5
from holdfast.data.writer.consolidate import Order
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.data.writer.server import sealer_main
from holdfast.data.writer.server.client import connect
from holdfast.data.writer.server.journal import ClosedSegment, Journal
from holdfast.data.writer.server.segment import HEADER_GAP_BYTES, SegmentView, scan
from holdfast.errors import WriteError

CHUNK = 8
FRAMES_AT = 64 << 10


@pytest.fixture
def out(tmp_path: Path) -> DatasetWriter:
    return write(tmp_path / "run", WIDE)


def check(out: DatasetWriter, **wanted: int) -> None:
    check_wide(out, **wanted)
    assert [name for name in os.listdir(out.folder / "journal") if not name.startswith(("EPOCH", "marks"))] == []
    assert os.listdir(out.folder / "tmp") == []


def is_in_place(path: Path) -> bool:
    return SegmentView(path).has_header_gap


@pytest.mark.parametrize("codec", [None, ("gzip", 1), "gzip"], ids=str)
def test_the_segment_is_the_part(out: DatasetWriter, codec: Any) -> None:
    with out.server(chunk_rows=CHUNK, codec=codec) as server:
        with connect(server.address, "a") as a, connect(server.address, "b") as b:
            for at in range(0, 160, 16):
                a.extend(rows(at, 16))
                b.extend(rows(at, 16))
            a.extend(rows(160, 3))
            a.commit()
            [segment] = (out.folder / "journal").glob("*.hfj")
            inode = segment.stat().st_ino
    [record] = out.parts()
    path = out.path_of(record)
    assert (path.stat().st_ino, path.stat().st_nlink, path.stat().st_size) == (inode, 1, record.bytes)
    assert is_in_place(path)
    with h5py.File(path) as file:
        assert file["x"].shape == (323, 255)
        assert file["x"].compression == (None if codec is None else "gzip")
    check(out, a=163, b=160)


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ({**WIDE, "text": hold.Bytes()}, {}),
        (WIDE, {"codec": "lzf"}),
        (WIDE, {"segment_bytes": 100_000}),
        ({f"a long name of the column number {n}": hold.Int64() for n in range(100)}, {}),  # too long to be said
    ],
    ids=["strings", "lzf", "small", "settings"],
)
def test_what_cannot_be_the_part_is_copied(tmp_path: Path, schema: Any, options: Any) -> None:
    out = write(tmp_path / "run", schema)
    columns: dict[str, Any] = {name: np.arange(100) for name in schema}
    columns |= {"x": np.ones((100, 255), np.float32)} if "x" in schema else {}
    columns |= {"text": [b"t"] * 100} if "text" in schema else {}
    with out.server(chunk_rows=CHUNK, **options) as server, connect(server.address, "p") as producer:
        producer.extend(columns)
    [record] = out.parts()
    assert not is_in_place(out.path_of(record))
    assert out.rows == 100
    assert out.verify().ok


def test_mostly_rows_that_fill_no_chunk_are_copied(out: DatasetWriter) -> None:
    with out.server(chunk_rows=CHUNK) as server, connect(server.address, "p") as producer:
        for at in range(60):
            producer.extend(rows(at, 1))
            producer.commit()
    [record] = out.parts()
    assert not is_in_place(out.path_of(record))
    check(out, p=60)


def test_many_segments_and_no_spare(out: DatasetWriter) -> None:
    with out.server(chunk_rows=CHUNK, segment_bytes="1MiB") as server:
        with connect(server.address, "p") as producer:
            for at in range(0, 8000, 80):
                producer.extend(rows(at, 80))
    assert len(out.parts()) > 5
    assert all(is_in_place(out.path_of(record)) for record in out.parts())
    assert len({out.path_of(record).stat().st_ino for record in out.parts()}) == len(out.parts())
    check(out, p=8000)


def test_parts_of_both_kinds_are_joined_and_read(out: DatasetWriter, tmp_path: Path) -> None:
    for name, options in (("a", {}), ("b", {"segment_bytes": 1000})):
        with out.server(chunk_rows=CHUNK, **options) as server, connect(server.address, name) as producer:
            producer.extend(rows(0, 100))
    orders: list[Order] = ["exact", "any"]
    for order in orders:
        made = out.consolidate(tmp_path / f"{order}.h5", order=order)
        with h5py.File(made.path) as file:
            got = file["seq"][:]
            assert sorted(got) == sorted([*range(100)] * 2)
            assert (file["x"][:] == got[:, None]).all()
    with h5py.File(tmp_path / "exact.h5") as file:
        assert file["seq"][:].tolist() == [*range(100)] * 2
    with hold.read(str(out.folder)).batch(64).iterate() as it:
        assert sorted(i for batch in it for i in batch["seq"].tolist()) == sorted([*range(100)] * 2)


def test_a_flip_anywhere_in_such_a_part_is_seen(out: DatasetWriter) -> None:
    with out.server(chunk_rows=CHUNK) as server, connect(server.address, "p") as producer:
        producer.extend(rows(0, 3 * CHUNK))
    [record] = out.parts()
    path = out.path_of(record)
    good = path.read_bytes()
    for at in [0, 41, *range(800, len(good), 3989), len(good) - 1]:
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        assert not out.verify().ok, at
    path.write_bytes(good)
    assert out.verify().ok


# ---- who else has the segment


def kept(out: DatasetWriter, count: int) -> Path:
    """The segment of a server that has ended, and has made no part of it."""
    with served(out, chunk_rows=CHUNK, seal=False) as server, connect(server.address, "p") as producer:
        producer.extend(rows(producer.next_seq, count))
    return max((out.folder / "journal").glob("*.hfj"))


def test_a_segment_of_an_older_server_is_copied_and_never_touched(out: DatasetWriter, tmp_path: Path) -> None:
    """Its sealer may be at work still, and about to give it the name of a part."""
    path = kept(out, 100)
    end = path.stat().st_size
    other = tmp_path / "other name"
    os.link(path, other)
    with open(path, "r+b") as file:  # what a sealer that was killed leaves
        file.write(b"\x89HDF\r\n\x1a\n" + b"half of a head")
        file.seek(end)
        file.write(b"half of a tail" * 100)
    before = other.read_bytes()
    with out.server(chunk_rows=CHUNK) as server, connect(server.address, "p") as producer:
        assert producer.next_seq == 100
        producer.extend(rows(100, 50))
    assert other.read_bytes() == before
    assert all(out.path_of(record).stat().st_ino != other.stat().st_ino for record in out.parts())
    check(out, p=150)


def test_found_again_as_it_is_however_often(out: DatasetWriter) -> None:
    path = kept(out, 20)
    with open(path, "ab") as file:
        file.write(b"HFJ\x01 torn")
    size = path.stat().st_size
    for _ in range(3):
        with served(out, chunk_rows=CHUNK, seal=False) as server:
            assert server.journal.watermarks == {"p": 20}
        assert path.stat().st_size == size
    found = scan(path)
    assert (found.has_header_gap, found.start, found.watermarks) == (True, FRAMES_AT, {"p": 20})
    with out.server():
        pass
    check(out, p=20)


def test_a_second_try_makes_the_same_part(out: DatasetWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(out, 100)
    end, finalize = path.stat().st_size, InplaceWriter.finalize

    def fails(self: InplaceWriter) -> Any:
        finalize(self)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(InplaceWriter, "finalize", fails)
    with pytest.raises(WriteError, match="No space left"):
        sealer_main.seal(path, end, {}, in_place=True)
    assert path.stat().st_size > end
    assert os.listdir(out.folder / "tmp") == [name for name in os.listdir(out.folder / "parts") if "data" in name] == []
    monkeypatch.undo()
    assert sealer_main.seal(path, end, {}, in_place=True) == 100
    assert sealer_main.seal(path, end, {}, in_place=True) == 100
    [record] = out.parts()
    assert path.stat().st_nlink == 2
    with out.server():
        pass
    assert out.path_of(record).stat().st_nlink == 1
    check(out, p=100)


def test_more_to_be_said_than_there_is_room_for_is_copied(out: DatasetWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(out, 100)
    monkeypatch.setattr(sealer_main, "HEADER_GAP_BYTES", 1000)
    assert sealer_main.seal(path, path.stat().st_size, {}, in_place=True) == 100
    assert path.stat().st_nlink == 1
    with out.server():
        pass
    check(out, p=100)


def test_a_part_is_never_used_as_a_spare(out: DatasetWriter) -> None:
    (out.folder / "journal").mkdir(exist_ok=True)
    for in_place in (True, False):
        journal = Journal(out.folder, 1, {}, in_place=in_place)
        path = out.folder / "journal" / "000001-000001.hfj"
        path.write_bytes(b"x" * (2 << 20))
        journal._release(ClosedSegment(path, 2 << 20, 2 << 20))
        assert (out.folder / "journal" / ".spare.1").exists() is not in_place
        journal.close()


def test_torn_in_the_room_and_in_its_own_head(out: DatasetWriter) -> None:
    path = kept(out, 20)
    whole = path.read_bytes()
    for size in (
        0,
        100,
        HEADER_GAP_BYTES - 1,
        HEADER_GAP_BYTES,
        HEADER_GAP_BYTES + 10,
        FRAMES_AT - 1,
        FRAMES_AT,
        FRAMES_AT + 30,
    ):
        path.write_bytes(whole[:size])
        assert scan(path).watermarks == {}
        assert scan(path).end in (0, FRAMES_AT)
    path.write_bytes(whole)
    assert scan(path).watermarks == {"p": 20}


def test_a_flip_in_a_segments_own_head_is_reported_and_its_rows_are_kept(
    out: DatasetWriter, caplog: pytest.LogCaptureFixture
) -> None:
    path = kept(out, 100)
    whole = bytearray(path.read_bytes())
    whole[HEADER_GAP_BYTES + 60] ^= 1
    path.write_bytes(whole)
    with served(out, chunk_rows=CHUNK) as server, connect(server.address, "p") as producer:
        assert producer.next_seq == 0
        producer.extend(rows(0, 100))
    assert "is corrupt at byte" in caplog.text
    [name] = os.listdir(out.folder / "quarantine")
    assert (out.folder / "quarantine" / name).read_bytes() == whole
    check(out, p=100)


def test_of_a_part_that_was_cut_all_but_what_is_gone_is_salvaged(out: DatasetWriter, tmp_path: Path) -> None:
    with out.server(chunk_rows=CHUNK) as server, connect(server.address, "p") as producer:
        producer.extend(rows(0, 400))
    [record] = out.parts()
    path = out.path_of(record)
    assert is_in_place(path)
    os.truncate(path, record.bytes * 9 // 10)
    salvage_hdf5(path, tmp_path / "rescued.h5")
    with h5py.File(tmp_path / "rescued.h5") as file:
        assert np.array_equal(file["seq"][:300], np.arange(300))
        assert np.array_equal(file["x"][:300, 0], np.arange(300))
