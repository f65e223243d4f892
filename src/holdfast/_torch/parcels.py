"""Batches in one piece, for the sharing strategy file_system: a descriptor for each batch on its way, and no file name.

torch's own way gives each tensor a file in /dev/shm, counted by a torch_shm_manager that every worker starts and that
the trainer stays connected to as long as it lives. A tensor whose file or manager is gone when it is dropped aborts the
trainer. A parcel holds the data of all tensors of a batch in memory that goes with its last descriptor.
"""

from __future__ import annotations

import io
import os
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import torch
import torch.multiprocessing.reductions

from .copies import new_storage, read_storage, span, view

_reductions: Any = torch.multiprocessing.reductions  # untyped, as all of this is inside torch
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
    queue.put = lambda item: put(Parcel(item) if always or sharing.get_sharing_strategy() == "file_system" else item)


class Parcel:
    """Packed when it is pickled, which the queue does in a thread of its own."""

    def __init__(self, item: Any) -> None:
        self._item = item

    def __reduce__(self) -> Any:
        buffer = io.BytesIO()
        packer = _Packer(buffer)
        packer.dump(self._item)
        storages = [storage for storage, _ in packer.packed.values()]
        sizes = [storage.nbytes() for storage in storages]
        return open_parcel, (buffer.getvalue(), sizes, _joined(storages, sum(sizes)))


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


def open_parcel(message: bytes, sizes: list[int], data: Any) -> Any:
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
