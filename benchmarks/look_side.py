"""One way of looking, in a process of its own: takes its turns when benchmarks/look.py asks, answers in JSON lines.

{"work": "full", "pids": […]}  ->  {"cpu_s": …, "wall_s": … of one pass, "count": what it found}
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

# Quick work is repeated for so long; the answer is the mean.
LEAST_S = 0.05


def main() -> None:
    side = {"holdfast": holdfast_side, "psutil": psutil_side}[sys.argv[1]]()
    for line in sys.stdin:
        job = json.loads(line)
        with ExitStack() as stack:
            work = side[job["work"]](job["pids"], stack)
            print(json.dumps(take_turn(work)), flush=True)


def take_turn(work: Callable[[], int]) -> dict[str, float]:
    gc.collect()
    passes, count = 0, 0
    cpu, wall = time.process_time(), time.perf_counter()
    while not passes or time.perf_counter() - wall < LEAST_S:
        count = work()
        passes += 1
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu_s": cpu / passes, "wall_s": wall / passes, "count": count}


Work = Callable[[Sequence[int], ExitStack], Callable[[], int]]


def holdfast_side() -> dict[str, Work]:
    from holdfast.doctor.fd_profile import profiles_of
    from holdfast.procfs.descriptors import count
    from holdfast.procfs.processes import read_vitals
    from holdfast.procfs.procfs import REAL
    from holdfast.procfs.snapshot import take_snapshot

    def full(pids: Sequence[int], _: ExitStack) -> Callable[[], int]:
        return lambda: take_snapshot(pids[0]).fd_count or 0

    def doctor(pids: Sequence[int], _: ExitStack) -> Callable[[], int]:
        return lambda: sum(one.fds for one in profiles_of(take_snapshot(pids[0])).values())

    def counts(pids: Sequence[int], _: ExitStack) -> Callable[[], int]:
        return lambda: sum(count(REAL, pid) or 0 for pid in pids)

    def vitals(pids: Sequence[int], _: ExitStack) -> Callable[[], int]:
        return lambda: sum(read_vitals(REAL, pid).fds or 0 for pid in pids)

    return {"full": full, "doctor": doctor, "count": counts, "vitals": vitals}


def psutil_side() -> dict[str, Work]:
    import psutil

    def each(ask: Callable[[Any], int]) -> Work:
        def prepare(pids: Sequence[int], _: ExitStack) -> Callable[[], int]:
            processes = [psutil.Process(pid) for pid in pids]
            return lambda: sum(ask(process) for process in processes)

        return prepare

    def vitals(process: Any) -> int:
        with process.oneshot():
            process.memory_info()
            process.num_threads()
            return int(process.num_fds())

    return {
        "count": each(lambda process: int(process.num_fds())),
        "open_files": each(lambda process: len(process.open_files())),
        "vitals": each(vitals),
    }


if __name__ == "__main__":
    main()
