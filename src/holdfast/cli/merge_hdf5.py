"""`holdfast merge` of HDF5 files, and of a folder made by hold.write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._base.units import format_bytes
from ..report.words import counted, printable
from .cores import total_bytes
from .exits import FINE
from .progress import bar_for
from .screen import Screen

if TYPE_CHECKING:  # h5py takes a while to load: TFRecord files do without
    from ..formats.hdf5.merge.merge import MergedDataset, MergedHDF5
    from ..write.consolidate import Consolidated

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
    from ..formats.hdf5.merge.merge import merge_hdf5, plan_hdf5

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
    from ..write.out import write

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
