"""Merge files into one.

TFRecord: the records of all FILEs go to OUT in the order of the arguments
(those of a glob or a directory sorted by name: part-10 before part-9).
Inputs and OUT may be compressed. Every CRC is checked, and OUT is read back
and compared before it gets its name.

HDF5: datasets of the same name are concatenated along their first axis. All
FILEs must have them, with the same type and row shape; groups are kept. Where
filters differ, OUT gets those of most rows, or those of --codec; the other
rows are recompressed, and a note says so. Attributes that differ between
FILEs are listed and left out unless --attributes says otherwise. Chunks are
copied as they are where they fit and rebuilt from rows elsewhere; where the
filters are lossy (scaleoffset, zfp, ...) and rows would be recompressed, the
whole dataset gets gzip instead, and a note says so. Before OUT gets its name,
every copied chunk is compared by checksum and every rebuilt one by value. If
a FILE has a record of its chunk checksums beside it, as parts of hold.write
do, each chunk is checked against it. Otherwise every copied chunk is decoded,
so that gzip, bzip2 and fletcher32 detect corruption; --no-verify-sources skips
that, which is several times as fast, and names the datasets.
A killed merge leaves no OUT, and starts over when it is run again.

FILE is a path, a glob, a directory with data files at any depth, or a dataset
directory of hold.write, whose committed parts are merged by task; a manifest
in it then records what went into OUT. A FILE that is found to be corrupt is
rejected: salvage it first.

Examples:

  holdfast merge 'parts/part-*.tfrecord' -o train.tfrecord
  holdfast merge worker_*.h5 -o train.h5
  holdfast merge run.hold -o train.h5 --order any

With --json, for TFRecord and for HDF5:

  {"records": 4711, "files": [{"path": "train.tfrecord", "records": 4711,
   "bytes": 8123456, "crc32c": "e3069283"}]}

  {"format": "hdf5", "rows": 4711, "bytes": 8123456, "crc32c": "e3069283",
   "path": "train.h5", "files": 8, "chunks": 40, "checked": 40,
   "unrecorded": 0, "datasets": [{"dataset": "/x", "rows": 4711,
   "method": "copy", "copied_bytes": 8000000, "built_bytes": 0}],
   "attributes": [{"object": "/x", "attribute": "unit", "reason": "differs",
   "files": ["a.h5", "b.h5"], "kept": false}], "unpacked": 0, "compared": 0,
   "unchecked": [], "notes": []}

  rows      null if datasets differ in length
  checked   copied chunks whose checksum was known
  unpacked  copied chunks without one, which were decoded
  compared  chunks that were rebuilt from rows and compared by value
  unchecked    datasets with copied chunks that no checksum covered
  unrecorded   files without a record of checksums
  method    copy, build, copy and build, objects (strings and lists of
            variable length, one by one), view, nothing
  attributes   those that differ, or that a file lacks ("missing")
  notes     the same as text, and datasets whose filters changed

Exit codes: 0 OUT is written; 1 a FILE is corrupt; 2 FILEs do not fit together;
3 a FILE cannot be read, or OUT cannot be written or exists. Unless 0, nothing
is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .._util.text import counted, format_bytes, printable
from ..data.file_tools.merge import merge as merge_files
from ..data.file_tools.parallel_files import total_bytes
from ..data.formats.base import Merged
from ..data.inputs import expand, is_run, size_of_run
from .app import COMPRESSION, FINE, command, usage_errors
from .console import Screen, bar_for, show_rest

if TYPE_CHECKING:
    from ..data.formats.hdf5.merging.merge_files import MergedDataset

_SHOWN_NOTES = 20
_SHOWN_UNCHECKED = 3


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--out", required=True, metavar="OUT", help="The file to write.")
@click.option(
    "--order",
    type=click.Choice(["exact", "any"]),
    help="HDF5: row order; any puts full chunks first.  [default: exact]",
)
@click.option("--virtual", is_flag=True, help="HDF5: make OUT a virtual view of the FILEs without rows.")
@click.option(
    "--attributes",
    type=click.Choice(["same", "first", "error"]),
    help="HDF5: drop attributes that differ, keep the first FILE's, or fail.  [default: same]",
)
@click.option("--codec", type=click.Choice(["none", "gzip", "lzf", "zstd"]), help="HDF5: compress all chunks of OUT.")
@click.option(
    "--no-verify-sources", is_flag=True, help="HDF5: do not decode copied chunks that have no recorded checksum."
)
@click.option("--compression", type=COMPRESSION, help="TFRecord: compress OUT.  [default: by suffix: .gz, .zlib]")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be done; write nothing.")
def merge(
    screen: Screen,
    files: tuple[str, ...],
    out: str,
    order: Any,
    virtual: bool,
    attributes: Any,
    codec: Any,
    no_verify_sources: bool,
    compression: Any,
    force: bool,
    dry_run: bool,
) -> int:
    run = len(files) == 1 and is_run(files[0], with_schema=True)
    given: Sequence[str] = files if any(is_run(file, with_schema=True) for file in files) else expand(files)
    size = size_of_run(files[0]) if run else total_bytes(given)
    options: dict[str, Any] = {"order": order, "virtual": virtual, "attributes": attributes, "codec": codec}
    options |= {"compression": compression, "overwrite": force, "dry_run": dry_run}
    options |= {"verify_sources": not no_verify_sources}
    doing = "merging parts" if run else f"merging {counted(len(given), 'file')}"
    with bar_for(screen, doing, 0 if dry_run else size) as bar, usage_errors():
        made = merge_files(given, out, **options, progress=bar.advance)
    screen.document(made.as_dict())
    if dry_run:
        _show(screen, [] if virtual and run else made.datasets, made.notes)
        size_text = "" if "rows" in made.as_dict() else f", {format_bytes(made.bytes)},"
        goes = "be shown by" if virtual else "go to"
        screen.print(f"{_describe(made, run)}{size_text} would {goes} {printable(out)}")
        return FINE
    _show(screen, [], made.notes)
    if virtual:
        _warn_about_view(screen, made.files)
        screen.print(f"{_describe(made)} are shown by {printable(out)}")
        return FINE
    _warn_about_flips(screen, made, no_verify_sources)
    manifest = "" if made.manifest is None else f" (manifest {made.manifest})"
    text = f"{_describe(made, run)}, {format_bytes(made.bytes)}, {_checked(made)}"
    screen.print(f"{text}: {printable(out)}{manifest}")
    return FINE


def _warn_about_flips(screen: Screen, made: Merged, no_verify_sources: bool) -> None:
    if made.unchecked:
        which = "the files" if made.unrecorded == made.files else f"{made.unrecorded:,} of the {made.files:,} files"
        named = ", ".join(printable(repr(one)) for one in made.unchecked[:_SHOWN_UNCHECKED])
        more = f" and {len(made.unchecked) - _SHOWN_UNCHECKED:,} more" if len(made.unchecked) > _SHOWN_UNCHECKED else ""
        how = ", because of --no-verify-sources" if no_verify_sources else ""
        text = f"bits flipped before the merge in {named}{more} go unnoticed{how}"
        screen.print(f"No checksums are beside {which}: {text}.")


def _describe(made: Merged, run: bool = False) -> str:
    files = counted(made.files, "part" if run else "file")
    unit = "row" if "rows" in made.as_dict() else "record"
    rows = [] if made.rows is None else [counted(made.rows, unit)]
    datasets = [counted(len(made.datasets), "dataset")] if unit == "row" and not run else []
    contents = " in ".join(rows + datasets)
    return f"{contents} of {files}" if contents else files


def _checked(made: Merged) -> str:
    if made.manifest is not None:
        return "every checksum verified, read back"
    if "rows" in made.as_dict():
        return "compared with its source" if made.files == 1 else "compared with its sources"
    return "read back and compared"


def _show(screen: Screen, datasets: Sequence[MergedDataset], notes: list[str]) -> None:
    if datasets:
        rows = [
            (one.dataset, f"{one.rows:,}", one.method, format_bytes(one.copied_bytes), format_bytes(one.built_bytes))
            for one in datasets
        ]
        screen.table(["dataset", ">rows", "method", ">copied", ">built"], rows, indent=2)
        screen.print()
    for note in notes[:_SHOWN_NOTES]:
        screen.print(f"{printable(note)}.")
    show_rest(screen, len(notes) - _SHOWN_NOTES, "note")


def _warn_about_view(screen: Screen, files: int) -> None:
    screen.print(f"Reading all of it keeps {counted(files, 'file')} open; where one cannot be opened, HDF5 silently")
    screen.print("returns fill values. `holdfast verify` checks that all of them are there.")
