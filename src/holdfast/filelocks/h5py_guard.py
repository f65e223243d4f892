"""What is refused before h5py opens a file for writing: h5py would do the harm first and complain then, or never.

Measured: mode `w` empties a file that another process holds, then raises Errno 11. Four processes in mode `a` with
locks off: no error, and three quarters of the data gone, 25 times out of 25.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import inspect
import os
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import h5py
from h5py import h5f, h5fd, h5i, h5p

from .._util.process import call_after_fork
from .._util.text import format_bytes, one_line
from ..errors import ForkedWriterError, TargetExistsError, WriteError, WriterBusyError
from ..procfs.locks import LockKind, locks_of, writers_of
from ..procfs.procfs import REAL, readlink_or_none

OVERWRITE_VARIABLE = "HOLDFAST_H5PY_OVERWRITE"
_DRIVERS = (None, "sec2", "stdio", "direct", "core", "log")  # one file, under the name that was given


class HeldFileError(WriterBusyError, BlockingIOError):
    """Another process holds the file. Code that tries again on h5py's own Errno 11 does so on this.

    `passing`: whoever it is may be about to let go, as a child does right after it was forked.
    """

    passing = False


class ExistingFileError(TargetExistsError, FileExistsError):
    """Mode `w` would have emptied a file."""


class UnlockedWriteError(WriteError, PermissionError):
    """The file would have been written with HDF5's locks switched off."""


class Request(NamedTuple):
    """What h5py.File was asked for: those arguments that decide what is harmful."""

    path: str
    mode: str
    locking: object = None

    @property
    def writes(self) -> bool:
        return self.mode != "r"


def request_of(arguments: dict[str, object]) -> Request | None:
    """None: nothing here to guard, such as a Python file object, an open file's id, or a file in memory alone."""
    name, mode, driver = arguments.get("name"), arguments.get("mode", "r"), arguments.get("driver")
    extra = arguments.get("kwds")
    extra = extra if isinstance(extra, dict) else {}
    in_memory = driver == "core" and not extra.get("backing_store", True)
    if not isinstance(name, str | bytes | os.PathLike) or hasattr(name, "read") or driver not in _DRIVERS or in_memory:
        return None
    if mode not in ("r", "r+", "a", "w", "w-", "x"):
        return None  # h5py says what is wrong with it
    return Request(os.fsdecode(name), str(mode), arguments.get("locking", extra.get("locking")))


def refuse_harm(request: Request, *, overwrite: bool) -> None:
    """Raises if opening it for writing would, or could, lose data. Nothing is opened or changed."""
    if request.mode in ("x", "w-"):
        return  # the file system itself sees to it that one alone creates it: no lock is needed for that
    if not locks_are_on(request.locking):
        raise UnlockedWriteError(errno.EPERM, _unlocked(request))
    size_bytes = _size_of(request.path)
    if size_bytes is None:
        return
    if request.mode == "w" and size_bytes and not overwrite:
        text = (
            f"{request.path} is there already, and mode 'w' would throw its {format_bytes(size_bytes)} away at once. "
            "Create it with mode 'x', or write under another name and os.replace() it when it is whole; "
            f"protect_h5py(overwrite=True) or {OVERWRITE_VARIABLE}=1 allows it"
        )
        raise ExistingFileError(errno.EEXIST, text)
    if (error := held_error(request)) is not None:
        raise error


def held_error(request: Request, *, certain: bool = False) -> HeldFileError | None:
    """Names who holds it; None if nobody does, unless it is certain that somebody does."""
    who, inherited = _holder_of(request.path)
    if not who and not certain:
        return None
    told = who or "somebody has it locked who cannot be seen from here, or has just let go"
    error = HeldFileError(errno.EAGAIN, f"{request.path} cannot be opened with mode {request.mode!r}: {told}")
    error.passing = inherited or not who
    return error


def _holder_of(path: str) -> tuple[str, bool]:
    """`process 12 (python train.py) has it locked`, and whether it did not take the lock itself.

    "" if nobody but this process has it, as far as can be seen: HDF5 knows its own open files, and a child may have
    inherited one.
    """
    try:
        held = [lock for lock in locks_of(path) or [] if lock.kind is LockKind.FLOCK and not lock.waiting]
    except OSError:
        return "", False
    own = os.getpid()
    if any(lock.pid == own for lock in held):
        return "", False
    for lock in held:
        if lock.pid is None:
            return "a process that cannot be seen from here has it locked", False
        how = "inherited its lock" if lock.inherited else "has it locked"
        return f"process {lock.pid} ({one_line(lock.command)}) {how}", lock.inherited
    writers = writers_of(path)
    if writers and not any(one.pid == own for one in writers):
        who = f"process {writers[0].pid} ({one_line(writers[0].command)})"
        return f"{who} has it open for writing, without a lock", False
    return "", False


def _unlocked(request: Request) -> str:
    given = "" if request.locking is None else f" or locking={request.locking!r}"
    return (
        f"{request.path} was to be opened with mode {request.mode!r} while HDF5's locks are off "
        f"(HDF5_USE_FILE_LOCKING=FALSE{given}): two such writers destroy each other's data without an error. "
        "Leave the locks on, and let each process create a file of its own, with mode 'x'"
    )


def _size_of(path: str) -> int | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_size if stat.S_ISREG(info.st_mode) else None


# ---- whether HDF5 locks

_OFF, _ON, _BEST_EFFORT = (False, False), (True, False), (True, True)
_ASKED = {False: _OFF, "false": _OFF, True: _ON, "true": _ON, "best-effort": _BEST_EFFORT}


def locks_are_on(locking: object) -> bool:
    """Whether HDF5 locks a file that is opened with this value of `locking`."""
    asked = _ASKED.get(locking) if isinstance(locking, str | bool) else None
    try:
        return _try_locks(asked)
    except OSError:  # no room for a file, or no descriptor: what can be read has to do
        return asked != _OFF and os.environ.get("HDF5_USE_FILE_LOCKING", "").upper() not in ("FALSE", "0")


@functools.lru_cache(maxsize=4)
def _try_locks(asked: tuple[bool, bool] | None) -> bool:
    """Tried on a file of its own: the variable counts as it was when h5py was imported, and beats the argument."""
    access = h5p.create(h5p.FILE_ACCESS)  # not by h5py.File: that is guarded
    if asked is not None and hasattr(access, "set_file_locking"):  # else h5py refuses the argument by itself
        access.set_file_locking(*asked)
    with tempfile.NamedTemporaryFile(prefix="holdfast-locks-") as mine:
        theirs = h5f.create(os.fsencode(mine.name), h5f.ACC_TRUNC, fapl=access)
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            theirs.close()
    return False


# What a forked child does with the HDF5 files that its parent has open for writing.
#
# The child has a copy of the parent's cache. At its normal exit the library writes that over what the parent wrote
# since (3,200 rows became 800), and frees the parent's lock. So in the child every such file is cut off from its
# descriptor and closed then: its last words go to /dev/null, and whoever uses it is told. Cut off but left open, what
# a child writes would be lost without a word.
#
# Files open for reading are left alone: HDF5 reads with `pread`, and 6,000 of 6,000 reads through an inherited handle
# were right. Those read through a Python file object share one offset with the parent (up to 661 of 6,000 wrong): they
# are closed, too.

_THINGS = h5f.OBJ_FILE | h5f.OBJ_DATASET | h5f.OBJ_GROUP | h5f.OBJ_ATTR
_between_calls = h5py.version.version_tuple[:2] >= (3, 14)
_BY_NUMBER = {h5fd.SEC2}  # drivers that tell their descriptor


class OpenedFile:
    """The h5py.File objects opened for writing, so that a child's use of one can be named."""

    def __init__(self) -> None:
        self._files: dict[int, weakref.ref[Any]] = {}

    def add(self, file: Any) -> None:
        key = id(file)  # equality of h5py objects asks the library
        self._files[key] = weakref.ref(file, lambda _: self._files.pop(key, None))

    def refuse_in_child(self, parent: int) -> None:
        for ref in list(self._files.values()):
            if (file := ref()) is not None:
                try:
                    file.__class__ = _refusing(type(file), parent)
                except TypeError:
                    pass  # a class of somebody's that cannot be taken over: it is closed, and h5py says so
        self._files.clear()


def _refusing(kind: type, parent: int) -> type:
    """The same class, but its id, through which everything goes, cannot be had."""

    def get_id(self: Any) -> Any:
        raise ForkedWriterError(
            f"this HDF5 file was opened for writing by process {parent}; process {os.getpid()} was forked from it and "
            "must not use it: open a file of its own in the child"
        )

    quiet = {"close": lambda self: None, "__exit__": lambda self, *exc: None, "__bool__": lambda self: False}
    words = {"__repr__": lambda self: f"<HDF5 file of process {parent}, inherited>", "__module__": kind.__module__}
    return type(kind.__name__, (kind,), {"id": property(get_id), **quiet, **words})


def fork_between_calls() -> None:
    """No fork while a thread is in the library, whose state the child would have half-way. h5py does so since 3.14."""
    global _between_calls
    if not _between_calls:
        _between_calls = True
        phil = h5py._objects.phil
        os.register_at_fork(before=phil.acquire, after_in_parent=phil.release, after_in_child=phil.release)


def cut_off_inherited() -> None:
    """In a child, right after the fork."""
    phil = h5py._objects.phil
    if not phil.acquire(False):
        return  # a thread that is not here was in the library: it cannot be asked
    try:
        doomed = [fid for fid in _open_files() if _cut(fid)]
        for fid in doomed:
            _close(fid)
    finally:
        phil.release()


def _open_files() -> list[Any]:
    """By way of everything that is open: a dataset keeps its file open when the File object is long gone."""
    found = {}
    for thing in h5f.get_obj_ids(h5f.OBJ_ALL, _THINGS):
        try:
            fid = h5i.get_file_id(thing)
            found[fid.id] = fid
        except (TypeError, ValueError, RuntimeError):
            continue  # of no file
    return list(found.values())


def _cut(fid: Any) -> bool:
    """True: it can be closed without harm now."""
    driver = fid.get_access_plist().get_driver()
    writes = bool(fid.get_intent() & h5f.ACC_RDWR)
    if driver == h5fd.fileobj_driver:
        return not writes  # what it would write goes through the user's own object, which cannot be cut off
    if not writes:
        return False
    own = REAL.own_pid()
    # The drivers core and stdio do not expose their descriptor.
    fds = [fid.get_vfd_handle()] if driver in _BY_NUMBER else [one.fd for one in writers_of(fid.name, pids=[own or 0])]
    if any(_is_cut(fd) for fd in fds):
        return False  # by its owner, which may do so again: the number must stay its own
    for fd in fds:
        _lead_nowhere(fd)
    return True


def _is_cut(fd: int) -> bool:
    target = readlink_or_none(REAL, f"/proc/self/fd/{fd}") or ""
    return target.startswith(("/memfd:holdfast-", os.devnull))


def _lead_nowhere(fd: int) -> None:
    """The number stays taken and leads to /dev/null. Closed first, so that it works when there is none to spare: the
    child has one thread, nobody can take the number in between."""
    os.close(fd)
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    if null != fd:
        os.dup2(null, fd, inheritable=False)
        os.close(null)


def _close(fid: Any) -> None:
    try:
        h5py.File(fid).close()
    except (OSError, RuntimeError, ValueError):
        pass  # it is cut off from its file already: there is nothing left to lose


# A guard for code that opens h5py.File by itself: what would lose data is refused before it happens, by name.


def _reference(self: Any, name: Any, mode: str = "r", driver: str | None = None, *rest: Any, **kwds: Any) -> None: ...


# Somebody may have wrapped it before, and hidden its arguments.
_SIGNATURE = inspect.signature(h5py.File.__init__)
if "name" not in _SIGNATURE.parameters:
    _SIGNATURE = inspect.signature(_reference)

_TRIES = 6
_FIRST_PAUSE_S = 0.002


def protect_h5py(*, overwrite: bool = False) -> Protection:
    """Guards every h5py.File opened from now on in this process and those forked from it, until `undo()`.

    Refused: mode `w` on a file that has something in it (`overwrite` allows it); writing to a file that another process
    holds; writing with HDF5's locks off. A forked child is cut off from files its parent has open for writing. May be
    called any number of times; each call's `undo()` counts, and one call without `overwrite` is enough to refuse.
    """
    return _GUARD.start(overwrite)


class Protection:
    """One call's share in the guard. The block of a `with`, or until `undo()`, which may be called twice."""

    def __init__(self, overwrite: bool) -> None:
        self.overwrite = overwrite

    @property
    def active(self) -> bool:
        return _GUARD.has(self)

    def undo(self) -> None:
        _GUARD.end(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


class _Guard:
    """In the place of h5py.File.__init__ while anybody wants it there."""

    def __init__(self) -> None:
        self._wanted: list[Protection] = []
        self._turn = threading.Lock()
        self._opened = OpenedFile()
        self._original: Callable[..., None] = h5py.File.__init__
        self._wrapper: Callable[..., None] | None = None
        self._pid = os.getpid()
        self._hooked = False

    def start(self, overwrite: bool) -> Protection:
        made = Protection(overwrite)
        with self._turn:
            self._wanted.append(made)
            if self._wrapper is None or h5py.File.__init__ is not self._wrapper:
                self._original = h5py.File.__init__
                self._wrapper = h5py.File.__init__ = self._wrap(self._original)
            self._pid = os.getpid()
            fork_between_calls()
            call_after_fork(self)
            self._come_last()
        return made

    def end(self, protection: Protection) -> None:
        with self._turn:
            if protection in self._wanted:
                self._wanted.remove(protection)
            # Where somebody else wrapped it since, ours stays inside theirs and lets everything pass.
            if not self._wanted and h5py.File.__init__ is self._wrapper:
                h5py.File.__init__ = self._original
                self._wrapper = None

    def has(self, protection: Protection) -> bool:
        return protection in self._wanted

    def _wrap(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(file: Any, *args: Any, **kwds: Any) -> None:
            request = _read(file, *args, **kwds) if self._wanted else None
            if request is None:
                original(file, *args, **kwds)
                return

            def attempt() -> None:
                if request.writes:
                    refuse_harm(request, overwrite=self._may_overwrite())
                original(file, *args, **kwds)

            _open(attempt, request)
            if request.writes:
                self._opened.add(file)

        return __init__

    def _may_overwrite(self) -> bool:
        asked = os.environ.get(OVERWRITE_VARIABLE, "") not in ("", "0")
        return asked or all(one.overwrite for one in list(self._wanted))

    def after_fork_in_child(self) -> None:
        self._turn = threading.Lock()  # the thread that may have had it is not here
        call_after_fork(self)  # whoever was told is forgotten: a child's own children count, too

    def _come_last(self) -> None:
        """After all that `tell_after_fork` tells: holdfast's own writers have cut off their files by then."""
        if not self._hooked:
            self._hooked = True
            os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        parent, self._pid = self._pid, os.getpid()
        if self._wanted:
            cut_off_inherited()
            self._opened.refuse_in_child(parent)


def _read(*args: Any, **kwds: Any) -> Request | None:
    try:
        return request_of(_SIGNATURE.bind(*args, **kwds).arguments)
    except TypeError:
        return None  # h5py says what is wrong with it


def _open(attempt: Callable[[], None], request: Request) -> None:
    """Tries again what passes by itself: a lock that a child has from its fork to its first step, and the size that
    HDF5 asks for before it locks, so that a file its writer closes just then is "truncated" though it is whole."""
    pause_s = _FIRST_PAUSE_S
    for left in reversed(range(_TRIES)):
        try:
            return attempt()
        except OSError as error:
            locked = error.errno == errno.EAGAIN or "unable to lock file" in str(error)
            told = held_error(request, certain=True) if locked and not isinstance(error, HeldFileError) else None
            passing = getattr(told or error, "passing", False) or "truncated file" in str(error)
            if left and passing:
                time.sleep(pause_s)
                pause_s *= 2
                continue
            if told is not None:
                raise told from error
            raise
    return None


_GUARD = _Guard()
