"""Is every committed part there, and is it what was written?"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .._native import codec
from ..errors import DataError, HoldfastError, InputError
from ..formats.shard import open_shard
from ..schema import Column
from .folder import claims, record_paths, strays
from .names import claim_name, parse_name
from .record import PartRecord, read_record
from .workspace import dead_workspace, workspaces

_READ_BYTES = 1 << 22

Tell = Callable[[int, int], None]


class Problem(NamedTuple):
    """Something that is not as it was committed. `dataset`, `chunk` and `offset`: where, as far as it can be told."""

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
    """`leftovers` are of attempts that died, and do no harm; `at_work` are of those that live."""

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


def verify(folder: Path, schema: dict[str, Column], digest: str, tell: Tell | None = None) -> Report:
    """Reads every byte of every part; changes nothing. `tell` hears how many parts of how many are done."""
    parts = folder / "parts"
    report = Report()
    paths = list(record_paths(parts))
    tasks: Counter[str] = Counter()
    for number, path in enumerate(paths):
        tasks[path.name.rsplit(".", 2)[0]] += 1
        _check_record(path, schema, digest, report)
        if tell:
            tell(number + 1, len(paths))
    for task, times in tasks.items():
        if times > 1:
            report.problems.append(Problem(str(parts), f"task {task!r} is there {times} times, wanted it once"))
    _check_claims(parts, tasks, report)
    _find_leftovers(folder, report)
    return report


def _check_record(path: Path, schema: dict[str, Column], digest: str, report: Report) -> None:
    report.parts += 1
    try:
        record = read_record(path)
    except HoldfastError as error:
        report.problems.append(Problem(str(path), error.reason if isinstance(error, DataError) else str(error)))
        return
    named = (record.task, record.attempt, ".json")
    if named != parse_name(path.name):
        report.problems.append(Problem(str(path), f"it is of {record}: somebody gave it another name"))
    if record.schema != digest:
        report.problems.append(Problem(str(path), f"it was written with schema {record.schema}, the run's is {digest}"))
    report.rows += record.rows
    report.bytes += record.bytes
    before = len(report.problems)
    report.problems += _check_data(path.with_name(record.file), record)
    if len(report.problems) == before:
        report.problems += _check_rows(path.with_name(record.file), record, schema)


def _check_data(path: Path, record: PartRecord) -> Iterator[Problem]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield Problem(str(path), f"it is missing, with {record.rows:,} rows")
        return
    except OSError as error:
        yield Problem(str(path), f"it cannot be opened: {error.strerror}")
        return
    try:
        size = os.fstat(fd).st_size
        if size != record.bytes:
            yield Problem(str(path), f"wanted {record.bytes:,} bytes, got {size:,}")
        elif _crc(fd, 0, size) == record.crc32c:
            return
        damaged = list(_damaged_chunks(fd, path, record))
        yield from damaged
        if not damaged and size == record.bytes:
            where = "outside of the chunks, in what describes them" if record.chunks else "of the file"
            yield Problem(str(path), f"the checksum {where} is wrong")
    except OSError as error:
        yield Problem(str(path), f"it cannot be read: {error.strerror}")
    finally:
        os.close(fd)


def _crc(fd: int, offset: int, size: int) -> int:
    crc, end = 0, offset + size
    while offset < end and (data := os.pread(fd, min(_READ_BYTES, end - offset), offset)):
        crc, offset = codec.crc32c(data, crc), offset + len(data)
    return crc


def _damaged_chunks(fd: int, path: Path, record: PartRecord) -> Iterator[Problem]:
    for dataset, chunks in record.chunks.items():
        for number, (offset, size, crc) in enumerate(chunks):
            if _crc(fd, offset, size) != crc:
                yield Problem(str(path), "the checksum of the chunk is wrong", dataset, number, offset)


def _check_rows(path: Path, record: PartRecord, schema: dict[str, Column]) -> Iterator[Problem]:
    """The bytes are those that were written: this is against a writer that counted wrong."""
    try:
        shard: Any = open_shard(path, schema)
        with shard:
            rows = len(shard)
    except HoldfastError as error:
        yield Problem(str(path), f"it cannot be opened: {error}")
        return
    if rows != record.rows:
        yield Problem(str(path), f"wanted {record.rows:,} rows, got {rows:,}")


def _check_claims(parts: Path, tasks: Counter[str], report: Report) -> None:
    there = claims(parts)
    for task in there:
        if task in tasks:
            continue
        try:
            record = read_record(parts / claim_name(task))
        except (DataError, InputError) as error:
            report.problems.append(Problem(str(parts / claim_name(task)), str(error)))
            continue
        if (parts / record.file).exists():
            report.leftovers.append(f"{record}: committed, and made visible by the next hold.write of this folder")
        else:
            report.problems.append(Problem(str(parts / record.file), f"it is missing, and so is its record: {record}"))
    for task in sorted(set(tasks) - set(there)):
        report.problems.append(Problem(str(parts), f"task {task!r} has a record, but no claim ({claim_name(task)})"))


def _find_leftovers(folder: Path, report: Report) -> None:
    report.leftovers += [f"parts/{name}: it has no record" for name in strays(folder / "parts")]
    for workspace in workspaces(folder / "tmp"):
        with dead_workspace(workspace) as note:
            (report.at_work if note is None else report.leftovers).append(f"tmp/{workspace.name}")
