"""Defines hold.split: divides files into shards without decoding their records."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..._native import codec
from ..._util.progress import Progress
from ..._util.text import parse_bytes
from ..formats.base import FileEntry
from ..formats.registry import format_able
from ..inputs import Given, expand
from .parallel_files import check_jobs, check_out, cores

UNSPLIT = "`holdfast convert` makes one of it; hold.read indexes HDF5 and tar by itself"


@dataclass(frozen=True, slots=True)
class Shards:
    """The files that hold.split wrote."""

    __module__ = "holdfast"

    files: list[FileEntry]

    @property
    def records(self) -> int:
        return sum(entry.records for entry in self.files)

    def as_dict(self) -> dict[str, object]:
        """Returns what `holdfast split --json` prints."""
        return {"records": self.records, "files": [entry.as_dict() for entry in self.files]}


def split(
    paths: Given | Iterable[Given],
    folder: str | os.PathLike[str],
    *,
    parts: int | None = None,
    size: str | int | None = None,
    name: str | None = None,
    compression: Literal["none", "gzip", "zlib"] = "none",
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Shards:
    """Writes the records of TFRecord files, in order, to new files NAME-00000-of-00004.tfrecord and so on, which appear
    together after they were read back, with their counts and checksums in holdfast.manifest.json.

    Args:
        paths: A path, a glob, a folder, or a list of them.
        folder: Where the files go; created if it is missing.
        parts: Write this many files, with about the same number of records.
        size: Write files of at most this size before compression, such as "256MB"; a larger record gets its own.
        name: The prefix of the file names; None: that of the first file.
        jobs: How many threads write; None: one a core.
        progress: Called with numbers of bytes, which add up to the size of the files.
    """
    if (parts is None) == (size is None):
        raise ValueError("expected either parts= or size=")
    if parts is not None and (isinstance(parts, bool) or not isinstance(parts, int)):
        raise ValueError(f"parts must be a positive integer, got {parts!r}")
    check_jobs(jobs)
    target = check_out(folder)
    files = expand(paths)
    kinds = [format_able(file, "split", UNSPLIT) for file in files]
    work = kinds[0].split
    assert work is not None
    made = work(
        files,
        target,
        parts=parts,
        part_bytes=None if size is None else parse_bytes(size),
        name=name,
        compression=compression,
        progress=progress,
        jobs=(jobs or cores()) if codec.NATIVE else 1,
    )
    return Shards(made)
