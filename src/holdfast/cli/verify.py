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
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .._util.text import counted, format_bytes, printable
from ..data.formats.tar.verify import TarReport, verify_tar
from ..data.formats.tfrecord.verify import TFRecordReport, verify_file
from ..data.formats.verify import Problem
from ..errors import FormatError, HoldfastError, InputError, MissingFileError
from .app import FOUND, NO_ACCESS, command, worst_code
from .console import Screen, bar_for, show_repeated, show_rest
from .parallel_jobs import for_each_file, jobs_option
from .path_arguments import expand_once, format_of, is_run, runs_in, size_of_run
from .tables import number, show_problems

if TYPE_CHECKING:  # h5py is slow to import, and TFRecord files do not need it
    from ..data.formats.hdf5.verify import HDF5Report
    from ..data.writer.verify import Problem as RunProblem
    from ..data.writer.verify import Report

    AnyReport = TFRecordReport | HDF5Report | TarReport

_SHOWN_FILES = 20
_SHOWN_PROBLEMS = 8
_SHOWN_NOTES = 20


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--run", "source", metavar="RUN", help="The dataset directory that FILEs were consolidated from.")
@jobs_option
def verify(screen: Screen, files: tuple[str, ...], source: str | None, jobs: int) -> int:
    if source is not None and not is_run(source):
        raise InputError(f"{source}: expected a dataset directory of hold.write as --run")
    folders, paths, repeated = expand_once(files)
    runs = _verify_runs(screen, folders)
    doing = f"verifying {counted(len(paths), 'file')}"
    reports = for_each_file(partial(_verify, source), paths, jobs, screen, doing) if paths else []
    every: list[AnyReport | RunReport] = [*reports, *runs]
    odd = suspicious(reports)
    facts = [one.as_dict() for one in every]
    screen.document({"ok": all(one.ok for one in every), "files": facts, "suspicious": odd})
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
    show_repeated(screen, repeated, "checked")
    for run in runs:
        screen.print(_run_summary(run))
    if reports:
        screen.print(_summary(reports, bad))
    return worst_code(FOUND if one.readable else NO_ACCESS for one in every if not one.ok)


def _verify_runs(screen: Screen, folders: list[str]) -> list[RunReport]:
    with bar_for(screen, f"verifying {counted(len(folders), 'dataset')}", sum(map(size_of_run, folders))) as bar:
        return [_verify_run(folder, bar.advance) for folder in folders]


def _verify(run: str | None, file: str, /, *, progress: Callable[[int], None] | None) -> AnyReport:
    report = verify_alone(file, progress)
    if not report.readable or isinstance(report, TarReport):
        return report
    problem = _check_manifest(file, run)
    if problem is None:
        return report
    if problem:
        offset = 0 if isinstance(report, TFRecordReport) else None
        return replace(report, problems=[*report.problems, Problem(offset, None, problem)])
    notes = [note for note in report.notes if note not in report.unchecked]  # the file checksum covers these
    return replace(report, notes=notes, unchecked=())


def verify_alone(file: str, progress: Callable[[int], None] | None) -> AnyReport:
    try:
        kind = format_of(file)
    except FormatError as error:
        return TFRecordReport(file, problems=[Problem(None, None, error.reason)], hint=error.hint)
    if kind == "hdf5":
        from ..data.formats.hdf5.verify import verify_hdf5

        return verify_hdf5(file, progress)
    return verify_tar(file, progress) if kind == "tar" else verify_file(file, progress)


def _show(screen: Screen, report: AnyReport) -> None:
    screen.print(screen.styled(report.path, "bold red"))
    show_problems(screen, report.problems, inline=isinstance(report, TarReport))


def _show_salvage(screen: Screen, files: Sequence[str], count: int) -> None:
    """Shows the command for many corrupt files, or for a folder, as it was given."""
    folders = [shlex.quote(os.path.join(file, "")) for file in files if os.path.isdir(file)]
    if count > 1 or (count and folders):
        given = printable(" ".join(folders)) or "FILE..."
        screen.print(f"`holdfast salvage {given} OUT/ --only-corrupt` does so for all corrupt files;")
        screen.print(f"`holdfast salvage {given} --in-place` replaces them, and keeps each as FILE.corrupt.")


def _show_notes(screen: Screen, reports: list[AnyReport]) -> None:
    """Prints each note once, with its files unless it concerns all of them."""
    files: dict[str, list[str]] = {}
    for report in reports:
        for note in report.notes:
            files.setdefault(note, []).append(report.path)
    for note, paths in list(files.items())[:_SHOWN_NOTES]:
        whose = paths[0] if len(paths) == 1 else counted(len(paths), "file")
        screen.print(f"{printable(f'{whose}: ' if len(paths) < len(reports) else '')}{printable(note)}.")
    show_rest(screen, len(files) - _SHOWN_NOTES, "note")


_FEWEST_SIBLINGS = 4  # for a median that means something
_FEW = 10  # one file in so many may differ; where more do, the files simply vary


def suspicious(reports: Sequence[AnyReport]) -> list[str]:
    """Returns notes on intact files that hold nothing, or at most half or at least twice as much as their siblings.

    Siblings are files of one format in one folder. Records, samples or rows are compared, and bytes.
    """
    notes = []
    siblings: dict[tuple[str, type, int], list[tuple[str, int, str]]] = {}
    for report in reports:
        if not report.ok:
            continue
        count, unit = _content(report)
        if not count:
            notes.append(f"{report.path} is intact, but has no {unit}s")
            continue
        for which, what in enumerate(((count, unit), (report.bytes, "byte"))):
            key = os.path.dirname(report.path), type(report), which
            siblings.setdefault(key, []).append((report.path, *what))
    odd: dict[str, str] = {}  # by file: its count, or else its size
    for files in siblings.values():
        middle = statistics.median(count for _, count, _ in files)
        outliers = [one for one in files if not middle / 2 < one[1] < middle * 2]
        if len(files) >= _FEWEST_SIBLINGS and len(outliers) <= max(1, len(files) // _FEW):
            more = f"the median of the {len(files):,} files beside it is {middle:,.0f}"
            for path, count, unit in outliers:
                odd.setdefault(path, f"{path} has {counted(count, unit)}, {more}")
    return [*notes, *odd.values()]


def _content(report: AnyReport) -> tuple[int, str]:
    if isinstance(report, TFRecordReport):
        return report.records, "record"
    if isinstance(report, TarReport):
        return report.samples, "sample"
    return (report.rows, "row") if report.datasets else (0, "dataset")


def _summary(reports: list[AnyReport], bad: list[AnyReport]) -> str:
    records = [report.records for report in reports if isinstance(report, TFRecordReport)]
    samples = [report.samples for report in reports if isinstance(report, TarReport)]
    datasets = [report.datasets for report in reports if not isinstance(report, (TFRecordReport, TarReport))]
    if not bad:
        size = format_bytes(sum(report.bytes for report in reports))
        kinds = [(records, "record"), (samples, "sample"), (datasets, "dataset")]
        contents = [counted(sum(counts), what) for counts, what in kinds if counts]
        blind = sum(bool(report.unchecked) for report in reports)
        what = "it" if blind == len(reports) else counted(blind, "file")
        verdict = f"no corruption found, but not all of {what} could be checked" if blind else "all intact"
        return f"{counted(len(reports), 'file')}, {', '.join(contents)}, {size}: {verdict}"
    unread = sum(not report.readable for report in bad)
    parts = [f"{len(bad) - unread:,} of {counted(len(reports), 'file')} corrupt"] if len(bad) > unread else []
    parts += [f"{unread:,} of {counted(len(reports), 'file')} could not be read"] if unread else []
    return ", ".join(parts) + (f"; {counted(sum(records), 'record')} intact" if records and len(bad) > unread else "")


# ---- dataset directories


@dataclass(slots=True)
class RunReport:
    """What is wrong with one dataset directory."""

    path: str
    found: Report
    readable: bool = True

    @property
    def ok(self) -> bool:
        return self.found.ok

    def as_dict(self) -> dict[str, object]:
        return {
            "path": self.path,
            "ok": self.ok,
            "format": "run",
            "parts": self.found.parts,
            "rows": self.found.rows,
            "bytes": self.found.bytes,
            "problems": [problem._asdict() for problem in self.found.problems],
            "leftovers": self.found.leftovers,
            "at_work": self.found.at_work,
        }


def _verify_run(path: str, progress: Callable[[float], None]) -> RunReport:
    """Verifies a dataset directory without changing it. Problems are in the report, never raised."""
    from ..data.writer.dataset_writer import DatasetWriter
    from ..data.writer.directory import read_schema
    from ..data.writer.verify import Problem, Report

    size = size_of_run(path)

    def advance(done: int, count: int) -> None:
        progress(size / count)

    try:
        return RunReport(path, DatasetWriter(Path(os.path.abspath(path)), read_schema(Path(path))).verify(advance))
    except HoldfastError as error:
        # A missing file is corruption; one that cannot be opened is not readable.
        readable = isinstance(error, MissingFileError) or not isinstance(error.__cause__, OSError)
        return RunReport(path, Report(problems=[Problem(path, str(error).removeprefix(f"{path}: "))]), readable)


def _check_manifest(file: str, run: str | None) -> str | None:
    """Compares a consolidated file with the manifest of its dataset directory.

    Returns what is wrong, "" if nothing is, or None if no manifest names the file. The manifests of `run`, if given,
    may also name the file as it was called before it was moved.
    """
    from .._native.checksum import crc32c_of_file
    from ..data.formats.parts_manifest import read_manifests

    here = os.path.dirname(os.path.abspath(file))
    for folder in runs_in(here) if run is None else [run]:
        for manifest in reversed(read_manifests(Path(folder))):
            is_moved = run is not None and os.path.basename(manifest.output) == os.path.basename(file)
            if not is_moved and os.path.realpath(manifest.output) != os.path.realpath(file):
                continue
            name = os.path.join(folder, "manifest", f"{manifest.number:06d}.json")
            size = os.path.getsize(file)
            if size != manifest.bytes:
                return f"{name} says {manifest.bytes:,} bytes, it has {size:,}"
            with open(file, "rb") as opened:
                crc, _ = crc32c_of_file(opened.fileno())
            return (
                "" if crc == manifest.crc32c else f"{name} has checksum {manifest.crc32c:08x}, the file has {crc:08x}"
            )
    if run is not None:
        return f"no manifest of {run} names it"
    return None


def _show_run(screen: Screen, report: RunReport) -> None:
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


def _run_summary(report: RunReport) -> str:
    found = report.found
    contents = f"{counted(found.parts, 'part')}, {counted(found.rows, 'row')}, {format_bytes(found.bytes)}"
    verdict = "all as committed" if report.ok else counted(len(found.problems), "problem")
    left = f"; {counted(len(found.leftovers), 'leftover')} of dead writers" if found.leftovers else ""
    busy = f"; {counted(len(found.at_work), 'writer')} at work" if found.at_work else ""
    return f"{printable(report.path)}: {contents}: {verdict}{left}{busy}"
