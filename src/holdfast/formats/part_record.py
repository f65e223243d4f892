"""A part's record: the .json beside it. That it is there is the commit; what it says is what the part must hold."""

from __future__ import annotations

import builtins
import itertools
import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from .._native import codec
from ..errors import CorruptError, InputError

_VERSION = 1

Chunk = tuple[int, int, int]
Run = tuple[str, int, int]  # whose, the number of its first row there, and how many


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """`chunks`: of an HDF5 part, by dataset: where each chunk is in the file, its bytes there, and their crc32c.
    `runs`: of a part made by the central writer: whose rows lie in it, in the order of the file."""

    task: str
    attempt: int
    format: str
    file: str  # its name, beside the record
    schema: str  # the digest of the run's schema
    rows: int
    bytes: int
    crc32c: int  # of the whole file
    chunks: dict[str, list[Chunk]] = field(default_factory=dict)
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    runs: list[Run] | None = None

    def to_json(self) -> builtins.bytes:
        content = {"holdfast_part": _VERSION, **{one.name: getattr(self, one.name) for one in fields(self)}}
        return json.dumps({**content, "record_crc32c": _crc(content)}, separators=(",", ":")).encode() + b"\n"

    def __str__(self) -> str:
        return f"attempt {self.attempt} of task {self.task!r} ({self.rows:,} rows, process {self.pid} on {self.host})"


def _crc(content: dict[str, Any]) -> int:
    """Of the record itself: a wrong bit in it must not speak against a good part, or for a bad one."""
    return codec.crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def read_record(path: str | os.PathLike[str]) -> PartRecord:
    """InputError: it cannot be read. CorruptError: it is not what was written."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: cannot read: {error.strerror}") from error
    return parse_record(data, os.fspath(path))


def data_gone(path: str, record: PartRecord, names: str) -> CorruptError:
    """Of a task that is committed, and cannot be called done all the same. `names`: of its claim and record."""
    reason = f"it is missing: {record} has committed it"
    return CorruptError(path, None, None, reason, f"Put it back; or remove {names}, and the task can be done again")


def parse_record(data: bytes, path: str) -> PartRecord:
    """CorruptError: it is not what was written. `path` is where it was found."""
    try:
        content = json.loads(data)
        crc = content.pop("record_crc32c")
        version = content["holdfast_part"]
        if version == _VERSION and crc == _crc(content) and data == _again(content, crc):
            del content["holdfast_part"]
            chunks = {name: [(o, n, c) for o, n, c in found] for name, found in content.pop("chunks").items()}
            runs = content.pop("runs", None)
            runs = None if runs is None else [(whose, first, rows) for whose, first, rows in runs]
            return PartRecord(**content, chunks=chunks, runs=runs)
        reason = "its checksum is wrong" if version == _VERSION else f"expected version {_VERSION}, got {version!r}"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = f"it cannot be understood: {error!r}"
    raise CorruptError(path, None, None, f"the part's record is damaged: {reason}")


def _again(content: dict[str, Any], crc: int) -> bytes:
    """The bytes it was written with: a flip that leaves the meaning as it was is one all the same."""
    return json.dumps({**content, "record_crc32c": crc}, separators=(",", ":")).encode() + b"\n"


# The record beside a file: the crc32c of each of its chunks, as it was committed.
#
# `part.h5` has `part.json`: {"bytes": …, "crc32c": …, "chunks": {"dataset": [[offset, size, crc32c], …], …}, …}.

_READ_BYTES = 4 << 20
_LISTED = 1000

Progress = Callable[[int], None]


class Recorded(NamedTuple):
    dataset: str
    offset: int
    size: int
    crc32c: int


class Record(NamedTuple):
    """`bytes` and `crc32c` of the whole file; None where the record does not say."""

    path: str
    chunks: list[Recorded]
    bytes: int | None = None
    crc32c: int | None = None

    @property
    def datasets(self) -> set[str]:
        return {chunk.dataset for chunk in self.chunks}


def find_record(path: str) -> Record | None:
    """None: there is none beside the file, or the JSON there is something else."""
    beside = Path(path).with_suffix(".json")
    try:
        with open(beside, encoding="utf-8") as file:
            facts = json.load(file)
        if facts.get("file", os.path.basename(path)) != os.path.basename(path):
            return None  # of another file, by this one's old name
        rows = [("/" + name.lstrip("/"), row) for name, rows in facts["chunks"].items() for row in rows]
        listed = [Recorded(name, *map(int, row)) for name, row in rows]
        whole = [None if facts.get(key) is None else int(facts[key]) for key in ("bytes", "crc32c")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Record(str(beside), listed, *whole)


def check_record(path: str, record: Record, progress: Progress | None = None) -> Iterator[tuple[Recorded | None, str]]:
    """Chunks whose bytes are not those that were recorded, and why; None for the file as a whole."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        crc = None if record.crc32c is None else _crc_of(fd, 0, size, progress)[0]
        if record.crc32c is not None and (crc, size) == (record.crc32c, record.bytes):
            return
        wrong = list(itertools.islice(_wrong_chunks(fd, record, progress), _LISTED))
        yield from wrong
        if record.bytes is not None and size != record.bytes:
            yield None, f"the record says {record.bytes:,} bytes, the file has {size:,}"
        elif crc is not None and not wrong:
            yield (
                None,
                f"its crc32c is {crc:08x}, the record says {record.crc32c:08x}: not in a chunk, but between them",
            )
    finally:
        os.close(fd)


def _wrong_chunks(fd: int, record: Record, progress: Progress | None) -> Iterator[tuple[Recorded, str]]:
    for chunk in record.chunks:
        crc, got = _crc_of(fd, chunk.offset, chunk.size, progress)
        if got < chunk.size:
            yield chunk, f"cut: the record says {chunk.size:,} bytes, {got:,} are there"
        elif crc != chunk.crc32c:
            yield chunk, f"its crc32c is {crc:08x}, the record says {chunk.crc32c:08x}"


def _crc_of(fd: int, offset: int, size: int, progress: Progress | None) -> tuple[int, int]:
    """And of how many bytes."""
    crc, at = 0, 0
    while at < size:
        data = os.pread(fd, min(_READ_BYTES, size - at), offset + at)
        if not data:
            break
        crc = codec.crc32c(data, crc)
        at += len(data)
        if progress is not None:
            progress(len(data))
    return crc, at
