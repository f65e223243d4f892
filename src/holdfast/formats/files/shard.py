"""Many small files as one shard."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np

from ..._base.text import names_there
from ...errors import DecodeError, InputError, SchemaError, cannot_open
from ...schema import Bytes, Column, Int64, Ragged, check_schema
from ..columns import Batch, BytesColumn, ColumnData, Ints
from ..gather import fill, join_bytes
from ..shard import GivenSchema, Rows, check_rows, check_run
from .problems import check_size
from .reading import read_files

_OWN: dict[str, Column] = {"data": Bytes(), "path": Bytes(), "label": Int64()}


class FilesShard:
    """Sample i is file i: "data" is what it holds, "path" its path below `root`, "label" the number of its class.

    root:    the folder that paths which are not absolute are in, and that "path" begins below
    classes: names of folders right below the root; a file's class is the one it is in. None: there is no "label"

    Files are opened, read and closed at once: no descriptor is held. Sizes are learned now; a file that has another
    size when it is read is an error.
    """

    seekable = True
    rows_per_chunk = 1

    def __init__(
        self,
        paths: Iterable[str | bytes | os.PathLike[str]],
        *,
        root: str | os.PathLike[str] = "",
        classes: Sequence[str] | None = None,
        _sizes: Sequence[int] | None = None,  # of a listing, which knows them and has checked them
    ) -> None:
        if isinstance(paths, (str, bytes, os.PathLike)):
            raise TypeError(f"expected a list of paths, got {paths!r}; list_files lists a folder")
        self.path = os.fsdecode(root)
        self._prefix = os.path.join(os.fsencode(root), b"") if root else b""
        self._names = [self._below(path) for path in paths] if _sizes is None else _plain(paths)
        sizes = _sizes if _sizes is not None else [_size_of(self._prefix + name) for name in self._names]
        self._offsets: Ints = np.zeros(len(self._names) + 1, np.int64)
        np.cumsum(sizes, out=self._offsets[1:])
        if not self.path:
            self.path = _shown(self._names)
        self.classes = None if classes is None else list(classes)
        self._labels = None if classes is None else self._label(classes)
        self._closed = False

    # ---- what there is

    def _below(self, path: str | bytes | os.PathLike[str]) -> bytes:
        name = os.fsencode(path)
        if not self._prefix or not os.path.isabs(name):
            return name
        root = os.path.abspath(self._prefix)
        below = os.path.relpath(name, root)
        if below.split(b"/", 1)[0] == b"..":
            raise InputError(f"{os.fsdecode(name)}: expected files below {self.path}")
        return below

    def _label(self, classes: Sequence[str]) -> Ints:
        numbers = {os.fsencode(name): i for i, name in enumerate(classes)}
        if len(numbers) < len(classes):
            raise SchemaError(f"{self.path}: expected each class once, got {list(classes)!r}")
        labels = np.empty(len(self._names), np.int64)
        for i, name in enumerate(self._names):
            folder, slash, _ = name.partition(b"/")
            if not slash or folder not in numbers:
                known = ", ".join(list(classes)[:8]) + (" …" if len(classes) > 8 else "")
                raise InputError(f"{self._file(i)}: expected a file in a folder of one of the classes: {known}")
            labels[i] = numbers[folder]
        return labels

    def _file(self, row: int) -> str:
        return os.fsdecode(self._prefix + self._names[row])

    def __len__(self) -> int:
        return len(self._names)

    @property
    def schema(self) -> dict[str, Column]:
        return {name: column for name, column in _OWN.items() if name != "label" or self._labels is not None}

    def bytes_of(self, start: int, stop: int) -> int:
        check_run(self.path, len(self), start, stop)
        return int(self._offsets[stop] - self._offsets[start])

    # ---- reading

    def read(self, start: int, stop: int, schema: GivenSchema | None = None) -> Batch:
        check_run(self.path, len(self), start, stop)
        return self._read(range(start, stop), schema)

    def read_rows(self, rows: Rows, schema: GivenSchema | None = None) -> Batch:
        return self._read(check_rows(self.path, len(self), rows), schema)

    def _read(self, rows: Sequence[int], schema: GivenSchema | None) -> Batch:
        if self._closed:
            raise ValueError(f"{self.path}: it was closed")
        columns = self.schema if schema is None else check_schema(schema)
        for name, column in columns.items():
            self._check(name, column)
        return {name: self._column(name, column, rows) for name, column in columns.items()}

    def _check(self, name: str, column: Column) -> None:
        own = self.schema.get(_key(name, column))
        if own is not None and (isinstance(column, Ragged) or column.alike() != own):
            raise SchemaError(f"{self.path}: column {name!r} is {own!r} in a list of files, got {column!r}")
        if own is None and (isinstance(column, Ragged) or column.default is None):
            reason = f"there is no {_key(name, column)!r} for column {name!r}"
            hint = names_there(_key(name, column), list(self.schema), "A list of files has")
            if _key(name, column) == "label":
                hint += "; and label, when classes are given"
            raise DecodeError(self.path, None, None, reason, hint)

    def _column(self, name: str, column: Column, rows: Sequence[int]) -> ColumnData:
        key = _key(name, column)
        if key == "data":
            return self._data(rows)
        if key == "path":
            return join_bytes([self._names[row] for row in rows])
        if key == "label" and self._labels is not None:
            return self._labels[rows.start : rows.stop].copy() if isinstance(rows, range) else self._labels[list(rows)]
        assert not isinstance(column, Ragged)
        return fill(name, column, len(rows))

    def _data(self, rows: Sequence[int]) -> BytesColumn:
        offsets: Any
        if isinstance(rows, range):
            offsets = self._offsets[rows.start : rows.stop + 1] - self._offsets[rows.start]
        else:
            which = np.array(rows, np.int64)
            offsets = np.zeros(len(rows) + 1, np.int64)
            np.cumsum(self._offsets[which + 1] - self._offsets[which], out=offsets[1:])
        paths = (self._prefix + self._names[row] for row in rows)
        return BytesColumn(read_files(paths, rows, offsets), offsets)

    # ---- ending

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _plain(paths: Iterable[Any]) -> list[bytes]:
    return list(paths)


def _size_of(path: bytes) -> int:
    try:
        info = os.stat(path)
    except OSError as error:
        raise cannot_open(os.fsdecode(path), error) from error
    check_size(path, info.st_mode, info.st_size)
    return info.st_size


def _shown(names: list[bytes]) -> str:
    """What a list of files without a root is called."""
    first = os.fsdecode(names[0]) if names else "no files"
    return first if len(names) < 2 else f"{first} and {len(names) - 1:,} more files"


def _key(name: str, column: Column) -> str:
    return name if column.key is None else column.key
