"""Files of all three formats with the same samples, and what is in them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import holdfast as hold
from holdfast.data.formats.registry import open_shard
from holdfast.data.rewrite.convert import convert
from holdfast.schema import Column

SUFFIXES = {"tfrecord": ".tfrecord", "hdf5": ".h5", "tar": ".tar"}
SCHEMA: dict[str, Column] = {
    "image/raw": hold.Bytes(),
    "label": hold.Int64(),
    "emb": hold.Float32(2, 3),
    "boxes": hold.Ragged(hold.Float32(4)),
    "tags": hold.Ragged(hold.Bytes()),
    "pair": hold.Bytes(2),
    "lists": hold.Ragged(hold.Ragged(hold.Int64())),
    "wörter": hold.Ragged(hold.Ragged(hold.Bytes())),
}


def samples(first: int, rows: int) -> dict[str, Any]:
    """With zeros in strings, empty strings and lists, and numbers at their ends."""
    numbers = range(first, first + rows)
    return {
        "image/raw": [b"\0" * (i % 3) + bytes([i % 256]) + b"\0" * (i % 2) if i % 5 else b"" for i in numbers],
        "label": [i if i % 7 else -(2**63) + i for i in numbers],
        "emb": np.arange(first * 6, (first + rows) * 6, dtype=np.float32).reshape(-1, 2, 3) * 0.1,
        "boxes": [np.full((i % 4, 4), i, np.float32) for i in numbers],
        "tags": [[b"t%d" % k for k in range(i % 3)] + [b"\0"] * (i % 2) for i in numbers],
        "pair": [[b"a" * (i % 4), b"\0"] for i in numbers],
        "lists": [[[i] * k for k in range(i % 3)] for i in numbers],
        "wörter": [[[b"", b"w%d" % i]] * (i % 3) for i in numbers],
    }


def as_lists(batch: Any) -> dict[str, Any]:
    return {name: column.tolist() for name, column in batch.items()}


def wanted(first: int, rows: int) -> dict[str, Any]:
    made = samples(first, rows)
    return {name: [one.tolist() if hasattr(one, "tolist") else one for one in column] for name, column in made.items()}


def contents(path: Path | str, schema: Any = None) -> dict[str, Any]:
    with open_shard(path, schema) as shard:
        return as_lists(shard.read(0, len(shard), schema))


def make(folder: Path, kind: str, rows: int, name: str = "in") -> Path:
    """A file of this kind, made without convert where that is possible."""
    path = folder / f"{name}{SUFFIXES[kind]}"
    if kind == "tfrecord":
        with hold.TFRecordWriter(path, SCHEMA, sequence=True) as writer:
            writer.extend(samples(0, rows))
        return path
    run = hold.write(folder / f"{name}.hold", SCHEMA)
    with run.part("t") as part:
        part.extend(samples(0, rows))
    convert(run.folder, path)
    return path


def plain_h5(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
    return path


def make_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    """As others make them."""
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
