"""What is in a file: how many records of which sizes, what they are made of, what the first one says."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np

from holdfast.errors import DataError, FormatError, HoldfastError, InputError
from holdfast.formats.columns import Ints

from .index import load_index
from .infer import Inferred, NotAnExample, infer_schema
from .manifest import find_manifest
from .reader import TFRecordReader
from .runs import Progress, Runs
from .source import open_source

_FRAME_BYTES = 16
_SAMPLE_BYTES = 64 << 20  # of the records a schema is read from; at least one is looked at in any case


class Sizes(NamedTuple):
    """Of records' data, without their frames."""

    min: int
    median: int
    max: int


@dataclass
class Survey:
    path: str
    format: Literal["tfrecord"] | None = None  # None: not one, or nothing is known of it
    compression: str = ""
    bytes: int = 0
    records: int = 0
    sizes: Sizes | None = None
    inferred: Inferred | None = None  # None: there are no records, or they are not Examples
    head: bytes = b""  # the first record's, where they are not Examples
    head_bytes: int = 0  # how long that record is
    manifest: str = ""
    problem: str | None = None
    hint: str = ""
    readable: bool = True
    _counts: dict[int, int] = field(default_factory=dict)

    def note(self, problem: str, hint: str = "") -> None:
        """Keeps the first problem: those behind it mostly follow from it."""
        if self.problem is None:
            self.problem, self.hint = problem, hint


def survey_file(path: str | os.PathLike[str], sample: int = 100, progress: Progress | None = None) -> Survey:
    """Never raises for what is wrong with the file: as much as could be found out is in the survey.

    With a fresh index only the first records are read; else the whole file is, and all of its CRCs checked.
    """
    survey = Survey(os.fspath(path))
    try:
        _measure(survey, progress)
        _sample(survey, sample)
        _compare(survey)
    except FormatError as error:
        survey.format = None
        survey.note(error.reason, error.hint)
    except DataError as error:
        survey.note(_said(error), error.hint)
    except (HoldfastError, OSError) as error:
        survey.readable = False
        survey.note(error.strerror or "" if isinstance(error, OSError) else str(error).removeprefix(f"{path}: "))
    return survey


def _said(error: DataError) -> str:
    """The error without the path, which stands beside it anyway."""
    return str(error).removeprefix(f"{error.path}, ").removeprefix(f"{error.path} ").removesuffix(f". {error.hint}")


# ---- how many, how large


def _measure(survey: Survey, progress: Progress | None) -> None:
    with open_source(survey.path) as source:
        survey.compression, survey.bytes = source.compression, source.file_bytes()
        offsets = load_index(survey.path, source) if source.compression == "none" else None
    survey.format = "tfrecord"
    if offsets is not None:
        _count(survey, np.diff(offsets))
        if progress:
            progress(survey.bytes)
    else:
        _walk(survey, progress)
    survey.sizes = _sizes(survey._counts)


def _walk(survey: Survey, progress: Progress | None) -> None:
    """Goes on behind damages of a plain file; a packed one ends there."""

    def put(frames: memoryview, starts: Ints) -> None:
        _count(survey, np.diff(starts, append=len(frames)))

    try:
        with Runs(survey.path, on_corrupt="salvage", spool=False, progress=progress) as runs:
            while runs.next(put) is not None:
                pass
            if runs.problems:
                from .verify import explain

                hint = explain(runs.stream)
                first = runs.problems[0]
                place = f"record {first.record:,} at byte {first.offset:,}" if first.record is not None else ""
                more = len(runs.problems) - 1
                survey.note(f"{place}: {first.reason}" + (f", and {more:,} more" if more else ""), hint)
    except DataError as error:
        survey.note(_said(error), error.hint)


def _count(survey: Survey, frame_bytes: Ints) -> None:
    values, counts = np.unique(frame_bytes, return_counts=True)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        survey._counts[value] = survey._counts.get(value, 0) + count
    survey.records += len(frame_bytes)


def _sizes(counts: dict[int, int]) -> Sizes | None:
    if not counts:
        return None
    sizes = sorted(counts)
    middle, below = (sum(counts.values()) - 1) // 2, 0
    for median in sizes:
        below += counts[median]
        if below > middle:
            break
    return Sizes(sizes[0] - _FRAME_BYTES, median - _FRAME_BYTES, sizes[-1] - _FRAME_BYTES)


# ---- what they are
