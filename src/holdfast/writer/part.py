"""One attempt of one task: samples in, and at the end a part that is there whole, or nothing."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self

from .._util.failpoints import failpoint
from .._util.process import call_after_fork
from ..errors import ClosedWriterError, ForkedWriterError, SchemaError
from ..formats.part_record import PartRecord
from ..schema import Column, schema_digest
from .directory import Format
from .location import Attempt, Location
from .part_file import PartFile, make_file
from .row_buffer import RowBuffer
from .workspace import Workspace

_State = Literal["new", "open", "closed", "failed", "forked"]


class Part:
    """What out.part(…) gives. A clean exit from its `with` block commits; an exception or a kill leaves nothing.

    done    the task was committed before, by this or another process: there is nothing to do, and append is refused
    rows    samples given so far; of a committed part, those in it
    record  what was committed, None until then

    Threads may share one. It cannot be entered twice, and not be used in a forked child.
    """

    def __init__(
        self,
        place: Location,
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
        self._place, self._schema, self._kind, self._attempt = place, schema, kind, attempt
        self._chunk_rows, self._codec = chunk_rows, codec
        self._rows = 0
        self._stage = RowBuffer(schema)
        self._workspace: Workspace | None = None
        self._file: PartFile | None = None
        self._turn = threading.RLock()
        self._look()

    def _look(self) -> None:
        self.record = self._place.find(self.task)
        self.done = self.record is not None

    @property
    def rows(self) -> int:
        return self._rows + self._stage.rows if self.record is None else self.record.rows

    # ---- writing

    def append(self, /, **sample: Any) -> None:
        """One sample: a value for every column of the schema."""
        with self._turn:
            self._check()
            if self._stage.add(sample):
                self._flush()
        failpoint("appended")

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Many: columns of equal length. Arrays, lists, or what a reader's batch holds."""
        with self._turn:
            self._check()
            if not isinstance(columns, Mapping):
                raise SchemaError(f"expected columns of samples by name, got {type(columns).__name__}")
            self._flush()
            try:
                self._put(columns)
            except SchemaError:
                raise  # nothing of them was written: the next may fit
            except BaseException:
                self._fail()
                raise
        failpoint("appended")

    def _flush(self) -> None:
        """Samples that were taken with a good word each: whatever goes wrong with them now, the part must not go on."""
        try:
            if self._stage.rows:
                self._put(self._stage.take())
        except BaseException:
            self._fail()
            raise

    def _put(self, columns: Mapping[str, Any]) -> None:
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

    # ---- beginning and ending

    def __enter__(self) -> Self:
        with self._turn:
            if self._state != "new":
                what = "a part is entered once" if self._state != "forked" else "it belongs to the parent process"
                raise ClosedWriterError(f"task {self.task!r}: {what}; ask for a new one with out.part(…)")
            self._look()
            if not self.done:
                self._open()
            self._state = "open"
            return self

    def _open(self) -> None:
        self._workspace = self._place.workspace(self.task)
        try:
            self._file = make_file(self._workspace, self._schema, self._kind, self._chunk_rows, self._codec)
            failpoint("file-made")
        except BaseException:
            self._workspace.close()
            raise
        call_after_fork(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._turn:
            if self._state != "open":
                return
            if self.done:
                self._state = "closed"
            elif kind is None:
                self._commit()
            else:
                self._drop("closed")

    def _commit(self) -> None:
        assert self._file is not None
        assert self._workspace is not None
        try:
            self._flush()
            made = Attempt(self._workspace, self.task, self._attempt, self._kind, schema_digest(self._schema))
            self.record = self._place.commit(made, self._file)
        except BaseException:
            self._fail()
            raise
        self._drop("closed")
        self.done = True
        failpoint("cleaned")

    def _fail(self) -> None:
        if self._state == "open":
            self._drop("failed")

    def _drop(self, state: _State) -> None:
        """Takes the workspace away. What was committed has its other name by now."""
        self._state = state
        if self._file is not None:
            self._file.discard()
        if self._workspace is not None:
            self._workspace.close()

    def after_fork_in_child(self) -> None:
        """The child must neither write nor keep the parent's lock alive."""
        self._turn = threading.RLock()  # the thread that may have had it is not here
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
            self._drop("closed")
