"""Private copies of the storages in a message, read from the shared memory that a worker put them into.

Shared memory is read here as a file and never mapped: a storage that torch maps keeps a descriptor as long as it lives.
"""

from __future__ import annotations

import os
import weakref
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
