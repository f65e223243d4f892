"""torch's DataLoader with two workers over the PyPI package `tfrecord`, in an environment of its own.

It checks no CRC. Its protobuf messages clash with TensorFlow's.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.metadata
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from read_pass import Batches, operations
from read_rows import BATCH, REACH, WORKERS
from worker import Job, serve

DESCRIPTION = {"id": "byte", "label": "int", "weight": "float", "embed": "float"}


def load_package() -> Any:
    # benchmarks/tfrecord.py lies beside this file and would be found first.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [folder for folder in sys.path if str(Path(folder).resolve()) != here]
    importlib.import_module("tfrecord.tools.tfrecord2idx")
    importlib.import_module("tfrecord.torch.dataset")
    return importlib.import_module("tfrecord")


PACKAGE = load_package()


class DealtFiles(IterableDataset[Any]):
    """A worker reads whole files of its own, a record of each in turn: the quickest way to its TFRecordDataset."""

    def __init__(self, files: list[str], reach: int) -> None:
        self._files, self._reach = files, reach

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        files = self._files if worker is None else self._files[worker.id :: worker.num_workers]
        rows = [iter(PACKAGE.torch.dataset.TFRecordDataset(path, None, DESCRIPTION)) for path in files]
        yield from PACKAGE.iterator_utils.shuffle_iterator(in_turn(rows), self._reach)


def in_turn(streams: list[Iterator[Any]]) -> Iterator[Any]:
    while streams:
        for stream in list(streams):
            try:
                yield next(stream)
            except StopIteration:
                streams.remove(stream)


def examples(job: Job) -> Batches:
    return _loaded(DealtFiles(job["files"], REACH["examples"] // WORKERS))


def examples_multi(job: Job) -> Batches:
    """Its own way to read several files; without an index every worker would read everything."""
    dataset = PACKAGE.torch.dataset.MultiTFRecordDataset(
        str(Path(job["files"][0]).parent / "{}.tfrecord"),
        f"{_indexed(tuple(job['files']))}/{{}}.index",
        {Path(path).stem: 1 / len(job["files"]) for path in job["files"]},
        DESCRIPTION,
        shuffle_queue_size=REACH["examples"] // WORKERS,
        infinite=False,
    )
    return _loaded(dataset)


def _loaded(dataset: Any) -> Batches:
    for batch in DataLoader(dataset, BATCH["examples"], num_workers=WORKERS):
        # It makes an array of one number out of a number.
        yield {**batch, "label": batch["label"][:, 0], "weight": batch["weight"][:, 0]}


@functools.cache
def _indexed(files: tuple[str, ...]) -> str:
    folder = tempfile.TemporaryDirectory(prefix="holdfast-bench-index-")
    atexit.register(folder.cleanup)
    for path in files:
        PACKAGE.tools.tfrecord2idx.create_index(path, f"{folder.name}/{Path(path).stem}.index")
    return folder.name


def facts() -> dict[str, Any]:
    return {"versions": {"tfrecord": importlib.metadata.version("tfrecord"), "torch": str(torch.__version__)}}


if __name__ == "__main__":
    serve(operations({"examples": examples, "examples_multi": examples_multi}), facts)
