"""One file from many.

All records of all FILEs, in the order the files are given (those of a glob or
a folder sorted naturally: part-9 before part-10), go to OUT, packed or not on
either side. Every CRC is checked on the way, and OUT is read again before it
gets its name: the same records, in the same order. A damaged FILE is refused:
salvage it first.

FILE is a path, a glob or a folder, meaning all TFRecord files directly in it.

Example:

  holdfast merge 'parts/part-*.tfrecord' -o train.tfrecord

With --json:

  {"records": 4711, "files": [{"path": "train.tfrecord", "records": 4711,
   "bytes": 8123456, "crc32c": "e3069283"}]}

Exit codes: 0 OUT is written; 1 a FILE is damaged; 3 a FILE cannot be read, OUT
cannot be written or is there already. Without 0 nothing is left behind.
"""

from __future__ import annotations

from typing import Any

import click

from .._base.units import format_bytes
from ..formats.tfrecord.reshape import MERGE_PASSES, merge_files
from ..report.words import counted, printable
from .command import COMPRESSION, command
from .cores import total_bytes
from .exits import FINE
from .inputs import expand
from .progress import bar_for
from .screen import Screen


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--out", required=True, metavar="OUT", help="The file to write.")
@click.option("--compression", type=COMPRESSION, help="How to pack OUT.  [default: by its name: .gz, .zlib]")
@click.option("-f", "--force", is_flag=True, help="Replace OUT if it is there.")
def merge(screen: Screen, files: tuple[str, ...], out: str, compression: Any, force: bool) -> int:
    paths = expand(files)
    with bar_for(screen, f"merging {counted(len(paths), 'file')}", total_bytes(paths)) as bar:
        entry = merge_files(
            paths,
            out,
            compression=compression or "auto",
            overwrite=force,
            progress=lambda n: bar.advance(n / MERGE_PASSES),
        )
    screen.document({"records": entry.records, "files": [entry.as_dict()]})
    what = f"{counted(entry.records, 'record')} of {counted(len(paths), 'file')}"
    screen.print(f"{what}, {format_bytes(entry.bytes)}, in order and read again: {printable(out)}")
    return FINE
