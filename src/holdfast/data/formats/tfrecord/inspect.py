"""Summarizes a file for `holdfast inspect`: number and sizes of records, their schema, the first record."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from ...._native import codec
from ...._util.text import counted, format_bytes
from ....errors import DataError, FormatError, HoldfastError, InputError
from ....schema import as_code
from ..columns import Ints
from ..sections import COMPRESSION, Section, as_text, text_of
from .frame_stream import FrameBatches, Progress
from .index import load_index
from .manifest import MANIFEST_NAME, find_manifest
from .reader import TFRecordReader
from .schema_inference import Inferred, NotAnExample, infer_schema
from .source import open_source
from .verify import explain

_SAMPLE_BYTES = 64 << 20  # of records that the schema is inferred from; always at least one
_HEAD_BYTES = 64


_Head = bytes  # in a class with a field of that name


class Sizes(NamedTuple):
    """Sizes of the records' data, without their frames."""

    min: int
    median: int
    max: int


@dataclass
class TFRecordSurvey:
    path: str
    format: Literal["tfrecord"] | None = None  # None: not a TFRecord, or unreadable
    compression: str = "none"
    bytes: int = 0
    records: int = 0  # intact
    sizes: Sizes | None = None
    inferred: Inferred | None = None  # None: no records, or no Examples
    head: _Head = b""  # the beginning of the first record, if it is not an Example
    head_of: int = 0  # the size of that record
    manifest: str = "none beside it"
    problem: str | None = None
    hint: str = ""
    readable: bool = True
    counts: Counter[int] = field(default_factory=Counter)  # number of frames by size

    @property
    def rows(self) -> int:
        return self.records

    @property
    def code(self) -> str:
        return as_code(self.inferred.schema) if self.inferred else ""

    def as_dict(self) -> dict[str, object]:
        found = self.inferred
        head = {"length": self.head_of, "hex": self.head.hex()} if self.head_of else None
        return {
            "path": self.path,
            "format": self.format,
            "compression": self.compression,
            "bytes": self.bytes,
            "records": self.records,
            "record_bytes": self.sizes._asdict() if self.sizes else None,
            "schema": {name: repr(column) for name, column in found.schema.items()} if found else None,
            "sequence": found.sequence if found else False,
            "notes": found.notes if found else {},
            "first": {name: as_json(values) for name, values in found.examples.items()} if found else head,
            "problem": self.problem,
        }

    def sections(self) -> Iterator[Section]:
        facts = []
        if self.format:
            facts = [
                ("format", f"TFRecord, {COMPRESSION[self.compression]}"),
                ("size", format_bytes(self.bytes)),
                ("records", self._records()),
                ("manifest", self.manifest),
            ]
        facts += [("problem", self.problem)] if self.problem is not None else []
        yield Section(facts=[*facts, ("", self.hint)] if self.hint else facts)
        if self.inferred:
            found = self.inferred
            kind = "tf.train.SequenceExample" if found.sequence else "tf.train.Example"
            yield Section(f"{kind}, inferred from the first {counted(found.records, 'record')}", code=self.code)
            if found.notes:
                yield Section(facts=list(found.notes.items()))
            if found.examples:
                examples = [(name, as_text(values)) for name, values in sorted(found.examples.items())]
                yield Section("the first record", facts=examples)
        elif self.head_of:
            rows = [self.head[at : at + 16] for at in range(0, len(self.head), 16)]
            texts = ["".join(chr(byte) if 32 <= byte < 127 else "." for byte in row) for row in rows]
            lines = [f"{row.hex(' '):<47}  {text}" for row, text in zip(rows, texts, strict=True)]
            yield Section("records are not tf.train.Example messages; the first one begins with", lines=lines)

    def _records(self) -> str:
        intact = " intact" if self.problem is not None else ""
        if self.sizes is None:
            return f"none{intact}"
        low, middle, high = self.sizes
        sizes = f"{low:,} bytes each" if low == high else f"{low:,} to {high:,} bytes, median {middle:,}"
        return f"{self.records:,}{intact}, {sizes}"

    def note(self, problem: str, hint: str = "") -> None:
        """Keeps the first problem only: later ones mostly follow from it."""
        if self.problem is None:
            self.problem, self.hint = problem, hint


def survey_file(path: str | os.PathLike[str], sample: int = 100, progress: Progress | None = None) -> TFRecordSurvey:
    """Inspects a file. Problems with the file are not raised, but part of the result.

    With a fresh index only the first records are read, else the whole file, with all its CRCs.
    """
    survey = TFRecordSurvey(os.fspath(path))
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


def _measure(survey: TFRecordSurvey, progress: Progress | None) -> None:
    with open_source(survey.path) as source:
        survey.format = "tfrecord"
        survey.compression, survey.bytes = source.compression, source.file_bytes()
        offsets = load_index(survey.path, source) if source.compression == "none" else None
    if offsets is None:
        _walk(survey, progress)
    else:
        _count(survey, np.diff(offsets))
        if progress:
            progress(survey.bytes)
    survey.records = survey.counts.total()
    survey.sizes = _sizes(survey.counts)


def _walk(survey: TFRecordSurvey, progress: Progress | None) -> None:
    try:
        error, more = _count_all(survey, progress, spool=False)
    except DataError:  # only raised for compressed files
        survey.counts.clear()
        error, more = _count_all(survey, None, spool=True)
    if error is not None:
        survey.note(without_path(error) + (f", and {more:,} more" if more else ""), error.hint)
        survey.format = None if isinstance(error, FormatError) else "tfrecord"


def _count_all(survey: TFRecordSurvey, progress: Progress | None, spool: bool) -> tuple[DataError | None, int]:
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


def _count(survey: TFRecordSurvey, frame_bytes: Ints) -> None:
    sizes, counts = np.unique(frame_bytes, return_counts=True)
    survey.counts.update(dict(zip(sizes.tolist(), counts.tolist(), strict=True)))


def _sizes(counts: Counter[int]) -> Sizes | None:
    if not counts:
        return None
    sizes = sorted(counts)
    ends = np.cumsum([counts[size] for size in sizes])
    middle = sizes[int(np.searchsorted(ends, (counts.total() + 1) // 2))]
    return Sizes(*(size - codec.OVERHEAD_BYTES for size in (sizes[0], middle, sizes[-1])))


def _sample(survey: TFRecordSurvey, sample: int) -> None:
    records = _first_records(survey, sample)
    if not records:
        return
    try:
        survey.inferred = infer_schema(records)
    except NotAnExample:
        survey.head, survey.head_of = records[0][:_HEAD_BYTES], len(records[0])


def _first_records(survey: TFRecordSurvey, sample: int) -> list[bytes]:
    records: list[bytes] = []
    size = 0
    with TFRecordReader(survey.path, on_corrupt="raise" if survey.problem is None else "salvage") as reader:
        for record in reader.records():
            records.append(record)
            size += len(record)
            if len(records) >= sample or size >= _SAMPLE_BYTES:
                break
    return records


def _compare(survey: TFRecordSurvey) -> None:
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
    if (entry.records, entry.bytes) != (survey.records, survey.bytes):
        expected = f"the manifest says {entry.records:,} records in {entry.bytes:,} bytes"
        survey.note(f"{expected}, the file has {survey.records:,} in {survey.bytes:,}")


# ---- values of the first record

_LISTED = 16
_BYTES = 64


def as_json(values: Sequence[Any]) -> Any:
    """Returns one value, a list, or `{"length": …, "values": […]}`; nested for a list of lists."""
    if len(values) == 1 and not isinstance(values[0], list):
        return _value_as_json(values[0])
    shown = [as_json(value) if isinstance(value, list) else _value_as_json(value) for value in values[:_LISTED]]
    return shown if len(values) <= _LISTED else {"length": len(values), "values": shown}


def _value_as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        text = text_of(value[:_BYTES])
        return {"length": len(value)} | ({"hex": value[:_BYTES].hex()} if text is None else {"text": text})
    if isinstance(value, float):
        return float(shortest(value)) if math.isfinite(value) else shortest(value)
    return value


def shortest(value: float) -> str:
    """Formats a 32-bit float with as few digits as identify it."""
    return str(np.float32(value))
