"""Messages between a pool, its fork server and its workers.

A message is one small packet on a SOCK_SEQPACKET socket, with descriptors where needed. Data goes through a slot of
shared memory, pickled with protocol 5: large buffers stay out of the pickle stream, so an array is copied once into the
slot and once out of it, each into memory of its own.

    slot: number of parts, the length of each part, then the parts: the pickle stream, then the buffers
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from ...formats.columns import ColumnPickler
from .shared_memory import NO_SAMPLE
from .worker_init import import_main

Label = Callable[[int], str] | Sequence[str] | None

MAX_TEXT_BYTES = 32 << 10
_HEAD = struct.Struct("<BIqQQ")
_MAX_BYTES = 64 << 10
_MAX_DESCRIPTORS = 16
_ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Task:
    """`data` for the work; `label` names sample i of it in messages: a function of i, or the names themselves."""

    data: Any
    label: Label = None


@dataclass(slots=True, eq=False)
class Job:
    """A task that was sent, or could not be. When it is `done`, it has a `value` or an `error`."""

    number: int
    run: int
    label: Label
    done: bool = False
    value: Any = None
    error: Exception | None = None

    def finish(self, value: Any = None, error: Exception | None = None) -> None:
        self.done, self.value, self.error = True, value, error

    def sample_name(self, sample: int) -> str:
        if sample == NO_SAMPLE:
            return f"task {self.number}, before its first sample"
        with suppress(Exception):  # a label that raises must not hide the error that it is asked for
            if callable(self.label):
                return str(self.label(sample))
            if self.label is not None:
                return str(self.label[sample])
        return f"sample {sample} of task {self.number}"


class MessageKind(IntEnum):
    SETUP = 1  # to the fork server and to workers: their descriptors
    START = 2  # to the fork server: start worker `number`
    STARTED = 3  # from the fork server: `value` is the pid; with the pidfd
    ENDED = 4  # from the fork server: `value` is the exit code, negative for a signal
    HELLO = 5  # from a worker: it dumps its stack from now on when it is asked to
    READY = 6  # from a worker: it has loaded its work
    FAILED = 7  # from a worker: it could not load its work; `text` is the traceback
    TASK = 8  # to a worker: the data is in slot `number`
    RESULT = 9  # from a worker: the result is in slot `number`
    RAISED = 10  # from a worker: the error is in slot `number`
    SKIPPED = 11  # from a worker: the task belonged to a run that was closed


class WorkerMessage(NamedTuple):
    kind: MessageKind
    number: int = 0
    value: int = 0
    task: int = 0
    run: int = 0
    text: bytes = b""


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: WorkerMessage, descriptors: Sequence[int] = ()) -> None:
    data = _HEAD.pack(*message[:5]) + message.text[:MAX_TEXT_BYTES]
    socket.send_fds(sock, [data], list(descriptors))


def receive(sock: socket.socket, *, wait: bool = True) -> tuple[WorkerMessage | None, list[int]]:
    """Returns the next message, None if the peer is gone, and its descriptors.

    Raises BlockingIOError without `wait` when there is no message.
    """
    flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
    try:
        data, extra = _receive_once(sock, flags)
    except (ConnectionResetError, BrokenPipeError):
        # The peer ended without reading all of ours. The kernel reports that once, before what the peer sent.
        data, extra = _receive_once(sock, flags)
    if not data:
        return None, []
    descriptors = array("i")
    for passed in extra:
        descriptors.frombytes(passed)
    kind, number, value, task, run = _HEAD.unpack_from(data)
    return WorkerMessage(MessageKind(kind), number, value, task, run, data[_HEAD.size :]), list(descriptors)


def _receive_once(sock: socket.socket, flags: int) -> tuple[bytes, list[bytes]]:
    # socket.recv_fds ignores its flags.
    data, extra, _, _ = sock.recvmsg(_MAX_BYTES, socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS), flags)
    return data, [passed for _, _, passed in extra]


class Payload:
    """A pickled object that takes `n_bytes` of a slot. The buffers are still the object's own until write()."""

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        ColumnPickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
        self._parts: list[memoryview] = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
        lengths = [len(part) for part in self._parts]
        self._head = struct.pack(f"<{len(lengths) + 1}Q", len(lengths), *lengths)
        self._starts, self.n_bytes = _place_parts(lengths)

    def write(self, slot: memoryview) -> None:
        slot[: len(self._head)] = self._head
        for start, part in zip(self._starts, self._parts, strict=True):
            slot[start : start + len(part)] = part


def unpack(slot: memoryview) -> Any:
    """Rebuilds the object in a slot from copies of its parts."""
    (n_parts,) = struct.unpack_from("<Q", slot)
    lengths = struct.unpack_from(f"<{n_parts}Q", slot, 8)
    starts, _ = _place_parts(lengths)
    stream, *buffers = (bytearray(slot[start : start + length]) for start, length in zip(starts, lengths, strict=True))
    return _Unpickler(io.BytesIO(stream), buffers=buffers).load()


def _place_parts(lengths: Sequence[int]) -> tuple[list[int], int]:
    starts = []
    end = 8 * (len(lengths) + 1)
    for length in lengths:
        end = -(-end // _ALIGN_BYTES) * _ALIGN_BYTES
        starts.append(end)
        end += length
    return starts, end


class _Unpickler(pickle.Unpickler):
    """Imports the main script of the pool's process when something of it is needed."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__":
            import_main()
        return super().find_class(module, name)


def load(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()
