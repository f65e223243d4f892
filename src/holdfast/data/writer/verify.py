"""Verifies a dataset: every committed part must exist with the bytes that were committed."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Container, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..._native.checksum import crc32c_of_file
from ...errors import CorruptError, DataError, HoldfastError, InputError
from ...schema import Column
from ..formats.part_record import PartRecord, parse_record
from ..formats.parts_manifest import check_parts, deleted_parts
from ..formats.registry import open_shard
from .commit import LocalLocation
from .directory import claim_name, claims_in, list_names, parse_name, records_in, unrecorded_in
from .part import Location
from .workspace import dead_workspace, workspaces

OnProgress = Callable[[int, int], None]


class Problem(NamedTuple):
    """A difference from what was committed. `dataset`, `chunk` and `offset` say where, or are None."""

    path: str
    reason: str
    dataset: str | None = None
    chunk: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        inside = f", dataset {self.dataset!r}, chunk {self.chunk:,}" if self.dataset is not None else ""
        return f"{self.path}{inside}{f' at byte {self.offset:,}' if self.offset is not None else ''}: {self.reason}"


@dataclass(slots=True)
class Report:
    """`leftovers` of dead attempts do no harm; `at_work` lists workspaces of live attempts."""

    parts: int = 0
    rows: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    at_work: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        head = f"{self.parts:,} parts, {self.rows:,} rows, {self.bytes:,} bytes: "
        wrong = f"{len(self.problems):,} problems" if self.problems else "all as committed"
        left = f"; {len(self.leftovers):,} leftovers of dead attempts" if self.leftovers else ""
        return "\n".join([head + wrong + left, *(f"  {problem}" for problem in self.problems)])


def verify(
    location: Location,
    schema: dict[str, Column],
    digests: Set[str],
    progress: OnProgress | None = None,
    gone: Container[str] = (),
) -> Report:
    """Reads every byte of every part; changes nothing.

    digests:  of all versions of the schema
    progress: called with how many parts of how many are done
    gone:     tasks whose parts were deleted on purpose
    """
    report = Report()
    names = location.names()
    records = records_in(names)
    tasks: Counter[str] = Counter()
    for number, name in enumerate(records):
        tasks[name.rsplit(".", 2)[0]] += 1
        _check_record(location, name, schema, digests, report)
        if progress:
            progress(number + 1, len(records))
    for task, times in tasks.items():
        if times > 1:
            report.problems.append(Problem(location.shown(""), f"expected one record of task {task!r}, got {times}"))
    _check_claims(location, set(names), tasks, gone, report)
    return report


def verify_folder(
    folder: Path, schema: dict[str, Column], digests: Set[str], progress: OnProgress | None = None
) -> Report:
    """Verifies a local directory, and lists the leftovers of dead attempts."""
    report = verify(LocalLocation(folder), schema, digests, progress, deleted_parts(folder))
    try:
        check_parts(str(folder), list_names(folder / "parts"))
    except (CorruptError, InputError) as error:
        if not report.problems:  # which name the parts
            report.problems.append(Problem(str(folder), _reason(error, str(folder))))
    report.leftovers += [f"parts/{name}: it has no record" for name in unrecorded_in(list_names(folder / "parts"))]
    for workspace in workspaces(folder / "tmp"):
        with dead_workspace(workspace) as note:
            (report.at_work if note is None else report.leftovers).append(f"tmp/{workspace.name}")
    return report


def _check_record(location: Location, name: str, schema: dict[str, Column], digests: Set[str], report: Report) -> None:
    report.parts += 1
    shown = location.shown(name)
    try:
        record = parse_record(location.read(name), shown)
    except HoldfastError as error:
        report.problems.append(Problem(shown, _reason(error, shown)))
        return
    named = (record.task, record.attempt, ".json")
    if named != parse_name(name):
        report.problems.append(Problem(shown, f"its name does not match its content, the record of {record}"))
    if record.schema not in digests:
        text = f"expected the dataset's schema {', '.join(sorted(digests))}, got {record.schema}"
        report.problems.append(Problem(shown, text))
    report.rows += record.rows
    report.bytes += record.bytes
    data = location.shown(record.file)
    try:
        with location.data(record.file) as path:
            found = list(_check_data(path, data, record)) or list(_check_rows(path, data, record, schema))
    except InputError as error:
        found = [Problem(data, _reason(error, data))]
    report.problems += found


def _reason(error: HoldfastError, shown: str) -> str:
    return error.reason if isinstance(error, DataError) else str(error).removeprefix(f"{shown}: ")


def _check_data(path: Path, shown: str, record: PartRecord) -> Iterator[Problem]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield Problem(shown, f"it is missing, with {record.rows:,} rows")
        return
    except OSError as error:
        yield Problem(shown, f"it cannot be opened: {error.strerror}")
        return
    try:
        size = os.fstat(fd).st_size
        if size != record.bytes:
            yield Problem(shown, f"expected {record.bytes:,} bytes, got {size:,}")
        elif crc32c_of_file(fd)[0] == record.crc32c:
            return
        damaged = list(_damaged_chunks(fd, shown, record))
        yield from damaged
        if not damaged and size == record.bytes:
            where = "outside of the chunks, in the metadata" if record.chunks else "of the file"
            yield Problem(shown, f"the checksum {where} is wrong")
    except OSError as error:
        yield Problem(shown, f"it cannot be read: {error.strerror}")
    finally:
        os.close(fd)


def _damaged_chunks(fd: int, shown: str, record: PartRecord) -> Iterator[Problem]:
    for dataset, chunks in record.chunks.items():
        for number, (offset, size, crc) in enumerate(chunks):
            if crc32c_of_file(fd, offset, size)[0] != crc:
                yield Problem(shown, "the checksum of the chunk is wrong", dataset, number, offset)


def _check_rows(path: Path, shown: str, record: PartRecord, schema: dict[str, Column]) -> Iterator[Problem]:
    """Checks the number of rows, in case the writer counted wrong."""
    try:
        shard: Any = open_shard(path, schema)
        with shard:
            rows = len(shard)
    except HoldfastError as error:
        yield Problem(shown, f"it cannot be opened: {str(error).replace(str(path), shown)}")
        return
    if rows != record.rows:
        yield Problem(shown, f"expected {record.rows:,} rows, got {rows:,}")


def _check_claims(
    location: Location, names: set[str], tasks: Counter[str], gone: Container[str], report: Report
) -> None:
    there = claims_in(names)
    # Listing is not atomic, and others write meanwhile: the names are listed again before a file counts as missing.
    again = functools.cache(lambda: set(location.names()))
    for task in there:
        if task in tasks:
            continue
        shown = location.shown(claim_name(task))
        try:
            record = parse_record(location.read(claim_name(task)), shown)
        except (DataError, InputError) as error:
            report.problems.append(Problem(shown, str(error)))
            continue
        if record.file in names or (task not in gone and record.file in again()):
            report.leftovers.append(f"{record}: committed; the next hold.write of this folder makes it visible")
        elif task not in gone:
            text = f"it is missing, and so is its record: {record}"
            report.problems.append(Problem(location.shown(record.file), text))
    for task in sorted(set(tasks) - set(there)):
        if claim_name(task) in again():
            continue
        text = f"task {task!r} has a record, but no commit marker ({claim_name(task)})"
        report.problems.append(Problem(location.shown(""), text))
