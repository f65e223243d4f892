"""The PyPI package `tfrecord`, in an environment of its own: its protobuf messages clash with TensorFlow's.

It checks no CRC, and gives rows, not columns: they are counted as they come.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import numpy as np

from worker import Job, Pass, serve
from workload import Sums

DESCRIPTION = {"id": "byte", "label": "int", "weight": "float", "embed": "float"}


def load_package() -> Any:
    # benchmarks/tfrecord.py lies beside this file and would be found first.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [folder for folder in sys.path if str(Path(folder).resolve()) != here]
    return importlib.import_module("tfrecord.reader")


PACKAGE = load_package()


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
    operations = [columns, records, sums]
    serve({operation.__name__: operation for operation in operations}, facts)
