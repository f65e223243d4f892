"""Records descriptors with Python's own means, where the tracing library is not available.

It wraps the functions of the standard library that make and close descriptors, and compares with /proc/self/fd once a
second. What C code opens gets no stack, and the close of a file object is only noticed when its number is used again
or at the next comparison. It writes the log in the library's layout, so that everything that reads one works; reports
say "partial".
"""

from __future__ import annotations

import atexit
import builtins
import errno
import functools
import io
import mmap
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ...errors import TraceUnavailableError
from ...procfs.descriptors import list_fds
from ...procfs.procfs import REAL
from .image import CODE, COUNTER, ENTRY, EVENT, STACK, field_offset, pack_header
from .log_format import BEFORE, BIRTH, CLOSE, CLOSE_UNSEEN, FAIL, FOUND, INHERITED, KINDS, LIVE, PARTIAL

TRACED_ALREADY = "expected a process that is not traced, got one that is traced already"
MISSES = "descriptors made by C code have no stack, and closes of file objects are noticed up to a second late"

_HEADER_BYTES, _MAX_FDS, _RING_EVENTS, _COUNTERS, _RECORD_BYTES = 4096, 1 << 20, 1 << 15, 1 << 14, 3 << 20
_MAX_FRAMES = 96
_EVENT, _ENTRY, _COUNTER = (struct.Struct(f"<{''.join(layout.values())}") for layout in (EVENT, ENTRY, COUNTER))
_MOVING, _MOVING_AT = struct.Struct("<QIIIii"), field_offset("ring_head")  # up to `peak`
_UNSEEN, _UNSEEN_AT = struct.Struct("<II"), field_offset("failed")  # and `close_unseen`
_END, _END_AT = struct.Struct("<QI"), field_offset("end_ns")  # and `end_kind`
_RECONCILE_S = 1.0
_MAKERS = {
    "open": "file", "pipe": "pipe", "pipe2": "pipe", "dup": "dup", "dup2": "dup", "eventfd": "eventfd",
    "memfd_create": "memfd", "pidfd_open": "pidfd", "openpty": "pty", "timerfd_create": "timerfd",
}  # fmt: skip
_CALLS = [*dict.fromkeys(name.removesuffix("2") for name in _MAKERS), "socket"]


class _Entry(NamedTuple):
    """A lifetime of a number, with the fields of ENTRY."""

    t_ns: int
    stack: int
    gen: int
    tid: int
    kind: int
    flags: int
    aux: int = 0
    closed_by: int = 0


class _ImageLog:
    """Writes the log of one process image: entries, a ring of events, counters and records, in this order."""

    def __init__(self, folder: Path, options: int, parent: _ImageLog | None = None) -> None:
        self.pid, self.start_ns = os.getpid(), time.monotonic_ns()
        self._record_base: int = parent.record_end if parent else 1
        self.record_end: int = self._record_base
        self._counter_base = parent.counter_end if parent else 0
        self._counters: dict[int, list[int]] = {}  # by stack: where it is, and its counts
        self.ring_head = self.fds_end = self.live = self.peak = self.failed = self.close_unseen = 0
        header: dict[str, int | bytes] = {
            "magic": b"HFTRACE1", "version": 1, "pid": self.pid, "start_ns": self.start_ns,
            "parent_pid": parent.pid if parent else 0, "parent_start_ns": parent.start_ns if parent else 0,
            "start_real_ns": time.time_ns(), "options": options | PARTIAL, "python": sys.hexversion,
            "max_fds": _MAX_FDS, "ring_events": _RING_EVENTS, "python_stacks": 1, "calls": " ".join(_CALLS).encode(),
            "command": "\0".join(sys.orig_argv).encode(errors="replace")[:1535],
            "counter_base": self._counter_base, "record_base": self._record_base,
        }  # fmt: skip
        at = header["header_bytes"] = header["entries_at"] = _HEADER_BYTES
        at = self._ring_at = header["ring_at"] = at + _MAX_FDS * _ENTRY.size
        at = self._counters_at = header["counters_at"] = at + _RING_EVENTS * _EVENT.size
        at = self._records_at = header["records_at"] = at + _COUNTERS * _COUNTER.size
        size = header["file_bytes"] = at + _RECORD_BYTES
        fd = os.open(folder / f"fd.{self.pid}.{self.start_ns}.log", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(fd, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._map.write(pack_header(header))

    @property
    def counter_end(self) -> int:
        return self._counter_base + min(len(self._counters), _COUNTERS)

    def publish(self) -> None:
        """Writes the counts of the header."""
        self.peak = max(self.peak, self.live)
        moving = (self.ring_head, self.counter_end, self.record_end, self.fds_end, self.live, self.peak)
        _MOVING.pack_into(self._map, _MOVING_AT, *moving)
        _UNSEEN.pack_into(self._map, _UNSEEN_AT, self.failed, self.close_unseen)

    def event(self, action: int, kind: int, fd: int, stack: int, gen: int, aux: int = 0, error: int = 0) -> None:
        at = self._ring_at + self.ring_head % _RING_EVENTS * _EVENT.size
        row = (time.monotonic_ns(), threading.get_native_id(), fd, stack, action, kind, error, aux, gen)
        _EVENT.pack_into(self._map, at, *row)
        self.ring_head += 1
        self.publish()

    def entry(self, fd: int, entry: tuple[int, ...]) -> None:
        _ENTRY.pack_into(self._map, _HEADER_BYTES + fd * _ENTRY.size, *entry)
        self.fds_end = max(self.fds_end, fd + 1)

    def count(
        self, stack: int, kind: int, *, born: int = 0, closed: int = 0, inherited: int = 0, foreign: int = 0
    ) -> None:
        """Adds to the counter of a stack. Those for which there is no room overwrite the last one."""
        row = self._counters.get(stack)
        if row is None:
            number = min(len(self._counters), _COUNTERS - 1)
            row = self._counters[stack] = [self._counters_at + number * _COUNTER.size, 0, 0, 0, 0, 0, 0]
        at, was_born, was_closed, live, peak, was_inherited, was_foreign = row
        live += born - closed
        row[1:] = (
            was_born + born,
            was_closed + closed,
            live,
            max(peak, live),
            was_inherited + inherited,
            was_foreign + foreign,
        )
        _COUNTER.pack_into(self._map, at, stack, kind, 0, *row[1:])

    def record(self, data: bytes) -> int:
        """Appends a record and returns its id, 0 if there is no room."""
        units = -(-len(data) // 8)
        at = (self.record_end - self._record_base) * 8
        if at + units * 8 > _RECORD_BYTES:
            return 0
        self._map[self._records_at + at : self._records_at + at + len(data)] = data
        self.record_end += units
        return self.record_end - units

    def mark_end(self, end_kind: int) -> None:
        _END.pack_into(self._map, _END_AT, time.monotonic_ns(), end_kind)

    def close(self) -> None:
        self._map.close()


class PartialRecorder:
    """Wraps functions of the standard library while it records. Use one at a time.

    Args:
        reconciles: Compare with /proc/self/fd once a second, in a thread.
    """

    def __init__(self, *, reconciles: bool = True) -> None:
        self._reconciles = reconciles
        self._lock = threading.RLock()
        self._busy = threading.local()
        self._undo: list[Callable[[], None]] = []
        self._lives: dict[int, _Entry] = {}
        self._gens: dict[int, int] = {}
        # By identity: equal code of two files is equal to Python. The reference keeps the identity from being reused.
        self._codes: dict[int, tuple[CodeType, int]] = {}
        self._stacks: dict[tuple[tuple[int, int], ...], int] = {}
        self._log: _ImageLog | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._folder = Path()
        self._bits = self._arm_above = 0

    def start(self, folder: Path, options: int, arm_above: int) -> None:
        if _active:
            raise TraceUnavailableError(f"{TRACED_ALREADY} (by a Tracer, one of its parent's, or `holdfast trace`)")
        self._folder, self._bits, self._arm_above = folder, options, arm_above
        self._log = _ImageLog(folder, options)
        self.reconcile()
        _wrap_all(self, self._undo)
        _active.append(self)
        self._watch()

    def _watch(self) -> None:
        if not self._reconciles:
            return
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._reconcile_often, name="holdfast-partial-trace", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self.end(3)
            if self._log is not None:
                self._log.close()
                self._log = None
        _active.remove(self)

    def end(self, end_kind: int = 1) -> None:
        """Notes the end of the process. What it closes from now on is its shutdown."""
        with self._lock:
            if self._log is not None:
                self.reconcile()
                self._log.mark_end(end_kind)

    # -- what the wrappers call: what the recorder does itself meanwhile is not recorded

    def _record(self, record: Callable[[_ImageLog], None]) -> None:
        if self._log is None or getattr(self._busy, "now", False):
            return
        with self._lock:
            self._busy.now = True
            try:
                record(self._log)
            finally:
                self._busy.now = False

    def born(self, fd: int, kind: str) -> None:
        """Records a new descriptor, with the stack of the caller of the wrapper."""
        frame = sys._getframe(1)
        self._record(lambda log: self._born(log, fd, KINDS.index(kind), frame))

    def closing(self, fd: int) -> None:
        """Records a close, before it happens."""
        frame = sys._getframe(1)
        if fd in self._lives:
            self._record(lambda log: self._closed(log, fd, CLOSE, self._stack(log, frame)))

    def failed(self, error: OSError, call: str) -> None:
        """Records a call for which no descriptor was free."""
        frame = sys._getframe(1)

        def record(log: _ImageLog) -> None:
            log.failed += 1
            log.event(FAIL, 0, -1, self._stack(log, frame), 0, _CALLS.index(call), error.errno or 0)

        if error.errno in (errno.EMFILE, errno.ENFILE):
            self._record(record)

    def known(self, low: int, high: int) -> list[int]:
        """Returns the open descriptors in a range of numbers."""
        return [fd for fd in list(self._lives) if low <= fd < high]

    def is_socket(self, fd: int) -> bool:
        """Returns whether this number is known as a socket. A file's may be stale: its close was not seen."""
        life = self._lives.get(fd)
        return life is not None and KINDS[life.kind] in ("socket", "dup", "unknown")

    # -- the tables

    def _born(self, log: _ImageLog, fd: int, kind: int, frame: FrameType | None) -> None:
        """Enters a new descriptor; one without a frame was open before."""
        if not 0 <= fd < _MAX_FDS:
            return
        if fd in self._lives:
            self._closed(log, fd, CLOSE_UNSEEN, 0)
        self._gens[fd] = gen = self._gens.get(fd, 0) + 1
        stack = self._stack(log, frame) if frame is not None and len(self._lives) >= self._arm_above else 0
        flags = LIVE if frame is not None else LIVE | BEFORE
        life = _Entry(time.monotonic_ns(), stack, gen, threading.get_native_id(), kind, flags)
        self._lives[fd] = life
        log.live += 1
        log.entry(fd, life)
        if frame is not None:
            log.count(stack, kind, born=1)
        log.event(BIRTH if frame is not None else FOUND, kind, fd, stack, gen)

    def _closed(self, log: _ImageLog, fd: int, action: int, by: int) -> None:
        life = self._lives.pop(fd, None)
        if life is None:
            return
        log.live -= 1
        log.close_unseen += action == CLOSE_UNSEEN
        if life.flags & (INHERITED | BEFORE):
            log.count(life.stack, life.kind, inherited=1)
        else:
            log.count(life.stack, life.kind, closed=1, foreign=life.tid != threading.get_native_id())
        log.entry(fd, (*life[:5], life.flags & ~LIVE, 0, by))
        log.event(action, life.kind, fd, by, life.gen)

    def _stack(self, log: _ImageLog, frame: FrameType | None) -> int:
        found: list[tuple[CodeType, int]] = []
        while frame is not None and len(found) < _MAX_FRAMES:
            if frame.f_code.co_filename != __file__:
                found.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        key = tuple((id(code), instr) for code, instr in found)
        if key not in self._stacks:
            pairs = [number for code, instr in found for number in (self._code(log, code), max(instr, 0))]
            size = STACK.size + 4 * len(pairs)
            record = STACK.pack(size, 2, len(found), 0, frame is not None, 0) + struct.pack(f"<{len(pairs)}I", *pairs)
            self._stacks[key] = log.record(record)
        return self._stacks[key]

    def _code(self, log: _ImageLog, code: CodeType) -> int:
        if id(code) not in self._codes:
            file, name = (text.encode("utf-32-le", "replace")[:4096] for text in (code.co_filename, code.co_qualname))
            table = code.co_linetable if len(code.co_linetable) < 1 << 16 else b""
            size = CODE.size + len(file) + len(name) + len(table)
            head = CODE.pack(size, 1, 4, 4, code.co_firstlineno, len(file), len(name), len(table))
            self._codes[id(code)] = code, log.record(head + file + name + table)
        return self._codes[id(code)][1]

    # -- what the wrappers cannot see

    def _reconcile_often(self) -> None:
        while not self._is_over.wait(_RECONCILE_S):
            self.reconcile()

    def reconcile(self) -> None:
        """Compares with /proc/self/fd: enters what was closed, and what was opened, without a wrapper."""
        with self._lock:
            fds = list_fds(REAL, os.getpid())
            if self._log is None or fds is None:
                return
            # The descriptor of the listing itself is gone by now.
            here = {fd for fd in fds if REAL.exists(f"/proc/self/fd/{fd}")}
            for fd in self._lives.keys() - here:
                self._closed(self._log, fd, CLOSE_UNSEEN, 0)
            for fd in sorted(here - self._lives.keys()):
                self._born(self._log, fd, 0, None)

    def after_fork(self) -> None:
        """Begins the log of a forked child. The parent's tables are its own, as they were at the fork."""
        parent = self._log
        if parent is None:
            return
        self._lock, self._busy = threading.RLock(), threading.local()
        self._log = None  # the wrappers record nothing until the child has a log of its own
        parent.close()
        try:
            log = _ImageLog(self._folder, self._bits, parent)
        except OSError:
            return  # no descriptor or no room is left: this child is not recorded
        self._lives = {fd: life._replace(flags=life.flags | INHERITED) for fd, life in self._lives.items()}
        for fd, life in self._lives.items():
            log.entry(fd, life)
        log.live = len(self._lives)
        log.publish()
        self._log = log
        self._watch()


def start_from_environment() -> None:
    """Records this process for `holdfast trace`, until it ends."""
    folder = Path(os.environ["HOLDFAST_FDTRACE_DIR"])
    options, arm_above = (int(os.environ.get(f"HOLDFAST_FDTRACE_{name}", "0")) for name in ("OPTIONS", "ARM_ABOVE"))
    recorder = PartialRecorder()
    recorder.start(folder, options, arm_above)
    atexit.register(recorder.end)


_active: list[PartialRecorder] = []


def _after_fork() -> None:
    for recorder in _active:
        recorder.after_fork()


os.register_at_fork(after_in_child=_after_fork)


# ---- the wrappers


def _wrap_all(recorder: PartialRecorder, undo: list[Callable[[], None]]) -> None:
    """Replaces the functions that make and close descriptors. `undo` gets what restores them."""

    def wrap(owner: Any, name: str, run: Callable[..., Any], *facts: str) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            wrapped = functools.wraps(original)(lambda *args, **kwargs: run(original, *facts, *args, **kwargs))
            setattr(owner, name, wrapped)
            undo.append(lambda: setattr(owner, name, original))

    def attempt(original: Callable[..., Any], call: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except OSError as error:
            recorder.failed(error, call)
            raise

    def make(original: Callable[..., Any], call: str, kind: str, *args: Any, **kwargs: Any) -> Any:
        made = attempt(original, call, *args, **kwargs)
        for fd in made if isinstance(made, tuple) else (made,):
            recorder.born(_number(fd), kind)
        return made

    def close(original: Callable[..., Any], fd: int) -> None:
        recorder.closing(fd)
        original(fd)

    def close_range(original: Callable[..., Any], low: int, high: int) -> None:
        for fd in recorder.known(low, high):
            recorder.closing(fd)
        original(low, high)

    def begin_socket(original: Callable[..., Any], self: socket.socket, *args: Any, **kwargs: Any) -> None:
        attempt(original, "socket", self, *args, **kwargs)
        given = args[3] if len(args) > 3 else kwargs.get("fileno")
        if given is None or not recorder.is_socket(self.fileno()):
            recorder.born(self.fileno(), "socket")

    def end_socket(original: Callable[..., Any], self: socket.socket, *args: Any, **kwargs: Any) -> None:
        recorder.closing(self.fileno())
        original(self, *args, **kwargs)

    for owner in (builtins, io):
        wrap(owner, "open", make, "open", "file")
    for name, kind in _MAKERS.items():
        wrap(os, name, make, name.removesuffix("2"), kind)
    wrap(os, "close", close)
    wrap(os, "closerange", close_range)
    wrap(socket.socket, "__init__", begin_socket)
    wrap(socket.socket, "_real_close", end_socket)


def _number(made: Any) -> int:
    """Returns the descriptor of what a wrapped function returned: a number, or a file object, maybe without one."""
    if isinstance(made, int):
        return made
    try:
        return int(made.fileno())
    except (OSError, ValueError, AttributeError):
        return -1
