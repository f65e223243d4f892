"""Makes h5py.File raise before it opens a file for writing in a way that could lose data.

h5py itself does the harm first and raises then, or never. Measured: mode `w` truncates a file that another process has
locked, then raises Errno 11. Four processes in mode `a` with locks off: no error, and three quarters of the data lost,
in 25 of 25 runs.
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

from .._util.fds import point_to_null
from .._util.process import call_after_fork
from .._util.text import format_bytes, one_line
from ..errors import ForkedWriterError, TargetExistsError, WriteError, WriterBusyError
from ..procfs.locks import LockKind, locks_of, writers_of
from ..procfs.procfs import REAL, readlink_or_none

OVERWRITE_VARIABLE = "HOLDFAST_H5PY_OVERWRITE"
_DRIVERS = (None, "sec2", "stdio", "direct", "core", "log")  # those that use one file of the given name


class HeldFileError(WriterBusyError, BlockingIOError):
    """Another process has locked the file. It is a BlockingIOError, so that code that retries on h5py's own Errno 11
    works.

    `passing`: the lock may be released soon, as by a child right after its fork.
    """

    passing = False


class ExistingFileError(TargetExistsError, FileExistsError):
    """Mode `w` would have truncated a file."""


class UnlockedWriteError(WriteError, PermissionError):
    """The file would have been written with HDF5's locks switched off."""


class Request(NamedTuple):
    """The arguments of h5py.File that decide whether data can be lost."""

    path: str
    mode: str
    locking: object = None

    @property
    def writes(self) -> bool:
        return self.mode != "r"


def parse_request(arguments: dict[str, object]) -> Request | None:
    """Returns None if there is nothing to guard, such as a Python file object, a file's id, or a file in memory."""
    name, mode, driver = arguments.get("name"), arguments.get("mode", "r"), arguments.get("driver")
    extra = arguments.get("kwds")
    extra = extra if isinstance(extra, dict) else {}
    in_memory = driver == "core" and not extra.get("backing_store", True)
    if not isinstance(name, str | bytes | os.PathLike) or hasattr(name, "read") or driver not in _DRIVERS or in_memory:
        return None
    if mode not in ("r", "r+", "a", "w", "w-", "x"):
        return None  # h5py reports the error
    return Request(os.fsdecode(name), str(mode), arguments.get("locking", extra.get("locking")))


def check_request(request: Request, *, overwrite: bool) -> None:
    """Raises if opening the file for writing could lose data. Opens and changes nothing."""
    if request.mode in ("x", "w-"):
        return  # O_EXCL lets only one process create it: no lock is needed
    if not locks_are_on(request.locking):
        raise UnlockedWriteError(errno.EPERM, _unlocked_message(request))
    size_bytes = _size_of(request.path)
    if size_bytes is None:
        return
    if request.mode == "w" and size_bytes and not overwrite:
        text = (
            f"{request.path} exists, and mode 'w' would delete its {format_bytes(size_bytes)} at once. "
            "Create it with mode 'x', or write under another name and os.replace() it when it is complete; "
            f"protect_h5py(overwrite=True) or {OVERWRITE_VARIABLE}=1 allows it"
        )
        raise ExistingFileError(errno.EEXIST, text)
    if (error := held_error(request)) is not None:
        raise error


def held_error(request: Request, *, certain: bool = False) -> HeldFileError | None:
    """Returns an error that names the holder; None if there is none, unless it is certain that there is one."""
    who, inherited = _holder_of(request.path)
    if not who and not certain:
        return None
    reason = who or "a process that is not visible from here has it locked, or has just unlocked it"
    error = HeldFileError(errno.EAGAIN, f"{request.path} cannot be opened with mode {request.mode!r}: {reason}")
    error.passing = inherited or not who
    return error


def _holder_of(path: str) -> tuple[str, bool]:
    """Returns e.g. `process 12 (python train.py) has it locked`, and whether that lock was inherited.

    "" if no other process holds it, as far as visible, or if this one does: HDF5 knows its own open files, and a child
    may have inherited one.
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
            return "a process that is not visible from here has it locked", False
        how = "inherited its lock" if lock.inherited else "has it locked"
        return f"process {lock.pid} ({one_line(lock.command)}) {how}", lock.inherited
    writers = writers_of(path)
    if writers and not any(one.pid == own for one in writers):
        who = f"process {writers[0].pid} ({one_line(writers[0].command)})"
        return f"{who} has it open for writing, without a lock", False
    return "", False


def _unlocked_message(request: Request) -> str:
    given = "" if request.locking is None else f" or locking={request.locking!r}"
    return (
        f"{request.path} cannot be opened with mode {request.mode!r} while HDF5's locks are off "
        f"(HDF5_USE_FILE_LOCKING=FALSE{given}): two such writers silently destroy each other's data. "
        "Leave the locks on, and let each process create its own file with mode 'x'"
    )


def _size_of(path: str) -> int | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_size if stat.S_ISREG(info.st_mode) else None


# ---- whether HDF5 locks

_OFF, _ON, _BEST_EFFORT = (False, False), (True, False), (True, True)
_LOCKING = {False: _OFF, "false": _OFF, True: _ON, "true": _ON, "best-effort": _BEST_EFFORT}


def locks_are_on(locking: object) -> bool:
    """Tells whether HDF5 locks a file that is opened with this value of `locking`."""
    requested = _LOCKING.get(locking) if isinstance(locking, str | bool) else None
    try:
        return _probe_locks(requested)
    except OSError:  # no disk space or descriptor: falls back to the variable
        return requested != _OFF and os.environ.get("HDF5_USE_FILE_LOCKING", "").upper() not in ("FALSE", "0")


@functools.lru_cache(maxsize=4)
def _probe_locks(requested: tuple[bool, bool] | None) -> bool:
    """Probes with a temporary file: the variable counts as at h5py's import, and overrides the argument."""
    access = h5p.create(h5p.FILE_ACCESS)  # not h5py.File, which is guarded
    if requested is not None and hasattr(access, "set_file_locking"):  # else h5py rejects the argument
        access.set_file_locking(*requested)
    with tempfile.NamedTemporaryFile(prefix="holdfast-locks-") as mine:
        theirs = h5f.create(os.fsencode(mine.name), h5f.ACC_TRUNC, fapl=access)
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            theirs.close()
    return False


# ---- inherited files
#
# A forked child has a copy of the parent's cache. At a normal exit of the child the library writes it over what the
# parent wrote since (3,200 rows became 800), and frees the parent's lock. So a child points the descriptor of every
# such file to /dev/null, closes the file, and raises where it is used. Were it left open, writes of the child would be
# lost silently.
#
# Files open for reading are left alone: HDF5 reads with `pread`, and 6,000 of 6,000 reads through an inherited handle
# were right. Those read through a Python file object share one offset with the parent (up to 661 of 6,000 were wrong):
# they are closed as well.

_OBJECT_KINDS = h5f.OBJ_FILE | h5f.OBJ_DATASET | h5f.OBJ_GROUP | h5f.OBJ_ATTR
_locks_at_fork = h5py.version.version_tuple[:2] >= (3, 14)
_FD_DRIVERS = {h5fd.SEC2}  # drivers that return their descriptor


class OpenedFiles:
    """The h5py.File objects opened for writing, so that their use in a child raises."""

    def __init__(self) -> None:
        self._files: dict[int, weakref.ref[Any]] = {}

    def add(self, file: Any) -> None:
        key = id(file)  # comparing h5py objects calls the library
        self._files[key] = weakref.ref(file, lambda _: self._files.pop(key, None))

    def disable_in_child(self, parent: int) -> None:
        for ref in list(self._files.values()):
            if (file := ref()) is not None:
                try:
                    file.__class__ = _disabled_class(type(file), parent)
                except TypeError:
                    pass  # an incompatible subclass: the file is closed, and h5py reports that
        self._files.clear()


def _disabled_class(kind: type, parent: int) -> type:
    """Returns a subclass whose id, which every operation needs, raises."""

    def get_id(self: Any) -> Any:
        raise ForkedWriterError(
            f"this HDF5 file was opened for writing by process {parent}; process {os.getpid()} was forked from it and "
            "must not use it: open another file in the child"
        )

    quiet = {"close": lambda self: None, "__exit__": lambda self, *exc: None, "__bool__": lambda self: False}
    words = {"__repr__": lambda self: f"<HDF5 file of process {parent}, inherited>", "__module__": kind.__module__}
    return type(kind.__name__, (kind,), {"id": property(get_id), **quiet, **words})


def hold_lock_at_fork() -> None:
    """Makes forks wait until no thread is inside the library: the child would get an inconsistent state. h5py does so
    since 3.14."""
    global _locks_at_fork
    if not _locks_at_fork:
        _locks_at_fork = True
        phil = h5py._objects.phil
        os.register_at_fork(before=phil.acquire, after_in_parent=phil.release, after_in_child=phil.release)


def detach_inherited() -> None:
    """Detaches inherited files. To be called in a child, right after the fork."""
    phil = h5py._objects.phil
    if not phil.acquire(False):
        return  # a thread that does not exist here was inside the library
    try:
        closable = [fid for fid in _open_files() if _detach(fid)]
        for fid in closable:
            _close(fid)
    finally:
        phil.release()


def _open_files() -> list[Any]:
    """Returns the files of all open objects: a dataset keeps its file open when the File object is gone."""
    found = {}
    for obj in h5f.get_obj_ids(h5f.OBJ_ALL, _OBJECT_KINDS):
        try:
            fid = h5i.get_file_id(obj)
            found[fid.id] = fid
        except (TypeError, ValueError, RuntimeError):
            continue  # it belongs to no file
    return list(found.values())


def _detach(fid: Any) -> bool:
    """Returns whether the file can be closed without harm now."""
    driver = fid.get_access_plist().get_driver()
    writes = bool(fid.get_intent() & h5f.ACC_RDWR)
    if driver == h5fd.fileobj_driver:
        return not writes  # it writes through the user's object, which cannot be detached
    if not writes:
        return False
    # The core and stdio drivers do not expose their descriptors.
    own = REAL.own_pid() or 0
    fds = [fid.get_vfd_handle()] if driver in _FD_DRIVERS else [one.fd for one in writers_of(fid.name, pids=[own])]
    if any(_is_detached(fd) for fd in fds):
        return False  # by its owner, which may close the number again
    for fd in fds:
        point_to_null(fd)
    return True


def _is_detached(fd: int) -> bool:
    target = readlink_or_none(REAL, f"/proc/self/fd/{fd}") or ""
    return target.startswith(("/memfd:holdfast-", os.devnull))


def _close(fid: Any) -> None:
    try:
        h5py.File(fid).close()
    except (OSError, RuntimeError, ValueError):
        pass  # it is detached already


# ---- the guard


def _reference(self: Any, name: Any, mode: str = "r", driver: str | None = None, *rest: Any, **kwds: Any) -> None: ...


# Another wrapper may hide the arguments.
_SIGNATURE = inspect.signature(h5py.File.__init__)
if "name" not in _SIGNATURE.parameters:
    _SIGNATURE = inspect.signature(_reference)

_TRIES = 6
_FIRST_PAUSE_S = 0.002


def protect_h5py(*, overwrite: bool = False) -> Protection:
    """Guards every h5py.File opened from now on in this process and those forked from it, until `undo()`.

    Raises for mode `w` on a file that is not empty (`overwrite` allows it); for writing to a file that another process
    has locked; for writing with HDF5's locks off. A forked child is detached from files its parent has open for
    writing. May be called any number of times; each call needs its own `undo()`, and one call without `overwrite` is
    enough to raise.
    """
    return _GUARD.start(overwrite)


class Protection:
    """The result of one call: a context manager, or active until `undo()`, which may be called twice."""

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
    """Replaces h5py.File.__init__ while any protection is active."""

    def __init__(self) -> None:
        self._active: list[Protection] = []
        self._lock = threading.Lock()
        self._opened = OpenedFiles()
        self._original: Callable[..., None] = h5py.File.__init__
        self._wrapper: Callable[..., None] | None = None
        self._pid = os.getpid()
        self._hooked = False

    def start(self, overwrite: bool) -> Protection:
        made = Protection(overwrite)
        with self._lock:
            self._active.append(made)
            if self._wrapper is None or h5py.File.__init__ is not self._wrapper:
                self._original = h5py.File.__init__
                self._wrapper = h5py.File.__init__ = self._wrap(self._original)
            self._pid = os.getpid()
            hold_lock_at_fork()
            call_after_fork(self)
            self._register_hook()
        return made

    def end(self, protection: Protection) -> None:
        with self._lock:
            if protection in self._active:
                self._active.remove(protection)
            # If it was wrapped again since, our wrapper stays inside and does nothing.
            if not self._active and h5py.File.__init__ is self._wrapper:
                h5py.File.__init__ = self._original
                self._wrapper = None

    def has(self, protection: Protection) -> bool:
        return protection in self._active

    def _wrap(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(file: Any, *args: Any, **kwds: Any) -> None:
            request = _request_of_call(file, *args, **kwds) if self._active else None
            if request is None:
                original(file, *args, **kwds)
                return

            def attempt() -> None:
                if request.writes:
                    check_request(request, overwrite=self._may_overwrite())
                original(file, *args, **kwds)

            _open(attempt, request)
            if request.writes:
                self._opened.add(file)

        return __init__

    def _may_overwrite(self) -> bool:
        asked = os.environ.get(OVERWRITE_VARIABLE, "") not in ("", "0")
        return asked or all(one.overwrite for one in list(self._active))

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()  # a thread that held it does not exist here
        call_after_fork(self)  # again in every child, whose own children count as well

    def _register_hook(self) -> None:
        """Runs after the hooks of `call_after_fork`: holdfast's own writers have detached their files by then."""
        if not self._hooked:
            self._hooked = True
            os.register_at_fork(after_in_child=self._detach_in_child)

    def _detach_in_child(self) -> None:
        parent, self._pid = self._pid, os.getpid()
        if self._active:
            detach_inherited()
            self._opened.disable_in_child(parent)


def _request_of_call(*args: Any, **kwds: Any) -> Request | None:
    try:
        return parse_request(_SIGNATURE.bind(*args, **kwds).arguments)
    except TypeError:
        return None  # h5py reports the error


def _open(attempt: Callable[[], None], request: Request) -> None:
    """Retries temporary errors: a lock that a child inherits for a moment at its fork, and "truncated file", which HDF5
    reports if a writer closes the file between its query of the size and its lock."""
    pause_s = _FIRST_PAUSE_S
    for left in reversed(range(_TRIES)):
        try:
            return attempt()
        except OSError as error:
            locked = error.errno == errno.EAGAIN or "unable to lock file" in str(error)
            held = held_error(request, certain=True) if locked and not isinstance(error, HeldFileError) else None
            passing = getattr(held or error, "passing", False) or "truncated file" in str(error)
            if left and passing:
                time.sleep(pause_s)
                pause_s *= 2
                continue
            if held is not None:
                raise held from error
            raise
    return None


_GUARD = _Guard()
