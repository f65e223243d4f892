"""What is refused before h5py opens a file for writing: h5py would do the harm first and complain then, or never.

Measured: mode `w` empties a file that another process holds, then raises Errno 11. Four processes in mode `a` with
locks off: no error, and three quarters of the data gone, 25 times out of 25.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import stat
import tempfile
from typing import NamedTuple

from h5py import h5f, h5p

from ..._base.text import one_line
from ..._base.units import format_bytes
from ...errors import TargetExistsError, WriteError, WriterBusyError
from ...proc.holders import writers_of
from ...proc.locks import LockKind, locks_of

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
