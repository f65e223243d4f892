"""A part's record: the .json beside it. That it is there is the commit; what it says is what the part must hold."""

from __future__ import annotations

import builtins
import json
import os
import socket
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

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
