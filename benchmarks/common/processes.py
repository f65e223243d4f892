"""What this process and its descendants use: CPU time, memory, descriptors."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LEAST_S = 0.05


class Clock:
    """Counts seconds, and the CPU time of this process and its descendants, from its creation."""

    def __init__(self) -> None:
        self._cpu_s = tree_cpu_s()
        self._start_s = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._start_s

    def read(self) -> dict[str, float]:
        """As `extra` of a Pass it replaces the time of the whole pass: preparations then do not count."""
        seconds = self.seconds()
        return {"seconds": seconds, "cpu_s": tree_cpu_s() - self._cpu_s}


def cpu_cost(work: Callable[[], int]) -> dict[str, float]:
    """Mean CPU and wall time of one call, repeated where it is short; `count` is what the last one returned."""
    gc.collect()
    passes, count = 0, 0
    cpu, wall = time.process_time(), time.perf_counter()
    while not passes or time.perf_counter() - wall < _LEAST_S:
        count = work()
        passes += 1
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu_s": cpu / passes, "wall_s": wall / passes, "count": count}


def tree_cpu_s() -> float:
    """CPU time of this process, of its living descendants, and of the children that were waited for."""
    ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in ours)
    return total + sum(_ticks(pid) for pid in descendants(os.getpid())) / _TICKS_PER_S


def descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue  # the thread has ended
        for child in children:
            yield child
            yield from descendants(child)


def _ticks(pid: int) -> int:
    """utime, stime, cutime, cstime: fields 14 to 17 of a line whose second field may contain anything."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return sum(int(field) for field in line.rpartition(")")[2].split()[11:15])


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1  # one belongs to the listing itself


def reset_peak_memory() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def memory_bytes(field: str) -> int:
    """VmRSS (resident now) or VmHWM (its peak), from lines such as `VmHWM:     12345 kB`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
