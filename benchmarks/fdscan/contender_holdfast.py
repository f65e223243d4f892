"""holdfast's scans of processes: all of their descriptors, their number, or number, memory and threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.common.contenders import Job, serve
from benchmarks.common.processes import cpu_cost
from holdfast import __version__
from holdfast.process.doctor.fd_profile import profiles_of
from holdfast.procfs.descriptors import count
from holdfast.procfs.processes import read_vitals
from holdfast.procfs.procfs import REAL
from holdfast.procfs.snapshot import take_snapshot

Work = Callable[[], int]


def full(pids: Sequence[int], _: ExitStack) -> Work:
    return lambda: take_snapshot(pids[0]).fd_count or 0


def doctor(pids: Sequence[int], _: ExitStack) -> Work:
    return lambda: sum(one.fds for one in profiles_of(take_snapshot(pids[0])).values())


def counts(pids: Sequence[int], _: ExitStack) -> Work:
    return lambda: sum(count(REAL, pid) or 0 for pid in pids)


def vitals(pids: Sequence[int], _: ExitStack) -> Work:
    return lambda: sum(read_vitals(REAL, pid).fds or 0 for pid in pids)


def scan(job: Job) -> dict[str, float]:
    with ExitStack() as stack:
        prepare = {"full": full, "doctor": doctor, "count": counts, "vitals": vitals}[job["work"]]
        return cpu_cost(prepare(job["pids"], stack))


def facts() -> dict[str, Any]:
    return {"versions": {"holdfast": __version__}}


if __name__ == "__main__":
    serve([scan], facts)
