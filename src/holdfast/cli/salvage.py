"""Every intact record of a damaged file, in a new one.

IN is read behind every damage: flipped bits, zeroed pages, cut ends, bytes
that do not belong there. What is intact goes to OUT, in its order; nothing is
invented, and IN is never touched. OUT appears when it is whole, or not at all.

TFRecord: OUT is packed if its name ends in .gz or .zlib. A record can hold
other TFRecords as its data. Behind a record whose length is destroyed, what
looks like records might be its data. Such records are left out and listed with
their count and bytes, unless they can be told by what follows them. Where no
record of IN holds TFRecords, --keep-doubtful gets them too.

HDF5: all groups, datasets, attributes and links that can be read. IN is read
as if its writer had closed it, and in processes of their own: an object that
crashes the HDF5 library is left out, the others are not. Chunks are decoded
to see that they are whole, and copied as they are: no value changes, whatever
the filters. A dataset keeps its shape; a chunk that cannot be read is left
unwritten, and the dataset gets an attribute holdfast_lost_rows with the ranges
of rows that have lost values. Rows that a damage may have changed in a way
that cannot be seen are kept, and stand in holdfast_doubtful_rows. References
lead to the objects in OUT. Objects whose group cannot be read are looked for
in the bytes of the file and go to the group lost+found. While another process
writes IN, it is refused.

Examples:

  holdfast salvage train-00007.tfrecord train-00007.salvaged.tfrecord
  holdfast salvage broken.h5 rescued.h5

With --json:

  {"records_kept": 4710, "records_lost_at_least": 1, "bytes_lost": 1733,
   "records_doubtful": 0,
   "problems": [{"offset": 1234, "record": 17, "reason": "bad data CRC"}]}

How many records a damaged stretch held can't always be known, so what was
lost is a lower bound. A record whose length alone was damaged is kept.

Of HDF5:

  {"format": "hdf5", "objects_kept": 7, "datasets": [{"dataset": "/x",
   "rows": 1000, "rows_lost": 100, "lost": [[200, 300]], "rows_doubtful": 0,
   "doubtful": []}], "problems": [{"dataset": "/x", "chunk": [200, 0],
   "offset": 71234, "reason": "…"}], "notes": []}

  lost      ranges of rows [from, to) that have lost values
  doubtful  ranges of rows that are kept, but may be wrong
  notes     what cannot be known: data and structure without checksums

Exit codes: 0 OUT is written, also where something had to be left out; 1
nothing could be kept, and OUT is not written; 3 IN cannot be read, OUT cannot
be written or is there already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .._base.units import format_bytes
from ..formats.tfrecord.salvage import Salvaged, salvage_file
from ..report.words import counted, printable
from .command import command
from .cores import total_bytes
from .exits import FINE, FOUND
from .flaws import show_flaws
from .kinds import is_hdf5
from .progress import bar_for
from .screen import Screen
from .wrongs import show_problems

if TYPE_CHECKING:  # h5py takes a while to load: TFRecord files do without
    from ..formats.hdf5.salvage import SalvagedHDF5

_SHOWN_RANGES = 6


@command(__doc__)
@click.argument("damaged", metavar="IN")
@click.argument("out", metavar="OUT")
@click.option("-f", "--force", is_flag=True, help="Replace OUT if it is there.")
@click.option("--keep-doubtful", is_flag=True, help="TFRecord: keep records that might be data of a damaged one.")
@click.option("--live", is_flag=True, help="HDF5: also while another process writes IN.")
def salvage(screen: Screen, damaged: str, out: str, force: bool, keep_doubtful: bool, live: bool) -> int:
    if is_hdf5(damaged):
        return _salvage_hdf5(screen, damaged, out, force, live)
    with bar_for(screen, "salvaging", total_bytes([damaged])) as bar:
        found = salvage_file(
            damaged, out, overwrite=force, keep_empty=False, keep_doubtful=keep_doubtful, progress=bar.advance
        )
    screen.document(found.as_dict())
    if found.problems:
        show_problems(screen, found.problems)
    screen.print(_summary(found, printable(out)))
    if found.records_doubtful:
        records = counted(found.records_doubtful, "record")
        what = "kept" if keep_doubtful else "left out; if no record of this file holds TFRecords, use --keep-doubtful"
        screen.print(f"{records} might be data of damaged records: {what}")
    return FOUND if found.problems and not found.records_kept else FINE


def _summary(found: Salvaged, out: str) -> str:
    kept = counted(found.records_kept, "record")
    lost = f"{counted(found.records_lost_at_least, 'record')} ({format_bytes(found.bytes_lost)})"
    if not found.problems:
        return f"nothing was damaged: kept all {kept} in {out}"
    if not found.records_kept:
        return f"nothing could be kept, {out} was not written; lost at least {lost}"
    if not found.records_lost_at_least and not found.bytes_lost:
        return f"kept all {kept} in {out}"
    return f"kept {kept} in {out}; lost at least {lost}"


# ---- HDF5


def _salvage_hdf5(screen: Screen, damaged: str, out: str, force: bool, live: bool) -> int:
    from ..formats.hdf5.salvage import salvage_hdf5

    with bar_for(screen, "salvaging", total_bytes([damaged])) as bar:
        found = salvage_hdf5(damaged, out, overwrite=force, live=live, progress=bar.advance)
    screen.document(found.as_dict())
    if found.problems:
        show_flaws(screen, found.problems)
    _show_losses(screen, found)
    if found.problems:
        for note in found.notes:
            screen.print(printable(note))
    screen.print(_hdf5_summary(found, printable(out)))
    return FINE if found.objects_kept else FOUND


def _show_losses(screen: Screen, found: SalvagedHDF5) -> None:
    for what in ("lost", "doubtful"):
        rows = [
            (dataset.path, f"{getattr(dataset, f'rows_{what}'):,} of {dataset.rows:,}", _ranges(ranges))
            for dataset in found.datasets
            if (ranges := getattr(dataset, what))
        ]
        if rows:
            screen.table(["dataset", f">rows {what}", "which"], rows, indent=2)
            screen.print()


def _ranges(lost: list[tuple[int, int]]) -> str:
    shown = ", ".join(f"{low:,}–{high - 1:,}" if high - low > 1 else f"{low:,}" for low, high in lost[:_SHOWN_RANGES])
    return shown + (f" … ({len(lost)} ranges)" if len(lost) > _SHOWN_RANGES else "")


def _hdf5_summary(found: SalvagedHDF5, out: str) -> str:
    if not found.objects_kept:
        return f"nothing could be kept, {out} was not written"
    if not found.datasets and found.problems:
        return f"no dataset could be kept; {out} has groups and attributes alone"
    kept = f"{counted(len(found.datasets), 'dataset')} in {out}"
    if not found.problems:
        return f"nothing was damaged: kept all {kept}"
    lost = f"; {counted(found.rows_lost, 'row')} lost" if found.rows_lost else "; no rows of theirs are lost"
    doubtful = f", {counted(found.rows_doubtful, 'row')} in doubt" if found.rows_doubtful else ""
    return f"kept {kept}{lost}{doubtful}"
