"""Copy the intact records of a corrupt file to a new one.

Reads on after every corruption: flipped bits, zeroed pages, truncation,
foreign bytes. Intact data goes to OUT in its order; nothing is invented, and
IN is never modified. OUT appears when it is complete, or not at all. A tar is
rejected: it has no checksums that would tell what is intact.

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

Several INs (also globs and directories) go to a directory: OUT must be an
existing directory or end in /. Files of a directory keep their path below it,
those of a glob the path below its first directory without a wildcard, others
their name. A file that cannot be salvaged does not affect the others. With
--only-corrupt, only files in which verify finds a problem are salvaged.

With --in-place there is no OUT: a corrupt IN is replaced by what could be
kept, with the same mode and compression, and stays beside it as the backup
IN.corrupt (or IN.corrupt.1, …). A kill leaves the old file, or both. Intact
files are not touched. A link, a file with other hard links, one that is being
written, and a part of a dataset directory are rejected.

Examples:

  holdfast salvage train-00007.tfrecord train-00007.salvaged.tfrecord
  holdfast salvage broken.h5 rescued.h5
  holdfast salvage data/ rescued/ --only-corrupt
  holdfast salvage --in-place data/

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
"backup": null, "problem": null, …}]}, each with the keys above unless
"problem" says why there are none; "out" is null if nothing was written, and
"backup" the name of the old file with --in-place.

Exit codes: 0 OUT is written, possibly without some data; 1 nothing could be
kept, and OUT is not written; 3 IN cannot be read, or OUT cannot be written or
exists. For several files, 1 takes precedence over 3.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .._native.checksum import crc32c_of_file
from .._util.atomic import FileStamp, replace_keeping
from .._util.text import counted, format_bytes, printable
from ..data.formats.tfrecord.manifest import FileEntry, renew_in_manifest
from ..data.formats.tfrecord.salvage import Salvaged, salvage_file
from ..data.formats.tfrecord.source import InflateSource, open_source
from ..data.formats.tfrecord.writer import PackWith
from ..errors import CorruptError, FormatError, HoldfastError, WriteError
from ..procfs.locks import writers_of
from .app import FINE, FOUND, command, describe, usage_error, worst_code
from .console import Screen, bar_for, show_rest
from .parallel_jobs import for_each_file, total_bytes
from .path_arguments import expand_below, format_of, is_run
from .tables import show_problems
from .verify import verify_alone

if TYPE_CHECKING:  # h5py is slow to import, and TFRecord files do not need it
    from ..data.formats.hdf5.salvage import SalvagedHDF5
    from .verify import AnyReport

    AnySalvaged = Salvaged | SalvagedHDF5

_SHOWN_RANGES = 6
_SHOWN_FILES = 10


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="IN... OUT")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@click.option("--keep-doubtful", is_flag=True, help="TFRecord: keep records that may be data of a corrupt one.")
@click.option("--only-corrupt", is_flag=True, help="Verify each IN first, and leave out intact files.")
@click.option("--in-place", is_flag=True, help="Replace each corrupt IN, and keep it as IN.corrupt; without OUT.")
@click.option("--live", is_flag=True, help="HDF5: accept a file that another process is writing.")
def salvage(
    screen: Screen,
    files: tuple[str, ...],
    force: bool,
    keep_doubtful: bool,
    only_corrupt: bool,
    in_place: bool,
    live: bool,
) -> int:
    if in_place and (force or live):
        raise usage_error(f"expected --in-place without {'--force' if force else '--live'}: it keeps what it replaces")
    if not in_place and len(files) < 2:
        raise usage_error(f"expected IN and OUT, got {files[0]!r} alone; --in-place needs no OUT")
    work = partial(_salvage, overwrite=force, keep_doubtful=keep_doubtful, live=live)
    out = "" if in_place else files[-1]
    names = expand_below(files if in_place else files[:-1])
    if only_corrupt or in_place:
        doing = f"verifying {counted(len(names), 'file')}"
        reports = for_each_file(_verify, list(names), 1, screen, doing)
        names = {report.path: names[report.path] for report in reports if not report.ok}
        if not names:
            screen.document({"files": []})
            screen.print("nothing was corrupt: nothing was written")
            return FINE
    if in_place:
        return _salvage_many(screen, partial(_replace, work), {path: path for path in names})
    if out.endswith(os.sep) or os.path.isdir(out):
        return _salvage_many(screen, lambda *given: (work(*given), None), _targets(names, out))
    if len(names) > 1:
        files_given = counted(len(names), "file")
        raise usage_error(f"expected a directory as OUT for {files_given}, got {out!r}; end it with / to create it")
    [path] = names
    with bar_for(screen, "salvaging", total_bytes([path])) as bar:
        found = work(path, out, bar.advance)
    screen.document(found.as_dict())
    _show(screen, found, out, keep_doubtful)
    return _code(found)


def _verify(file: str, /, *, progress: Callable[[int], None] | None) -> AnyReport:
    return verify_alone(file, progress)


def _salvage(
    file: str,
    out: str,
    progress: Callable[[int], None],
    *,
    overwrite: bool,
    keep_doubtful: bool,
    live: bool,
    compression: PackWith = "auto",
) -> AnySalvaged:
    match format_of(file):
        case "hdf5":
            from ..data.formats.hdf5.salvage import salvage_hdf5

            return salvage_hdf5(file, out, overwrite=overwrite, live=live, progress=progress)
        case "tar":
            hint = "Copy it again: a tar has no checksums that would tell what is intact"
            raise FormatError(file, None, None, "expected TFRecord or HDF5 to salvage, this is a tar", hint)
    return salvage_file(
        file,
        out,
        compression=compression,
        overwrite=overwrite,
        keep_empty=False,
        keep_doubtful=keep_doubtful,
        progress=progress,
    )


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


def _targets(names: dict[str, str], folder: str) -> dict[str, str]:
    """Returns the target of each file: its path in the folder."""
    sources: dict[str, str] = {}
    for path, name in names.items():
        other = sources.setdefault(os.path.normpath(os.path.join(folder, name)), path)
        if other != path:
            raise usage_error(f"{other} and {path} have the same name: salvage them to two directories")
    return {path: os.path.join(folder, name) for path, name in names.items()}


def _salvage_many(screen: Screen, work: Callable[..., tuple[AnySalvaged, str | None]], targets: dict[str, str]) -> int:
    """`work` returns what it salvaged, and the backup of the file that it replaced."""
    done: list[tuple[dict[str, object], str, int]] = []
    kept: list[AnySalvaged] = []
    with bar_for(screen, f"salvaging {counted(len(targets), 'file')}", total_bytes(list(targets))) as bar:
        for path, out in targets.items():
            facts: dict[str, object] = {"path": path, "out": None, "backup": None, "problem": None}
            try:
                os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
                found, backup = work(path, out, bar.advance)
            except (HoldfastError, OSError) as error:
                message, code = describe(error)
                facts["problem"] = message
                done.append((facts, message.removeprefix(f"{path}: "), code))
                continue
            kept.append(found)
            facts |= {"out": out if _code(found) == FINE else None, "backup": backup}
            summary = _summary(found, out) if isinstance(found, Salvaged) else _hdf5_summary(found, out)
            summary += f"; the corrupt file is {backup}" if backup else ""
            done.append((facts | found.as_dict(), summary, _code(found)))
    screen.document({"files": [facts for facts, _, _ in done]})
    shown = done
    if len(done) > _SHOWN_FILES:  # those without OUT first, and no intact ones
        shown = sorted((one for one in done if one[2] or one[0]["problems"]), key=lambda one: -one[2])
    for facts, summary, _ in shown[:_SHOWN_FILES]:
        screen.print(printable(f"{facts['path']}: {summary}"))
    show_rest(screen, len(done) - len(shown[:_SHOWN_FILES]), "file")
    screen.print(_totals(len(targets), kept))
    return worst_code(code for _, _, code in done)


# ---- in place


def _replace(
    salvage: Callable[..., AnySalvaged], file: str, _: str, progress: Callable[[int], None]
) -> tuple[AnySalvaged, str | None]:
    target = Path(file)
    stamp = FileStamp.of(file)
    _check_replaceable(target)
    new = target.with_name(f".{target.name}.salvaged")  # hidden, so never data; a later run replaces one that is left
    try:
        found = salvage(file, str(new), progress, overwrite=True, compression=_compression_of(file))
        if not found.problems:
            reason = "what is in the file is intact, so it was not touched; `holdfast verify` says what is missing"
            raise CorruptError(file, None, None, reason)
        if _code(found) != FINE:
            return found, None
        _copy_owner(target, new)
        if isinstance(found, Salvaged):  # before it is replaced: a kill leaves a file that verify calls corrupt
            with open(new, "rb") as opened:
                crc, size = crc32c_of_file(opened.fileno())
            renew_in_manifest(FileEntry(file, found.records_kept, size, crc))
        return found, str(replace_keeping(new, target, stamp))
    finally:
        new.unlink(missing_ok=True)


def _check_replaceable(target: Path) -> None:
    folder = target.absolute().parent
    if target.is_symlink():
        raise WriteError(f"{target}: expected a file to replace, this is a link; give {target.resolve()}")
    if folder.name == "parts" and is_run(str(folder.parent)):
        raise WriteError(f"{target}: {folder.parent.name} records the checksums of its parts; salvage it to a new file")
    if writers := writers_of(target):
        who = f"process {writers[0].pid} ({writers[0].command})"
        raise WriteError(f"{target}: {who} has it open for writing; wait until it is closed")
    info = target.lstat()
    beside = target.parent.glob(f"{glob.escape(target.name)}.corrupt*")
    backups = sum(os.path.samestat(one.lstat(), info) for one in beside)  # left by a run that was killed
    if others := info.st_nlink - 1 - backups:
        reason = f"it has {counted(others, 'other hard link')}, which would keep the corrupt data"
        raise WriteError(f"{target}: {reason}; salvage it to a new file")


def _compression_of(file: str) -> PackWith:
    if format_of(file) != "tfrecord":
        return "none"
    with open_source(file) as source:
        return source.compression if isinstance(source, InflateSource) else "none"


def _copy_owner(old: Path, new: Path) -> None:
    info = old.stat()
    with suppress(OSError):  # only root may give a file away
        os.chown(new, info.st_uid, info.st_gid)
    os.chmod(new, stat.S_IMODE(info.st_mode))


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
