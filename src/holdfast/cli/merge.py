"""One file from many.

TFRecord: all records of all FILEs, in the order the files are given (those of
a glob or a folder sorted naturally: part-9 before part-10), go to OUT, packed
or not on either side. Every CRC is checked on the way, and OUT is read again
before it gets its name: the same records, in the same order.

HDF5: datasets of the same name are joined along their first axis. They must
be in all FILEs, with the same type and row shape; groups are kept. Where their
filters differ, OUT has those of most rows, or those of --codec; the others are
packed again, and a note says so.
Attributes that are not the same in all FILEs are listed and left out, unless
--attributes says otherwise. Chunks are copied as they are where they fit, the
others are built from rows; where the filters are lossy (scaleoffset, zfp, ...)
and rows have to be packed again, the whole dataset is packed with gzip instead
and a note says so. Before OUT gets its name every copied chunk is compared by
checksum, every built one value by value. Where a FILE has a record of its
chunks' checksums beside it, as the parts of hold.write do, each is checked;
without one, packed chunks are unpacked, and flipped bits that no checksum of
gzip, bzip2 or fletcher32 shows cannot be seen. A killed merge goes on where it
was when the same command is given again (.OUT.merging beside OUT).

FILE is a path, a glob, a folder, meaning all data files directly in it, or a
folder made by hold.write, meaning its committed parts by task; then a manifest
in it says what went into OUT. A damaged FILE is refused: salvage it first.

Examples:

  holdfast merge 'parts/part-*.tfrecord' -o train.tfrecord
  holdfast merge worker_*.h5 -o train.h5
  holdfast merge run.hold -o train.h5 --order any

With --json, of TFRecord and of HDF5:

  {"records": 4711, "files": [{"path": "train.tfrecord", "records": 4711,
   "bytes": 8123456, "crc32c": "e3069283"}]}

  {"format": "hdf5", "rows": 4711, "bytes": 8123456, "crc32c": "e3069283",
   "path": "train.h5", "files": 8, "chunks": 40, "checked": 40, "kept": 0,
   "unrecorded": 0, "datasets": [{"dataset": "/x", "rows": 4711,
   "method": "copy", "copied_bytes": 8000000, "built_bytes": 0}],
   "attributes": [{"object": "/x", "attribute": "unit", "reason": "differs",
   "files": ["a.h5", "b.h5"], "kept": false}], "unpacked": 0, "compared": 0,
   "unchecked": [], "notes": []}

  rows      null where datasets differ in length
  checked   of the chunks that were copied, those whose checksum was known
  unpacked  those without, which were unpacked to see whether they are intact
  compared  chunks that were built from rows, and compared value by value
  unchecked    datasets with chunks that nothing has a checksum of
  kept      chunks that an earlier, killed merge had done
  unrecorded   files without a record of checksums
  method    copy, build, copy and build, objects (strings and lists of any
            length, one by one), view, nothing
  attributes   those that differ, or that a file lacks ("missing")
  notes     the same in words, and datasets that got other filters

Exit codes: 0 OUT is written; 1 a FILE is damaged; 2 FILEs do not fit together;
3 a FILE cannot be read, OUT cannot be written or is there already. After 1 to 3
nothing is left behind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .._util.text import counted, format_bytes, printable
from ..formats.base import HDF5_SUFFIXES
from ..formats.tfrecord.split_merge import MERGE_PASSES, merge_files
from .app import COMPRESSION, FINE, command
from .console import Screen, bar_for
from .parallel_jobs import total_bytes
from .path_arguments import expand_data, is_hdf5

if TYPE_CHECKING:
    from ..formats.hdf5.merge.api import MergedDataset, MergedHDF5
    from ..writer.consolidate import Consolidated


_SHOWN_NOTES = 20
_SHOWN_UNCHECKED = 3


def is_run(path: str) -> bool:
    """Whether a folder was made by hold.write."""
    there = os.path.join(path, "schema.json")
    return os.path.isdir(os.path.join(path, "parts")) and os.path.isfile(there)


def merge_hdf5_files(
    screen: Screen,
    paths: list[str],
    out: str,
    *,
    order: Any,
    virtual: bool,
    attributes: Any,
    codec: Any,
    force: bool,
    dry_run: bool,
) -> int:
    from ..formats.hdf5.merge.api import merge_hdf5, plan_hdf5

    options: dict[str, Any] = {"order": order, "virtual": virtual, "attributes": attributes, "codec": codec}
    if dry_run:
        plan = plan_hdf5(paths, **options)
        screen.document({"format": "hdf5", **plan.as_dict(), "path": out})
        _show(screen, plan.datasets, plan.notes)
        screen.print(f"{_said(plan)} would {_go(virtual)} {printable(out)}")
        return FINE
    with bar_for(screen, f"merging {counted(len(paths), 'file')}", total_bytes(paths)) as bar:
        made = merge_hdf5(paths, out, **options, overwrite=force, progress=bar.advance)
    screen.document({"format": "hdf5", **made.as_dict(), "path": out})
    _show(screen, [], made.notes)
    if virtual:
        _warn_of_views(screen, len(paths))
        screen.print(f"{_said(made)} are shown by {printable(out)}")
        return FINE
    if made.unchecked:
        which = "the files" if made.unrecorded == made.files else f"{made.unrecorded:,} of the {made.files:,} files"
        named = ", ".join(printable(repr(one)) for one in made.unchecked[:_SHOWN_UNCHECKED])
        more = f" and {len(made.unchecked) - _SHOWN_UNCHECKED:,} more" if len(made.unchecked) > _SHOWN_UNCHECKED else ""
        screen.print(
            f"No checksums were beside {which}: bits that were flipped before in {named}{more} cannot be seen."
        )
    screen.print(f"{_said(made)}, {format_bytes(made.bytes)}, compared with {_sources(made)}: {printable(out)}")
    return FINE


def merge_run(screen: Screen, folder: str, out: str, *, order: Any, virtual: bool, force: bool, dry_run: bool) -> int:
    from ..writer.dataset import write

    run = write(folder)
    if dry_run:
        plan = run.plan(order=order)
        screen.document(_facts(plan) | {"path": out})
        _show(screen, [] if virtual else plan.datasets, plan.notes)
        screen.print(f"{_of_parts(plan)} would {_go(virtual)} {printable(out)}")
        return FINE
    if virtual:
        view = run.view(out, overwrite=force)
        screen.document({"format": "hdf5", **view.as_dict(), "path": out})
        _warn_of_views(screen, view.files)
        screen.print(f"{_said(view)} are shown by {printable(out)}")
        return FINE
    size = sum(record.bytes for record in run.parts())
    with bar_for(screen, "merging parts", size) as bar:
        made = run.consolidate(out, order=order, overwrite=force, progress=bar.advance)
    screen.document(_facts(made) | {"path": out})
    _show(screen, [], made.notes)
    text = f"{_of_parts(made)}, {format_bytes(made.bytes)}, every checksum right, read again"
    screen.print(f"{text}: {printable(out)} (manifest {made.manifest})")
    return FINE


def _said(made: MergedHDF5) -> str:
    datasets = counted(len(made.datasets), "dataset")
    rows = f"{counted(made.rows, 'row')} in {datasets}" if made.rows is not None else datasets
    return f"{rows} of {counted(made.files, 'file')}"


def _sources(made: MergedHDF5) -> str:
    return "its source" if made.files == 1 else "its sources"


def _go(virtual: bool) -> str:
    return "be shown by" if virtual else "go to"


def _of_parts(made: Consolidated) -> str:
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
    if len(notes) > _SHOWN_NOTES:
        screen.print(f"… and {counted(len(notes) - _SHOWN_NOTES, 'more note')} (--json lists all)")


def _warn_of_views(screen: Screen, files: int) -> None:
    screen.print(f"Whoever reads all of it has {counted(files, 'file')} open; where one cannot be opened, HDF5 reads")
    screen.print("fill values without a word. `holdfast verify` looks for all of them.")


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--out", required=True, metavar="OUT", help="The file to write.")
@click.option("--order", type=click.Choice(["exact", "any"]), help="HDF5: any: whole chunks first.  [default: exact]")
@click.option("--virtual", is_flag=True, help="HDF5: OUT shows the rows of the FILEs and holds none.")
@click.option(
    "--attributes",
    type=click.Choice(["same", "first", "error"]),
    help="HDF5: of those that differ, keep none, keep the first FILE's, or refuse.  [default: same]",
)
@click.option("--codec", type=click.Choice(["none", "gzip", "lzf", "zstd"]), help="HDF5: pack all chunks of OUT so.")
@click.option("--compression", type=COMPRESSION, help="TFRecord: how to pack OUT.  [default: by its name: .gz, .zlib]")
@click.option("-f", "--force", is_flag=True, help="Replace OUT if it is there.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be done; write nothing.")
def merge(
    screen: Screen,
    files: tuple[str, ...],
    out: str,
    order: Any,
    virtual: bool,
    attributes: Any,
    codec: Any,
    compression: Any,
    force: bool,
    dry_run: bool,
) -> int:
    runs = [file for file in files if is_run(file)]
    if runs and len(files) > 1:
        raise _usage(f"{runs[0]!r} was made by hold.write: merge it alone, or name its files in {runs[0]}/parts")
    options: dict[str, Any] = {"order": order or "exact", "virtual": virtual, "force": force, "dry_run": dry_run}
    if runs:
        _refuse(compression is not None, "--compression is for TFRecord files that are merged by name")
        _refuse(attributes is not None, "--attributes is for HDF5 files that are merged by name")
        _refuse(codec is not None, "--codec is for HDF5 files that are merged by name")
        return merge_run(screen, runs[0], out, **options)
    paths = expand_data(files)
    hdf5 = [path for path in paths if is_hdf5(path)]
    if hdf5 and len(hdf5) < len(paths):
        other = next(path for path in paths if path not in hdf5)
        raise _usage(
            f"expected files of one format: {hdf5[0]} is HDF5, {other} is not; `holdfast convert` makes them one"
        )
    if hdf5:
        _refuse(compression is not None, "--compression is for TFRecord: --codec is for HDF5")
        _refuse(virtual and codec is not None, "--codec is for rows that are copied: --virtual copies none")
        _check_name(out, HDF5_SUFFIXES, "HDF5")
        return merge_hdf5_files(screen, paths, out, attributes=attributes or "same", codec=codec, **options)
    for_hdf5 = virtual or order is not None or attributes is not None or codec is not None
    _refuse(for_hdf5, "--order, --virtual, --attributes and --codec are for HDF5, these are TFRecord files")
    if out.lower().endswith(HDF5_SUFFIXES):
        raise _usage(f"{out!r} is a name for HDF5, these are TFRecord files; `holdfast convert` makes one of the other")
    return _merge_tfrecord(screen, paths, out, compression, force, dry_run)


def _usage(text: str) -> click.UsageError:
    return click.UsageError(text, click.get_current_context(silent=True))


def _refuse(wrong: bool, text: str) -> None:
    if wrong:
        raise _usage(text)


def _check_name(out: str, names: tuple[str, ...], kind: str) -> None:
    if ".tfrec" in os.path.basename(out).lower():
        text = f"{out!r} is a name for TFRecord, these are {kind} files: name it like *{names[0]}"
        raise _usage(f"{text}, or let `holdfast convert` make one of the other")


def _merge_tfrecord(screen: Screen, paths: list[str], out: str, compression: Any, force: bool, dry_run: bool) -> int:
    if dry_run:
        size = total_bytes(paths)
        screen.document({"files": paths, "bytes": size, "out": out})
        screen.print(f"{counted(len(paths), 'file')}, {format_bytes(size)}, would go to {printable(out)}")
        return FINE
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
