"""Defines what a shard is, for every format: samples that are read by number. `open_shard` finds the format of a
file."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..._native import codec
from ..._util.atomic import FileStamp
from ..._util.text import names_there
from ...errors import FormatError, InputError, SchemaError, cannot_open
from ...schema import Column, Schema, Value
from .columns import Batch, BytesColumn
from .suffixes import HDF5_MAGIC, TITLES, Format, format_of_name

if TYPE_CHECKING:
    from .tfrecord.salvage import RepairedShard, RepairMap


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
class KeyedShard(Protocol):
    """A shard that reads a column that its samples lack as empty lists or defaults."""

    def present(self, schema: Schema, start: int, stop: int) -> tuple[set[str], list[str]]:
        """Returns the columns that some of the samples [start, stop) have, and all keys that these samples have."""


_LOOK_SAMPLES = 100
_LOOK_BYTES = 1 << 24


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


def find_lacking(shard: Shard, columns: Mapping[str, Column], most: int, before: int = 0) -> Lacking:
    """Looks for columns in up to `most` samples, until one has each of them. `before`: samples looked at before."""
    left, at, keys, most = dict(columns), 0, list[str](), min(most, len(shard))
    if not isinstance(shard, KeyedShard):
        return Lacking({}, before, keys)
    while left and at < most:
        stop = min(at + max(_LOOK_SAMPLES, at), most)
        while stop > at + 1 and shard.bytes_of(at, stop) > _LOOK_BYTES:
            stop = (at + stop) // 2
        found, keys = shard.present(left, at, stop)
        left = {name: column for name, column in left.items() if name not in found}
        at = stop
    return Lacking(left, before + at, keys)


def open_shard(
    path: str | os.PathLike[str],
    schema: GivenSchema | None = None,
    *,
    verify: Literal["all", "header"] = "all",
    allow_external: bool = False,
) -> Shard:
    """Opens a TFRecord, HDF5 or tar file, compressed or not.

    `schema` names the columns that will be read: an HDF5 file may have datasets that are no columns. `verify` says
    which CRCs of a TFRecord are checked, `allow_external` whether an HDF5 file may have values in other files.
    """
    name = os.fsdecode(path)
    fd = _open(name)
    try:
        kind = _detect(name, fd)
        if kind == "tar":
            from .tar import TarShard
        elif kind == "tfrecord":
            from .tfrecord.shard import open_tfrecord_shard
    except BaseException:  # an import may fail when no descriptor is free
        os.close(fd)
        raise
    if kind == "tar":
        return TarShard(path, fd=fd)
    if kind == "tfrecord":
        return open_tfrecord_shard(path, verify=verify, fd=fd)
    os.close(fd)  # libhdf5 opens files by name
    from .hdf5.shard import HDF5Shard

    return HDF5Shard(path, schema, allow_external=allow_external)


def detect_format(path: str | os.PathLike[str]) -> Format:
    """Returns the format of a file: by its name, else by its content, else TFRecord.

    Raises a FormatError if the name has the suffix of one format and the content is of another.
    """
    name = os.fsdecode(path)
    fd = _open(name)
    try:
        return _detect(name, fd)
    finally:
        os.close(fd)


def has_shard_content(path: str) -> bool:
    """Whether the content of a file shows that it is a shard, whatever its name is."""
    try:
        fd = _open(path)
    except InputError:
        return False
    try:
        return _format_of_content(fd, user_block=True) is not None
    except OSError:
        return False
    finally:
        os.close(fd)


_LAST_SIGNATURE = 1 << 16  # that of HDF5 may follow a user block of 512 bytes, 1,024 bytes, …


def _detect(name: str, fd: int) -> Format:
    named = format_of_name(name)
    try:
        found = _format_of_content(fd, user_block=named is None)
    except OSError:
        found = None  # reading it later reports the error
    if named is not None and found is not None and named != found:
        reason = f"expected {TITLES[named]} by its name, its content is {TITLES[found]}"
        raise FormatError(name, None, None, reason, "Rename it, or check what wrote it")
    return named or found or "tfrecord"


def _format_of_content(fd: int, *, user_block: bool) -> Format | None:
    """Returns None if the first bytes show no format: of a compressed or corrupt file, for example."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return None  # the shard reports that
    head = os.pread(fd, 512, 0)
    if head.startswith(HDF5_MAGIC):
        return "hdf5"
    if _is_tar(head):
        return "tar"
    if codec.find_header(head, 0, min(len(head), codec.HEADER_BYTES)) == 0:
        return "tfrecord"
    at = 512
    while user_block and at <= _LAST_SIGNATURE:
        if os.pread(fd, len(HDF5_MAGIC), at) == HDF5_MAGIC:
            return "hdf5"
        at *= 2
    return None


def _open(name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a FIFO would block otherwise
    except OSError as error:
        raise cannot_open(name, error) from error


def _is_tar(head: bytes) -> bool:
    if head[257:262] != b"ustar":
        return False
    from .tar.scan import is_header

    return is_header(head)


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


def open_damaged(
    path: str | os.PathLike[str],
    *,
    verify: Literal["all", "header"] = "all",
    salvage: bool = False,
    most: int = 1000,
    keep_doubtful: bool = False,
) -> RepairedShard | None:
    """Opens the intact samples of a corrupt TFRecord file. Returns None for other formats, which cannot be repaired.

    `salvage`, `most` and `keep_doubtful` are those of build_repair_map(), whose errors this raises.
    """
    if detect_format(path) != "tfrecord":
        return None
    from .tfrecord.salvage import RepairedShard, build_repair_map

    repair_map = build_repair_map(path, salvage=salvage, most=most, keep_doubtful=keep_doubtful)
    return RepairedShard(path, repair_map, verify=verify)


def open_repaired(
    path: str | os.PathLike[str], repair_map: RepairMap, *, verify: Literal["all", "header"] = "all"
) -> RepairedShard:
    """Opens a corrupt file again by its repair map, without another search. It must be the file that was searched."""
    from .tfrecord.salvage import RepairedShard

    return RepairedShard(path, repair_map, verify=verify)
