"""Reads a TFRecord file as a shard: Examples by number, through the file's index."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import numpy as np

from ...._native import codec
from ...._util.atomic import FileStamp
from ....errors import CorruptError, DataError, DecodeError, FormatError
from ....schema import Column, Schema, check_schema
from ..base import Fill, GivenSchema, Rows, check_range, check_rows, read_timing
from ..columns import Batch, BytesColumn, Ints, Misfit
from .column_encoding import batch_maker, can_borrow, fields_of
from .diagnostics import describe, error_for
from .frame_stream import Verify
from .index import build_index, check_index, load_index
from .reader import BORROW_MIN_BYTES, _mismatch, features_there
from .schema_inference import Inferred, NotAnExample, infer_schema
from .source import PAGE_BYTES, RecordSource, front_of, new_buffer, open_source


class TFRecordFramesDecoder:
    """Decodes frames that were gathered from many places, for one thread.

    A shuffled batch has records from all over the data. Copying their frames side by side and decoding them there,
    while they are in the CPU's cache, costs half of decoding whole files first and copying column by column.
    """

    def __init__(self, schema: Schema, *, verify_data: bool) -> None:
        columns = check_schema(schema)
        self._decoder = codec.Decoder(fields_of(columns, borrow=False))
        self._make = batch_maker(columns, False)
        self._verify_data = verify_data

    def decode(self, frames: BytesColumn) -> Batch | None:
        """Returns None if something is wrong with one of them; reading them one by one then shows which."""
        n, values = len(frames), frames.values
        walked, used, _, _ = self._decoder.feed(values.data, 0, len(values), self._verify_data, max(n, 1), 0, 0)
        columns = self._decoder.take()
        if self._decoder.faults() or (walked, used) != (n, len(values)):
            return None
        if self._verify_data:
            read_timing.verified(values.data, len(values))
        try:
            return self._make(columns, None)
        except Misfit:
            return None

    def find(self, data: Any, start: int, size: int, count: int) -> Ints | None:
        offsets = np.empty(count + 1, np.int64)
        walked, used, _, _ = codec.scan(data, start, start + size, False, offsets, start)
        offsets[count] = start + size
        return offsets if (walked, used) == (count, size) else None


# The schema is inferred from so many records, but at most so many bytes.
_SCHEMA_RECORDS = 100
_SCHEMA_BYTES = 1 << 26


def open_tfrecord_shard(
    path: str | os.PathLike[str],
    schema: GivenSchema | None = None,
    *,
    verify: Verify = "all",
    allow_external: bool = False,
    cache: bool = True,
    fd: int | None = None,
) -> TFRecordShard | PackedTFRecordShard:
    """Opens a plain file by its index, which may be cached; a compressed one by reading it once.
    `schema` and `allow_external` concern other formats.

    `fd`: the file, already open; the shard takes it over.
    """
    source = open_source(path, fd=fd)
    try:
        if source.compression != "none":
            return PackedTFRecordShard(path, verify=verify, source=source)
        return TFRecordShard(path, verify=verify, cache=cache, source=source)
    except BaseException:
        source.close()
        raise


class _Framed(ABC):
    """Base of all shards whose record offsets are known."""

    seekable = True
    rows_per_chunk = 1

    def __init__(self, path: str | os.PathLike[str], verify: Verify) -> None:
        if verify not in ("all", "header"):
            raise ValueError(f"expected verify to be one of all, header, got {verify!r}")
        self.path = os.fsdecode(path)
        self._verify_data = verify == "all"
        self._offsets: Ints = np.zeros(1, np.int64)
        self._schema: dict[str, Column] | None = None

    @abstractmethod
    def _opened(self) -> AbstractContextManager[RecordSource]:
        """Opens the file's bytes for one read."""

    def stamp(self) -> FileStamp | None:
        return None

    @abstractmethod
    def close(self) -> None: ...

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def schema(self) -> dict[str, Column]:
        """The schema of the first hundred records: a rarer feature is missing."""
        if self._schema is None:
            fit = int(np.searchsorted(self._offsets, _SCHEMA_BYTES, "right")) - 1
            self._schema = self._infer(0, min(len(self), _SCHEMA_RECORDS, max(fit, 1))).schema
        return dict(self._schema)

    def _infer(self, first: int, last: int) -> Inferred:
        with self._opened() as source:
            buf, start, stop = _fetch(source, [(int(self._offsets[first]), int(self._offsets[last]))])
            records, used, status, needed = codec.records(buf, start, stop, self._verify_data, last - first)
            if len(records) < last - first:
                raise self._corrupt_error(source, range(first, last), len(records), used, status, needed)
        try:
            return infer_schema(records)
        except NotAnExample as error:
            raise FormatError(self.path, None, None, str(error), "Only Examples can be read as columns") from None

    def present(self, schema: Schema, start: int, stop: int) -> tuple[set[str], list[str]]:
        found = self._infer(start, stop)
        keys = sorted({*found.schema, *found.notes})  # a list that is always empty is only in the notes
        return {name for name, column in schema.items() if (column.key or name) in keys}, keys

    def bytes_of(self, start: int, stop: int) -> int:
        check_range(self.path, len(self), start, stop)
        return int(self._offsets[stop] - self._offsets[start])

    def read(self, start: int, stop: int, schema: GivenSchema | None = None) -> Batch:
        check_range(self.path, len(self), start, stop)
        pieces = [(int(self._offsets[start]), int(self._offsets[stop]))] if stop > start else []
        return self._read(range(start, stop), pieces, schema)

    def frames(self, start: int, stop: int, into: Any = None) -> BytesColumn:
        """Returns the records [start, stop) as they are in the file, for a FramesDecoder.

        `into`: the values of an unused column of frames, whose memory is reused if it is large enough.
        """
        check_range(self.path, len(self), start, stop)
        begin, end = int(self._offsets[start]), int(self._offsets[stop])
        with self._opened() as source, read_timing.fetching():
            buf, first, got = _fetch(source, [(begin, end)], into)
        if got - first < end - begin:
            self.read(start, stop)  # raises an error that says what is missing
        return BytesColumn(buf, self._offsets[start : stop + 1] - (begin - first))

    def frames_decoder(self, schema: Schema) -> TFRecordFramesDecoder:
        return TFRecordFramesDecoder(schema, verify_data=self._verify_data)

    def read_rows(self, rows: Rows, schema: GivenSchema | None = None) -> Batch:
        numbers = check_rows(self.path, len(self), rows)
        pieces: list[tuple[int, int]] = []
        for row in numbers:
            start, stop = int(self._offsets[row]), int(self._offsets[row + 1])
            if pieces and pieces[-1][1] == start:  # read neighbours together
                pieces[-1] = (pieces[-1][0], stop)
            else:
                pieces.append((start, stop))
        return self._read(numbers, pieces, schema)

    def _read(self, rows: Sequence[int], pieces: list[tuple[int, int]], schema: GivenSchema | None) -> Batch:
        columns = self.schema if schema is None else check_schema(schema)
        total = sum(stop - start for start, stop in pieces)
        # Copying large values would cost as much as reading them.
        is_large = total >= BORROW_MIN_BYTES * max(len(rows), 1)
        borrow = codec.NATIVE and is_large and any(map(can_borrow, columns.values()))
        decoder = codec.Decoder(fields_of(columns, borrow=borrow))
        with self._opened() as source:
            with read_timing.fetching():
                buf, start, stop = _fetch(source, pieces)
            walked, used, status, needed = decoder.feed(buf, start, stop, self._verify_data, max(len(rows), 1), 0, 0)
            if walked < len(rows):
                faults = decoder.faults()
                raise (
                    self._mismatch_error(columns, rows, codec.Fault(*faults[0]))
                    if faults
                    else self._corrupt_error(source, rows, walked, used, status, needed)
                )
        for fault in decoder.faults():
            raise self._mismatch_error(columns, rows, codec.Fault(*fault))
        if self._verify_data:
            read_timing.verified(memoryview(buf)[start:stop], total)
        if used != total:
            raise CorruptError(self.path, None, None, "the file has changed since it was opened", "Open it again")
        try:
            return batch_maker(columns, borrow)(decoder.take(), buf)
        except Misfit as error:
            row = rows[error.row]
            raise DecodeError(self.path, row, int(self._offsets[row]), str(error)) from None

    def _mismatch_error(self, schema: dict[str, Column], rows: Sequence[int], fault: codec.Fault) -> DataError:
        row = rows[fault.record]
        if fault.code == codec.MALFORMED:
            reason = "its CRC is right, but it is not a tf.train.Example"
        else:
            reason = _mismatch(list(schema.items())[fault.field], fault.code, fault.got)
        offset = int(self._offsets[row])
        return DecodeError(self.path, row, offset, reason, features_there(self.path, offset, fault, schema))

    def _corrupt_error(
        self, source: RecordSource, rows: Sequence[int], walked: int, used: int, status: int, needed: int
    ) -> DataError:
        row = rows[walked]
        offset = int(self._offsets[row])
        size = source.size()
        left = int(self._offsets[-1]) - offset if size is None else max(size - offset, 0)
        return error_for(source, row, offset, describe(status, needed, left))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class TFRecordShard(_Framed):
    """A plain file. The index of its folder may know where its records are; else it is scanned."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        verify: Verify = "all",
        cache: bool = True,
        source: RecordSource | None = None,
    ) -> None:
        super().__init__(path, verify)
        self._source = open_source(path) if source is None else source
        try:
            found = load_index(path, self._source) if cache else None
            self._offsets = build_index(self._source) if found is None else found
        except BaseException:
            self._source.close()
            raise

    @property
    def places(self) -> bytes:
        """What the index of its folder stores."""
        return self._offsets.tobytes()

    @contextmanager
    def _opened(self) -> Iterator[RecordSource]:
        yield self._source

    def stamp(self) -> FileStamp | None:
        return None if self._source.fd < 0 else FileStamp.of(self._source.fd)

    def _corrupt_error(self, source: RecordSource, *about: Any) -> DataError:
        check_index(source, self._offsets)
        return super()._corrupt_error(source, *about)

    def fill(self, start: int, stop: int, into: Any) -> Fill | None:
        check_range(self.path, len(self), start, stop)
        begin, end = int(self._offsets[start]), int(self._offsets[stop])
        if len(into) < end - begin + PAGE_BYTES:
            return None
        return Fill(self._source.fd, begin, front_of(into, begin), end - begin)

    def filled(self, start: int, stop: int, into: Any) -> BytesColumn:
        begin = int(self._offsets[start])
        return BytesColumn(into, self._offsets[start : stop + 1] - (begin - front_of(into, begin)))

    def close(self) -> None:
        self._source.close()


class PackedTFRecordShard(_Framed):
    """A GZIP or ZLIB file. Every read decompresses it from its start, so it is best read in one go.

    Opening it counts its records, which decompresses it once. Nothing stays open between reads.
    """

    seekable = False

    def __init__(
        self, path: str | os.PathLike[str], *, verify: Verify = "all", source: RecordSource | None = None
    ) -> None:
        super().__init__(path, verify)
        self._closed = False
        with source or open_source(path) as opened:
            self._made_from = FileStamp.of(opened.fd)
            self._offsets = build_index(opened)

    @contextmanager
    def _opened(self) -> Iterator[RecordSource]:
        if self._closed:
            raise ValueError(f"{self.path}: the shard is closed")
        with open_source(self.path) as source:
            stamp = FileStamp.of(source.fd)
            if stamp != self._made_from:  # touched, or a copy of a URL that was downloaded again
                if not np.array_equal(build_index(source), self._offsets):
                    reason = "the file has changed since it was opened"
                    raise CorruptError(self.path, None, None, reason, "Open it again")
                self._made_from = stamp
            yield source

    def close(self) -> None:
        self._closed = True


def _fetch(source: RecordSource, pieces: list[tuple[int, int]], into: Any = None) -> tuple[Any, int, int]:
    """Reads these parts of the file one after the other into a new buffer, or into `into`; fewer bytes at its end."""
    sizes = [stop - start for start, stop in pieces]
    buf = new_buffer(sum(sizes)) if into is None or len(into) < sum(sizes) + PAGE_BYTES else into
    first = end = front_of(buf, pieces[0][0]) if pieces else 0
    reads = []
    for (start, _), size in zip(pieces, sizes, strict=True):
        reads.append((start, end, size))
        end += size
    if source.compression != "none":
        reads.sort()  # going back would decompress everything again
    view = memoryview(buf)
    for start, at, size in reads:
        got = source.read_at(start, view[at : at + size])
        if got < size:
            return buf, first, at + got
    return buf, first, end
