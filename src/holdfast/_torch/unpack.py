"""From a message to a batch: descriptors fetched in bounded time, tensors copied out of shared memory.

A message names what the pickle is to be rebuilt with. Some of these names get another meaning here, so nothing of torch
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
from multiprocessing import process, reduction
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from .copies import Copies
from .inbox import Patience
from .parcels import open_parcel, read_storages, take_storage

_DUP_FD = ("multiprocessing.resource_sharer", "DupFd")
_COPIED = ("rebuild_storage_fd", "rebuild_typed_storage", "rebuild_tensor")
_OPEN_PARCEL = (open_parcel.__module__, open_parcel.__name__)
_TAKE_STORAGE = (take_storage.__module__, take_storage.__name__)
_Meanings = dict[tuple[str, str], Any]
_now = threading.local()  # `patience`, of the message that this thread is at


def unpack(message: bytes, patience: Patience, *, copy_batches: bool) -> Any:
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
