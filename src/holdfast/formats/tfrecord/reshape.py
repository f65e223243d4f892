"""Many files from one, and one from many: record order and count proven, a manifest written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ...errors import DataError, WriteError
from .manifest import FileEntry, write_manifest
from .reader import TFRecordReader
from .verify import verify_file
from .writer import PackWith, TFRecordWriter

Progress = Callable[[int], None]


def merge_files(
    files: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    compression: PackWith = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> FileEntry:
    """All records of all files, in the order given, in one new file. Refuses damaged input."""
    _refuse_own_output(files, [Path(out)])
    with TFRecordWriter(out, compression=compression, overwrite=overwrite) as writer:
        read = sum(1 for _ in _copy(files, lambda record: writer.write(record), progress))
    assert writer.entry is not None
    _prove(read, [writer.entry])
    return writer.entry


def split_files(
    files: Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    *,
    parts: int | None = None,
    part_bytes: int | None = None,
    name: str | None = None,
    compression: PackWith = "none",
    progress: Progress | None = None,
) -> list[FileEntry]:
    """All records of all files, in order, in new files of about equal size, or of about `part_bytes`.

    Files are named NAME-00000-of-00004.tfrecord, so that sorted names keep the order; the folder's manifest comes last.
    """
    if (parts is None) == (part_bytes is None):
        raise ValueError("say either how many parts or how large one may be")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    stem = name or Path(files[0]).name.split(".")[0]
    sizes = [(len(record) for record in _records(files, None))]
    borders = _borders(sizes[0], parts, part_bytes, sum(os.path.getsize(f) for f in files))
    suffix = {"gzip": ".tfrecord.gz", "zlib": ".tfrecord.zlib"}.get(compression, ".tfrecord")
    paths = [target / f"{stem}-{i:05d}-of-{len(borders):05d}{suffix}" for i in range(len(borders))]
    _refuse_own_output(files, paths)
    entries: list[FileEntry] = []
    records = _records(files, progress)
    total = 0
    for path, count in zip(paths, borders, strict=True):
        with TFRecordWriter(path, compression=compression) as writer:
            for _ in range(count):
                writer.write(next(records))
                total += 1
        assert writer.entry is not None
        entries.append(writer.entry)
    if next(records, None) is not None:
        raise WriteError(f"{stem}: the input grew while it was split; nothing was written to the manifest")
    _prove(total, entries)
    write_manifest(target, entries)
    return entries


def _records(files: Sequence[str | os.PathLike[str]], progress: Progress | None) -> Iterator[bytes]:
    for file in files:
        with TFRecordReader(file) as reader:
            for record in reader.records():
                if progress:
                    progress(len(record))
                yield record


def _copy(
    files: Sequence[str | os.PathLike[str]], put: Callable[[bytes], None], progress: Progress | None
) -> Iterator[None]:
    for record in _records(files, progress):
        put(record)
        yield


def _borders(sizes: Iterator[int], parts: int | None, part_bytes: int | None, total: int) -> list[int]:
    """How many records go into each part."""
    lengths = [size + 16 for size in sizes]
    if parts is not None:
        base, more = divmod(len(lengths), parts)
        return [base + (i < more) for i in range(parts)]
    assert part_bytes is not None
    borders, held = [0], 0
    for length in lengths:
        if held and held + length > part_bytes:
            borders.append(0)
            held = 0
        borders[-1] += 1
        held += length
    return borders


def _prove(read: int, entries: Sequence[FileEntry]) -> None:
    """What was written is read again: counts, CRCs, and the checksum the writer kept."""
    for entry in entries:
        report = verify_file(entry.path)
        if not report.ok or report.records != entry.records or report.bytes != entry.bytes:
            reason = report.problems[0].reason if report.problems else "its count differs"
            raise DataError(entry.path, None, None, f"was written, but is not whole: {reason}")
    if read != sum(entry.records for entry in entries):
        raise WriteError(f"{read:,} records were read, {sum(e.records for e in entries):,} written")


def _refuse_own_output(files: Sequence[str | os.PathLike[str]], outputs: Sequence[Path]) -> None:
    for out in outputs:
        for file in files:
            if out.exists() and os.path.exists(file) and os.path.samefile(file, out):
                raise WriteError(f"{out} is also an input; name another output")
