"""Every error holdfast raises, in one tree.

HoldfastError
├── InputError               a path that cannot be read: nothing there, no permission, nothing matches
│   └── MissingFileError     nothing is there; a FileNotFoundError, too
├── SchemaError              a schema that makes no sense, or data that does not fit the one given
├── StateError               a state of reading that cannot be gone on from
├── WorkerError              a process that works for this one cannot go on, or failed in a way that cannot be told
│   ├── WorkerDiedError      it ended before its work was done; says how, and at which sample
│   └── WorkerTimeoutError   it did nothing for too long; says at which sample, and where in the code
├── ClosedLoaderError        an iterator of a DataLoader was used after it was closed, or in a forked child
├── MapError                 a function of the user's failed on a sample; says which, and its traceback
├── LeakError                something was left behind; says what, and who holds it
├── LockTimeoutError         a lock was not to be had in time; says who holds it
├── ImageError               bytes that are no picture, or a damaged one
├── DataError                what was read is not what was written
│   ├── CorruptError         a file is damaged; says where and how
│   ├── UnfinishedError      a file is not damaged but not finished: its writer is at work, or died
│   ├── FormatError          a file of another kind than the one it was read as
│   └── DecodeError          a record is whole, but not what the schema says
└── WriteError               a file cannot be written
    ├── TargetExistsError    it is there already
    ├── WriterBusyError      another live writer has it
    ├── ForkedWriterError    a writer was used in a child of the process that opened it
    ├── DiskFullError        there is no room left; nothing that was acknowledged is lost
    ├── ServerLostError      the central writer does not answer
    ├── RefusedError         the central writer does not want this producer; says why
    └── ClosedWriterError    a writer was used after it was closed, or after it failed

All of them pickle, so that they cross processes with everything they know.
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
    "UnfinishedError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerTimeoutError",
    "WriteError",
    "WriterBusyError",
]


class HoldfastError(Exception):
    """The root: `except HoldfastError` catches everything holdfast raises on purpose."""


class InputError(HoldfastError):
    """A path that cannot be read."""


class MissingFileError(InputError, FileNotFoundError):
    """Nothing is at a path, or nothing matches a pattern. `errno` is ENOENT, `filename` the path or pattern.

    A FileNotFoundError, too, so that code that expects the one Python raises catches it.
    """

    def __init__(self, text: str, filename: str | None = None) -> None:
        super().__init__(errno.ENOENT, os.strerror(errno.ENOENT), filename)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[MissingFileError], tuple[str, str | None]]:
        return type(self), (self.text, self.filename)


def cannot_open(path: str, error: OSError, more: str = "") -> InputError:
    """Returns the error for a path that the system does not open: a MissingFileError where nothing is there."""
    text = f"{path}: cannot open: {error.strerror}{more}"
    return MissingFileError(text, path) if error.errno in (errno.ENOENT, errno.ENOTDIR) else InputError(text)


class SchemaError(HoldfastError):
    """A schema that makes no sense, or data that does not fit it."""


class StateError(HoldfastError):
    """A state that cannot be gone on from: of other data, of another order, or no state at all."""


class WorkerError(HoldfastError, RuntimeError):
    """A process that works for this one cannot go on. A RuntimeError too, as torch's own are.

    `pid` is the worker's, `sample` the name of the sample it was at; None where it is not known.
    """

    def __init__(self, text: str, pid: int | None = None, sample: str | None = None) -> None:
        super().__init__(text, pid, sample)
        self.text = text
        self.pid = pid
        self.sample = sample

    def __str__(self) -> str:
        return self.text


class WorkerDiedError(WorkerError):
    """A worker ended before its work was done."""


class WorkerTimeoutError(WorkerError):
    """A worker did nothing for too long."""


class ClosedLoaderError(HoldfastError, RuntimeError):
    """An iterator was asked for a batch after it was closed, or in a child of the process that made it."""


class MapError(HoldfastError):
    """A function of the user's failed on a sample. `traceback` is where, in whatever thread or process it ran."""

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
    """Something was left behind. `left` has the kind and the name of each thing."""

    def __init__(self, text: str, left: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text, left)
        self.text = text
        self.left = left

    def __str__(self) -> str:
        return self.text


class LockTimeoutError(HoldfastError, TimeoutError):
    """A lock was not to be had in time. `holders` are the processes that have it, where they can be seen."""

    def __init__(self, text: str, holders: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.holders = holders


class DataError(HoldfastError):
    """What was read is not what was written.

    `hint` is the command or step that helps; it is part of the message.
    """

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
    """A file is damaged."""


class UnfinishedError(DataError):
    """A file ends in the middle of a record because its writer has not finished it."""


class FormatError(DataError):
    """A file of another kind than the one it was read as."""


class DecodeError(DataError):
    """A record is whole, but not what the schema says."""


class ImageError(HoldfastError, ValueError):
    """Bytes that are no picture, or those of a damaged one."""


class WriteError(HoldfastError):
    """A file cannot be written."""


class TargetExistsError(WriteError):
    """The file to be written is there already."""


class WriterBusyError(WriteError):
    """Another live writer has the file."""


class ForkedWriterError(WriteError):
    """A writer was used in a child of the process that opened it."""


class DiskFullError(WriteError):
    """There is no room left where the central writer writes. Nothing that it acknowledged is lost."""


class ServerLostError(WriteError):
    """The central writer does not answer, or is too far behind. What it has not acknowledged is still here."""


class RefusedError(WriteError):
    """The central writer does not want this producer: another token, another version, a name taken twice."""


class ClosedWriterError(WriteError):
    """A writer was used after it was closed, or after a write failed."""
