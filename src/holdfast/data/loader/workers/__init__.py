"""Runs tasks in a fixed number of worker processes that share one piece of memory with the caller.

A pool starts a fork server (forkserver.py), which starts the workers (worker_main.py). Tasks and results go through
shared memory; each worker has a socket for the small messages. A pool holds 2 descriptors a worker and 5 more.
"""

from __future__ import annotations

from .pool import PoolRun, ProcessPool
from .wire_format import Task

__all__ = ["PoolRun", "ProcessPool", "Task"]
