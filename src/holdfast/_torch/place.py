"""Where the next pass begins, shared with the copies of a dataset that live in a loader's workers.

Workers that stay (`persistent_workers`) were started before `set_epoch` was called: what is told to the original must
reach them. A few numbers in a file without a name do; they are read and written at once, and need no lock, for the
trainer writes before it asks its workers for another pass.
"""

from __future__ import annotations

import os
import struct
import tempfile
import weakref
from multiprocessing import context, reduction
from typing import Any, NamedTuple

_HEAD = struct.Struct("5q")
_COUNT = struct.Struct("q")
ALONE = -1  # who reads, where no worker does


class Begin(NamedTuple):
    """A pass is of the epochs from `first` on, and goes on in epoch `epoch` after `done` samples."""

    first: int
    epoch: int
    done: int


class Place:
    """`loaded` is used up by one pass; the next begins at the beginning of its epoch."""

    def __init__(self, loaded: Begin) -> None:
        self._keep(_file())
        self.load(loaded)

    def _keep(self, fd: int) -> None:
        self._fd = fd
        self._closer = weakref.finalize(self, os.close, fd)

    def load(self, loaded: Begin) -> None:
        """No pass has begun since."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, _HEAD.pack(*loaded, 0, 0), 0)

    def set_epoch(self, epoch: int) -> None:
        _, at, done, taker, last = self._head()
        if at == epoch:  # where a state was loaded for: it still holds
            os.pwrite(self._fd, _HEAD.pack(epoch, at, done, taker, last), 0)
        else:
            self.load(Begin(epoch, epoch, 0))

    def begin(self, worker: int, workers: int) -> Begin:
        """A pass begins, and in it worker `worker` of `workers`, or ALONE."""
        first, at, done, taker, _ = self._head()
        before = self._passes(worker)
        os.pwrite(self._fd, _COUNT.pack(before + 1), _HEAD.size + worker * _COUNT.size)
        os.pwrite(self._fd, _HEAD.pack(first, at, done, taker or workers, workers), 0)
        # Another number of workers is another pass, though some of them are new to it.
        return Begin(first, at, done) if before == 0 and taker in (0, workers) else Begin(first, first, 0)

    @property
    def begun(self) -> Begin:
        """Where the pass that is going on began, or the next one will."""
        first, at, done, _, _ = self._head()
        return Begin(first, at, done) if self._passes(0) <= 1 else Begin(first, first, 0)

    @property
    def in_workers(self) -> bool:
        """Whether the last pass was begun by workers."""
        return self._head()[-1] > 0

    def _head(self) -> tuple[int, int, int, int, int]:
        first, at, done, taker, last = _HEAD.unpack(os.pread(self._fd, _HEAD.size, 0))
        return first, at, done, taker, last

    def _passes(self, worker: int) -> int:
        found = os.pread(self._fd, _COUNT.size, _HEAD.size + worker * _COUNT.size)
        return int(_COUNT.unpack(found)[0]) if len(found) == _COUNT.size else 0

    def __reduce__(self) -> tuple[Any, ...]:
        """For a worker that is being started the very file; anywhere else a copy of what stands in it."""
        if context.get_spawning_popen() is not None:
            return _opened, (reduction.DupFd(self._fd),)
        return Place, (Begin(*self._head()[:3]),)


def _file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("holdfast-place")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _opened(shared: Any) -> Place:
    place = Place.__new__(Place)
    place._keep(shared.detach())
    return place
