"""Every intact record of a damaged file, in a new one.

IN is read behind every damage: flipped bits, zeroed pages, cut ends, bytes
that do not belong there. What is intact goes to OUT, in its order; nothing is
invented, and IN is never touched. OUT appears when it is whole, or not at all.

TFRecord: OUT is packed if its name ends in .gz or .zlib. A record can hold
other TFRecords as its data. Behind a record whose length is destroyed, what
looks like records might be its data. Such records are left out and listed with
their count and bytes, unless they can be told by what follows them. Where no
record of IN holds TFRecords, --keep-doubtful gets them too. Bytes that were
taken out of such a record can make it look like another file with another
damage, and it is salvaged as that.

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

Many INs (also globs and folders) go to a folder, each under its own name: OUT
is a folder that is there, or a name that ends in /. A file that cannot be
salvaged does not keep the others from it.

Examples:

  holdfast salvage train-00007.tfrecord train-00007.salvaged.tfrecord
  holdfast salvage broken.h5 rescued.h5
  holdfast salvage 'data/*.tfrecord' rescued/

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

Of a folder: {"files": [{"path": "a.h5", "out": "rescued/a.h5",
"problem": null, …}]}, each with the keys above, unless "problem" says why
there are none; "out" is null where nothing was written.

Exit codes: 0 OUT is written, also where something had to be left out; 1
nothing could be kept, and OUT is not written; 3 IN cannot be read, OUT cannot
be written or is there already. Of many files: 1 goes over 3.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from .._util.text import counted, format_bytes, printable
from ..errors import HoldfastError
from ..formats.tfrecord.salvage import Salvaged, salvage_file
from .app import FINE, FOUND, NO_ACCESS, command, describe
from .console import Screen, bar_for
from .parallel_jobs import total_bytes
from .path_arguments import expand_data, is_hdf5
from .tables import show_problems

if TYPE_CHECKING:  # h5py takes a while to load: TFRecord files do without
    from ..formats.hdf5.salvage import SalvagedHDF5

    AnySalvaged = Salvaged | SalvagedHDF5

_SHOWN_RANGES = 6


@command(__doc__)
@click.argument("damaged", nargs=-1, required=True, metavar="IN...")
@click.argument("out", metavar="OUT")
@click.option("-f", "--force", is_flag=True, help="Replace OUT if it is there.")
@click.option("--keep-doubtful", is_flag=True, help="TFRecord: keep records that might be data of a damaged one.")
@click.option("--live", is_flag=True, help="HDF5: also while another process writes IN.")
def salvage(screen: Screen, damaged: tuple[str, ...], out: str, force: bool, keep_doubtful: bool, live: bool) -> int:
    work = partial(_salvage, force=force, keep_doubtful=keep_doubtful, live=live)
    paths = expand_data(damaged)
    if out.endswith(os.sep) or os.path.isdir(out):
        return _salvage_many(screen, work, paths, out)
    if len(paths) > 1:
        text = (
            f"{counted(len(paths), 'file')} go to a folder: expected one as OUT, got {out!r}; end it with / to make it"
        )
        raise click.UsageError(text, click.get_current_context(silent=True))
    with bar_for(screen, "salvaging", total_bytes(paths)) as bar:
        found = work(paths[0], out, progress=bar.advance)
    screen.document(found.as_dict())
    _show(screen, found, out, keep_doubtful)
    return _code(found)


def _salvage(
    damaged: str, out: str, progress: Callable[[int], None], *, force: bool, keep_doubtful: bool, live: bool
) -> AnySalvaged:
    if is_hdf5(damaged):
        from ..formats.hdf5.salvage import salvage_hdf5

        return salvage_hdf5(damaged, out, overwrite=force, live=live, progress=progress)
    return salvage_file(damaged, out, overwrite=force, keep_empty=False, keep_doubtful=keep_doubtful, progress=progress)


def _code(found: AnySalvaged) -> int:
    if isinstance(found, Salvaged):
        return FOUND if found.problems and not found.records_kept else FINE
    return FINE if found.objects_kept else FOUND


def _show(screen: Screen, found: AnySalvaged, out: str, keep_doubtful: bool) -> None:
    if not isinstance(found, Salvaged):
        _show_hdf5(screen, found, out)
        return
    if found.problems:
        show_problems(screen, found.problems)
    screen.print(_summary(found, printable(out)))
    if found.records_doubtful:
        records = counted(found.records_doubtful, "record")
        what = "kept" if keep_doubtful else "left out; if no record of this file holds TFRecords, use --keep-doubtful"
        screen.print(f"{records} might be data of damaged records: {what}")


# ---- many


def _salvage_many(screen: Screen, work: Callable[..., AnySalvaged], paths: list[str], folder: str) -> int:
    targets: dict[str, str] = {}
    for path in paths:
        other = targets.setdefault(os.path.join(folder, os.path.basename(path)), path)
        if other != path:
            text = f"{other} and {path} have the same name: salvage them to two folders"
            raise click.UsageError(text, click.get_current_context(silent=True))
    os.makedirs(folder, exist_ok=True)
    done: list[tuple[dict[str, object], str, int]] = []
    kept: list[AnySalvaged] = []
    with bar_for(screen, f"salvaging {counted(len(paths), 'file')}", total_bytes(paths)) as bar:
        for out, path in targets.items():
            facts: dict[str, object] = {"path": path, "out": None, "problem": None}
            try:
                found = work(path, out, progress=bar.advance)
            except (HoldfastError, OSError) as error:
                said, code = describe(error)
                facts["problem"] = said
                done.append((facts, said.removeprefix(f"{path}: "), code))
                continue
            kept.append(found)
            facts["out"] = out if _code(found) == FINE else None
            said = _summary(found, out) if isinstance(found, Salvaged) else _hdf5_summary(found, out)
            done.append((facts | found.as_dict(), said, _code(found)))
    screen.document({"files": [facts for facts, _, _ in done]})
    for facts, said, _ in done:
        screen.print(printable(f"{facts['path']}: {said}"))
    screen.print(_totals(len(paths), kept))
    codes = {code for _, _, code in done}
    return FOUND if FOUND in codes else NO_ACCESS if codes - {FINE} else FINE


def _totals(count: int, found: list[AnySalvaged]) -> str:
    records = [one for one in found if isinstance(one, Salvaged)]
    datasets = [one for one in found if not isinstance(one, Salvaged)]
    written = sum(_code(one) == FINE for one in found)
    parts = [f"{written:,} of {counted(count, 'file')} written"]
    if records:
        lost = sum(one.records_lost_at_least for one in records)
        parts.append(f"{counted(sum(one.records_kept for one in records), 'record')} kept, at least {lost:,} lost")
    if datasets:
        lost = sum(one.rows_lost for one in datasets)
        parts.append(f"{counted(sum(len(one.datasets) for one in datasets), 'dataset')} kept, {lost:,} rows lost")
    return "; ".join(parts)


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


def _show_hdf5(screen: Screen, found: SalvagedHDF5, out: str) -> None:
    if found.problems:
        show_problems(screen, found.problems)
    _show_losses(screen, found)
    if found.problems:
        for note in found.notes:
            screen.print(printable(note))
    screen.print(_hdf5_summary(found, printable(out)))


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
