"""What every contender does with its batches: count samples, or prove that it read what the others read.

A contender defines the pipelines `small`, `pictures` or `rows`. They yield mappings with a column `id`.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from benchmarks.common import contenders
from benchmarks.common.contenders import Job, Pass
from benchmarks.common.processes import tree_cpu_s
from benchmarks.common.workload import Sums

Batches = Iterable[Mapping[str, Any]]
Pipeline = Callable[[Job], Batches]


def serve(packages: tuple[str, ...], *pipelines: Pipeline) -> None:
    """Answers jobs. `pipeline` in a job names one of the pipelines; `packages` are those whose versions count."""
    known = {pipeline.__name__: pipeline for pipeline in pipelines}
    known |= dict.fromkeys(("resized", "cropped"), known.get("pictures"))  # which asks the job for its pipeline's name

    def read(job: Job) -> Pass:
        before = tree_cpu_s()
        batches = known[job["pipeline"]](job)
        rows = sum(len(batch["id"]) for batch in batches)
        kept: list[Any] = [batches]  # deleting an iterator is not part of reading
        return Pass(rows, kept.clear, {"cpu_s": tree_cpu_s() - before})

    def sums(job: Job) -> dict[str, Any]:
        return _sums(known[job["pipeline"]](job))

    contenders.serve([read, sums], lambda: {"versions": {name: importlib.metadata.version(name) for name in packages}})


def _sums(batches: Batches) -> dict[str, Any]:
    """Adds up everything. Decoders differ in the last bit, so of images it returns the mean colours.

    A sample's weight in them depends on its id: a picture with another's id is noticed.
    """
    total, colours, weights = Sums(), np.zeros(3), 0.0
    for batch in batches:
        columns = {name: np.asarray(column) for name, column in batch.items()}
        images = columns.pop("image", None)
        total.records += len(columns["id"])
        for name, column in columns.items():
            total.numbers(name, column)
        if images is not None:
            if images.dtype != np.float32 or images.shape[1:] not in ((224, 224, 3), (3, 224, 224)):
                raise ValueError(f"expected float32 images of 224 × 224 × 3, got {images.dtype} {images.shape[1:]}")
            means = images.mean(axis=(1, 2) if images.shape[-1] == 3 else (2, 3), dtype=np.float64)
            weight = 1.0 + columns["id"] % 5
            colours += weight @ means
            weights += weight.sum()
    found: dict[str, Any] = total.as_dict()
    return found | ({"colours": (colours / weights).round(3).tolist()} if weights else {})
