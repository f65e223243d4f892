"""Decodes tf.train.Example and SequenceExample records to columns.

A row is added after all of its record was read and all fields are valid, so a bad record changes nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from ..constants import (
    FIXED,
    HEADER_BYTES,
    IS_LIST,
    MALFORMED,
    MISSING,
    NESTED,
    NONE,
    NOT_LIST,
    OK,
    OVERHEAD_BYTES,
    WRONG_COUNT,
    WRONG_KIND,
    ColumnBuffers,
    Fault,
    Field,
)
from .protobuf import FIRST, NO_LIMIT, SECOND, FieldSpec, Malformed, Steps, Values, check_fields, each_part
from .tfrecord_frames import as_range, bytes_needed, check_frame

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Column:
    """One column of a batch."""

    __slots__ = ("default", "ends", "field", "rows", "steps", "values")

    def __init__(self, field: FieldSpec) -> None:
        self.field = field
        self.default: Values | None = None
        if field.fill is not None:
            self.default = Values(field.kind, field.count)
            self.default.data += field.fill
            self.default.ends.extend(field.fill_ends)
        self.start()

    def start(self) -> None:
        self.values = bytearray()
        self.ends = array("q", [0])
        self.steps = array("q", [0])
        self.rows = array("q", [0])

    def check(self, found: Values | Steps | None) -> tuple[int, int]:
        """Returns OK or the fault of this field, and what was found instead."""
        field = self.field
        if isinstance(found, Steps):
            return (IS_LIST, 0) if field.depth == FIXED else found.fault or (OK, 0)
        if found is None or found.kind == NONE:
            return (MISSING, 0) if field.depth == FIXED and self.default is None else (OK, 0)
        if found.kind != field.kind:
            return WRONG_KIND, found.kind
        if field.depth == NESTED:
            return NOT_LIST, found.n
        if (found.n != field.count) if field.depth == FIXED else found.n % field.count:
            return WRONG_COUNT, found.n
        return OK, 0

    def add(self, found: Values | Steps | None) -> None:
        """Adds the values of a row that was checked."""
        field = self.field
        items = 0
        if isinstance(found, Steps):
            before = self.steps[-1]
            self.steps.extend([before + end for end in found.ends])
            items = len(found.ends)
            self._add_values(found.values)
        elif found is not None and found.kind != NONE:
            items = found.n // field.count
            self._add_values(found)
        elif field.depth == FIXED and self.default is not None:
            self._add_values(self.default)
        self.rows.append(self.rows[-1] + items)

    def _add_values(self, values: Values) -> None:
        before = len(self.values)
        self.values += values.data
        if values.ends:
            self.ends.extend([before + end for end in values.ends])

    def take(self) -> ColumnBuffers:
        _, has_ends, has_steps, has_rows = self.field.has_arrays
        taken = (
            self.values,
            memoryview(self.ends).cast("B") if has_ends else None,
            memoryview(self.steps).cast("B") if has_steps else None,
            memoryview(self.rows).cast("B") if has_rows else None,
        )
        self.start()
        return taken


class _RowDecoder:
    """Collects the fields of one record."""

    __slots__ = ("columns", "found", "places")

    def __init__(self, columns: list[_Column], places: dict[bytes, int]) -> None:
        self.columns = columns
        self.places = places
        self.found: dict[int, Values | Steps] = {}

    def read(self, data: bytes) -> None:
        """Reads a message: field 1 is features or context, field 2 feature_lists; each is a map, a list of entries."""
        for tag, start, stop in each_part(data, 0, len(data), 0):
            if tag in (FIRST, SECOND):
                for entry_tag, at, end in each_part(data, start, stop, 1):
                    if entry_tag == FIRST:
                        self._read_entry(tag == SECOND, data, at, end)

    def _read_entry(self, in_lists: bool, data: bytes, at: int, end: int) -> None:
        """Reads an entry: field 1 is the key, field 2 the value. Both may be repeated and in any order: the last key
        counts, and several values are merged to one message."""
        key = b""
        pieces = 0
        piece = (at, at)
        for tag, start, stop in each_part(data, at, end, 2):
            if tag == FIRST:
                key = data[start:stop]
            elif tag == SECOND:
                pieces += 1
                piece = (start, stop)
        into = self._begin(key, in_lists)
        if pieces <= 1:
            into.read(data, *piece, 3)
            return
        for tag, start, stop in each_part(data, at, end, 2):
            if tag == SECOND:
                into.read(data, start, stop, 3)

    def _begin(self, key: bytes, in_lists: bool) -> Values | Steps:
        """Returns where an entry's value goes. A key's last entry wins; a feature list hides a context feature."""
        place = self.places.get(key)
        hidden = place is not None and not in_lists and isinstance(self.found.get(place), Steps)
        if place is None or hidden:
            return Steps(None) if in_lists else Values(NONE, 0)
        field = self.columns[place].field
        into: Values | Steps
        if in_lists:
            into = Steps(field)
        else:
            into = Values(field.kind, field.count if field.depth == FIXED else NO_LIMIT)
        self.found[place] = into
        return into

    def finish(self) -> tuple[int, int, int]:
        """Adds the row to the columns if all fields are valid. Returns (code, field, got)."""
        found = self.found
        for i, column in enumerate(self.columns):
            code, got = column.check(found.get(i))
            if code != OK:
                return code, i, got
        for i, column in enumerate(self.columns):
            column.add(found.get(i))
        return OK, -1, 0


class Decoder:
    """Decodes framed Example and SequenceExample records to columns."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._columns = [_Column(field) for field in check_fields(fields)]
        self._places: dict[bytes, int] = {}
        for i, column in enumerate(self._columns):
            self._places.setdefault(column.field.key, i)
        self._rows = 0
        self._faults: list[Fault] = []
        self._lock = Lock()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("this Decoder is at work in another thread: give each thread its own")
        try:
            yield
        finally:
            self._lock.release()

    def feed(
        self,
        buf: Buffer,
        start: int,
        stop: int,
        verify_data: bool,
        max_rows: int,
        record: int,
        offset: int,
        /,
    ) -> tuple[int, int, int, int]:
        view = as_range(buf, start, stop)[start:stop]
        with self._locked():
            return self._feed(view, verify_data, max_rows, record, offset)

    def feed_file(
        self,
        _fd: int,
        buf: Buffer,
        start: int,
        stop: int,
        offset: int,
        verify_data: bool,
        max_rows: int,
        record: int,
        _max_bytes: int,
        /,
    ) -> tuple[int, int, int, int, int, int]:
        """Decodes only what is in the buffer: refilling it here would save nothing."""
        result = self.feed(buf, start, stop, verify_data, max_rows, record, offset)
        return *result, start + result[1], stop

    def _feed(
        self, view: memoryview, verify_data: bool, max_rows: int, record: int, offset: int
    ) -> tuple[int, int, int, int]:
        frames = at = 0
        stop = len(view)
        while self._rows < max_rows and at < stop:
            status, length = check_frame(view, at, stop, verify_data)
            if status != OK:
                return frames, at, status, bytes_needed(length)
            data = view[at + HEADER_BYTES : at + HEADER_BYTES + length].tobytes()
            code, field, got = self._add_record(data)
            if code == OK:
                self._rows += 1
            else:
                self._faults.append(Fault(record + frames, offset + at, code, field, got))
            frames += 1
            at += length + OVERHEAD_BYTES
        return frames, at, OK, 0

    def _add_record(self, data: bytes) -> tuple[int, int, int]:
        row = _RowDecoder(self._columns, self._places)
        try:
            row.read(data)
        except Malformed:
            return MALFORMED, -1, 0
        return row.finish()

    def rows(self) -> int:
        return self._rows

    def faults(self) -> list[Fault]:
        """Returns the faults since the last call."""
        with self._locked():
            faults, self._faults = self._faults, []
            return faults

    def take(self) -> list[ColumnBuffers]:
        """Returns the rows so far and starts an empty batch."""
        with self._locked():
            taken = [column.take() for column in self._columns]
            self._rows = 0
            return taken
