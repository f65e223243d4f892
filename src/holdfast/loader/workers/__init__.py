"""Work in other processes: a fixed number of them, a fixed piece of shared memory, never a silent wait.

    this process ──control──▶ seed ──fork──▶ worker 0, worker 1, …
         └───────── a socket and the shared memory, to each ─────────┘

pool.py      ProcessPool: what to use
run.py       one pass over tasks: results in their order
post.py      what goes to workers and what comes from them; every wait is here
job.py       one task on its way
crew.py      the processes and descriptors of a pool, and their end
seed.py      the small process that the workers are forked from; it says how each one ended
worker.py    what a worker runs
wire.py      the few small messages between them
memory.py    the shared memory: a board with the sample each worker is at, and slots for data
parcels.py   any object as bytes in a slot, and back
brief.py     what a worker must know before its first task; the main script is imported only if it is needed
faults.py    what went wrong with a worker, in words
tracing.py   where in its code a worker is

The number of descriptors is 2 a worker and 5, whatever passes through and whatever is kept.
"""

from __future__ import annotations

from .messages import Task
from .pool import PoolRun, ProcessPool

__all__ = ["PoolRun", "ProcessPool", "Task"]
