"""The recording of one program: what `holdfast trace` saves and `holdfast report` reads.

A `.hft` file is a zip archive of one JSON document and four tables in numpy's file format. It is self-contained: stacks
are resolved to files, lines and functions, and the text of the source lines is stored with them.
"""

from __future__ import annotations

import ast
import errno
import io
import json
import math
import os
import stat
import zipfile
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..._util.atomic import check_replaceable, write_atomically
from ...errors import CorruptError, FormatError, HoldfastError, WriteError
from .log_format import BIRTH, CLOSE, CLOSE_UNSEEN
from .tables import Table, row_bytes

SUFFIX = ".hft"
_VERSION = 1
_MAX_BYTES = 1 << 30  # of one member, unpacked: refuses an archive that was made to fill the memory

EVENTS = {
    "t_s": "d",
    "process": "I",
    "tid": "I",
    "fd": "i",
    "stack": "I",
    "action": "B",
    "kind": "B",
    "error": "H",
    "aux": "i",
    "gen": "I",
}
OPEN = {"t_s": "d", "process": "I", "tid": "I", "fd": "i", "stack": "I", "kind": "B", "flags": "B", "gen": "I"}
COUNTS = {
    "process": "I",
    "stack": "I",
    "kind": "B",
    "born": "I",
    "closed": "I",
    "live": "i",
    "peak": "I",
    "inherited_closed": "I",
    "foreign_closed": "I",
}
SAMPLES = {"t_s": "d", "process": "I", "stack": "I", "live": "i"}
_TABLES = {"events": EVENTS, "open": OPEN, "counts": COUNTS, "samples": SAMPLES}
_NPY = b"\x93NUMPY\x01\x00"
_NPY_TYPES = {"d": "<f8", "I": "<u4", "i": "<i4", "H": "<u2", "B": "|u1"}


class SourceFrame(NamedTuple):
    """A line of code on a stack, with its text."""

    file: str
    line: int
    function: str
    text: str = ""


@dataclass(frozen=True)
class TracedProcess:
    """One process between two execs. Times are seconds since the recording began."""

    pid: int
    parent: int | None  # index of the process that forked it
    command: str
    python: str  # "3.11.7", "" for another program
    start_s: float
    end_s: float | None  # None: it was still running at the end
    ended: str  # "exit", "_exit", "exec", "killed", "stopped", "running"
    finalizing_s: float | None  # the interpreter began to shut down
    live: int
    peak: int
    dropped_events: int
    has_stacks: bool
    stopped_by: int  # errno that ended the recording, or 0
    counts: Mapping[str, int]
    unknown: Sequence[str] = ()  # targets of descriptors whose birth was not seen, in the last scan


@dataclass(frozen=True)
class Trace:
    """A recording. Stack 0 is the empty stack; frames of a stack are innermost first."""

    command: str
    started: float  # seconds since 1970
    duration_s: float
    is_partial: bool
    exit_code: int | None
    calls: tuple[str, ...]
    processes: tuple[TracedProcess, ...]
    frames: tuple[SourceFrame, ...]
    stacks: tuple[tuple[int, ...], ...]
    native: Mapping[int, Sequence[str]]  # stack -> C frames, with --native
    owners: Mapping[int, Sequence[str]]  # stack -> what keeps its descriptors, as text
    targets: Mapping[int, Sequence[str]]  # stack -> examples of what its descriptors lead to
    warnings: tuple[str, ...]
    events: Table = field(repr=False)
    open: Table = field(repr=False)
    counts: Table = field(repr=False)
    samples: Table = field(repr=False)
    no_reuse: bool = False  # recorded with --no-reuse
    untraced: tuple[tuple[int, str], ...] = ()  # processes that were seen without the library, and their commands

    def frames_of(self, stack: int) -> list[SourceFrame]:
        """Returns the frames of a stack, innermost first."""
        return [self.frames[number] for number in self.stacks[stack]] if 0 <= stack < len(self.stacks) else []

    @cached_property
    def closes(self) -> array[int]:
        """For each event, the event that closed what it made; -1 if it made nothing or that was not closed."""
        events = self.events
        found = array("i", [-1]) * len(events)
        births: dict[int, int] = {}  # the latest one of each number of each process
        gens = events["gen"]
        for at, (action, process, fd) in enumerate(events.rows("action", "process", "fd")):
            if action == BIRTH:
                births[process << 32 | fd & 0xFFFFFFFF] = at
            elif action in (CLOSE, CLOSE_UNSEEN):
                birth = births.get(process << 32 | fd & 0xFFFFFFFF, -1)
                if birth >= 0 and gens[birth] == gens[at] and found[birth] < 0:
                    found[birth] = at
        return found


def check_target(target: Path) -> None:
    """Raises an error before the program runs if its recording could not be saved."""
    check_replaceable(target)
    if not os.access(target.parent, os.W_OK):
        raise WriteError(f"cannot write {target}: no such folder, or permission denied")


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Writes a recording over whatever has this name. The name changes hands only when the file is complete."""
    facts: dict[str, Any] = {name: getattr(trace, name) for name in trace.__dataclass_fields__ if name not in _TABLES}
    facts["version"] = _VERSION
    facts["processes"] = [asdict(process) for process in trace.processes]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        archive.writestr("trace.json", json.dumps(facts, ensure_ascii=True))
        for name in _TABLES:
            archive.writestr(f"{name}.npy", _as_npy(getattr(trace, name)))
    write_atomically(path, packed.getvalue(), private=True)  # it names files and shows source lines


def load(path: str | os.PathLike[str]) -> Trace:
    """Reads a recording.

    Raises:
        CorruptError: It is no recording, or it is damaged.
    """
    name = os.fspath(path)
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a pipe would block, and zipfile reads a device without end
        raise FormatError(name, None, None, "expected a recording of `holdfast trace`, got a device or a pipe")
    part = ""
    try:
        with zipfile.ZipFile(path) as archive:
            part = "trace.json"
            facts = json.loads(_member(archive, part, name))
            if not isinstance(facts, dict) or facts.get("version") != _VERSION:
                raise FormatError(
                    name, None, None, f"expected a recording of version {_VERSION}, got {facts.get('version')!r}"
                )
            tables = {}
            for key, layout in _TABLES.items():
                part = f"{key}.npy"
                tables[key] = _from_npy(_member(archive, part, name), layout)
        part = "content"
        return _make(facts, tables)
    except HoldfastError:
        raise
    except Exception as error:  # zipfile, json and ast raise nearly anything for damaged data
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: an offset before the file's beginning
            raise
        got = _what(Path(path)) + (f" whose {part} is damaged" if part else "")
        why = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        raise CorruptError(
            name, None, None, f"expected a recording of `holdfast trace`, got {got} ({why[:200]})"
        ) from error


def _member(archive: zipfile.ZipFile, member: str, path: str) -> bytes:
    info = archive.getinfo(member)
    size = info.file_size
    if info.compress_type != zipfile.ZIP_DEFLATED:
        raise ValueError(f"{member} is packed with method {info.compress_type}")
    if size > _MAX_BYTES:
        raise CorruptError(
            path, None, None, f"{member} would take {size} bytes of memory, at most {_MAX_BYTES} are read"
        )
    return archive.read(member)


def _npy_header(layout: Mapping[str, str], rows: int) -> dict[str, Any]:
    descr = [(name, _NPY_TYPES[code]) for name, code in layout.items()]
    return {"descr": descr, "fortran_order": False, "shape": (rows,)}


def _as_npy(table: Table) -> bytes:
    """Packs a table as `numpy.save` would, so that `numpy.load` can read it."""
    header = repr(_npy_header(table.layout, len(table))).encode()
    length = -(-(len(_NPY) + 2 + len(header) + 1) // 64) * 64
    header = header.ljust(length - len(_NPY) - 3) + b"\n"
    return _NPY + len(header).to_bytes(2, "little") + header + table.pack()


def _from_npy(data: bytes, layout: Mapping[str, str]) -> Table:
    start = len(_NPY) + 2
    if data[: len(_NPY)] != _NPY:
        raise ValueError(f"expected an array in numpy's format, got {data[:8]!r}")
    header_bytes = int.from_bytes(data[len(_NPY) : start], "little")
    header = ast.literal_eval(data[start : start + header_bytes].decode("latin-1"))
    start += header_bytes
    size = row_bytes(layout)
    rows, rest = divmod(max(0, len(data) - start), size)
    if header != _npy_header(layout, rows) or rest:
        raise ValueError(f"expected {rows} rows of {size} bytes, got {header['shape']} and {rest} more bytes")
    return Table.unpack(layout, data[start:])


def _what(path: Path) -> str:
    size = path.stat().st_size
    return f"a file of {size} bytes" if size else "an empty file"


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"expected a number, got {number}")
    return number


def _integer(value: Any, maximum: int = 1 << 53) -> int:
    number = int(value)
    if abs(number) > maximum:
        raise ValueError(f"expected a number up to {maximum}, got {number}")
    return number


def _process(facts: dict[str, Any], processes: int) -> TracedProcess:
    def time_of(name: str) -> float | None:
        return None if facts[name] is None else _number(facts[name])

    parent = None if facts["parent"] is None else _integer(facts["parent"])
    if parent is not None and not 0 <= parent < processes:
        raise ValueError(f"process {facts['pid']} names a parent that does not exist")
    return TracedProcess(
        pid=_integer(facts["pid"]),
        parent=parent,
        command=str(facts["command"]),
        python=str(facts["python"]),
        start_s=_number(facts["start_s"]),
        end_s=time_of("end_s"),
        ended=str(facts["ended"]),
        finalizing_s=time_of("finalizing_s"),
        live=_integer(facts["live"]),
        peak=_integer(facts["peak"]),
        dropped_events=_integer(facts["dropped_events"]),
        has_stacks=bool(facts["has_stacks"]),
        stopped_by=_integer(facts["stopped_by"], 0xFFFF),
        counts={str(name): _integer(count) for name, count in facts["counts"].items()},
        unknown=tuple(map(str, facts["unknown"])),
    )


def _make(facts: dict[str, Any], tables: dict[str, Table]) -> Trace:
    processes = tuple(_process(process, len(facts["processes"])) for process in facts["processes"])
    frames = tuple(
        SourceFrame(str(file), _integer(line), str(function), str(text))
        for file, line, function, text in facts["frames"]
    )
    stacks = tuple(tuple(_integer(frame) for frame in stack) for stack in facts["stacks"])
    if any(not 0 <= frame < len(frames) for stack in stacks for frame in stack):
        raise ValueError("a stack names a frame that does not exist")
    for name, table in tables.items():
        if max(table["process"], default=-1) >= len(processes):
            raise ValueError(f"{name} names a process that does not exist")
        if max(table["stack"], default=-1) >= len(stacks):
            raise ValueError(f"{name} names a stack that does not exist")
        if "t_s" in table.layout and not all(map(math.isfinite, table["t_s"])):
            raise ValueError(f"{name} holds a time that is no number")

    def by_stack(name: str) -> dict[int, list[str]]:
        return {int(stack): [str(line) for line in lines] for stack, lines in facts[name].items()}

    return Trace(
        command=str(facts["command"]),
        started=_number(facts["started"]),
        duration_s=_number(facts["duration_s"]),
        is_partial=bool(facts["is_partial"]),
        exit_code=None if facts["exit_code"] is None else int(facts["exit_code"]),
        calls=tuple(map(str, facts["calls"])),
        processes=processes,
        frames=frames,
        stacks=stacks,
        warnings=tuple(map(str, facts["warnings"])),
        native=by_stack("native"),
        owners=by_stack("owners"),
        targets=by_stack("targets"),
        events=tables["events"],
        open=tables["open"],
        counts=tables["counts"],
        samples=tables["samples"],
        no_reuse=bool(facts.get("no_reuse")),
        untraced=tuple((_integer(pid), str(command)) for pid, command in facts.get("untraced", ())),
    )
