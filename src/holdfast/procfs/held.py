"""A ProcFS that keeps open what will be needed when no descriptor is free any more."""

from __future__ import annotations

import os

from .._util.process import call_after_fork
from .procfs import REAL, RealProcFS, read_all

OWN = ("stat", "statm", "cmdline", "limits", "cgroup")
HOST = ("/proc/uptime", "/proc/loadavg", "/proc/sys/fs/file-nr")


class HeldProcFS(RealProcFS):
    """Holds this process's own files and some of the machine's; reads them by pread, which opens nothing.

    A held file of `/proc/PID` goes on telling of PID: in a forked child all are let go, and read by opening them again.
    """

    def __init__(self, more: tuple[str, ...] = ()) -> None:
        self._fds: dict[str, int] = {}
        own = REAL.own_pid()
        paths = [f"/proc/{own}/{name}" for name in OWN] if own is not None else []
        for path in (*paths, *HOST, *more):
            try:
                self._fds[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue  # this kernel has no such file, or it may not be read: unknown then as now
        call_after_fork(self)

    def read_text(self, path: str) -> str:
        fd = self._fds.get(path)
        return super().read_text(path) if fd is None else read_all(fd)

    def close(self) -> None:
        """Safe to call twice. It can be used afterwards, as one that holds nothing."""
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)

    def after_fork_in_child(self) -> None:
        self.close()

    def __enter__(self) -> HeldProcFS:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
