"""Samples this process without a free descriptor: what it reads is opened when the guard starts."""

from __future__ import annotations

import contextlib
import math
import os
import resource
from collections import Counter

from .._util.fds import Reserve
from ..doctor.fd_profile import profile_of
from ..doctor.model import FdProfile
from ..procfs.descriptors import count, scan
from ..procfs.limits import count_threads, memory_limit, number_after
from ..procfs.peers import find_pipe_ends, name_sockets
from ..procfs.processes import Process, descendants, parse_statm, read_parents
from ..procfs.procfs import REAL, read_or_none, readlink_or_none
from ..procfs.snapshot import ProcessSnapshot

# Listing /proc takes one, reading a file in it another. The third is for a thread that takes one first.
_KEPT = 3


class OwnProcess:
    """Counts of this process. Its four descriptors stay open until `close`."""

    def __init__(self) -> None:
        self.pid = REAL.own_pid() or os.getpid()
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._reserve = Reserve(_KEPT)
        except BaseException:
            os.close(self._statm)
            raise
        self._counts_in_stat = os.stat("/proc/self/fd").st_size > 0  # since Linux 6.2

    @property
    def fds_held(self) -> tuple[int, ...]:
        return self._statm, *self._reserve.fds

    def count_fds(self) -> int:
        if self._counts_in_stat:
            return os.stat("/proc/self/fd").st_size
        return count(REAL, self.pid) or 0

    @property
    def counts_quickly(self) -> bool:
        """Whether counting takes microseconds, however many descriptors are open."""
        return self._counts_in_stat

    def rss_bytes(self) -> int:
        found = None
        with contextlib.suppress(OSError):
            found = parse_statm(os.pread(self._statm, 256, 0).decode("ascii", "replace"))
        if found is None:  # the program closed all descriptors, as a daemon does
            with self._reserve.spend():
                found = parse_statm(read_or_none(REAL, "/proc/self/statm") or "")
        return found or 0

    def threads(self) -> int:
        return count_threads(REAL, self.pid) or 0

    @staticmethod
    def fd_limits() -> tuple[int | None, int | None]:
        """Returns the soft and the hard limit; None: unlimited."""
        soft, hard = (None if one < 0 else one for one in resource.getrlimit(resource.RLIMIT_NOFILE))
        return soft, hard

    def profile(self) -> tuple[ProcessSnapshot, FdProfile]:
        """Scans all descriptors: kinds, dead pipes, most opened paths."""
        self._reserve.refill()  # another thread may have taken what was spent last time
        with self._reserve.spend(), self._reserve.spend():
            tables = {self.pid: scan(REAL, self.pid)}
            sockets, pipes = name_sockets(REAL, tables), find_pipe_ends(REAL, tables)
        table = tables[self.pid] or []
        found = ProcessSnapshot(
            process=Process(pid=self.pid, threads=self.threads()),
            fd_count=len(table),
            descriptors=tuple(table),
            ends=tuple(pipes.get(self.pid, ())),
            socket_ends=tuple(sockets.get(self.pid, ())),
            limits=(),
        )
        return found, profile_of(found)

    def tree(self) -> tuple[list[int], int] | None:
        """Returns the pids of all descendants and the number of direct children; None if /proc cannot be listed."""
        self._reserve.refill()
        with self._reserve.spend(), self._reserve.spend():
            parents = read_parents(REAL)
        if self.pid not in parents:
            return None
        return descendants(parents, self.pid), Counter(parents.values())[self.pid]

    def rss_of(self, pids: list[int]) -> int:
        """Sums the resident size of other processes; memory that they share counts once for each."""
        with self._reserve.spend():
            return sum(parse_statm(read_or_none(REAL, f"/proc/{pid}/statm") or "") or 0 for pid in pids)

    def pss_of(self, pids: list[int]) -> int:
        """Sums the proportional size of processes: shared memory counts once. It costs milliseconds for each."""
        total = 0
        for pid in pids:
            with self._reserve.spend():
                kib = number_after(read_or_none(REAL, f"/proc/{pid}/smaps_rollup") or "", "Pss:")
            total += self.rss_of([pid]) if kib is None else kib * 1024  # it may be another user's
        return total

    def memory_limit(self) -> int | None:
        """Returns the memory limit of the cgroup, at most the memory of the machine."""
        kib = number_after(read_or_none(REAL, "/proc/meminfo") or "", "MemTotal:")
        bounds = [memory_limit(REAL, self.pid).soft, None if kib is None else kib * 1024]
        known = [int(one) for one in bounds if one is not None and one != math.inf]
        return min(known, default=None)

    def close(self) -> None:
        self._reserve.close()
        fd, self._statm = self._statm, -1
        # A file of the program may have its number now.
        if fd >= 0 and (readlink_or_none(REAL, f"/proc/self/fd/{fd}") or "").endswith("/statm"):
            os.close(fd)
