"""One file as a shard of which any part can be read. A packed one is unpacked beside the target first, on disk: else
every block would be unpacked from the file's start."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import DataError, InputError, WriteError
from ..formats.shard import Shard
from ..formats.tfrecord.shard import TFRecordShard
from ..formats.tfrecord.source import open_source
from ..schema import Column
from .names import Kind

_COPY_BYTES = 1 << 20


@contextmanager
def open_plain(
    path: str, kind: Kind, schema: dict[str, Column] | None, staging: Path, *, cache: bool
) -> Iterator[Shard]:
    """`schema`: the columns that will be read, if they are known. `cache`: an index may be kept for the next time."""
    if kind == "hdf5":
        from ..formats.hdf5 import HDF5Shard

        with HDF5Shard(path, schema) as hdf5:
            yield hdf5
        return
    with _unpacked(path, kind, staging) as plain, _naming(path, plain):
        shard = _open(plain, kind, cache and plain == path)
        with shard:
            yield shard


def _open(path: str, kind: Kind, cache: bool) -> Shard:
    if kind == "tfrecord":
        return TFRecordShard(path, cache=cache)
    from ..formats.tar import TarShard

    return TarShard(path, cache=cache)


@contextmanager
def _unpacked(path: str, kind: Kind, staging: Path) -> Iterator[str]:
    """The path itself, if it is not packed."""
    copy = _unpack_tar(path, staging) if kind == "tar" else _unpack_tfrecord(path, staging)
    try:
        yield path if copy is None else str(copy)
    finally:
        if copy is not None:
            copy.unlink(missing_ok=True)


def _unpack_tar(path: str, staging: Path) -> Path | None:
    from ..formats.tar.source import packing_of, unpack

    packing = packing_of(path)
    if packing == "none":
        return None
    with unpack(path, packing) as source:
        return _copy(source.read_at, staging)


def _unpack_tfrecord(path: str, staging: Path) -> Path | None:
    with open_source(path) as source:
        if source.compression == "none":
            return None
        view = memoryview(bytearray(_COPY_BYTES))
        return _copy(lambda at, size: bytes(view[: source.read_at(at, view[:size])]), staging)


def _copy(read_at: Callable[[int, int], bytes], staging: Path) -> Path:
    copy, at = staging / "unpacked", 0
    try:
        with open(copy, "wb") as file:
            while data := read_at(at, _COPY_BYTES):
                file.write(data)
                at += len(data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise WriteError(f"cannot unpack into {staging.parent}: {error.strerror}") from error
    return copy


@contextmanager
def _naming(path: str, plain: str) -> Iterator[None]:
    """Errors name the file, not its copy."""
    try:
        yield
    except DataError as error:
        if error.path != plain or plain == path:
            raise
        raise type(error)(path, error.record, error.offset, error.reason, error.hint) from error
    except InputError as error:
        if plain == path or plain not in str(error):
            raise
        raise InputError(str(error).replace(plain, path)) from error
