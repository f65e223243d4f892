"""Writes parts to an S3 store, as a user's program would, and says as JSON what became of it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

import holdfast as hold
from holdfast.data import remote_fs
from holdfast.data.writer.dataset_writer import write
from holdfast.data.writer.remote.remote_dataset import RemoteDatasetWriter
from holdfast.errors import HoldfastError

SCHEMA = {"x": hold.Int64(), "emb": hold.Float32(64), "s": hold.Bytes()}
ROWS = 3000


def rows(task: int, count: int = ROWS) -> dict[str, Any]:
    numbers = np.arange(task * ROWS, task * ROWS + count)
    return {"x": numbers, "emb": np.repeat(numbers[:, None] % 97, 64, 1), "s": [b"%d" % n for n in numbers.tolist()]}


def put(url: str, task: int, kind: Any = "hdf5") -> str:
    with write(url, SCHEMA).part(f"task{task}", kind) as part:
        if part.done:
            return "done before"
        part.extend(rows(task))
    return "committed"


def large(url: str) -> list[Any]:
    """More than a store takes in one piece, and more than is held in memory of it."""
    values = np.arange(6 << 20, dtype=np.float32).reshape(-1, 1 << 10)
    out = write(url, {"v": hold.Float32(1 << 10)})
    with out.part("t") as part:
        part.extend({"v": values})
    assert isinstance(out, RemoteDatasetWriter)
    report = out.verify()
    return [report.bytes > values.nbytes, report.ok, report.rows == len(values)]


def check(url: str, cache: str) -> dict[str, Any]:
    """Everything about a run: what a reader sees, and what verify says."""
    out = write(url)
    seen: list[int] = []
    if out.rows:
        with hold.read(url, SCHEMA, cache_folder=cache).batch(ROWS).iterate() as it:
            for batch in it:
                seen += batch["x"].tolist()
                assert (batch["emb"][:, 0] == batch["x"] % 97).all()
                assert batch["s"].tolist() == [b"%d" % n for n in batch["x"].tolist()]
    report = out.verify()
    names = sorted(name for name in out._store.names() if not name.endswith(".json"))  # type: ignore[attr-defined]
    return {
        "tasks": [record.task for record in out.parts()],
        "rows": seen == sorted(seen) and len(seen),
        "ok": report.ok,
        "problems": [str(one) for one in report.problems],
        "leftovers": len(report.leftovers),
        "data": len(names),
    }


def damage(url: str) -> str:
    """One bit of a chunk of the first part."""
    out = write(url)
    assert isinstance(out, RemoteDatasetWriter)
    [record] = out.parts()
    fs, path = out._store._at(f"parts/{record.file}")
    data = bytearray(fs.cat_file(path))
    offset, size, _ = record.chunks["emb"][1]
    data[offset + size // 2] ^= 4
    fs.pipe_file(path, bytes(data))
    return f"{out.url_of(record)}, dataset 'emb', chunk 1 at byte {offset:,}: the checksum of the chunk is wrong"


def refused(url: str, **storage: Any) -> str:
    remote_fs.PAUSES_S = ()  # what a store refuses for good must not need them
    try:
        out = write(url, SCHEMA, storage_options=storage)
        with out.part("t") as part:
            part.extend(rows(0))
    except HoldfastError as error:
        return f"{type(error).__name__}: {error}"
    return "written"


def sweep(url: str) -> list[int]:
    out = write(url)
    assert isinstance(out, RemoteDatasetWriter)
    return [len(out.sweep()), len(out.sweep(older_than=0)), len(out.verify().leftovers)]


def fetch(url: str, folder: str) -> list[Any]:
    out = write(url)
    assert isinstance(out, RemoteDatasetWriter)
    copy = out.fetch(folder)
    return [copy.rows, str(copy.verify()), os.listdir(os.path.join(folder, "tmp"))]


WORK = {one.__name__: one for one in (put, large, check, damage, refused, sweep, fetch)}

if __name__ == "__main__":
    print(json.dumps([WORK[name](*given, **more) for name, given, more in json.loads(sys.argv[1])]))
