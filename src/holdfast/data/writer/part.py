"""One attempt of one task: it collects samples, and at the end commits a complete part or nothing."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

from ..._util.failpoints import failpoint
from ..._util.process import call_after_fork
from ...errors import ClosedWriterError, ForkedWriterError, SchemaError
from ...schema import Column, schema_digest
from ..formats.base import PartFile
from ..formats.part_record import PartRecord
from ..formats.registry import FORMATS
from .directory import Format, part_suffixes
from .row_buffer import RowBuffer
from .workspace import Workspace

_State = Literal["new", "open", "closed", "failed", "forked"]


class Part:
    """The result of out.part(…). A clean exit from its `with` block commits; an exception or a kill leaves nothing.

    done    the task was committed before, by this or another process: there is nothing to do, and append fails
    rows    samples appended so far; of a committed part, those in it
    record  what was committed; None until then

    Threads may share it. It cannot be entered twice, nor used in a forked child.
    """

    def __init__(
        self,
        location: Location,
        schema: dict[str, Column],
        task: str,
        kind: Format,
        attempt: int | None,
        chunk_rows: int | None,
        codec: Any,
    ) -> None:
        self._state: _State = "new"
        self.task = task
        self.record: PartRecord | None = None
        self._location, self._schema, self._kind, self._attempt = location, schema, kind, attempt
        self._chunk_rows, self._codec = chunk_rows, codec
        self._rows = 0
        self._row_buffer = RowBuffer(schema)
        self._workspace: Workspace | None = None
        self._file: PartFile | None = None
        self._lock = threading.RLock()
        self._find_committed()

    def _find_committed(self) -> None:
        self.record = self._location.find(self.task)
        self.done = self.record is not None

    @property
    def rows(self) -> int:
        return self._rows + self._row_buffer.rows if self.record is None else self.record.rows

    # ---- writing

    def append(self, /, **sample: Any) -> None:
        """Appends one sample: a value for every column of the schema."""
        with self._lock:
            self._check()
            if self._row_buffer.add(sample):
                self._flush()
        failpoint("appended")

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Appends many samples: columns of equal length, as arrays, lists, or the columns of a batch."""
        with self._lock:
            self._check()
            if not isinstance(columns, Mapping):
                raise SchemaError(f"expected columns of samples by name, got {type(columns).__name__}")
            self._flush()
            try:
                self._write(columns)
            except SchemaError:
                raise  # nothing was written: the part stays usable
            except BaseException:
                self._fail()
                raise
        failpoint("appended")

    def _flush(self) -> None:
        """Writes the buffered samples. They were accepted before, so any error now fails the part."""
        try:
            if self._row_buffer.rows:
                self._write(self._row_buffer.take())
        except BaseException:
            self._fail()
            raise

    def _write(self, columns: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._rows += self._file.extend(columns)

    def _check(self) -> None:
        if self._state == "forked":
            raise ForkedWriterError(
                f"task {self.task!r}: this part belongs to the parent process; open another task's here"
            )
        if self.done:
            raise ClosedWriterError(f"task {self.task!r} is committed already by {self.record}: look at .done before")
        if self._state == "new":
            raise ClosedWriterError(f"task {self.task!r}: its part is not open yet: `with out.part(…) as p:`")
        if self._state != "open":
            why = "failed earlier" if self._state == "failed" else "is closed"
            raise ClosedWriterError(f"task {self.task!r}: this part {why}; open a new one")

    # ---- open, commit, close

    def __enter__(self) -> Self:
        with self._lock:
            if self._state != "new":
                what = "a part is entered once" if self._state != "forked" else "it belongs to the parent process"
                raise ClosedWriterError(f"task {self.task!r}: {what}; ask for a new one with out.part(…)")
            self._find_committed()
            if not self.done:
                self._open()
            self._state = "open"
            return self

    def _open(self) -> None:
        self._workspace = self._location.workspace(self.task)
        try:
            make_file = FORMATS[self._kind].part
            assert make_file is not None
            path = self._workspace.path(f"data{part_suffixes()[self._kind]}")
            self._file = make_file(path, self._schema, self._chunk_rows, self._codec)
            self._workspace.reserve(self.task)
            failpoint("file-made")
        except BaseException:
            if self._file is not None:
                self._file.discard()
            self._workspace.close()
            raise
        call_after_fork(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._state != "open":
                return
            if self.done:
                self._state = "closed"
            elif kind is None:
                self._commit()
            else:
                self._end("closed")

    def _commit(self) -> None:
        assert self._file is not None
        assert self._workspace is not None
        try:
            self._flush()
            made = Attempt(self._workspace, self.task, self._attempt, self._kind, schema_digest(self._schema))
            self._workspace.release_reserve()
            self.record = self._location.commit(made, self._file)
        except BaseException:
            self._fail()
            raise
        self._end("closed")
        self.done = True
        failpoint("cleaned")

    def _fail(self) -> None:
        if self._state == "open":
            self._end("failed")

    def _end(self, state: _State) -> None:
        """Removes the workspace. Committed data have another name by now."""
        self._state = state
        if self._file is not None:
            self._file.discard()
        if self._workspace is not None:
            self._workspace.close()

    def after_fork_in_child(self) -> None:
        """Detaches: the child must neither write nor keep the parent's lock alive."""
        self._lock = threading.RLock()  # the thread that may hold it does not exist in the child
        if self._state == "open" and not self.done:
            self._state = "forked"
            if self._file is not None:
                self._file.detach()
            if self._workspace is not None:
                self._workspace.detach()

    def __del__(self) -> None:
        if getattr(self, "_state", "new") == "open" and not self.done:
            text = f"task {self.task!r}: a part was lost without an end of its `with` block; it was dropped"
            warnings.warn(text, ResourceWarning, 2)
            self._end("closed")


# ---- where parts are


class Location(Protocol):
    """The interface of a local directory and of an object store."""

    def find(self, task: str) -> PartRecord | None:
        """Returns the record of the attempt that committed this task. CorruptError: its data are missing."""

    def workspace(self, task: str) -> Workspace: ...

    def commit(self, made: Attempt, file: PartFile) -> PartRecord:
        """Commits durably, and returns the record of the part."""

    # ---- for verify

    def names(self) -> list[str]:
        """Returns the names of all files of parts. InputError: they cannot be listed."""

    def shown(self, name: str) -> str:
        """Returns a file's full name for messages."""

    def read(self, name: str) -> bytes:
        """Reads a small file. InputError: it cannot be read."""

    def data(self, name: str) -> AbstractContextManager[Path]:
        """Yields the path of a part's file on this machine, while the block runs; it may not exist."""


class Attempt(NamedTuple):
    """An attempt that is about to commit. `attempt` None: the next free number."""

    workspace: Workspace
    task: str
    attempt: int | None
    format: str
    schema: str  # its digest
