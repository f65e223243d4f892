"""The record beside a file: the crc32c of each of its chunks, as it was committed.

`part.h5` has `part.json`: {"chunks": {"dataset": [[offset, size, crc32c], …], …}, …}.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..._native import codec

_READ_BYTES = 4 << 20
_LISTED = 1000


class Recorded(NamedTuple):
    dataset: str
    offset: int
    size: int
    crc32c: int


class Record(NamedTuple):
    path: str
    chunks: list[Recorded]

    @property
    def datasets(self) -> set[str]:
        return {chunk.dataset for chunk in self.chunks}


def find_record(path: str) -> Record | None:
    """None: there is none beside the file, or the JSON there is something else."""
    beside = Path(path).with_suffix(".json")
    try:
        with open(beside, encoding="utf-8") as file:
            facts = json.load(file)
        chunks = facts["chunks"]
        listed = [Recorded("/" + name.lstrip("/"), *map(int, row)) for name, rows in chunks.items() for row in rows]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Record(str(beside), listed)


def check_record(
    path: str, record: Record, progress: Callable[[int], None] | None = None
) -> Iterator[tuple[Recorded, str]]:
    """Chunks whose bytes are not those that were recorded, and why."""
    found = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for chunk in record.chunks:
            crc, got = _crc_of(fd, chunk)
            if progress is not None:
                progress(chunk.size)
            if got < chunk.size:
                yield chunk, f"cut: the record says {chunk.size:,} bytes, {got:,} are there"
            elif crc != chunk.crc32c:
                yield chunk, f"its crc32c is {crc:08x}, the record says {chunk.crc32c:08x}"
            else:
                continue
            found += 1
            if found >= _LISTED:
                return
    finally:
        os.close(fd)


def _crc_of(fd: int, chunk: Recorded) -> tuple[int, int]:
    crc, at = 0, 0
    while at < chunk.size:
        data = os.pread(fd, min(_READ_BYTES, chunk.size - at), chunk.offset + at)
        if not data:
            break
        crc = codec.crc32c(data, crc)
        at += len(data)
    return crc, at
