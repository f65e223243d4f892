"""holdfast, in a process of its own: one thread, every CRC checked."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hold
from holdfast._native import codec
from holdfast.formats.tfrecord.index import build_index
from holdfast.formats.tfrecord.source import open_source
from holdfast.formats.tfrecord.verify import verify_file
from worker import Job, Pass, serve
from workload import BATCH, EMBED, Sums, chunks, small_columns

SCHEMAS: dict[str, Any] = {
    "small": {
        "id": hold.Bytes(),
        "label": hold.Int64(),
        "weight": hold.Float32(),
        "embed": hold.Float32(EMBED),
    },
    "big": {"image": hold.Bytes(), "label": hold.Int64()},
}


def make(job: Job) -> int:
    """A data file for all sides to read. Returns how many records it has."""
    with hold.TFRecordWriter(job["out"], SCHEMAS[job["data"]]) as writer:
        for columns in chunks(job["data"], job["rows"], job["seed"]):
            writer.extend(columns)
    return writer.records


def sums(job: Job) -> dict[str, int]:
    total = Sums()
    for path in job["files"]:
        with hold.TFRecordReader(path) as reader:
            for batch in reader.batches(SCHEMAS[job["data"]], BATCH[job["data"]]):
                total.records += len(batch["label"])
                for name, column in batch.items():
                    total.numbers(name, column if isinstance(column, np.ndarray) else column.values)
    return total.as_dict()


# ---- what is timed -----------------------------------------------------------------------------------------


def columns(job: Job) -> Pass:
    schema, size = SCHEMAS[job["data"]], BATCH[job["data"]]
    first = next(iter(schema))
    rows = 0
    for path in job["files"]:
        with hold.TFRecordReader(path) as reader:
            for batch in reader.batches(schema, size):
                rows += len(batch[first])
    return Pass(rows)


def records(job: Job) -> Pass:
    count = 0
    for path in job["files"]:
        with hold.TFRecordReader(path) as reader:
            for _ in reader:
                count += 1
    return Pass(count)


def verify(job: Job) -> Pass:
    reports = [verify_file(path) for path in job["files"]]
    if not all(report.ok for report in reports):
        raise ValueError("a data file is damaged")
    return Pass(sum(report.records for report in reports))


def index(job: Job) -> Pass:
    count = 0
    for path in job["files"]:
        with open_source(path) as source:
            count += len(build_index(source)) - 1
    return Pass(count)


_synced_s = 0.0
_fsync = os.fsync


def _timed_fsync(fd: int) -> None:
    global _synced_s
    start = time.perf_counter()
    _fsync(fd)
    _synced_s += time.perf_counter() - start


# Its cost is told apart: TensorFlow's writer has none.
os.fsync = _timed_fsync  # type: ignore[assignment]

_small_columns = functools.cache(small_columns)


def write(job: Job) -> Pass:
    """The commit is in it: fsync, link, fsync of the folder."""
    before = _synced_s
    with hold.TFRecordWriter(job["out"], SCHEMAS["small"]) as writer:
        writer.extend(_small_columns(job["rows"]))
    return Pass(writer.records, Path(job["out"]).unlink, {"fsync_s": _synced_s - before})


def facts() -> dict[str, Any]:
    return {
        "versions": {"holdfast": hold.__version__, "numpy": np.__version__},
        "codec": "C" if codec.NATIVE else "pure Python",
        "crc32c": codec.crc_kind(),
    }


if __name__ == "__main__":
    operations = [make, sums, columns, records, verify, index, write]
    serve({operation.__name__: operation for operation in operations}, facts)
