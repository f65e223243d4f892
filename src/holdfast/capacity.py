"""What a training run's loaders will need against what there is: arithmetic alone.

The costs are those of torch's DataLoader, counted on real ones with 1, 2 and 4 workers; a test counts them again.

| for W workers                   | costs                                                                   |
|---------------------------------|-------------------------------------------------------------------------|
| a live iterator                 | 4·W + 2 descriptors of the main process, which are 3·W + 1 pipes        |
| a worker                        | inherits those, and has 2 of its own: its stdin, the sharer's socket    |
| a tensor on its way             | 1 descriptor at each end while it is shared by descriptor               |
| tasks                           | a worker, its feeder and its sharer; a feeder for each in the main one  |
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from ._util.text import format_bytes
from .procfs.limits import Limit, parse_cgroup, process_limits, shared_limits, threads_by_user
from .procfs.procfs import REAL, ProcFS, read_or_none

# Python and torch have 5 open on a machine without a GPU; a driver, logs and a checkpoint come on top.
BASE_FDS = 64
OWN_WORKER_FDS = 2
# What a forked worker does not share with its parent, before it has loaded anything.
WORKER_BYTES = 16 << 20
PIPE_PAGES = 16


class Sharing(StrEnum):
    """How torch hands a worker's tensors over."""

    DESCRIPTOR = "file_descriptor"
    FILE = "file_system"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """What is to be run. `loaders` are alive at once: one to train and one to validate are two."""

    workers: int
    open_shards: int = 1
    prefetch: int = 2
    batch_bytes: int | None = None
    tensors: int = 2
    loaders: int = 1
    sharing: Sharing = Sharing.DESCRIPTOR

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("open_shards", 0), ("prefetch", 1), ("tensors", 1), ("loaders", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"expected {name} of at least {least}, got {getattr(self, name)}")
        if self.batch_bytes is not None and self.batch_bytes < 1:
            raise ValueError(f"expected a batch of at least one byte, got {self.batch_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What there is. `tasks` and `memory` bind one as well as the other; a privileged user's pipes never shrink."""

    nofile: Limit
    file_max: Limit
    pipe_pages: Limit
    shm: Limit
    tasks: tuple[Limit, ...] = ()
    memory: tuple[Limit, ...] = ()
    cores: float = 1.0
    privileged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that is needed. `have` is None where nobody can tell; `must` is False where less only slows it down."""

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
    """`fits` as things are now. `settled` fits after `settings`; None: nothing does, not even without workers."""

    wish: CapacityRequest
    lines: tuple[Line, ...]
    settings: tuple[Setting, ...]
    fits: bool
    settled: CapacityRequest | None


# ---- what it costs -----------------------------------------------------------------------------------------


def queue_fds(wish: CapacityRequest) -> int:
    """Of one live iterator, in the main process."""
    return 4 * wish.workers + 2 if wish.workers else 0


def tensors_on_the_way(wish: CapacityRequest) -> int:
    """Of one worker of one loader, each with a descriptor."""
    return wish.prefetch * wish.tensors if wish.sharing is Sharing.DESCRIPTOR and wish.workers else 0


def main_fds(wish: CapacityRequest) -> int:
    """All batches may have come in out of order, and the loop holds one more."""
    in_hand = wish.tensors if tensors_on_the_way(wish) else 0
    loader = queue_fds(wish) + wish.workers * tensors_on_the_way(wish) + in_hand
    return BASE_FDS + wish.loaders * loader + (0 if wish.workers else wish.open_shards)


def worker_fds(wish: CapacityRequest) -> int:
    """The last one started, which inherits most."""
    if not wish.workers:
        return 0
    return BASE_FDS + wish.loaders * queue_fds(wish) + OWN_WORKER_FDS + wish.open_shards + tensors_on_the_way(wish)


def all_fds(wish: CapacityRequest) -> int:
    return main_fds(wish) + wish.loaders * wish.workers * worker_fds(wish)


def pipes(wish: CapacityRequest) -> int:
    return wish.loaders * (3 * wish.workers + 1) if wish.workers else 0


def tasks(wish: CapacityRequest) -> int:
    """Beside the main process: per worker itself, its feeder and its sharer, and the main process's feeder for it."""
    return wish.loaders * wish.workers * (4 if wish.sharing is Sharing.DESCRIPTOR else 3)


def shm_bytes(wish: CapacityRequest) -> int:
    return wish.loaders * wish.workers * wish.prefetch * (wish.batch_bytes or 0)


def memory_bytes(wish: CapacityRequest) -> int:
    """Shared memory counts as memory, and every worker is at work on one more batch."""
    return shm_bytes(wish) + wish.loaders * wish.workers * (WORKER_BYTES + (wish.batch_bytes or 0))


# ---- against what there is ---------------------------------------------------------------------------------


def lines(wish: CapacityRequest, room: Headroom) -> Iterator[Line]:
    """Each thing that can run out, as things are now."""
    soft = room.nofile.soft
    yield Line(name="descriptors, main process", need=main_fds(wish), have=soft, why=_why_main(wish))
    if not wish.workers:
        return
    yield Line(name="descriptors, a worker", need=worker_fds(wish), have=soft, why=_why_worker(wish))
    yield Line(
        name="descriptors, all together",
        need=all_fds(wish),
        have=room.file_max.headroom,
        why="fs.file-max binds the whole machine",
    )
    pages = math.inf if room.privileged else room.pipe_pages.soft
    yield Line(
        name="pipes of this user",
        need=pipes(wish),
        have=None if pages is None else pages / PIPE_PAGES,
        why="3 per worker and 1 per loader; past this new pipes shrink from 64 to 8 KiB and are slow",
        must=False,
    )
    yield Line(name="processes and threads", need=tasks(wish), have=_least(room.tasks), why=_why_tasks(wish))
    yield Line(
        name="/dev/shm", need=shm_bytes(wish), have=room.shm.headroom, why="a batch × prefetch × workers × loaders"
    )
    why = f"what is in /dev/shm, and per worker {WORKER_BYTES >> 20} MiB and the batch it is at work on"
    yield Line(name="memory", need=memory_bytes(wish), have=_least(room.memory), why=why)


def _least(limits: tuple[Limit, ...]) -> float | None:
    return min((limit.headroom for limit in limits if limit.headroom is not None), default=None)


def _why_main(wish: CapacityRequest) -> str:
    if not wish.workers:
        return (
            f"{BASE_FDS} for Python, torch and logs; {wish.open_shards:,} shard{'' if wish.open_shards == 1 else 's'}"
        )
    queues = f"4·{wish.workers} + 2 pipes a loader"
    sent = f"; {wish.workers} × {wish.prefetch} batches × {wish.tensors} tensors" if tensors_on_the_way(wish) else ""
    return f"{BASE_FDS} for Python, torch and logs; {queues}{sent}"


def _why_worker(wish: CapacityRequest) -> str:
    sent = f", {wish.prefetch} batches × {wish.tensors} tensors" if tensors_on_the_way(wish) else ""
    shards = f"{wish.open_shards:,} open shard{'' if wish.open_shards == 1 else 's'}"
    return f"the main process's {BASE_FDS} and its pipes, {shards}{sent}"


def _why_tasks(wish: CapacityRequest) -> str:
    return f"{tasks(replace(wish, workers=1, loaders=1))} a worker: itself and its queues' threads"


def fits(wish: CapacityRequest, room: Headroom) -> bool:
    return all(line.enough for line in lines(wish, room) if line.must)


# ---- what to set -------------------------------------------------------------------------------------------


def settle(wish: CapacityRequest, room: Headroom) -> CapacityRequest | None:
    """The nearest to the wish that fits once the soft limit is raised: workers are given up last."""
    raised = _raised(room)
    # Every cost rises with the workers, so that their greatest number is found by halving.
    most = bisect_right(range(wish.workers + 1), 0, key=lambda n: not fits(_easiest(wish, n), raised)) - 1
    if most < 0:
        return None
    return next(one for one in _easier(replace(wish, workers=most)) if fits(one, raised))


def _raised(room: Headroom) -> Headroom:
    return replace(room, nofile=replace(room.nofile, soft=room.nofile.hard))


def _easiest(wish: CapacityRequest, workers: int) -> CapacityRequest:
    shards = min(1, wish.open_shards)
    return replace(wish, workers=workers, prefetch=1, open_shards=shards, sharing=Sharing.FILE)


def _easier(wish: CapacityRequest) -> Iterator[CapacityRequest]:
    sharings = (wish.sharing, Sharing.FILE) if wish.sharing is Sharing.DESCRIPTOR else (wish.sharing,)
    for prefetch in _halves(wish.prefetch):
        for shards in _halves(wish.open_shards):
            for sharing in sharings:
                yield replace(wish, prefetch=prefetch, open_shards=shards, sharing=sharing)


def _halves(n: int) -> Iterator[int]:
    """`16` -> 16, 8, 4, 2, 1: exact is of no use, each is an estimate."""
    while True:
        yield n
        if n <= 1:
            return
        n //= 2


def make_plan(wish: CapacityRequest, room: Headroom) -> CapacityPlan:
    settled = settle(wish, room)
    return CapacityPlan(
        wish=wish,
        lines=tuple(lines(wish, room)),
        settings=tuple(_settings(wish, settled, room)),
        fits=fits(wish, room),
        settled=settled,
    )


def _settings(wish: CapacityRequest, settled: CapacityRequest | None, room: Headroom) -> Iterator[Setting]:
    if settled is None:
        yield Setting(name="nothing", value="", why="not even one process without workers fits here")
        return
    if settled.workers != wish.workers:
        not_all = f"{wish.workers:,} do not fit" if wish.workers > 1 else "not even one fits"
        why = f"{not_all}, there is too little of this: {_lacking(wish, settled, room)}{_larger_shm(wish, room)}"
        yield Setting(name="num_workers", value=str(settled.workers), why=why)
    elif wish.workers > math.ceil(room.cores):
        why = f"there are {room.cores:g} cores for {wish.workers} workers: more wait for each other"
        yield Setting(name="num_workers", value=str(max(1, math.ceil(room.cores))), why=why)
    if settled.prefetch != wish.prefetch:
        why = f"{wish.prefetch:,} batches of each worker do not fit into /dev/shm or memory{_larger_shm(wish, room)}"
        yield Setting(name="prefetch_factor", value=str(settled.prefetch), why=why)
    if settled.open_shards != wish.open_shards:
        why = f"{wish.open_shards:,} would not fit under the hard limit of open files"
        yield Setting(name="open shards", value=str(settled.open_shards), why=why)
    if settled.sharing is not wish.sharing:
        why = (
            "a descriptor for each tensor on its way does not fit; watch /dev/shm, a killed run leaves its files there"
        )
        yield Setting(name="sharing strategy", value=settled.sharing.value, why=why)
    yield from _ulimit(settled, room.nofile)


def _lacking(wish: CapacityRequest, settled: CapacityRequest, room: Headroom) -> str:
    """What is lacking with all the workers that were expected, when everything else has been given up."""
    raised = _raised(room)
    least = _easiest(wish, settled.workers + 1)
    lacking = [line.name for line in lines(least, raised) if line.must and not line.enough]
    return "; ".join(lacking)


def _larger_shm(wish: CapacityRequest, room: Headroom) -> str:
    """A container's 64 MB are mostly what is short, and the easiest to change."""
    left, need = room.shm.headroom, shm_bytes(wish)
    if left is None or need <= left or memory_bytes(wish) > (_least(room.memory) or math.inf):
        return ""
    return f"; or keep them with {format_bytes(need)} free in /dev/shm (docker's --shm-size, a larger tmpfs)"


def _ulimit(settled: CapacityRequest, nofile: Limit) -> Iterator[Setting]:
    need = max(main_fds(settled), worker_fds(settled))
    if nofile.soft is None or need <= nofile.soft:
        return
    most = math.inf if nofile.hard is None else nofile.hard
    value = int(min(most, math.ceil(need * 1.25 / 1024) * 1024))
    why = f"{need:,} are needed, {nofile.soft:,.0f} are allowed; or call holdfast.raise_nofile() first thing"
    yield Setting(name="ulimit -n", value=str(value), why=why)


# What this machine, this user and this control group give to a run that starts now.

_GROUPS = "/sys/fs/cgroup"
_TASKS = ("threads_max", "pid_max", "cgroup_pids")


def read_room(procfs: ProcFS = REAL, *, uid: int | None = None, cores: float | None = None) -> Headroom:
    """For a child of this process, which inherits its limits."""
    uid = os.geteuid() if uid is None else uid
    own = procfs.own_pid() or os.getpid()
    nofile, nproc = process_limits(procfs, own, 0, threads_by_user(procfs).get(uid))
    shared = {limit.name: limit for limit in shared_limits(procfs, own)}
    # The kernel does not hold root to the limit of its processes.
    per_user = () if uid == 0 else (nproc,)
    return Headroom(
        nofile=nofile,
        file_max=shared["file_max"],
        pipe_pages=shared["pipe_user_pages"],
        shm=shared["dev_shm_bytes"],
        tasks=(*per_user, *(shared[name] for name in _TASKS)),
        memory=(_without_cache(procfs, own, shared["cgroup_memory"]), _available(procfs)),
        cores=_cores(procfs, own) if cores is None else cores,
        privileged=uid == 0,
    )


def parse_meminfo(text: str) -> int | None:
    """`MemAvailable:   12345678 kB` -> bytes."""
    return _row(text, "MemAvailable:", 1024)


def parse_cpu_max(text: str) -> float:
    """`150000 100000\\n` -> 1.5 cores; `max 100000` -> no limit."""
    words = text.split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    return math.inf


def _row(text: str, title: str, unit_bytes: int = 1) -> int | None:
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == title and words[1].isdigit():
            return int(words[1]) * unit_bytes
    return None


def _available(procfs: ProcFS) -> Limit:
    free = parse_meminfo(read_or_none(procfs, "/proc/meminfo") or "")
    return Limit(name="memory_available", used=None if free is None else 0, soft=free, hard=free)


def _without_cache(procfs: ProcFS, pid: int, limit: Limit) -> Limit:
    """A group's usage counts files it has read; the kernel lets those go when memory is asked for."""
    if limit.used is None:
        return limit
    cache = _row(_read_group(procfs, pid, "memory.stat"), "inactive_file") or 0
    return replace(limit, used=max(0, limit.used - cache))


def _cores(procfs: ProcFS, pid: int) -> float:
    return min(len(os.sched_getaffinity(0)), parse_cpu_max(_read_group(procfs, pid, "cpu.max")))


def _read_group(procfs: ProcFS, pid: int, name: str) -> str:
    """In a container the group's own path is often not there, but its files are at the mount."""
    path = parse_cgroup(read_or_none(procfs, f"/proc/{pid}/cgroup") or "").get("", "/").strip("/")
    return read_or_none(procfs, f"{_GROUPS}/{path}/{name}") or read_or_none(procfs, f"{_GROUPS}/{name}") or ""
