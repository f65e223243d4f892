"""From a message to a batch: descriptors fetched in bounded time, tensors copied out of shared memory.

A message names what the pickle is to be rebuilt with. Two of these names get another meaning here, so nothing of torch
or multiprocessing is patched, and a batch may be of any shape.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing import process, reduction
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

import torch
import torch.multiprocessing.reductions

from .inbox import Patience

_reductions: Any = torch.multiprocessing.reductions  # untyped, as all of this is inside torch
_storage: Any = torch.storage
_DUP_FD = ("multiprocessing.resource_sharer", "DupFd")
_REBUILD_TENSOR = ("torch.multiprocessing.reductions", "rebuild_tensor")
_now = threading.local()  # `patience`, of the message that this thread is at


def unpack(message: bytes, patience: Patience, *, keep_safe: bool) -> Any:
    _now.patience = patience
    return _Unpickler(message, keep_safe).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, message: bytes, keep_safe: bool) -> None:
        super().__init__(io.BytesIO(message))
        self._meanings: dict[tuple[str, str], Any] = {_DUP_FD: _FetchedDescriptor}
        if keep_safe:
            self._meanings[_REBUILD_TENSOR] = _copying_rebuild()

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


def _connect(address: str, patience: Patience) -> Connection:
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


def _copying_rebuild() -> Callable[[Any, Any, Any], torch.Tensor]:
    """torch's `rebuild_tensor` on private memory. Tensors of one message that share memory still do."""
    copies: dict[int, Any] = {}

    def rebuild(cls: Any, storage: Any, metadata: Any) -> torch.Tensor:
        offset, size, stride, requires_grad = metadata
        shared = storage._untyped_storage
        if shared.device.type != "cpu" or not shared.nbytes():
            return _rebuilt(cls, storage, metadata)
        item_bytes = storage.dtype.itemsize
        first, past = _span(offset, size, stride)
        if 2 * (past - first) * item_bytes >= shared.nbytes():
            at = shared.data_ptr()
            if at not in copies:
                # The original is kept as well: its address must not be given to another one of this message.
                copies[at] = (shared.clone(), shared)
            private, moved = copies[at][0], offset
        else:  # a small view of something large: one row of a dataset that lives in shared memory
            private, moved = shared[first * item_bytes : past * item_bytes].clone(), offset - first
        typed = _storage.TypedStorage(wrap_storage=private, dtype=storage.dtype, _internal=True)
        return _rebuilt(cls, typed, (moved, size, stride, requires_grad))

    return rebuild


def _rebuilt(cls: Any, storage: Any, metadata: Any) -> torch.Tensor:
    tensor: torch.Tensor = _reductions.rebuild_tensor(cls, storage, metadata)
    return tensor


def _span(offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, int]:
    """The items of its storage that a tensor touches: the first one, and the one behind the last."""
    if 0 in size:
        return offset, offset
    return offset, offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
