"""Recognises known causes of leaks by the descriptors they leave open.

A signature is a row of `SIGNATURES`: a matcher that counts the descriptors it explains in an `FdProfile` (of all
descriptors, or of the new ones), the cause, and advice. No two matchers count the same descriptor, so the one with the
largest count names the cause. A new signature needs a program under tests/leaky_programs, with a clean counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..procfs.descriptors import Kind
from .model import FdProfile, Match, Trend
from .remedies import FIND_LEAK, LOADER, READ_BOUNDED, Remedy

# More dead ends per internal pipe than this are rarely one loader with that many workers.
MOST_WORKERS = 32
# Popen with stdin and stdout, or a Process, leaves as many write ends as read ends; unread output leaves no write ends.
_FEW = 4


@dataclass(frozen=True, slots=True)
class Matcher:
    """`count` descriptors are explained, `dead` of them are unusable; `what` is the path or address they share."""

    count: int
    dead: int = 0
    what: str = ""


# ---- pipes


def _loader_pipes(seen: FdProfile) -> tuple[int, int]:
    """Counts finished loaders and dead ends each way: one with W workers leaves self_pairs : hup : err = 1 : W : W."""
    each_way = min(seen.hup, seen.err)
    loaders = min(seen.self_pairs, each_way)
    return (loaders, each_way) if each_way <= MOST_WORKERS * loaders else (0, 0)


def _other_dead_ends(seen: FdProfile) -> tuple[int, int]:
    each_way = _loader_pipes(seen)[1]
    return seen.hup - each_way, seen.err - each_way


def dead_loaders(seen: FdProfile) -> Matcher:
    loaders, each_way = _loader_pipes(seen)
    count = 2 * loaders + 2 * each_way
    return Matcher(count, count)


def ended_processes(seen: FdProfile) -> Matcher:
    """Dead ends with a share of write ends: pipes in both directions, not only a command's output."""
    hup, err = _other_dead_ends(seen)
    return Matcher(hup + err, hup + err) if err * _FEW > hup else Matcher(0)


def unread_output(seen: FdProfile) -> Matcher:
    hup, err = _other_dead_ends(seen)
    return Matcher(hup + err, hup + err) if err * _FEW <= hup else Matcher(0)


def queues(seen: FdProfile) -> Matcher:
    count = 2 * (seen.self_pairs - _loader_pipes(seen)[0])
    return Matcher(count, count)


def live_pipes(seen: FdProfile) -> Matcher:
    return Matcher(seen.live)


def unknown_pipes(seen: FdProfile) -> Matcher:
    return Matcher(seen.unknown)


# ---- sockets


def close_wait(seen: FdProfile) -> Matcher:
    return Matcher(seen.close_wait, seen.close_wait)


def one_peer(seen: FdProfile) -> Matcher:
    return Matcher(seen.established_to.times, what=seen.established_to.path) if seen.established_to else Matcher(0)


def event_loops(seen: FdProfile) -> Matcher:
    """An asyncio loop is an eventpoll and a pair of Unix sockets; other loops are woken by an eventfd."""
    loops = seen.kinds.get(Kind.EVENTPOLL, 0)
    wakers = min(seen.kinds.get(Kind.EVENTFD, 0), loops)
    return Matcher(loops + _loop_sockets(seen) + wakers)


def _loop_sockets(seen: FdProfile) -> int:
    return min(seen.unix_sockets, 2 * seen.kinds.get(Kind.EVENTPOLL, 0))


def unix_sockets(seen: FdProfile) -> Matcher:
    return Matcher(seen.unix_sockets - _loop_sockets(seen))


def other_sockets(seen: FdProfile) -> Matcher:
    named = seen.close_wait + one_peer(seen).count + seen.unix_sockets
    return Matcher(max(0, seen.kinds.get(Kind.SOCKET, 0) - named))


# ---- files and memory


def torch_tensors(seen: FdProfile) -> Matcher:
    return Matcher(seen.torch_shm)


def shared_memory(seen: FdProfile) -> Matcher:
    return Matcher(max(0, seen.shm - seen.torch_shm))


def one_path(seen: FdProfile) -> Matcher:
    """Counts a path only from three times on: two are no pattern."""
    most = seen.most_opened
    return Matcher(most.times, what=most.path) if most and most.times > 2 else Matcher(0)


def files(seen: FdProfile) -> Matcher:
    named = one_path(seen)
    taken = 0 if named.what.startswith("/dev/") else named.count
    return Matcher(max(0, seen.kinds.get(Kind.FILE, 0) - taken))


def deleted_files(seen: FdProfile) -> Matcher:
    return Matcher(seen.deleted)


def memfds(seen: FdProfile) -> Matcher:
    return Matcher(seen.kinds.get(Kind.MEMFD, 0))


def gpu_handles(seen: FdProfile) -> Matcher:
    return Matcher(seen.nvidia)


# ---- the rest


def inotify(seen: FdProfile) -> Matcher:
    return Matcher(seen.kinds.get(Kind.INOTIFY, 0))


def pidfds(seen: FdProfile) -> Matcher:
    return Matcher(seen.kinds.get(Kind.PIDFD, 0))


def zombies(seen: FdProfile) -> Matcher:
    return Matcher(seen.zombies)


def live_children(seen: FdProfile) -> Matcher:
    return Matcher(max(0, seen.children - seen.zombies))


def threads(seen: FdProfile) -> Matcher:
    return Matcher(seen.threads)


# The table of what leaks look like: a row is a cause, how to tell it, and what to do.
#
# A new row needs a function above that counts what it explains, and a program under tests/leaky_programs that leaks on
# purpose, with a clean counterpart that does the same work without the leak.

# A signature must explain at least this many descriptors, and this part of all.
AT_LEAST = 16
AT_LEAST_PART = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """`ordinary` is how many a healthy process may have: in a single snapshot only more than that count.

    `{what}` in the cause becomes the shared path or address. `of` names what is counted.
    """

    name: str
    fits: Callable[[FdProfile], Matcher]
    cause: str
    advice: tuple[str, ...]
    ordinary: int = 0
    of: str = "descriptors"
    remedy: Remedy | None = None


SIGNATURES = (
    # ---- pipes
    Signature(
        name="dead-dataloader-iterators",
        fits=dead_loaders,
        cause="finished DataLoader iterators are still referenced: their workers have exited, their pipes stay open",
        advice=(
            "drop the iterator after the loop, or keep one loader with persistent_workers=True",
            "find the reference: a list or attribute, a stored exception (its traceback), a reference cycle",
        ),
        remedy=LOADER,
    ),
    Signature(
        name="ended-processes",
        fits=ended_processes,
        cause="Process or Popen objects of children that have ended are still referenced, with their pipes",
        advice=(
            "call Process.join() and then Process.close(), and drop the object",
            "use `with subprocess.Popen(…)`, or subprocess.run, which close stdin and stdout",
        ),
        remedy=FIND_LEAK,
    ),
    Signature(
        name="unread-output",
        fits=unread_output,
        cause="the output of commands that have ended was never read to its end and closed",
        advice=("use `with subprocess.Popen(…)`, Popen.communicate() or subprocess.run(capture_output=True)",),
        remedy=FIND_LEAK,
    ),
    Signature(
        name="queues-never-closed",
        fits=queues,
        cause="pipes with both ends in this process: multiprocessing queues or pools that were never closed",
        advice=(
            "call Queue.close() and Queue.join_thread() when done with a queue; close both ends of a Pipe",
            "use `with multiprocessing.Pool(…)` and Pool.join(), or one pool for all jobs",
        ),
        ordinary=32,
        remedy=FIND_LEAK,
    ),
    Signature(
        name="workers-never-joined",
        fits=live_pipes,
        cause="pipes to processes that are still alive: loaders, pools or workers are started and never ended",
        advice=(
            "make one loader and keep it (persistent_workers=True), or drop its iterator before the next one starts",
            "drop exceptions that a loader raised, or set their __traceback__ to None: it holds the iterator",
            "end workers of your own: Process.join(), `with ProcessPoolExecutor(…)`, Pool.terminate() and Pool.join()",
        ),
        ordinary=4 * MOST_WORKERS + 2,
        remedy=LOADER,
    ),
    Signature(
        name="pipes-not-seen-through",
        fits=unknown_pipes,
        cause="pipes whose other end could not be inspected: they may be dead or in use",
        advice=("run as root or as a parent of the process to see which pipes are dead",),
        ordinary=4 * MOST_WORKERS + 2,
    ),
    # ---- sockets
    Signature(
        name="responses-never-closed",
        fits=close_wait,
        cause="the peer closed these connections (CLOSE_WAIT) and this process did not",
        advice=(
            "use one session (requests.Session, httpx.Client, aiohttp.ClientSession) and close it",
            "close every response: `with session.get(…, stream=True) as response`, or read its body to the end",
        ),
        remedy=FIND_LEAK,
    ),
    Signature(
        name="client-per-call",
        fits=one_peer,
        cause="open connections to one address, {what}: a client is made for every call",
        advice=("make the client once and share it; bound its connection pool",),
        ordinary=64,
        remedy=FIND_LEAK,
    ),
    Signature(
        name="event-loops-never-closed",
        fits=event_loops,
        cause="event loops (an eventpoll and what wakes it) are made and never closed",
        advice=("use asyncio.run, or asyncio.Runner for many calls; call loop.close() on a loop of your own",),
        ordinary=48,
        remedy=FIND_LEAK,
    ),
    Signature(
        name="unix-sockets-kept",
        fits=unix_sockets,
        cause="Unix sockets stay open: connections to a multiprocessing Manager, a resource sharer or a local service",
        advice=(
            "call Manager.shutdown() (or use `with Manager()`), and close connections when done",
            "keep one connection to a local service instead of one for every call",
        ),
        ordinary=64,
        remedy=FIND_LEAK,
    ),
    Signature(
        name="sockets-never-closed",
        fits=other_sockets,
        cause="sockets, to many addresses or to none, are opened and never closed",
        advice=("use `with socket.socket(…)`, close clients after use, and set timeouts on what a server accepts",),
        ordinary=512,
        remedy=FIND_LEAK,
    ),
    # ---- files and memory
    Signature(
        name="torch-tensors-kept",
        fits=torch_tensors,
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
        fits=shared_memory,
        cause="blocks of shared memory are opened and never closed",
        advice=("call SharedMemory.close() in every process, and SharedMemory.unlink() once",),
        ordinary=16,
        remedy=FIND_LEAK,
    ),
    Signature(
        name="one-path-many-times",
        fits=one_path,
        cause="{what} is open many times: it is opened again for every item",
        advice=("open it once in each process and share the handle, or close it after each item (`with open(…)`)",),
        ordinary=16,
        remedy=READ_BOUNDED,
    ),
    Signature(
        name="files-never-closed",
        fits=files,
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
        fits=deleted_files,
        cause="files are open that have been deleted, and their space is not free: rotated logs, temporary files",
        advice=(
            "reopen logs when they are rotated (logging.handlers.WatchedFileHandler)",
            "use `with tempfile.TemporaryFile()`",
        ),
        ordinary=16,
        remedy=FIND_LEAK,
    ),
    Signature(
        name="memfds-kept",
        fits=memfds,
        cause="memory files (memfd) are made and never closed: shared buffers between processes",
        advice=("close the buffer in every process that got it, or use a fixed set of buffers again and again",),
        ordinary=16,
        remedy=FIND_LEAK,
    ),
    Signature(
        name="gpu-handles-kept",
        fits=gpu_handles,
        cause="handles of GPU devices or their buffers (nvidia, dmabuf) are not released",
        advice=(
            "drop CUDA tensors that came from another process: each holds an IPC handle; torch.cuda.ipc_collect()",
            "make one CUDA context in a process, not one for every job",
        ),
        ordinary=256,
    ),
    # ---- the rest
    Signature(
        name="watchers-kept",
        fits=inotify,
        cause="a file watcher (inotify) is made for every job and never closed",
        advice=("share one watcher (one watchdog Observer), or call its stop() and join()",),
        remedy=FIND_LEAK,
    ),
    Signature(
        name="pidfds-kept",
        fits=pidfds,
        cause="handles of processes (pidfd) stay open: nobody waited for the child, or called os.close on the pidfd",
        advice=("wait for every child (Popen.wait, `await process.wait()`), and call os.close on a pidfd",),
        ordinary=16,
        remedy=FIND_LEAK,
    ),
    # ---- not descriptors, but limited as well
    Signature(
        name="zombies",
        fits=zombies,
        cause="children have ended and nobody waited for them",
        advice=("call Popen.wait() or Process.join() for every child",),
        of="children",
    ),
    Signature(
        name="children-never-ended",
        fits=live_children,
        cause="child processes are started and never ended",
        advice=("use one pool for all jobs, and end it: `with ProcessPoolExecutor(…)`, Pool.terminate() and join()",),
        ordinary=64,
        of="children",
    ),
    Signature(
        name="threads-never-ended",
        fits=threads,
        cause="threads are started and never ended",
        advice=("use one pool for all jobs, and end it: `with ThreadPoolExecutor(…)`; call Thread.join()",),
        ordinary=512,
        of="threads",
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
        found = [(row, row.fits(seen), row.ordinary if seen_once else 0) for row in rows if row.of == counted]
        found = [one for one in found if one[1].count - one[2] >= max(AT_LEAST, AT_LEAST_PART * total)]
        if found:
            row, fit, _ = max(found, key=lambda one: one[1].count - one[2])
            return _match(row, fit, total)
    return None


def _totals(seen: FdProfile) -> dict[str, int]:
    """New descriptors may have replaced closed ones: then the kinds add up to more than the total growth."""
    fds = max(seen.fds, sum(seen.kinds.values()))
    return {"descriptors": fds, "children": seen.children, "threads": seen.threads}


def _match(row: Signature, fit: Matcher, total: int) -> Match:
    return Match(
        name=row.name,
        cause=row.cause.replace("{what}", fit.what),
        advice=row.advice,
        count=fit.count,
        dead=fit.dead,
        share=min(1.0, fit.count / total) if total else 0.0,
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
