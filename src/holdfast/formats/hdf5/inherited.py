"""What a forked child does with the HDF5 files that its parent has open for writing.

The child has a copy of the parent's cache. At its normal exit the library writes that over what the parent wrote since
(3,200 rows became 800), and frees the parent's lock. So in the child every such file is cut off from its descriptor and
closed then: its last words go to /dev/null, and whoever uses it is told. Cut off but left open, what a child writes
would be lost without a word.

Files open for reading are left alone: HDF5 reads with `pread`, and 6,000 of 6,000 reads through an inherited handle
were right. Those read through a Python file object share one offset with the parent (up to 661 of 6,000 wrong): they
are closed, too.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import h5py
from h5py import h5f, h5fd, h5i

from ...errors import ForkedWriterError

_THINGS = h5f.OBJ_FILE | h5f.OBJ_DATASET | h5f.OBJ_GROUP | h5f.OBJ_ATTR
_between_calls = h5py.version.version_tuple[:2] >= (3, 14)
_BY_NUMBER = {h5fd.SEC2}  # drivers that tell their descriptor


class Opened:
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
    fds = [fid.get_vfd_handle()] if driver in _BY_NUMBER else _writing_to(fid.name)
    if any(_is_cut(fd) for fd in fds):
        return False  # by its owner, which may do so again: the number must stay its own
    for fd in fds:
        _lead_nowhere(fd)
    return True


def _is_cut(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(("/memfd:holdfast-", os.devnull))
    except OSError:
        return False


def _writing_to(name: bytes) -> list[int]:
    """This process's descriptors of a file that are open for writing: core and stdio do not tell theirs."""
    found = []
    try:
        want = os.stat(name)
        for fd in map(int, os.listdir("/proc/self/fd")):
            with open(f"/proc/self/fdinfo/{fd}") as file:
                flags = int(file.read().split("flags:")[1].split()[0], 8)
            got = os.stat(f"/proc/self/fd/{fd}")
            if (got.st_dev, got.st_ino) == (want.st_dev, want.st_ino) and flags & os.O_ACCMODE != os.O_RDONLY:
                found.append(fd)
    except OSError:
        pass
    return found


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
