"""Reads a list or a folder of many small files as one shard: each file is a sample."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from ..._util.text import names_there
from ...errors import CorruptError, DataError, DecodeError, InputError, SchemaError, cannot_open
from ...schema import Bytes, Column, Int64, Ragged, check_schema
from .base import GivenSchema, Rows, check_range, check_rows
from .columns import Batch, BytesColumn, ColumnData, Ints
from .gather import fill, join_bytes
from .registry import IMAGE_SUFFIXES

__all__ = ["IMAGE_SUFFIXES", "FilesShard", "list_files"]

MAX_BYTES = 1 << 30  # a sample is read in one go, so a larger file is an error


def check_size(path: bytes, mode: int, size: int) -> None:
    """Raises an InputError for what cannot be a sample: not a regular file, empty, or huge."""
    if not stat.S_ISREG(mode):
        raise InputError(f"{os.fsdecode(path)}: expected a file to read, this is {describe_mode(mode)}")
    if not size:
        raise InputError(f"{os.fsdecode(path)}: the file is empty")
    if size > MAX_BYTES:
        name = os.fsdecode(path)
        raise InputError(f"{name}: expected files of up to {MAX_BYTES:,} bytes as samples, this has {size:,}")


def describe_mode(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFLNK: "a link",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "not a regular file")


def changed(path: bytes, row: int, fd: int, expected: int) -> DataError | InputError:
    """Returns the error for a file that does not have as many bytes as when it was listed."""
    name, info = os.fsdecode(path), os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        return InputError(f"{name}: expected a file to read, this is {describe_mode(info.st_mode)} by now")
    reason = f"the file has changed: it had {expected:,} bytes when it was listed, and has {info.st_size:,} now"
    return CorruptError(name, row, None, reason, "List the files again")


# ---- listing a folder

Found = tuple[bytes, int]  # a path relative to the folder, and the file's size


def list_files(
    folder: str | os.PathLike[str],
    suffixes: Sequence[str] | None = IMAGE_SUFFIXES,
    classes_from_folder: bool = False,
) -> FilesShard:
    """Lists all files below a folder that have one of these suffixes (None: all), sorted by the bytes of their paths.

    With `classes_from_folder` the folders directly below it are the classes, sorted by name, as in torchvision's
    ImageFolder; files beside them are left out. Hidden names are skipped. Links to files in the folder are followed,
    and links that lead out of it are errors; links to folders in it are skipped, because their files are listed
    already.
    """
    root = os.fsencode(folder)
    ends = None if suffixes is None else tuple(_suffix(suffix) for suffix in suffixes)
    walk = _Walk(root, ends)
    if not classes_from_folder:
        return _shard(root, sorted(walk.below(b"")), None)
    classes = sorted(walk.folders(b""))
    found: list[Found] = []
    for name in classes:
        some = sorted(walk.below(name + b"/"))
        if not some:
            missing = "file" if suffixes is None else f"file that ends in {', '.join(suffixes)}"
            raise InputError(f"{os.fsdecode(root)}: the class {os.fsdecode(name)!r} has no {missing}")
        found += some
    return _shard(root, sorted(found), [os.fsdecode(name) for name in classes])


def _shard(root: bytes, found: list[Found], classes: list[str] | None) -> FilesShard:
    return FilesShard(
        [name for name, _ in found], root=os.fsdecode(root), classes=classes, _sizes=[size for _, size in found]
    )


def _suffix(suffix: object) -> bytes:
    if not isinstance(suffix, str) or not suffix:
        raise TypeError(f"expected suffixes such as '.png', got {suffix!r}")
    return os.fsencode(suffix.lower())


class _Walk:
    """Walks a folder by scandir, which tells files from folders without a stat call each."""

    def __init__(self, root: bytes, ends: tuple[bytes, ...] | None) -> None:
        self._root = root
        self._ends = ends
        self._real = os.path.join(os.path.realpath(root), b"")

    def folders(self, below: bytes) -> list[bytes]:
        return [entry.name for entry in self._entries(below) if entry.is_dir(follow_symlinks=False)]

    def below(self, folder: bytes) -> Iterator[Found]:
        """Yields the files below `folder`, which ends in a slash or is empty."""
        folders, ends = [folder], self._ends
        while folders:
            here = folders.pop()
            for entry in self._entries(here):
                name = entry.name
                if entry.is_file(follow_symlinks=False):
                    if ends is None or name.lower().endswith(ends):
                        size = _stat(entry).st_size
                        if not 0 < size <= MAX_BYTES:
                            check_size(entry.path, stat.S_IFREG, size)
                        yield here + name, size
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(here + name + b"/")
                else:
                    info = self._scan(entry)
                    if info is not None:
                        yield here + name, info.st_size

    def _entries(self, folder: bytes) -> list[os.DirEntry[bytes]]:
        path = self._root + b"/" + folder if folder else self._root
        try:
            with os.scandir(path) as entries:
                return [entry for entry in entries if entry.name[0] != ord(".")]
        except OSError as error:
            raise InputError(f"{os.fsdecode(path)}: cannot list the folder: {error.strerror}") from error

    def _scan(self, entry: os.DirEntry[bytes]) -> os.stat_result | None:
        """Returns the target of a link if it is a file to list, else None; raises for a special file or a bad link."""
        named = self._ends is None or entry.name.lower().endswith(self._ends)
        try:
            info = entry.stat()
        except OSError as error:
            if not named:
                return None
            raise InputError(f"{os.fsdecode(entry.path)}: broken link: {error.strerror}") from error
        is_folder = stat.S_ISDIR(info.st_mode)
        if not named and not is_folder:
            return None
        self._check_inside(entry)
        if is_folder:
            return None
        check_size(entry.path, info.st_mode, info.st_size)
        return info

    def _check_inside(self, entry: os.DirEntry[bytes]) -> None:
        if not (os.path.realpath(entry.path) + b"/").startswith(self._real):
            target = os.fsdecode(os.readlink(entry.path))
            raise InputError(
                f"{os.fsdecode(entry.path)}: the link leads out of {os.fsdecode(self._root)}, to {target}. "
                "Give the files' own folder, or a list of files"
            )


def _stat(entry: os.DirEntry[bytes]) -> os.stat_result:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError as error:
        raise InputError(f"{os.fsdecode(entry.path)}: cannot stat it: {error.strerror}") from error


# ---- reading files, with as few system calls as possible

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a FIFO would block


def read_files(paths: Iterable[bytes], rows: Iterable[int], offsets: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Reads files into one buffer, file i from offsets[i] to offsets[i + 1]. `rows` are their numbers for errors."""
    buffer = np.empty(int(offsets[-1]) + 1, np.uint8)
    view = buffer.data
    ends = offsets.tolist()
    start = 0
    # Local names: the loop runs for many thousands of files.
    open_, readv, close = os.open, os.readv, os.close
    for path, row, end in zip(paths, rows, ends[1:], strict=True):
        try:
            fd = open_(path, _FLAGS)
        except OSError as error:
            raise cannot_open(os.fsdecode(path), error) from error
        try:
            # One more byte than expected, where the next file begins: it is only written to if this file has grown.
            if readv(fd, [view[start : end + 1]]) != end - start:
                _read_in_parts(fd, path, row, view[start : end + 1])
        except OSError as error:
            raise InputError(f"{os.fsdecode(path)}: cannot read: {error.strerror}") from error
        finally:
            close(fd)
        start = end
    return buffer[:-1]


def _read_in_parts(fd: int, path: bytes, row: int, view: memoryview) -> None:
    """Reads again in several calls, as some file systems need; raises an error if the file has changed."""
    expected, got = len(view) - 1, 0
    if os.fstat(fd).st_size == expected:  # False also for what is not a file, where preadv would fail
        while got <= expected and (n := os.preadv(fd, [view[got:]], got)):
            got += n
    if got != expected:
        raise changed(path, row, fd, expected)


# ---- the shard

_OWN: dict[str, Column] = {"data": Bytes(), "path": Bytes(), "label": Int64()}


class FilesShard:
    """Sample i is file i: "data" is its content, "path" its path relative to `root`, "label" the number of its class.

    root:    the folder that relative paths are in
    classes: names of folders directly below the root; a file's class is the one it is in. None: there is no "label"

    Every file is opened, read and closed at once, so no descriptor is held. A file whose size has changed since the
    shard was made is an error.
    """

    seekable = True
    rows_per_chunk = 1

    def __init__(
        self,
        paths: Iterable[str | bytes | os.PathLike[str]],
        *,
        root: str | os.PathLike[str] = "",
        classes: Sequence[str] | None = None,
        _sizes: Sequence[int] | None = None,  # checked by list_files
    ) -> None:
        if isinstance(paths, (str, bytes, os.PathLike)):
            raise TypeError(f"expected a list of paths, got {paths!r}; list_files lists a folder")
        self.path = os.fsdecode(root)
        self._prefix = os.path.join(os.fsencode(root), b"") if root else b""
        self._names = [self._below(path) for path in paths] if _sizes is None else cast("list[bytes]", list(paths))
        sizes = _sizes if _sizes is not None else [_size_of(self._prefix + name) for name in self._names]
        self._offsets: Ints = np.zeros(len(self._names) + 1, np.int64)
        np.cumsum(sizes, out=self._offsets[1:])
        if not self.path:
            self.path = _shown(self._names)
        self.classes = None if classes is None else list(classes)
        self._labels = None if classes is None else self._label(classes)
        self._closed = False

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
                file = os.fsdecode(self._prefix + self._names[i])
                known = ", ".join(list(classes)[:8]) + (" …" if len(classes) > 8 else "")
                raise InputError(f"{file}: expected a file in the folder of a class: {known}")
            labels[i] = numbers[folder]
        return labels

    def __len__(self) -> int:
        return len(self._names)

    @property
    def schema(self) -> dict[str, Column]:
        return {name: column for name, column in _OWN.items() if name != "label" or self._labels is not None}

    def stamp(self) -> None:
        return None

    def bytes_of(self, start: int, stop: int) -> int:
        check_range(self.path, len(self), start, stop)
        return int(self._offsets[stop] - self._offsets[start])

    def read(self, start: int, stop: int, schema: GivenSchema | None = None) -> Batch:
        check_range(self.path, len(self), start, stop)
        return self._read(range(start, stop), schema)

    def read_rows(self, rows: Rows, schema: GivenSchema | None = None) -> Batch:
        return self._read(check_rows(self.path, len(self), rows), schema)

    def _read(self, rows: Sequence[int], schema: GivenSchema | None) -> Batch:
        if self._closed:
            raise ValueError(f"{self.path}: the shard is closed")
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

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _size_of(path: bytes) -> int:
    try:
        info = os.stat(path)
    except OSError as error:
        raise cannot_open(os.fsdecode(path), error) from error
    check_size(path, info.st_mode, info.st_size)
    return info.st_size


def _shown(names: list[bytes]) -> str:
    """Names a list of files without a root."""
    first = os.fsdecode(names[0]) if names else "no files"
    return first if len(names) < 2 else f"{first} and {len(names) - 1:,} more files"


def _key(name: str, column: Column) -> str:
    return name if column.key is None else column.key
