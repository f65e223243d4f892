"""Why a file cannot be a sample, said with its name."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .._util.text import names_there
from ..errors import CorruptError, DataError, DecodeError, InputError, SchemaError, cannot_open
from ..schema import Bytes, Column, Int64, Ragged, check_schema
from .base import IMAGE_SUFFIXES, GivenSchema, Rows, check_rows, check_run
from .columns import Batch, BytesColumn, ColumnData, Ints
from .gather import fill, join_bytes

MOST_BYTES = 1 << 30  # a file is read whole: one of more than this is no sample


def check_size(path: bytes, mode: int, size: int) -> None:
    """An InputError for what cannot be a sample: of another kind, empty, or huge."""
    if not stat.S_ISREG(mode):
        raise InputError(f"{os.fsdecode(path)}: expected a file to read, this is {describe_mode(mode)}")
    if not size:
        raise InputError(f"{os.fsdecode(path)}: the file is empty")
    if size > MOST_BYTES:
        name = os.fsdecode(path)
        raise InputError(f"{name}: expected files of up to {MOST_BYTES:,} bytes as samples, this has {size:,}")


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


def changed(path: bytes, row: int, fd: int, wanted: int) -> DataError | InputError:
    """The error for a file that did not have as many bytes as when it was listed."""
    name, info = os.fsdecode(path), os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        return InputError(f"{name}: expected a file to read, this is {describe_mode(info.st_mode)} by now")
    reason = f"the file has changed: it had {wanted:,} bytes when it was listed, and has {info.st_size:,} now"
    return CorruptError(name, row, None, reason, "List the files again")


# The files of a folder and all below it, with their sizes, sorted by their paths.

Found = tuple[bytes, int]  # a path below the folder, and the file's size


def list_files(
    folder: str | os.PathLike[str],
    suffixes: Sequence[str] | None = IMAGE_SUFFIXES,
    classes_from_folder: bool = False,
) -> FilesShard:
    """All files below a folder whose names end so (None: all), in the order of their paths' bytes.

    With `classes_from_folder` the folders right below it are the classes, in the order of their names, as torchvision's
    ImageFolder has it; files beside them are left out. Hidden names are skipped. Links are followed to files in the
    folder, and are errors where they lead out of it; links to folders in it are skipped: their files are there already.
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
            wanted = "file" if suffixes is None else f"file that ends in {', '.join(suffixes)}"
            raise InputError(f"{os.fsdecode(root)}: the class {os.fsdecode(name)!r} has no {wanted}")
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
    """Goes through a folder by scandir, which knows files from folders without asking for each."""

    def __init__(self, root: bytes, ends: tuple[bytes, ...] | None) -> None:
        self._root = root
        self._ends = ends
        self._real = os.path.join(os.path.realpath(root), b"")

    def folders(self, below: bytes) -> list[bytes]:
        return [entry.name for entry in self._entries(below) if entry.is_dir(follow_symlinks=False)]

    def below(self, folder: bytes) -> Iterator[Found]:
        """`folder` ends in a slash, or is nothing."""
        folders, ends = [folder], self._ends
        while folders:
            here = folders.pop()
            for entry in self._entries(here):
                name = entry.name
                if entry.is_file(follow_symlinks=False):
                    if ends is None or name.lower().endswith(ends):
                        size = _stat(entry).st_size
                        if not 0 < size <= MOST_BYTES:
                            check_size(entry.path, stat.S_IFREG, size)
                        yield here + name, size
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(here + name + b"/")
                else:
                    info = self._look(entry)
                    if info is not None:
                        yield here + name, info.st_size

    def _entries(self, folder: bytes) -> list[os.DirEntry[bytes]]:
        path = self._root + b"/" + folder if folder else self._root
        try:
            with os.scandir(path) as entries:
                return [entry for entry in entries if entry.name[0] != ord(".")]
        except OSError as error:
            raise InputError(f"{os.fsdecode(path)}: cannot list the folder: {error.strerror}") from error

    def _look(self, entry: os.DirEntry[bytes]) -> os.stat_result | None:
        """What is neither a file nor a folder: what a link leads to, or an error; None for what is not expected."""
        named = self._ends is None or entry.name.lower().endswith(self._ends)
        try:
            info = entry.stat()
        except OSError as error:
            if not named:
                return None
            raise InputError(f"{os.fsdecode(entry.path)}: the link leads nowhere: {error.strerror}") from error
        is_folder = stat.S_ISDIR(info.st_mode)
        if not named and not is_folder:
            return None
        self._must_stay(entry)
        if is_folder:
            return None
        check_size(entry.path, info.st_mode, info.st_size)
        return info

    def _must_stay(self, entry: os.DirEntry[bytes]) -> None:
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
        raise InputError(f"{os.fsdecode(entry.path)}: cannot look at it: {error.strerror}") from error


# Whole files, one behind the other in one buffer, by as few system calls as there can be.

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO that took a file's place would block the open else


def read_files(paths: Iterable[bytes], rows: Iterable[int], offsets: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The files' bytes, file i from offsets[i] to offsets[i + 1], as many as it has. `rows` name them in errors."""
    buffer = np.empty(int(offsets[-1]) + 1, np.uint8)
    view = buffer.data
    ends = offsets.tolist()
    start = 0
    # These names are looked up for every one of many thousands of files.
    open_, readv, close = os.open, os.readv, os.close
    for path, row, end in zip(paths, rows, ends[1:], strict=True):
        try:
            fd = open_(path, _FLAGS)
        except OSError as error:
            raise cannot_open(os.fsdecode(path), error) from error
        try:
            # One byte to spare, where the next file will begin: it stays untouched unless this one has grown.
            if readv(fd, [view[start : end + 1]]) != end - start:
                _read_on(fd, path, row, view[start : end + 1])
        except OSError as error:
            raise InputError(f"{os.fsdecode(path)}: cannot read: {error.strerror}") from error
        finally:
            close(fd)
        start = end
    return buffer[:-1]


def _read_on(fd: int, path: bytes, row: int, view: memoryview) -> None:
    """A file system may give less at once than there is; or the file is not what it was."""
    wanted, got = len(view) - 1, 0
    if os.fstat(fd).st_size == wanted:  # not so with what is no file, where the next call would fail, too
        while got <= wanted and (n := os.preadv(fd, [view[got:]], got)):
            got += n
    if got != wanted:
        raise changed(path, row, fd, wanted)


# Many small files as one shard.

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


# Many small files as one shard: each file is a sample.

__all__ = ["IMAGE_SUFFIXES", "FilesShard", "list_files"]
