"""What holdfast can do with tar files. Imports little: every reader and command imports this module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..base import Format, Lazy, OutputFile


def _is_start(head: bytes) -> bool:
    if head[257:262] != b"ustar":
        return False
    from .scan import is_header

    return is_header(head)


def _write(path: Any, schema: Any, *, first: int) -> OutputFile:
    from .writer import TarWriter

    return TarWriter(path, schema, first=first)


@contextmanager
def _unpack(path: str) -> Iterator[Callable[[int, int], bytes] | None]:
    from .source import decompress, detect_compression

    compression = detect_compression(path)
    if compression == "none":
        yield None
        return
    with decompress(path, compression) as source:
        yield source.read_at


TAR = Format(
    name="tar",
    title="tar",
    suffixes=(".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz", ".tar.zst"),
    is_start=_is_start,
    open=Lazy(f"{__package__}.shard:open_tar"),
    verify=Lazy(f"{__package__}.verify:verify_tar"),
    inspect=Lazy(f"{__package__}.inspect:inspect_tar"),
    written=(".tar",),
    write=_write,
    conversion=Lazy(f"{__package__}.shard:TarConversion"),
    unpack=_unpack,
)
