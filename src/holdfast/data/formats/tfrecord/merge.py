"""Copies frames to a new TFRecord file without decoding them, and merges files into one. Records keep their order.

The CRC over all frames of a new file is computed, and must be the same when the file is read back. Only then does the
file get its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ...._native import codec
from ...._util.atomic import FileStamp, check_not_input, check_unchanged
from ...._util.progress import Progress, scaled
from ....errors import DataError
from ..base import FileEntry
from ..columns import Ints
from ..parts_manifest import check_not_only_copy
from .frame_stream import FrameBatches, Put
from .manifest import renew_in_manifest
from .source import open_source
from .writer import PackWith, TFRecordWriter

Files = Sequence[str | os.PathLike[str]]

_PASSES = 2  # copy, read back


def merge_files(
    files: Files,
    out: str | os.PathLike[str],
    *,
    compression: PackWith = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
    verified: Callable[[FileEntry], None] | None = None,
) -> FileEntry:
    """Writes all records of all files, in the order given, to one new file. Corrupt input is an error.

    progress   called with numbers of bytes, which add up to the size of the files
    verified   called when the file is verified, before it gets its name
    """
    stamps, _ = take_stamps(files)
    check_not_input(files, [out])
    if overwrite:
        check_not_only_copy(files, [out])
    tick = scaled(progress, 1 / _PASSES)

    def copy(put: Put) -> None:
        for file in files:
            with FrameBatches(file, progress=tick) as batches:
                while batches.next(put) is not None:
                    pass

    def check(entry: FileEntry) -> None:
        check_unchanged(stamps)
        if verified is not None:
            verified(entry)

    size = sum(stamp.size for stamp in stamps.values())
    entry = write_verified(out, copy, compression, overwrite=overwrite, progress=tick, counts_as=size, verified=check)
    renew_in_manifest(entry)
    return entry


def take_stamps(files: Files) -> tuple[dict[str, FileStamp], bool]:
    """Opens every input file once, so that one that cannot be read is an error before anything is written. Returns
    their stamps by path, and whether one of them is compressed."""
    stamps, is_compressed = {}, False
    for file in files:
        with open_source(file) as source:
            stamps[os.fspath(file)] = FileStamp.of(source.fd)
            is_compressed = is_compressed or source.compression != "none"
    return stamps, is_compressed


def write_verified(
    path: str | os.PathLike[str],
    copy: Callable[[Put], None],
    compression: PackWith,
    *,
    overwrite: bool = False,
    progress: Progress,
    counts_as: float,
    verified: Callable[[FileEntry], None] | None = None,
) -> FileEntry:
    """Writes the frames that `copy` puts, and reads the file back before it gets its name.

    counts_as   what reading it back reports to `progress` in total
    verified    called before the file gets its name
    """
    crc = 0
    writer = TFRecordWriter(path, compression=compression, overwrite=overwrite)

    def put(frames: memoryview, starts: Ints) -> None:
        nonlocal crc
        crc = codec.crc32c(frames, crc)
        writer.write_frames(frames, len(starts))

    try:
        copy(put)
        partial, entry = writer.finalize()
        _verify_output(partial, entry, crc, scaled(progress, counts_as / max(entry.bytes, 1)))
        if verified is not None:
            verified(entry)
        return writer.close()
    finally:
        writer.discard()


def _verify_output(path: Path, entry: FileEntry, expected_crc: int, progress: Progress) -> None:
    """Reads a new file back: it must have the same records in the same order, and the size and CRC of its entry."""
    records, frames_crc, file_crc = 0, 0, 0

    def put(frames: memoryview, starts: Ints) -> None:
        nonlocal records, frames_crc
        records += len(starts)
        frames_crc = codec.crc32c(frames, frames_crc)

    def on_bytes(data: memoryview) -> None:
        nonlocal file_crc
        file_crc = codec.crc32c(data, file_crc)

    with FrameBatches(path, progress=progress, on_bytes=on_bytes) as batches:
        while batches.next(put) is not None:
            pass
        size = batches.file_bytes
    if (records, frames_crc) != (entry.records, expected_crc):
        text = f"expected the {entry.records:,} records that were written, got {records:,} or others when reading back"
        raise DataError(entry.path, None, None, f"{text}. Is the disk, or the memory, failing?")
    if (size, file_crc) != (entry.bytes, entry.crc32c):
        raise DataError(entry.path, None, None, "it reads back differently than it was written. Is the disk failing?")
