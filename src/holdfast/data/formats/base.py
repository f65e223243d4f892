"""Defines what every format has: its functions (`Format`), shards (samples that are read by number), and reports."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..._native import codec
from ..._util.atomic import FileStamp
from ..._util.progress import Progress
from ..._util.text import names_there
from ...errors import DataError, InputError, SchemaError
from ...schema import Column, Schema, Value
from .columns import Batch, BytesColumn, Ints

if TYPE_CHECKING:
    from .folder_index import FileKey
    from .hdf5.merging.merge_files import MergedDataset
    from .sections import SalvageReport, Survey

GivenSchema = Mapping[str, Column | type[Value]]
Rows = Sequence[int] | npt.NDArray[np.integer[Any]]


class Shard(Protocol):
    """Samples 0 to len - 1. Reads share no state: any thread, and any process forked later, may read at any time.

    A shard holds one descriptor at most, until close(), which must not be called while somebody reads.
    """

    @property
    def path(self) -> str: ...

    @property
    def schema(self) -> dict[str, Column]:
        """The columns of the samples: inferred at first use where the format does not store them."""

    @property
    def seekable(self) -> bool:
        """False: every read goes through the file from its start, so it is best read in one go."""

    @property
    def rows_per_chunk(self) -> int:
        """Reads that begin and end at a multiple of this cost least. 1: all reads cost the same."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def read(self, start: int, stop: int, schema: GivenSchema | None = None) -> Batch:
        """Returns the samples [start, stop) as the columns of `schema`, by default the shard's own."""

    def read_rows(self, rows: Rows, schema: GivenSchema | None = None) -> Batch:
        """Returns these samples in this order; one may be named twice."""

    def bytes_of(self, start: int, stop: int) -> int:
        """Estimates how many bytes reading [start, stop) brings into memory, without reading."""

    def stamp(self) -> FileStamp | None:
        """Returns the stamp of the open file as it is now; None if no file stays open between reads."""

    def close(self) -> None:
        """Closes the file. Safe to call twice."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class FramesDecoder(Protocol):
    def decode(self, frames: BytesColumn) -> Batch | None:
        """Decodes these frames; returns None if something is wrong with one of them."""

    def find(self, data: Any, start: int, size: int, count: int) -> Ints | None:
        """Returns where the frames of whole files begin in `size` bytes from `start` on, and where they end; None if
        they are not `count`."""


@runtime_checkable
class FramedShard(Protocol):
    """A shard whose samples can be read undecoded, put together in any order, and then decoded."""

    def frames(self, start: int, stop: int, into: Any = None) -> BytesColumn:
        """Reads the samples [start, stop) undecoded, into the memory of `into` if it is large enough."""

    def frames_decoder(self, schema: Schema) -> FramesDecoder: ...


class Fill(NamedTuple):
    """A read request: `size` bytes of the file from `offset` on, to position `first` of the buffer."""

    fd: int
    offset: int
    first: int
    size: int


@runtime_checkable
class PlacedShard(Protocol):
    """A framed shard whose frames are plain bytes of its file, so that another thread can read them."""

    def fill(self, start: int, stop: int, into: Any) -> Fill | None:
        """Returns the read that fills `into` with the samples [start, stop); None if `into` is too small."""

    def filled(self, start: int, stop: int, into: Any) -> BytesColumn:
        """Returns the samples [start, stop) of the filled `into`."""


@runtime_checkable
class AheadShard(Protocol):
    """A shard that can begin to read in other threads."""

    def begin(self, start: int, stop: int, schema: GivenSchema | None = None, pool: Any = None) -> Callable[[], Batch]:
        """Begins to read the samples [start, stop) in the threads of `pool`, a `_chunks.Pool`, as far as it can.
        Returns a function that returns them."""


@runtime_checkable
class KeyedShard(Protocol):
    """A shard that reads a column that its samples lack as empty lists or defaults."""

    def present(self, schema: Schema, start: int, stop: int) -> tuple[set[str], list[str]]:
        """Returns the columns that some of the samples [start, stop) have, and all keys that these samples have."""


_SCAN_SAMPLES = 100
_SCAN_BYTES = 1 << 24


class Lacking(NamedTuple):
    """The columns that none of `looked` samples has, and the keys that the last of those have."""

    columns: dict[str, Column]
    looked: int
    keys: Sequence[str]

    def error(self, hint: str) -> SchemaError:
        name, column = next(iter(self.columns.items()))
        key = name if column.key is None else column.key
        text = f"column {name!r}: none of the {self.looked:,} samples looked at has {key!r}"
        return SchemaError(". ".join(filter(None, [text, names_there(key, self.keys), hint])))


def find_lacking(shard: Shard, columns: Mapping[str, Column], maximum: int, before: int = 0) -> Lacking:
    """Looks for columns in up to `maximum` samples, until one has each of them. `before`: samples looked at before."""
    left, at, keys, maximum = dict(columns), 0, list[str](), min(maximum, len(shard))
    if not isinstance(shard, KeyedShard):
        return Lacking({}, before, keys)
    while left and at < maximum:
        stop = min(at + max(_SCAN_SAMPLES, at), maximum)
        while stop > at + 1 and shard.bytes_of(at, stop) > _SCAN_BYTES:
            stop = (at + stop) // 2
        found, keys = shard.present(left, at, stop)
        left = {name: column for name, column in left.items() if name not in found}
        at = stop
    return Lacking(left, before + at, keys)


# ---- what a format can do


class Lazy:
    """A function of a format's module, imported when it is first called: `Lazy("holdfast.….verify:verify_tar")`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def load(self) -> Callable[..., Any]:
        module, _, name = self._path.partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return found

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self.load()(*given, **options)


class FileEntry(NamedTuple):
    """One finished file, as its writer counted it."""

    path: str
    records: int
    bytes: int
    crc32c: int  # of the file's bytes as they are on disk

    def as_dict(self) -> dict[str, object]:
        return {"path": self.path, "records": self.records, "bytes": self.bytes, "crc32c": f"{self.crc32c:08x}"}


FileEntry.__module__ = "holdfast"  # a NamedTuple takes none from its body


class OutputFile(Protocol):
    """A file that a conversion writes."""

    def extend(self, columns: Mapping[str, Any]) -> object: ...

    def close(self) -> FileEntry:
        """Completes and syncs the file."""

    def discard(self) -> None:
        """Closes everything. Safe to call twice, and after close()."""


class FinishedFile(NamedTuple):
    """A finished file that has no name yet. `chunks`: offset, size and CRC of each, by dataset, in row order."""

    rows: int
    bytes: int
    crc32c: int
    chunks: dict[str, list[tuple[int, int, int]]]


class PartFile(Protocol):
    """The file of a part of a dataset directory."""

    path: Path  # in the workspace

    def extend(self, columns: Mapping[str, Any]) -> int:
        """Writes columns, and returns their rows. SchemaError: they do not fit, and nothing was written."""

    def finalize(self) -> FinishedFile: ...

    def discard(self) -> None: ...

    def detach(self) -> None:
        """Releases the file without touching it: in a forked child, the parent still writes it."""


OR_CAST = "or cast, to have that done"


class Conversion:
    """What a conversion needs to know of a format; the defaults suit one that stores its schema and every dtype."""

    stores_schema = True  # False: the schema is inferred from all samples
    may_drop = False  # True: check() must see every file

    def infer(self, paths: Sequence[str], cast: bool, notes: list[str], progress: Progress) -> dict[str, Column]:
        """Infers one schema from all samples of all files, for a format that stores none."""
        raise NotImplementedError

    def schema_of(self, shard: Shard) -> dict[str, Column]:
        """Returns the schema that a file stores."""
        return shard.schema

    def check(self, shard: Shard, path: str, read: dict[str, Column], cast: bool) -> Iterator[str]:
        """Yields notes on what is dropped or rounded. Raises a SchemaError for a loss unless `cast`. `path`: the file
        of the shard, which may be a decompressed copy."""
        yield from ()

    def fit(self, name: str, column: Column, cast: bool, notes: list[str]) -> Column:
        """Returns the column as this format can store it."""
        return column


@dataclass(frozen=True, kw_only=True)
class Format:
    """One file format: how its files are found, and what can be done with them. None: it cannot be done.

    name, title    in arguments and documents, and in messages
    suffixes       in lower case
    is_name        whether a name is one of this format; None: by the suffixes
    is_start       whether the first 512 bytes of a file show the format
    is_later       whether an open file has the format after bytes of another program
    open           (path, schema, *, verify, allow_external, cache, fd) opens a Shard, which takes over `fd`
    verify         (path, progress) returns a VerifiedFile
    inspect        (path, sample, progress) returns a survey with the fields of an InspectedFile, as_dict(), and, if it
                   shows more than these, sections()
    index          (path, progress) returns the FileKey of a file, and where its records are, as its folder's index
                   stores it
    open_damaged   (path, *, verify, salvage, most, keep_doubtful) opens the intact samples of a corrupt file
    salvage        (path, out, *, overwrite, keep_doubtful, live, like_input, progress) returns a SalvageReport;
                   like_input: compress `out` as `path` is
    merge          (paths, out, *, dry_run, overwrite, progress, runs, verified, and those of merge_options) returns a
                   Merged. runs: which rows of which file, in which order; verified: called with the rows, bytes and
                   CRC32C of the verified file, before it gets its name
    split          (paths, folder, *, parts, part_bytes, name, compression, progress, jobs) returns FileEntry objects
    written        suffixes of files that can be written, the usual one first
    write          (path, schema, *, first, and those of write_options) returns an OutputFile
    conversion     returns its Conversion
    unpack         (path) yields a function (offset, size) -> bytes for a compressed file, None for another
    has_manifest   whether shards are listed in holdfast.manifest.json
    part           (path, schema, chunk_rows, codec) returns the PartFile of a dataset directory
    check_part     (schema, chunk_rows, codec) raises a ValueError or SchemaError for what parts cannot hold
    widens_ints    whether ints in its files can be read as floats
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    is_start: Callable[[bytes], bool]
    open: Callable[..., Shard]
    verify: Callable[..., VerifiedFile]
    inspect: Callable[..., Survey]
    is_name: Callable[[str], bool] | None = None
    is_later: Callable[[int], bool] | None = None
    index: Callable[..., tuple[FileKey, Any]] | None = None
    open_damaged: Callable[..., Any] | None = None
    salvage: Callable[..., SalvageReport] | None = None
    merge: Callable[..., Merged] | None = None
    merge_options: frozenset[str] = frozenset()
    split: Callable[..., list[FileEntry]] | None = None
    written: tuple[str, ...] = ()
    write: Callable[..., OutputFile] | None = None
    write_options: frozenset[str] = frozenset()
    conversion: Callable[[], Conversion] = Conversion
    unpack: Callable[[str], AbstractContextManager[Callable[[int, int], bytes] | None]] | None = None
    has_manifest: bool = False
    part: Callable[..., PartFile] | None = None
    check_part: Callable[..., None] | None = None
    widens_ints: bool = True

    def has_name(self, name: str) -> bool:
        """Whether a name is one of this format."""
        return name.lower().endswith(self.suffixes) if self.is_name is None else self.is_name(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merge wrote, or with dry_run would write.

    Attributes:
        files: How many were merged; of a dataset directory, its parts.
        rows: Samples or records; None: not counted, or HDF5 datasets differ in length.
        datasets: How each HDF5 dataset was merged.
        manifest: The number of the dataset directory's manifest that records it.
        unchecked: HDF5 datasets with chunks that no checksum covers, `unrecorded` files lack a record of checksums.
    """

    __module__ = "holdfast"

    path: str
    format: str
    files: int
    rows: int | None
    bytes: int
    crc32c: int = 0
    datasets: list[MergedDataset] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    manifest: int | None = None
    unchecked: list[str] = field(default_factory=list)
    unrecorded: int = 0
    document: dict[str, object] = field(default_factory=dict, repr=False)

    def as_dict(self) -> dict[str, object]:
        """Returns what `holdfast merge --json` prints."""
        return self.document


class Problem(NamedTuple):
    """One problem of a file.

    Attributes:
        offset: The offset in the file, or in its decompressed data; None: unknown.
        record: The number of the record or sample; None: the problem concerns the whole file, or an HDF5 object.
        dataset: The path of the HDF5 object.
        chunk: Where the chunk starts in the dataset.
    """

    offset: int | None
    record: int | None
    reason: str
    records_lost: int = 0  # at least
    bytes_lost: int = 0
    records_doubtful: int = 0  # valid frames that might be data of the corrupt record
    dataset: str | None = None
    chunk: tuple[int, ...] | None = None

    def as_dict(self, *names: str) -> dict[str, object]:
        """Returns these fields for JSON. `sample` is another name of `record`."""
        chunk = None if self.chunk is None else list(self.chunk)
        fields = self._asdict() | {"sample": self.record, "chunk": chunk}
        return {name: fields[name] for name in names}


Problem.__module__ = "holdfast"


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """The result of verifying a file; a subclass for each format adds what it counts.

    content:   how many records, samples or rows are intact, and what they are called

    Attributes:
        notes: What is not a problem but should be known, such as what could not be checked.
        hint: The next step.
        readable: False: the file could not be read, so nothing is known of it.
        unchecked: The notes that say what could not be checked.
        error: The error of reading the file, where it says more than the problems.
    """

    __module__ = "holdfast"

    path: str
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hint: str = ""
    readable: bool = True
    unchecked: tuple[str, ...] = ()
    error: DataError | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def content(self) -> tuple[int, str]:
        raise NotImplementedError

    @property
    def summed(self) -> tuple[int, str]:
        """What the summary of many files counts: the content, or the datasets of HDF5."""
        return self.content

    def as_dict(self) -> dict[str, object]:
        """Returns what `holdfast verify --json` prints of the file."""
        raise NotImplementedError


# ---- reading

_MEASURE_EVERY = 16  # reads


class ReadTiming(threading.local):
    """Counts the seconds that a thread spends on fetching and on verifying. Shards add to them, the pipeline takes
    them.

    CRCs are checked while decoding, so their cost per byte is measured on its own once in a while.
    """

    fetch_s = 0.0
    verify_s = 0.0
    _s_per_byte = 0.0
    _n_reads = 0

    @contextmanager
    def fetching(self) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.fetch_s += perf_counter() - start

    def verified(self, view: Any, size_bytes: int) -> None:
        """Counts `size_bytes` whose CRCs were checked; `view` shows some of them."""
        if self._n_reads % _MEASURE_EVERY == 0 and len(view):
            start = perf_counter()
            codec.crc32c(view)
            self._s_per_byte = (perf_counter() - start) / len(view)
        self._n_reads += 1
        self.verify_s += self._s_per_byte * size_bytes

    def take(self) -> tuple[float, float]:
        """Returns the seconds of fetching and of verifying since the last call."""
        taken = self.fetch_s, self.verify_s
        self.fetch_s = self.verify_s = 0.0
        return taken


read_timing = ReadTiming()


def fill_from(fd: int, path: str, offset: int, view: memoryview) -> int:
    """Fills the view from the file's byte `offset` on and returns how many bytes there were: fewer only at the end.

    Uses preadv, so a file offset shared with other processes does not matter. `path` is for errors.
    """
    got = 0
    while got < len(view):
        try:
            n = os.preadv(fd, [view[got:]], offset + got)
        except OSError as error:
            raise InputError(f"{path}: cannot read at byte {offset + got:,}: {error.strerror}") from error
        if n == 0:
            break
        got += n
    return got


def check_range(path: str, count: int, start: int, stop: int) -> None:
    if not 0 <= start <= stop <= count:
        raise IndexError(f"{path}: expected samples from 0 to {count:,}, got [{start:,}, {stop:,})")


def check_rows(path: str, count: int, rows: Rows) -> list[int]:
    """Returns the numbers as plain ints, or raises an IndexError that names the first one out of range."""
    numbers = [_number(path, row) for row in rows]
    for number in numbers:
        if not 0 <= number < count:
            raise IndexError(f"{path}: expected a sample from 0 to {count - 1:,}, got {number:,}")
    return numbers


def _number(path: str, row: Any) -> int:
    if type(row).__name__ in ("bool", "bool_") or not hasattr(row, "__index__"):
        raise TypeError(f"{path}: expected a sample's number, got {row!r}")
    return int(row.__index__())
