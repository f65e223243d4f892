"""Writes parts with every codec, or reads those that another version of h5py wrote, with and without holdfast."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import holdfast as hold
from holdfast.data.writer.dataset_writer import write

SCHEMA = {
    "label": hold.Int64(),
    "emb": hold.Float32(16),
    "text": hold.Bytes(),
    "boxes": hold.Ragged(hold.Float32(2)),
}
CODECS: tuple[Any, ...] = ("none", "gzip", "lzf", "zstd")
ROWS = 1000


def columns(first: int) -> dict[str, Any]:
    numbers = range(first, first + ROWS)
    return {
        "label": list(numbers),
        "emb": [[i % 97] * 16 for i in numbers],
        "text": [b"%d" % i for i in numbers],
        "boxes": [[[i % 7, 1]] * (i % 3) for i in numbers],
    }


def write_run(folder: Path) -> None:
    out = write(folder, SCHEMA)
    for number, codec in enumerate(CODECS):
        with out.part(str(codec), codec=codec, chunk_rows=64) as part:
            part.extend(columns(number * ROWS))


def read_run(folder: Path) -> None:
    out = write(folder)
    report = out.verify()
    assert report.ok, report
    seen = 0
    with hold.read(folder, SCHEMA).batch(ROWS).iterate() as it:
        for batch in it:
            expected = columns(int(batch["label"][0]))
            assert {name: column.tolist() for name, column in batch.items()} == expected
            seen += len(batch["label"])
    assert seen == len(CODECS) * ROWS
    for record in out.parts():
        with h5py.File(out.path_of(record)) as file:  # without holdfast
            labels, ends = file["label"][:], file["text/offsets"][:]
            assert np.array_equal(labels, np.arange(labels[0], labels[0] + ROWS))
            assert bytes(file["text/values"][ends[9] : ends[10]]) == b"%d" % labels[9]


if __name__ == "__main__":
    work, folder = sys.argv[1], Path(sys.argv[2])
    (write_run if work == "write" else read_run)(folder)
    hdf5 = h5py.version.hdf5_version
    done = "written by" if work == "write" else f"of {folder.name} read by"
    print(f"parts {done} h5py {h5py.__version__} (HDF5 {hdf5})")
