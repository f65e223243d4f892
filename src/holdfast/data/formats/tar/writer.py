"""Writes one tar of samples in WebDataset's layout, which appears complete or not at all."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...._native import codec
from ...._util.atomic import PartialFile
from ...._util.process import call_after_fork
from ....errors import ClosedWriterError, ForkedWriterError, SchemaError, WriteError
from ....schema import Bytes, Column, Ragged, Value, check_schema
from ..base import FileEntry
from ..columns import dtype_of
from ..row_buffers import buffers_of
from .scan import END, header_of, padding, parts_of
from .values import KEY, MARK, extensions_of, is_key, is_label, is_nested, mark_of, pack

_FLUSH_BYTES = 1 << 20

Payload = bytes | memoryview


class TarWriter:
    """Writes to a temporary file and renames it on close(). For one thread at a time.

        with TarWriter("train.tar", {"jpg": Bytes(), "label": Int64()}) as w:
            w.extend({"jpg": images, "label": labels})

    The same samples give the same file, byte for byte. values.py describes how columns become members. Samples are
    numbered from `first` on, unless a column `__key__` of Bytes() has their keys. After close(), `entry` has count,
    size and crc32c.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: Mapping[str, Column | type[Value]],
        *,
        first: int = 0,
        overwrite: bool = False,
    ) -> None:
        self._file: PartialFile | None = None  # first: __del__ needs it if what follows raises
        self.path = Path(path)
        self.schema = check_schema(schema)
        self.samples = 0
        self.entry: FileEntry | None = None
        self._first, self._last = first, b""
        extensions = extensions_of(self.schema)
        self._members = [(extensions[name].encode(), _encoder_of(self.schema[name])) for name in extensions]
        self._pending: list[Payload] = []
        self._pending_bytes = self._bytes = self._crc = 0
        self._file = PartialFile(path, overwrite=overwrite)
        call_after_fork(self)
        self._member(MARK, mark_of(self.schema))

    def extend(self, columns: Mapping[str, Any]) -> int:
        """Writes columns of equal length and returns how many samples they are. A SchemaError means that none was
        written."""
        file = self._open()
        buffers, rows = buffers_of(self.schema, columns)
        by_name = dict(zip(self.schema, buffers, strict=True))
        keys = self._keys(by_name, rows)
        named = [name for name, column in self.schema.items() if not is_key(name, column)]
        streams = [encode(by_name[name], rows) for name, (_, encode) in zip(named, self._members, strict=True)]
        for key, *values in zip(keys, *streams, strict=True):
            for (extension, _), value in zip(self._members, values, strict=True):
                self._member(key + b"." + extension, value)
            if self._pending_bytes >= _FLUSH_BYTES:
                self._flush(file)
        self.samples += rows
        self._flush(file)  # before the caller can change its columns
        return rows

    def _keys(self, by_name: Mapping[str, Any], rows: int) -> list[bytes]:
        if KEY not in self.schema or not is_key(KEY, self.schema[KEY]):
            start = self._first + self.samples
            return [b"%09d" % number for number in range(start, start + rows)]
        keys = [bytes(key) for key in _strings(by_name[KEY], rows)]
        last = self._last
        for i, key in enumerate(keys):
            if parts_of(key + b".x") != (key, b"x") or b"\0" in key:
                reason = "expected a key with a name and without a dot in it"
                raise SchemaError(f"{self.path}, sample {self.samples + i:,}: {reason}, got {_shown(key)}")
            if key == last:
                reason = f"expected another key than the sample before it has, got {_shown(key)} again"
                raise SchemaError(f"{self.path}, sample {self.samples + i:,}: {reason}")
            last = key
        self._last = last
        return keys

    def _member(self, name: bytes, data: Payload) -> None:
        size = len(data)
        head, fill = header_of(name, size), padding(size)
        self._pending += (head, data, fill)
        self._pending_bytes += len(head) + size + len(fill)

    def _flush(self, file: PartialFile) -> None:
        data = b"".join(self._pending)
        self._pending, self._pending_bytes = [], 0
        try:
            file.write(data)
        except OSError as error:
            self.discard()
            raise WriteError(f"cannot write {self.path}: {error.strerror}; nothing of it was left behind") from error
        self._crc = codec.crc32c(data, self._crc)
        self._bytes += len(data)

    def close(self) -> FileEntry:
        """Commits the file: fsync, rename, fsync of the folder."""
        if self.entry is not None:
            return self.entry
        file = self._open()
        self._pending.append(END)
        self._flush(file)
        try:
            file.commit()
        except OSError as error:
            raise WriteError(f"cannot finish {self.path}: {error.strerror}; nothing of it was left behind") from error
        finally:
            self.discard()
        self.entry = FileEntry(str(self.path), self.samples, self._bytes, self._crc)
        return self.entry

    def discard(self) -> None:
        """Removes the temporary file, if there is one. Safe to call twice."""
        file, self._file = self._file, None
        if file is not None:
            file.discard()

    def _open(self) -> PartialFile:
        if self._file is None:
            raise ClosedWriterError(f"{self.path}: this writer is closed, or failed earlier; open a new one")
        if self._file.fd < 0:
            raise ForkedWriterError(f"{self.path}: this writer belongs to the parent process; open another file here")
        return self._file

    def after_fork_in_child(self) -> None:
        """Detaches the child, which must neither write nor keep the parent's lock alive."""
        if self._file is not None:
            self._file.detach()

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None and file.fd >= 0:
            warnings.warn(f"{self.path}: the writer was not closed; its file was removed", ResourceWarning, 2)
            file.discard()


def _shown(key: bytes) -> str:
    return repr(key[:80].decode("utf-8", "replace"))


# ---- a column's values, one sample at a time, from the result of buffers_of: values, ends, inner splits, splits

_Encoder = Callable[[Any, int], Iterator[Payload]]


def _encoder_of(column: Column) -> _Encoder:
    if is_nested(column):
        return lambda parts, rows: _nested(parts, rows, column)
    if isinstance(column, Bytes):
        return _strings
    if isinstance(column, Ragged):
        return lambda parts, rows: _lists(parts, rows, column.value)
    if is_label(column):
        return lambda parts, rows: (b"%d" % number for number in parts[0].tolist())
    return lambda parts, rows: _arrays(parts, rows, column)


def _strings(parts: Any, rows: int) -> Iterator[Payload]:
    view, ends = memoryview(parts[0]).cast("B"), parts[1].tolist()
    return (view[ends[i] : ends[i + 1]] for i in range(rows))


def _arrays(parts: Any, rows: int, value: Value) -> Iterator[Payload]:
    head = npy_head(dtype_of(value).str, value.shape)
    return (head + row.tobytes() for row in parts[0].reshape(rows, *value.shape))


def _lists(parts: Any, rows: int, value: Value) -> Iterator[Payload]:
    items, splits = parts[0].reshape(-1, *value.shape), parts[3].tolist()
    for i in range(rows):
        row = items[splits[i] : splits[i + 1]]
        yield npy_head(dtype_of(value).str, row.shape) + row.tobytes()


def _nested(parts: Any, rows: int, column: Column) -> Iterator[Payload]:
    values, ends, steps, splits = parts
    value = column.value if isinstance(column, Ragged) else column
    splits = np.arange(rows + 1) if splits is None else splits
    for i in range(rows):
        arrays: dict[str, Any] = {"values": values}
        low, high = int(splits[i]), int(splits[i + 1])
        if steps is not None:
            inner = steps[low : high + 1]
            arrays["row_splits"] = inner - inner[0]
            low, high = int(inner[0]), int(inner[-1])
        if isinstance(value, Bytes):
            offsets = ends[low * value.count : high * value.count + 1]
            arrays["offsets"] = offsets - offsets[0]
            arrays["values"] = values[int(offsets[0]) : int(offsets[-1])]
        else:
            arrays["values"] = values.reshape(-1, *value.shape)[low:high]
        yield pack(arrays)


@lru_cache(4096)
def npy_head(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Returns the .npy header of an array."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()
