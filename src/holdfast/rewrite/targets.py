"""Parses the name of a conversion's target, and writes output files of all three formats."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from ..errors import DataError, SchemaError, TargetExistsError, WriteError
from ..formats.suffixes import HDF5_SUFFIXES, TFRECORD_COMPRESSION, TFRECORD_SUFFIXES
from ..formats.tfrecord.column_encoding import buffers_of
from ..formats.tfrecord.manifest import FileEntry
from ..formats.tfrecord.writer import TFRecordWriter
from ..schema import Column, Ragged

Kind = Literal["tfrecord", "hdf5", "tar"]


def _any_of(suffixes: Iterable[str]) -> str:
    return f"({'|'.join(map(re.escape, suffixes))})"


_SUFFIX = re.compile(
    rf"(?P<tfrecord>{_any_of(TFRECORD_SUFFIXES)}{_any_of(TFRECORD_COMPRESSION)}?)$"
    rf"|(?P<hdf5>{_any_of(HDF5_SUFFIXES)})$|(?P<tar>\.tar)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class TargetName:
    """The name of a target: `folder`/`stem``suffix`."""

    folder: Path
    stem: str
    suffix: str
    kind: Kind

    @property
    def name(self) -> str:
        return self.stem + self.suffix

    def shard(self, number: int, count: int) -> str:
        """Returns the name of a shard, numbered as TensorFlow's tools do: sorted names keep the order."""
        return f"{self.stem}-{number:05d}-of-{count:05d}{self.suffix}"

    def is_shard(self, name: str) -> bool:
        """Tells whether a file's name could be that of a shard of this target."""
        return re.fullmatch(rf"{re.escape(self.stem)}-\d{{5}}-of-\d{{5}}{re.escape(self.suffix)}", name) is not None


def parse_target(target: str | os.PathLike[str]) -> TargetName:
    """Parses a path. Raises a ValueError if its suffix is not one of a format."""
    if "://" in os.fsdecode(target):
        raise ValueError(f"expected a local file to write to, got the URL {os.fspath(target)!r}")
    path = Path(os.fsdecode(target))
    found = _SUFFIX.search(path.name)
    if found is None or found.start() == 0:
        names = "a name that ends in .tfrecord (or .tfrecord.gz, .tfrecord.zlib), .h5 or .tar"
        raise ValueError(f"expected {names} to write to, got {os.fspath(target)!r}")
    kind: Kind = "tfrecord" if found["tfrecord"] else "hdf5" if found["hdf5"] else "tar"
    return TargetName(path.parent, path.name[: found.start()], found[0], kind)


def check_no_other_shards(folder: Path, names: Sequence[str], is_shard: Callable[[str], bool]) -> None:
    """Raises an error if the folder has shards of another shard count: readers would get every sample twice."""
    others = sorted(set(filter(is_shard, os.listdir(folder))) - set(names)) if folder.is_dir() else []
    if others:
        text = f"{folder / others[0]} is of another number of shards: with {len(names):,} more beside it, samples would"
        raise TargetExistsError(f"{text} be read twice. Remove it first, or name another file")


@contextmanager
def naming(staging: Path, target: Path) -> Iterator[None]:
    """Replaces the path of a staged file by the target's path in errors."""
    try:
        yield
    except DataError as error:
        path = _renamed(error.path, staging, target)
        raise type(error)(path, error.record, error.offset, error.reason, error.hint) from error
    except (SchemaError, WriteError) as error:
        raise type(error)(_renamed(str(error), staging, target)) from error


def _renamed(text: str, staging: Path, target: Path) -> str:
    return re.sub(rf"{re.escape(str(staging))}/[^ :,]+", lambda _: str(target), text)


class OutputFile(Protocol):
    def extend(self, batch: Mapping[str, Any]) -> None: ...

    def finish(self) -> FileEntry:
        """Completes and syncs the file."""

    def discard(self) -> None:
        """Closes everything. Safe to call twice, and after finish()."""


def make_target(
    kind: Kind, path: Path, schema: dict[str, Column], *, first: int, codec: Any, compression: Any
) -> OutputFile:
    """Creates an output file. `path` must not exist; `first` is the number of its first sample."""
    if kind == "hdf5":
        return _HDF5Output(path, schema, codec)
    return _TFRecordOutput(path, schema, compression) if kind == "tfrecord" else _TarOutput(path, schema, first)


class _TFRecordOutput:
    def __init__(self, path: Path, schema: dict[str, Column], compression: Any) -> None:
        nested = any(isinstance(column, Ragged) and column.depth > 1 for column in schema.values())
        self._writer = TFRecordWriter(path, schema, compression=compression, sequence=nested)
        self.extend, self.finish, self.discard = self._writer.extend, self._writer.close, self._writer.discard


class _TarOutput:
    def __init__(self, path: Path, schema: dict[str, Column], first: int) -> None:
        from ..formats.tar.writer import TarWriter

        self._writer = TarWriter(path, schema, first=first)
        self.finish, self.discard = self._writer.close, self._writer.discard

    def extend(self, batch: Mapping[str, Any]) -> None:
        self._writer.extend(batch)


class _HDF5Output:
    def __init__(self, path: Path, schema: dict[str, Column], codec: Any) -> None:
        from ..formats.hdf5.writer import HDF5Writer

        self._schema = schema
        self._writer = HDF5Writer(path, schema, codec=codec)
        self._done = False

    def extend(self, batch: Mapping[str, Any]) -> None:
        self._writer.extend(*buffers_of(self._schema, batch))

    def finish(self) -> FileEntry:
        finished = self._writer.finalize()
        os.fsync(self._writer.fd)
        self._writer.detach()
        self._done = True
        return FileEntry(str(self._writer.path), finished.rows, finished.bytes, finished.crc32c)

    def discard(self) -> None:
        if not self._done:
            self._writer.discard()
