"""Where the next pass begins, shared with the copies of a dataset that live in a loader's workers.

Every pass begins at the epoch after the one before. The trainer does not begin passes itself where a loader has
workers, and workers that stay (`persistent_workers`) were started before `set_epoch` was called; so all of them agree
through a few numbers in a file without a name. The first worker of a loader that begins its n-th pass decides where
that pass begins, and the loader's other workers join it. A loader is known by a number of its own, not by torch's seed,
which is the same for every loader that was given a generator with the same seed.

Each trainer counts for itself: ranks that were forked, or given the dataset as an argument of their process, must be in
the same epoch, and would take turns otherwise. So the file has a slot for each of them, made when it first begins a
pass, with a copy of what stood in the first one.
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
_KEPT = 64  # passes that a late worker can still join
_OWNER = struct.Struct("q")
_SLOT_BYTES = _OWNER.size + _HEAD.size + _KEPT * _ENTRY.size


class PassStart(NamedTuple):
    """A pass is of the epochs from `first` on, and goes on in epoch `epoch` after `done` samples."""

    first: int
    epoch: int
    done: int

    def after(self, epochs: int) -> PassStart:
        """Where the next pass begins, if one has so many epochs."""
        return PassStart(self.first + epochs, self.first + epochs, 0)


class _Head(NamedTuple):
    next: PassStart
    last: PassStart  # of the pass that was begun last; `next`, when none was since somebody said where to begin
    in_workers: int
    begun: int  # passes that workers began, ever


class SharedEpoch:
    """`loaded` is used up by one pass; the next begins at the beginning of the epoch after it."""

    def __init__(self, loaded: PassStart) -> None:
        self._keep(_file())
        with self._locked():
            self._add_slot(os.getpid(), _Head(loaded, loaded, 0, 0))

    def _keep(self, fd: int) -> None:
        self._fd = fd
        self._closer = weakref.finalize(self, os.close, fd)
        self._own_passes = (0, 0)  # this process's id, and how many passes it began as a worker
        self._slot = (0, 0)  # a trainer's id, and where its slot is

    def load(self, loaded: PassStart) -> None:
        """The next pass begins there."""
        with self._locked():
            self._load(loaded)

    def _load(self, loaded: PassStart) -> None:
        self._write(_Head(loaded, loaded, 0, self._head().begun))

    def set_epoch(self, epoch: int) -> None:
        with self._locked():
            loaded = self._head().next
            # A state that was loaded for this epoch, and not used yet, still holds.
            self._load(PassStart(epoch, epoch, loaded.done if loaded.epoch == epoch else 0))

    def begin(self, epochs: int) -> PassStart:
        """A pass of so many epochs begins in the trainer itself."""
        with self._locked():
            head = self._head()
            self._write(head._replace(next=head.next.after(epochs), last=head.next, in_workers=0))
            return head.next

    def begin_in_worker(self, epochs: int, loader: int, own: PassStart | None = None) -> PassStart:
        """A pass begins in a worker of this loader, or the worker joins the others. own: where it was told to begin."""
        number = self._own_passes[1] if self._own_passes[0] == os.getpid() else 0
        self._own_passes = os.getpid(), number + 1
        with self._locked():
            head = self._head()
            joined = self._find(loader, number)
            begin = own or joined or head.next
            if joined is None or own is not None:
                at = self._at() + _HEAD.size + head.begun % _KEPT * _ENTRY.size
                os.pwrite(self._fd, _ENTRY.pack(loader, number, *begin), at)
                self._write(_Head(begin.after(epochs), begin, 1, head.begun + 1))
            return begin

    def _find(self, loader: int, number: int) -> PassStart | None:
        found = os.pread(self._fd, _KEPT * _ENTRY.size, self._at() + _HEAD.size)
        entries = {entry[:2]: PassStart(*entry[2:]) for entry in _ENTRY.iter_unpack(found)}
        return entries.get((loader, number))

    @property
    def last(self) -> PassStart:
        """Where the pass that is going on began, or the next one will if somebody has said so since."""
        with self._locked():
            return self._head().last

    @property
    def in_workers(self) -> bool:
        """Whether the last pass was begun by workers."""
        with self._locked():
            return bool(self._head().in_workers)

    def _head(self) -> _Head:
        return _unpack(os.pread(self._fd, _HEAD.size, self._at()))

    def _write(self, head: _Head) -> None:
        os.pwrite(self._fd, _pack(head), self._at())

    def _at(self) -> int:
        """Where the head of this process's trainer is; its slot is made if there is none. Only under the lock."""
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
        os.ftruncate(self._fd, at + _SLOT_BYTES)  # no pass that a worker could join
        os.pwrite(self._fd, _OWNER.pack(trainer) + _pack(head), at)
        return at

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """A lock of the process: a killed worker gives it back, and a forked one does not inherit it."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[Any, ...]:
        """For a worker that is being started the very file; anywhere else a copy of where the next pass begins."""
        if context.get_spawning_popen() is not None:
            return _opened, (reduction.DupFd(self._fd),)
        with self._locked():
            return SharedEpoch, (self._head().next,)


def _pack(head: _Head) -> bytes:
    return _HEAD.pack(*head.next, *head.last, head.in_workers, head.begun)


def _unpack(found: bytes) -> _Head:
    numbers = _HEAD.unpack(found)
    return _Head(PassStart(*numbers[:3]), PassStart(*numbers[3:6]), *numbers[6:])


def _parent_pid() -> int:
    """The process that made this worker, however it was started."""
    parent = parent_process()
    return os.getpid() if parent is None or parent.pid is None else parent.pid


def _file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("holdfast-place")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _opened(shared: Any) -> SharedEpoch:
    place = SharedEpoch.__new__(SharedEpoch)
    place._keep(shared.detach())
    return place
