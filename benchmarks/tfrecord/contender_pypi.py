"""The PyPI package `tfrecord`, in its own environment because its protobuf messages clash with TensorFlow's.

It checks no CRC and returns rows, not columns.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

import numpy as np

from benchmarks.common.contenders import Job, Pass, serve
from benchmarks.common.workload import Sums

DESCRIPTION = {"id": "byte", "label": "int", "weight": "float", "embed": "float"}


PACKAGE: Any = importlib.import_module("tfrecord.reader")


def rows_of(path: str) -> Any:
    return PACKAGE.tfrecord_loader(path, None, DESCRIPTION)


def columns(job: Job) -> Pass:
    count = 0
    for path in job["files"]:
        for _ in rows_of(path):
            count += 1
    return Pass(count)


def records(job: Job) -> Pass:
    count = 0
    for path in job["files"]:
        for _ in PACKAGE.tfrecord_iterator(path):
            count += 1
    return Pass(count)


def sums(job: Job) -> dict[str, int]:
    total = Sums()
    for path in job["files"]:
        for row in rows_of(path):
            total.records += 1
            for name, value in row.items():
                if isinstance(value, np.ndarray):
                    total.numbers(name, value)
                else:
                    total.text(name, value)
    return total.as_dict()


def facts() -> dict[str, Any]:
    return {"versions": {"tfrecord": importlib.metadata.version("tfrecord"), "numpy": np.__version__}}


if __name__ == "__main__":
    serve([columns, records, sums], facts)
