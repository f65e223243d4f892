"""A forked worker reads the samples that its parent has loaded: a list of objects, or an array in the clean one.

Reading an object writes its reference count, and with it a copy of its page, as in a DataLoader over a list.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.connection import Connection

import numpy as np
from leak_rounds import serve

SAMPLES = 600_000
READ = 15_000

samples = [f"{at:0>100}" for at in range(SAMPLES)] if sys.argv[1] == "leak" else None
array = np.arange(12 * SAMPLES)


def _work(pipe: Connection) -> None:
    """Reads the next samples for each number, until the parent has closed its end."""
    while True:
        try:
            at = pipe.recv()
        except EOFError:
            return
        if samples is not None:
            pipe.send(sum(len(one) for one in samples[at * READ : (at + 1) * READ]))
        else:
            pipe.send(int(array[at * READ : (at + 1) * READ].sum()))


ours, theirs = multiprocessing.Pipe()
worker = multiprocessing.get_context("fork").Process(target=_work, args=(theirs,), daemon=True)
worker.start()
rounds = iter(range(SAMPLES // READ))


def job() -> None:
    ours.send(next(rounds))
    ours.recv()


serve(job, job)
