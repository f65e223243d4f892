"""Which files are HDF5 or tar, and all files of a folder that are data: of the commands that take all formats."""

from __future__ import annotations

import glob
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.text import counted, format_bytes, natural_key, printable
from ..errors import HoldfastError, InputError, MissingFileError
from ..formats.base import HDF5_MAGIC, HDF5_SUFFIXES, TAR_SUFFIXES, TFRECORD_SUFFIXES, detect_format, is_tfrecord_name
from ..formats.tfrecord.manifest import MANIFEST_NAME
from ..loader.sources.discovery import identify, nothing_matches, refuse_twice
from ..schema import Column, as_code
from ..writer.directory import SCHEMA_NAME
from .console import Screen, show_facts

if TYPE_CHECKING:
    from ..writer.verify import Problem, Report


_FURTHEST = 1 << 16  # a signature may stand behind a user block of 512 bytes, 1,024, …


def is_hdf5(path: str) -> bool:
    """By its content; by its name where that says nothing (empty, damaged, not there)."""
    return path.lower().endswith(HDF5_SUFFIXES) or _has_magic(path)


def _has_magic(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would block the open else
    except OSError:
        return False  # whoever opens it says so
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        at = 0
        while at <= _FURTHEST:
            if os.pread(fd, len(HDF5_MAGIC), at) == HDF5_MAGIC:
                return True
            at = at * 2 or 512
        return False
    except OSError:
        return False
    finally:
        os.close(fd)


def is_tar(path: str) -> bool:
    """By its name, or by its content."""
    if path.lower().endswith(TAR_SUFFIXES):
        return True
    try:
        return detect_format(path) == "tar"
    except InputError:
        return False  # whoever opens it says so


def expand_data(arguments: Iterable[str], *, tars: bool = False) -> list[str]:
    """All TFRecord and HDF5 files (and tars) that paths, globs and folders mean; one that is meant twice is refused."""
    suffixes = HDF5_SUFFIXES + (TAR_SUFFIXES if tars else ())
    return each_once(file for argument in arguments for file in _expand(argument, suffixes))


def _expand(argument: str, suffixes: tuple[str, ...]) -> list[str]:
    if not os.path.isdir(argument):
        return expand([argument])
    with os.scandir(argument) as entries:
        names = [e.name for e in entries if not e.name.startswith(".") and e.name.lower().endswith(suffixes)]
    found = [path for name in names if not os.path.isdir(path := os.path.join(argument, name))]
    try:
        found += expand([argument])
    except InputError:
        if not found:
            raise no_data(argument, "data files", TFRECORD_SUFFIXES + suffixes) from None
    return sorted(found, key=natural_key)


# Files as people name them: paths, globs (also quoted ones, with **), folders.


def expand(arguments: Iterable[str]) -> list[str]:
    """All files the arguments mean, in their order; those of one glob or folder sorted naturally.

    A path that is not there stays in the list: whoever opens it says so. A file that is meant twice, by whatever
    names, is refused as hold.read does.
    """
    return each_once(file for argument in arguments for file in _expand_pattern(argument))


def each_once(paths: Iterable[str]) -> list[str]:
    listed = list(paths)
    refuse_twice((_identity(path), path) for path in listed)
    return listed


def _identity(path: str) -> object:
    try:
        return identify(path)
    except OSError:
        return os.path.abspath(path)


def _expand_pattern(argument: str) -> list[str]:
    if os.path.isdir(argument):
        return _in_folder(argument)
    if os.path.lexists(argument) or not glob.has_magic(argument):
        return [argument]
    found = [file for file in glob.glob(argument, recursive=True) if _is_data(file)]
    if not found:
        raise nothing_matches(argument)
    return sorted(found, key=natural_key)


def _in_folder(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and _is_data(entry.path)]
    found = [name for name in names if is_tfrecord_name(name)]
    if not found:
        raise no_data(folder, "TFRecord files", TFRECORD_SUFFIXES)
    return [os.path.join(folder, name) for name in sorted(found, key=natural_key)]


def no_data(folder: str, what: str, suffixes: Iterable[str]) -> InputError:
    names = ", ".join(f"*{suffix}" for suffix in suffixes)
    return InputError(f"{folder}: expected {what} in this folder, there are none: {names}")


def _is_data(path: str) -> bool:
    return not os.path.isdir(path) and os.path.basename(path) != MANIFEST_NAME


# Folders that hold.write made, for the commands that look into files.

_SHOWN = 8
_FORMATS = {"hdf5": "HDF5", "tfrecord": "TFRecord"}


def is_run(path: str) -> bool:
    """Also one whose schema.json is gone: that is for verify to tell of."""
    if not os.path.isdir(os.path.join(path, "parts")):
        return False
    return os.path.isfile(os.path.join(path, SCHEMA_NAME)) or os.path.isdir(os.path.join(path, "tmp"))


def apart(arguments: Iterable[str], *, tars: bool = False) -> tuple[list[str], list[str]]:
    """The runs that are meant, also those directly in a folder; and all other files, as expand_data has them."""
    runs: list[str] = []
    others = []
    for argument in arguments:
        found = _runs_in(argument)
        runs += found
        if not found or (found != [argument] and _has_data(argument, tars)):
            others.append(argument)
    files = expand_data(others, tars=tars)
    _not_of(each_once(runs), files)
    return runs, files


def _not_of(runs: Iterable[str], files: Iterable[str]) -> None:
    """A part that is named beside its run is meant twice, as it is to hold.read."""
    parts = {identify(os.path.join(run, "parts")): run for run in runs}
    for file in files if parts else ():
        folder = os.path.dirname(file) or "."
        if os.path.isdir(folder) and (run := parts.get(identify(folder))) is not None:
            raise InputError(f"{file}: expected every file once, got it twice: also as a part of {run}")


def _runs_in(path: str) -> list[str]:
    if is_run(path):
        return [path]
    if not os.path.isdir(path):
        return []
    with os.scandir(path) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    return [run for name in names if is_run(run := os.path.join(path, name))]


def _has_data(folder: str, tars: bool) -> bool:
    try:
        return bool(expand_data([folder], tars=tars))
    except InputError:
        return False


def size_of_run(path: str) -> int:
    try:
        with os.scandir(os.path.join(path, "parts")) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file())
    except OSError:
        return 0  # whoever looks into it says why


# ---- verify


@dataclass(slots=True)
class RunReport:
    path: str
    found: Report
    hint: str = ""
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


def verify_run(path: str, progress: Callable[[float], None]) -> RunReport:
    """Never raises for what is wrong with the run: that is in the report. Changes nothing."""
    from ..writer.dataset import DatasetWriter
    from ..writer.directory import read_schema
    from ..writer.verify import Problem, Report

    left = size_of_run(path)

    def tell(done: int, count: int) -> None:
        progress(left / count)

    try:
        return RunReport(path, DatasetWriter(Path(os.path.abspath(path)), read_schema(Path(path))).verify(tell))
    except HoldfastError as error:
        readable = isinstance(error, MissingFileError) or not isinstance(
            error.__cause__, OSError
        )  # what is gone is damage
        return RunReport(path, Report(problems=[Problem(path, str(error).removeprefix(f"{path}: "))]), "", readable)


def against_manifest(file: str, run: str | None) -> str | None:
    """Returns what is wrong with a consolidated file by its run's manifest, "" if nothing is; None: no manifest has it.

    A run that is given may know the file by its name alone, from before it was moved.
    """
    from .._native.checksum import crc32c_of_file
    from ..writer.consolidate import read_manifests

    here = os.path.dirname(os.path.abspath(file))
    for folder in _runs_in(here) if run is None else [run]:
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
            return "" if crc == manifest.crc32c else f"{name} says checksum {manifest.crc32c:08x}, it has {crc:08x}"
    if run is not None:
        return f"no manifest of the run {run} names it"
    return None


def show_run(screen: Screen, report: RunReport) -> None:
    """What is wrong with one run."""
    problems = report.found.problems
    screen.print(screen.styled(report.path, "bold red"))
    rows = [(_inside(p, report.path), p.dataset or "", _number(p.chunk), _number(p.offset), p.reason) for p in problems]
    if all(problem.dataset is None for problem in problems):
        for name, _, _, _, reason in rows[:_SHOWN]:
            screen.print(f"  {printable(f'{name}: {reason}' if name else reason)}")
    else:
        screen.table(["part", "dataset", ">chunk", ">at byte", "what is wrong"], rows[:_SHOWN], indent=2)
    if len(rows) > _SHOWN:
        screen.print(f"  … and {len(rows) - _SHOWN:,} more (--json lists all)")
    screen.print()


def _inside(problem: Problem, run: str) -> str:
    """A path as seen from the run's folder."""
    path = os.path.relpath(problem.path, run)
    return "" if path == "." else problem.path if path.startswith("..") else path


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def sum_up(report: RunReport) -> str:
    found = report.found
    held = f"{counted(found.parts, 'part')}, {counted(found.rows, 'row')}, {format_bytes(found.bytes)}"
    said = "all as committed" if report.ok else counted(len(found.problems), "problem")
    left = f"; {counted(len(found.leftovers), 'leftover')} of dead attempts" if found.leftovers else ""
    busy = f"; {len(found.at_work):,} at work" if found.at_work else ""
    return f"{printable(report.path)}: {held}: {said}{left}{busy}"


# ---- inspect


@dataclass(slots=True)
class RunSurvey:
    path: str
    schema: dict[str, Column] | None = None
    formats: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    at_work: int = 0
    problem: str | None = None
    readable: bool = True

    @property
    def code(self) -> str:
        return as_code(self.schema) if self.schema else ""

    def as_dict(self) -> dict[str, object]:
        return {
            "path": self.path,
            "format": "run",
            "bytes": self.bytes,
            "parts": sum(self.formats.values()),
            "formats": self.formats,
            "rows": self.rows,
            "schema": {name: repr(column) for name, column in self.schema.items()} if self.schema else None,
            "at_work": self.at_work,
            "problem": self.problem,
        }


def inspect_run(path: str) -> RunSurvey:
    from ..writer.dataset import DatasetWriter
    from ..writer.directory import read_schema
    from ..writer.workspace import dead_workspace, workspaces

    survey = RunSurvey(path)
    try:
        survey.schema = read_schema(Path(path))
        parts = DatasetWriter(Path(os.path.abspath(path)), survey.schema).parts()
        survey.formats = dict(sorted(Counter(part.format for part in parts).items()))
        survey.rows, survey.bytes = sum(part.rows for part in parts), sum(part.bytes for part in parts)
        for workspace in workspaces(Path(path) / "tmp"):
            with dead_workspace(workspace) as note:
                survey.at_work += note is None
    except HoldfastError as error:
        survey.problem = str(error)
    return survey


def show_survey(screen: Screen, survey: RunSurvey) -> None:
    count = sum(survey.formats.values())
    which = ", ".join(f"{n:,} {_FORMATS.get(kind, kind)}" for kind, n in survey.formats.items())
    facts = [
        ("format", "a run of hold.write"),
        ("size", format_bytes(survey.bytes)),
        ("parts", f"{count:,} committed" + (f" ({which})" if which else "")),
        ("rows", f"{survey.rows:,}"),
    ]
    facts += [("at work", counted(survey.at_work, "attempt"))] if survey.at_work else []
    facts += [("problem", survey.problem)] if survey.problem is not None else []
    show_facts(screen, facts)
    if survey.code:
        screen.print()
        for line in f"schema = {survey.code}".splitlines():
            screen.print(f"    {printable(line)}")
