"""Defines every error that holdfast raises.

HoldfastError
├── InputError               a path that cannot be read: missing, no permission, no match
│   └── MissingFileError     there is no such file; also a FileNotFoundError
├── SchemaError              an invalid schema, or data that do not fit the schema
├── StateError               a saved iterator state that does not match this dataset
├── WorkerError              a worker process cannot continue
│   ├── WorkerDiedError      it exited early; gives the exit reason and the sample
│   └── WorkerTimeoutError   it made no progress for too long; gives the sample and the stack
├── ClosedLoaderError        an iterator of a DataLoader was used after close() or in a forked child
├── MapError                 a user's function failed on a sample; gives the sample and the traceback
├── LeakError                resources were leaked; gives them and what refers to them
├── LockTimeoutError         a lock was not free in time; gives its holders
├── TraceUnavailableError    a process cannot be traced here; says why and what to do
├── ImageError               bytes that are not an image, or a corrupt one
├── DataError                a file's content is not as expected
│   ├── CorruptError         a file is corrupt; gives the place and the reason
│   ├── UnfinishedError      a file is incomplete: its writer is still writing, or died
│   ├── FormatError          a file of another format than expected
│   └── DecodeError          a record is intact, but does not fit the schema
└── WriteError               a file cannot be written
    ├── TargetExistsError    it exists already
    ├── WriterBusyError      another live process is writing it
    ├── ForkedWriterError    a writer was used in a child of the process that opened it
    ├── DiskFullError        no space is left; nothing that was acknowledged is lost
    ├── ServerLostError      the central writer does not answer
    ├── RefusedError         the central writer rejects this producer; gives the reason
    └── ClosedWriterError    a writer was used after it was closed, or after it failed

All of them can be pickled, so that they cross processes with all their attributes.
"""

from __future__ import annotations

import errno
import os

__all__ = [
    "ClosedLoaderError",
    "ClosedWriterError",
    "CorruptError",
    "DataError",
    "DecodeError",
    "DiskFullError",
    "ForkedWriterError",
    "FormatError",
    "HoldfastError",
    "ImageError",
    "InputError",
    "LeakError",
    "LockTimeoutError",
    "MapError",
    "MissingFileError",
    "RefusedError",
    "SchemaError",
    "ServerLostError",
    "StateError",
    "TargetExistsError",
    "TraceUnavailableError",
    "UnfinishedError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerTimeoutError",
    "WriteError",
    "WriterBusyError",
]


class HoldfastError(Exception):
    """Base of all errors that holdfast raises on purpose."""


class InputError(HoldfastError):
    """A path that cannot be read."""


class MissingFileError(InputError, FileNotFoundError):
    """There is no file at a path, or none matches a pattern. `errno` is ENOENT, `filename` the path or pattern.

    Also a FileNotFoundError, so that code that expects Python's own error catches it.
    """

    def __init__(self, text: str, filename: str | None = None) -> None:
        super().__init__(errno.ENOENT, os.strerror(errno.ENOENT), filename)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[MissingFileError], tuple[str, str | None]]:
        return type(self), (self.text, self.filename)


def cannot_open(path: str, error: OSError, more: str = "") -> InputError:
    """Returns the error for a path that cannot be opened: a MissingFileError if there is nothing."""
    text = f"{path}: cannot open: {error.strerror}{more}"
    return MissingFileError(text, path) if error.errno in (errno.ENOENT, errno.ENOTDIR) else InputError(text)


class SchemaError(HoldfastError):
    """An invalid schema, or data that do not fit it."""


class StateError(HoldfastError):
    """A saved iterator state that does not match this dataset: of other data or another order, or not a state at
    all."""


class WorkerError(HoldfastError, RuntimeError):
    """A worker process cannot continue. Also a RuntimeError, like torch's own.

    `pid` is the worker's, `sample` the name of its current sample; None if unknown.
    """

    def __init__(self, text: str, pid: int | None = None, sample: str | None = None) -> None:
        super().__init__(text, pid, sample)
        self.text = text
        self.pid = pid
        self.sample = sample

    def __str__(self) -> str:
        return self.text


class WorkerDiedError(WorkerError):
    """A worker exited before its work was done."""


class WorkerTimeoutError(WorkerError):
    """A worker made no progress for too long."""


class ClosedLoaderError(HoldfastError, RuntimeError):
    """An iterator was asked for a batch after close(), or in a child of the process that created it."""


class MapError(HoldfastError):
    """A user's function failed on a sample. `traceback` is that of the thread or process it ran in."""

    def __init__(self, path: str, record: int, function: str, reason: str, traceback: str = "") -> None:
        super().__init__(path, record, function, reason, traceback)
        self.path = path
        self.record = record
        self.function = function
        self.reason = reason
        self.traceback = traceback

    def __str__(self) -> str:
        trace = "\n".join(f"    {line}" for line in self.traceback.rstrip().splitlines())
        return f"{self.path}, record {self.record:,}: {self.function}() failed: {self.reason}" + (
            f"\n\n{trace}" if trace else ""
        )


class LeakError(HoldfastError):
    """Resources were leaked. `left` has the kind and the name of each."""

    def __init__(self, text: str, left: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text, left)
        self.text = text
        self.left = left

    def __str__(self) -> str:
        return self.text


class LockTimeoutError(HoldfastError, TimeoutError):
    """A lock was not free in time. `holders` are the processes that hold it, if they are visible."""

    def __init__(self, text: str, holders: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.holders = holders


class TraceUnavailableError(HoldfastError):
    """A process cannot be traced here; the message says why and what to do."""


class DataError(HoldfastError):
    """A file's content is not as expected. `hint` is the next step; it is part of the message."""

    def __init__(self, path: str, record: int | None, offset: int | None, reason: str, hint: str = "") -> None:
        super().__init__(path, record, offset, reason, hint)
        self.path = path
        self.record = record
        self.offset = offset
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        place = self.path
        if self.record is not None:
            place += f", record {self.record:,}"
        if self.offset is not None:
            place += f" at byte {self.offset:,}"
        return f"{place}: {self.reason}" + (f". {self.hint}" if self.hint else "")


class CorruptError(DataError):
    """A file is corrupt."""


class UnfinishedError(DataError):
    """A file is incomplete because its writer has not finished it."""


class FormatError(DataError):
    """A file of another format than expected."""


class DecodeError(DataError):
    """A record is intact, but does not fit the schema."""


class ImageError(HoldfastError, ValueError):
    """Bytes that are not an image, or a corrupt one."""


class WriteError(HoldfastError):
    """A file cannot be written."""


class TargetExistsError(WriteError):
    """The file to write exists already."""


class WriterBusyError(WriteError):
    """Another live process is writing the file."""


class ForkedWriterError(WriteError):
    """A writer was used in a child of the process that opened it."""


class DiskFullError(WriteError):
    """The central writer has no space left. Nothing that it acknowledged is lost."""


class ServerLostError(WriteError):
    """The central writer does not answer, or is too slow. Rows that it has not acknowledged are kept in this
    process."""


class RefusedError(WriteError):
    """The central writer rejects this producer: wrong token, other version, or a name in use."""


class ClosedWriterError(WriteError):
    """A writer was used after it was closed, or after a write failed."""
