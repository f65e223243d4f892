"""What the time of a shard's read went into, as far as the format can tell. Each thread has its own."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from .._native import codec
from ..errors import InputError, cannot_open
from ..schema import Column, Schema, Value
from .columns import Batch, BytesColumn

if TYPE_CHECKING:
    from .tfrecord.salvage import RepairedShard, RepairMap


_EVERY = 16  # reads: checking CRCs is part of decoding, so of some its price is measured by itself


class Spent(threading.local):
    """Seconds, since they were last taken away. A shard adds to them, a pipeline takes them."""

    fetch_s = 0.0
    verify_s = 0.0
    _price_s = 0.0  # of a byte's CRC
    _n_reads = 0

    @contextmanager
    def fetching(self) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.fetch_s += perf_counter() - start

    def verified(self, view: Any, size_bytes: int) -> None:
        """So many bytes had their CRCs checked; `view` is of some of them."""
        if self._n_reads % _EVERY == 0 and len(view):
            start = perf_counter()
            codec.crc32c(view)
            self._price_s = (perf_counter() - start) / len(view)
        self._n_reads += 1
        self.verify_s += self._price_s * size_bytes

    def take(self) -> tuple[float, float]:
        """Seconds of fetching and of verifying."""
        taken = self.fetch_s, self.verify_s
        self.fetch_s = self.verify_s = 0.0
        return taken


spent = Spent()


# Bytes of an open file, from any place: without a file offset that somebody else could move.


def fill_from(fd: int, path: str, offset: int, view: memoryview) -> int:
    """Fills the view from the file's byte `offset` on; fewer bytes only at the end. `path`: for errors."""
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


# A shard: samples that can be read by number, whatever the format. What a pipeline needs to know, and no more.

GivenSchema = Mapping[str, Column | type[Value]]
Rows = Sequence[int] | npt.NDArray[np.integer[Any]]

# Which names and first bytes belong to which format. Suffixes are lower case; names are compared in lower case.
TFRECORD_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec")
TFRECORD_COMPRESSION = {".gz": "gzip", ".gzip": "gzip", ".zlib": "zlib", ".zz": "zlib"}  # by a further suffix
HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz", ".tar.zst")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
SAMPLE_SUFFIXES = (*IMAGE_SUFFIXES, ".gif", ".pbm", ".pnm", ".txt")  # files that are one sample each
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"

_COMPRESSED = rf"({'|'.join(map(re.escape, TFRECORD_COMPRESSION))})?$"
_TFRECORD_NAME = re.compile(
    rf"({'|'.join(map(re.escape, TFRECORD_SUFFIXES))})([-._]\d+(-of-\d+)?)?{_COMPRESSED}", re.IGNORECASE
)
_NUMBERED_NAME = re.compile(rf"-\d{{5}}-of-\d{{5}}{_COMPRESSED}", re.IGNORECASE)


def is_tfrecord_name(name: str) -> bool:
    """Tells whether a name has a suffix of TFRecord, possibly followed by a shard number or a compression suffix."""
    return _TFRECORD_NAME.search(name) is not None


def is_shard_name(name: str) -> bool:
    """Tells whether a name is one of a TFRecord, HDF5 or tar file. TensorFlow's tools number their TFRecord shards
    `-00000-of-00010`, often without a suffix."""
    return (
        is_tfrecord_name(name)
        or name.lower().endswith(HDF5_SUFFIXES + TAR_SUFFIXES)
        or _NUMBERED_NAME.search(name) is not None
    )


class Shard(Protocol):
    """Samples 0 to len - 1. Reads share no state: any thread, and any child forked later, may read at any time.

    Holds one descriptor at the most, until close(); nobody may be reading then.
    """

    @property
    def path(self) -> str: ...

    @property
    def schema(self) -> dict[str, Column]:
        """What the samples seem to hold. Found out when first asked for; a guess where the format does not say."""

    @property
    def seekable(self) -> bool:
        """False: every read goes through the file from its start, so read it whole."""

    @property
    def rows_per_chunk(self) -> int:
        """Reads cost least that begin and end at a multiple of this. 1: any do."""

    def __len__(self) -> int:
        """How many samples there are."""

    def read(self, start: int, stop: int, schema: GivenSchema | None = None) -> Batch:
        """The samples [start, stop) as columns: those of `schema`, or of the shard's own."""

    def read_rows(self, rows: Rows, schema: GivenSchema | None = None) -> Batch:
        """These samples, in this order; one may be named twice."""

    def bytes_of(self, start: int, stop: int) -> int:
        """What reading [start, stop) brings into memory, about; nothing is read to tell."""

    def close(self) -> None:
        """Safe to call twice."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class FramesDecoder(Protocol):
    def decode(self, frames: BytesColumn) -> Batch | None:
        """The samples of these frames; None when something is wrong with one of them."""


@runtime_checkable
class FramedShard(Protocol):
    """A shard whose samples can be taken undecoded, put together in any order, and decoded then."""

    def frames(self, start: int, stop: int, into: Any = None) -> BytesColumn:
        """The samples [start, stop), undecoded; in the memory of `into` if it is enough."""

    def frames_decoder(self, schema: Schema) -> FramesDecoder: ...


class Fill(NamedTuple):
    """What is to be read into memory: `size` bytes of the file from `offset` on, to `first`."""

    fd: int
    offset: int
    first: int
    size: int


@runtime_checkable
class PlacedShard(Protocol):
    """A framed shard whose frames somebody else may read: they lie in its file as they are."""

    def fill(self, start: int, stop: int, into: Any) -> Fill | None:
        """How to fill `into` with the samples [start, stop). None: it is not enough for them."""

    def filled(self, start: int, stop: int, into: Any) -> BytesColumn:
        """The samples [start, stop), now that `into` was filled."""


def open_shard(
    path: str | os.PathLike[str], schema: GivenSchema | None = None, *, verify: Literal["all", "header"] = "all"
) -> Shard:
    """The shard at a path, by its name or its content: TFRecord (also packed), HDF5 or tar (also packed).

    `schema` says which columns will be read: an HDF5 file may have datasets that are no columns. `verify` is which CRCs
    of a TFRecord are checked.
    """
    name = os.fsdecode(path)
    fd, head = _open_head(name)
    try:
        kind = _detect(name, head)
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
    from .hdf5 import HDF5Shard

    return HDF5Shard(path, schema)


def detect_format(path: str | os.PathLike[str]) -> Literal["hdf5", "tar", "tfrecord"]:
    """Returns the format that a file is read as: by its name, else by its first bytes, else TFRecord."""
    name = os.fsdecode(path)
    fd, head = _open_head(name)
    os.close(fd)
    return _detect(name, head)


def _detect(name: str, head: bytes) -> Literal["hdf5", "tar", "tfrecord"]:
    if name.lower().endswith(HDF5_SUFFIXES) or head.startswith(HDF5_MAGIC):
        return "hdf5"
    if name.lower().endswith(TAR_SUFFIXES) or _is_tar(head):
        return "tar"
    return "tfrecord"


def _open_head(name: str) -> tuple[int, bytes]:
    """Opens a file and reads its first block: an empty one if it is no regular file, which the shard reports."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a FIFO would block otherwise
        try:
            return fd, os.pread(fd, 512, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise cannot_open(name, error) from error


def _is_tar(head: bytes) -> bool:
    if head[257:262] != b"ustar":
        return False
    from .tar.scan import is_header

    return is_header(head)


def check_run(path: str, count: int, start: int, stop: int) -> None:
    if not 0 <= start <= stop <= count:
        raise IndexError(f"{path}: expected samples from 0 to {count:,}, got [{start:,}, {stop:,})")


def check_rows(path: str, count: int, rows: Rows) -> list[int]:
    """The numbers as plain ints, or an IndexError that names the first that is not there."""
    numbers = [_number(path, row) for row in rows]
    for number in numbers:
        if not 0 <= number < count:
            raise IndexError(f"{path}: expected a sample from 0 to {count - 1:,}, got {number:,}")
    return numbers


def _number(path: str, row: Any) -> int:
    if type(row).__name__ in ("bool", "bool_") or not hasattr(row, "__index__"):
        raise TypeError(f"{path}: expected a sample's number, got {row!r}")
    return int(row.__index__())


# What can still be read of a damaged shard.


def open_damaged(
    path: str | os.PathLike[str],
    *,
    verify: Literal["all", "header"] = "all",
    salvage: bool = False,
    most: int = 1000,
    keep_doubtful: bool = False,
) -> RepairedShard | None:
    """The good samples around the damages, in a format that has a way to find them: TFRecord. None for others.

    `salvage`, `most` and `keep_doubtful` as mend() has them, whose errors this raises.
    """
    if detect_format(path) != "tfrecord":
        return None
    from .tfrecord.salvage import RepairedShard, mend

    layout = mend(path, salvage=salvage, most=most, keep_doubtful=keep_doubtful)
    return RepairedShard(path, layout, verify=verify)


def open_mended(
    path: str | os.PathLike[str], layout: RepairMap, *, verify: Literal["all", "header"] = "all"
) -> RepairedShard:
    """The same again, without another search. The file must be the one that was searched."""
    from .tfrecord.salvage import RepairedShard

    return RepairedShard(path, layout, verify=verify)
