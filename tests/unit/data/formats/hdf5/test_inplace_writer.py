"""An HDF5 file around chunks that lie in it: what any HDF5 library reads, and can go on writing."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast._native.codec import crc32c
from holdfast.data.formats.hdf5.inplace_writer import InplaceWriter, NoRoomError
from holdfast.data.formats.hdf5.verify import verify_hdf5

SCHEMA = {"x": hold.Float32(3, 5), "y": hold.Int64(key="deep/er/y")}
CHUNK, ROOM = 4, 60 << 10


def columns(rows: int) -> list[Any]:
    return [np.arange(rows * 15, dtype=np.float32).reshape(-1, 3, 5), np.arange(rows)]


def made(path: Path, chunks: int, rest: int, codec: Any = "none", room_bytes: int = ROOM) -> Any:
    """A file with the chunks of two columns and something before each, then the file around them."""
    values, places = columns(chunks * CHUNK + rest), []
    with open(path, "wb") as file:
        file.seek(64 << 10)
        for number in range(chunks):
            here = []
            for column in values:
                file.write(b"between")
                data = column[number * CHUNK : (number + 1) * CHUNK].tobytes()
                data = data if codec == "none" else zlib.compress(data, codec[1])
                here.append((file.tell(), len(data), crc32c(data)))
                file.write(data)
            places.append(here)
        end = file.tell()
        file.write(b"of another try, " * 1000)
    writer = InplaceWriter(path, SCHEMA, chunk_rows=CHUNK, codec=codec, room_bytes=room_bytes, end=end)
    for here in places:
        writer.extend_in_place(here)
    for at in range(chunks * CHUNK, chunks * CHUNK + rest, 3):
        stop = min(at + 3, chunks * CHUNK + rest)
        writer.extend([(column[at:stop], None, None, None) for column in values], stop - at)
    finished = writer.finalize()
    writer.detach()
    return finished


@pytest.mark.parametrize("codec", ["none", ("gzip", 4)], ids=str)
@pytest.mark.parametrize(
    ("chunks", "rest"),
    [(1, 0), (1, 1), (2, 9), (63, 0), (64, 0), (64, 1), (65, 3), (130, 0), (64 * 64, 0), (64 * 64 + 1, 2)],
)
def test_what_is_read_is_what_lies_there(tmp_path: Path, chunks: int, rest: int, codec: Any) -> None:
    path, rows = tmp_path / "a.h5", chunks * CHUNK + rest
    finished = made(path, chunks, rest, codec)
    x, y = columns(rows)
    assert (finished.rows, finished.bytes, finished.crc32c) == (rows, path.stat().st_size, crc32c(path.read_bytes()))
    with h5py.File(path) as file:
        assert (file["x"][:] == x).all()
        assert (file["deep/er/y"][:] == y).all()
        assert file["x"].chunks == (CHUNK, 3, 5)
        assert file["x"].maxshape == (None, 3, 5)
        found: list[Any] = []
        file["x"].id.chunk_iter(lambda one: found.append((one.chunk_offset[0], one.byte_offset, one.size)))
        assert [one[1:] for one in sorted(found)] == [chunk[:2] for chunk in finished.chunks["x"]]
        assert (file["x"][rows // 2] == x[rows // 2]).all()
    assert verify_hdf5(path).ok
    data = path.read_bytes()
    for offset, size, crc in finished.chunks["deep/er/y"]:
        assert crc32c(data[offset : offset + size]) == crc
    with hold.read(str(path)).batch(1000).iterate() as it:
        assert np.concatenate([batch["y"] for batch in it]).tolist() == y.tolist()


@pytest.mark.parametrize("chunks", [1, 64, 65, 64 * 64])
def test_the_library_can_go_on_with_it(tmp_path: Path, chunks: int) -> None:
    """It splits and fills our nodes as its own."""
    path = tmp_path / "a.h5"
    made(path, chunks, 0)
    x, _ = columns(chunks * CHUNK)
    with h5py.File(path, "r+") as file:
        file["x"].resize(len(x) + 100 * CHUNK, 0)
        file["x"][len(x) :] = 7
        file["new"] = np.arange(1000)
        del file["deep/er/y"]
    with h5py.File(path) as file:
        assert (file["x"][: len(x)] == x).all()
        assert (file["x"][len(x) :] == 7).all()
    assert verify_hdf5(path).ok


def test_the_librarys_own_tools_read_it(tmp_path: Path) -> None:
    """A program with no line of ours, with locks and checks as they are by default."""
    path = tmp_path / "a.h5"
    made(path, 70, 1)
    program = "import sys, h5py; f = h5py.File(sys.argv[1]); print(f['x'].shape, int(f['deep/er/y'][:].sum()))"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"(281, 3, 5) {sum(range(281))}\n"


def test_too_little_room_is_reported_before_anything_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with pytest.raises(NoRoomError):
        made(path, 2, 0, room_bytes=1000)
    assert path.read_bytes().endswith(b"of another try, ")


def test_a_full_disk_leaves_the_chunks_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.h5"
    made(path, 3, 0)
    end = path.read_bytes().index(b"TREE")
    before = path.read_bytes()[64 << 10 : end]

    def full(*_: Any) -> int:
        raise OSError(28, os.strerror(28))

    writer = InplaceWriter(path, SCHEMA, chunk_rows=CHUNK, codec="none", room_bytes=ROOM, end=end)
    writer.extend([(column, None, None, None) for column in columns(9)], 5)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        writer.finalize()
    writer.detach()
    assert path.read_bytes()[64 << 10 : end] == before


def test_nothing_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    made(path, 0, 0)
    with h5py.File(path) as file:
        assert file["x"].shape == (0, 3, 5)
    assert verify_hdf5(path).ok
