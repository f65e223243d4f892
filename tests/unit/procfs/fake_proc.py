"""A `/proc` in memory: old kernels, other users and processes that end between two looks, at will."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.procfs.procfs import UnixRow, readlink_or_none, stat_or_none


@dataclass
class FakeStat:
    st_mode: int = stat.S_IFDIR | 0o555
    st_dev: int = 1
    st_ino: int = 1
    st_nlink: int = 3
    st_uid: int = 1000
    st_size: int = 0


@dataclass
class FakeStatvfs:
    f_frsize: int = 4096
    f_blocks: int = 100
    f_bfree: int = 75


def oserror(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


@dataclass
class FakeProc:
    """`files` maps paths to text, `links` to (target, mode); `denied` paths answer EACCES, `full` stands for EMFILE."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, tuple[str, int]] = field(default_factory=dict)
    stats: dict[str, FakeStat] = field(default_factory=dict)
    rlimits: dict[int, tuple[int, int]] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    shown: dict[str, list[str]] = field(default_factory=dict)  # listings that are out of date
    modern: bool = True
    full: bool = False
    own: int | None = None
    peers: dict[int, int] = field(default_factory=dict)  # of Unix sockets, by inode

    def _may(self, path: str, *, opens: bool) -> None:
        if any(path == one or path.startswith(one + "/") for one in self.denied):
            raise oserror(errno.EACCES, path)
        if opens and self.full:
            raise oserror(errno.EMFILE, path)

    def read_text(self, path: str) -> str:
        self._may(path, opens=True)
        if path not in self.files:
            raise oserror(errno.ENOENT, path)
        return self.files[path]

    def _children(self, path: str) -> list[str]:
        everything = [*self.files, *self.links, *self.stats]
        return sorted({one[len(path) + 1 :].split("/")[0] for one in everything if one.startswith(path + "/")})

    def listdir(self, path: str) -> list[str]:
        self._may(path, opens=True)
        names = self.shown.get(path) or self._children(path)
        if not names and path not in self.stats:
            raise oserror(errno.ENOENT, path)
        return names

    def readlink(self, path: str) -> str:
        self._may(path, opens=False)
        if path not in self.links:
            raise oserror(errno.ENOENT, path)
        return self.links[path][0]

    def read_targets(self, folder: str, names: Sequence[str]) -> list[str]:
        return [readlink_or_none(self, f"{folder}/{name}") or "" for name in names]

    def read_modes(self, folder: str, names: Sequence[str]) -> list[int]:
        found = [stat_or_none(self, f"{folder}/{name}", follow=False) for name in names]
        return [one.st_mode if one else 0 for one in found]

    def unix_rows(self) -> dict[int, UnixRow]:
        return {inode: UnixRow(inode, 1, 1, peer, 0) for inode, peer in self.peers.items()}

    def stat(self, path: str, *, follow: bool = True) -> FakeStat:
        if not follow and path in self.links:
            return FakeStat(st_mode=stat.S_IFLNK | self.links[path][1])
        if path in self.stats:
            return self.stats[path]
        children = self._children(path)
        if not children and path not in self.files:
            raise oserror(errno.ENOENT, path)
        size = len(children) if self.modern and path.endswith("/fd") else 0
        return FakeStat(st_size=size)

    def statvfs(self, path: str) -> FakeStatvfs:
        if path != "/dev/shm":
            raise oserror(errno.ENOENT, path)
        return FakeStatvfs()

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.links or bool(self._children(path))

    def rlimit(self, pid: int, which: int) -> tuple[int, int]:
        if pid not in self.rlimits:
            raise oserror(errno.ESRCH, str(pid))
        return self.rlimits[pid]

    def own_pid(self) -> int | None:
        return self.own

    def add_fd(self, pid: int, fd: int, target: str, mode: int = 0o700) -> None:
        self.links[f"/proc/{pid}/fd/{fd}"] = (target, mode)

    def add_process(
        self, pid: int, ppid: int = 1, *, comm: str = "worker", start: int = 500, threads: int = 1, pages: int = 10
    ) -> None:
        middle = " ".join(["0"] * 13)
        tail = " ".join(["0"] * 5)
        self.files[f"/proc/{pid}/stat"] = (
            f"{pid} ({comm}) S {ppid} {middle} 20 0 {threads} 0 {start} 4096 {pages} {tail}\n"
        )
        self.files[f"/proc/{pid}/cmdline"] = f"{comm}\0--flag\0"
