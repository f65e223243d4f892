"""Samples this process without a free descriptor: what it reads is opened when the guard starts."""

from __future__ import annotations

import contextlib
import math
import os
import resource
from collections import Counter

from ..._util.fds import OwnFd, Reserve
from ...procfs.descriptors import count, scan
from ...procfs.limits import count_threads, memory_limit, number_after
from ...procfs.peers import find_pipe_ends, name_sockets
from ...procfs.processes import Process, descendants, parse_statm, read_parents, read_process
from ...procfs.procfs import REAL, read_or_none
from ...procfs.snapshot import ProcessSnapshot
from ..doctor.fd_profile import profile_of
from ..doctor.model import FdProfile

# Listing /proc takes one, reading a file in it another. The third is for a thread that takes one first.
_KEPT = 3


class OwnProcess:
    """Counts of this process. Its four descriptors stay open until `close`."""

    def __init__(self) -> None:
        self.pid = REAL.own_pid() or os.getpid()
        self._statm = _open_statm()
        try:
            self._reserve = Reserve(_KEPT)
        except BaseException:
            self._statm.close()
            raise
        self._counts_in_stat = os.stat("/proc/self/fd").st_size > 0  # since Linux 6.2

    @property
    def fds_held(self) -> tuple[int, ...]:
        return self._statm.number, *self._reserve.fds

    @property
    def read_only_fd(self) -> int:
        """The number of a descriptor that nothing can be written to; -1 if there is none."""
        if (fd := self._statm.number) < 0:  # the program closed all descriptors
            with contextlib.suppress(OSError), self._reserve.spend():
                self._statm = _open_statm()
                fd = self._statm.number
        return fd

    def count_fds(self) -> int:
        if self._counts_in_stat:
            return os.stat("/proc/self/fd").st_size
        return count(REAL, self.pid) or 0

    @property
    def counts_quickly(self) -> bool:
        """Whether counting takes microseconds, however many descriptors are open."""
        return self._counts_in_stat

    def rss_bytes(self) -> int:
        with contextlib.suppress(OSError):
            return parse_statm(os.pread(self.read_only_fd, 256, 0).decode("ascii", "replace")) or 0
        return 0

    def threads(self) -> int:
        return count_threads(REAL, self.pid) or 0

    def age_s(self) -> float:
        """Returns the time since the process was started; 0 if it cannot be read."""
        seen = read_process(REAL, self.pid)
        return (seen.uptime_s if seen is not None else None) or 0.0

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
        self._statm.close()


def _open_statm() -> OwnFd:
    return OwnFd(os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC))
