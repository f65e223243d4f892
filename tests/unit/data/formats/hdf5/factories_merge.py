"""Files to be merged, and merging them without a process for each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from holdfast._native import codec
from holdfast.data.formats.hdf5.merging.merge_child import merge
from holdfast.data.formats.hdf5.merging.merge_files import MergedHDF5, make_job, merged, refusal

Arrays = dict[str, npt.NDArray[Any]]


class FakeReporter:
    """Keeps what the child would have sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.done = 0

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        self.sent.append(head)

    def done_piece(self, size: int) -> None:
        self.done += size


def merge_here(
    files: Sequence[Path], folder: Path, order: str = "exact", runs: Any = None, *, verify_sources: bool = True
) -> MergedHDF5:
    """The child's work in this process: for many small merges. The file is left in `folder`."""
    folder.mkdir(exist_ok=True)
    path, reporter = folder / "data.h5", FakeReporter()
    job = make_job(files, order, runs, False, verify_sources=verify_sources)
    with open(path, "w+b") as file:
        place = {"view_from": str(folder), "data": str(path), "fd": file.fileno()}
        merge(job | place, reporter)  # type: ignore[arg-type]
    last = reporter.sent[-1]
    if "refused" in last:
        raise refusal(*last["refused"])
    return merged(last["result"], path, len(files))


def write_file(path: Path, arrays: Arrays, *, libver: Any = None, **options: Any) -> Path:
    """`options` are for every dataset; `chunks` is how many rows one has."""
    with h5py.File(path, "w", libver=libver) as file:
        for name, values in arrays.items():
            given = dict(options)
            if "chunks" in given:
                given |= {"chunks": (given["chunks"], *values.shape[1:]), "maxshape": (None, *values.shape[1:])}
            file.create_dataset(name, data=values, **given)
    return path


def read_file(path: str | Path) -> Arrays:
    found: Arrays = {}
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, thing: found.update({name: thing[()]}) if isinstance(thing, h5py.Dataset) else None
        )
    return found


def table(first: int, rows: int) -> Arrays:
    """Rows that know their number in every column."""
    ids = np.arange(first, first + rows)
    return {
        "id": ids,
        "train/x": (ids[:, None] * 10 + np.arange(3)).astype(np.float32),
        "train/image": (ids[:, None, None] + np.arange(6).reshape(2, 3)).astype(np.uint8),
    }


def joined(tables: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([one[name] for one in tables]) for name in tables[0]}


def check_rows(got: Arrays, wanted: Arrays, order: str) -> None:
    """Whole rows: the same permutation in every column; none at all where the order is exact."""
    place = {value: row for row, value in enumerate(wanted["id"].tolist())}
    rows = [place[value] for value in got["id"].tolist()]
    assert sorted(rows) == list(range(len(wanted["id"])))
    assert order == "any" or rows == sorted(rows)
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        assert got[name].dtype == values.dtype
        assert np.array_equal(got[name], values[rows]), name


def check_crc(made: MergedHDF5) -> None:
    data = Path(made.path).read_bytes()
    assert (made.bytes, made.crc32c) == (len(data), codec.crc32c(data))


def nothing_left(folder: Path) -> bool:
    return not [name for name in os.listdir(folder) if name.startswith(".")]
