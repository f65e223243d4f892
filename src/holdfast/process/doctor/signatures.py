"""Recognises known causes of leaks by the descriptors they leave open.

A signature is a row of `SIGNATURES`: a function that counts the descriptors it explains in an `FdProfile` (of all
descriptors, or of the new ones), the cause, and advice. No two signatures count the same descriptor, so the one with
the largest count names the cause. A new signature needs a program under tests/leaky_programs that leaks on purpose,
and a clean counterpart that does the same work without the leak.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...procfs.descriptors import Kind
from .model import FdProfile, Match, Trend
from .remedies import FIND_LEAK, LOADER, READ_BOUNDED, Remedy

# More dead ends per internal pipe than this are rarely one loader with that many workers.
MAX_WORKERS = 32
# Popen with stdin and stdout, or a Process, leaves as many write ends as read ends; unread output leaves no write ends.
_FEW = 4
# A signature must explain at least this many descriptors, and this part of all.
AT_LEAST = 16
AT_LEAST_PART = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Describes one cause of leaks.

    count      how many descriptors it explains
    what       the path or address that they share; it replaces `{what}` in the cause
    ordinary   how many a healthy process may have: in a single snapshot only more than that count
    dead       whether the descriptors it explains are unusable
    of         what is counted: descriptors, children or threads
    """

    name: str
    count: Callable[[FdProfile], int]
    what: Callable[[FdProfile], str] = lambda seen: ""
    cause: str
    advice: tuple[str, ...]
    ordinary: int = 0
    dead: bool = False
    of: str = "descriptors"
    remedy: Remedy | None = FIND_LEAK


def _loader_pipes(seen: FdProfile) -> tuple[int, int]:
    """Counts finished loaders and dead ends each way: one with W workers leaves self_pairs : hup : err = 1 : W : W."""
    each_way = min(seen.hup, seen.err)
    loaders = min(seen.self_pairs, each_way)
    return (loaders, each_way) if each_way <= MAX_WORKERS * loaders else (0, 0)


def _other_dead_ends(seen: FdProfile, *, both_ways: bool) -> int:
    """Dead ends with a share of write ends are of pipes in both directions, not only of a command's output."""
    each_way = _loader_pipes(seen)[1]
    hup, err = seen.hup - each_way, seen.err - each_way
    return hup + err if (err * _FEW > hup) == both_ways else 0


def _to_one_peer(seen: FdProfile) -> int:
    return seen.established_to.times if seen.established_to else 0


def _event_loops(seen: FdProfile) -> int:
    """An asyncio loop is an eventpoll and a pair of Unix sockets; other loops are woken by an eventfd."""
    loops = seen.kinds.get(Kind.EVENTPOLL, 0)
    return loops + _loop_sockets(seen) + min(seen.kinds.get(Kind.EVENTFD, 0), loops)


def _loop_sockets(seen: FdProfile) -> int:
    return min(seen.unix_sockets, 2 * seen.kinds.get(Kind.EVENTPOLL, 0))


def _other_sockets(seen: FdProfile) -> int:
    named = seen.close_wait + _to_one_peer(seen) + seen.unix_sockets
    return max(0, seen.kinds.get(Kind.SOCKET, 0) - named)


def _of_one_path(seen: FdProfile) -> int:
    """Counts a path only from three times on: two are no pattern."""
    return seen.most_opened.times if seen.most_opened and seen.most_opened.times > 2 else 0


def _other_files(seen: FdProfile) -> int:
    is_device = seen.most_opened is not None and seen.most_opened.path.startswith("/dev/")
    return max(0, seen.kinds.get(Kind.FILE, 0) - (0 if is_device else _of_one_path(seen)))


SIGNATURES = (
    # ---- pipes
    Signature(
        name="dead-dataloader-iterators",
        count=lambda seen: 2 * sum(_loader_pipes(seen)),
        dead=True,
        cause="finished DataLoader iterators are still referenced: their workers have exited, their pipes stay open",
        advice=(
            "drop the iterator after the loop, or keep one loader with persistent_workers=True",
            "find the reference: a list or attribute, a stored exception (its traceback), a reference cycle",
        ),
        remedy=LOADER,
    ),
    Signature(
        name="ended-processes",
        count=lambda seen: _other_dead_ends(seen, both_ways=True),
        dead=True,
        cause="Process or Popen objects of children that have ended are still referenced, with their pipes",
        advice=(
            "call Process.join() and then Process.close(), and drop the object",
            "use `with subprocess.Popen(…)`, or subprocess.run, which close stdin and stdout",
        ),
    ),
    Signature(
        name="unread-output",
        count=lambda seen: _other_dead_ends(seen, both_ways=False),
        dead=True,
        cause="the output of commands that have ended was never read to its end and closed",
        advice=("use `with subprocess.Popen(…)`, Popen.communicate() or subprocess.run(capture_output=True)",),
    ),
    Signature(
        name="queues-never-closed",
        count=lambda seen: 2 * (seen.self_pairs - _loader_pipes(seen)[0]),
        dead=True,
        cause="pipes with both ends in this process: multiprocessing queues or pools that were never closed",
        advice=(
            "call Queue.close() and Queue.join_thread() when done with a queue; close both ends of a Pipe",
            "use `with multiprocessing.Pool(…)` and Pool.join(), or one pool for all jobs",
        ),
        ordinary=32,
    ),
    Signature(
        name="workers-never-joined",
        count=lambda seen: seen.live,
        cause="pipes to processes that are still alive: loaders, pools or workers are started and never ended",
        advice=(
            "make one loader and keep it (persistent_workers=True), or drop its iterator before the next one starts",
            "drop exceptions that a loader raised, or set their __traceback__ to None: it holds the iterator",
            "end workers of your own: Process.join(), `with ProcessPoolExecutor(…)`, Pool.terminate() and Pool.join()",
        ),
        ordinary=4 * MAX_WORKERS + 2,
        remedy=LOADER,
    ),
    Signature(
        name="pipes-not-seen-through",
        count=lambda seen: seen.unknown,
        cause="pipes whose other end could not be inspected: they may be dead or in use",
        advice=("run as root or as a parent of the process to see which pipes are dead",),
        ordinary=4 * MAX_WORKERS + 2,
        remedy=None,
    ),
    # ---- sockets
    Signature(
        name="responses-never-closed",
        count=lambda seen: seen.close_wait,
        dead=True,
        cause="the peer closed these connections (CLOSE_WAIT) and this process did not",
        advice=(
            "use one session (requests.Session, httpx.Client, aiohttp.ClientSession) and close it",
            "close every response: `with session.get(…, stream=True) as response`, or read its body to the end",
        ),
    ),
    Signature(
        name="client-per-call",
        count=_to_one_peer,
        what=lambda seen: seen.established_to.path if seen.established_to else "",
        cause="open connections to one address, {what}: a client is made for every call",
        advice=("make the client once and share it; bound its connection pool",),
        ordinary=64,
    ),
    Signature(
        name="event-loops-never-closed",
        count=_event_loops,
        cause="event loops (an eventpoll and what wakes it) are made and never closed",
        advice=("use asyncio.run, or asyncio.Runner for many calls; call loop.close() on a loop of your own",),
        ordinary=48,
    ),
    Signature(
        name="unix-sockets-kept",
        count=lambda seen: seen.unix_sockets - _loop_sockets(seen),
        cause="Unix sockets stay open: connections to a multiprocessing Manager, a resource sharer or a local service",
        advice=(
            "call Manager.shutdown() (or use `with Manager()`), and close connections when done",
            "keep one connection to a local service instead of one for every call",
        ),
        ordinary=64,
    ),
    Signature(
        name="sockets-never-closed",
        count=_other_sockets,
        cause="sockets, to many addresses or to none, are opened and never closed",
        advice=("use `with socket.socket(…)`, close clients after use, and set timeouts on what a server accepts",),
        ordinary=512,
    ),
    # ---- files and memory
    Signature(
        name="torch-tensors-kept",
        count=lambda seen: seen.torch_shm,
        cause="tensors that came from DataLoader workers are kept: each holds a shared file (/dev/shm/torch_…)",
        advice=(
            "keep tensor.clone() (of an array, array.copy()) instead of what the loader gave",
            'or call torch.multiprocessing.set_sharing_strategy("file_system"), and watch /dev/shm',
        ),
        ordinary=16,
        remedy=LOADER,
    ),
    Signature(
        name="shared-memory-kept",
        count=lambda seen: max(0, seen.shm - seen.torch_shm),
        cause="blocks of shared memory are opened and never closed",
        advice=("call SharedMemory.close() in every process, and SharedMemory.unlink() once",),
        ordinary=16,
    ),
    Signature(
        name="one-path-many-times",
        count=_of_one_path,
        what=lambda seen: seen.most_opened.path if seen.most_opened else "",
        cause="{what} is open many times: it is opened again for every item",
        advice=("open it once in each process and share the handle, or close it after each item (`with open(…)`)",),
        ordinary=16,
        remedy=READ_BOUNDED,
    ),
    Signature(
        name="files-never-closed",
        count=_other_files,
        cause="files are opened and never closed",
        advice=(
            "use `with open(…)`; call Image.load() or close the image; close numpy.load and h5py.File",
            "bound the number of handles that are kept: functools.lru_cache does not close what it drops",
        ),
        ordinary=512,
        remedy=READ_BOUNDED,
    ),
    Signature(
        name="deleted-files-kept",
        count=lambda seen: seen.deleted,
        cause="files are open that have been deleted, and their space is not free: rotated logs, temporary files",
        advice=(
            "reopen logs when they are rotated (logging.handlers.WatchedFileHandler)",
            "use `with tempfile.TemporaryFile()`",
        ),
        ordinary=16,
    ),
    Signature(
        name="memfds-kept",
        count=lambda seen: seen.kinds.get(Kind.MEMFD, 0),
        cause="memory files (memfd) are made and never closed: shared buffers between processes",
        advice=("close the buffer in every process that got it, or use a fixed set of buffers again and again",),
        ordinary=16,
    ),
    Signature(
        name="gpu-handles-kept",
        count=lambda seen: seen.nvidia,
        cause="handles of GPU devices or their buffers (nvidia, dmabuf) are not released",
        advice=(
            "drop CUDA tensors that came from another process: each holds an IPC handle; torch.cuda.ipc_collect()",
            "make one CUDA context in a process, not one for every job",
        ),
        ordinary=256,
        remedy=None,
    ),
    # ---- the rest
    Signature(
        name="watchers-kept",
        count=lambda seen: seen.kinds.get(Kind.INOTIFY, 0),
        cause="a file watcher (inotify) is made for every job and never closed",
        advice=("share one watcher (one watchdog Observer), or call its stop() and join()",),
    ),
    Signature(
        name="eventfds-kept",
        count=lambda seen: max(0, seen.kinds.get(Kind.EVENTFD, 0) - seen.kinds.get(Kind.EVENTPOLL, 0)),
        cause="eventfds are made and never closed: every job makes a notifier, an async context or a GPU fence",
        advice=("call os.close on an os.eventfd when done with it; make one notifier or AIO context and keep it",),
        ordinary=64,
    ),
    Signature(
        name="timerfds-kept",
        count=lambda seen: seen.kinds.get(Kind.TIMERFD, 0),
        cause="timers (timerfd) are made and never closed",
        advice=("use one timer, or a loop's call_later, for all jobs; close a timerfd when its job is done",),
        ordinary=16,
    ),
    Signature(
        name="ptys-kept",
        count=lambda seen: seen.ptys,
        cause="terminals (pty) are opened for every command and never closed",
        advice=("close both descriptors of os.openpty and the one of pty.fork; call close() on a child of pexpect",),
        ordinary=16,
    ),
    Signature(
        name="pidfds-kept",
        count=lambda seen: seen.kinds.get(Kind.PIDFD, 0),
        cause="handles of processes (pidfd) stay open: nobody waited for the child, or called os.close on the pidfd",
        advice=("wait for every child (Popen.wait, `await process.wait()`), and call os.close on a pidfd",),
        ordinary=16,
    ),
    # ---- not descriptors, but limited as well
    Signature(
        name="zombies",
        count=lambda seen: seen.zombies,
        cause="children have ended and nobody waited for them",
        advice=("call Popen.wait() or Process.join() for every child",),
        of="children",
        remedy=None,
    ),
    Signature(
        name="children-never-ended",
        count=lambda seen: max(0, seen.children - seen.zombies),
        cause="child processes are started and never ended",
        advice=("use one pool for all jobs, and end it: `with ProcessPoolExecutor(…)`, Pool.terminate() and join()",),
        ordinary=64,
        of="children",
        remedy=None,
    ),
    Signature(
        name="threads-never-ended",
        count=lambda seen: seen.threads,
        cause="threads are started and never ended",
        advice=("use one pool for all jobs, and end it: `with ThreadPoolExecutor(…)`; call Thread.join()",),
        ordinary=512,
        of="threads",
        remedy=None,
    ),
)
_NEVER_ORDINARY = tuple(row for row in SIGNATURES if not row.ordinary)


def match(profile: FdProfile, grown: FdProfile | None = None) -> Match | None:
    """Returns the signature that explains most of the growth, or, in a single snapshot, most of what is not ordinary.

    A short watch sees no growth of a slow leak: descriptors that no healthy process has are named even then.
    """
    if grown is None:
        return _best(profile, SIGNATURES, seen_once=True)
    return _best(grown, SIGNATURES, seen_once=False) or _best(profile, _NEVER_ORDINARY, seen_once=True)


def is_certain(found: Match) -> bool:
    """Whether a match is a fault by itself, without growth."""
    return any(row.name == found.name for row in _NEVER_ORDINARY)


def _best(seen: FdProfile, rows: Sequence[Signature], *, seen_once: bool) -> Match | None:
    """Tries descriptors first: threads and children that appear with them are a consequence."""
    for counted, total in _totals(seen).items():
        found = [(row.count(seen) - (row.ordinary if seen_once else 0), row) for row in rows if row.of == counted]
        # Dead ones are leaked for sure, live ones may be of a running job: the cause must not change with it.
        dead = max((one for one in found if one[1].dead), key=_excess, default=(0, None))
        excess, row = max(found, key=_excess, default=(0, None))
        if 2 * dead[0] >= excess and dead[0] >= AT_LEAST:
            excess, row = dead
        if row is not None and excess >= max(AT_LEAST, AT_LEAST_PART * total):
            return _match(row, seen, total)
    return None


def _excess(one: tuple[int, Signature | None]) -> int:
    return one[0]


def _totals(seen: FdProfile) -> dict[str, int]:
    """New descriptors may have replaced closed ones: then the kinds add up to more than the total growth."""
    fds = max(seen.fds, sum(seen.kinds.values()))
    return {"descriptors": fds, "children": seen.children, "threads": seen.threads}


def _match(row: Signature, seen: FdProfile, total: int) -> Match:
    count = row.count(seen)
    return Match(
        name=row.name,
        cause=row.cause.replace("{what}", row.what(seen)),
        advice=row.advice,
        count=count,
        dead=count if row.dead else 0,
        share=min(1.0, count / total) if total else 0.0,
        remedy=row.remedy,
    )


# ---- unusable descriptors: a leak consists of them, a working set does not

MANY = 64
_MANY_LOADERS = 8
_MANY_ENDS = 256
_MANY_HALF_OPEN = 1024
_LEAST = 16
# A process that still creates queues and pools after this time is not starting up.
_START_S = 600.0
_NONE = FdProfile(fds=0)


def count_dead(profile: FdProfile) -> int:
    """Counts pipe ends whose other end is closed, pipes within this process, and half-closed connections."""
    return _count_pipes(profile) + profile.close_wait


def _count_pipes(profile: FdProfile) -> int:
    return profile.dead_pipes + 2 * profile.self_pairs


def are_many(profile: FdProfile) -> bool:
    """Whether unusable descriptors are worth mentioning: at least half of all."""
    return count_dead(profile) >= MANY and 2 * count_dead(profile) >= profile.fds


def are_mostly_dead_pipes(profile: FdProfile) -> bool:
    """Whether more than half of all descriptors are unusable pipes: suspicious, but no proof of a leak.

    Fewer than 16 do not count: stdin, stdout and stderr of a process whose parent has died are dead pipes.
    """
    pipes = _dead_pipes_and_pairs(profile)
    return pipes >= _LEAST and 2 * pipes > profile.fds


def _dead_pipes_and_pairs(profile: FdProfile) -> int:
    """Counts pipes within the process only where dead ones are among them: threads may communicate through them."""
    pipes = _count_pipes(profile)
    return pipes if 3 * profile.dead_pipes >= pipes else profile.dead_pipes


def are_most_at_once(profile: FdProfile) -> bool:
    """Whether one snapshot proves a leak: at least half of all are unusable, more than a healthy process ever has."""
    proof = _proven_pipes(profile) + _proven_connections(profile)
    return proof > 0 and 2 * proof >= profile.fds


def _proven_pipes(profile: FdProfile) -> int:
    """Threads may communicate through a pipe within the process: without dead ones such pipes prove nothing.

    A trainer that keeps the finished iterators of its few loaders until the next epoch is healthy, too, and so is a
    batch of processes that have ended and are about to be dropped.
    """
    pipes = _count_pipes(profile)
    loaders = min(profile.self_pairs, profile.hup, profile.err)
    enough = pipes >= MANY and (loaders >= _MANY_LOADERS or profile.dead_pipes >= _MANY_ENDS)
    return pipes if enough and 3 * profile.dead_pipes >= pipes else 0


def _proven_connections(profile: FdProfile) -> int:
    """A pool keeps idle connections that the server closed, and a client may half-close and wait for the answer.

    Neither is a leak, and neither comes to a thousand.
    """
    return profile.close_wait if profile.close_wait >= _MANY_HALF_OPEN else 0


def are_most_of_growth(trend: Trend, profile: FdProfile | None, first: FdProfile | None, match: Match | None) -> bool:
    """Whether unusable descriptors are at least half of the baseline's rise.

    A burst may have begun or ended between the two snapshots, so the smaller of their difference and the baseline's
    rise counts. A single snapshot cannot separate old from new ones, so it needs many.
    """
    if profile is None:
        return match is not None and match.dead >= max(MANY, trend.rise / 2)
    if first is None:
        return _proof_of_growth(profile, _NONE, trend.span_s) >= max(MANY, trend.rise / 2)
    grown = _proof_of_growth(profile, first, trend.span_s)
    return grown >= max(_LEAST, min(profile.fds - first.fds, trend.rise) / 2)


def _proof_of_growth(profile: FdProfile, first: FdProfile, span_s: float) -> int:
    """Counts how many more are unusable.

    During start-up only pipes that were in use and are dead now count: a process then creates queues between threads,
    and more clients bring more half-closed connections.
    """
    if span_s >= _START_S:
        return count_dead(profile) - count_dead(first)
    ends = profile.dead_pipes - first.dead_pipes
    pipes = _count_pipes(profile) - _count_pipes(first)
    return pipes if 3 * ends >= pipes else ends
