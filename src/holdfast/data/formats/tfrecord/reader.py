"""Reads one TFRecord file from its first record to its last, as records or as columns."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal

from ...._native import codec
from ...._util.text import names_there
from ....errors import DecodeError, HoldfastError
from ....schema import Column, Ragged, Value, check_schema
from ..base import Problem
from ..columns import Batch, Misfit, split_batch
from ..row_buffers import value_of
from .column_encoding import KIND_NAMES, batch_maker, can_borrow, fields_of, kind_of
from .frame_stream import BUFFER_BYTES, BorrowedWindow, FrameStream, OnCorrupt, Verify
from .schema_inference import feature_names
from .source import Compression, open_source

OnMismatch = Literal["raise", "skip"]

# Rows are decoded in blocks of about this many bytes, and batches are slices of a block: a call into the codec costs as
# much as decoding twenty small records. A batch keeps its block alive, so this bounds the memory that it can pin.
BLOCK_BYTES = 1 << 20

# From this record size on, byte strings stay in the buffer that they were read into: copying would double the cost.
BORROW_MIN_BYTES = 1 << 14

_MANY = 1 << 62
_NEAR_BYTES = 1 << 24  # how much is read again at most to name the features of a record


class TFRecordReader:
    """One file's records, or its Examples as columns. Holds one descriptor and one buffer until close().

        with TFRecordReader("train.tfrecord") as reader:
            for batch in reader.batches({"label": Int64(), "image": Bytes()}, 256): ...

    Args:
        verify: "all": check the CRCs of lengths and data; "header": only those of lengths.
        on_corrupt: What to do at a corrupt record: "raise", "skip" it, or "salvage" (see `skipped`).
        on_mismatch: What to do with a record whose features do not fit the schema: "raise" or "skip". A number that its
            column's dtype cannot hold is always an error.
        compression: "auto": by the content; or "none", "gzip", "zlib".
    """

    __module__ = "holdfast"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        verify: Verify = "all",
        on_corrupt: OnCorrupt = "raise",
        on_mismatch: OnMismatch = "raise",
        compression: Compression = "auto",
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        if on_mismatch not in ("raise", "skip"):
            raise ValueError(f"expected on_mismatch to be 'raise' or 'skip', got {on_mismatch!r}")
        self.path = os.fspath(path)
        self.on_mismatch = on_mismatch
        self._iteration = 0
        source = open_source(path, compression)
        try:
            self._stream = FrameStream(source, verify=verify, on_corrupt=on_corrupt, buffer_bytes=buffer_bytes)
        except BaseException:
            source.close()
            raise

    @property
    def skipped(self) -> list[Problem]:
        """What was left out so far, and why."""
        return self._stream.problems

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> TFRecordReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        return self.records()

    def records(self) -> Iterator[bytes]:
        """Yields every record's data as a bytes object."""
        stream = self._stream
        ready: deque[list[bytes]] = deque()

        def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            records, used, status, needed = codec.records(buf, start, stop, stream.verify_data, _MANY)
            ready.append(records)
            return len(records), used, status, needed

        iteration = self._begin()
        more, failed = True, None
        while more:
            self._check_current(iteration)
            try:
                more = stream.pump(feed)
            except Exception as error:  # noqa: BLE001 - raised after the records before it
                more, failed = False, error
            while ready:
                yield from ready.popleft()
        if failed is not None:
            raise failed

    def batches(
        self, schema: Mapping[str, Column | type[Value]], size: int, *, drop_last: bool = False
    ) -> Iterator[Batch]:
        """Yields Examples as columns, `size` rows at a time; the last batch may be shorter unless `drop_last`."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"batch size must be a positive integer, got {size!r}")
        return self._batches(check_schema(schema), size, drop_last)

    def _begin(self) -> int:
        """Ends the iteration before: two at a time would take each other's rows. The new one continues where it
        stopped."""
        self._iteration += 1
        return self._iteration

    def _check_current(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise RuntimeError(f"{self.path}: another iteration over this reader has begun; open a reader for each")

    def _batches(self, schema: dict[str, Column], size: int, drop_last: bool) -> Iterator[Batch]:
        iteration = self._begin()
        if self._can_borrow(schema) and self._large():
            yield from self._borrowed_batches(schema, size, drop_last, iteration)
            return
        decoder = codec.Decoder(fields_of(schema))
        make_batch = batch_maker(schema)
        block, began = size, self._stream.offset  # rows of a block, a multiple of `size`; its offset
        while True:
            self._check_current(iteration)
            rows, more, failed = self._decode(schema, decoder, block, read_on=True)
            if more and self._stream.offset - began >= 2 * BLOCK_BYTES:  # the records have become larger
                block = min(block, max(size, -(-rows // size) * size))
            if more and rows < block:
                continue
            complete = rows - rows % size if failed is not None or drop_last else rows
            if complete:
                with self._naming(decoder.rows()):
                    batch = make_batch(decoder.take(), None)
                yield from split_batch(batch, size, complete)
            if failed is not None:
                raise failed
            if not more:
                return
            block, began = size * max(1, BLOCK_BYTES // self._bytes_of(size)), self._stream.offset
            if self._can_borrow(schema) and self._large():
                yield from self._borrowed_batches(schema, size, drop_last, iteration)
                return

    @contextmanager
    def _naming(self, rows: int) -> Iterator[None]:
        """Turns a Misfit into a DecodeError. The record's number is known if none was left out."""
        try:
            yield
        except Misfit as error:
            record = None if self.skipped else self._stream.record - rows + error.row
            raise DecodeError(self.path, record, None, str(error)) from None

    def _bytes_of(self, rows: int) -> int:
        """Estimates the size of so many rows in the file by the rows so far, or by the next header."""
        if self._stream.record:
            return rows * (self._stream.offset // self._stream.record + 1)
        return rows * self._stream.window.next_frame_bytes()

    def _large(self) -> bool:
        return self._bytes_of(1) >= BORROW_MIN_BYTES

    def _can_borrow(self, schema: dict[str, Column]) -> bool:
        # Repaired records are not in the window's buffer, so what can salvage does not borrow.
        return codec.NATIVE and self._stream.on_corrupt == "raise" and any(map(can_borrow, schema.values()))

    def _borrowed_batches(
        self, schema: dict[str, Column], size: int, drop_last: bool, iteration: int
    ) -> Iterator[Batch]:
        """Yields batches of large records that refer to the buffer they were read into."""
        stream = self._stream
        stream.window = window = BorrowedWindow(stream.window, self._bytes_of(size))
        decoder = codec.Decoder(fields_of(schema, borrow=True))
        make_batch = batch_maker(schema, borrow=True)
        try:
            while True:
                window.expect(self._bytes_of(size - decoder.rows()))
                rows, more, failed = self._decode(schema, decoder, size, read_on=False)
                if rows < size and more:
                    continue
                if rows == size or (rows and failed is None and not drop_last):
                    with self._naming(rows):
                        batch = make_batch(decoder.take(), window.buf)
                    yield batch
                    self._check_current(iteration)
                    window.renew(self._bytes_of(size))  # only now: the caller may have released the batch before
                if failed is not None:
                    raise failed
                if not more:
                    return
        finally:
            if stream.window is window and stream.source.fd >= 0:  # the loop may end after close()
                stream.window = window.plain()

    def _decode(
        self, schema: dict[str, Column], decoder: codec.Decoder, maximum: int, *, read_on: bool
    ) -> tuple[int, bool, Exception | None]:
        """Decodes once. Returns how many rows there are, whether there is more, and the error after those rows.

        read_on: the codec may refill the buffer, because nothing points into it.
        """
        stream = self._stream
        rows_before, record_before = decoder.rows(), stream.record

        def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            return decoder.feed(buf, start, stop, stream.verify_data, maximum, stream.record, stream.offset)

        def feed_file(fd: int, buf: Any, start: int, stop: int, offset: int) -> tuple[int, int, int, int, int, int]:
            expect = min(self._bytes_of(maximum - rows_before), BLOCK_BYTES)  # records may have become larger
            expect += expect // 64  # a little more, so that one call is enough
            return decoder.feed_file(fd, buf, start, stop, offset, stream.verify_data, maximum, stream.record, expect)

        failed: Exception | None = None
        try:
            more = stream.pump(feed, feed_file if read_on else None)
        except Exception as error:  # noqa: BLE001 - the caller raises it after the rows before it
            more, failed = False, error
        for skipped, fault in enumerate(map(codec.Fault._make, decoder.faults())):
            problem, fatal = self._classify(schema, fault)
            if fatal:
                rows = rows_before + fault.record - record_before - skipped
                hint = features_there(self.path, fault.offset, fault, schema)
                return rows, False, DecodeError(self.path, problem.record, problem.offset, problem.reason, hint)
            self.skipped.append(problem)
        return decoder.rows(), more, failed

    def _classify(self, schema: dict[str, Column], fault: codec.Fault) -> tuple[Problem, bool]:
        """Returns what is wrong with a record that gave no row, and whether to raise it."""
        if fault.code == codec.MALFORMED:
            reason = "its CRC is right, but it is not a tf.train.Example"
            fatal = self._stream.on_corrupt == "raise"
        else:
            reason = _mismatch(list(schema.items())[fault.field], fault.code, fault.got)
            fatal = self.on_mismatch == "raise"
        return Problem(fault.offset, fault.record, reason, 1), fatal


def features_there(path: str, offset: int, fault: codec.Fault, schema: dict[str, Column]) -> str:
    """Returns a hint with the features of a record that lacks one; empty for other faults.

    Reads the record again, except one far inside a compressed file.
    """
    if fault.code != codec.MISSING:
        return ""
    head = bytearray(12)
    with suppress(HoldfastError, ValueError, MemoryError), open_source(path) as source:
        if source.size() is None and offset > _NEAR_BYTES:
            return ""
        source.read_at(offset, memoryview(head))
        size = int.from_bytes(head[:8], "little")
        if size > _NEAR_BYTES:
            return ""
        record = bytearray(size)
        source.read_at(offset + len(head), memoryview(record))
        name, column = list(schema.items())[fault.field]
        key, there = column.key or name, feature_names(bytes(record))
        return "" if key in there else names_there(key, there, "The record has")  # "": it is there, but empty
    return ""


def _mismatch(item: tuple[str, Column], code: int, got: int) -> str:
    """Describes what was expected of a feature, and what the record has."""
    name, column = item
    key = name if column.key is None else column.key
    value = value_of(column)
    expected = KIND_NAMES[kind_of(column)]
    feature = f"feature {key!r}"
    if code == codec.MISSING:
        return f"{feature} is missing: expected {column!r}, which has no default"
    if code == codec.WRONG_KIND:
        return f"{feature}: expected {expected}, got {KIND_NAMES[got]}"
    if code == codec.IS_LIST:
        return f"{feature}: expected one feature ({column!r}), got a feature list; make it a Ragged column"
    if code == codec.NOT_LIST:
        return f"{feature}: expected a feature list ({column!r}), got one feature"
    if isinstance(column, Ragged):
        return f"{feature}: expected a multiple of {value.count} values, got {got:,}"
    return f"{feature}: expected {value.count:,} {'value' if value.count == 1 else 'values'}, got {got:,}"
