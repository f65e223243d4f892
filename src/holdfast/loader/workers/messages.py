"""One task on its way: what it is called, and what came of it."""

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

from ...formats.columns import BytesColumn, RaggedColumn, ZeroCopyBytesColumn
from .shared_memory import NO_SAMPLE
from .worker_init import load_main

Label = Callable[[int], str] | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Task:
    """`data` for the work; `label` names sample i of it in messages: a function of i, or the names themselves."""

    data: Any
    label: Label = None


@dataclass(slots=True, eq=False)
class Job:
    """A task's place in the order of results. `settled`: it has its `value`, or its `error`."""

    number: int
    run: int
    label: Label
    settled: bool = False
    value: Any = None
    error: Exception | None = None

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        self.settled, self.value, self.error = True, value, error

    def name(self, sample: int) -> str:
        if sample == NO_SAMPLE:
            return f"task {self.number}, before its first sample"
        with suppress(Exception):  # a message about one error is not the place for another
            if callable(self.label):
                return str(self.label(sample))
            if self.label is not None:
                return str(self.label[sample])
        return f"sample {sample} of task {self.number}"


# The messages between a pool, its seed and its workers: small, whole, and with descriptors where needed.
#
# A SOCK_SEQPACKET socket keeps messages apart and says when the far end is gone. Data goes through shared memory.

_HEAD = struct.Struct("<BIqQQ")
_MOST_BYTES = 64 << 10
_MOST_DESCRIPTORS = 16
MOST_TEXT = 32 << 10


class MessageKind(IntEnum):
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
    data = _HEAD.pack(*message[:5]) + message.text[:MOST_TEXT]
    socket.send_fds(sock, [data], list(descriptors))


def receive(sock: socket.socket, *, wait: bool = True) -> tuple[WorkerMessage | None, list[int]]:
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
    return WorkerMessage(MessageKind(kind), number, value, task, run, data[_HEAD.size :]), list(descriptors)


def _receive_once(sock: socket.socket, flags: int) -> tuple[bytes, list[bytes]]:
    # Not socket.recv_fds: it forgets the flags.
    data, extra, _, _ = sock.recvmsg(_MOST_BYTES, socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS), flags)
    return data, [passed for _, _, passed in extra]


# Any object as bytes in shared memory, and back as ordinary memory.
#
# Pickle's protocol 5 gives large buffers apart from its stream, so an array is copied once into the slot and once out
# of it. Each comes out in memory of its own: to keep one is not to keep them all.
#
# in a slot:  how many parts, the length of each, then the parts: the stream first, then the buffers

_ALIGN_BYTES = 64


class Payload:
    """An object made ready; `n_bytes` is what it takes in a slot. The buffers are still the object's own."""

    def __init__(self, thing: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(thing)
        self._parts: list[memoryview] = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
        lengths = [len(part) for part in self._parts]
        self._head = struct.pack(f"<{len(lengths) + 1}Q", len(lengths), *lengths)
        self._starts, self.n_bytes = _place(lengths)

    def write(self, slot: memoryview) -> None:
        slot[: len(self._head)] = self._head
        for start, part in zip(self._starts, self._parts, strict=True):
            slot[start : start + len(part)] = part


def unpack(slot: memoryview) -> Any:
    """What was written, copied out."""
    (n_parts,) = struct.unpack_from("<Q", slot)
    lengths = struct.unpack_from(f"<{n_parts}Q", slot, 8)
    starts, _ = _place(lengths)
    stream, *buffers = (bytearray(slot[start : start + length]) for start, length in zip(starts, lengths, strict=True))
    return _Unpickler(io.BytesIO(stream), buffers=buffers).load()


def _place(lengths: Sequence[int]) -> tuple[list[int], int]:
    starts = []
    end = 8 * (len(lengths) + 1)
    for length in lengths:
        end = -(-end // _ALIGN_BYTES) * _ALIGN_BYTES
        starts.append(end)
        end += length
    return starts, end


class _Pickler(pickle.Pickler):
    """Columns go without what they share with others, and memoryviews go at all."""

    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        if kind is memoryview:
            return _view, (_flat(thing), thing.format, thing.shape)
        if kind is BytesColumn:
            return BytesColumn, (thing.values, thing.offsets, thing.per_item)
        if kind is ZeroCopyBytesColumn:
            joined = thing.copy()
            return BytesColumn, (joined.values, joined.offsets, joined.per_item)
        if kind is RaggedColumn:
            return RaggedColumn, (thing.values, thing.row_splits)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__":
            load_main()
        return super().find_class(module, name)


def load(data: bytes) -> Any:
    """What pickle alone made, in a worker that may not have its main script yet."""
    return _Unpickler(io.BytesIO(data)).load()


def _flat(view: memoryview) -> pickle.PickleBuffer | bytes:
    return pickle.PickleBuffer(view) if view.c_contiguous else view.tobytes()


def _view(data: Any, form: Any, shape: tuple[int, ...]) -> memoryview:
    view = memoryview(data).cast("B")
    return view if (form == "B" and len(shape) == 1) or 0 in shape else view.cast(form, shape)
