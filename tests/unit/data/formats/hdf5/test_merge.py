"""Merging HDF5 files gives numpy's concatenation, whatever their layout, and copies chunks where that is possible."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from factories_merge import (
    Arrays,
    check_crc,
    check_rows,
    joined,
    merge_here,
    nothing_left,
    read_file,
    table,
    write_file,
)

from holdfast._native import codec
from holdfast._native.checksum import combine_all
from holdfast.data.formats.hdf5.merging import source_rows, write_result
from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5, plan_hdf5
from holdfast.data.formats.hdf5.verify import verify_hdf5
from holdfast.errors import TargetExistsError, WriteError

LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": 8},
    "gzip": {"chunks": 8, "compression": "gzip"},
    "gzip-shuffle": {"chunks": 8, "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": 8, "compression": "lzf"},
    "lzf-shuffle": {"chunks": 8, "compression": "lzf", "shuffle": True},
    "fletcher32": {"chunks": 8, "fletcher32": True},
    "gzip-fletcher32": {"chunks": 8, "compression": "gzip", "fletcher32": True},
}


def files_of(folder: Path, rows: tuple[int, ...], **options: Any) -> tuple[list[Path], Arrays]:
    tables = [table(1000 * i, n) for i, n in enumerate(rows)]
    return [write_file(folder / f"w{i}.h5", one, **options) for i, one in enumerate(tables)], joined(tables)


@pytest.mark.parametrize("libver", [None, "latest", ("v110", "v110")], ids=str)
@pytest.mark.parametrize("order", ["exact", "any"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(tmp_path: Path, layout: str, order: str, libver: Any) -> None:
    files, wanted = files_of(tmp_path, (19, 8, 24, 0, 3), libver=libver, **LAYOUTS[layout])
    made = merge_here(files, tmp_path / "work", order)
    check_rows(read_file(made.path), wanted, order)
    check_crc(made)
    assert made.rows == 54
    with h5py.File(made.path) as file:
        assert file["id"].compression == LAYOUTS[layout].get("compression")
        assert file["id"].chunks == (None if layout == "contiguous" else (8,))


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "contiguous"])
def test_aligned_chunks_are_copied_as_they_are(tmp_path: Path, layout: str) -> None:
    files, wanted = files_of(tmp_path, (16, 8, 21), **LAYOUTS[layout])
    made = merge_here(files, tmp_path / "work")
    assert {one.method for one in made.datasets} == {"copy"}
    assert sum(one.built_bytes for one in made.datasets) == 0
    check_rows(read_file(made.path), wanted, "exact")


def test_any_order_builds_only_what_is_left_over(tmp_path: Path) -> None:
    files, wanted = files_of(tmp_path, (83, 87, 81), chunks=8, compression="gzip")
    exact, some = merge_here(files, tmp_path / "exact"), merge_here(files, tmp_path / "any", "any")
    assert [one.method for one in some.datasets] == ["copy and build"] * 3
    assert all(a.built_bytes < b.built_bytes / 5 for a, b in zip(some.datasets, exact.datasets, strict=True))
    check_rows(read_file(some.path), wanted, "any")
    assert read_file(some.path)["id"][:80].tolist() == list(range(80))


def test_random_shapes_chunks_and_rows(tmp_path: Path) -> None:
    chance = random.Random(5)
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        tables, files, first = [], [], 0
        shapes = {f"c{i}": tuple(chance.choices((1, 2, 5), k=chance.randrange(3))) for i in range(chance.randrange(3))}
        chunks = {name: tuple(chance.randint(1, n) for n in shape) for name, shape in shapes.items()}
        step = {name: chance.choice((1, 3, 4, 8)) for name in [*shapes, "id"]}
        packing = chance.choice([{}, {"compression": "gzip"}, {"compression": "lzf"}, {"fletcher32": True}])
        odd = chance.random() < 0.3
        for i in range(chance.randint(1, 5)):
            rows = chance.choice((0, 1, 4, 8, 16, chance.randrange(40)))
            one = {"id": np.arange(first, first + rows)}
            one |= {name: np.random.default_rng(first).random((rows, *shape)) for name, shape in shapes.items()}
            first += rows
            path = folder / f"{i}.h5"
            with h5py.File(path, "w") as file:
                for name, values in one.items():
                    size = step[name] + (odd and i == 1)
                    file.create_dataset(
                        name,
                        data=values,
                        chunks=(size, *chunks.get(name, ())),
                        maxshape=(None, *values.shape[1:]),
                        **packing,
                    )
            tables.append(one)
            files.append(path)
        order = chance.choice(("exact", "any"))
        made = merge_here(files, folder / "work", order)
        check_rows(read_file(made.path), joined(tables), order)
        check_crc(made)


def test_the_library_is_for_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """h5py does not lock all of it."""
    seen: set[int] = set()
    write_rows, read_rows = write_result.write_rows, source_rows.read_rows

    def watched(through: Callable[..., Any], *given: Any) -> Any:
        seen.add(threading.get_ident())
        return through(*given)

    monkeypatch.setattr(write_result, "write_rows", partial(watched, write_rows))
    monkeypatch.setattr(source_rows, "read_rows", partial(watched, read_rows))
    files, wanted = files_of(tmp_path, (501, 333), chunks=4, compression="lzf")
    check_rows(read_file(merge_here(files, tmp_path / "work").path), wanted, "exact")
    assert seen == {threading.get_ident()}


def test_datasets_of_other_lengths_keep_their_order(tmp_path: Path) -> None:
    files = [
        write_file(tmp_path / f"{i}.h5", {"x": np.arange(11) + 100 * i, "y": np.arange(5) + 100 * i}, chunks=4)
        for i in range(3)
    ]
    made = merge_here(files, tmp_path / "work", "any")
    assert made.rows is None
    assert "'/x' has 11 rows, '/y' has 5" in made.notes[0]
    assert read_file(made.path)["x"].tolist() == [100 * i + n for i in range(3) for n in range(11)]


def test_rows_in_an_order_of_the_callers(tmp_path: Path) -> None:
    files, wanted = files_of(tmp_path, (16, 16), chunks=8, compression="gzip")
    runs = [(1, 8, 16), (0, 0, 5), (1, 0, 8), (0, 5, 16)]
    got = read_file(merge_here(files, tmp_path / "work", runs=runs).path)
    rows = [*range(24, 32), *range(5), *range(16, 24), *range(5, 16)]
    for name, values in wanted.items():
        assert np.array_equal(got[name], values[rows])


def test_crc_of_joined_parts() -> None:
    parts = [random.Random(n).randbytes(n) for n in (0, 1, 5, 4096, 70_001, 3, 0)]
    whole = codec.crc32c(b"".join(parts))
    assert combine_all([codec.crc32c(part) for part in parts], [len(part) for part in parts]) == whole
    assert combine_all([], []) == 0


# ---- by the process that people use


def test_a_merge_in_a_process_of_its_own(tmp_path: Path) -> None:
    files, wanted = files_of(tmp_path, (19, 8, 24), chunks=8, compression="gzip")
    seen: list[int] = []
    made = merge_hdf5(files, tmp_path / "out.h5", progress=seen.append)
    check_rows(read_file(made.path), wanted, "exact")
    check_crc(made)
    assert (made.files, made.rows, made.checked) == (3, 51, 0)
    assert sum(seen) > 0
    assert nothing_left(tmp_path)
    report = verify_hdf5(made.path)
    assert report.ok, report
    with open(made.path, "rb") as file:
        assert file.read(9)[8] == 3  # the superblock that HDF5 1.10 reads
    planned = plan_hdf5(files)
    assert (planned.rows, planned.datasets) == (made.rows, made.datasets)


def test_one_file_is_a_copy(tmp_path: Path) -> None:
    [file], wanted = files_of(tmp_path, (19,), chunks=8)
    made = merge_hdf5([file], tmp_path / "out.h5", order="any")
    assert [one.method for one in made.datasets] == ["copy"] * 3
    check_rows(read_file(made.path), wanted, "exact")


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    files, wanted = files_of(tmp_path, (5, 6), chunks=4)
    out = tmp_path / "out.h5"
    out.write_bytes(b"mine")
    with pytest.raises(TargetExistsError, match="exists already"):
        merge_hdf5(files, out)
    assert out.read_bytes() == b"mine"
    merge_hdf5(files, out, overwrite=True)
    check_rows(read_file(out), wanted, "exact")
    with pytest.raises(WriteError, match="is also an input"):
        merge_hdf5(files, files[1], overwrite=True)
    assert nothing_left(tmp_path)
