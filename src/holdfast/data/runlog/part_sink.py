"""Writes one worker's rows as numbered parts of a dataset directory, each committed atomically."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import HoldfastError, InputError, MissingFileError, SchemaError, TargetExistsError
from ...schema import Column, Int64, first_difference
from ..formats.part_record import PartRecord
from ..formats.parts_manifest import read_manifests
from ..formats.registry import FORMATS
from ..loader.dataset import read
from ..writer.dataset_writer import DatasetWriter, write
from ..writer.directory import Format
from ..writer.remote.remote_dataset import RemoteDatasetWriter
from .rows import (
    OWN,
    Reject,
    Row,
    Schema,
    add_presence,
    check_own,
    grown,
    is_float,
    is_int,
    is_presence,
    joined,
    united,
    without,
)

_STEP: dict[str, Column] = {"step": Int64(), "worker": Int64()}


class PartSink:
    """Call `open` when the columns are known, or `open_if_there`; then `put` rows and `commit`.

    schema     the columns of the rows so far, which the directory may not have yet; None: nothing is open
    last_step  the last step in this worker's last part; None: there is none
    n_parts    how many parts this worker has committed, in earlier processes too
    """

    def __init__(
        self, folder: str, worker: int, format: Format, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self.name = folder
        self.schema: Schema | None = None
        self.last_step: int | None = None
        self.n_parts = 0
        self.rows: list[Row] = []
        self._worker, self._format, self._storage = worker, format, storage_options
        self._out: DatasetWriter | None = None
        self._tried = False
        self._dropped = 0  # rows of that try that were dropped since
        self._has_failed = False

    # ---- beginning

    def open(self, schema: Schema) -> None:
        """Makes the directory, or adds columns to the existing one. Raises SchemaError if they are incompatible."""
        try:
            self._begin(write(self.name, schema, storage_options=self._storage))
        except SchemaError:
            if not self.open_if_there():
                raise
            assert self.schema is not None
            columns, wrong = united(self.schema, schema)
            for name, column in schema.items():  # a given column must match; an inferred one may become a float later
                if column != columns.get(name) and name in self.schema:
                    text = f"column {name!r} is {self.schema[name]!r} there, got {column!r}"
                    wrong.setdefault(name, SchemaError(text))
            for error in wrong.values():
                raise SchemaError(f"{self.name}: {error}") from None
            self.schema = columns

    def open_for(self, values: Mapping[str, Any], reject: Reject) -> None:
        """Infers the columns from the first row, unless another worker has made the directory."""
        schema, _ = grown(dict(OWN), values, reject, self._check)
        try:
            self._begin(write(self.name, schema, storage_options=self._storage))
        except SchemaError:
            if not self.open_if_there():
                raise

    def open_if_there(self) -> bool:
        try:
            out = write(self.name, storage_options=self._storage)
        except MissingFileError:
            return False
        self._begin(out)
        return True

    def _begin(self, out: DatasetWriter) -> None:
        check_own(out.schema, self.name)
        self._out = out
        self.n_parts = self._count()
        record = self._part(self.n_parts - 1).record if self.n_parts else None
        self.last_step = None if record is None else self._last_step(record)
        self.schema = out.schema

    def _check(self, schema: Schema) -> None:
        """Raises SchemaError if parts of this format cannot have these columns, or not after those there."""
        kind = FORMATS[self._format]
        if kind.check_part is not None:
            kind.check_part(schema, None, None)
        for name, column in () if kind.widens_ints else (self.schema or {}).items():
            if is_int(column) and is_float(schema[name]):
                raise _ints_before(name)

    def _count(self) -> int:
        """Counts the parts by bisection: they are numbered without a gap."""
        above = 1
        while self._part(above - 1).done:
            above *= 2
        below = above // 2  # there are at least so many
        while above - below > 1:
            middle = (above + below) // 2
            below, above = (middle, above) if self._part(middle - 1).done else (below, middle)
        return below

    def _last_step(self, record: PartRecord) -> int:
        out = self._out
        if isinstance(out, RemoteDatasetWriter):
            return self._highest(out.url_of(record))
        assert out is not None
        path = out.path_of(record)
        return self._highest(path if path.exists() else self._merged(out.folder, record.task))

    def _merged(self, folder: Path, task: str) -> str:
        """Returns the file that a part was consolidated into before it was removed."""
        last = [one for one in read_manifests(folder) if any(part.task == task for part in one.parts)][-1]
        if not last.holds:
            text = f"the rows of worker {self._worker} were moved into {last.output}, which no longer exists"
            raise InputError(f"{self.name}: {text}: put it back, or use a new logdir or name=")
        return last.output

    def _highest(self, where: str | Path) -> int:
        """Returns this worker's last step in a file."""
        with read(where, _STEP, storage_options=self._storage).shard(None).batch(10_000).iterate() as batches:
            steps = [batch["step"][batch["worker"] == self._worker] for batch in batches]
        return max(int(one.max()) for one in steps if len(one))

    # ---- writing

    def fit(self, values: Mapping[str, Any], reject: Reject) -> tuple[Schema, Row]:
        """Returns the schema with the columns that the row adds, and the row. put() takes both."""
        assert self.schema is not None
        return grown(self.schema, values, reject, self._check)

    def put(self, schema: Schema, row: Row) -> None:
        self.schema = schema
        self.rows.append(row)

    def commit(self, reject: Reject) -> None:
        """Commits all rows. After an error, those that are not committed are kept for the next call.

        Values that are incompatible with a column that another worker added meanwhile are left out, and rejected after
        the others are committed.
        """
        left_out: list[SchemaError] = []
        while self.rows:
            try:
                if self._has_failed:
                    self._reopen()
                left_out += self._merge_schema()
                self._commit()
                self._has_failed = False
            except (HoldfastError, OSError):
                self._has_failed = True
                raise
        for one in left_out:
            reject(one)

    def _reopen(self) -> None:
        """Makes the directory again if somebody has removed it."""
        assert self.schema is not None
        try:
            write(self.name, storage_options=self._storage)
        except MissingFileError:
            self._out = write(self.name, self.schema, storage_options=self._storage)
            self.n_parts, self._tried, self._dropped = 0, False, 0

    def _merge_schema(self) -> list[SchemaError]:
        """Adds the columns of the rows to those of the directory, as other workers may do at the same time."""
        assert self._out is not None
        assert self.schema is not None
        left_out: list[SchemaError] = []
        while True:
            columns, wrong = united(self._out.schema, self.schema)
            wrong = wrong or self._unreadable(columns)
            if wrong:
                left_out += self._leave_out(wrong)
            elif first_difference(columns, self._out.schema) is None:
                return left_out
            else:
                self._out = self._out.grow(columns)

    def _unreadable(self, columns: Schema) -> dict[str, SchemaError]:
        """Returns errors for int columns that become floats, which TFRecord parts cannot be read as."""
        assert self._out is not None
        there = self._out.schema.items()
        names = [name for name, one in there if is_int(one) and is_float(columns[name])]
        has_lists = bool(names) and not all(FORMATS[record.format].widens_ints for record in self._out.parts())
        return {name: _ints_before(name) for name in names} if has_lists else {}

    def _leave_out(self, wrong: dict[str, SchemaError]) -> list[SchemaError]:
        assert self._out is not None
        assert self.schema is not None
        there = self._out.schema
        self.schema = without(self.schema, wrong)
        found = []
        for name, error in wrong.items():
            if name in there and not is_presence(there, name):
                self.schema[name] = there[name]
                add_presence(self.schema, name)
            n = sum(row.pop(name, None) is not None for row in self.rows)
            found.append(SchemaError(f"{self.name}: {error}; {n:,} values of it are left out"))
        return found

    def _commit(self) -> None:
        assert self._out is not None
        part, again = self._part(self.n_parts), self._tried
        try:
            with part:
                if not part.done:
                    self._tried, self._dropped = True, 0
                    part.extend(joined(self._out.schema, self.rows))
        except TargetExistsError as error:
            if not again:
                raise self._duplicate_worker(str(error)) from None
            part = self._part(self.n_parts)  # perhaps from our earlier try, which a slow store has finished since
        if not (self._tried and self._is_of_this_process(part.record)):
            raise self._duplicate_worker(f"it has committed {part.record}")
        # An earlier try may have committed before it failed, with fewer rows.
        del self.rows[: max(0, part.record.rows - self._dropped)]
        self.n_parts += 1
        self._tried, self._dropped = False, 0

    def _duplicate_worker(self, text: str) -> TargetExistsError:
        hint = "give each worker a rank= of its own, and each kind of log a name="
        who = "another process"
        with contextlib.suppress(HoldfastError, OSError):
            if self._is_of_this_process(self._part(self.n_parts).record):
                who = "another log of this process"
        return TargetExistsError(f"{self.name}: {who} logs as worker {self._worker} too: {text}; {hint}")

    def _is_of_this_process(self, record: PartRecord) -> bool:
        return (record.pid, record.host) == (os.getpid(), socket.gethostname())

    def _part(self, number: int) -> Any:
        assert self._out is not None
        return self._out.part(f"log-{self._worker:05d}-{number:06d}", self._format)

    def drop(self) -> None:
        """Drops the rows that wait."""
        self._dropped += len(self.rows)
        self.rows = []

    def end(self) -> None:
        """Announces the last commit, which is like the others."""

    def close(self) -> None:
        """Does nothing: nothing is open between two commits."""


def _ints_before(name: str) -> SchemaError:
    text = f"column {name!r}: it has ints in TFRecord parts, which cannot be read as floats, and got a float"
    return SchemaError(f"{text}; give schema={{{name!r}: hold.Float32(…), …}}, or log as HDF5")
