"""The recording of one program: what `holdfast trace` saves and `holdfast report` reads.

A `.hft` file is a zip archive of one JSON document and four numpy arrays. It is self-contained: stacks are resolved to
files, lines and functions, and the text of the source lines is stored with them.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import stat
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._util.atomic import check_replaceable, write_atomically
from ...errors import CorruptError, FormatError, HoldfastError, WriteError

SUFFIX = ".hft"
_VERSION = 1
_MOST_BYTES = 1 << 30  # of one member, unpacked: refuses an archive that was made to fill the memory

EVENTS = np.dtype(
    [
        ("t_s", "<f8"),
        ("process", "<u4"),
        ("tid", "<u4"),
        ("fd", "<i4"),
        ("stack", "<u4"),
        ("action", "u1"),
        ("kind", "u1"),
        ("error", "<u2"),
        ("aux", "<i4"),
        ("gen", "<u4"),
    ]
)
OPEN = np.dtype(
    [
        ("t_s", "<f8"),
        ("process", "<u4"),
        ("tid", "<u4"),
        ("fd", "<i4"),
        ("stack", "<u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("gen", "<u4"),
    ]
)
COUNTS = np.dtype(
    [
        ("process", "<u4"),
        ("stack", "<u4"),
        ("kind", "u1"),
        ("born", "<u4"),
        ("closed", "<u4"),
        ("live", "<i4"),
        ("peak", "<u4"),
        ("inherited_closed", "<u4"),
        ("foreign_closed", "<u4"),
    ]
)
SAMPLES = np.dtype([("t_s", "<f8"), ("process", "<u4"), ("stack", "<u4"), ("live", "<i4")])
_ARRAYS = {"events": EVENTS, "open": OPEN, "counts": COUNTS, "samples": SAMPLES}


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
    unknown: Sequence[str] = ()  # targets of descriptors whose birth was not seen, last look


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
    events: np.ndarray = field(repr=False)
    open: np.ndarray = field(repr=False)
    counts: np.ndarray = field(repr=False)
    samples: np.ndarray = field(repr=False)
    no_reuse: bool = False  # recorded with --no-reuse
    untraced: tuple[tuple[int, str], ...] = ()  # processes that were seen without the library, and their commands

    def frames_of(self, stack: int) -> list[SourceFrame]:
        """Returns the frames of a stack, innermost first."""
        return [self.frames[number] for number in self.stacks[stack]] if 0 <= stack < len(self.stacks) else []


def check_target(target: Path) -> None:
    """Raises an error before the program runs if its recording could not be saved."""
    check_replaceable(target)
    if not os.access(target.parent, os.W_OK):
        raise WriteError(f"cannot write {target}: no such folder, or permission denied")


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Writes a recording over whatever has this name. The name changes hands only when the file is complete."""
    facts: dict[str, Any] = {name: getattr(trace, name) for name in trace.__dataclass_fields__ if name not in _ARRAYS}
    facts["version"] = _VERSION
    facts["processes"] = [asdict(process) for process in trace.processes]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        archive.writestr("trace.json", json.dumps(facts, ensure_ascii=True))
        for name in _ARRAYS:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, getattr(trace, name), allow_pickle=False)
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
            arrays = {}
            for key, dtype in _ARRAYS.items():
                part = f"{key}.npy"
                arrays[key] = _array(_member(archive, part, name), dtype)
        part = "content"
        return _make(facts, arrays)
    except HoldfastError:
        raise
    except Exception as error:  # zipfile, json and numpy raise nearly anything for damaged data
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
    if size > _MOST_BYTES:
        raise CorruptError(
            path, None, None, f"{member} would take {size} bytes of memory, at most {_MOST_BYTES} are read"
        )
    return archive.read(member)


def _array(data: bytes, dtype: np.dtype) -> np.ndarray:
    file = io.BytesIO(data)
    np.lib.format.read_magic(file)
    shape, _, found = np.lib.format.read_array_header_1_0(file)
    # Not read_array: it makes room for as many rows as the header says before it looks whether they are there.
    rows, rest = divmod(len(data) - file.tell(), dtype.itemsize)
    if found != dtype or list(shape) != [rows] or rest:
        raise ValueError(f"expected {rows} rows of {dtype.itemsize} bytes, got {shape} and {rest} more bytes")
    return np.frombuffer(data, dtype, offset=file.tell())


def _what(path: Path) -> str:
    size = path.stat().st_size
    return f"a file of {size} bytes" if size else "an empty file"


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"expected a number, got {number}")
    return number


def _integer(value: Any, most: int = 1 << 53) -> int:
    number = int(value)
    if abs(number) > most:
        raise ValueError(f"expected a number up to {most}, got {number}")
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


def _make(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Trace:
    processes = tuple(_process(process, len(facts["processes"])) for process in facts["processes"])
    frames = tuple(
        SourceFrame(str(file), _integer(line), str(function), str(text))
        for file, line, function, text in facts["frames"]
    )
    stacks = tuple(tuple(_integer(frame) for frame in stack) for stack in facts["stacks"])
    if any(not 0 <= frame < len(frames) for stack in stacks for frame in stack):
        raise ValueError("a stack names a frame that does not exist")
    for name, array in arrays.items():
        if len(array) and array["process"].max() >= len(processes):
            raise ValueError(f"{name} names a process that does not exist")
        if "stack" in (array.dtype.names or ()) and len(array) and array["stack"].max() >= len(stacks):
            raise ValueError(f"{name} names a stack that does not exist")
        if "t_s" in (array.dtype.names or ()) and not np.isfinite(array["t_s"]).all():
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
        events=arrays["events"],
        open=arrays["open"],
        counts=arrays["counts"],
        samples=arrays["samples"],
        no_reuse=bool(facts.get("no_reuse")),
        untraced=tuple((_integer(pid), str(command)) for pid, command in facts.get("untraced", ())),
    )
