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

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .._util.text import counted, format_bytes, printable
from ..data.formats.suffixes import HDF5_SUFFIXES, TITLES
from ..data.formats.tfrecord.merge import merge_files
from .app import COMPRESSION, FINE, command, usage_error
from .console import Screen, bar_for, show_rest
from .parallel_jobs import total_bytes
from .path_arguments import expand, format_of

if TYPE_CHECKING:
    from ..data.formats.hdf5.merge.merge_files import MergedDataset, MergedHDF5
    from ..data.writer.consolidate import Consolidated

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
    runs = [file for file in files if is_run(file)]
    if runs and len(files) > 1:
        raise usage_error(f"{runs[0]!r} is a dataset directory: merge it alone, or pass its files in {runs[0]}/parts")
    options: dict[str, Any] = {"order": order or "exact", "virtual": virtual, "force": force, "dry_run": dry_run}
    if runs:
        _reject_if(compression is not None, "--compression is for TFRecord files that are passed by name")
        _reject_if(attributes is not None, "--attributes is for HDF5 files that are passed by name")
        _reject_if(codec is not None, "--codec is for HDF5 files that are passed by name")
        _reject_if(no_verify_sources, "--no-verify-sources is for files without records, and parts have them")
        return _merge_run(screen, runs[0], out, **options)
    paths = expand(files)
    kinds = {path: format_of(path) for path in paths}
    other = next((path for path in paths if kinds[path] != kinds[paths[0]]), None)
    if other is not None:
        found = f"{paths[0]} is {TITLES[kinds[paths[0]]]}, {other} is {TITLES[kinds[other]]}"
        raise usage_error(f"expected files of one format: {found}; use `holdfast convert`")
    _reject_if(
        kinds[paths[0]] == "tar" and os.path.exists(paths[0]),
        f"{paths[0]!r} is a tar: `tar -A` or `holdfast convert` joins tars",
    )
    if kinds[paths[0]] == "hdf5":
        _reject_if(compression is not None, "--compression is for TFRecord; use --codec for HDF5")
        no_rows = virtual and (codec is not None or no_verify_sources)
        _reject_if(no_rows, "--codec and --no-verify-sources apply to copied rows; --virtual copies none")
        is_tfrecord = ".tfrec" in os.path.basename(out).lower()
        _reject_if(is_tfrecord, f"{out!r} is a name for TFRecord, these are HDF5 files; use `holdfast convert`")
        options |= {"attributes": attributes or "same", "codec": codec, "no_verify_sources": no_verify_sources}
        return _merge_hdf5(screen, paths, out, **options)
    for_hdf5 = virtual or no_verify_sources or any(one is not None for one in (order, attributes, codec))
    named = "--order, --virtual, --attributes, --codec and --no-verify-sources"
    _reject_if(for_hdf5, f"{named} are for HDF5, these are TFRecord files")
    is_hdf5_name = out.lower().endswith(HDF5_SUFFIXES)
    _reject_if(is_hdf5_name, f"{out!r} is a name for HDF5, these are TFRecord files; use `holdfast convert`")
    return _merge_tfrecord(screen, paths, out, compression, force, dry_run)


def _reject_if(wrong: bool, text: str) -> None:
    if wrong:
        raise usage_error(text)


def _merge_tfrecord(screen: Screen, paths: list[str], out: str, compression: Any, force: bool, dry_run: bool) -> int:
    if dry_run:
        size = total_bytes(paths)
        screen.document({"files": paths, "bytes": size, "out": out})
        screen.print(f"{counted(len(paths), 'file')}, {format_bytes(size)}, would go to {printable(out)}")
        return FINE
    with bar_for(screen, f"merging {counted(len(paths), 'file')}", total_bytes(paths)) as bar:
        entry = merge_files(paths, out, compression=compression or "auto", overwrite=force, progress=bar.advance)
    screen.document({"records": entry.records, "files": [entry.as_dict()]})
    what = f"{counted(entry.records, 'record')} of {counted(len(paths), 'file')}"
    screen.print(f"{what}, {format_bytes(entry.bytes)}, read back and compared: {printable(out)}")
    return FINE


def is_run(path: str) -> bool:
    """Whether a directory was created by hold.write, and its schema is readable."""
    return os.path.isdir(os.path.join(path, "parts")) and os.path.isfile(os.path.join(path, "schema.json"))


def _merge_hdf5(
    screen: Screen,
    paths: list[str],
    out: str,
    *,
    order: Any,
    virtual: bool,
    attributes: Any,
    codec: Any,
    no_verify_sources: bool,
    force: bool,
    dry_run: bool,
) -> int:
    from ..data.formats.hdf5.merge.merge_files import merge_hdf5, plan_hdf5

    options: dict[str, Any] = {"order": order, "virtual": virtual, "attributes": attributes, "codec": codec}
    if dry_run:
        plan = plan_hdf5(paths, **options)
        screen.document({"format": "hdf5", **plan.as_dict(), "path": out})
        _show(screen, plan.datasets, plan.notes)
        screen.print(f"{_describe_merge(plan)} would {_destination(virtual)} {printable(out)}")
        return FINE
    with bar_for(screen, f"merging {counted(len(paths), 'file')}", total_bytes(paths)) as bar:
        options |= {"verify_sources": not no_verify_sources, "overwrite": force, "progress": bar.advance}
        made = merge_hdf5(paths, out, **options)
    screen.document({"format": "hdf5", **made.as_dict(), "path": out})
    _show(screen, [], made.notes)
    if virtual:
        _warn_about_view(screen, len(paths))
        screen.print(f"{_describe_merge(made)} are shown by {printable(out)}")
        return FINE
    if made.unchecked:
        which = "the files" if made.unrecorded == made.files else f"{made.unrecorded:,} of the {made.files:,} files"
        named = ", ".join(printable(repr(one)) for one in made.unchecked[:_SHOWN_UNCHECKED])
        more = f" and {len(made.unchecked) - _SHOWN_UNCHECKED:,} more" if len(made.unchecked) > _SHOWN_UNCHECKED else ""
        how = ", because of --no-verify-sources" if no_verify_sources else ""
        text = f"bits flipped before the merge in {named}{more} go unnoticed{how}"
        screen.print(f"No checksums are beside {which}: {text}.")
    sources = "its source" if made.files == 1 else "its sources"
    screen.print(f"{_describe_merge(made)}, {format_bytes(made.bytes)}, compared with {sources}: {printable(out)}")
    return FINE


def _merge_run(screen: Screen, folder: str, out: str, *, order: Any, virtual: bool, force: bool, dry_run: bool) -> int:
    from ..data.writer.dataset_writer import write

    run = write(folder)
    if dry_run:
        plan = run.plan(order=order)
        screen.document(_facts(plan) | {"path": out})
        _show(screen, [] if virtual else plan.datasets, plan.notes)
        screen.print(f"{_describe_parts(plan)} would {_destination(virtual)} {printable(out)}")
        return FINE
    if virtual:
        view = run.view(out, overwrite=force)
        screen.document({"format": "hdf5", **view.as_dict(), "path": out})
        _warn_about_view(screen, view.files)
        screen.print(f"{_describe_merge(view)} are shown by {printable(out)}")
        return FINE
    size = sum(record.bytes for record in run.parts())
    with bar_for(screen, "merging parts", size) as bar:
        made = run.consolidate(out, order=order, overwrite=force, progress=bar.advance)
    screen.document(_facts(made) | {"path": out})
    _show(screen, [], made.notes)
    text = f"{_describe_parts(made)}, {format_bytes(made.bytes)}, every checksum verified, read back"
    screen.print(f"{text}: {printable(out)} (manifest {made.manifest})")
    return FINE


def _describe_merge(made: MergedHDF5) -> str:
    datasets = counted(len(made.datasets), "dataset")
    rows = f"{counted(made.rows, 'row')} in {datasets}" if made.rows is not None else datasets
    return f"{rows} of {counted(made.files, 'file')}"


def _destination(virtual: bool) -> str:
    return "be shown by" if virtual else "go to"


def _describe_parts(made: Consolidated) -> str:
    return f"{counted(made.rows, 'row')} of {counted(made.parts, 'part')}"


def _facts(made: Consolidated) -> dict[str, object]:
    return {
        "format": made.format,
        "order": made.order,
        "parts": made.parts,
        "rows": made.rows,
        "bytes": made.bytes,
        "crc32c": f"{made.crc32c:08x}",
        "manifest": made.manifest,
        "datasets": [one._asdict() for one in made.datasets],
        "notes": made.notes,
    }


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
