"""Threads that write HDF5 files of their own, at once."""

from __future__ import annotations

import threading
from pathlib import Path

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.data.formats.hdf5.writer import HDF5Writer
from holdfast.data.formats.row_buffers import buffers_of
from holdfast.errors import HoldfastError
from holdfast.schema import Column

SCHEMA: dict[str, Column] = {"x": hold.Int64(codec=("gzip", 1), chunk_rows=4), "v": hold.Float32(3)}
THREADS, FILES = 6, 120


@pytest.mark.parametrize("chunks", [1, 5])
def test_every_file_is_whole(tmp_path: Path, chunks: int) -> None:
    """HDF5 itself lets in one thread at a time, which is for its callers to see to."""
    wrong: list[str] = []

    def write(number: int) -> None:
        rows = 4 * chunks
        for n in range(FILES // chunks):
            buffers, _ = buffers_of(SCHEMA, {"x": np.arange(rows) * number, "v": np.full((rows, 3), n)})
            path = tmp_path / f"{number}-{n}.h5"
            writer = HDF5Writer(path, SCHEMA)
            try:
                writer.extend(buffers, rows)
                finished = writer.finalize()
                with h5py.File(path) as file:
                    same = file["x"][:].tolist() == (np.arange(rows) * number).tolist() and (file["v"][:] == n).all()
                if not same or finished.rows != rows:
                    wrong.append(f"{path.name}: other rows")
            except (HoldfastError, OSError, RuntimeError, KeyError, ValueError) as error:
                wrong.append(f"{path.name}: {error!r}")
            finally:
                writer.discard()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
