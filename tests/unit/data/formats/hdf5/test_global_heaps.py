"""Heaps of variable-length values in which the HDF5 library would never return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.data.formats.hdf5 import global_heaps
from holdfast.data.formats.hdf5.shard import HDF5Shard
from holdfast.errors import CorruptError

pytestmark = pytest.mark.formats

STRINGS = [f"text {i}" * (i % 5) for i in range(600)]


def make(path: Path, strings: list[str] = STRINGS, **options: Any) -> Path:
    with h5py.File(path, "w", **options) as file:
        file.create_dataset("s", data=strings, dtype=h5py.string_dtype(), chunks=(min(50, len(strings)),))
        file.create_dataset("x", data=np.arange(len(strings)))
    return path


def heaps_of(data: bytes) -> list[int]:
    found, at = [], -1
    while (at := data.find(b"GCOL", at + 1)) >= 0:
        found.append(at)
    return found


def break_heap(path: Path, which: int, number: int = 0) -> int:
    """Leaves the object of this number in the heap without index and size; where it is."""
    data = bytearray(path.read_bytes())
    at = heaps_of(data)[which] + 16
    for _ in range(number):
        at += 16 + -(-int.from_bytes(data[at + 8 : at + 16], "little") // 8) * 8
    data[at : at + 2] = bytes(2)
    data[at + 8 : at + 16] = bytes(8)
    path.write_bytes(data)
    return at


@pytest.mark.parametrize("options", [{}, {"libver": "latest"}, {"userblock_size": 512}])
@pytest.mark.parametrize(("which", "number"), [(0, 0), (-1, 30)])
def test_a_heap_without_an_end(tmp_path: Path, options: dict[str, Any], which: int, number: int) -> None:
    path = make(tmp_path / "x.h5", **options)
    with HDF5Shard(path) as shard:
        assert [bytes(b).decode() for b in shard.read(0, 600)["s"]] == STRINGS
    path = make(tmp_path / "damaged.h5", **options)
    at = break_heap(path, which, number)
    with pytest.raises(CorruptError, match="heap of its variable-length values is corrupt.*loop forever") as e:
        HDF5Shard(path)
    assert e.value.offset == at
    # Whoever wants none of them can have the rest.
    assert len(hold.read(path, {"x": hold.Int64()})) == 600
    [good] = {len(batch["x"]) for batch in hold.read([tmp_path / "x.h5", path], on_corrupt="skip").batch(600)}
    assert good == 600


def test_a_heap_of_large_values(tmp_path: Path) -> None:
    """The objects of one heap lie blocks apart: only their headers are read."""
    strings = ["a" * 3_000_000, "b" * 100, "c" * 1_500_000, "d"]
    path = make(tmp_path / "x.h5", strings)
    with HDF5Shard(path) as shard:
        assert [len(b) for b in shard.read(0, 4)["s"]] == [3_000_000, 100, 1_500_000, 1]
    break_heap(path, 0)
    with pytest.raises(CorruptError, match="loop forever"):
        HDF5Shard(path)


def test_values_of_other_datasets_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in their chunks may look like a damaged heap."""
    monkeypatch.setattr(global_heaps, "_SMALL_BYTES", 1 << 16)
    path = make(tmp_path / "x.h5")
    like = np.tile(np.frombuffer(b"GCOL\1\0\0\0" + (64).to_bytes(8, "little") + bytes(48), "u1"), (600, 20))
    with h5py.File(path, "a") as file:
        file.create_dataset("chunked", data=like, chunks=(100, like.shape[1]))
        file.create_dataset("plain", data=like)
    with HDF5Shard(path) as shard:
        assert len(shard) == 600
    break_heap(path, 0)
    with pytest.raises(CorruptError, match="loop forever"):
        HDF5Shard(path)


def test_a_damaged_object_that_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_heaps, "_SMALL_BYTES", 1 << 10)
    path = make(tmp_path / "x.h5")
    with h5py.File(path) as file:
        at = h5py.h5o.get_info(file["x"].id).addr
    data = bytearray(path.read_bytes())
    data[at : at + 16] = b"\xff" * 16
    path.write_bytes(data)
    with HDF5Shard(path, {"s": hold.Bytes()}) as shard:
        assert [bytes(b).decode() for b in shard.read(0, 600)["s"]] == STRINGS


def test_a_file_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    search = global_heaps._search
    monkeypatch.setattr(global_heaps, "_search", lambda *args: searched.append(args[2]) or search(*args))
    path = make(tmp_path / "x.h5")
    for _ in range(3):
        HDF5Shard(path).close()
    assert searched == [0]
    break_heap(path, 0)
    with pytest.raises(CorruptError):
        HDF5Shard(path)


def test_a_type_of_variable_length_that_is_neither_list_nor_string(tmp_path: Path) -> None:
    """HDF5 1.14 opens it, and crashes when it is read."""
    path = make(tmp_path / "x.h5")
    data = path.read_bytes()
    said = bytes([0x19, 0x01, 0x01, 0, 16])  # a string of variable length in UTF-8
    assert data.count(said) == 1
    path.write_bytes(data.replace(said, bytes([0x19, 0x05, 0x01, 0, 16])))
    with pytest.raises(CorruptError, match="the type of dataset 's' is corrupt"):
        HDF5Shard(path)
