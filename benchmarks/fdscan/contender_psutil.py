"""psutil's questions about the same processes."""

from __future__ import annotations

from typing import Any

import psutil

from benchmarks.common.contenders import Job, serve
from benchmarks.common.processes import cpu_cost


def count(process: psutil.Process) -> int:
    return int(process.num_fds())


def open_files(process: psutil.Process) -> int:
    return len(process.open_files())


def vitals(process: psutil.Process) -> int:
    with process.oneshot():
        process.memory_info()
        process.num_threads()
        return int(process.num_fds())


def scan(job: Job) -> dict[str, float]:
    ask = {"count": count, "open_files": open_files, "vitals": vitals}[job["work"]]
    processes = [psutil.Process(pid) for pid in job["pids"]]
    return cpu_cost(lambda: sum(ask(process) for process in processes))


def facts() -> dict[str, Any]:
    return {"versions": {"psutil": psutil.__version__}}


if __name__ == "__main__":
    serve([scan], facts)
