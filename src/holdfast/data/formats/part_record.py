"""The record of a part: the `.json` beside its data file. Its existence is the commit; it says what the part must hold.

A record carries a CRC of its own, so a flipped bit in it neither accuses an intact part nor clears a corrupt one.
`parse_record` is strict. `find_record` reads only the checksums, also from a JSON that another program wrote beside an
HDF5 file: {"bytes": …, "crc32c": …, "chunks": {"dataset": [[offset, size, crc32c], …], …}}.
"""

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

from ..._native.checksum import crc32c_of_file, json_crc32c
from ..._util.text import natural_key
from ...errors import CorruptError, InputError

_VERSION = 1
_MAX_REPORTED = 1000

Chunk = tuple[int, int, int]  # offset in the file, size there, crc32c
Run = tuple[str, int, int]  # a producer, the number of its first row here, how many rows
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """What one committed part holds.

    chunks  of an HDF5 part: offset, size and crc32c of each chunk, by dataset
    runs    of a part made by the central writer: which rows of which producers it holds, in file order
    """

    task: str
    attempt: int
    format: str
    file: str  # the name of the data file, in the same directory
    schema: str  # the digest of the dataset's schema
    rows: int
    bytes: int
    crc32c: int  # of the data file
    chunks: dict[str, list[Chunk]] = field(default_factory=dict)
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    runs: list[Run] | None = None

    def to_json(self) -> builtins.bytes:
        content = {"holdfast_part": _VERSION, **{one.name: getattr(self, one.name) for one in fields(self)}}
        return _serialize(content, json_crc32c(content))

    def __str__(self) -> str:
        return f"attempt {self.attempt} of task {self.task!r} ({self.rows:,} rows, process {self.pid} on {self.host})"


def _serialize(content: dict[str, Any], crc: int) -> bytes:
    return json.dumps({**content, "record_crc32c": crc}, separators=(",", ":")).encode() + b"\n"


def read_record(path: str | os.PathLike[str]) -> PartRecord:
    """Reads a record. InputError: it cannot be read. CorruptError: it is not what was written."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: cannot read: {error.strerror}") from error
    return parse_record(data, os.fspath(path))


def parse_record(data: bytes, path: str) -> PartRecord:
    """Parses the content of a record. CorruptError, which names `path`: it is not what was written."""
    try:
        content = json.loads(data)
        crc = content.pop("record_crc32c")
        version = content["holdfast_part"]
        # The bytes are compared as well: a flip that leaves the JSON's meaning unchanged is still corruption.
        if version == _VERSION and crc == json_crc32c(content) and data == _serialize(content, crc):
            del content["holdfast_part"]
            chunks, runs = _chunks(content.pop("chunks")), content.pop("runs", None)
            runs = None if runs is None else [(producer, first, rows) for producer, first, rows in runs]
            return PartRecord(**content, chunks=chunks, runs=runs)
        reason = "its checksum is wrong" if version == _VERSION else f"expected version {_VERSION}, got {version!r}"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = f"it cannot be parsed: {error!r}"
    raise CorruptError(path, None, None, f"the part's record is corrupt: {reason}")


def _chunks(content: Any) -> dict[str, list[Chunk]]:
    return {name: [(int(at), int(size), int(crc)) for at, size, crc in found] for name, found in content.items()}


def order_of_part(task: str, attempt: int) -> tuple[list[tuple[int, str]], str, int]:
    """Returns the sort key of a part among those of its dataset: by task, `rank9` before `rank10`, then by attempt.

    Readers and consolidate() take the parts in this order.
    """
    return natural_key(task), task, attempt


def order_of_part_name(path: str) -> tuple[list[tuple[int, str]], str, int]:
    """Returns order_of_part() of a data file `TASK.ATTEMPT.h5`."""
    task, _, attempt = os.path.splitext(os.path.basename(path))[0].rpartition(".")
    return order_of_part(task, int(attempt)) if task and attempt.isdecimal() else order_of_part(attempt, 0)


def missing_data(path: str, record: PartRecord, names: str) -> CorruptError:
    """Returns the error for a committed task whose data file is gone. `names`: of its commit marker and its record."""
    reason = f"it is missing: {record} has committed it"
    return CorruptError(path, None, None, reason, f"Put it back; or remove {names}, and the task can be done again")


# ---- checking a file against its record


class ChunkChecksum(NamedTuple):
    dataset: str
    offset: int
    size: int
    crc32c: int


class FileChecksums(NamedTuple):
    """What a record says about a file. `bytes` and `crc32c` are those of the file; None where the record has none."""

    path: str  # of the record
    chunks: list[ChunkChecksum]
    bytes: int | None = None
    crc32c: int | None = None

    @property
    def datasets(self) -> set[str]:
        return {chunk.dataset for chunk in self.chunks}


def find_record(path: str) -> FileChecksums | None:
    """Returns the checksums in the record beside a file. None: there is no record, or the JSON is something else."""
    beside = Path(path).with_suffix(".json")
    try:
        content = json.loads(beside.read_bytes())
        if content.get("file", os.path.basename(path)) != os.path.basename(path):
            return None  # the record of another file that had this name
        chunks = [
            ChunkChecksum("/" + name.lstrip("/"), *chunk)
            for name, found in _chunks(content["chunks"]).items()
            for chunk in found
        ]
        size, crc = (None if content.get(key) is None else int(content[key]) for key in ("bytes", "crc32c"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return FileChecksums(str(beside), chunks, size, crc)


def check_record(
    path: str, record: FileChecksums, progress: Progress | None = None
) -> Iterator[tuple[ChunkChecksum | None, str]]:
    """Yields the chunks that differ from the record, and how; None for the file itself."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        crc = None if record.crc32c is None else crc32c_of_file(fd, 0, size, progress)[0]
        if record.crc32c is not None and (crc, size) == (record.crc32c, record.bytes):
            return
        wrong = list(itertools.islice(_wrong_chunks(fd, record, progress), _MAX_REPORTED))
        yield from wrong
        if record.bytes is not None and size != record.bytes:
            yield None, f"expected {record.bytes:,} bytes as recorded, got {size:,}"
        elif crc is not None and not wrong:
            yield (
                None,
                f"expected crc32c {record.crc32c:08x} as recorded, got {crc:08x}: the difference is between the chunks",
            )
    finally:
        os.close(fd)


def _wrong_chunks(fd: int, record: FileChecksums, progress: Progress | None) -> Iterator[tuple[ChunkChecksum, str]]:
    for chunk in record.chunks:
        crc, got = crc32c_of_file(fd, chunk.offset, chunk.size, progress)
        if got < chunk.size:
            yield chunk, f"truncated: expected {chunk.size:,} bytes as recorded, got {got:,}"
        elif crc != chunk.crc32c:
            yield chunk, f"expected crc32c {chunk.crc32c:08x} as recorded, got {crc:08x}"
