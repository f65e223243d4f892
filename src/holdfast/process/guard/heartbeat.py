"""The heartbeat page: one file of 4,096 bytes for each process with a Guard, mapped into memory.

The process writes clocks and counters into it with plain stores, which need no descriptor and no system call. Other
processes (`holdfast supervise`, `watch`, `rescue`) read the file. It lies beside the sockets of `hold.listen`, in
a folder that belongs to the process's user, and its name is the pid and the start time, so that it is found by pid
alone and never mistaken for the page of an earlier process with the same pid.

All times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share; 0 means never.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
import time
import weakref
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from ...procfs.processes import Identity
from ...procfs.procfs import REAL, ProcFS
from ..fd_owners.agent import make_private, socket_dirs
from .process_files import (
    file_name,
    list_process_files,
    open_process_file,
    own_identity,
    read_owned,
    read_process_files,
    remove_stale,
)

PAGE_BYTES = 4096
_MAGIC = 0x3130_4245_4854_5248  # "HRTHEB01" as a number; the last two digits are the version
_SUFFIX = ".heartbeat"
_STALE_S = 900.0  # a page that was not written for so long is nobody's, unless its process is in this /proc


class GuardState(IntEnum):
    STARTING = 0  # no ok(), step() or job yet
    RUNNING = 1
    DRAINING = 2
    ENDED = 3


# ---- layout: numbers of 8 bytes by index, texts by offset and size, and a ring of the last jobs

_NUMBERS = (
    "magic",
    "pid",
    "start_ticks",
    "state",
    "started_ns",
    "alive_ns",  # written by the guard's own thread: stale while C code holds the GIL or the process is stopped
    "step_ns",
    "ok_ns",
    "ok_wall_ns",  # time of day of the last success
    "fail_ns",
    "fails_in_row",
    "fails",
    "jobs_done",
    "jobs_failed",
    "jobs_active",
    "job_started_ns",  # of `job`, the active one that has made no step for longest; 0 without one
    "errno",  # of the last failure, unwrapped; 0 if it had none
    "drain_ns",
    "progress_timeout_ns",  # 0: none
    "drain_timeout_ns",
    "stacks_signal",  # faulthandler writes the stacks of all threads on this signal; 0: not armed
    "fds",
    "fd_soft_cap",  # 0: none
    "fd_hard_cap",
    "rss_bytes",
    "threads",
    "children",
    "exit_code",  # that the guard asks for; only while draining
    "jobs_started",
    "ok_calls",  # of ok() itself; a finished job advances ok_ns, too
    "begun_ns",  # the first ok(), fail(), step() or job: what came before was the start
    "job_step_ns",  # of `job`: its last step, or its start, at the guard's last sample; 0 without one
)
AT = {name: at for at, name in enumerate(_NUMBERS)}
_TEXTS = {"name": (512, 128), "job": (640, 256), "reason": (896, 512), "error": (1408, 512), "log": (1920, 128)}
_RING_AT = 2048 // 8
RING = (PAGE_BYTES - 2048) // 8
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A page at one moment. See the layout for its fields; `jobs` are (job number, descriptors after it)."""

    pid: int
    start_ticks: int
    state: GuardState
    started_ns: int
    alive_ns: int
    step_ns: int = 0
    ok_ns: int = 0
    ok_wall_ns: int = 0
    fail_ns: int = 0
    fails_in_row: int = 0
    fails: int = 0
    jobs_done: int = 0
    jobs_failed: int = 0
    jobs_active: int = 0
    jobs_started: int = 0
    ok_calls: int = 0
    begun_ns: int = 0
    job_started_ns: int = 0
    job_step_ns: int = 0
    errno: int = 0
    drain_ns: int = 0
    progress_timeout_ns: int = 0
    drain_timeout_ns: int = 0
    stacks_signal: int = 0
    fds: int = 0
    fd_soft_cap: int = 0
    fd_hard_cap: int = 0
    rss_bytes: int = 0
    threads: int = 0
    children: int = 0
    exit_code: int = 0
    name: str = ""
    job: str = ""
    reason: str = ""
    error: str = ""
    log: str = ""
    jobs: tuple[tuple[int, int], ...] = ()

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.start_ticks)


class HeartbeatPage:
    """The page of this process. After `close`, and in a forked child after `detach`, nobody sees what is stored.

    `numbers` may be stored to directly, by the indices in `AT`: `set` takes a microsecond, a store a tenth.
    """

    def __init__(self, name: str = "") -> None:
        self.path: Path | None = None
        self.problem = ""  # why no other process can see the page, if so
        self._map = self._create()
        self.numbers = self._map.cast("Q")
        self.numbers[_RING_AT:] = memoryview(bytes(RING * 8)).cast("Q")
        pid, ticks = own_identity() or (os.getpid(), 0)
        now = time.monotonic_ns()
        self.set(pid=pid, start_ticks=ticks or 0, started_ns=now, alive_ns=now)
        self.set_text("name", name)
        self.set(magic=_MAGIC)  # last: from now on it is valid

    def _create(self) -> memoryview[int]:
        identity = own_identity()
        name = "" if identity is None else file_name(identity, _SUFFIX)
        reasons = [] if name else ["this process is not visible in /proc, so that no other process could find it"]
        for folder in socket_dirs() if name else ():
            try:
                made = _create_in(folder, folder / name)
            except OSError as error:
                reasons.append(str(error))
            else:
                self.path = folder / name
                return made
        self.problem = "; ".join(reasons)
        return memoryview(bytearray(PAGE_BYTES))

    def set(self, **values: int) -> None:
        """Stores numbers by name."""
        for name, value in values.items():
            self.numbers[AT[name]] = value & _MASK

    def get(self, name: str) -> int:
        return self.numbers[AT[name]]

    def copy(self) -> bytes:
        """Returns the bytes of the page, as other processes see them."""
        return bytes(self._map)

    def set_text(self, name: str, text: str) -> None:
        """Stores a text, truncated to its room."""
        start, room = _TEXTS[name]
        data = text.encode("utf-8", "replace")[: room - 1]
        data = data.decode("utf-8", "ignore").encode()  # without a character that was cut in two
        self._map[start : start + room] = data.ljust(room, b"\0")

    def add_job(self, number: int, fds: int) -> None:
        """Stores the descriptor count after a job; the last 256 are kept."""
        self.numbers[_RING_AT + number % RING] = (number & 0xFFFFFFFF) << 32 | min(fds, 0xFFFFFFFF)

    def restore(self) -> None:
        """Makes the page again if its file was removed, as old files in /tmp are on some machines. If that fails, the
        next call tries again."""
        if self.path is None or os.path.exists(self.path):
            return
        with contextlib.suppress(OSError):
            made = _create_in(self.path.parent, self.path)
            made[:] = bytes(self._map)
            self._map = made
            self.numbers = memoryview(made).cast("Q")

    def detach(self) -> None:
        """In a forked child: leaves the parent's page alone."""
        self.path = None
        self._replace_map()

    def close(self) -> None:
        """Removes the page."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self.detach()

    def _replace_map(self) -> None:
        # Other threads may still hold the old view, which the collector unmaps.
        self._map = memoryview(bytearray(PAGE_BYTES))
        self.numbers = self._map.cast("Q")


def _create_in(folder: Path, path: Path) -> memoryview[int]:
    make_private(folder)
    with contextlib.suppress(OSError):
        remove_stale_pages(folder)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # of an earlier Guard in this process
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(fd, 0, PAGE_BYTES)  # on a full disk a store would end the process with SIGBUS
        return _map(fd)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _map(fd: int) -> memoryview[int]:
    """Maps the page. mmap.mmap would keep a copy of the descriptor (before Python 3.13) and close its number at the
    end, even if the program has closed it long ago and a file of its own has the number."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    address = libc.mmap(None, PAGE_BYTES, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    page = (ctypes.c_ubyte * PAGE_BYTES).from_address(address)
    unmap = weakref.finalize(page, libc.munmap, ctypes.c_void_p(address), ctypes.c_size_t(PAGE_BYTES))
    unmap.atexit = False  # threads may still store to it
    return memoryview(page).cast("B")


# ---- reading the page of another process


def read_heartbeat(pid: int, procfs: ProcFS = REAL) -> Heartbeat | None:
    """Reads the page of a process; None if it has no Guard, is gone, or its page is not readable."""
    for identity, data in read_process_files(pid, _SUFFIX, PAGE_BYTES, procfs):
        found = parse_heartbeat(data)
        if found is not None and found.identity == identity:
            return found
    return None


class HeartbeatIndex:
    """Finds which processes have a page, from one listing of the folders; make a new one for each round."""

    def __init__(self) -> None:
        self._names: dict[int, frozenset[str]] = {}

    def has(self, identity: Identity, uid: int | None) -> bool:
        """Whether the process may have a page; True if its user is not known."""
        if uid is None or identity.start_ticks is None:
            return True
        if uid not in self._names:
            self._names[uid] = list_process_files(uid, _SUFFIX)
        return file_name(identity, _SUFFIX) in self._names[uid]


class OpenPage:
    """The page of another process, kept open: it shows how a Guard ended even after that has removed the page."""

    def __init__(self) -> None:
        self._pid = 0
        self._fd = -1

    def open(self, pid: int) -> None:
        """Opens the page of this process, unless it is open and still its page."""
        if self._fd >= 0 and self._pid == pid and os.fstat(self._fd).st_nlink:
            return
        fd = open_process_file(pid, _SUFFIX)
        if fd is not None:
            self.close()
            self._pid, self._fd = pid, fd

    def read(self) -> Heartbeat | None:
        return parse_heartbeat(os.pread(self._fd, PAGE_BYTES, 0), jobs=False) if self._fd >= 0 else None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def parse_heartbeat(data: bytes, *, jobs: bool = True) -> Heartbeat | None:
    """Parses the bytes of a page, with the ring of jobs unless that is not wanted; None if they are not a page."""
    if len(data) != PAGE_BYTES:
        return None
    numbers = dict(zip(_NUMBERS, struct.unpack_from(f"<{len(_NUMBERS)}Q", data), strict=True))
    if numbers.pop("magic") != _MAGIC or numbers["state"] not in set(GuardState):
        return None
    state = GuardState(numbers.pop("state"))
    texts: dict[str, Any] = {
        name: data[start : start + room].split(b"\0", 1)[0].decode("utf-8", "replace")
        for name, (start, room) in _TEXTS.items()
    }
    words = struct.unpack_from(f"<{RING}Q", data, _RING_AT * 8) if jobs else ()
    # Each job has a place of its own, so that none is there twice, whatever the process has written.
    ring = sorted(
        (word >> 32, word & 0xFFFFFFFF) for at, word in enumerate(words) if word and (word >> 32) % RING == at
    )
    return Heartbeat(state=state, jobs=tuple(ring), **numbers, **texts)


def remove_stale_pages(folder: Path) -> None:
    """Removes the pages of processes that ended without removing them."""
    remove_stale(folder, _SUFFIX, _beats)


def _beats(path: Path) -> bool:
    data = read_owned(path, os.getuid(), PAGE_BYTES)
    found = None if data is None else parse_heartbeat(data)
    return found is not None and 0 <= time.monotonic_ns() - found.alive_ns < _STALE_S * 1e9
