"""Summarizes a file for `holdfast inspect`: number and sizes of records, their schema, the first record."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from ...._native import codec
from ....errors import DataError, FormatError, HoldfastError, InputError
from ..columns import Ints
from .frame_stream import FrameBatches, Progress
from .index import load_index
from .manifest import MANIFEST_NAME, find_manifest
from .reader import TFRecordReader
from .schema_inference import Inferred, NotAnExample, infer_schema
from .source import open_source
from .verify import explain

_SAMPLE_BYTES = 64 << 20  # of records that the schema is inferred from; always at least one
_HEAD_BYTES = 64


class Sizes(NamedTuple):
    """Sizes of the records' data, without their frames."""

    min: int
    median: int
    max: int


@dataclass
class Survey:
    path: str
    format: Literal["tfrecord"] | None = None  # None: not a TFRecord, or unreadable
    compression: str = "none"
    file_bytes: int = 0
    records: int = 0  # intact
    sizes: Sizes | None = None
    inferred: Inferred | None = None  # None: no records, or no Examples
    head: bytes = b""  # the beginning of the first record, if it is not an Example
    head_of: int = 0  # the size of that record
    manifest: str = "none beside it"
    problem: str | None = None
    hint: str = ""
    readable: bool = True
    counts: Counter[int] = field(default_factory=Counter)  # number of frames by size

    def note(self, problem: str, hint: str = "") -> None:
        """Keeps the first problem only: later ones mostly follow from it."""
        if self.problem is None:
            self.problem, self.hint = problem, hint


def survey_file(path: str | os.PathLike[str], sample: int = 100, progress: Progress | None = None) -> Survey:
    """Inspects a file. Problems with the file are not raised, but part of the result.

    With a fresh index only the first records are read, else the whole file, with all its CRCs.
    """
    survey = Survey(os.fspath(path))
    try:
        _measure(survey, progress)
        if survey.format:
            _sample(survey, sample)
            _compare(survey)
    except DataError as error:
        survey.note(without_path(error), error.hint)
    except (HoldfastError, OSError) as error:
        survey.readable = False
        text = str(error) if isinstance(error, HoldfastError) else error.strerror or str(error)
        survey.note(text.removeprefix(f"{path}: "))
    return survey


def _measure(survey: Survey, progress: Progress | None) -> None:
    with open_source(survey.path) as source:
        survey.format = "tfrecord"
        survey.compression, survey.file_bytes = source.compression, source.file_bytes()
        offsets = load_index(survey.path, source) if source.compression == "none" else None
    if offsets is None:
        _walk(survey, progress)
    else:
        _count(survey, np.diff(offsets))
        if progress:
            progress(survey.file_bytes)
    survey.records = survey.counts.total()
    survey.sizes = _sizes(survey.counts)


def _walk(survey: Survey, progress: Progress | None) -> None:
    try:
        error, more = _count_all(survey, progress, spool=False)
    except DataError:  # only raised for compressed files
        survey.counts.clear()
        error, more = _count_all(survey, None, spool=True)
    if error is not None:
        survey.note(without_path(error) + (f", and {more:,} more" if more else ""), error.hint)
        survey.format = None if isinstance(error, FormatError) else "tfrecord"


def _count_all(survey: Survey, progress: Progress | None, spool: bool) -> tuple[DataError | None, int]:
    """Counts all frames; returns the first problem and the number of further ones."""

    def put(frames: memoryview, starts: Ints) -> None:
        _count(survey, np.diff(starts, append=len(frames)))

    with FrameBatches(survey.path, on_corrupt="salvage", spool=spool, progress=progress) as batches:
        while batches.next(put) is not None:
            pass
        return explain(batches.stream), len(batches.problems) - 1


def without_path(error: DataError) -> str:
    """Returns the message without the path, which is shown beside it, and without the hint."""
    return str(DataError("", error.record, error.offset, error.reason)).lstrip(",: ")


def _count(survey: Survey, frame_bytes: Ints) -> None:
    sizes, counts = np.unique(frame_bytes, return_counts=True)
    survey.counts.update(dict(zip(sizes.tolist(), counts.tolist(), strict=True)))


def _sizes(counts: Counter[int]) -> Sizes | None:
    if not counts:
        return None
    sizes = sorted(counts)
    ends = np.cumsum([counts[size] for size in sizes])
    middle = sizes[int(np.searchsorted(ends, (counts.total() + 1) // 2))]
    return Sizes(*(size - codec.OVERHEAD_BYTES for size in (sizes[0], middle, sizes[-1])))


def _sample(survey: Survey, sample: int) -> None:
    records = _first_records(survey, sample)
    if not records:
        return
    try:
        survey.inferred = infer_schema(records)
    except NotAnExample:
        survey.head, survey.head_of = records[0][:_HEAD_BYTES], len(records[0])


def _first_records(survey: Survey, sample: int) -> list[bytes]:
    records: list[bytes] = []
    size = 0
    with TFRecordReader(survey.path, on_corrupt="raise" if survey.problem is None else "salvage") as reader:
        for record in reader.records():
            records.append(record)
            size += len(record)
            if len(records) >= sample or size >= _SAMPLE_BYTES:
                break
    return records


def _compare(survey: Survey) -> None:
    """Compares the file with its entry in the manifest."""
    try:
        manifest = find_manifest(survey.path)
    except InputError:
        survey.manifest = f"{MANIFEST_NAME} cannot be read"
        return
    if manifest is None:
        return
    entry = manifest.entries.get(os.path.basename(survey.path))
    if entry is None:
        survey.manifest = f"not listed in {manifest.path.name}"
        return
    survey.manifest = f"listed in {manifest.path.name}, {entry.records:,} records"
    if (entry.records, entry.bytes) != (survey.records, survey.file_bytes):
        expected = f"the manifest says {entry.records:,} records in {entry.bytes:,} bytes"
        survey.note(f"{expected}, the file has {survey.records:,} in {survey.file_bytes:,}")
