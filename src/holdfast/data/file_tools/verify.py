"""Defines hold.verify: checks files of every format, and dataset directories, for corruption."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..._native.checksum import crc32c_of_file
from ..._util.progress import Progress
from ..._util.text import counted
from ...errors import FormatError, HoldfastError, InputError, MissingFileError
from ..formats.base import Problem, VerifiedFile
from ..formats.parts_manifest import PartsManifest, read_manifests
from ..formats.registry import format_to_report
from ..formats.tfrecord.verify import TFRecordReport
from ..inputs import Given, expand_once, is_run, runs_in, size_of_run
from .parallel_files import for_each_file

if TYPE_CHECKING:
    from ..writer.verify import Report


@dataclass(frozen=True, slots=True)
class VerifiedRun:
    """What is wrong with one dataset directory."""

    __module__ = "holdfast"

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


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of hold.verify.

    Attributes:
        files: One for each file, in order.
        runs: One for each dataset directory.
        suspicious: Notes on intact files that are empty, or much smaller or larger than the files beside them.
        repeated: Notes on what was given more than once, and checked once.
    """

    __module__ = "holdfast"

    files: list[VerifiedFile]
    runs: list[VerifiedRun] = field(default_factory=list)
    suspicious: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no corruption was found."""
        return all(one.ok for one in self.files) and all(run.ok for run in self.runs)

    def as_dict(self) -> dict[str, object]:
        """Returns what `holdfast verify --json` prints."""
        files = [*(one.as_dict() for one in self.files), *(run.as_dict() for run in self.runs)]
        return {"ok": self.ok, "files": files, "suspicious": self.suspicious}


def verify(
    paths: Given | Iterable[Given],
    *,
    run: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Verified:
    """Checks TFRecord, HDF5 and tar files and dataset directories for corruption, as `holdfast verify` does. Problems
    are not raised, but part of the result. Nothing is written.

    Args:
        paths: A path, a glob, a folder, a dataset directory, or a list of them.
        run: The dataset directory that the files were consolidated from.
        jobs: How many files are checked at a time; None: one a core.
        progress: Called with numbers of bytes, which add up to the size of the files.
    """
    source = None if run is None else os.fspath(run)
    if source is not None and not is_run(source):
        raise InputError(f"{source}: expected a dataset directory of hold.write to compare with")
    given = expand_once(paths)
    runs = [_verify_run(folder, progress) for folder in given.runs]
    files = for_each_file(partial(_verify, _ManifestsOf(source)), given.files, jobs, progress)
    return Verified(files, runs, suspicious(files), given.repeated)


def verify_alone(file: str, progress: Progress | None) -> VerifiedFile:
    """Verifies a file without looking for a manifest that names it."""
    try:
        return format_to_report(file).verify(file, progress)
    except FormatError as error:
        return TFRecordReport(file, problems=[Problem(None, None, error.reason)], hint=error.hint)


def _verify(manifests: _ManifestsOf, file: str, /, *, progress: Progress | None) -> VerifiedFile:
    report = verify_alone(file, progress)
    problem = manifests.check(file) if report.readable and not report.error else None
    if problem is None:
        return report
    if problem:
        offset = 0 if isinstance(report, TFRecordReport) else None
        return replace(report, problems=[*report.problems, Problem(offset, None, problem)])
    notes = [note for note in report.notes if note not in report.unchecked]  # the file checksum covers these
    return replace(report, notes=notes, unchecked=())


_FEWEST_SIBLINGS = 4  # for a median that means something
_FEW = 10  # one file in so many may differ; where more do, the files simply vary


def suspicious(reports: Sequence[VerifiedFile]) -> list[str]:
    """Returns notes on intact files that hold nothing, or at most half or at least twice as much as their siblings.

    Siblings are files of one format in one folder. Records, samples or rows are compared, and bytes.
    """
    notes = []
    siblings: dict[tuple[str, type, int], list[tuple[str, int, str]]] = {}
    for report in reports:
        if not report.ok:
            continue
        count, unit = report.content
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


# ---- dataset directories


def _verify_run(path: str, progress: Progress | None) -> VerifiedRun:
    """Verifies a dataset directory without changing it. Problems are in the report, never raised."""
    from ..writer.dataset_writer import DatasetWriter  # imports h5py, which is slow
    from ..writer.directory import read_schema
    from ..writer.verify import Problem, Report

    size = size_of_run(path)

    def advance(done: int, count: int) -> None:
        if progress is not None:
            progress(size / count)

    try:
        return VerifiedRun(path, DatasetWriter(Path(os.path.abspath(path)), read_schema(Path(path))).verify(advance))
    except HoldfastError as error:
        # A missing file is corruption; one that cannot be opened is not readable.
        readable = isinstance(error, MissingFileError) or not isinstance(error.__cause__, OSError)
        return VerifiedRun(path, Report(problems=[Problem(path, str(error).removeprefix(f"{path}: "))]), readable)


class _ManifestsOf:
    """The manifests that may name a consolidated file: those of `run`, or of the dataset directories beside the file.

    Each folder is listed once, however many files of it are verified.
    """

    def __init__(self, run: str | None) -> None:
        self._run = run
        self._known: dict[str, list[tuple[str, PartsManifest]]] = {}

    def check(self, file: str) -> str | None:
        """Compares a consolidated file with the manifest of its dataset directory.

        Returns what is wrong, "" if nothing is, or None if no manifest names the file. The manifests of `run`, if
        given, may also name the file as it was called before it was moved.
        """
        run = self._run
        for name, manifest in self._beside(os.path.dirname(os.path.abspath(file))):
            is_moved = run is not None and os.path.basename(manifest.output) == os.path.basename(file)
            if not is_moved and os.path.realpath(manifest.output) != os.path.realpath(file):
                continue
            size = os.path.getsize(file)
            if size != manifest.bytes:
                return f"{name} says {manifest.bytes:,} bytes, it has {size:,}"
            with open(file, "rb") as opened:
                crc, _ = crc32c_of_file(opened.fileno())
            return (
                "" if crc == manifest.crc32c else f"{name} has checksum {manifest.crc32c:08x}, the file has {crc:08x}"
            )
        return None if run is None else f"no manifest of {run} names it"

    def _beside(self, folder: str) -> list[tuple[str, PartsManifest]]:
        """Returns the manifests with their names: of each dataset directory, the newest first."""
        found = self._known.get(folder)
        if found is None:  # two threads may both list it: the results are equal
            found = self._known[folder] = [
                (os.path.join(one, "manifest", f"{manifest.number:06d}.json"), manifest)
                for one in (runs_in(folder) if self._run is None else [self._run])
                for manifest in reversed(read_manifests(Path(one)))
            ]
        return found
