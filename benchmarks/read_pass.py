"""What every side of benchmarks/read.py does with its batches: count them, add them up, or start over and over.

A side names its pipelines; the clock, the CPU time of all its processes and the proof are the same for all.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from worker import Job, Pass
from workload import Sums

Batches = Iterator[Mapping[str, Any]]
Pipeline = Callable[[Job], Batches]
Operation = Callable[[Job], Any]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def operations(pipelines: Mapping[str, Pipeline]) -> dict[str, Operation]:
    return {
        "read": lambda job: read(pipelines[job["pipeline"]], job),
        "sums": lambda job: sums(pipelines[job["pipeline"]], job),
        "starts": lambda job: starts(pipelines[job["pipeline"]], job),
    }


def read(pipeline: Pipeline, job: Job) -> Pass:
    before = tree_cpu_s()
    batches = pipeline(job)
    rows = 0
    for batch in batches:
        rows += len(batch["label"])
    # Letting go of it is no part of reading: tf.data's iterator can wait seconds for its autotuner.
    held: list[Any] = [batches]
    return Pass(rows, held.clear, {"cpu_s": tree_cpu_s() - before})


def starts(pipeline: Pipeline, job: Job) -> Pass:
    """Epochs with everything made anew, and the iterators kept, as a list of histories or a traceback keeps them."""
    kept: list[Any] = []
    rows, first_s = 0, 0.0
    before = open_descriptors()
    for _ in range(job["epochs"]):
        begun = time.perf_counter()
        batches = pipeline(job)
        kept.append(batches)
        rows += len(next(batches)["label"])
        first_s += time.perf_counter() - begun
        rows += sum(len(batch["label"]) for batch in batches)
    grown = open_descriptors() - before
    return Pass(rows, kept.clear, {"first_s": first_s / job["epochs"], "descriptors_grown": grown})


def sums(pipeline: Pipeline, job: Job) -> dict[str, int]:
    """Everything the pipeline gave, added up: the same in whatever order the rows came."""
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


# ---- all processes of this side ----------------------------------------------------------------------------


def tree_cpu_s() -> float:
    """CPU time of this process, of all that came from it and live, and of those that were waited for."""
    ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in ours)
    return total + sum(_ticks(pid) for pid in _descendants(os.getpid())) / _TICKS_PER_S


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # the thread has ended
        for child in children:
            found += [child, *_descendants(child)]
    return found


def _ticks(pid: int) -> int:
    """utime, stime, cutime, cstime: the fields 14 to 17 of a line whose second field may hold anything."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return sum(int(field) for field in line.rpartition(")")[2].split()[11:15])


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1  # one is the listing's own
