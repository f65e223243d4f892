"""The messages between a pool, its seed and its workers: small, whole, and with descriptors where needed.

A SOCK_SEQPACKET socket keeps messages apart and says when the far end is gone. Data goes through shared memory.
"""

from __future__ import annotations

import socket
import struct
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

_HEAD = struct.Struct("<BIqQQ")
_MOST_BYTES = 64 << 10
_MOST_DESCRIPTORS = 16
MOST_TEXT = 32 << 10


class Kind(IntEnum):
    SETUP = 1  # to seed and worker: descriptors
    START = 2  # to the seed: fork worker `number`
    STARTED = 3  # from the seed: `value` is the pid; with the pidfd
    ENDED = 4  # from the seed: `value` is the exit code, negative for a signal
    HELLO = 5  # from a worker: it can be asked for its stack
    READY = 6  # from a worker: it has what it works with
    FAILED = 7  # from a worker: it never will; `text` says why
    TASK = 8  # to a worker: the data is in slot `number`
    RESULT = 9  # from a worker: the result is in slot `number`
    RAISED = 10  # the same, with an error
    SKIPPED = 11  # from a worker: nobody waits for it any more


class Message(NamedTuple):
    kind: Kind
    number: int = 0
    value: int = 0
    task: int = 0
    run: int = 0
    text: bytes = b""


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    data = _HEAD.pack(*message[:5]) + message.text[:MOST_TEXT]
    socket.send_fds(sock, [data], list(descriptors))


def receive(sock: socket.socket, *, wait: bool = True) -> tuple[Message | None, list[int]]:
    """The next message and its descriptors. None: the far end is gone. BlockingIOError: nothing there, not waiting."""
    flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
    try:
        data, extra = _receive_once(sock, flags)
    except (ConnectionResetError, BrokenPipeError):
        # The far end went without reading all of ours. That is said first, and once: what it sent before is still here.
        data, extra = _receive_once(sock, flags)
    if not data:
        return None, []
    descriptors = array("i")
    for passed in extra:
        descriptors.frombytes(passed)
    kind, number, value, task, run = _HEAD.unpack_from(data)
    return Message(Kind(kind), number, value, task, run, data[_HEAD.size :]), list(descriptors)


def _receive_once(sock: socket.socket, flags: int) -> tuple[bytes, list[bytes]]:
    # Not socket.recv_fds: it forgets the flags.
    data, extra, _, _ = sock.recvmsg(_MOST_BYTES, socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS), flags)
    return data, [passed for _, _, passed in extra]
