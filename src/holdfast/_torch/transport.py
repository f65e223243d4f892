"""Private copies of the storages in a message, read from the shared memory that a worker put them into.

Shared memory is read here as a file and never mapped: a storage that torch maps keeps a descriptor as long as it lives.
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

_reductions: Any = torch.multiprocessing.reductions  # untyped, as all of this is inside torch
_storage: Any = torch.storage
_READ_AT_ONCE_BYTES = 1 << 20


class Copies:
    """What rebuilds the tensors and storages of one message in place of torch's functions.

    Tensors of a message that share memory still do, except small views of something large: of one row of a dataset
    that lives in shared memory the row is copied and nothing else.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], _Shared] = {}  # by the identity of its file
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
            shared.read_whole()
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
        """Reads what is in the batch as it is: storages that no tensor was made of."""
        for unread in [ref() for ref in self._unread]:
            if unread is not None:
                _ = unread._untyped_storage
        waiting = [(_reductions.StorageWeakRef(one.storage), one) for one in self._found.values() if not one.is_read]
        self._by_storage.clear()
        for ref, shared in waiting:
            del shared.storage
            if not ref.expired():
                shared.storage = torch.UntypedStorage._new_with_weak_ptr(ref.cdata)
                shared.read_whole()

    def close(self) -> None:
        for shared in self._found.values():
            shared.close()


class _Shared:
    """A storage in shared memory. `storage` is the private one in its place: empty until it is read."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd = fd
        self.nbytes = nbytes
        self.storage = new_storage(0)
        self.is_read = False

    def read_whole(self) -> Any:
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
    """A TypedStorage that is read when its memory is first asked for: tensors of it may need a small part only."""

    shared: _Shared

    @classmethod
    def of(cls, shared: _Shared, dtype: Any) -> _UnreadStorage:
        unread = object.__new__(cls)
        unread.shared, unread.dtype = shared, dtype
        return unread

    def __getattr__(self, name: str) -> Any:
        if name != "_untyped_storage":
            raise AttributeError(name)
        self._untyped_storage = self.shared.read_whole()
        del self.shared
        self.__class__ = _storage.TypedStorage
        return self._untyped_storage


def read_storage(fd: int, storage: Any, at: int) -> None:
    """Fills a storage with what is in a file from `at` on."""
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
    """The bytes of a storage, which must have some."""
    array: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return memoryview(array)


def span(offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, int]:
    """The items of its storage that a tensor touches: the first one, and the one behind the last."""
    if 0 in size:
        return offset, offset
    return offset, offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))


# Batches in one piece, for the sharing strategy file_system: a descriptor for each batch on its way, and no file name.
#
# torch's own way gives each tensor a file in /dev/shm, counted by a torch_shm_manager that every worker starts and
# that the trainer stays connected to as long as it lives. A tensor whose file or manager is gone when it is dropped
# aborts the trainer. A parcel holds the data of all tensors of a batch in memory that goes with its last descriptor.

_INLINE_BYTES = 1 << 15


def send_parcels(queue: Any) -> None:
    """In a worker: what is put into the queue is sent as a parcel while the sharing strategy is file_system.

    The strategy inherited from the trainer is set back, so that collating a batch needs no torch_shm_manager either.
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
    """Packed when it is pickled, which the queue does in a thread of its own."""

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
    """As torch's, but of a small view of something large the view alone."""
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
    """All the bytes: as they are if they are few, else in memory that can be fetched by its descriptor."""
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


# ---- in the trainer, whose unpickler has its own functions by these names --------------------------------------------


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


# From a message to a batch: descriptors fetched in bounded time, tensors copied out of shared memory.
#
# A message names what the pickle is to be rebuilt with. Some of these names get another meaning here, so nothing of
# torch or multiprocessing is patched, and a batch may be of any shape.

_DUP_FD = ("multiprocessing.resource_sharer", "DupFd")
_COPIED = ("rebuild_storage_fd", "rebuild_typed_storage", "rebuild_tensor")
_OPEN_PARCEL = (open_shared_batch.__module__, open_shared_batch.__name__)
_TAKE_STORAGE = (take_storage.__module__, take_storage.__name__)
_Meanings = dict[tuple[str, str], Any]
_now = threading.local()  # `patience`, of the message that this thread is at


def unpack(message: bytes, patience: Deadline, *, copy_batches: bool) -> Any:
    _now.patience = patience
    meanings: _Meanings = {_DUP_FD: _FetchedDescriptor}
    if not copy_batches:
        return _Unpickler(message, meanings).load()
    copies = Copies()
    meanings[_OPEN_PARCEL] = _opened
    meanings |= {("torch.multiprocessing.reductions", name): getattr(copies, name) for name in _COPIED}
    try:
        batch = _Unpickler(message, meanings).load()
        copies.finish()  # when the unpickler is gone, whose memo holds every storage
    finally:
        copies.close()
    return batch


def _opened(message: bytes, sizes: list[int], data: Any) -> Any:
    meanings = {_DUP_FD: _FetchedDescriptor, _TAKE_STORAGE: read_storages(sizes, data).__getitem__}
    return _Unpickler(message, meanings).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, message: bytes, meanings: _Meanings) -> None:
        super().__init__(io.BytesIO(message))
        self._meanings = meanings

    def find_class(self, module: str, name: str) -> Any:
        meaning = self._meanings.get((module, name))
        return super().find_class(module, name) if meaning is None else meaning


class _FetchedDescriptor:
    """A worker's descriptor by its address. torch asks with an untimed read: a stopped worker never answers it."""

    _id: tuple[str, int]

    def detach(self) -> int:
        address, key = self._id
        with _connect(address, _now.patience) as connection:
            authkey = process.current_process().authkey
            answer_challenge(connection, authkey)
            deliver_challenge(connection, authkey)
            connection.send((key, os.getpid()))
            try:
                return reduction.recv_handle(connection)
            except RuntimeError as error:  # "received 0 items of ancdata": the kernel had no number to give it
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error


def _connect(address: str, patience: Deadline) -> Connection:
    """The kernel keeps the time (EAGAIN when it is up): the socket stays blocking, as Connection wants it."""
    with socket.socket(socket.AF_UNIX) as sock:
        left_s = patience.left_s()
        if left_s is not None:
            micros = max(1, int(left_s * 1e6))  # 0 would be for ever
            limit = struct.pack("@ll", *divmod(micros, 1_000_000))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        sock.connect(address)
        return Connection(sock.detach())


# The trainer's end of the pipe that batches come through, read so that nobody can make it wait for ever.
#
# multiprocessing reads a message in one blocking go once its first byte is there; a worker that was stopped or killed
# in the middle of writing leaves the reader waiting. Here what has come is kept, and the wait goes on to its
# deadline.

_READ_BYTES = 1 << 20
_LENGTH = struct.Struct("!i")
_LONG_LENGTH = struct.Struct("!Q")


class Deadline:
    """How long may still be waited; None is for ever."""

    def __init__(self, timeout_s: float | None) -> None:
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def at_most(self, timeout_s: float) -> Deadline:
        left_s = self.left_s()
        return Deadline(timeout_s if left_s is None else min(timeout_s, left_s))


class MessageReader:
    """`next_message` gives one message, or None: time is up, or one of `others` is ready and nothing came."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._had = bytearray()

    def next_message(self, patience: Deadline, others: Sequence[int]) -> bytes | None:
        reader = self._queue._reader.fileno()
        while (message := self._take()) is None:
            if reader not in wait([reader, *others], timeout=patience.left_s()):
                return None
            self._had += os.read(reader, _READ_BYTES)  # it is readable and nobody else reads: what is there, at once
        self._queue._sem.release()
        return message

    def _take(self) -> bytes | None:
        start, length = self._frame()
        if length is None or len(self._had) < start + length:
            return None
        message = bytes(memoryview(self._had)[start : start + length])
        del self._had[: start + length]
        return message

    def _frame(self) -> tuple[int, int | None]:
        """Where the message begins and how long it is: 4 bytes, or -1 and 8 bytes when it is over 2 GiB."""
        if len(self._had) < _LENGTH.size:
            return 0, None
        (length,) = _LENGTH.unpack_from(self._had)
        if length != -1:
            return _LENGTH.size, length
        start = _LENGTH.size + _LONG_LENGTH.size
        return start, _LONG_LENGTH.unpack_from(self._had, _LENGTH.size)[0] if len(self._had) >= start else None


# What the thread that pins batches reads from, in the place of the queue's own `get`.
#
# torch's thread reads with no end to its patience: a stopped worker keeps it, a dead one ends it with a traceback. It
# waits here a little at a time, keeps the error for the one who asks for the batch, and ends when the crew does.

_LOOK_S = 0.25
_ENDING_S = 5.0


class PinQueue:
    """`get` is called by one thread alone, `close` by any other."""

    def __init__(self, timeout_s: float | None, *, copy_batches: bool) -> None:
        self._timeout_s = timeout_s
        self._copy_batches = copy_batches
        self._inbox: MessageReader | None = None
        self._reader: threading.Thread | None = None
        self._ended = threading.Event()
        self.error: OSError | EOFError | None = None

    def attach(self, result_queue: Any) -> None:
        self._inbox = MessageReader(result_queue)
        result_queue.get = self.get

    def get(self, timeout: float) -> Any:
        """A batch, or queue.Empty: then the caller looks whether it is to end, and comes again."""
        self._reader = threading.current_thread()
        inbox = self._inbox
        if inbox is None or self._ended.is_set():
            raise SystemExit  # ends a thread without a word
        message = None if self.error else inbox.next_message(Deadline(min(timeout, _LOOK_S)), ())
        if message is None:
            if self.error:
                self._ended.wait(_LOOK_S)
            raise queue.Empty
        try:
            return unpack(message, Deadline(self._timeout_s), copy_batches=self._copy_batches)
        except (OSError, EOFError) as error:
            self.error = error.with_traceback(None)
            raise queue.Empty from None

    def close(self) -> None:
        """When workers have ended and before the pipe is closed: nothing waits for them, the thread is soon done."""
        self._ended.set()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(_ENDING_S)
        self._inbox = None  # it and the queue keep each other
