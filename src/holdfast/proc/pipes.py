"""Who is at the other end of a pipe: this process itself, another one, or nobody any more.

Ends are paired by inode over the processes looked at. Of an end without a partner there the kernel is asked by poll:
the far end may be held by a process outside, or be on its way through a socket. Only poll can say that it is dead.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from .._native.look import compiled
from .descriptors import Descriptor, Kind
from .fate import Fate as Fate
from .poll import Answer
from .procfs import ProcFS

_READ_WRITE = stat.S_IRUSR | stat.S_IWUSR
_ACCESS = {0: "", stat.S_IRUSR: "r", stat.S_IWUSR: "w", _READ_WRITE: "rw"}
_PIPE = Kind.PIPE  # finding a member of an enum by its name is slow
_SELF, _ALIVE, _DEAD, _UNKNOWN = _FATES = tuple(Fate)
_new_tuple = tuple.__new__

# The access of a process's ends (fd -> r, w, rw), and what poll says of those without a partner. An fd that is left out
# is unknown.
Access = Callable[[int, Sequence[int]], Mapping[int, str]]
Poller = Callable[[int, Sequence[int]], Mapping[int, Answer]]
Pipes = Sequence[tuple[int, int]]  # fd and inode
Holders = Mapping[str, Mapping[int, set[int]]]  # by access and inode: which processes have that end


class PipeEnd(NamedTuple):
    """`peers` are the other processes with the far end; none, and alive: a process that was not looked at has it.

    `access` is `r`, `w`, `rw`, or "" if unknown.
    """

    pid: int
    fd: int
    inode: int
    access: str
    fate: Fate
    peers: tuple[int, ...] = ()


def read_access(procfs: ProcFS, pid: int, fds: Sequence[int]) -> dict[int, str]:
    """A link's own permissions tell what its descriptor was opened for; fdinfo would cost an open and a read."""
    modes = procfs.read_modes(f"/proc/{pid}/fd", list(map(str, fds)))
    return {fd: _ACCESS[mode & _READ_WRITE] for fd, mode in zip(fds, modes, strict=True) if mode}


def pair_pipes(
    tables: Mapping[int, Iterable[Descriptor]], access: Access, poll: Poller | None = None
) -> dict[int, list[PipeEnd]]:
    """Every pipe end of these processes by pid, in the order of their fds.

    Poll tells the access as well: it is asked for beforehand only of ends that may have a partner.
    """
    return pair(tables, access, poll)


def _pair_compiled(
    tables: Mapping[int, Iterable[Descriptor]], access: Access, poll: Poller | None
) -> dict[int, list[PipeEnd]]:
    return compiled.pair_pipes(tables, access, poll, _PIPE, PipeEnd, _FATES)


def _pair(tables: Mapping[int, Iterable[Descriptor]], access: Access, poll: Poller | None) -> dict[int, list[PipeEnd]]:
    pipes = {
        pid: [(fd, inode or 0) for fd, kind, _, inode, _ in table if kind is _PIPE] for pid, table in tables.items()
    }
    times = Counter([inode for ends in pipes.values() for _, inode in ends])
    known = {pid: access(pid, [fd for fd, inode in ends if times[inode] > 1]) for pid, ends in pipes.items()}
    holders = _find_holders(pipes, known)
    found = {}
    for pid, ends in pipes.items():
        far = _far_holders(ends, known[pid], holders)
        alone = [fd for fd, _ in ends if fd not in far]
        answers = poll(pid, alone) if poll and alone else {}
        more = access(pid, [fd for fd in alone if fd not in answers and fd not in known[pid]])
        found[pid] = _judge(pid, ends, far, answers, {**known[pid], **more})
    return found


def _find_holders(pipes: Mapping[int, Pipes], known: Mapping[int, Mapping[int, str]]) -> Holders:
    holders: dict[str, dict[int, set[int]]] = {"r": {}, "w": {}}
    for pid, ends in pipes.items():
        ways = known[pid]
        for fd, inode in ends:
            for way in ways.get(fd, ""):
                if inode in (there := holders[way]):
                    there[inode].add(pid)
                else:
                    there[inode] = {pid}
    return holders


def _far_holders(ends: Pipes, known: Mapping[int, str], holders: Holders) -> dict[int, set[int]]:
    """Which processes have the far end of each; an end of which none is known to have it is left out."""
    far_of = {"r": holders["w"], "w": holders["r"]}
    found = {}
    for fd, inode in ends:
        way = known.get(fd)
        if way == "rw":
            found[fd] = holders["r"][inode] | holders["w"][inode]
        elif way and inode in far_of[way]:
            found[fd] = far_of[way][inode]
    return found


def _judge(
    pid: int,
    ends: Pipes,
    far: Mapping[int, set[int]],
    answers: Mapping[int, Answer],
    ways: Mapping[int, str],
) -> list[PipeEnd]:
    here = {pid}
    found = []
    for fd, inode in ends:
        peers: tuple[int, ...] = ()
        if fd in answers:
            way, dead = answers[fd]
            fate = _DEAD if dead else _SELF if way == "rw" else _ALIVE  # that one is its own far end
        elif fd in far:
            way, fate = ways[fd], _SELF
            if far[fd] != here:
                fate, peers = _ALIVE, tuple(sorted(far[fd] - here))
        else:
            way = ways.get(fd, "")
            fate = _SELF if way == "rw" else _UNKNOWN
        found.append(_new_tuple(PipeEnd, (pid, fd, inode, way, fate, peers)))
    return found


pair = _pair_compiled if compiled else _pair
