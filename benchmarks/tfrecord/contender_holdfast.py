"""holdfast: one thread, every CRC checked."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hold
from benchmarks.common.contenders import Job, Pass, serve
from benchmarks.common.processes import memory_bytes, reset_peak_memory
from benchmarks.common.workload import EMBED, Sums, chunks, small_columns
from benchmarks.tfrecord.tasks import BATCH
from holdfast._native import codec
from holdfast.data.formats.tfrecord.index import build_index
from holdfast.data.formats.tfrecord.source import open_source
from holdfast.data.formats.tfrecord.verify import verify_file

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
    """Makes a data file for all contenders. Returns its number of records."""
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


def memory(job: Job) -> dict[str, int]:
    """How far this process, which must be a fresh one, grows while it reads one file."""
    reset_peak_memory()
    start = memory_bytes("VmRSS")
    done = {"columns": columns, "records": records}[job["work"]](job | {"files": [job["file"]]})
    growth = memory_bytes("VmHWM") - start
    return {"growth_bytes": growth, "start_bytes": start, "records": done.records}


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
        raise ValueError("a data file is corrupt")
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


# The cost of fsync is reported separately: TensorFlow's writer does not call it.
os.fsync = _timed_fsync  # type: ignore[assignment]

_small_columns = functools.cache(small_columns)


def write(job: Job) -> Pass:
    """Includes the commit: fsync, link, fsync of the folder."""
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
    serve([make, sums, memory, columns, records, verify, index, write], facts)
