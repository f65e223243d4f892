"""Reading one TFRecord file from its first record to its last."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ..._native import codec
from ...errors import CorruptError, DecodeError
from ...schema import Column, Ragged, Value, check_schema
from ..columns import Batch, slice_batch
from .encoding import KIND_NAMES, batch_maker, fields_of, kind_of, lendable, value_of
from .problems import Problem
from .source import Compression, open_source
from .stream import FrameStream, OnCorrupt, Verify
from .window import BUFFER_BYTES, LendingWindow

OnMismatch = Literal["raise", "skip"]

# Rows are decoded in runs of about this many bytes, and batches are slices of a run: a call into the codec costs about
# as much as decoding twenty small records. A batch that is kept keeps its run alive, so this bounds what it can pin.
RUN_BYTES = 1 << 19

# From this size of records on, byte strings stay in the buffer they were read into: a copy would cost as much again.
LEND_BYTES = 1 << 14

_MANY = 1 << 62


class TFRecordReader:
    """One file's records, or its Examples as columns. Holds one descriptor and one buffer until close().

        with TFRecordReader("train.tfrecord") as reader:
            for batch in reader.batches({"label": Int64(), "image": Bytes()}, 256): ...

    verify       "all": the CRC of every length and of all data; "header": only of the lengths
    on_corrupt   what to do at a damage: "raise", "skip" the record, or "salvage" (see `losses`)
    on_mismatch  what to do with a record that does not fit the schema: "raise" or "skip"
    compression  "auto" looks at the content; or "none", "gzip", "zlib"
    """

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
            raise ValueError(f"wanted on_mismatch to be 'raise' or 'skip', got {on_mismatch!r}")
        self.path = os.fspath(path)
        self.on_mismatch = on_mismatch
        source = open_source(path, compression)
        try:
            self._stream = FrameStream(source, verify=verify, on_corrupt=on_corrupt, buffer_bytes=buffer_bytes)
        except BaseException:
            source.close()
            raise

    @property
    def losses(self) -> list[Problem]:
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
        """Every record's data, one bytes object each."""
        stream = self._stream
        ready: deque[list[bytes]] = deque()

        def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            records, used, status, needed = codec.records(buf, start, stop, stream.verify_data, _MANY)
            ready.append(records)
            return len(records), used, status, needed

        try:
            while stream.pump(feed):
                while ready:
                    yield from ready.popleft()
        except CorruptError:
            while ready:
                yield from ready.popleft()
            raise

    def batches(
        self, schema: Mapping[str, Column | type[Value]], size: int, *, drop_last: bool = False
    ) -> Iterator[Batch]:
        """Examples as columns, `size` rows at a time; the last batch may be shorter unless dropped."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"wanted a batch size from 1 up, got {size!r}")
        return self._batches(check_schema(schema), size, drop_last)

    def _batches(self, schema: dict[str, Column], size: int, drop_last: bool) -> Iterator[Batch]:
        decoder = codec.Decoder(fields_of(schema))
        make_batch = batch_maker(schema)
        run = size  # rows; a multiple of `size`
        while True:
            more, failed = self._decode(schema, decoder, run)
            rows = decoder.rows()
            if rows < run and more:
                continue
            whole = rows - rows % size if more or failed is not None or drop_last else rows
            if whole:
                batch = make_batch(decoder.take(), None)
                for start in range(0, whole, size):
                    yield slice_batch(batch, start, min(start + size, whole))
                del batch
            if failed is not None:
                raise failed
            if not more:
                return
            if self._bytes_of(1) >= LEND_BYTES and self._can_lend(schema):
                yield from self._lent_batches(schema, size, drop_last)
                return
            run = size * max(1, RUN_BYTES // self._bytes_of(size))

    def _bytes_of(self, rows: int) -> int:
        """What so many rows take in the file, going by those so far."""
        return rows * (self._stream.offset // max(self._stream.record, 1) + 1)

    def _can_lend(self, schema: dict[str, Column]) -> bool:
        # Repaired records are not in the window's buffer, so what can salvage does not lend.
        return codec.NATIVE and self._stream.on_corrupt == "raise" and any(map(lendable, schema.values()))

    def _lent_batches(self, schema: dict[str, Column], size: int, drop_last: bool) -> Iterator[Batch]:
        """Large records: a batch gets the buffer it was read into instead of a copy."""
        stream = self._stream
        stream.window = window = LendingWindow(stream.window, self._bytes_of(size))
        decoder = codec.Decoder(fields_of(schema, lend=True))
        make_batch = batch_maker(schema, lend=True)
        while True:
            window.expect(self._bytes_of(size - decoder.rows()))
            more, failed = self._decode(schema, decoder, size)
            rows = decoder.rows()
            if rows < size and more:
                continue
            if rows == size or (rows and failed is None and not drop_last):
                yield make_batch(decoder.take(), window.buf)
                window.renew(self._bytes_of(size))  # only now: the batch before this one may have been let go of
            if failed is not None:
                raise failed
            if not more:
                return

    def _decode(self, schema: dict[str, Column], decoder: codec.Decoder, rows: int) -> tuple[bool, Exception | None]:
        """One step: whether there is more, and what went wrong, to be raised once the rows before it are handed out."""
        stream = self._stream

        def feed(buf: Any, start: int, stop: int) -> tuple[int, int, int, int]:
            return decoder.feed(buf, start, stop, stream.verify_data, rows, stream.record, stream.offset)

        try:
            more = stream.pump(feed)
            self._judge(schema, decoder)
        except Exception as error:  # noqa: BLE001 - the caller raises it
            return False, error
        return more, None

    def _judge(self, schema: dict[str, Column], decoder: codec.Decoder) -> None:
        """What to do about records that gave no row."""
        for fault in decoder.faults():
            record, offset, code, field, got = fault
            if code == codec.MALFORMED:
                reason = "its CRC is right, but it is not a tf.train.Example"
                keep_going = self._stream.on_corrupt != "raise"
            else:
                reason = _mismatch(list(schema.items())[field], code, got)
                keep_going = self.on_mismatch == "skip"
            if not keep_going:
                raise DecodeError(self.path, record, offset, reason)
            self.losses.append(Problem(offset, record, reason, 1))


def _mismatch(item: tuple[str, Column], code: int, got: int) -> str:
    """What was wanted of a feature, and what was there."""
    name, column = item
    key = name if column.key is None else column.key
    value = value_of(column)
    wanted = KIND_NAMES[kind_of(column)]
    feature = f"feature {key!r}"
    if code == codec.MISSING:
        return f"{feature} is missing: wanted {column!r}, which has no default"
    if code == codec.WRONG_KIND:
        return f"{feature}: wanted {wanted}, got {KIND_NAMES[got]}"
    if code == codec.IS_LIST:
        return f"{feature}: wanted one feature ({column!r}), got a feature list; make it a Ragged column"
    if code == codec.NOT_LIST:
        return f"{feature}: wanted a feature list ({column!r}), got one feature"
    if isinstance(column, Ragged):
        return f"{feature}: wanted a multiple of {value.count} values, got {got:,}"
    return f"{feature}: wanted {value.count:,} {'value' if value.count == 1 else 'values'}, got {got:,}"
