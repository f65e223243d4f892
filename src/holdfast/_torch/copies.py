"""Private copies of the storages in a message, read from the shared memory that a worker put them into.

Shared memory is read here as a file, never mapped by torch. A storage that torch maps keeps a descriptor as long as it
lives (sharing strategy file_descriptor), or it connects this process for good to the worker's torch_shm_manager, and
aborts the process if its file, or the manager, is gone by the time it is dropped (file_system).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import weakref
from typing import Any

import torch
import torch.multiprocessing.reductions

_reductions: Any = torch.multiprocessing.reductions  # untyped, as all of this is inside torch
_storage: Any = torch.storage
_libc = ctypes.CDLL(None, use_errno=True)
_HEADER_BYTES = 64  # of a file shared by name: the number of references to it, a C int, then the data
_COUNT_BYTES = 4
_READ_AT_ONCE_BYTES = 1 << 20


class Copies:
    """What rebuilds the tensors and storages of one message in place of torch's functions.

    Tensors of a message that share memory still do, except small views of something large: of one row of a dataset
    that lives in shared memory the row is copied and nothing else.
    """

    def __init__(self) -> None:
        self._found: dict[Any, _Shared] = {}  # by the identity of its file
        self._by_storage: dict[int, _Shared] = {}
        self._unread: list[weakref.ref[Any]] = []
        self._references: list[str] = []

    def rebuild_storage_fd(self, cls: Any, descriptor: Any, nbytes: int) -> Any:
        fd = descriptor.detach()
        key = _reductions.fd_id(fd)
        if key in self._found:
            os.close(fd)
            return self._found[key].storage
        return self._added(key, _SharedByDescriptor(fd, nbytes))

    def rebuild_storage_filename(self, cls: Any, manager: bytes, handle: bytes, nbytes: int) -> Any:
        path = f"/dev/shm{handle.decode()}"
        self._references.append(path)
        if path in self._found:
            return self._found[path].storage
        return self._added(path, _SharedByName(path, nbytes))

    def _added(self, key: Any, shared: _Shared) -> Any:
        self._found[key] = self._by_storage[shared.storage._cdata] = shared
        if shared.nbytes <= _READ_AT_ONCE_BYTES:
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
            first, past = _span(offset, size, stride)
            if 2 * (past - first) * item_bytes < shared.nbytes:
                part = shared.read_part(first * item_bytes, past * item_bytes)
                storage = _reductions.rebuild_typed_storage(part, storage.dtype)
                metadata = (offset - first, size, stride, requires_grad)
        return _reductions.rebuild_tensor(cls, storage, metadata)

    def finish(self) -> None:
        """Reads what is in the batch as it is: storages that no tensor was made of."""
        for ref in self._unread:
            unread = ref()
            if unread is not None:
                _ = unread._untyped_storage
        waiting = [(_reductions.StorageWeakRef(one.storage), one) for one in self._found.values() if not one.is_read]
        self._by_storage.clear()
        for ref, shared in waiting:
            del shared.storage
            if not ref.expired():
                shared.storage = torch.UntypedStorage._new_with_weak_ptr(ref.cdata)  # type: ignore[attr-defined]
                shared.read_whole()

    def close(self) -> None:
        """Gives back what the message held: descriptors, and a reference to each file shared by name."""
        for shared in self._found.values():
            shared.close()
        for path in self._references:
            with contextlib.suppress(OSError):  # the loader's end looks for what is left
                _drop_reference(path)
        self._references.clear()


class _Shared:
    """A storage in shared memory. `storage` is the private one in its place: empty until it is read."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.storage: Any = torch.UntypedStorage(0)
        self.is_read = nbytes == 0

    def read_whole(self) -> Any:
        if not self.is_read:
            if self.storage.nbytes() != self.nbytes:
                self.storage.resize_(self.nbytes)
            self._read_into(self.storage, 0)
            self.is_read = True
            self.close()
        return self.storage

    def read_part(self, first: int, past: int) -> Any:
        if self.is_read:
            return self.storage[first:past].clone()
        part = torch.UntypedStorage(past - first)
        self._read_into(part, first)
        return part

    def _read_into(self, storage: Any, at: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class _SharedByDescriptor(_Shared):
    def __init__(self, fd: int, nbytes: int) -> None:
        super().__init__(nbytes)
        self._fd = fd

    def _read_into(self, storage: Any, at: int) -> None:
        _read(self._fd, storage, at)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class _SharedByName(_Shared):
    """Opened for each read: a batch of more tensors than this process may have descriptors arrives, too."""

    def __init__(self, path: str, nbytes: int) -> None:
        super().__init__(nbytes)
        self._path = path

    def _read_into(self, storage: Any, at: int) -> None:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            header_bytes = os.fstat(fd).st_size - self.nbytes
            if header_bytes != _HEADER_BYTES:
                text = f"{self._path}: expected a header of {_HEADER_BYTES} bytes before the data, got {header_bytes}"
                raise RuntimeError(f"{text}: use the sharing strategy file_descriptor with this version of torch")
            _read(fd, storage, _HEADER_BYTES + at)
        finally:
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


def _read(fd: int, storage: Any, at: int) -> None:
    if storage.nbytes() == 0:
        return
    place = memoryview(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
    while place:
        n = os.preadv(fd, [place], at)
        if n == 0:
            raise EOFError(f"expected {len(place):,} more bytes of shared memory, got its end")
        place, at = place[n:], at + n


def _drop_reference(path: str) -> None:
    """Drops the reference that the sender of a message took. The last one to drop its reference removes the file."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with mmap.mmap(fd, _HEADER_BYTES) as header:
            is_last = int.from_bytes(header[:_COUNT_BYTES], sys.byteorder) == 1
            # The sender may drop its own at this moment, and the count is torch's: std::atomic<int>. Python has no
            # atomic decrement; libc has one. If both were the last, the file stays until the loader ends.
            count = ctypes.c_char.from_buffer(header)
            _libc.sem_trywait(ctypes.byref(count))
            del count
    finally:
        os.close(fd)
    if is_last:
        os.unlink(path)


def _span(offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, int]:
    """The items of its storage that a tensor touches: the first one, and the one behind the last."""
    if 0 in size:
        return offset, offset
    return offset, offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
