"""Hugging Face datasets: Arrow files, memory-mapped; takes rows of a random order, many at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import datasets
import numpy as np

from benchmarks.common.contenders import Job
from benchmarks.peers.arrow_rows import pipelines
from benchmarks.peers.data import own_format
from benchmarks.peers.operations import serve

_opened = functools.cache(lambda home: datasets.load_from_disk(str(home)).with_format("arrow"))


def taken(job: Job, make: Callable[[Job], Any], many: int) -> Iterator[Any]:
    home = own_format(job, "datasets", lambda home: datasets.Dataset(make(job)).save_to_disk(str(home)))
    order = np.random.default_rng().permutation(len(_opened(home)))
    for first in range(0, len(order), many):
        yield _opened(home)[order[first : first + many]]


if __name__ == "__main__":
    serve(("datasets", "pyarrow", "opencv-python-headless"), *pipelines(taken))
