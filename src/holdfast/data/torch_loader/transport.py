"""How batches get from a loader's workers into the trainer: read with a deadline, and copied out of shared memory.

- MessageReader reads the result pipe. multiprocessing reads a message in one blocking call once its first byte is
  there, so a worker that is stopped or killed in the middle of writing blocks the reader forever.
- unpack() turns a message into a batch. A message names the functions that rebuild it; unpack() replaces some of them,
  so nothing of torch or multiprocessing is patched, and a batch may have any structure.
- Copies reads tensors from shared memory as from a file. A storage that torch maps keeps a descriptor while it lives.
- SharedBatch replaces torch's "file_system" sharing, which gives each tensor a file in /dev/shm, counted by a
  torch_shm_manager process of every worker. If either is gone when a tensor is dropped, the trainer aborts. A
  SharedBatch holds all tensors of a batch in one memory file, which goes with its last descriptor.
- PinQueue feeds torch's thread that pins batches, which would otherwise wait forever for a stopped worker and end with
  a traceback for a dead one.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import queue
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from multiprocessing import process, reduction
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import torch
import torch.multiprocessing.reductions

_reductions: Any = torch.multiprocessing.reductions  # untyped, like all of this inside torch
_storage: Any = torch.storage

_READ_AT_ONCE_BYTES = 1 << 20
_INLINE_BYTES = 1 << 15
_PIPE_READ_BYTES = 1 << 20
_LENGTH = struct.Struct("!i")
_LONG_LENGTH = struct.Struct("!Q")
_PIN_POLL_S = 0.25
_ENDING_S = 5.0


class Deadline:
    """A point in time to wait until; None is forever."""

    def __init__(self, timeout_s: float | None) -> None:
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def at_most(self, timeout_s: float) -> Deadline:
        left_s = self.left_s()
        return Deadline(timeout_s if left_s is None else min(timeout_s, left_s))


class MessageReader:
    """Reads messages from the pipe of a queue, keeping what has come of an incomplete one."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._buffer = bytearray()

    def next_message(self, deadline: Deadline, others: Sequence[int]) -> bytes | None:
        """Returns None when time is up, or when one of `others` is ready and no message has come."""
        reader = self._queue._reader.fileno()
        while (message := self._take()) is None:
            if reader not in wait([reader, *others], timeout=deadline.left_s()):
                return None
            self._buffer += os.read(reader, _PIPE_READ_BYTES)  # cannot block: only this thread reads it
        self._queue._sem.release()
        return message

    def _take(self) -> bytes | None:
        start, length = self._frame()
        if length is None or len(self._buffer) < start + length:
            return None
        message = bytes(memoryview(self._buffer)[start : start + length])
        del self._buffer[: start + length]
        return message

    def _frame(self) -> tuple[int, int | None]:
        """Returns the start and length of the message. The length is 4 bytes; over 2 GiB, it is -1 and then 8 bytes."""
        if len(self._buffer) < _LENGTH.size:
            return 0, None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length != -1:
            return _LENGTH.size, length
        start = _LENGTH.size + _LONG_LENGTH.size
        return start, _LONG_LENGTH.unpack_from(self._buffer, _LENGTH.size)[0] if len(self._buffer) >= start else None


class Copies:
    """Rebuilds the tensors and storages of one message in private memory, in place of torch's functions.

    Tensors of a message that share memory still do, except small views of a large storage: of one row of a dataset
    in shared memory, only the row is copied.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], _Shared] = {}  # by device and inode of the file
        self._by_storage: dict[int, _Shared] = {}
        self._unread: list[weakref.ref[Any]] = []

    def rebuild_storage_fd(self, cls: Any, descriptor: Any, nbytes: int) -> Any:
        fd = descriptor.detach()
        key = _reductions.fd_id(fd)
        if key in self._found:
            os.close(fd)
            return self._found[key].storage
        shared = self._found[key] = _Shared(fd, nbytes)
        self._by_storage[shared.storage._cdata] = shared
        if nbytes <= _READ_AT_ONCE_BYTES:
            shared.read_all()
        return shared.storage

    def rebuild_typed_storage(self, storage: Any, dtype: Any) -> Any:
        shared = self._by_storage.get(storage._cdata)
        if shared is None or shared.is_read:
            return _reductions.rebuild_typed_storage(storage, dtype)
        unread = _UnreadStorage.of(shared, dtype)
        self._unread.append(weakref.ref(unread))
        return unread

    def rebuild_tensor(self, cls: Any, storage: Any, metadata: Any) -> Any:
        offset, size, stride, requires_grad = metadata
        shared = storage.shared if isinstance(storage, _UnreadStorage) else None
        if shared is None:
            shared = self._by_storage.get(storage._untyped_storage._cdata)
        if shared is not None:
            item_bytes = storage.dtype.itemsize
            first, past = span(offset, size, stride)
            if 2 * (past - first) * item_bytes < shared.nbytes:
                part = shared.read_part(first * item_bytes, past * item_bytes)
                storage = _reductions.rebuild_typed_storage(part, storage.dtype)
                metadata = (offset - first, size, stride, requires_grad)
        return _reductions.rebuild_tensor(cls, storage, metadata)

    def finish(self) -> None:
        """Reads the storages that are in the batch without a tensor."""
        for unread in [ref() for ref in self._unread]:
            if unread is not None:
                _ = unread._untyped_storage
        waiting = [(_reductions.StorageWeakRef(one.storage), one) for one in self._found.values() if not one.is_read]
        self._by_storage.clear()
        for ref, shared in waiting:
            del shared.storage
            if not ref.expired():
                shared.storage = torch.UntypedStorage._new_with_weak_ptr(ref.cdata)
                shared.read_all()

    def close(self) -> None:
        for shared in self._found.values():
            shared.close()


class _Shared:
    """A storage in shared memory. `storage` is its private copy, empty until it is read."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd = fd
        self.nbytes = nbytes
        self.storage = new_storage(0)
        self.is_read = False

    def read_all(self) -> Any:
        if not self.is_read:
            if self.storage.nbytes() != self.nbytes:
                self.storage.resize_(self.nbytes)
            read_storage(self._fd, self.storage, 0)
            self.is_read = True
            self.close()
        return self.storage

    def read_part(self, first: int, past: int) -> Any:
        if self.is_read:
            return self.storage[first:past].clone()
        part = new_storage(past - first)
        read_storage(self._fd, part, first)
        return part

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class _UnreadStorage(_storage.TypedStorage):  # type: ignore[misc]
    """A TypedStorage that is read when its memory is first used: tensors of it may need only a small part."""

    shared: _Shared

    @classmethod
    def of(cls, shared: _Shared, dtype: Any) -> _UnreadStorage:
        unread = object.__new__(cls)
        unread.shared, unread.dtype = shared, dtype
        return unread

    def __getattr__(self, name: str) -> Any:
        if name != "_untyped_storage":
            raise AttributeError(name)
        self._untyped_storage = self.shared.read_all()
        del self.shared
        self.__class__ = _storage.TypedStorage
        return self._untyped_storage


def read_storage(fd: int, storage: Any, at: int) -> None:
    """Fills a storage from a file, from byte `at` on."""
    left = view(storage) if storage.nbytes() else memoryview(b"")
    while left:
        n = os.preadv(fd, [left], at)
        if n == 0:
            raise EOFError(f"expected {len(left):,} more bytes of shared memory, got its end")
        left, at = left[n:], at + n


def new_storage(nbytes: int) -> Any:
    kind: Any = torch.UntypedStorage
    return kind(nbytes)


def view(storage: Any) -> memoryview:
    """Returns the bytes of a storage, which must not be empty."""
    array: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return memoryview(array)


def span(offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, int]:
    """Returns the range of storage items that a tensor uses: the first, and the one after the last."""
    if 0 in size:
        return offset, offset
    return offset, offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))


def send_as_one_buffer(queue: Any) -> None:
    """In a worker: sends what is put into the queue as a SharedBatch while the sharing strategy is file_system.

    A strategy inherited from the trainer is reset, so that collating a batch needs no torch_shm_manager either.
    """
    sharing: Any = torch.multiprocessing
    always = sharing.get_sharing_strategy() == "file_system"
    if always:
        sharing.set_sharing_strategy("file_descriptor")
    put = queue.put
    queue.put = lambda item: put(
        SharedBatch(item) if always or sharing.get_sharing_strategy() == "file_system" else item
    )


class SharedBatch:
    """A batch whose tensors are pickled as one buffer. The queue pickles it in a thread of its own."""

    def __init__(self, item: Any) -> None:
        self._item = item

    def __reduce__(self) -> Any:
        buffer = io.BytesIO()
        packer = _Packer(buffer)
        packer.dump(self._item)
        storages = [storage for storage, _ in packer.packed.values()]
        sizes = [storage.nbytes() for storage in storages]
        return open_shared_batch, (buffer.getvalue(), sizes, _joined(storages, sum(sizes)))


class _Packer(ForkingPickler):
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer)
        self.packed: dict[int, tuple[Any, int]] = {}
        own = {
            torch.UntypedStorage: self._reduce_storage,
            torch.Tensor: _reduce_tensor,
            torch.nn.Parameter: _reduce_tensor,
        }
        self.dispatch_table = {**self.dispatch_table, **own}

    def _reduce_storage(self, storage: Any) -> Any:
        if storage.device.type != "cpu":
            return _reductions.reduce_storage(storage)
        _, number = self.packed.setdefault(storage._cdata, (storage, len(self.packed)))
        return take_storage, (number,)


def _reduce_tensor(tensor: Any) -> Any:
    """Reduces as torch does, but sends only the view when it is a small part of its storage."""
    function, arguments = _reductions.reduce_tensor(tensor)
    if function is not _reductions.rebuild_tensor:
        return function, arguments
    cls, storage, (offset, size, stride, requires_grad) = arguments
    item_bytes, whole = storage.dtype.itemsize, storage._untyped_storage
    first, past = span(offset, size, stride)
    if whole.device.type == "cpu" and 2 * (past - first) * item_bytes < whole.nbytes():
        part = whole[first * item_bytes : past * item_bytes]
        storage, offset = _reductions.rebuild_typed_storage(part, storage.dtype), offset - first
    return function, (cls, storage, (offset, size, stride, requires_grad))


def _joined(storages: list[Any], nbytes: int) -> Any:
    """Returns the bytes of all storages, or from 32 KiB on a memory file with them."""
    views = [view(storage) for storage in storages if storage.nbytes()]
    if nbytes <= _INLINE_BYTES:
        return b"".join(views)
    fd = os.memfd_create("holdfast-batch", os.MFD_CLOEXEC)
    try:
        for left in views:
            while left:
                left = left[os.write(fd, left) :]
        return DupFd(fd)
    finally:
        os.close(fd)


# Messages name these two functions. The trainer's unpickler replaces them.


def open_shared_batch(message: bytes, sizes: list[int], data: Any) -> Any:
    raise NotImplementedError("expected holdfast's DataLoader to read this message, got another reader")


def take_storage(number: int) -> Any:
    raise NotImplementedError("expected holdfast's DataLoader to read this message, got another reader")


def read_storages(sizes: list[int], data: Any) -> list[Any]:
    storages = [new_storage(nbytes) for nbytes in sizes]
    if isinstance(data, bytes):
        at = 0
        for storage, nbytes in zip(storages, sizes, strict=True):
            if nbytes:
                view(storage)[:] = data[at : at + nbytes]
            at += nbytes
        return storages
    fd = data.detach()
    try:
        at = 0
        for storage, nbytes in zip(storages, sizes, strict=True):
            read_storage(fd, storage, at)
            at += nbytes
    finally:
        os.close(fd)
    return storages


_DUP_FD = ("multiprocessing.resource_sharer", "DupFd")
_COPIED = ("rebuild_storage_fd", "rebuild_typed_storage", "rebuild_tensor")
_OPEN_BATCH = (open_shared_batch.__module__, open_shared_batch.__name__)
_TAKE_STORAGE = (take_storage.__module__, take_storage.__name__)
_Replacements = dict[tuple[str, str], Any]
_current = threading.local()  # `deadline` of the message that this thread unpacks


def unpack(message: bytes, deadline: Deadline, *, copy_batches: bool) -> Any:
    _current.deadline = deadline
    replacements: _Replacements = {_DUP_FD: _FetchedDescriptor}
    if not copy_batches:
        return _Unpickler(message, replacements).load()
    copies = Copies()
    replacements[_OPEN_BATCH] = _opened
    replacements |= {("torch.multiprocessing.reductions", name): getattr(copies, name) for name in _COPIED}
    try:
        batch = _Unpickler(message, replacements).load()
        copies.finish()  # after the unpickler, whose memo holds every storage, is gone
    finally:
        copies.close()
    return batch


def _opened(message: bytes, sizes: list[int], data: Any) -> Any:
    replacements = {_DUP_FD: _FetchedDescriptor, _TAKE_STORAGE: read_storages(sizes, data).__getitem__}
    return _Unpickler(message, replacements).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, message: bytes, replacements: _Replacements) -> None:
        super().__init__(io.BytesIO(message))
        self._replacements = replacements

    def find_class(self, module: str, name: str) -> Any:
        replacement = self._replacements.get((module, name))
        return super().find_class(module, name) if replacement is None else replacement


class FetchError(OSError):
    """Raised from the error that kept a worker's descriptor from being fetched. Others are of the batch's own classes,
    which are unpickled too."""


class _FetchedDescriptor:
    """Fetches a descriptor from a worker, with a timeout: torch would wait forever for a stopped worker."""

    _id: tuple[str, int]

    def detach(self) -> int:
        try:
            return self._fetch()
        except (OSError, EOFError) as error:
            text = f"cannot fetch the memory of a batch from its worker: {error!r}"
            raise FetchError(getattr(error, "errno", None), text) from error

    def _fetch(self) -> int:
        address, key = self._id
        with _connect(address, _current.deadline) as connection:
            authkey = process.current_process().authkey
            answer_challenge(connection, authkey)
            deliver_challenge(connection, authkey)
            connection.send((key, os.getpid()))
            try:
                return reduction.recv_handle(connection)
            except RuntimeError as error:  # "received 0 items of ancdata": this process has no free descriptor
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error


def _connect(address: str, deadline: Deadline) -> Connection:
    """Connects with a timeout in the kernel (EAGAIN): the socket stays blocking, as Connection needs it."""
    with socket.socket(socket.AF_UNIX) as sock:
        left_s = deadline.left_s()
        if left_s is not None:
            micros = max(1, int(left_s * 1e6))  # 0 would mean forever
            limit = struct.pack("@ll", *divmod(micros, 1_000_000))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        sock.connect(address)
        return Connection(sock.detach())


class PinQueue:
    """The queue that torch's pinning thread reads. Only that thread calls `get`, and any other calls `close`.

    It waits in short steps, keeps an error for the thread that asks for the batch, and ends when the workers do.
    """

    def __init__(self, timeout_s: float | None, *, copy_batches: bool) -> None:
        self._timeout_s = timeout_s
        self._copy_batches = copy_batches
        self._messages: MessageReader | None = None
        self._reader: threading.Thread | None = None
        self._ended = threading.Event()
        self.error: OSError | EOFError | None = None

    def attach(self, result_queue: Any) -> None:
        self._messages = MessageReader(result_queue)
        result_queue.get = self.get

    def get(self, timeout: float) -> Any:
        """Returns a batch, or raises queue.Empty: torch then checks whether to end, and calls again."""
        self._reader = threading.current_thread()
        messages = self._messages
        if messages is None or self._ended.is_set():
            raise SystemExit  # ends a thread silently
        message = None if self.error else messages.next_message(Deadline(min(timeout, _PIN_POLL_S)), ())
        if message is None:
            if self.error:
                self._ended.wait(_PIN_POLL_S)
            raise queue.Empty
        try:
            return unpack(message, Deadline(self._timeout_s), copy_batches=self._copy_batches)
        except (OSError, EOFError) as error:
            self.error = error.with_traceback(None)
            raise queue.Empty from None

    def close(self) -> None:
        """Waits for the thread to end. Call it after the workers have ended and before the pipe is closed."""
        self._ended.set()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(_ENDING_S)
        self._messages = None  # breaks the reference cycle with the queue
