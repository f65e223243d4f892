"""Salvage of HDF5 hands out no row that was changed without a word, and its work is bounded by the size of the file."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from factories_hdf5 import V110, chunk_places

import holdfast as hold
from holdfast.data.formats.hdf5 import salvage, sandbox
from holdfast.data.formats.hdf5.chunks import possible_chunks
from holdfast.data.formats.hdf5.salvage import SalvagedObject, salvage_hdf5
from holdfast.data.formats.hdf5.salvage_rebuild import DOUBTFUL_ROWS

ROWS = 160
CODECS: list[dict[str, Any]] = [
    {"fletcher32": True},
    {"compression": "gzip", "shuffle": True},
    {"compression": "lzf", "fletcher32": True},
    {**hdf5plugin.Zstd(), "fletcher32": True},
]


def make(path: Path, rng: random.Random) -> dict[str, Any]:
    """Datasets that have checksums of their own, in the classic format or the newer one."""
    values = {}
    with h5py.File(path, "w", libver=rng.choice([None, V110])) as file:
        for number, options in enumerate(CODECS):
            name = f"/{'group/' * rng.randrange(2)}x{number}"
            values[name] = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 9, (ROWS, 4)).astype("i4")
            chunks, maximum = (rng.choice([4, 16]), 4), rng.choice([None, (None, 4)])
            file.create_dataset(name, data=values[name], chunks=chunks, maxshape=maximum, fillvalue=7, **options)
    return values


def damaged(data: bytes, rng: random.Random) -> bytes:
    at, n = rng.randrange(len(data)), rng.choice([8, 64, 4096])
    match rng.choice(["zeroed", "flipped", "inserted", "removed", "cut"]):
        case "zeroed":
            return data[:at] + bytes(min(4096, len(data) - at)) + data[at + 4096 :]
        case "flipped":
            places = [rng.randrange(len(data)) for _ in range(20)]
            return bytes(byte ^ (i in places) for i, byte in enumerate(data))
        case "inserted":
            return data[:at] + rng.randbytes(n) + data[at:]
        case "removed":
            return data[:at] + data[at + n :]
    return data[:at]


def unreported(found: list[SalvagedObject], out: Path, want: dict[str, Any]) -> list[tuple[str, int]]:
    """Rows that are not what they were, and of which nothing is said."""
    wrong = []
    with h5py.File(out) as file:
        for dataset in found:
            if dataset.path in want and file[dataset.path].shape == want[dataset.path].shape:
                told = {row for low, high in dataset.lost + dataset.doubtful for row in range(low, high)}
                differ = np.flatnonzero((file[dataset.path][:] != want[dataset.path]).any(axis=1))
                wrong += [(dataset.path, int(row)) for row in differ if row not in told]
    return wrong


@pytest.mark.parametrize("seed", range(4))
def test_rows_with_checksums_are_right_or_reported(tmp_path: Path, seed: int) -> None:
    rng, path, out = random.Random(seed), tmp_path / "a.h5", tmp_path / "out.h5"
    want = make(path, rng)
    path.write_bytes(damaged(path.read_bytes(), rng))
    found = salvage_hdf5(path, out)
    if found.objects_kept:
        assert unreported(found.datasets, out, want) == []


def test_what_a_checksum_cannot_see_is_in_doubt(tmp_path: Path) -> None:
    """One damage in each dataset, such that every chunk can be read and passes its checksum."""
    path, out = tmp_path / "a.h5", tmp_path / "out.h5"
    with h5py.File(path, "w") as file:
        for name in ("address", "key", "mask", "zeros"):
            file.create_dataset(name, data=np.arange(400).reshape(100, 4), chunks=(10, 4), fletcher32=True)
    want = {f"/{name}": np.arange(400).reshape(100, 4) for name in ("address", "key", "mask", "zeros")}
    data = bytearray(path.read_bytes())
    entry = struct.Struct("<II3QQ")  # size, mask, place on three axes (the last is in an item), address

    def at(name: str, number: int) -> tuple[int, list[int]]:
        offset, size = chunk_places(path, name)[number]
        place = data.index(entry.pack(size, 0, number * 10, 0, 0, offset))
        return place, list(entry.unpack_from(data, place))

    changes = [("address", 3, 5, chunk_places(path, "address")[7][0]), ("key", 4, 2, 0), ("mask", 5, 1, 1)]
    for name, number, field, value in changes:
        place, fields = at(name, number)
        fields[field] = value
        entry.pack_into(data, place, *fields)
    offset, size = chunk_places(path, "zeros")[2]
    data[offset : offset + size] = bytes(size)
    path.write_bytes(data)
    found = salvage_hdf5(path, out)
    told = {dataset.path: (dataset.lost, dataset.doubtful) for dataset in found.datasets}
    assert told["/address"] == ([], [(30, 40), (70, 80)])
    assert told["/key"] == ([(30, 50)], [])  # the library does not find the chunk before it either
    assert told["/mask"] == ([(50, 60)], [])  # four bytes more than a chunk has
    assert told["/zeros"] == ([], [(20, 30)])
    assert unreported(found.datasets, out, want) == []
    with h5py.File(out) as file:
        assert file["zeros"].attrs[DOUBTFUL_ROWS].tolist() == [[20, 30]]


def test_a_chunk_in_the_place_of_another_is_in_doubt(tmp_path: Path) -> None:
    """As many bytes put in as a chunk has: every chunk behind them is whole, and is the one before."""
    path, out = tmp_path / "a.h5", tmp_path / "out.h5"
    want = {"/x": np.arange(400).reshape(100, 4)}
    with h5py.File(path, "w", libver=V110) as file:
        file.create_dataset("x", data=want["/x"], chunks=(10, 4), fletcher32=True)
    offset, size = chunk_places(path, "x")[5]
    data = path.read_bytes()
    path.write_bytes(data[: offset + 9] + b"\x01" * size + data[offset + 9 :])
    [dataset] = salvage_hdf5(path, out).datasets
    assert unreported([dataset], out, want) == []
    assert dataset.lost[0][0] == 50
    assert sum(high - low for low, high in dataset.lost + dataset.doubtful) == 50


def test_a_damaged_shape_costs_no_more_than_the_file_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = tmp_path / "a.h5", tmp_path / "out.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(3003.0).reshape(1001, 3), chunks=(16, 3), compression="gzip")
        file["y"] = np.arange(5)
    data = path.read_bytes().replace(struct.pack("<QQ", 1001, 3), struct.pack("<QQ", 1001 + (1 << 36), 3))
    node = data.index(b"TREE\x01")  # of its index
    path.write_bytes(data[: node + 200] + bytes(100) + data[node + 300 :])
    started = []

    class Counted(sandbox.SandboxedProcess):
        def __init__(self, job: dict[str, Any], **options: Any) -> None:
            started.append(job["work"])
            super().__init__(job, **options)

    for module in (salvage, sandbox):
        monkeypatch.setattr(module, "SandboxedProcess", Counted)
    found = salvage_hdf5(path, out)
    assert started == ["rebuild", "salvage"]
    assert {dataset.path for dataset in found.datasets} == {"/x", "/y"}
    assert "more chunks than the file can hold" in " ".join(flaw.reason for flaw in found.problems)
    assert out.stat().st_size < 2 * len(data)
    with h5py.File(path) as file:
        assert len(possible_chunks(file["x"], len(data))) == len(data) // 16


def test_chunks_of_a_part_are_compared_with_its_record(tmp_path: Path) -> None:
    run = hold.write(tmp_path / "run.hold", {"x": hold.Int64()})
    with run.part("a", chunk_rows=10) as part:
        part.extend({"x": np.arange(100)})
    path = run.path_of(run.parts()[0])
    with h5py.File(path) as file:
        offset = file["x"].id.get_chunk_info(3).byte_offset
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    found = salvage_hdf5(path, tmp_path / "out.h5")
    assert [one.doubtful for one in found.datasets] == [[(30, 40)]]
    assert any("the part's record" in problem.reason for problem in found.problems)
