"""Split files into shards.

The records of all FILEs go in order to new files in DIR, named
NAME-00000-of-00004.tfrecord and so on: N files with about the same number of
records, or as many files as needed with at most SIZE each (before
compression; a larger record gets its own file). Every CRC is checked, and
every new file is read back and compared. All files appear together once all
are complete, with their counts and checksums in holdfast.manifest.json. A
corrupt FILE is rejected: salvage it first.

FILE is a path, a glob, or a directory with TFRecord files at any depth.

Examples:

  holdfast split train.tfrecord -n 16 -o shards
  holdfast split 'raw/*.tfrecord.gz' --size 256MB -o shards --name train

With --json:

  {"records": 4711, "files": [{"path": "shards/train-00000-of-00016.tfrecord",
   "records": 295, "bytes": 512345, "crc32c": "e3069283"}]}

Exit codes: 0 all files are written; 1 a FILE is corrupt; 3 a FILE cannot be
read, DIR cannot be written, or a file of that name exists. Unless 0, nothing
is written.
"""

from __future__ import annotations

import os
from typing import Any

import click

from .._util.text import counted, printable
from ..data.file_tools.parallel_files import total_bytes
from ..data.file_tools.split import Shards
from ..data.file_tools.split import split as split_files
from ..data.formats.targets import MAX_SHARDS
from ..data.formats.tfrecord.manifest import MANIFEST_NAME
from ..data.inputs import expand
from .app import COMPRESSION, FINE, command, jobs_option, size_of, usage_error, usage_errors
from .console import Screen, bar_for, show_files


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-n", "--parts", type=click.IntRange(1, MAX_SHARDS), metavar="N", help="Write N files.")
@click.option("--size", callback=size_of, metavar="SIZE", help="Write files of at most SIZE: 256MB, 1.5GiB, …")
@click.option("-o", "--out", required=True, metavar="DIR", help="The directory for the files; created if missing.")
@click.option("--name", metavar="NAME", help="The prefix of the file names.  [default: that of the first FILE]")
@click.option("--compression", type=COMPRESSION, default="none", help="How to compress the files.  [default: none]")
@jobs_option
def split(
    screen: Screen,
    files: tuple[str, ...],
    parts: int | None,
    size: int | None,
    out: str,
    name: str | None,
    compression: Any,
    jobs: int,
) -> int:
    if (parts is None) == (size is None):
        raise usage_error("expected either the number of files (-n) or their size (--size)")
    paths = expand(files)
    options: dict[str, Any] = {"parts": parts, "size": size, "name": name, "compression": compression, "jobs": jobs}
    doing = f"splitting {counted(len(paths), 'file')}"
    with bar_for(screen, doing, total_bytes(paths)) as bar, usage_errors():
        made = split_files(paths, out, **options, progress=bar.advance)
    screen.document(made.as_dict())
    _show(screen, made, out)
    return FINE


def _show(screen: Screen, made: Shards, folder: str) -> None:
    entries, records = made.files, made.records
    show_files(screen, entries, "records")
    empty = sum(not entry.records for entry in entries)
    if empty:
        screen.print(f"{counted(empty, 'file')} are empty: there are only {counted(records, 'record')}.")
    what = f"{counted(records, 'record')} in {counted(len(entries), 'file')}"
    screen.print(f"{what}, read back and compared;")
    screen.print(f"counts and checksums are in {printable(os.path.join(folder, MANIFEST_NAME))}")
