"""lance: takes rows of a random order, many at a time, and the next ones ahead."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lance
import numpy as np

from benchmarks.common.contenders import Job
from benchmarks.peers.arrow_rows import pipelines
from benchmarks.peers.data import own_format
from benchmarks.peers.operations import serve

AHEAD = ThreadPoolExecutor(1)
_opened = functools.cache(lambda home: lance.dataset(f"{home}/rows.lance"))


def taken(job: Job, make: Callable[[Job], Any], many: int) -> Iterator[Any]:
    home = own_format(job, "lance", lambda home: lance.write_dataset(make(job), f"{home}/rows.lance"))
    order = np.random.default_rng().permutation(_opened(home).count_rows())
    ahead = None
    for first in range(0, len(order), many):
        ready, ahead = ahead, AHEAD.submit(_opened(home).take, order[first : first + many].tolist())
        if ready is not None:
            yield ready.result()
    if ahead is not None:
        yield ahead.result()


if __name__ == "__main__":
    serve(("pylance", "opencv-python-headless"), *pipelines(taken))
