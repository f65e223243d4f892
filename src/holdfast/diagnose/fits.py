"""How much of a structure each known cause would explain.

Every function takes a Structure, of what is there or of what grew, and counts what looks like its cause. No two count
the same descriptor, so that the largest of them is the one to name.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..proc.descriptors import Kind
from .facts import Structure

# A loader with more workers than that is rarer than some processes kept beside one wake-up pipe.
MOST_WORKERS = 32
# Of Popen with both pipes, or of a Process, as many ends are for writing as for reading; of Popen's output, none.
_FEW = 4


@dataclass(frozen=True, slots=True)
class Fit:
    """`count` are explained, `dead` of them are of no use to anyone; `what` is the path or address they share."""

    count: int
    dead: int = 0
    what: str = ""


# ---- pipes -------------------------------------------------------------------------------------------------


def _loader_pipes(seen: Structure) -> tuple[int, int]:
    """Of dead loaders: self-pairs, and dead ends each way (self-pairs : HUP : ERR = 1 : W : W for W workers)."""
    each_way = min(seen.hup, seen.err)
    loaders = min(seen.self_pairs, each_way)
    return (loaders, each_way) if each_way <= MOST_WORKERS * loaders else (0, 0)


def _other_dead_ends(seen: Structure) -> tuple[int, int]:
    each_way = _loader_pipes(seen)[1]
    return seen.hup - each_way, seen.err - each_way


def dead_loaders(seen: Structure) -> Fit:
    loaders, each_way = _loader_pipes(seen)
    count = 2 * loaders + 2 * each_way
    return Fit(count, count)


def ended_processes(seen: Structure) -> Fit:
    """Ends for writing among the dead ones: what was opened to talk to a process, not only to hear it."""
    hup, err = _other_dead_ends(seen)
    return Fit(hup + err, hup + err) if err * _FEW > hup else Fit(0)


def unread_output(seen: Structure) -> Fit:
    hup, err = _other_dead_ends(seen)
    return Fit(hup + err, hup + err) if err * _FEW <= hup else Fit(0)


def queues(seen: Structure) -> Fit:
    count = 2 * (seen.self_pairs - _loader_pipes(seen)[0])
    return Fit(count, count)


def live_pipes(seen: Structure) -> Fit:
    return Fit(seen.live)


def unknown_pipes(seen: Structure) -> Fit:
    return Fit(seen.unknown)


# ---- sockets -----------------------------------------------------------------------------------------------


def close_wait(seen: Structure) -> Fit:
    return Fit(seen.close_wait, seen.close_wait)


def one_peer(seen: Structure) -> Fit:
    return Fit(seen.established_to.times, what=seen.established_to.path) if seen.established_to else Fit(0)


def event_loops(seen: Structure) -> Fit:
    """asyncio's loop is an eventpoll and a pair of Unix sockets; others wake theirs by an eventfd."""
    loops = seen.kinds.get(Kind.EVENTPOLL, 0)
    wakers = min(seen.kinds.get(Kind.EVENTFD, 0), loops)
    return Fit(loops + _loop_sockets(seen) + wakers)


def _loop_sockets(seen: Structure) -> int:
    return min(seen.unix_sockets, 2 * seen.kinds.get(Kind.EVENTPOLL, 0))


def unix_sockets(seen: Structure) -> Fit:
    return Fit(seen.unix_sockets - _loop_sockets(seen))


def other_sockets(seen: Structure) -> Fit:
    named = seen.close_wait + one_peer(seen).count + seen.unix_sockets
    return Fit(max(0, seen.kinds.get(Kind.SOCKET, 0) - named))


# ---- files and memory --------------------------------------------------------------------------------------


def torch_tensors(seen: Structure) -> Fit:
    return Fit(seen.torch_shm)


def shared_memory(seen: Structure) -> Fit:
    return Fit(max(0, seen.shm - seen.torch_shm))


def one_path(seen: Structure) -> Fit:
    """Twice is no pattern: then each of them is a file among others."""
    most = seen.most_opened
    return Fit(most.times, what=most.path) if most and most.times > 2 else Fit(0)


def files(seen: Structure) -> Fit:
    named = one_path(seen)
    taken = 0 if named.what.startswith("/dev/") else named.count
    return Fit(max(0, seen.kinds.get(Kind.FILE, 0) - taken))


def deleted_files(seen: Structure) -> Fit:
    return Fit(seen.deleted)


def memfds(seen: Structure) -> Fit:
    return Fit(seen.kinds.get(Kind.MEMFD, 0))


def gpu_handles(seen: Structure) -> Fit:
    return Fit(seen.nvidia)


# ---- the rest ----------------------------------------------------------------------------------------------


def inotify(seen: Structure) -> Fit:
    return Fit(seen.kinds.get(Kind.INOTIFY, 0))


def pidfds(seen: Structure) -> Fit:
    return Fit(seen.kinds.get(Kind.PIDFD, 0))


def zombies(seen: Structure) -> Fit:
    return Fit(seen.zombies)


def live_children(seen: Structure) -> Fit:
    return Fit(max(0, seen.children - seen.zombies))


def threads(seen: Structure) -> Fit:
    return Fit(seen.threads)
