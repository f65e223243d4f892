"""Defines hold.inspect: records, sizes and schemas of files of every format, and of dataset directories."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..._util.progress import Progress
from ..._util.text import counted, format_bytes
from ...errors import FormatError, HoldfastError
from ...schema import Column, as_code
from ..formats.parts_manifest import check_parts
from ..formats.registry import FORMATS, format_to_report
from ..formats.sections import Section, Survey
from ..formats.tfrecord.inspect import TFRecordSurvey
from ..inputs import Given, expand_once
from .parallel_files import for_each_file


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """What one file or dataset directory contains.

    Attributes:
        format: None: it is of another format than its name says, or cannot be read.
        rows: Intact records, samples or rows.
        code: The schema as Python source; "" if there is none.
        problem: The first thing that is wrong; None: nothing.
        readable: False: the file could not be read, so nothing is known of it.
    """

    __module__ = "holdfast"

    path: str
    format: str | None
    bytes: int
    rows: int
    code: str
    problem: str | None
    readable: bool
    survey: Survey = field(repr=False)  # as its format made it

    def as_dict(self) -> dict[str, object]:
        """Returns what `holdfast inspect --json` prints of it."""
        return self.survey.as_dict()


@dataclass(frozen=True, slots=True)
class Inspected:
    """The result of hold.inspect. `repeated`: notes on what was given more than once."""

    __module__ = "holdfast"

    files: list[InspectedFile]
    repeated: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """Returns what `holdfast inspect --json` prints."""
        return {"files": [one.as_dict() for one in self.files]}


def inspect(
    paths: Given | Iterable[Given],
    *,
    records: int = 100,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Inspected:
    """Returns the records, sizes and schemas of TFRecord, HDF5 and tar files and of dataset directories, as `holdfast
    inspect` shows them. Problems are not raised, but part of the result.

    Args:
        paths: A path, a glob, a folder, a dataset directory, or a list of them.
        records: The schema of a TFRecord, or of a tar, is inferred from so many records.
        jobs: How many files are read at a time; None: one a core.
        progress: Called with numbers of bytes, which add up to the size of the files.
    """
    given = expand_once(paths)
    surveys = [*map(_inspect_run, given.runs), *for_each_file(partial(_survey, records), given.files, jobs, progress)]
    return Inspected([_inspected(survey) for survey in surveys], given.repeated)


def _survey(sample: int, file: str, /, *, progress: Progress | None) -> Survey:
    try:
        return format_to_report(file).inspect(file, sample, progress)
    except FormatError as error:
        return TFRecordSurvey(file, problem=error.reason, hint=error.hint)


def _inspected(survey: Survey) -> InspectedFile:
    s = survey
    return InspectedFile(s.path, s.format, s.bytes, s.rows, s.code, s.problem, s.readable, survey)


# ---- dataset directories


@dataclass(slots=True)
class RunSurvey:
    """What a dataset directory contains."""

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

    @property
    def format(self) -> str:
        return "run"

    def sections(self) -> Iterator[Section]:
        which = ", ".join(f"{n:,} {FORMATS[kind].title}" for kind, n in self.formats.items())
        facts = [
            ("format", "dataset directory of hold.write"),
            ("size", format_bytes(self.bytes)),
            ("parts", f"{sum(self.formats.values()):,} committed" + (f" ({which})" if which else "")),
            ("rows", f"{self.rows:,}"),
        ]
        facts += [("at work", counted(self.at_work, "writer"))] if self.at_work else []
        yield Section(facts=[*facts, ("problem", self.problem)] if self.problem is not None else facts)
        if self.code:
            yield Section(code=self.code)

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


def _inspect_run(path: str) -> RunSurvey:
    from ..writer.dataset_writer import DatasetWriter  # imports h5py, which is slow
    from ..writer.directory import list_names, read_schema
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
        check_parts(path, list_names(Path(path) / "parts"))
    except HoldfastError as error:
        survey.problem = str(error)
    return survey
