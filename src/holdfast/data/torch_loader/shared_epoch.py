"""The epoch of the next pass, shared with the copies of a dataset in a loader's workers.

Each pass is the epoch after the one before. Where a loader has workers, the trainer does not begin passes itself, and
persistent workers were started before `set_epoch` was called. So all of them share a few numbers in a memory file. The
first worker of a loader that begins its n-th pass decides where that pass begins, and the loader's other workers join
it. A loader is identified by a number of its own, because torch's seed is the same for equally seeded generators.

Each trainer process has a count of its own: ranks that were forked, or got the dataset as a process argument, must be
in the same epoch and not take turns. So the file has a slot for each, copied from the first when it begins a pass.
"""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context, parent_process, reduction
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

_HEAD = struct.Struct("8q")
_ENTRY = struct.Struct("5q")
_MAX_PASSES = 64  # that a late worker can still join
_OWNER = struct.Struct("q")
_SLOT_BYTES = _OWNER.size + _HEAD.size + _MAX_PASSES * _ENTRY.size


class PassStart(NamedTuple):
    """A pass over the epochs from `first` on, which resumes in epoch `epoch` after `done` samples."""

    first: int
    epoch: int
    done: int

    def after(self, epochs: int) -> PassStart:
        """Returns the start of the next pass when this one has so many epochs."""
        return PassStart(self.first + epochs, self.first + epochs, 0)


class _Head(NamedTuple):
    next: PassStart
    last: PassStart  # of the last pass; equal to `next` after load() and set_epoch()
    in_workers: int
    begun: int  # how many passes workers have begun


class SharedEpoch:
    """`loaded` is the start of one pass; the next pass is the epoch after it, from its start."""

    def __init__(self, loaded: PassStart) -> None:
        self._attach(_create_file())
        with self._locked():
            self._add_slot(os.getpid(), _Head(loaded, loaded, 0, 0))

    def _attach(self, fd: int) -> None:
        self._fd = fd
        self._closer = weakref.finalize(self, os.close, fd)
        self._own_passes = (0, 0)  # this process's pid, and how many passes it has begun as a worker
        self._slot = (0, 0)  # a trainer's pid, and the offset of its slot

    def load(self, loaded: PassStart) -> None:
        """Sets the start of the next pass."""
        with self._locked():
            self._load(loaded)

    def _load(self, loaded: PassStart) -> None:
        self._write(_Head(loaded, loaded, 0, self._head().begun))

    def set_epoch(self, epoch: int) -> None:
        with self._locked():
            loaded = self._head().next
            # A loaded state of this epoch that no pass has used yet stays valid.
            self._load(PassStart(epoch, epoch, loaded.done if loaded.epoch == epoch else 0))

    def begin(self, epochs: int) -> PassStart:
        """Begins a pass of so many epochs in the trainer itself."""
        with self._locked():
            head = self._head()
            self._write(head._replace(next=head.next.after(epochs), last=head.next, in_workers=0))
            return head.next

    def begin_in_worker(self, epochs: int, loader: int, own: PassStart | None = None) -> PassStart:
        """Begins a pass in a worker of this loader, or joins the others'. own: where its own loaded state begins."""
        number = self._own_passes[1] if self._own_passes[0] == os.getpid() else 0
        self._own_passes = os.getpid(), number + 1
        with self._locked():
            head = self._head()
            joined = self._find(loader, number)
            begin = own or joined or head.next
            if joined is None or own is not None:
                at = self._head_offset() + _HEAD.size + head.begun % _MAX_PASSES * _ENTRY.size
                os.pwrite(self._fd, _ENTRY.pack(loader, number, *begin), at)
                self._write(_Head(begin.after(epochs), begin, 1, head.begun + 1))
            return begin

    def _find(self, loader: int, number: int) -> PassStart | None:
        found = os.pread(self._fd, _MAX_PASSES * _ENTRY.size, self._head_offset() + _HEAD.size)
        entries = {entry[:2]: PassStart(*entry[2:]) for entry in _ENTRY.iter_unpack(found)}
        return entries.get((loader, number))

    @property
    def last(self) -> PassStart:
        """Where the current pass began; after load() or set_epoch(), where the next one begins."""
        with self._locked():
            return self._head().last

    @property
    def in_workers(self) -> bool:
        """Whether workers began the last pass."""
        with self._locked():
            return bool(self._head().in_workers)

    def _head(self) -> _Head:
        return _unpack(os.pread(self._fd, _HEAD.size, self._head_offset()))

    def _write(self, head: _Head) -> None:
        os.pwrite(self._fd, _pack(head), self._head_offset())

    def _head_offset(self) -> int:
        """Returns the offset of the trainer's head, after adding a slot if it has none. Call it under the lock."""
        trainer = os.getpid() if self._own_passes[0] != os.getpid() and get_worker_info() is None else _parent_pid()
        if self._slot[0] != trainer:
            slots = range(0, os.fstat(self._fd).st_size, _SLOT_BYTES)
            owners = {_OWNER.unpack(os.pread(self._fd, _OWNER.size, at))[0]: at for at in slots}
            if trainer not in owners:
                first = _unpack(os.pread(self._fd, _HEAD.size, _OWNER.size))
                owners[trainer] = self._add_slot(trainer, first)
            self._slot = trainer, owners[trainer] + _OWNER.size
        return self._slot[1]

    def _add_slot(self, trainer: int, head: _Head) -> int:
        at = os.fstat(self._fd).st_size
        os.ftruncate(self._fd, at + _SLOT_BYTES)  # zeros: no pass that a worker could join
        os.pwrite(self._fd, _OWNER.pack(trainer) + _pack(head), at)
        return at

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Takes a POSIX lock: the kernel releases it when a worker is killed, and forked children do not inherit it."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[Any, ...]:
        """Passes the file itself to a worker that is being started, and anywhere else the start of the next pass."""
        if context.get_spawning_popen() is not None:
            return _reattach, (reduction.DupFd(self._fd),)
        with self._locked():
            return SharedEpoch, (self._head().next,)


def _pack(head: _Head) -> bytes:
    return _HEAD.pack(*head.next, *head.last, head.in_workers, head.begun)


def _unpack(found: bytes) -> _Head:
    numbers = _HEAD.unpack(found)
    return _Head(PassStart(*numbers[:3]), PassStart(*numbers[3:6]), *numbers[6:])


def _parent_pid() -> int:
    """Returns the pid of the process that made this worker, however it was started."""
    parent = parent_process()
    return os.getpid() if parent is None or parent.pid is None else parent.pid


def _create_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("holdfast-epoch")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _reattach(shared: Any) -> SharedEpoch:
    epoch = SharedEpoch.__new__(SharedEpoch)
    epoch._attach(shared.detach())
    return epoch
