"""Memory shared by a producer and a server on the same machine: it holds the rows of a frame, and only the frame's head
crosses the socket.

The server creates it, in slots of one chunk each, and sends it with WELCOME. A producer fills a slot, names it in its
frame, and does not touch it until the frame is acknowledged. It is sealed, so neither can truncate it. It costs no
descriptor, and is freed with its last mapping.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import weakref
from typing import Any

SLOT = struct.Struct("<I")  # follows the meta of a frame if there is a shared buffer
NO_SLOT = 0xFFFFFFFF  # the payload follows on the socket

LEAST_BYTES = 1 << 16  # of a slot; the socket is as fast for less
_MAX_BYTES = 8 << 20  # of one producer; further frames use the socket
_MORE_SLOTS = 3  # than fit the window: for frames being filled and acknowledged
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class SharedBuffer:
    """Shared memory of `slots` slots, each of `slot_bytes`. Views of it keep it mapped."""

    def __init__(self, fd: int, slots: int, slot_bytes: int) -> None:
        """Maps `fd`, which the caller still owns. OSError, ValueError: it is no such memory."""
        self.slots, self.slot_bytes = slots, slot_bytes
        if slots < 1 or slot_bytes < 1 or os.fstat(fd).st_size != slots * slot_bytes:
            raise ValueError(f"expected {slots:,} slots of {slot_bytes:,} bytes")
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("expected memory that is sealed against truncation")
        self._memory = memoryview(_mapped(fd, self.bytes)).cast("B")

    @property
    def bytes(self) -> int:
        return self.slots * self.slot_bytes

    def slot(self, number: int) -> memoryview:
        if not 0 <= number < self.slots:
            raise IndexError(f"expected one of {self.slots} slots, got {number}")
        return self._memory[number * self.slot_bytes : (number + 1) * self.slot_bytes]


def slots_for(frame_bytes: int, window_bytes: int) -> tuple[int, int] | None:
    """Returns the number of slots and their size for frames of that size. None: frames are too small to gain."""
    if frame_bytes < LEAST_BYTES:
        return None
    slot_bytes = -(-frame_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return min(window_bytes, _MAX_BYTES) // slot_bytes + _MORE_SLOTS, slot_bytes


def make_shared_buffer(slots: int, slot_bytes: int) -> tuple[SharedBuffer, int]:
    """Creates one. Returns it and a descriptor to send and close. OSError: the system has no memory for it."""
    fd = os.memfd_create("holdfast-shared-buffer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, slots * slot_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return SharedBuffer(fd, slots, slot_bytes), fd
    except BaseException:
        os.close(fd)
        raise


def _mapped(fd: int, size: int) -> Any:
    """Maps with libc: Python's mmap keeps a descriptor open as long as it lives."""
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    block = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(block, _libc.munmap, address, size).atexit = False
    return block
