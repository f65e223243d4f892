"""Reads the descendants of a process, and signals them by pidfd, so that a reused pid is never hit."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable

from ....procfs.processes import Identity, Stat, descendants, read_parents, read_stat
from ....procfs.procfs import REAL, read_or_none

_MAX = 20_000
_ZOMBIE = frozenset("ZX")
Tree = dict[int, Stat]


def read_tree(root: int) -> Tree:
    """Returns the descendants of a process, each after its parent. Zombies are left out.

    The kernel lists the children of each thread, so that the cost depends on the tree and not on the machine. A kernel
    built without that list has all processes read.
    """
    if not os.path.exists("/proc/thread-self/children"):
        found = {pid: read_stat(REAL, pid) for pid in descendants(read_parents(REAL), root)}
        return {pid: stat for pid, stat in found.items() if stat is not None and stat.state not in _ZOMBIE}
    tree: Tree = {}
    waiting = [(root, 2)]  # the number of threads of the root is not known: all are listed
    seen = {root}
    while waiting and len(tree) < _MAX:
        pid, threads = waiting.pop()
        for child in _children(pid, threads):
            if child in seen:
                continue
            seen.add(child)
            stat = read_stat(REAL, child)
            if stat is not None and stat.state not in _ZOMBIE:
                tree[child] = stat
                waiting.append((child, stat.threads))
    return tree


def _children(pid: int, threads: int) -> list[int]:
    tasks = [str(pid)]
    if threads != 1:
        with contextlib.suppress(OSError):
            tasks = os.listdir(f"/proc/{pid}/task")
    texts = (read_or_none(REAL, f"/proc/{pid}/task/{task}/children") for task in tasks)
    return [int(word) for text in texts for word in (text or "").split()]


def own_children() -> list[int]:
    """Returns the children of this process, zombies too."""
    if os.path.exists("/proc/thread-self/children"):
        return _children(os.getpid(), 2)
    own = os.getpid()
    return [pid for pid, parent in read_parents(REAL).items() if parent == own]


def identities(tree: Tree) -> list[Identity]:
    return [Identity(pid, stat.start_ticks) for pid, stat in tree.items()]


def signal_process(process: Identity, number: int) -> bool:
    """Signals a process. Returns False if it is gone, or belongs to another user."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        seen = read_stat(REAL, process.pid)  # after pidfd_open: from now on the pid cannot become another process's
        if seen is None or seen.start_ticks != process.start_ticks or seen.state in _ZOMBIE:
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def signal_all(processes: Iterable[Identity], number: int) -> int:
    """Signals processes and returns how many got it."""
    return sum([signal_process(process, number) for process in processes])


def kill_tree(root: int) -> int:
    """Sends SIGKILL to all descendants of a process, and to those that they start meanwhile; returns how many."""
    killed: set[Identity] = set()
    for _ in range(20):
        fresh = set(identities(read_tree(root))) - killed
        if not fresh:
            break
        signal_all(fresh, signal.SIGKILL)
        killed |= fresh
    return len(killed)
