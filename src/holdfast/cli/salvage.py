"""Copy the intact records of a corrupt file to a new one.

Reads on after every corruption: flipped bits, zeroed pages, truncation,
foreign bytes. Intact data goes to OUT in its order; nothing is invented, and
IN is never modified. OUT appears when it is complete, or not at all.

TFRecord: OUT is compressed if its name ends in .gz or .zlib. A record may
contain TFRecords as its data, so what follows a record with a corrupt length
may be that data. Such records are left out, and their count and bytes are
listed, unless what follows them settles the question. If no record of IN
contains TFRecords, --keep-doubtful keeps them too. If bytes are missing from
such a record, it can look like another file with another corruption, and is
salvaged as that.

HDF5: copies all groups, datasets, attributes and links that can be read. IN
is read as if its writer had closed it, in separate processes: an object that
crashes the HDF5 library is left out, the others are kept. Chunks are decoded
to check them and copied as they are, so no value changes with any filter. A
dataset keeps its shape; an unreadable chunk stays unwritten, and the
attribute holdfast_lost_rows lists the ranges of rows with lost values. Rows
that may have changed undetectably are kept and listed in
holdfast_doubtful_rows. References point to the objects in OUT. Objects whose
group cannot be read are searched for in the bytes of the file and go to the
group lost+found. A file that another process is writing is rejected.

Several INs (also globs and directories) go to a directory under their own
names: OUT must be an existing directory or end in /. A file that cannot be
salvaged does not affect the others. With --only-corrupt, only files in which
verify finds a problem are salvaged.

Examples:

  holdfast salvage train-00007.tfrecord train-00007.salvaged.tfrecord
  holdfast salvage broken.h5 rescued.h5
  holdfast salvage data/ rescued/ --only-corrupt

With --json:

  {"records_kept": 4710, "records_lost_at_least": 1, "bytes_lost": 1733,
   "records_doubtful": 0,
   "problems": [{"offset": 1234, "record": 17, "reason": "bad data CRC"}]}

The number of records in a corrupt range is not always known, so the loss is a
lower bound. A record of which only the length is corrupt is kept.

For HDF5:

  {"format": "hdf5", "objects_kept": 7, "datasets": [{"dataset": "/x",
   "rows": 1000, "rows_lost": 100, "lost": [[200, 300]], "rows_doubtful": 0,
   "doubtful": []}], "problems": [{"dataset": "/x", "chunk": [200, 0],
   "offset": 71234, "reason": "…"}], "notes": []}

  lost      ranges of rows [from, to) with lost values
  doubtful  ranges of rows that are kept but may be wrong
  notes     what cannot be known: data and metadata without checksums

For a directory: {"files": [{"path": "a.h5", "out": "rescued/a.h5",
"problem": null, …}]}, each with the keys above unless "problem" says why
there are none; "out" is null if nothing was written.

Exit codes: 0 OUT is written, possibly without some data; 1 nothing could be
kept, and OUT is not written; 3 IN cannot be read, or OUT cannot be written or
exists. For several files, 1 takes precedence over 3.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from .._util.text import counted, format_bytes, printable
from ..data.formats.tfrecord.salvage import Salvaged, salvage_file
from ..errors import HoldfastError
from .app import FINE, FOUND, command, describe, usage_error, worst_code
from .console import Screen, bar_for, show_rest
from .parallel_jobs import total_bytes
from .path_arguments import expand, format_of
from .tables import show_problems
from .verify import verify_alone

if TYPE_CHECKING:  # h5py is slow to import, and TFRecord files do not need it
    from ..data.formats.hdf5.salvage import SalvagedHDF5

    AnySalvaged = Salvaged | SalvagedHDF5

_SHOWN_RANGES = 6
_SHOWN_FILES = 10


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="IN...")
@click.argument("out", metavar="OUT")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@click.option("--keep-doubtful", is_flag=True, help="TFRecord: keep records that may be data of a corrupt one.")
@click.option("--only-corrupt", is_flag=True, help="Verify each IN first, and leave out intact files.")
@click.option("--live", is_flag=True, help="HDF5: accept a file that another process is writing.")
def salvage(
    screen: Screen,
    files: tuple[str, ...],
    out: str,
    force: bool,
    keep_doubtful: bool,
    only_corrupt: bool,
    live: bool,
) -> int:
    work = partial(_salvage, force=force, keep_doubtful=keep_doubtful, live=live)
    paths = expand(files)
    if only_corrupt:
        paths = [path for path in paths if not verify_alone(path, None).ok]
        if not paths:
            screen.document({"files": []})
            screen.print("nothing was corrupt: nothing was written")
            return FINE
    if out.endswith(os.sep) or os.path.isdir(out):
        return _salvage_many(screen, work, paths, out)
    if len(paths) > 1:
        files_given = counted(len(paths), "file")
        raise usage_error(f"expected a directory as OUT for {files_given}, got {out!r}; end it with / to create it")
    with bar_for(screen, "salvaging", total_bytes(paths)) as bar:
        found = work(paths[0], out, progress=bar.advance)
    screen.document(found.as_dict())
    _show(screen, found, out, keep_doubtful)
    return _code(found)


def _salvage(
    file: str, out: str, progress: Callable[[int], None], *, force: bool, keep_doubtful: bool, live: bool
) -> AnySalvaged:
    if format_of(file) == "hdf5":
        from ..data.formats.hdf5.salvage import salvage_hdf5

        return salvage_hdf5(file, out, overwrite=force, live=live, progress=progress)
    return salvage_file(file, out, overwrite=force, keep_empty=False, keep_doubtful=keep_doubtful, progress=progress)


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
        what = (
            "kept" if keep_doubtful else "left out; if no record of this file contains TFRecords, use --keep-doubtful"
        )
        screen.print(f"{records} may be data of corrupt records: {what}")


# ---- several files


def _salvage_many(screen: Screen, work: Callable[..., AnySalvaged], paths: list[str], folder: str) -> int:
    targets: dict[str, str] = {}
    for path in paths:
        other = targets.setdefault(os.path.join(folder, os.path.basename(path)), path)
        if other != path:
            raise usage_error(f"{other} and {path} have the same name: salvage them to two directories")
    os.makedirs(folder, exist_ok=True)
    done: list[tuple[dict[str, object], str, int]] = []
    kept: list[AnySalvaged] = []
    with bar_for(screen, f"salvaging {counted(len(paths), 'file')}", total_bytes(paths)) as bar:
        for out, path in targets.items():
            facts: dict[str, object] = {"path": path, "out": None, "problem": None}
            try:
                found = work(path, out, progress=bar.advance)
            except (HoldfastError, OSError) as error:
                message, code = describe(error)
                facts["problem"] = message
                done.append((facts, message.removeprefix(f"{path}: "), code))
                continue
            kept.append(found)
            facts["out"] = out if _code(found) == FINE else None
            summary = _summary(found, out) if isinstance(found, Salvaged) else _hdf5_summary(found, out)
            done.append((facts | found.as_dict(), summary, _code(found)))
    screen.document({"files": [facts for facts, _, _ in done]})
    shown = done if len(done) <= _SHOWN_FILES else [one for one in done if one[0]["problem"] or one[0]["problems"]]
    for facts, summary, _ in shown[:_SHOWN_FILES]:
        screen.print(printable(f"{facts['path']}: {summary}"))
    show_rest(screen, len(done) - len(shown[:_SHOWN_FILES]), "file")
    screen.print(_totals(len(paths), kept))
    return worst_code(code for _, _, code in done)


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
    if not found.problems and not found.records_kept:
        return f"nothing was corrupt, but the file has no records: {out} is empty too"
    if not found.problems:
        return f"nothing was corrupt: kept all {kept} in {out}"
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
        return f"no dataset could be kept; {out} has only groups and attributes"
    kept = f"{counted(len(found.datasets), 'dataset')} in {out}"
    if not found.problems:
        return f"nothing was corrupt: kept all {kept}"
    lost = f"; {counted(found.rows_lost, 'row')} lost" if found.rows_lost else "; none of their rows are lost"
    doubtful = f", {counted(found.rows_doubtful, 'row')} doubtful" if found.rows_doubtful else ""
    return f"kept {kept}{lost}{doubtful}"
