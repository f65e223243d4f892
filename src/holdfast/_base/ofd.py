"""Locks of an open file (`F_OFD_SETLK`), on the whole of it.

A lock of a process (`lockf`) is gone as soon as the process closes any descriptor of that file, wherever in its code.
A lock of an open file goes with that open file alone, and threads exclude each other by it as processes do. A forked
child shares it: closing there does no harm, unlocking frees the parent's.
"""

from __future__ import annotations

import errno
import fcntl
import struct

# Linux's numbers: Python lacks the names where it was built against an old libc.
_SET = int(getattr(fcntl, "F_OFD_SETLK", 37))
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length (0: to the end, wherever that will be), pid (must be 0)
_TAKEN = (errno.EAGAIN, errno.EACCES)


def try_lock(fd: int, *, shared: bool) -> bool:
    """True: it has the lock. False: another open file has it. OSError: locks do not work here.

    The descriptor must be open for writing, for a shared lock for reading.
    """
    try:
        fcntl.fcntl(fd, _SET, struct.pack(_FLOCK, fcntl.F_RDLCK if shared else fcntl.F_WRLCK, 0, 0, 0, 0))
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def unlock(fd: int) -> None:
    """Frees it, also for those who inherited it."""
    fcntl.fcntl(fd, _SET, struct.pack(_FLOCK, fcntl.F_UNLCK, 0, 0, 0, 0))
