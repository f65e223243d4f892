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
from typing import Any

from ...errors import TraceUnavailableError
from ...procfs.descriptors import list_fds
from ...procfs.procfs import REAL
from .log_format import BEFORE, BIRTH, CLOSE, CLOSE_UNSEEN, FAIL, FOUND, INHERITED, KINDS, LIVE, PARTIAL

TRACED_ALREADY = "expected a process that is not traced, got one that is traced already"
MISSES = "descriptors made by C code have no stack, and closes of file objects are noticed up to a second late"

# The layout of native/fdtrace/fdtrace.h.
_HEADER_BYTES, _MAX_FDS, _RING_EVENTS, _COUNTERS, _RECORD_BYTES = 4096, 1 << 20, 1 << 15, 1 << 14, 3 << 20
_MAX_FRAMES = 96
_FIXED = struct.Struct("<8sIIIIQQQIIIIQQQQQII")
_MOVING, _MOVING_AT = struct.Struct("<QIIIii"), 112
_END, _END_AT = struct.Struct("<QI"), 152
_FAILED_AT, _CLOSE_UNSEEN_AT, _PYTHON_STACKS_AT, _CALLS_AT, _COMMAND_AT = 184, 188, 216, 224, 224 + 1792 + 256
_EVENT = struct.Struct("<QIiIBBHiI")
_ENTRY = struct.Struct("<QIIIHHiI")
_COUNTER = struct.Struct("<IHHIIiIII")
_CODE = struct.Struct("<IHBBIIII")
_STACK = struct.Struct("<IHHHHI")

_RECONCILE_S = 1.0
_CALLS = ("open", "pipe", "dup", "socket", "eventfd", "memfd_create", "pidfd_open", "openpty", "timerfd_create")


class _Lifetime:
    """What is known of an open descriptor."""

    __slots__ = ("flags", "gen", "kind", "stack", "t_ns", "tid")

    def __init__(self, stack: int, kind: int, gen: int, flags: int) -> None:
        self.t_ns, self.tid = time.monotonic_ns(), threading.get_native_id()
        self.stack, self.kind, self.gen, self.flags = stack, kind, gen, flags


class _Counter:
    __slots__ = ("born", "closed", "foreign", "inherited", "live", "number", "peak")

    def __init__(self, number: int) -> None:
        self.number = number
        self.born = self.closed = self.live = self.peak = self.inherited = self.foreign = 0


class _ImageLog:
    """Writes the log of one process image."""

    def __init__(
        self, folder: Path, options: int, record_base: int, counter_base: int, parent: tuple[int, int]
    ) -> None:
        self.pid, self.start_ns = os.getpid(), time.monotonic_ns()
        self.record_base, self.record_end = record_base, record_base
        self.counter_base, self.counter_end = counter_base, counter_base
        self.ring_head = self.fds_end = self.live = self.peak = self.failed = self.close_unseen = 0
        self._entries_at = _HEADER_BYTES
        self._ring_at = self._entries_at + _MAX_FDS * _ENTRY.size
        self._counters_at = self._ring_at + _RING_EVENTS * _EVENT.size
        self._records_at = self._counters_at + _COUNTERS * _COUNTER.size
        size = self._records_at + _RECORD_BYTES
        fd = os.open(folder / f"fd.{self.pid}.{self.start_ns}.log", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(fd, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        _FIXED.pack_into(
            self._map, 0, b"HFTRACE1", 1, _HEADER_BYTES, self.pid, parent[0], self.start_ns, time.time_ns(), parent[1],
            options | PARTIAL, sys.hexversion, _MAX_FDS, _RING_EVENTS, self._entries_at, self._ring_at,
            self._counters_at, self._records_at, size, counter_base, record_base,
        )  # fmt: skip
        struct.pack_into("<I", self._map, _PYTHON_STACKS_AT, 1)
        calls = " ".join(_CALLS).encode()
        self._map[_CALLS_AT : _CALLS_AT + len(calls)] = calls
        command = "\0".join(sys.orig_argv).encode(errors="replace")[:1535]
        self._map[_COMMAND_AT : _COMMAND_AT + len(command)] = command

    def publish(self) -> None:
        """Writes the counters of the header."""
        self.peak = max(self.peak, self.live)
        moving = (self.ring_head, self.counter_end, self.record_end, self.fds_end, self.live, self.peak)
        _MOVING.pack_into(self._map, _MOVING_AT, *moving)
        struct.pack_into("<II", self._map, _FAILED_AT, self.failed, self.close_unseen)

    def event(self, action: int, kind: int, fd: int, stack: int, gen: int, aux: int = 0, error: int = 0) -> None:
        at = self._ring_at + self.ring_head % _RING_EVENTS * _EVENT.size
        row = (time.monotonic_ns(), threading.get_native_id(), fd, stack, action, kind, error, aux, gen)
        _EVENT.pack_into(self._map, at, *row)
        self.ring_head += 1

    def entry(self, fd: int, life: _Lifetime, closed_by: int = 0) -> None:
        row = (life.t_ns, life.stack, life.gen, life.tid, life.kind, life.flags, 0, closed_by)
        _ENTRY.pack_into(self._map, self._entries_at + fd * _ENTRY.size, *row)
        self.fds_end = max(self.fds_end, fd + 1)

    def counter(self, stack: int, kind: int, counts: _Counter) -> None:
        at = self._counters_at + (counts.number - self.counter_base) * _COUNTER.size
        row = (stack, kind, 0, counts.born, counts.closed, counts.live, counts.peak, counts.inherited, counts.foreign)
        _COUNTER.pack_into(self._map, at, *row)

    def record(self, data: bytes) -> int:
        """Appends a record and returns its id, 0 if there is no room."""
        units = -(-len(data) // 8)
        at = (self.record_end - self.record_base) * 8
        if at + units * 8 > _RECORD_BYTES:
            return 0
        self._map[self._records_at + at : self._records_at + at + len(data)] = data
        self.record_end += units
        return self.record_end - units

    def mark_end(self, end_kind: int = 1) -> None:
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
        self._lives: dict[int, _Lifetime] = {}
        self._gens: dict[int, int] = {}
        # By identity: equal code of two files is equal to Python. The reference keeps the identity from being reused.
        self._codes: dict[int, tuple[CodeType, int]] = {}
        self._stacks: dict[tuple[tuple[int, int], ...], int] = {}
        self._counters: dict[int, _Counter] = {}
        self._log: _ImageLog | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._folder = Path()
        self._bits = self._arm_above = 0

    def start(self, folder: Path, options: int, arm_above: int) -> None:
        if _active:
            raise TraceUnavailableError(f"{TRACED_ALREADY} (by a Tracer, one of its parent's, or `holdfast trace`)")
        self._folder, self._bits, self._arm_above = folder, options, arm_above
        self._log = _ImageLog(folder, self._bits, 1, 0, (0, 0))
        for fd in list_fds(REAL, os.getpid()) or []:
            if REAL.exists(f"/proc/self/fd/{fd}"):
                self._born(fd, 0, None, BEFORE)
        self._publish()
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
            if self._log is not None:
                self.reconcile()
                self._log.mark_end(3)
                self._log.close()
                self._log = None
        _active.remove(self)

    def end(self) -> None:
        """Notes the end of the process. What it closes from now on is its shutdown."""
        with self._lock:
            if self._log is not None:
                self.reconcile()
                self._log.mark_end()

    # -- what the wrappers call

    def born(self, fd: int, kind: str) -> None:
        """Records a new descriptor, with the stack of the caller of the wrapper."""
        if self._log is None or getattr(self._busy, "now", False):
            return
        with self._lock:
            self._busy.now = True
            try:
                self._born(fd, KINDS.index(kind), sys._getframe(2), 0)
                self._publish()
            finally:
                self._busy.now = False

    def closing(self, fd: int) -> None:
        """Records a close, before it happens."""
        if self._log is None or getattr(self._busy, "now", False):
            return
        with self._lock:
            self._busy.now = True
            try:
                if fd in self._lives:
                    self._closed(fd, CLOSE, self._stack(sys._getframe(2)))
                self._publish()
            finally:
                self._busy.now = False

    def failed(self, error: OSError, call: str) -> None:
        if self._log is None or error.errno not in (errno.EMFILE, errno.ENFILE):
            return
        with self._lock:
            self._log.failed += 1
            number = _CALLS.index(call) if call in _CALLS else 0
            self._log.event(FAIL, 0, -1, self._stack(sys._getframe(2)), 0, number, error.errno)
            self._publish()

    def is_socket(self, fd: int) -> bool:
        """Returns whether this number is known as a socket. A file's may be stale: its close was not seen."""
        life = self._lives.get(fd)
        return life is not None and KINDS[life.kind] in ("socket", "dup", "unknown")

    # -- the tables

    def _born(self, fd: int, kind: int, frame: FrameType | None, flags: int) -> None:
        log = self._log
        assert log is not None
        if not 0 <= fd < _MAX_FDS:
            return
        if fd in self._lives:
            log.close_unseen += 1
            self._closed(fd, CLOSE_UNSEEN, 0)
        self._gens[fd] = gen = self._gens.get(fd, 0) + 1
        stack = self._stack(frame) if frame is not None and len(self._lives) >= self._arm_above else 0
        self._lives[fd] = life = _Lifetime(stack, kind, gen, LIVE | flags)
        log.live += 1
        log.entry(fd, life)
        if flags & BEFORE:
            log.event(FOUND, kind, fd, 0, gen)
            return
        counter = self._counter(stack)
        counter.born += 1
        counter.live += 1
        counter.peak = max(counter.peak, counter.live)
        log.counter(stack, kind, counter)
        log.event(BIRTH, kind, fd, stack, gen)

    def _closed(self, fd: int, action: int, by: int) -> None:
        log = self._log
        assert log is not None
        life = self._lives.pop(fd)
        log.live -= 1
        counter = self._counter(life.stack)
        if life.flags & (INHERITED | BEFORE):
            counter.inherited += 1
        else:
            counter.closed += 1
            counter.live -= 1
            counter.foreign += life.tid != threading.get_native_id()
        log.counter(life.stack, life.kind, counter)
        log.event(action, life.kind, fd, by, life.gen)
        life.flags &= ~LIVE
        log.entry(fd, life, by)

    def _counter(self, stack: int) -> _Counter:
        counter = self._counters.get(stack)
        if counter is None:
            assert self._log is not None
            self._counters[stack] = counter = _Counter(
                min(self._log.counter_end, self._log.counter_base + _COUNTERS - 1)
            )
            self._log.counter_end = counter.number + 1
        return counter

    def _stack(self, frame: FrameType | None) -> int:
        log = self._log
        assert log is not None
        found: list[tuple[CodeType, int]] = []
        while frame is not None and len(found) < _MAX_FRAMES:
            if frame.f_code.co_filename != __file__:
                found.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        key = tuple((id(code), instr) for code, instr in found)
        if key not in self._stacks:
            pairs = [number for code, instr in found for number in (self._code(code), max(instr, 0))]
            size = _STACK.size + 4 * len(pairs)
            record = _STACK.pack(size, 2, len(found), 0, frame is not None, 0) + struct.pack(f"<{len(pairs)}I", *pairs)
            self._stacks[key] = log.record(record)
        return self._stacks[key]

    def _code(self, code: CodeType) -> int:
        if id(code) not in self._codes:
            assert self._log is not None
            file, name = (text.encode("utf-32-le", "replace")[:4096] for text in (code.co_filename, code.co_qualname))
            table = code.co_linetable if len(code.co_linetable) < 1 << 16 else b""
            size = _CODE.size + len(file) + len(name) + len(table)
            head = _CODE.pack(size, 1, 4, 4, code.co_firstlineno, len(file), len(name), len(table))
            self._codes[id(code)] = code, self._log.record(head + file + name + table)
        return self._codes[id(code)][1]

    def _publish(self) -> None:
        if self._log is not None:
            self._log.publish()

    # -- what the wrappers cannot see

    def _reconcile_often(self) -> None:
        while not self._is_over.wait(_RECONCILE_S):
            self.reconcile()

    def reconcile(self) -> None:
        """Compares with /proc/self/fd: enters what was closed, and what was opened, without a wrapper."""
        with self._lock:
            if self._log is None:
                return
            fds = list_fds(REAL, os.getpid())
            if fds is None:
                return
            # The descriptor of the listing itself is gone by now.
            here = {fd for fd in fds if REAL.exists(f"/proc/self/fd/{fd}")}
            for fd in [fd for fd in self._lives if fd not in here]:
                self._log.close_unseen += 1
                self._closed(fd, CLOSE_UNSEEN, 0)
            for fd in here - self._lives.keys():
                self._born(fd, 0, None, BEFORE)
            self._publish()

    def after_fork(self) -> None:
        """Begins the log of a forked child. The parent's tables are its own, as they were at the fork."""
        parent = self._log
        if parent is None:
            return
        self._lock, self._busy = threading.RLock(), threading.local()
        self._log = None  # the wrappers record nothing until the child has a log of its own
        parent.close()
        try:
            log = _ImageLog(
                self._folder, self._bits, parent.record_end, parent.counter_end, (parent.pid, parent.start_ns)
            )
        except OSError:
            return  # no descriptor or no room is left: this child is not recorded
        self._log = log
        self._counters.clear()
        for fd, life in self._lives.items():
            life.flags |= INHERITED
            log.entry(fd, life)
        log.live = len(self._lives)
        self._publish()
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

    def replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        wrapped = functools.wraps(original)(make(original))
        setattr(owner, name, wrapped)
        undo.append(lambda: setattr(owner, name, original))

    def births(kind: str, call: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call_it(*args: Any, **kwargs: Any) -> Any:
                try:
                    made = original(*args, **kwargs)
                except OSError as error:
                    recorder.failed(error, call)
                    raise
                for fd in made if isinstance(made, tuple) else (made,):
                    recorder.born(_number(fd), kind)
                return made

            return call_it

        return make

    def closes(original: Callable[[int], None]) -> Callable[[int], None]:
        def call_it(fd: int) -> None:
            recorder.closing(fd)
            original(fd)

        return call_it

    def close_ranges(original: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def call_it(low: int, high: int) -> None:
            for fd in range(low, high):
                recorder.closing(fd)
            original(low, high)

        return call_it

    def socket_begins(original: Callable[..., None]) -> Callable[..., None]:
        def call_it(self: socket.socket, *args: Any, **kwargs: Any) -> None:
            try:
                original(self, *args, **kwargs)
            except OSError as error:
                recorder.failed(error, "socket")
                raise
            given = args[3] if len(args) > 3 else kwargs.get("fileno")
            if given is None or not recorder.is_socket(self.fileno()):
                recorder.born(self.fileno(), "socket")

        return call_it

    def socket_ends(original: Callable[..., None]) -> Callable[..., None]:
        def call_it(self: socket.socket, *args: Any, **kwargs: Any) -> None:
            if self.fileno() >= 0:
                recorder.closing(self.fileno())
            original(self, *args, **kwargs)

        return call_it

    for owner in (builtins, io):
        replace(owner, "open", births("file", "open"))
    for name, kind in (
        ("open", "file"), ("pipe", "pipe"), ("pipe2", "pipe"), ("dup", "dup"), ("dup2", "dup"), ("eventfd", "eventfd"),
        ("memfd_create", "memfd"), ("pidfd_open", "pidfd"), ("openpty", "pty"), ("timerfd_create", "timerfd"),
    ):  # fmt: skip
        replace(os, name, births(kind, name.removesuffix("2")))
    replace(os, "close", closes)
    replace(os, "closerange", close_ranges)
    replace(socket.socket, "__init__", socket_begins)
    replace(socket.socket, "_real_close", socket_ends)


def _number(made: Any) -> int:
    """Returns the descriptor of what a wrapped function returned: a number, or a file object, maybe without one."""
    if isinstance(made, int):
        return made
    try:
        return int(made.fileno())
    except (OSError, ValueError, AttributeError):
        return -1
