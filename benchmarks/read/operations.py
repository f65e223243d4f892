"""What every contender does with its batches: count rows, add up columns, or start epochs again and again.

A contender defines pipelines; the timing and the sums are the same for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.common.contenders import Job, Pass
from benchmarks.common.processes import open_descriptors, tree_cpu_s
from benchmarks.common.workload import Sums

Batches = Iterator[Mapping[str, Any]]
Pipeline = Callable[[Job], Batches]
Operation = Callable[[Job], Any]


def operations(*pipelines: Pipeline) -> list[Operation]:
    """The operations of a contender; `pipeline` in a job names one of its pipelines."""
    known = {pipeline.__name__: pipeline for pipeline in pipelines}

    def read(job: Job) -> Pass:
        return _read(known[job["pipeline"]], job)

    def sums(job: Job) -> dict[str, int]:
        return _sums(known[job["pipeline"]], job)

    def starts(job: Job) -> Pass:
        return _starts(known[job["pipeline"]], job)

    return [read, sums, starts]


def _read(pipeline: Pipeline, job: Job) -> Pass:
    before = tree_cpu_s()
    batches = pipeline(job)
    rows = 0
    for batch in batches:
        rows += len(batch["label"])
    # Deleting the iterator is not part of reading: tf.data's can wait seconds for its autotuner.
    kept: list[Any] = [batches]
    return Pass(rows, kept.clear, {"cpu_s": tree_cpu_s() - before})


def _starts(pipeline: Pipeline, job: Job) -> Pass:
    """Runs epochs with new loaders, and keeps the iterators as a list or a traceback would."""
    kept: list[Any] = []
    rows, first_s = 0, 0.0
    before = open_descriptors()
    for _ in range(job["epochs"]):
        start = time.perf_counter()
        batches = pipeline(job)
        kept.append(batches)
        rows += len(next(batches)["label"])
        first_s += time.perf_counter() - start
        rows += sum(len(batch["label"]) for batch in batches)
    grown = open_descriptors() - before
    return Pass(rows, kept.clear, {"first_s": first_s / job["epochs"], "descriptors_grown": grown})


def _sums(pipeline: Pipeline, job: Job) -> dict[str, int]:
    """Adds up everything the pipeline returned, whatever the order of rows."""
    total = Sums()
    for batch in pipeline(job):
        total.records += len(batch["label"])
        for name, column in batch.items():
            _add(total, name, column)
    return total.as_dict()


def _add(total: Sums, name: str, column: Any) -> None:
    if isinstance(column, list) or (isinstance(column, np.ndarray) and column.dtype.kind == "O"):
        for value in column:
            total.text(name, value)
    else:
        joined = column.values if hasattr(column, "offsets") else column
        total.numbers(name, np.asarray(joined))
