"""The record beside a file: the crc32c of each of its chunks, as it was committed.

`part.h5` has `part.json`: {"bytes": …, "crc32c": …, "chunks": {"dataset": [[offset, size, crc32c], …], …}, …}.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..._native import codec

_READ_BYTES = 4 << 20
_LISTED = 1000

Progress = Callable[[int], None]


class Recorded(NamedTuple):
    dataset: str
    offset: int
    size: int
    crc32c: int


class Record(NamedTuple):
    """`bytes` and `crc32c` of the whole file; None where the record does not say."""

    path: str
    chunks: list[Recorded]
    bytes: int | None = None
    crc32c: int | None = None

    @property
    def datasets(self) -> set[str]:
        return {chunk.dataset for chunk in self.chunks}


def find_record(path: str) -> Record | None:
    """None: there is none beside the file, or the JSON there is something else."""
    beside = Path(path).with_suffix(".json")
    try:
        with open(beside, encoding="utf-8") as file:
            facts = json.load(file)
        if facts.get("file", os.path.basename(path)) != os.path.basename(path):
            return None  # of another file, by this one's old name
        rows = [("/" + name.lstrip("/"), row) for name, rows in facts["chunks"].items() for row in rows]
        listed = [Recorded(name, *map(int, row)) for name, row in rows]
        whole = [None if facts.get(key) is None else int(facts[key]) for key in ("bytes", "crc32c")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Record(str(beside), listed, *whole)


def check_record(path: str, record: Record, progress: Progress | None = None) -> Iterator[tuple[Recorded | None, str]]:
    """Chunks whose bytes are not those that were recorded, and why; None for the file as a whole."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        crc = None if record.crc32c is None else _crc_of(fd, 0, size, progress)[0]
        if record.crc32c is not None and (crc, size) == (record.crc32c, record.bytes):
            return
        wrong = list(itertools.islice(_wrong_chunks(fd, record, progress), _LISTED))
        yield from wrong
        if record.bytes is not None and size != record.bytes:
            yield None, f"the record says {record.bytes:,} bytes, the file has {size:,}"
        elif crc is not None and not wrong:
            yield (
                None,
                f"its crc32c is {crc:08x}, the record says {record.crc32c:08x}: not in a chunk, but between them",
            )
    finally:
        os.close(fd)


def _wrong_chunks(fd: int, record: Record, progress: Progress | None) -> Iterator[tuple[Recorded, str]]:
    for chunk in record.chunks:
        crc, got = _crc_of(fd, chunk.offset, chunk.size, progress)
        if got < chunk.size:
            yield chunk, f"cut: the record says {chunk.size:,} bytes, {got:,} are there"
        elif crc != chunk.crc32c:
            yield chunk, f"its crc32c is {crc:08x}, the record says {chunk.crc32c:08x}"


def _crc_of(fd: int, offset: int, size: int, progress: Progress | None) -> tuple[int, int]:
    """And of how many bytes."""
    crc, at = 0, 0
    while at < size:
        data = os.pread(fd, min(_READ_BYTES, size - at), offset + at)
        if not data:
            break
        crc = codec.crc32c(data, crc)
        at += len(data)
        if progress is not None:
            progress(len(data))
    return crc, at
