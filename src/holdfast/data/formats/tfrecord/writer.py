"""Writes one TFRecord file, which appears complete or not at all."""

from __future__ import annotations

import functools
import os
import threading
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np

from ...._native import codec
from ...._util.atomic import PartialFile
from ...._util.process import call_after_fork
from ....errors import ClosedWriterError, ForkedWriterError, SchemaError, WriteError, WriterBusyError
from ....procfs.locks import writers_of
from ....schema import Column, Ragged, Value, check_schema
from ..base import FileEntry, FinishedFile
from ..row_buffers import buffers_of
from .column_encoding import fields_of, is_cast, stored_buffers
from .format import TFRECORD_COMPRESSION

PackWith = Literal["auto", "none", "gzip", "zlib"]

_FLUSH_BYTES = 1 << 20


P = ParamSpec("P")
R = TypeVar("R")


def _locked(
    method: Callable[Concatenate[TFRecordWriter, P], R],
) -> Callable[Concatenate[TFRecordWriter, P], R]:
    """Serializes the calls of several threads."""

    @functools.wraps(method)
    def call(self: TFRecordWriter, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return call


class TFRecordWriter:
    """Writes to a temporary file and renames it on close(), so that a reader never sees a part of a file.

        with TFRecordWriter("train.tfrecord", {"label": Int64(), "image": Bytes()}) as w:
            w.append(label=3, image=png)          # one sample
            w.extend({"label": labels, "image": images})  # columns of many
            w.write(serialized)                   # a record made elsewhere; needs no schema

    A clean exit from the `with` block commits (fsync, rename, fsync of the folder); an exception, a kill or a lost
    reference leaves no file. A second writer of the same path is an error while the first lives, and so is using a
    writer in a forked child. Threads may share one. After close(), `entry` has count, size and crc32c for a manifest.

    Args:
        compression: "auto": by the name's suffix (.gz, .zlib); or "none", "gzip", "zlib".
        overwrite: Replace an existing file, which is otherwise an error.
        sequence: Write tf.train.SequenceExample: Ragged columns become feature lists.
    """

    __module__ = "holdfast"

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: Mapping[str, Column | type[Value]] | None = None,
        *,
        compression: PackWith | None = "auto",
        level: int = -1,
        overwrite: bool = False,
        sequence: bool = False,
    ) -> None:
        self._file: PartialFile | None = None  # first: __del__ needs it if what follows raises
        self.path = Path(path)
        self.schema = None if schema is None else check_schema(schema)
        self.sequence = sequence
        self.records = 0
        self.entry: FileEntry | None = None
        if not sequence and any(isinstance(c, Ragged) and c.depth > 1 for c in (self.schema or {}).values()):
            raise SchemaError(
                "Ragged(Ragged(…)) is a list of lists, which only a SequenceExample holds: say sequence=True"
            )
        self._casts = any(map(is_cast, (self.schema or {}).values()))
        self._encoder = None if self.schema is None else codec.Encoder(fields_of(self.schema))
        self._compressor = _compressor(_choose(self.path, compression), level)
        self._pending: list[Any] = []
        self._pending_bytes = 0
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self._crc = 0
        self._finalized = False
        self._lock = threading.RLock()
        self._state: Literal["open", "closed", "failed", "forked"] = "open"
        try:
            self._file = PartialFile(path, overwrite=overwrite)
        except WriterBusyError as error:
            raise _name_holder(error, self.path) from None
        call_after_fork(self)

    @_locked
    def write(self, record: bytes | bytearray | memoryview) -> None:
        """Writes one record's data."""
        self._check()
        self._flush_rows()
        self._put(codec.frame(record))
        self.records += 1

    @_locked
    def write_frames(self, frames: memoryview, records: int) -> None:
        """Writes complete frames of so many records, whose CRCs the caller has checked. The buffer may be reused."""
        self._check()
        self._flush_rows()
        self._flush()
        self._out(self._compressor.compress(frames) if self._compressor else frames)
        self.records += records

    @_locked
    def append(self, /, **sample: Any) -> None:
        """Writes one sample: a value for every column of the schema."""
        schema = self._need_schema()
        if sample.keys() != schema.keys():
            buffers_of(schema, {name: [value] for name, value in sample.items()})  # raises an error that says which
        self._rows.append({name: _snapshot(value) for name, value in sample.items()})
        if len(self._rows) >= 256:
            self._flush_rows()

    @_locked
    def extend(self, columns: Mapping[str, Any]) -> None:
        """Writes a batch: columns of equal length, as arrays, lists, or columns of a reader."""
        schema = self._need_schema()
        self._flush_rows()
        self._encode(*self._stored(*buffers_of(schema, columns)))

    @_locked
    def extend_buffers(self, buffers: list[codec.ColumnBuffers], rows: int) -> None:
        """Writes the result of buffers_of."""
        self._need_schema()
        self._flush_rows()
        self._encode(*self._stored(buffers, rows))

    def _stored(self, buffers: list[codec.ColumnBuffers], rows: int) -> tuple[list[codec.ColumnBuffers], int]:
        """Casts to the dtypes of a TFRecord. Raises a SchemaError for a value that does not fit, before any is
        written."""
        if self.schema is None or not self._casts:
            return buffers, rows
        try:
            return stored_buffers(self.schema, buffers, self.records), rows
        except SchemaError as error:
            raise SchemaError(f"{self.path}: {error}") from None

    def _need_schema(self) -> dict[str, Column]:
        self._check()
        if self.schema is None:
            raise SchemaError(f"{self.path}: the writer was opened without a schema; only write(record) works then")
        return self.schema

    def _flush_rows(self) -> None:
        """Encodes the samples of append(), many at a time."""
        if self._rows and self.schema is not None:
            rows, self._rows = self._rows, []
            columns = {name: [row[name] for row in rows] for name in self.schema}
            try:
                prepared = self._stored(*buffers_of(self.schema, columns))
            except SchemaError:
                for i, row in enumerate(rows):  # find the sample that does not fit
                    try:
                        buffers_of(self.schema, {name: [row[name]] for name in self.schema})
                    except SchemaError as error:
                        self._fail()
                        raise SchemaError(f"{self.path}, sample {self.records + i:,}: {error}") from None
                self._fail()
                raise
            self._encode(*prepared)

    def _encode(self, buffers: list[codec.ColumnBuffers], rows: int) -> None:
        assert self._encoder is not None
        done = 0
        while done < rows:
            data, after = self._encoder.encode(buffers, rows, done, self.sequence, _FLUSH_BYTES)
            self._put(data)
            self.records += after - done
            done = after

    def _put(self, data: Any) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        self._out(self._compressor.compress(data) if self._compressor else data)

    def _out(self, data: Any) -> None:
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            self._fail()
            raise WriteError(f"cannot write {self.path}: {error.strerror}; nothing of it was left behind") from error
        self._crc = codec.crc32c(data, self._crc)
        self._bytes += len(data)

    @_locked
    def finalize(self) -> tuple[Path, FileEntry]:
        """Writes everything to the temporary file. Returns its path and entry, so that it can be read back before
        close() renames it. Nothing can be added afterwards."""
        self._check()
        self._flush_rows()
        self._flush()
        if self._compressor:
            self._out(self._compressor.flush())
            self._compressor = None
        assert self._file is not None
        self._finalized = True
        return self._file.path, FileEntry(str(self.path), self.records, self._bytes, self._crc)

    @_locked
    def close(self) -> FileEntry:
        """Commits the file: fsync, rename, fsync of the folder."""
        if self._state == "closed" and self.entry is not None:
            return self.entry
        self._check_state()
        if not self._finalized:
            self.finalize()
        assert self._file is not None
        try:
            self._file.commit()
        except OSError as error:
            self._fail()
            raise WriteError(f"cannot finish {self.path}: {error.strerror}; nothing of it was left behind") from error
        except WriteError:
            self._fail()
            raise
        self._state = "closed"
        self.entry = FileEntry(str(self.path), self.records, self._bytes, self._crc)
        return self.entry

    @_locked
    def discard(self) -> None:
        """Removes the temporary file."""
        if self._state == "open":
            self._state = "closed"
            self._drop()

    def _fail(self) -> None:
        self._state = "failed"
        self._drop()

    def _drop(self) -> None:
        self._pending, self._rows = [], []
        if self._file is not None:
            self._file.discard()

    def _check(self) -> None:
        self._check_state()
        if self._finalized:
            raise ClosedWriterError(f"{self.path}: this writer was finalized; only close() or discard() can follow")

    def _check_state(self) -> None:
        if self._state == "forked":
            raise ForkedWriterError(
                f"{self.path}: this writer belongs to the parent process; open one with another path in the child"
            )
        if self._state != "open":
            why = "failed earlier" if self._state == "failed" else "is closed"
            raise ClosedWriterError(f"{self.path}: this writer {why}; open a new one")

    def after_fork_in_child(self) -> None:
        """Detaches the child, which must neither write nor keep the parent's lock alive."""
        self._lock = threading.RLock()  # the thread that held it is not in the child
        if self._state == "open":
            self._state = "forked"
            if self._file is not None:
                self._file.detach()

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.close()
        elif self._state == "open":
            self.discard()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None and self._state == "open":
            warnings.warn(f"{self.path}: the writer was not closed; its file was removed", ResourceWarning, 2)
            self.discard()


def _snapshot(value: Any) -> Any:
    """Copies a value: it is encoded later, and the caller may reuse its array."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (list, tuple)):
        return [_snapshot(item) for item in value]
    return value


def _choose(path: Path, compression: str | None) -> str:
    chosen = "none" if compression is None else compression.lower() or "none"
    if chosen == "auto":
        return TFRECORD_COMPRESSION.get(path.suffix.lower(), "none")
    if chosen not in ("none", "gzip", "zlib"):
        raise ValueError(f"expected compression to be auto, none, gzip or zlib, got {compression!r}")
    return chosen


def _compressor(compression: str, level: int) -> Any:
    if compression == "none":
        return None
    if not -1 <= level <= 9:
        raise ValueError(f"expected a compression level from -1 to 9, got {level}")
    return zlib.compressobj(level, zlib.DEFLATED, zlib.MAX_WBITS | (16 if compression == "gzip" else 0))


def _name_holder(error: WriterBusyError, path: Path) -> WriterBusyError:
    holders = writers_of(path.with_name(f".{path.name}.partial"))
    if not holders:
        return error
    who = "this process itself" if holders[0].pid == os.getpid() else f"process {holders[0].pid} ({holders[0].command})"
    return WriterBusyError(f"another writer has {path} open: {who}")


# ---- files of conversions and of dataset directories


def _is_nested(schema: dict[str, Column]) -> bool:
    return any(isinstance(column, Ragged) and column.depth > 1 for column in schema.values())


def converted_tfrecord(
    path: Path, schema: dict[str, Column], *, first: int = 0, compression: Any = "auto"
) -> TFRecordWriter:
    return TFRecordWriter(path, schema, compression=compression, sequence=_is_nested(schema))


class TFRecordPart:
    """The file of a part."""

    def __init__(self, path: Path, schema: dict[str, Column], chunk_rows: int | None, codec: Any) -> None:
        self._schema = schema
        self._writer = TFRecordWriter(path, schema, sequence=_is_nested(schema))
        self.path = path.with_name(f".{path.name}.partial")

    def extend(self, columns: Mapping[str, Any]) -> int:
        buffers, rows = buffers_of(self._schema, columns)
        self._writer.extend_buffers(buffers, rows)
        return rows

    def finalize(self) -> FinishedFile:
        self.path, entry = self._writer.finalize()
        return FinishedFile(entry.records, entry.bytes, entry.crc32c, {})

    def discard(self) -> None:
        self._writer.discard()

    def detach(self) -> None:
        pass  # TFRecordWriter handles forks itself


def check_part(schema: dict[str, Column], chunk_rows: int | None, codec: Any) -> None:
    """Raises a ValueError for options that only HDF5 has."""
    if codec is not None or chunk_rows is not None:
        raise ValueError("chunk_rows and codec are for HDF5: a packed TFRecord could be read from its start only")
