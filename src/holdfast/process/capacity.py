"""Compares what a run's data loaders need with the limits of this machine: the arithmetic behind `holdfast plan`.

The costs are those of torch's DataLoader, measured with 1, 2 and 4 workers; a test measures them again.

| for W workers                   | costs                                                                   |
|---------------------------------|-------------------------------------------------------------------------|
| a live iterator                 | 4·W + 2 descriptors of the main process, which are 3·W + 1 pipes        |
| a worker                        | inherits those, and has 2 of its own: its stdin, the sharer's socket    |
| a tensor in flight              | 1 descriptor at each end while it is shared by descriptor               |
| tasks                           | a worker, its feeder and its sharer; a feeder for each in the main one  |
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from .._util.text import format_bytes
from ..procfs.limits import (
    PIPE_PAGES,
    Limit,
    available_memory,
    process_limits,
    read_cgroup_file,
    shared_limits,
    threads_by_user,
    without_cache,
)
from ..procfs.procfs import REAL, ProcFS

# Python and torch have 5 open on a machine without a GPU; a driver, logs and a checkpoint come on top.
BASE_FDS = 64
OWN_WORKER_FDS = 2
# Memory that a forked worker does not share with its parent, before it has loaded anything.
WORKER_BYTES = 16 << 20


class Sharing(StrEnum):
    """How torch passes tensors from a worker to the main process."""

    DESCRIPTOR = "file_descriptor"
    FILE = "file_system"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """Describes the planned run. `loaders` counts those alive at once: one to train and one to validate are two."""

    workers: int
    open_shards: int = 1
    prefetch: int = 2
    batch_bytes: int | None = None
    tensors: int = 2
    loaders: int = 1
    sharing: Sharing = Sharing.DESCRIPTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemLimits:
    """Holds the limits the run has to fit. All of `tasks` and `memory` apply; the pipes of root never shrink."""

    nofile: Limit
    file_max: Limit
    pipe_pages: Limit
    shm: Limit
    tasks: tuple[Limit, ...] = ()
    memory: tuple[Limit, ...] = ()
    cores: float = 1.0
    privileged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One resource the run needs. `have` None means unknown; `must` is False where too little only slows the run."""

    name: str
    need: int
    have: float | None
    why: str
    must: bool = True

    @property
    def enough(self) -> bool:
        return self.have is None or self.need <= self.have


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """`fits` is for the current limits. `adjusted` fits after `settings`; None: nothing does, even without workers."""

    request: CapacityRequest
    requirements: tuple[Requirement, ...]
    settings: tuple[Setting, ...]
    fits: bool
    adjusted: CapacityRequest | None


# ---- costs


def queue_fds(request: CapacityRequest) -> int:
    """Counts the descriptors of one live iterator, in the main process."""
    return 4 * request.workers + 2 if request.workers else 0


def tensors_on_the_way(request: CapacityRequest) -> int:
    """Counts the tensors that one worker of one loader has in flight, each with a descriptor."""
    return request.prefetch * request.tensors if request.sharing is Sharing.DESCRIPTOR and request.workers else 0


def main_fds(request: CapacityRequest) -> int:
    """Assumes that all prefetched batches have arrived out of order, and that the loop holds one more."""
    in_hand = request.tensors if tensors_on_the_way(request) else 0
    loader = queue_fds(request) + request.workers * tensors_on_the_way(request) + in_hand
    return BASE_FDS + request.loaders * loader + (0 if request.workers else request.open_shards)


def worker_fds(request: CapacityRequest) -> int:
    """Counts for the worker that is started last: it inherits most."""
    if not request.workers:
        return 0
    return (
        BASE_FDS
        + request.loaders * queue_fds(request)
        + OWN_WORKER_FDS
        + request.open_shards
        + tensors_on_the_way(request)
    )


def all_fds(request: CapacityRequest) -> int:
    return main_fds(request) + request.loaders * request.workers * worker_fds(request)


def pipes(request: CapacityRequest) -> int:
    return request.loaders * (3 * request.workers + 1) if request.workers else 0


def tasks(request: CapacityRequest) -> int:
    """Counts per worker the process, its feeder and sharer threads, and the main process's feeder thread for it."""
    return request.loaders * request.workers * (4 if request.sharing is Sharing.DESCRIPTOR else 3)


def shm_bytes(request: CapacityRequest) -> int:
    return request.loaders * request.workers * request.prefetch * (request.batch_bytes or 0)


def memory_bytes(request: CapacityRequest) -> int:
    """Includes shared memory, and the batch that each worker is building."""
    return shm_bytes(request) + request.loaders * request.workers * (WORKER_BYTES + (request.batch_bytes or 0))


# ---- costs against limits

_WHY_MAIN = f"{BASE_FDS} for Python, torch and logs; a loader: 4 pipes a worker, 2 more, and its tensors in flight"
_WHY_WORKER = "those of the main process without tensors, its open shards, and its tensors in flight"


def requirements(request: CapacityRequest, limits: SystemLimits) -> Iterator[Requirement]:
    """Yields each resource that can run out, with the current limits."""
    soft = limits.nofile.soft
    yield Requirement(name="descriptors, main process", need=main_fds(request), have=soft, why=_WHY_MAIN)
    if not request.workers:
        return
    yield Requirement(name="descriptors, a worker", need=worker_fds(request), have=soft, why=_WHY_WORKER)
    yield Requirement(
        name="descriptors, all together",
        need=all_fds(request),
        have=limits.file_max.headroom,
        why="fs.file-max is the limit of the machine",
    )
    pages = math.inf if limits.privileged else limits.pipe_pages.soft
    yield Requirement(
        name="pipes of this user",
        need=pipes(request),
        have=None if pages is None else pages / PIPE_PAGES,
        why="3 per worker and 1 per loader; past this new pipes shrink from 64 to 8 KiB and are slow",
        must=False,
    )
    why = f"{tasks(request) // (request.loaders * request.workers)} a worker: itself and its queues' threads"
    yield Requirement(name="processes and threads", need=tasks(request), have=_tightest(limits.tasks), why=why)
    yield Requirement(
        name="/dev/shm", need=shm_bytes(request), have=limits.shm.headroom, why="a batch × prefetch × workers × loaders"
    )
    why = f"the batches in /dev/shm, and per worker {WORKER_BYTES >> 20} MiB and the batch it is building"
    yield Requirement(name="memory", need=memory_bytes(request), have=_tightest(limits.memory), why=why)


def _tightest(limits: tuple[Limit, ...]) -> float | None:
    return min((limit.headroom for limit in limits if limit.headroom is not None), default=None)


def fits(request: CapacityRequest, limits: SystemLimits) -> bool:
    return all(line.enough for line in requirements(request, limits) if line.must)


# ---- settings that make it fit


def adjust(request: CapacityRequest, limits: SystemLimits) -> CapacityRequest | None:
    """Returns the nearest request that fits once the soft limit is raised: the number of workers is reduced last."""
    raised = _raised(limits)
    # Every cost rises with the number of workers, so the largest one that fits is found by bisection.
    maximum = bisect_right(range(request.workers + 1), 0, key=lambda n: not fits(_easiest(request, n), raised)) - 1
    if maximum < 0:
        return None
    return next(one for one in _easier(replace(request, workers=maximum)) if fits(one, raised))


def _raised(limits: SystemLimits) -> SystemLimits:
    return replace(limits, nofile=replace(limits.nofile, soft=limits.nofile.hard))


def _easiest(request: CapacityRequest, workers: int) -> CapacityRequest:
    shards = min(1, request.open_shards)
    return replace(request, workers=workers, prefetch=1, open_shards=shards, sharing=Sharing.FILE)


def _easier(request: CapacityRequest) -> Iterator[CapacityRequest]:
    sharings = (request.sharing, Sharing.FILE) if request.sharing is Sharing.DESCRIPTOR else (request.sharing,)
    for prefetch in _halves(request.prefetch):
        for shards in _halves(request.open_shards):
            for sharing in sharings:
                yield replace(request, prefetch=prefetch, open_shards=shards, sharing=sharing)


def _halves(n: int) -> Iterator[int]:
    """`16` -> 16, 8, 4, 2, 1: the costs are estimates, so finer steps would gain nothing."""
    while True:
        yield n
        if n <= 1:
            return
        n //= 2


def make_plan(request: CapacityRequest, limits: SystemLimits) -> CapacityPlan:
    adjusted = adjust(request, limits)
    return CapacityPlan(
        request=request,
        requirements=tuple(requirements(request, limits)),
        settings=tuple(_settings(request, adjusted, limits)),
        fits=fits(request, limits),
        adjusted=adjusted,
    )


def _settings(request: CapacityRequest, adjusted: CapacityRequest | None, limits: SystemLimits) -> Iterator[Setting]:
    if adjusted is None:
        yield Setting(name="nothing", value="", why="not even one process without workers fits")
        return
    if adjusted.workers != request.workers:
        not_all = f"{request.workers:,} do not fit" if request.workers > 1 else "not even one fits"
        shortage = _lacking(request, adjusted, limits)
        why = f"{not_all}, there is too little of this: {shortage}{_larger_shm(request, limits)}"
        yield Setting(name="num_workers", value=str(adjusted.workers), why=why)
    elif request.workers > math.ceil(limits.cores):
        why = f"there are {limits.cores:g} cores for {request.workers} workers: more only compete for them"
        yield Setting(name="num_workers", value=str(max(1, math.ceil(limits.cores))), why=why)
    if adjusted.prefetch != request.prefetch:
        larger = _larger_shm(request, limits)
        why = f"{request.prefetch:,} batches of each worker do not fit into /dev/shm or memory{larger}"
        yield Setting(name="prefetch_factor", value=str(adjusted.prefetch), why=why)
    if adjusted.open_shards != request.open_shards:
        why = f"{request.open_shards:,} exceed the hard limit of open files"
        yield Setting(name="open shards", value=str(adjusted.open_shards), why=why)
    if adjusted.sharing is not request.sharing:
        why = "a descriptor for each tensor in flight does not fit; watch /dev/shm, a killed run leaves its files there"
        yield Setting(name="sharing strategy", value=adjusted.sharing.value, why=why)
    yield from _ulimit(adjusted, limits.nofile)


def _lacking(request: CapacityRequest, adjusted: CapacityRequest, limits: SystemLimits) -> str:
    """Names what one more worker would exceed, with every other setting at its minimum."""
    smallest = _easiest(request, adjusted.workers + 1)
    return "; ".join(one.name for one in requirements(smallest, _raised(limits)) if one.must and not one.enough)


def _larger_shm(request: CapacityRequest, limits: SystemLimits) -> str:
    """Suggests a larger /dev/shm where that alone would do: a container's default of 64 MB is the usual shortage."""
    left, need = limits.shm.headroom, shm_bytes(request)
    if left is None or need <= left or memory_bytes(request) > (_tightest(limits.memory) or math.inf):
        return ""
    return f"; or keep them with {format_bytes(need)} free in /dev/shm (docker's --shm-size, a larger tmpfs)"


def _ulimit(adjusted: CapacityRequest, nofile: Limit) -> Iterator[Setting]:
    need = max(main_fds(adjusted), worker_fds(adjusted))
    if nofile.soft is None or need <= nofile.soft:
        return
    maximum = math.inf if nofile.hard is None else nofile.hard
    value = int(min(maximum, math.ceil(need * 1.25 / 1024) * 1024))
    why = f"{need:,} are needed, {nofile.soft:,.0f} are allowed; or call holdfast.raise_nofile() at the start"
    yield Setting(name="ulimit -n", value=str(value), why=why)


# ---- limits of this machine

_TASKS = ("threads_max", "pid_max", "cgroup_pids")


def read_limits(procfs: ProcFS = REAL, *, uid: int | None = None, cores: float | None = None) -> SystemLimits:
    """Reads the limits that a child of this process will have."""
    uid = os.geteuid() if uid is None else uid
    own = procfs.own_pid() or os.getpid()
    nofile, nproc = process_limits(procfs, own, 0, threads_by_user(procfs).get(uid))
    shared = {limit.name: limit for limit in shared_limits(procfs, own)}
    # The kernel does not enforce RLIMIT_NPROC for root.
    per_user = () if uid == 0 else (nproc,)
    return SystemLimits(
        nofile=nofile,
        file_max=shared["file_max"],
        pipe_pages=shared["pipe_user_pages"],
        shm=shared["dev_shm_bytes"],
        tasks=(*per_user, *(shared[name] for name in _TASKS)),
        memory=(without_cache(procfs, own, shared["cgroup_memory"]), _available_memory(procfs)),
        cores=_cores(procfs, own) if cores is None else cores,
        privileged=uid == 0,
    )


def parse_cpu_max(text: str) -> float:
    """`150000 100000\\n` -> 1.5 cores; `max 100000` -> no limit."""
    words = text.split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    return math.inf


def _available_memory(procfs: ProcFS) -> Limit:
    free = available_memory(procfs)
    return Limit(name="memory_available", used=None if free is None else 0, soft=free, hard=free)


def _cores(procfs: ProcFS, pid: int) -> float:
    return min(len(os.sched_getaffinity(0)), parse_cpu_max(read_cgroup_file(procfs, pid, "cpu.max")))
