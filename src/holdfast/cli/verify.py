"""Check files for corruption and report where it is.

TFRecord: checks both CRCs of every record, also after a corrupt one, and the
counts and checksums in holdfast.manifest.json beside the files. Uncompressed,
GZIP and ZLIB files are recognized by their content.

HDF5: opens every object and decodes every chunk in a separate process, so
that a crash or a hang of the HDF5 library becomes a finding. It also checks
whether the writer closed the file, still writes it or died; whether the file
is truncated; files it depends on (virtual datasets, external storage); and
the checksum of each chunk if FILE.json is beside FILE.h5. HDF5 has no
checksums for uncompressed and lzf data, for strings and lists of variable
length, or for the metadata of the classic format: verify lists what it could
not check and does not call such a file intact. Dangling links, which HDF5
allows, are notes.

Tar: checks every header and that samples are complete. The contents of
members have no checksums.

Dataset directory, as hold.write creates it: checks every byte of every
committed part against its record, chunk by chunk; reports missing and
duplicate parts, leftovers of dead writers, and writers at work.

Consolidated file: checks its size and checksum against the manifest of its
dataset directory, which is --run, or is looked for in the directory of FILE.

An intact file without records (samples, rows), or with at most half or at
least twice as many of them, or as many bytes, as the files beside it, is named
as suspicious; the exit code stays 0.

All files are checked before the report is printed; nothing is written.

FILE is a path, a glob (quote it for very many files; ** matches nested
directories), a dataset directory, or a directory whose data files and dataset
directories are checked, at any depth. A file that is given twice, under any
name, is checked once, and a note says so.

Examples:

  holdfast verify 'data/train-*.tfrecord' && python train.py
  holdfast verify run.h5
  holdfast verify run.hold

With --json:

  {"ok": false, "files": [{"path": "data/train-00000.tfrecord", "ok": false,
   "records": 4711, "bytes": 8123456, "problems": [{"offset": 1234,
   "record": 17, "reason": "bad data CRC"}]},
   {"path": "run.h5", "ok": false, "format": "hdf5", "datasets": 3,
   "chunks": 40, "bytes": 812345, "problems": [{"dataset": "/train/x",
   "chunk": [200, 0], "offset": 71234, "reason": "cannot be read: …"}],
   "notes": [], "unchecked": []}], "suspicious": []}

  records   the number of intact records
  offset    in the file, or in its decompressed content
  record    the record number, from 0; null if it concerns the whole file
  dataset   the path of an object in the file; null if it concerns the file
  chunk     the position of the chunk in the dataset, or null
  notes     not corruption, but worth knowing: what could not be checked,
            dangling links, types that h5py cannot convert
  unchecked the notes about what could not be checked
  suspicious   notes on intact files that are empty, or much smaller or larger
            than the files beside them

For a tar and a dataset directory:

  {"path": "a.tar", "ok": true, "format": "tar", "samples": 100,
   "bytes": 81920, "problems": [], "notes": ["tar has no checksums of …"]}
  {"path": "run.hold", "ok": false, "format": "run", "parts": 4, "rows": 4711,
   "bytes": 812345, "problems": [{"path": "run.hold/parts/rank3.0.h5",
   "reason": "the checksum of the chunk is wrong", "dataset": "emb",
   "chunk": 7, "offset": 71234}], "leftovers": [], "at_work": []}

Exit codes: 0 no corruption was found; 1 a file is corrupt, unfinished or
differs from its manifest; 3 a file cannot be read (and none is corrupt).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .._util.text import counted, format_bytes, printable
from ..data.file_tools.parallel_files import total_bytes
from ..data.file_tools.verify import VerifiedRun
from ..data.file_tools.verify import verify as verify_files
from ..data.formats.base import VerifiedFile
from ..data.inputs import expand_once, size_of_run
from .app import FOUND, NO_ACCESS, command, jobs_option, worst_code
from .console import Screen, bar_for, show_repeated, show_rest
from .tables import number, show_problems

if TYPE_CHECKING:  # h5py is slow to import, and TFRecord files do not need it
    from ..data.writer.verify import Problem as RunProblem

_SHOWN_FILES = 20
_SHOWN_PROBLEMS = 8
_SHOWN_NOTES = 20


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--run", "source", metavar="RUN", help="The dataset directory that FILEs were consolidated from.")
@jobs_option
def verify(screen: Screen, files: tuple[str, ...], source: str | None, jobs: int) -> int:
    paths = expand_once(files)
    counts = [(len(paths.files), "file"), (len(paths.runs), "dataset")]
    doing = f"verifying {' and '.join(counted(count, what) for count, what in counts if count)}"
    with bar_for(screen, doing, total_bytes(paths.files) + sum(map(size_of_run, paths.runs))) as bar:
        found = verify_files(paths, run=source, jobs=jobs, progress=bar.advance)
    screen.document(found.as_dict())
    reports, runs, odd = found.files, found.runs, found.suspicious
    bad = [report for report in reports if not report.ok]
    for report in bad[:_SHOWN_FILES]:
        _show(screen, report)
    if len(bad) > _SHOWN_FILES:
        show_rest(screen, len(bad) - _SHOWN_FILES, "file")
        screen.print()
    for run in runs:
        if not run.ok:
            _show_run(screen, run)
    for hint in dict.fromkeys(report.hint.replace(report.path, "FILE") for report in bad if report.hint):
        screen.print(f"{hint}.")
    _show_salvage(screen, files, sum("holdfast salvage" in report.hint for report in bad))
    _show_notes(screen, reports)
    for note in odd[:_SHOWN_NOTES]:
        screen.print(f"Suspicious: {printable(note)}.")
    show_rest(screen, len(odd) - _SHOWN_NOTES, "note")
    show_repeated(screen, found.repeated, "checked")
    for run in runs:
        screen.print(_run_summary(run))
    if reports:
        screen.print(_summary(reports, bad))
    readable = [one.readable for one in reports if not one.ok] + [run.readable for run in runs if not run.ok]
    return worst_code(FOUND if one else NO_ACCESS for one in readable)


def _show(screen: Screen, report: VerifiedFile) -> None:
    screen.print(screen.styled(report.path, "bold red"))
    show_problems(screen, report.problems, inline=report.content[1] == "sample")


def _show_salvage(screen: Screen, files: Sequence[str], count: int) -> None:
    """Shows the command for many corrupt files, or for a folder, as it was given."""
    folders = [shlex.quote(os.path.join(file, "")) for file in files if os.path.isdir(file)]
    if count > 1 or (count and folders):
        given = printable(" ".join(folders)) or "FILE..."
        screen.print(f"`holdfast salvage {given} OUT/ --only-corrupt` does so for all corrupt files;")
        screen.print(f"`holdfast salvage {given} --in-place` replaces them, and keeps each as FILE.corrupt.")


def _show_notes(screen: Screen, reports: list[VerifiedFile]) -> None:
    """Prints each note once, with its files unless it concerns all of them."""
    files: dict[str, list[str]] = {}
    for report in reports:
        for note in report.notes:
            files.setdefault(note, []).append(report.path)
    for note, paths in list(files.items())[:_SHOWN_NOTES]:
        whose = paths[0] if len(paths) == 1 else counted(len(paths), "file")
        screen.print(f"{printable(f'{whose}: ' if len(paths) < len(reports) else '')}{printable(note)}.")
    show_rest(screen, len(files) - _SHOWN_NOTES, "note")


def _summary(reports: list[VerifiedFile], bad: list[VerifiedFile]) -> str:
    if not bad:
        size = format_bytes(sum(report.bytes for report in reports))
        counts: dict[str, int] = {}
        for count, unit in (report.summed for report in reports):
            counts[unit] = counts.get(unit, 0) + count
        contents = [counted(count, unit) for unit, count in counts.items()]
        blind = sum(bool(report.unchecked) for report in reports)
        what = "it" if blind == len(reports) else counted(blind, "file")
        verdict = f"no corruption found, but not all of {what} could be checked" if blind else "all intact"
        return f"{counted(len(reports), 'file')}, {', '.join(contents)}, {size}: {verdict}"
    unread = sum(not report.readable for report in bad)
    parts = [f"{len(bad) - unread:,} of {counted(len(reports), 'file')} corrupt"] if len(bad) > unread else []
    parts += [f"{unread:,} of {counted(len(reports), 'file')} could not be read"] if unread else []
    records = [report.content[0] for report in reports if report.content[1] == "record"]
    return ", ".join(parts) + (f"; {counted(sum(records), 'record')} intact" if records and len(bad) > unread else "")


# ---- dataset directories


def _show_run(screen: Screen, report: VerifiedRun) -> None:
    """Prints what is wrong with one dataset directory."""
    problems = report.found.problems
    screen.print(screen.styled(report.path, "bold red"))
    rows = [
        (_relative_path(p, report.path), p.dataset or "", number(p.chunk), number(p.offset), p.reason) for p in problems
    ]
    if all(problem.dataset is None for problem in problems):
        for name, _, _, _, reason in rows[:_SHOWN_PROBLEMS]:
            screen.print(f"  {printable(f'{name}: {reason}' if name else reason)}")
    else:
        screen.table(["part", "dataset", ">chunk", ">at byte", "what is wrong"], rows[:_SHOWN_PROBLEMS], indent=2)
    show_rest(screen, len(rows) - _SHOWN_PROBLEMS, indent=2)
    screen.print()


def _relative_path(problem: RunProblem, run: str) -> str:
    """Returns the path relative to the dataset directory."""
    path = os.path.relpath(problem.path, run)
    return "" if path == "." else problem.path if path.startswith("..") else path


def _run_summary(report: VerifiedRun) -> str:
    found = report.found
    contents = f"{counted(found.parts, 'part')}, {counted(found.rows, 'row')}, {format_bytes(found.bytes)}"
    verdict = "all as committed" if report.ok else counted(len(found.problems), "problem")
    left = f"; {counted(len(found.leftovers), 'leftover')} of dead writers" if found.leftovers else ""
    busy = f"; {counted(len(found.at_work), 'writer')} at work" if found.at_work else ""
    return f"{printable(report.path)}: {contents}: {verdict}{left}{busy}"
